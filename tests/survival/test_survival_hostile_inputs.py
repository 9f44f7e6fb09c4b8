"""Bodies that are cheap to send and dear to read: answered or refused, within bounds of memory.

A neighbour asks for health all the while, and each of its questions is answered.
"""

import http.client
import json
import threading
from contextlib import closing, contextmanager

import pytest

from tests.support.hostile import ATTACKS, MIB, write_models
from tests.support.operators import serving

pytestmark = [pytest.mark.slow, pytest.mark.system]

PATIENCE = 120.0
SLACK = 64 * MIB  # what the interpreter, its allocator and other tasks take for themselves
SHORT = (
    "16 MiB of NaN and ones",
    "too deep rows",
    "brackets",
    "objects in data",
    "one number of 16 MiB",
    "generate, parameters",
    "a million classes",
    *(name for name in ATTACKS if "gzip" in name or "bomb" in name),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    write_models(folder / "models")
    with serving(folder, f"--model-repository={folder / 'models'}") as server:
        server.wait_ready()
        yield server


def peak(server):
    """The most memory that the server's process has had, in bytes, since `begin_anew`."""
    with open(f"/proc/{server.process.pid}/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def begin_anew(server):
    with open(f"/proc/{server.process.pid}/clear_refs", "w") as file:
        file.write("5")
    return peak(server)


@contextmanager
def neighbour(server):
    """A client around the block that asks for health without a pause."""
    over, told = threading.Event(), []

    def ask():
        with closing(http.client.HTTPConnection(server.address(), timeout=PATIENCE)) as connection:
            while not over.is_set():
                connection.request("GET", "/v2/health/live")
                answer = connection.getresponse()
                answer.read()
                told.append(answer.status)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in ATTACKS]
)
def test_an_input_is_answered_or_refused_within_its_memory(server, name):
    attack = ATTACKS[name]
    body = attack.make()
    before = begin_anew(server)
    with (
        neighbour(server) as told,
        closing(http.client.HTTPConnection(server.address(), timeout=PATIENCE)) as connection,
    ):
        try:
            connection.request("POST", attack.path, body, dict(attack.headers))
        except (BrokenPipeError, ConnectionResetError):
            assert not attack.answered  # it was refused while it came
        answer = connection.getresponse()
        text = answer.read()
    assert (answer.status == 200) is attack.answered
    assert attack.answered or "internal server error" not in json.loads(text)["error"]
    assert set(told) == {200}
    allowed = 4 * max(attack.unfolded, len(body)) + 3 * attack.tensors
    assert peak(server) - before < allowed + SLACK
