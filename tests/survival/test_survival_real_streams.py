"""The gRPC clients that people use, unary and streaming, at every pace, for long: not one answer is lost.

Ten minutes with `-m long`, or TRITIUM_SURVIVAL_SECONDS where that is set.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
import trio

from tests.survival.real_streams import LIBRARIES, SERVER_FLAGS, lay_out, stream_of_small_answers
from tests.survival.server import ROOT

pytestmark = pytest.mark.slow


async def test_a_stream_of_small_answers_is_not_taken_for_a_flood(tritium_server, repository):
    """Its client answers each message with window updates and pings, the frames that a flood consists of."""
    lay_out(repository)
    async with tritium_server() as server:
        mode = await trio.to_thread.run_sync(stream_of_small_answers, server.grpc_port, 4000)
    assert mode.wrong == []
    assert mode.came == mode.owed >= 4000


@pytest.mark.long
async def test_no_answer_to_a_real_client_is_lost(tritium_server, repository):
    seconds = float(os.environ.get("TRITIUM_SURVIVAL_SECONDS", "600"))
    lay_out(repository)
    told: dict[str, Any] = {}
    async with tritium_server(*SERVER_FLAGS) as server:
        async with trio.open_nursery() as nursery:
            for library in LIBRARIES:
                nursery.start_soon(ask, library, server.grpc_port, seconds, told)
        assert await server.metric("tritium_grpc_floods_total") == 0
    assert set(told) == set(LIBRARIES)
    for library, modes in told.items():
        for mode in modes:
            name = f"{library} {mode['kind']} {mode['size']} at {mode['rate'] or 'full speed'}"
            print(f"{name}: {mode['came']} of {mode['owed']} answers", file=sys.stderr)
            assert mode["wrong"] == [], name
            assert mode["came"] == mode["owed"] > 0, name


async def ask(library, port, seconds, told):
    """Have another process ask by one library; put the outcomes of its modes into `told`."""
    command = [sys.executable, "-m", "tests.survival.real_streams", library, str(port), str(seconds)]
    done = await trio.run_process(command, cwd=ROOT, capture_stdout=True)
    told[library] = json.loads(done.stdout)
