"""Several server processes over one cache, and what is left when one is killed."""

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

pytestmark = pytest.mark.system

WEIGHTS = os.urandom(20 << 20)

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
    s3.put("killed", "m/1/weights", WEIGHTS)
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
    assert (fetched.path / "1/weights").read_bytes() == WEIGHTS
    assert wire.down <= len(WEIGHTS) - (11 << 20) + 20_000
    source.release(fetched.path)
    left = [path for folder in ("staging", "models", "partial") for path in tmp_path.glob(f"*/{folder}/*")]
    assert left == []


@pytest.mark.slow
def test_processes_that_want_the_same_model_transfer_it_once(
    s3: MotoS3, wire_to: Callable[[int], Wire], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    files = {"config.pbtxt": b"# c", "1/weights": WEIGHTS}
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
        assert wire.down < len(WEIGHTS) + 50_000
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
