"""Hostile clients with shared memory: server and workers live, and answers are right or clear errors."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.flavours import ROOT, process
from tests.support.shared_memory import PAGE, Face, Given, Object, Place, Refused, an_object, refusal
from tests.support.shared_models import write_kinds

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LONG = 8 * 1024 * 1024
SIZES = [64, LONG]  # one that is read on the loop, and one that is not
LIMIT = 1024  # the default of --client-shm-regions


class Serving:
    """A server, its process, and its workers."""

    def __init__(self, addresses, said: Path) -> None:
        self.addresses = addresses
        (self.pid,) = {int(pid) for pid in re.findall(r"^I\S+ \S+ (\d+) ", said.read_text(), re.MULTILINE)}

    def tree(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self.addresses.http}/v2/tritium/tree", timeout=10) as answer:
            return json.load(answer)

    def node(self, *path: str) -> dict[str, Any]:
        node = self.tree()
        for name in path:
            (node,) = [child for child in node["children"] if child["name"] == name]
        return node

    def lives(self) -> set[tuple[str, int]]:
        """Return the workers, by their names and process ids."""

        def of(node):
            pid = node["info"].get("pid")
            own = {(node["path"], pid)} if pid else set()
            return own.union(*map(of, node["children"]))

        return of(self.tree())

    def descriptors(self) -> list[str]:
        """Return what the server has open in /dev/shm."""
        folder = Path(f"/proc/{self.pid}/fd")
        links = []
        for entry in folder.iterdir():
            try:
                links.append(os.readlink(entry))
            except FileNotFoundError:
                continue  # it has been closed meanwhile
        return [link for link in links if link.startswith("/dev/shm/")]

    def descriptors_left(self) -> list[str]:
        """The same, once they had time to go: an object is closed by a thread, behind its last use."""
        until = time.monotonic() + 10.0
        while (left := self.descriptors()) and time.monotonic() < until:
            threading.Event().wait(0.02)
        return left


@pytest.fixture(scope="module")
def serving(tmp_path_factory) -> Iterator[Serving]:
    folder, gates = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("gates")
    write_kinds(folder, gates)
    said = gates / "said"
    serve = process("engine", "serve", said=said, TRITIUM_ALLOW_CLIENT_SHM="true")
    with serve(folder) as addresses:
        yield Serving(addresses, said)


@pytest.fixture(params=["http", "grpc"])
def face(request, serving) -> Iterator[Face]:
    face = Face(request.param, getattr(serving.addresses, request.param))
    lives = serving.lives()
    yield face
    assert face.unregister() is None
    assert face.status() == []
    face.close()
    assert serving.node("services", "shared-memory")["info"] == {"registered": 0}
    assert serving.node("services", "shared-memory")["restarts"] == 0
    assert serving.descriptors_left() == []
    assert serving.lives() == lives


def ask(face, nbytes, *, read=0, write=None, model="plain", region="R"):
    """Ask for `nbytes` at `read`, and have them written to `write`; None: over the wire."""
    given = Given(
        name="X",
        datatype="FP32",
        shape=[nbytes // 4],
        place=Place(region=region, nbytes=nbytes, offset=read),
    )
    wanted = None if write is None else Place(region=region, nbytes=nbytes, offset=write)
    return face.infer(model, [given], {"Y": wanted})


def shrunk(face, what, *, ends, needed):
    text = (
        f"shared memory region 'R' has been shrunk since it was registered: its object has {ends}"
        f" bytes, and {what} "
        f"ends at byte {needed}"
    )
    return refusal(face.protocol, "INVALID_ARG", text)


@pytest.mark.parametrize("left", [0, 32, PAGE, PAGE + 32])
@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("model", ["plain", "chain"])
def test_an_input_that_was_cut_off_is_a_clear_error(face, model, nbytes, left):
    with an_object(2 * LONG) as memory:
        assert face.register("R", memory.key, 2 * LONG) is None
        memory.resize(left)
        told = ask(face, nbytes, read=PAGE, model=model)
        assert told == shrunk(face, "input 'X'", ends=left, needed=PAGE + nbytes)
        memory.resize(PAGE + nbytes)
        assert not isinstance(ask(face, nbytes, read=PAGE, model=model), Refused)


@pytest.mark.parametrize("nbytes", SIZES)
def test_an_object_that_was_shrunk_does_not_grow_by_an_output(face, nbytes):
    with an_object(2 * LONG) as memory:
        assert face.register("R", memory.key, 2 * LONG) is None
        memory.resize(LONG + 8)
        told = ask(face, nbytes, write=LONG)
        assert told == shrunk(face, "output 'Y'", ends=LONG + 8, needed=LONG + nbytes)
        assert memory.size == LONG + 8


def test_an_object_that_shrinks_and_grows_all_the_time_gives_right_answers_or_errors(face):
    values = np.arange(LONG // 4, dtype=np.float32)
    stop = threading.Event()
    with an_object(2 * LONG) as memory:
        assert face.register("R", memory.key, 2 * LONG) is None

        def change():
            while not stop.is_set():
                memory.resize(PAGE)
                memory.resize(2 * LONG)

        thread = threading.Thread(target=change)
        thread.start()
        try:
            told = [ask(face, LONG, write=LONG) for _ in range(30)]
        finally:
            stop.set()
            thread.join()
        for each in told:
            if isinstance(each, Refused):
                assert "has been shrunk since it was registered" in each.text
        memory.resize(2 * LONG)
        memory.put(values.tobytes())
        assert not isinstance(ask(face, LONG, write=LONG), Refused)
        np.testing.assert_array_equal(memory.array(np.float32, LONG // 4, LONG), values + 1)


@pytest.mark.parametrize("nbytes", SIZES)
def test_an_unlinked_object_is_used_on(face, nbytes):
    values = np.arange(nbytes // 4, dtype=np.float32)
    with an_object(2 * nbytes) as memory:
        memory.put(values.tobytes())
        assert face.register("R", memory.key, 2 * nbytes) is None
        os.unlink(memory.path)
        assert not isinstance(ask(face, nbytes, write=nbytes), Refused)
        np.testing.assert_array_equal(memory.array(np.float32, nbytes // 4, nbytes), values + 1)


def test_an_object_that_was_replaced_is_another_one(face):
    with an_object(PAGE) as memory:
        memory.put(np.full(16, 1, np.float32).tobytes())
        assert face.register("R", memory.key, PAGE) is None
        os.unlink(memory.path)
        other = Object(memory.name, PAGE)
        other.put(np.full(16, 5, np.float32).tobytes())
        assert ask(face, 64).as_numpy("Y")[0] == 2
        assert face.unregister("R") is None
        assert face.register("R", memory.key, PAGE) is None
        assert ask(face, 64).as_numpy("Y")[0] == 6
        os.close(other.fileno)


def test_regions_may_overlap(face):
    with an_object(2 * LONG) as memory:
        for index in range(4):
            assert face.register(f"R{index}", memory.key, 2 * LONG - index * PAGE, index * PAGE) is None

        def one(index):
            asking = Face(face.protocol, face.address)
            try:
                return ask(asking, LONG, write=4, region=f"R{index}")
            finally:
                asking.close()

        with ThreadPoolExecutor(4) as pool:
            told = list(pool.map(one, [0, 1, 2, 3] * 3))
        assert not [each for each in told if isinstance(each, Refused)]


@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder", "socket"])
def test_what_is_no_shared_memory_is_not_opened(face, kind):
    import socket

    path = Path("/dev/shm") / f"tritium-test-{kind}-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening:
        match kind:
            case "symlink":
                path.symlink_to("/etc/hostname")
            case "fifo":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case _:
                listening.bind(str(path))
        try:
            told = face.register("R", f"/{path.name}", 8)
        finally:
            path.rmdir() if kind == "folder" else path.unlink()
    word = "Invalid" if kind == "fifo" else "Unable to open"
    assert told == refusal(face.protocol, "INTERNAL", f"{word} shared memory region: '/{path.name}'")


@pytest.mark.long
def test_ten_thousand_registrations_find_a_limit(serving, face):
    with an_object(PAGE) as memory:
        told = [face.register(f"R{number}", memory.key, 64) for number in range(10_000)]
        assert told[:LIMIT] == [None] * LIMIT
        assert {each.status for each in told[LIMIT:]} == {refusal(face.protocol, "UNAVAILABLE", "").status}
        assert len(serving.descriptors()) == LIMIT
        assert len(face.status()) == LIMIT
        shown = serving.node("services", "shared-memory")["info"]
        assert shown["registered"] == LIMIT
        assert len(shown["regions"]) == 64
        assert ask(face, 64, region="R7").as_numpy("Y")[0] == 1
        assert face.unregister() is None
        assert serving.descriptors_left() == []
        assert face.register("R", memory.key, 64) is None


KILLED = """
import sys
from tests.support.shared_memory import Face, Given, Place

protocol, address, key, nbytes = sys.argv[1:5]
face = Face(protocol, address)
size = int(nbytes)
assert face.register("R", key, 2 * size) is None
given = Given(name="X", datatype="FP32", shape=[size // 4], place=Place(region="R", nbytes=size))
turn = 0
while True:
    face.infer("plain", [given], {"Y": Place(region="R", nbytes=size, offset=size)})
    if turn == 0:
        print("asking", flush=True)
    turn += 1
"""


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_client_may_be_killed_in_the_middle(serving, face, nbytes):
    with an_object(2 * LONG) as memory:
        client = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                KILLED,
                face.protocol,
                face.address,
                memory.key,
                str(nbytes),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert client.stdout is not None
        assert client.stdout.readline() == b"asking\n"
        client.send_signal(signal.SIGKILL)
        client.wait()
        client.stdout.close()
        # Its region stays, and shows how long it has been there.
        (region,) = face.status()
        assert region["name"] == "R"
        (shown,) = serving.node("services", "shared-memory")["info"]["regions"]
        assert shown["age"] >= 0
        assert not isinstance(ask(face, nbytes, write=nbytes), Refused)
        assert face.unregister("R") is None
        # It is gone at once, or with the last request of the client that was killed.
        for _ in range(1000):
            if not face.status():
                break
            threading.Event().wait(0.01)
        assert face.status() == []


@pytest.mark.long
def test_the_server_never_removes_an_object(tmp_path):
    write_kinds(tmp_path / "models", tmp_path)
    with an_object(PAGE) as memory:
        with process("engine", "serve", TRITIUM_ALLOW_CLIENT_SHM="true")(tmp_path / "models") as addresses:
            face = Face("grpc", addresses.grpc)
            assert face.register("R", memory.key, PAGE) is None
            face.close()
        assert Path(memory.path).exists()
