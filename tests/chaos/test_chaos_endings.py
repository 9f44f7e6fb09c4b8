"""What is looked for when a server has ended, and one of the ways to end it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos import endings
from chaos.clients.clients import open_clients
from chaos.record.history import History
from chaos.subject.server import served
from chaos.workload.control import Control
from chaos.workload.repository import write_model, write_repository

pytestmark = [pytest.mark.system, pytest.mark.slow]

MAKE = """
import os, subprocess, sys
os.set_inheritable(os.memfd_create("held"), True)
print("made", flush=True)
sys.stdin.readline()
nowhere = subprocess.DEVNULL
child = subprocess.Popen(["sleep", "60"], close_fds=False, stdin=nowhere, stdout=nowhere, stderr=nowhere)
print(child.pid, flush=True)
os._exit(0)
"""


async def test_memory_that_somebody_still_holds_is_left() -> None:
    with subprocess.Popen(  # noqa: ASYNC220 (it answers at once)
        [sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        server: Any = SimpleNamespace(
            pid=process.pid, http_port=0, grpc_port=0, metrics_port=0, survivors=list
        )
        traces = endings.Traces(server)
        process.stdin.write("\n")
        process.stdin.flush()
        heir = int(process.stdout.readline())
    try:
        assert (await traces.figures())["memory"] >= 1
    finally:
        os.kill(heir, signal.SIGKILL)


@pytest.mark.long
async def test_a_server_whose_model_hangs_ends_at_its_limit_and_tells_everybody(tmp_path: Path) -> None:
    write_repository(tmp_path / "models", run=tmp_path, models=("echo",))
    write_model(tmp_path / "models", endings.ENDLESS, run=tmp_path, timeout=None)
    flag = f"--exit-timeout-secs={endings.EXIT_TIMEOUT}"
    async with served(tmp_path / "models", tmp_path / "server", flag) as server:
        with History(tmp_path / "history.jsonl") as history:
            async with open_clients(history, server.http_port, server.grpc_port) as clients:
                seen = await endings.sigterm_hung(server, clients, Control(tmp_path))
    assert (seen.trouble, seen.figures["accepted"], seen.figures["untold"]) == ("", endings.WAITING, 0)
