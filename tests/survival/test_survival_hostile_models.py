"""Models that do their worst to their own process: the server and every other model serve on unaffected."""

import ctypes

import psutil
import pytest
import trio

from tests.survival.changing import PORTS, Workshop, identity, pids, refusal, witnessed
from tests.survival.repository import instances, parameter
from tests.survival.server import eventually

SERVER_GROWTH = 64 << 20  # bytes that the server's memory may grow by while a model prints 100 MB
LANDLOCK = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)

# One deed a model, done by its `execute`. Each ends by itself even if the server does not end it, and bounds
# what it takes.
MODEL = """
import ctypes
import os
import random
import signal
import sys
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

with open("/proc/self/cmdline", "rb") as file:
    SOCKET = int(file.read().split(bytes(1))[2])


def hang():
    time.sleep(60)


def crash():
    ctypes.string_at(0)


def leak():
    kept = []
    for _ in range(64):
        kept.append(np.ones(16 << 20, np.uint8))
        time.sleep(0.005)
    hang()


def exit_at_once():
    os._exit(5)


def exit_politely():
    sys.exit(6)


class Clumsy:
    def __del__(self):
        raise RuntimeError("not even this")


def raise_where_nobody_listens():
    Clumsy()
    thread = threading.Thread(target=crash_of_a_thread)
    thread.start()
    thread.join()


def crash_of_a_thread():
    raise RuntimeError("in a thread")


def print_without_end():
    chunk = ("x" * 99 + "\\n") * 10_000
    for _ in range(100):
        sys.stdout.write(chunk)


def bomb(generation=0):
    for _ in range(3):
        if os.fork() == 0:
            signal.alarm(30)
            os.setsid()
            if generation < 4:
                bomb(generation + 1)
            time.sleep(60)
            os._exit(0)
    if generation == 0:
        hang()


def close_the_connection():
    os.close(SOCKET)
    hang()


def close_everything():
    os.closerange(0, 1000)
    hang()


def talk_nonsense():
    chance = random.Random(1)
    for _ in range(300):
        os.write(SOCKET, chance.randbytes(chance.randrange(1, 200)))
    hang()


def kill_the_server():
    os.kill(os.getppid(), signal.SIGKILL)


def stop_itself():
    os.kill(os.getpid(), signal.SIGSTOP)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            ticket = int(pb_utils.get_input_tensor_by_name(request, "TICKET").as_numpy().ravel()[0])
            if ticket == 1:
                @DEED@()
            tensor = pb_utils.Tensor("IDENTITY", np.array([ticket, 1, 1], np.int32))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""

LIMITED = parameter("tritium.execution_timeout", 2)
FATAL = {
    "crash": ("signal_11", ""),
    "hang": ("hang", LIMITED),
    "leak": ("oom", parameter("tritium.memory_limit_mb", 300)),
    "exit_at_once": ("exit_5", ""),
    "exit_politely": ("exit_6", ""),
    "bomb": ("processes", parameter("tritium.max_processes", 20)),
    "close_the_connection": ("protocol_error", ""),
    "close_everything": ("protocol_error", ""),
    "talk_nonsense": ("protocol_error", ""),
    "stop_itself": ("hang", LIMITED),
}
"""By deed: the reason that the server gives for the worker's end, and what the model's configuration says."""


@pytest.fixture
def hostile(repository):
    """Put a model into the repository that does a deed for ticket 1 and echoes any other ticket."""
    workshop = Workshop(repository.path)
    workshop.model("telling")

    def put(deed, extra=""):
        model = repository.path / deed
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(
            f'backend: "python"\nmax_batch_size: 0\n{PORTS}{instances(1)}{extra}'
        )
        (model / "1" / "model.py").write_text(MODEL.replace("@DEED@", deed))

    return put


def processes_of(server):
    """Every process that began as a worker of this server or as a copy of one, whatever its parent is now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cmdline()[3:4] == [str(server.pid)]:
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return sorted(found)


async def test_each_deed_costs_one_worker_and_is_told_by_its_reason(tritium_server, hostile):
    for deed, (_, extra) in FATAL.items():
        hostile(deed, extra)
    async with tritium_server("--spare-workers=0") as server:
        before = {deed: await pids(server, deed) for deed in FATAL}
        async with witnessed(server, "telling", clients=2) as witness, trio.open_nursery() as nursery:
            for deed in FATAL:
                nursery.start_soon(suffer, server, deed)
        assert witness.answered > 50
        for deed, (reason, _) in FATAL.items():
            exited = [line for line in server.logged("worker_exited") if f"models/{deed}/" in line["actor"]]
            assert [line["reason"] for line in exited] == [reason], (deed, exited)
            assert [line["pid"] for line in exited] == list(before[deed])
            assert await server.metric("tritium_worker_deaths_total", model=deed, reason=reason) == 1, deed
        assert await server.metric("tritium_worker_deaths_total", model="telling") == 0

        async def only_workers_are_left():
            serving = [pid for model in (*FATAL, "telling") for pid in await pids(server, model)]
            return processes_of(server) == sorted(serving)

        await eventually(only_workers_are_left)


async def suffer(server, deed):
    """Ask for the deed, check that it is refused, and check that the model serves again."""
    status, text = await refusal(server, deed)
    assert status in {503, 504}, (deed, text)
    assert await identity_of_echo(server, deed) == (1, 1)


async def identity_of_echo(server, model):
    """Have a hostile model do what an honest one does."""
    return await identity(server, model, 2)


@pytest.mark.parametrize(
    ("deed", "line"),
    [("raise_where_nobody_listens", "not even this"), ("print_without_end", "x" * 99)],
)
async def test_what_goes_wrong_beside_the_answer_is_in_the_log_and_costs_nothing(
    tritium_server, hostile, deed, line
):
    hostile(deed)
    async with tritium_server() as server:
        (worker,) = await pids(server, deed)
        memory = psutil.Process(server.pid).memory_info().rss
        async with witnessed(server, "telling", clients=2):
            assert await identity(server, deed, 1) == (1, 1)
        assert await pids(server, deed) == {worker}
        assert psutil.Process(server.pid).memory_info().rss < memory + SERVER_GROWTH

        async def told():
            return any(line in each.get("line", "") for each in server.logged("worker_output"))

        await eventually(told)
        assert len(server.logged("worker_output")) < 2_000
        assert await server.metric("tritium_worker_deaths_total") == 0


@pytest.mark.skipif(LANDLOCK < 6, reason="Landlock of this kernel can't refuse signals")
async def test_a_model_in_a_sandbox_can_t_kill_the_server(tritium_server, hostile):
    hostile("kill_the_server", parameter("tritium.sandbox", "basic"))
    async with tritium_server() as server:
        status, text = await refusal(server, "kill_the_server")
        assert status == 500
        assert "Operation not permitted" in text
        assert server.status is None
        assert await identity(server, "telling") == (1, 1)
