"""The three storages, through their emulators."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.repository.source import FetchFailed, FetchProgress, SourceUnavailable, contents_of
from tests.engine.repository.storage.conftest import Opener
from tests.engine.repository.storage.doubles import never, read, unseen
from tests.engine.repository.storage.emulators import Emulator, MotoS3
from tests.engine.repository.storage.wires import Wire

pytestmark = pytest.mark.system

_buckets = (f"models{number}" for number in itertools.count())

MODEL = {
    "config.pbtxt": b'backend: "python"',
    "labels.txt": b"cat\ndog\n",
    "1/model.py": b"# one",
    "2/model.py": b"# two",
    "2/assets/wörter und zeichen.txt": b"zwei",
}


WEIGHTS = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(24 << 15))  # 24 MiB


def fill(emulator: Emulator, files: dict[str, bytes], *, prefix: str = "team/repository") -> str:
    """Return a new bucket with the files of the model `m` below `prefix`."""
    bucket = next(_buckets)
    emulator.make_bucket(bucket)
    for path, content in files.items():
        emulator.put(bucket, f"{prefix}/m/{path}".lstrip("/"), content)
    return bucket


def test_a_model_is_listed_stamped_and_fetched(emulator: Emulator, open_remote: Opener) -> None:
    bucket = fill(emulator, MODEL)
    source = open_remote(emulator.uri(bucket, "team//repository/"), emulator.environ())
    assert source.names() == ["m"]
    stamp = source.stamp("m")
    assert stamp is not None
    assert [(path, size) for path, size, _ in stamp.files] == [
        (path, len(MODEL[path])) for path in sorted(MODEL)
    ]
    seen: list[FetchProgress] = []
    fetched = source.fetch("m", progress=seen.append, cancelled=never)
    assert fetched.path.name == "m"
    assert read(fetched.path) == MODEL
    assert fetched.contents == contents_of(
        {path: hashlib.sha256(data).hexdigest() for path, data in MODEL.items()}
    )
    total = sum(map(len, MODEL.values()))
    assert seen[-1] == FetchProgress(files_done=len(MODEL), files=len(MODEL), bytes_done=total, nbytes=total)


def test_nothing_is_downloaded_twice(
    emulator: Emulator, open_remote: Opener, wire_to: Callable[[int], Wire]
) -> None:
    bucket = fill(emulator, {"config.pbtxt": b"# nothing", "1/weights": bytes(300_000)})
    wire = wire_to(emulator.port)
    source = open_remote(emulator.uri(bucket, "team/repository", wire.port), emulator.environ(wire.port))
    first = source.fetch("m", progress=unseen, cancelled=never)
    source.release(first.path)
    wire.mend()
    again = open_remote(emulator.uri(bucket, "team/repository", wire.port), emulator.environ(wire.port))
    assert again.fetch("m", progress=unseen, cancelled=never) == first
    assert wire.down < 10_000  # a listing


def test_a_changed_object_changes_the_stamp_and_the_contents(emulator: Emulator, open_remote: Opener) -> None:
    bucket = fill(emulator, MODEL)
    source = open_remote(emulator.uri(bucket, "team/repository"), emulator.environ())
    stamp, fetched = source.stamp("m"), source.fetch("m", progress=unseen, cancelled=never)
    assert source.stamp("m") == stamp
    emulator.put(bucket, "team/repository/m/2/model.py", b"# TWO")
    assert source.stamp("m") != stamp
    other = source.fetch("m", progress=unseen, cancelled=never)
    assert fetched.contents is not None
    assert other.contents is not None
    assert other.contents.versions[1] == fetched.contents.versions[1]
    assert other.contents.versions[2] != fetched.contents.versions[2]
    assert other.contents.shared == fetched.contents.shared
    assert read(fetched.path) == MODEL  # still in use
    assert read(other.path) == MODEL | {"2/model.py": b"# TWO"}


def test_a_model_that_was_deleted_is_gone_and_a_bucket_that_was_is_unavailable(
    emulator: Emulator, open_remote: Opener
) -> None:
    bucket = fill(emulator, {"1/model.py": b"x"})
    source = open_remote(emulator.uri(bucket, "team/repository"), emulator.environ())
    assert source.stamp("m") is not None
    emulator.delete(bucket, "team/repository/m/1/model.py")
    assert source.stamp("m") is None
    assert source.names() == []
    lost = open_remote(emulator.uri("nosuchbucket", "team/repository"), emulator.environ())
    with pytest.raises(SourceUnavailable, match="404"):
        lost.names()
    with pytest.raises(SourceUnavailable, match="404"):
        lost.stamp("m")


def test_a_hostile_key_spoils_its_own_model_only(s3: MotoS3, open_remote: Opener, tmp_path: Path) -> None:
    bucket = fill(s3, MODEL)
    for key in ("up/1/../../../escaped", "up/1/model.py", "twice/1//model.py", "odd/1/%2e%2e/a b#?*é~"):
        s3.put(bucket, f"team/repository/{key}", b"x")
    source = open_remote(s3.uri(bucket, "team/repository"), s3.environ())
    assert source.names() == ["m", "odd", "twice", "up"]
    for name in ("up", "twice"):
        stamp = source.stamp(name)
        assert stamp is not None
        assert source.stamp(name) == stamp
        with pytest.raises(
            FetchFailed, match="an object's name can't be the path of a file, rename or delete it"
        ):
            source.fetch(name, progress=unseen, cancelled=never)
    assert read(source.fetch("m", progress=unseen, cancelled=never).path) == MODEL
    assert read(source.fetch("odd", progress=unseen, cancelled=never).path) == {"1/%2e%2e/a b#?*é~": b"x"}
    assert not list(tmp_path.rglob("escaped"))


def test_a_hostile_key_beside_the_models_is_named_and_nothing_is_unloaded(
    s3: MotoS3, open_remote: Opener
) -> None:
    bucket = fill(s3, MODEL)
    s3.put(bucket, "team/repository//model.py", b"x")
    source = open_remote(s3.uri(bucket, "team/repository"), s3.environ())
    with pytest.raises(SourceUnavailable, match='Path "team/repository//" contained empty path segment'):
        source.names()
    assert source.stamp("m") is not None


def test_directories_made_by_a_console_are_directories(s3: MotoS3, open_remote: Opener) -> None:
    bucket = fill(s3, {"config.pbtxt": b"# ensemble", "2/__init__.py": b""})
    for key in ("m/", "m/1/", "m/2/", "m/2/assets/"):
        s3.put(bucket, f"team/repository/{key}", b"")
    fetched = open_remote(s3.uri(bucket, "team/repository"), s3.environ()).fetch(
        "m", progress=unseen, cancelled=never
    )
    assert {str(path.relative_to(fetched.path)) for path in fetched.path.rglob("*") if path.is_dir()} == {
        "1",
        "2",
        "2/assets",
    }
    assert fetched.contents is not None
    assert fetched.contents.versions.keys() == {1, 2}


def test_models_and_files_beyond_one_page_are_found(s3: MotoS3, open_remote: Opener) -> None:
    bucket = fill(s3, {f"1/{number}": b"x" for number in range(10)}, prefix="")
    for number in range(10):
        s3.put(bucket, f"model{number}/1/x", b"x")
    source = open_remote(s3.uri(bucket), s3.environ())
    assert source.names() == ["m", *(f"model{number}" for number in range(10))]
    stamp = source.stamp("m")
    assert stamp is not None
    assert len(stamp.files) == 10


def test_a_mount_directory_of_the_environment_takes_the_place_of_the_cache(
    emulator: Emulator, open_remote: Opener, tmp_path: Path
) -> None:
    variable = {"s3": "AWS", "gs": "GCS", "as": "AZURE"}[emulator.kind]
    environ = {**emulator.environ(), f"TRITON_{variable}_MOUNT_DIRECTORY": str(tmp_path / "mount")}
    bucket = fill(emulator, {"1/model.py": b"x"})
    fetched = open_remote(emulator.uri(bucket, "team/repository"), environ).fetch(
        "m", progress=unseen, cancelled=never
    )
    assert fetched.path.is_relative_to(tmp_path / "mount")
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_an_interrupted_download_is_resumed_where_it_was(
    emulator: Emulator, open_remote: Opener, wire_to: Callable[[int], Wire]
) -> None:
    bucket = fill(emulator, {"config.pbtxt": b"# nothing", "1/weights": WEIGHTS})
    wire = wire_to(emulator.port)
    source = open_remote(
        emulator.uri(bucket, "team/repository", wire.port), emulator.environ(wire.port), parallelism=1
    )
    wire.break_after(13 << 20)
    with pytest.raises(SourceUnavailable):
        source.fetch("m", progress=unseen, cancelled=never)
    wire.mend()
    fetched = source.fetch("m", progress=unseen, cancelled=never)
    assert (fetched.path / "1/weights").read_bytes() == WEIGHTS
    # What was missing, a chunk, and headers.
    assert wire.down <= len(WEIGHTS) - (13 << 20) + (1 << 20) + 20_000


@pytest.mark.slow
def test_segments_in_parallel_are_resumed_each_where_it_was(
    s3: MotoS3, open_remote: Opener, wire_to: Callable[[int], Wire]
) -> None:
    bucket = fill(s3, {"config.pbtxt": b"# nothing", "1/weights": WEIGHTS})
    wire = wire_to(s3.port)
    source = open_remote(s3.uri(bucket, "team/repository", wire.port), s3.environ())
    wire.break_after(16 << 20)
    with pytest.raises(SourceUnavailable):
        source.fetch("m", progress=unseen, cancelled=never)
    wire.mend()
    seen: list[FetchProgress] = []
    fetched = source.fetch("m", progress=seen.append, cancelled=never)
    assert (fetched.path / "1/weights").read_bytes() == WEIGHTS
    assert wire.down < len(WEIGHTS) - (4 << 20)  # less what lay in three connections' buffers
    assert seen[-1].bytes_done == seen[-1].nbytes
