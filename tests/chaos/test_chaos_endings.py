"""What is looked for when a server has ended, and not taken for its own."""

import contextlib
import os
import signal
import subprocess
import sys
from multiprocessing import shared_memory
from types import SimpleNamespace

import pytest

from chaos.endings import Traces

pytestmark = pytest.mark.system

MAKE = """
import sys, os
from multiprocessing import resource_tracker, shared_memory
held = os.memfd_create("held")
os.set_inheritable(held, True)
made = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(made._name, "shared_memory")
print(made.name, held, flush=True)
sys.stdin.readline()
if "hand-on" in sys.argv:
    import subprocess
    nowhere = subprocess.DEVNULL
    child = subprocess.Popen(["sleep", "60"], close_fds=False, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    print(child.pid, flush=True)
os._exit(0)
"""


@contextlib.contextmanager
def server(*words):
    """A process that shares memory, and waits for a line before it ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        name, _ = process.stdout.readline().split()
        yield process, name
    finally:
        process.kill()
        process.communicate()
        with contextlib.suppress(FileNotFoundError):
            left = shared_memory.SharedMemory(name)
            left.close()
            left.unlink()


def seen(process):
    return SimpleNamespace(pid=process.pid, http_port=0, grpc_port=0, metrics_port=0, survivors=list)


@pytest.mark.slow
async def test_memory_that_was_shared_long_before_the_end_is_left_unless_somebody_else_makes_use_of_it():
    with server() as (process, name):
        traces = Traces(seen(process))
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait()
        mine = shared_memory.SharedMemory(name)
        try:
            assert (await traces.figures())["memory"] == 0
        finally:
            mine.close()
        assert (await traces.figures())["memory"] >= 1


@pytest.mark.slow
async def test_memory_without_a_name_that_somebody_still_holds_is_a_descriptor_left():
    with server("hand-on") as (process, _):
        traces = Traces(seen(process))
        process.stdin.write("\n")
        process.stdin.flush()
        heir = int(process.stdout.readline())
        process.wait()
        try:
            assert (await traces.figures())["descriptors"] >= 1
        finally:
            os.kill(heir, signal.SIGKILL)
