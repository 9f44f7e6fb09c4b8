"""A text worker's loop, without a process."""

import json
import socket

import pytest

from engine.worker.text import helpers, serving
from engine.worker.text.lines import Line
from engine.worker.text.loading import Loaded
from engine.worker.text.preparing import Choices
from engine.worker.text.serving import MOST_IDLE_DEATHS, HelpersFailed, Serving
from tests.support.llm import spelt


class Stillborn(helpers.Helper):
    """A helper whose process has ended."""

    def end(self):
        self.line.close()
        return "ended its process (exit status 1)"


def test_helpers_that_end_before_they_are_asked_are_not_forked_for_ever(monkeypatch):
    forked = []

    def fork(loaded, choices, unwanted):
        ours, theirs = socket.socketpair()
        theirs.close()
        forked.append(ours)
        if len(forked) > 10 * MOST_IDLE_DEATHS:
            pytest.fail("it forks for ever")
        return Stillborn(0, Line(ours))

    monkeypatch.setattr(serving.helpers, "fork", fork)
    tokenizer = spelt.byte_level()
    loaded = Loaded(tokenizer, json.loads(tokenizer.to_str()), "/nowhere")
    server, worker = socket.socketpair()
    with server, worker, pytest.raises(HelpersFailed, match="exit status 1"):
        Serving(Line(worker), loaded, Choices()).run()
    assert len(forked) == MOST_IDLE_DEATHS
