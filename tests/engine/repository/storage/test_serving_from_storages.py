"""A whole server over each object storage: it resumes a broken download and swaps in what is new."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.repository.remote.source import open_source
from tests.engine.repository.storage.conftest import HASTY
from tests.engine.repository.storage.doubles import fetch, read
from tests.engine.repository.storage.emulators import MotoS3
from tests.engine.repository.storage.wires import Wire
from tests.support.tiers import mostly_long
from tests.survival.changing import code, config, identity, load, policy, until_states
from tests.survival.server import served

pytestmark = [pytest.mark.system]


WEIGHTS = os.urandom(12 << 20)
CUT_AFTER = 5 << 20


@pytest.fixture
def model(emulator):
    """A bucket with one model, of two small files and a large one."""
    bucket = f"serving{os.urandom(4).hex()}"
    emulator.make_bucket(bucket)
    emulator.put(bucket, "models/telling/config.pbtxt", config(policy("latest { num_versions: 1 }")).encode())
    emulator.put(bucket, "models/telling/1/model.py", code(1).encode())
    emulator.put(bucket, "models/telling/1/weights.bin", WEIGHTS)
    return bucket


@pytest.mark.slow
@pytest.mark.parametrize("emulator", mostly_long(["s3", "gcs", "azure"], "s3"), indirect=True)
async def test_a_server_goes_on_with_a_download_where_another_was_cut_off(emulator, model, wire_to, tmp_path):
    wire = wire_to(emulator.port)
    uri, environ = emulator.uri(model, "models", wire.port), emulator.environ(wire.port)
    flags = (
        "--model-control-mode=explicit",
        f"--model-cache-directory={tmp_path / 'cache'}",
    )

    def server(life, **options):
        return served(uri, *flags, files=tmp_path / f"life-{life}", environ=environ, **options)

    wire.break_after(CUT_AFTER)
    async with server(1, exit_status=None) as first:
        answer = await load(first, "telling")
        assert answer.status == 500
        assert answer.error.startswith("failed to load 'telling', failed to poll from model repository: ")
        assert wire.broken.is_set()
        first.kill_all()
    wire.mend()
    async with server(2) as second:
        assert (await load(second, "telling")).status == 200
        assert await identity(second, "telling") == (1, 1)
    assert wire.down < len(WEIGHTS) - CUT_AFTER + (2 << 20)
    wire.mend()
    async with server(3) as third:
        assert (await load(third, "telling")).status == 200
    assert wire.down < 1 << 20  # everything was there


@pytest.mark.slow
async def test_a_new_version_in_a_storage_is_swapped_in(emulator, model, tmp_path):
    flags = (
        "--model-control-mode=poll",
        "--repository-poll-secs=0.2",
        f"--model-cache-directory={tmp_path / 'cache'}",
    )
    uri, environ = emulator.uri(model, "models"), emulator.environ()
    async with served(uri, *flags, files=tmp_path / "server", environ=environ) as server:
        assert await identity(server, "telling") == (1, 1)
        emulator.put(model, "models/telling/2/model.py", code(2).encode())
        await until_states(server, "telling", {1: "UNAVAILABLE", 2: "READY"})
        assert await identity(server, "telling") == (2, 2)


SHARED_WEIGHTS = os.urandom(20 << 20)


# -- several server processes over one cache, and what is left when one is killed


# Fetches a model when told to, reports its progress, and keeps the directory until it is told again.
SERVER = """
import os, sys
from pathlib import Path
from engine.repository.remote.source import open_source

source = open_source(sys.argv[1], os.environ, cache_directory=Path(sys.argv[2]), parallelism=1)
print("ready", flush=True)
sys.stdin.readline()
fetched = source.fetch(
    "m", progress=lambda done: print(done.bytes_done, flush=True), cancelled=lambda: False
)
print(fetched.path, flush=True)
sys.stdin.readline()
source.release(fetched.path)
"""


class Server:
    """A process that fetches the model `m`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        self.process = process
        self._said = process.stdout
        self._told = process.stdin
        assert self._said.readline() == "ready\n"

    def go_on(self) -> None:
        self._told.write("\n")
        self._told.flush()

    def has_read(self, nbytes: int) -> None:
        """Wait until so much was read."""
        for line in self._said:
            if int(line) >= nbytes:
                return
        pytest.fail("it ended before")

    def directory(self) -> Path:
        """Wait for the directory."""
        for line in self._said:
            if not line.strip().isdecimal():
                return Path(line.strip())
        pytest.fail("it ended before")


@contextmanager
def serving(uri: str, cache: Path, s3: MotoS3, root: Path) -> Iterator[Server]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, uri, str(cache)],
        cwd=root,
        env={**os.environ, **s3.environ()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Server(process)
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.slow
def test_a_killed_process_leaves_its_download_to_the_next(
    s3: MotoS3, wire_to: Callable[[int], Wire], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    s3.make_bucket("killed")
    s3.put("killed", "m/1/weights", SHARED_WEIGHTS)
    wire = wire_to(s3.port)
    wire.break_after(13 << 20, stall=True)
    uri = s3.uri("killed", port=wire.port)
    with serving(uri, tmp_path, s3, pytestconfig.rootpath) as server:
        server.go_on()
        server.has_read(11 << 20)
        server.process.kill()
        server.process.wait()
    wire.mend()
    source = open_source(
        uri, {**os.environ, **s3.environ()}, cache_directory=tmp_path, parallelism=1, patience=HASTY
    )
    fetched = fetch(source, "m")
    assert (fetched.path / "1/weights").read_bytes() == SHARED_WEIGHTS
    assert wire.down <= len(SHARED_WEIGHTS) - (11 << 20) + 20_000
    source.release(fetched.path)
    left = [path for folder in ("staging", "models", "partial") for path in tmp_path.glob(f"*/{folder}/*")]
    assert left == []


@pytest.mark.slow
def test_processes_that_want_the_same_model_transfer_it_once(
    s3: MotoS3, wire_to: Callable[[int], Wire], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    files = {"config.pbtxt": b"# c", "1/weights": SHARED_WEIGHTS}
    s3.make_bucket("shared")
    for path, content in files.items():
        s3.put("shared", f"m/{path}", content)
    wire = wire_to(s3.port)
    uri = s3.uri("shared", port=wire.port)
    root = pytestconfig.rootpath
    with serving(uri, tmp_path, s3, root) as one, serving(uri, tmp_path, s3, root) as other:
        one.go_on()
        other.go_on()
        directory = one.directory()
        assert other.directory() == directory
        assert wire.down < len(SHARED_WEIGHTS) + 50_000
        one.go_on()
        one.process.wait(10)
        assert read(directory) == files  # the other still uses it
        other.process.kill()
        other.process.wait()
    assert read(directory) == files
    s3.put("shared", "n/1/model.py", b"x")
    source = open_source(uri, {**os.environ, **s3.environ()}, cache_directory=tmp_path, patience=HASTY)
    fetch(source, "n")
    assert not directory.exists()  # a killed process uses nothing
