"""Triton's trace file: what goes where, and when (contract, observability.md section 3.2)."""

import errno
import json
import os
import threading

import pytest

from actors.tracing.policy.sampling import Sampler
from actors.values.tracing.settings import TIMESTAMPS, TraceSetting
from actors.values.tracing.traces import FinishedTrace, TracedRequest
from engine.observability.traces import file as trace_file
from engine.observability.traces.file import TraceFiles
from tests.support.logged import Logged


class Traces:
    """A file, and settings whose traces go there."""

    def __init__(self, path, log):
        self.path = path
        self.sink = TraceFiles(str(path), log)
        self._number = 0

    def setting(self, **changes):
        return Sampler(TraceSetting(levels=(TIMESTAMPS,), rate=1, file=str(self.path), **changes))

    def sampled(self, sampler, count=1):
        """Sample requests; return their traces, which have ended."""
        assert all(sampler.take() for _ in range(count))
        return [self._trace(sampler) for _ in range(count)]

    def write(self, sampler, count=1):
        self.sink.write(self.sampled(sampler, count))

    def _trace(self, sampler):
        self._number += 1
        request = TracedRequest(
            id=self._number,
            parent_id=0,
            relation="",
            model_name="m",
            model_version=1,
            request_id="",
            correlation_id=0,
            rows=1,
            error="",
            parts=1,
            w3c_id=1,
            moments=(),
            executions=(),
            tensors=(),
        )
        return FinishedTrace(
            setting=sampler, context=None, w3c_id=1, w3c_span=1, moments=(), requests=(request,), unkept=0
        )

    def ids(self, suffix=""):
        """The ids in a file; None where there is none."""
        path = self.path.with_name(self.path.name + suffix)
        return [each["id"] for each in json.loads(path.read_text())] if path.exists() else None


@pytest.fixture
def log():
    return Logged()


@pytest.fixture
def traces(tmp_path, log):
    return Traces(tmp_path / "trace.json", log)


def test_without_a_log_frequency_all_goes_to_one_file_which_is_an_array_at_any_time(traces):
    setting = traces.setting()
    for count in (1, 2, 3):
        traces.write(setting)
        assert traces.ids() == list(range(1, count + 1))
    traces.sink.close()
    assert traces.ids() == [1, 2, 3]


def test_with_a_log_frequency_each_file_has_so_many_and_the_last_one_the_rest(traces):
    setting = traces.setting(log_frequency=2)
    traces.write(setting, 5)
    assert (traces.ids(".0"), traces.ids(".1"), traces.ids(".2")) == ([1, 2], [3, 4], None)
    traces.sink.close()
    assert traces.ids(".2") == [5]
    assert traces.ids() is None


def test_once_the_count_is_exhausted_the_traces_go_to_the_next_numbered_file(traces):
    setting = traces.setting(count=3)
    given = traces.sampled(setting, 3)
    traces.sink.write(given[:2])
    assert traces.ids(".0") is None, "one of those that were sampled has not ended"
    traces.sink.write(given[2:])
    assert traces.ids(".0") == [1, 2, 3]
    traces.sink.close()
    assert traces.ids() is None


def test_a_trace_that_is_lost_does_not_hold_up_an_exhausted_count(traces):
    setting = traces.setting(count=2)
    given = traces.sampled(setting, 2)
    setting.lost += 1
    traces.sink.write(given[:1])
    assert traces.ids(".0") == [1]


def test_a_count_that_is_not_exhausted_goes_to_the_file_at_the_end(traces):
    traces.write(traces.setting(count=9), 2)
    assert traces.ids() is None
    traces.sink.close()
    assert traces.ids() == [1, 2]


def test_a_setting_that_is_replaced_is_written_when_its_last_trace_has_ended(traces):
    old, new = traces.setting(log_frequency=10), traces.setting()
    last = traces.sampled(old, 2)
    traces.sink.write(last[:1])
    old.retired = True
    traces.sink.write([])
    assert traces.ids(".0") is None
    traces.write(new)
    traces.sink.write(last[1:])
    assert traces.ids(".0") == [1, 2]
    assert traces.ids() == [3]


def test_an_exhausted_count_has_its_file_although_the_setting_was_replaced_meanwhile(traces):
    setting = traces.setting(count=1)
    last = traces.sampled(setting)
    setting.retired = True
    traces.sink.write(last)
    assert traces.ids(".0") == [1]


def test_settings_share_the_numbers_of_files(traces):
    first, second = traces.setting(log_frequency=1), traces.setting(log_frequency=2)
    traces.write(first)
    traces.write(second, 2)
    assert (traces.ids(".0"), traces.ids(".1")) == ([1], [2, 3])


def test_what_is_kept_for_a_file_leaves_memory_where_it_is_long(traces, monkeypatch):
    monkeypatch.setattr(trace_file, "IN_MEMORY", 100)
    setting = traces.setting(log_frequency=50)
    traces.write(setting, 50)
    assert traces.ids(".0") == list(range(1, 51))


def test_a_file_of_before_is_replaced(traces):
    traces.path.write_text("of before")
    traces.write(traces.setting())
    assert traces.ids() == [1]


def test_a_file_that_cannot_be_opened_costs_traces_and_one_line_of_the_log(traces, log):
    traces.path.mkdir()
    setting = traces.setting()
    traces.write(setting, 3)
    traces.sink.close()
    assert traces.sink.lost == 3
    (line,) = log.of("traces_lost")
    assert line == {"file": str(traces.path), "error": os.strerror(errno.EISDIR)}


def test_a_numbered_file_that_cannot_be_written_is_not_left_behind(traces, log):
    traces.path.with_name("trace.json.0").mkdir()
    traces.write(traces.setting(log_frequency=2), 4)
    assert traces.sink.lost == 2
    assert traces.ids(".1") == [3, 4]


def test_a_full_disk_leaves_what_was_there_and_writing_goes_on_when_there_is_room(traces, log, monkeypatch):
    setting = traces.setting()
    traces.write(setting)
    full = [True]
    whole = os.pwrite

    def pwrite(descriptor, data, at):
        if full[0] and at > 10:  # some of it still fits
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(descriptor, bytes(data)[:8] if full[0] else data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    traces.write(setting, 2)
    assert traces.sink.lost == 2
    assert len(log.of("traces_lost")) == 1
    full[0] = False
    traces.write(setting)
    assert traces.ids() == [1, 4]


def test_a_pipe_is_written_to_from_the_front(tmp_path, log):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    traces = Traces(path, log)
    traces.write(traces.setting(), 2)
    traces.sink.close()
    reader.join(30)
    assert [each["id"] for each in json.loads(read[0])] == [1, 2]
