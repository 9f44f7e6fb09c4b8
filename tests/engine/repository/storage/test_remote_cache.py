"""What stays of downloads: shared, bounded, checked again where it may have been altered."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.processes import users
from engine.repository.source import Fetched, FetchFailed, SourceUnavailable
from tests.engine.repository.storage.doubles import CHUNK, MemoryBucket, fetch, read, source_over

A, B, C = b"a" * 4000, b"b" * 4000, b"c" * 4000


def objects(cache: Path) -> list[Path]:
    return sorted((cache / "objects").iterdir())


def leftovers(cache: Path) -> list[str]:
    """Return the files that are neither objects nor records of them."""
    return sorted(
        str(path.relative_to(cache))
        for folder in ("partial", "staging", "models")
        for path in (cache / folder).iterdir()
    )


def test_a_directory_is_named_by_what_it_holds_and_removed_with_its_last_user(tmp_path: Path) -> None:
    source = source_over(MemoryBucket(m={"1/a": A}), tmp_path)
    first, second = fetch(source, "m"), fetch(source, "m")
    assert first.contents is not None
    assert first == second
    assert first.path == tmp_path / "models" / first.contents.digest / "m"
    source.release(first.path)
    assert read(second.path) == {"1/a": A}
    source.release(second.path)
    assert leftovers(tmp_path) == []
    assert len(objects(tmp_path)) == 1
    source.release(second.path)
    source.release(Path("/somewhere/else"))


def test_two_sources_share_a_cache_and_each_keeps_what_it_uses(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/a": A})
    one, other = source_over(bucket, tmp_path), source_over(bucket, tmp_path)
    first, second = fetch(one, "m"), fetch(other, "m")
    assert first == second
    assert bucket.sent == len(A)
    one.release(first.path)
    assert read(second.path) == {"1/a": A}
    other.release(second.path)
    assert leftovers(tmp_path) == []


def test_one_download_serves_all_who_want_it_at_once(tmp_path: Path) -> None:
    content = os.urandom(3 * CHUNK)
    bucket = MemoryBucket(m={"1/a": content})
    everybody = threading.Barrier(4)
    bucket.before_chunk = lambda _, __: None
    found: list[Fetched] = []

    def run() -> None:
        source = source_over(bucket, tmp_path)
        everybody.wait(10)
        found.append(fetch(source, "m"))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.path for one in found}) == 1
    assert read(found[0].path) == {"1/a": content}
    assert bucket.sent == len(content)


def test_the_least_recently_used_objects_go_first_and_those_in_use_never(tmp_path: Path) -> None:
    bucket = MemoryBucket(a={"1/x": A}, b={"1/x": B}, c={"1/x": C})
    source = source_over(bucket, tmp_path, limit=9000)
    a, b, c = (fetch(source, name) for name in "abc")
    assert len(objects(tmp_path)) == 3  # all in use: more than the bound
    source.release(b.path)
    source.release(a.path)
    assert len(objects(tmp_path)) == 3
    source.release(c.path)
    assert [path.read_bytes()[:1] for path in objects(tmp_path)].count(b"a") == 0
    sent = bucket.sent
    for name in "bc":
        source.release(fetch(source, name).path)
    assert bucket.sent == sent
    fetch(source, "a")
    assert bucket.sent == sent + len(A)
    assert sum(path.stat().st_size for path in objects(tmp_path)) <= 9000 + len(A)


def test_using_an_object_again_makes_it_recent(tmp_path: Path) -> None:
    bucket = MemoryBucket(a={"1/x": A}, b={"1/x": B}, c={"1/x": C})
    source = source_over(bucket, tmp_path, limit=9000)
    for name in "abac":
        source.release(fetch(source, name).path)
    assert sorted(path.read_bytes()[:1] for path in objects(tmp_path)) == [b"a", b"c"]


def test_unfinished_downloads_count_and_go_too(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/x": os.urandom(3 * CHUNK)}, n={"1/x": A})

    def fail(key: str, at: int) -> None:
        if key.startswith("repo/m") and at == 2 * CHUNK:
            raise SourceUnavailable("gone")

    bucket.before_chunk = fail
    source = source_over(bucket, tmp_path, limit=4 * CHUNK)
    with pytest.raises(SourceUnavailable):
        fetch(source, "m")
    assert len(leftovers(tmp_path)) == 2  # the bytes and their journal
    small = source_over(bucket, tmp_path, limit=CHUNK)
    small.release(fetch(small, "n").path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("keep_time", [False, True], ids=["later", "at the same time"])
def test_an_altered_object_is_noticed_and_fetched_again(tmp_path: Path, keep_time: bool) -> None:
    bucket = MemoryBucket(m={"1/a": A})
    source = source_over(bucket, tmp_path)
    source.release(fetch(source, "m").path)
    (damaged,) = objects(tmp_path)
    before = damaged.stat()
    damaged.chmod(0o600)
    damaged.write_bytes(A[1:] + (b"!" if not keep_time else b""))  # the same size, or else the same time
    if keep_time:
        os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert read(fetch(source, "m").path) == {"1/a": A}
    assert bucket.sent == 2 * len(A)


def test_an_object_that_was_only_touched_or_copied_is_read_and_kept(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/a": A})
    source = source_over(bucket, tmp_path)
    source.release(fetch(source, "m").path)
    os.utime(objects(tmp_path)[0])
    source.release(fetch(source, "m").path)
    for record in (tmp_path / "records").iterdir():
        record.unlink()  # as after a crash between an object and its record
    assert read(fetch(source, "m").path) == {"1/a": A}
    assert bucket.sent == len(A)


def test_a_model_that_writes_to_its_own_files_spoils_no_later_load(tmp_path: Path) -> None:
    source = source_over(MemoryBucket(m={"1/a": A, "1/b": B}), tmp_path)
    first = fetch(source, "m")
    (first.path / "1/a").chmod(0o600)
    (first.path / "1/a").write_bytes(b"mine now")
    (first.path / "1/engine.cache").write_bytes(b"made here")
    second = fetch(source, "m")
    assert second == first
    assert read(second.path) == {"1/a": A, "1/b": B, "1/engine.cache": b"made here"}


def test_files_are_read_only(tmp_path: Path) -> None:
    fetched = fetch(source_over(MemoryBucket(m={"1/a": A}), tmp_path), "m")
    assert (fetched.path / "1/a").stat().st_mode & 0o222 == 0


def test_a_damaged_index_means_a_new_download(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/a": A})
    source = source_over(bucket, tmp_path)
    source.release(fetch(source, "m").path)
    for entry in (tmp_path / "index").iterdir():
        entry.write_text("../../etc/passwd")
    assert read(fetch(source, "m").path) == {"1/a": A}
    assert bucket.sent == 2 * len(A)


def test_without_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    bucket = MemoryBucket(m={"1/a": A, "1/b": B})
    source = source_over(bucket, tmp_path)
    first, second = fetch(source, "m"), fetch(source, "m")
    assert first == second
    assert read(second.path) == {"1/a": A, "1/b": B}
    assert bucket.sent == len(A) + len(B)
    assert not (second.path / "1/a").samefile(objects(tmp_path)[0])


def test_a_full_disk_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source = source_over(MemoryBucket(m={"1/a": A}), tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(FetchFailed, match=r"'m' can't be put into the cache .*No space left on device"):
            fetch(source, "m")
    assert read(fetch(source, "m").path) == {"1/a": A}


def test_a_cache_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(FetchFailed, match="can be written by others than this server's user"):
        fetch(source_over(MemoryBucket(m={"1/a": A}), cache), "m")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is somebody else's")
def test_a_cache_behind_somebody_else_s_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    link = tmp_path / "cache" / "tritium-storage"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "mine")
    os.lchown(link, 65534, 65534)
    with pytest.raises(FetchFailed, match="can be written by others than this server's user"):
        fetch(source_over(MemoryBucket(m={"1/a": A}), link), "m")


def test_what_a_crash_left_is_swept_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/a": A}, n={"1/b": B})
    living = source_over(bucket, tmp_path)
    in_use = fetch(living, "m")
    staging, models = tmp_path / "staging", tmp_path / "models"
    (staging / "dead.lock").touch()
    (staging / "dead/m").mkdir(parents=True)
    (models / "d00d.lease").touch()
    (models / "d00d/x/1").mkdir(parents=True)
    (models / "d00d.0123").mkdir()
    starting = source_over(bucket, tmp_path)
    other = fetch(starting, "n")
    assert read(in_use.path) == {"1/a": A}
    living.release(in_use.path)
    starting.release(other.path)
    assert leftovers(tmp_path) == []


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives user ids to workers")
def test_a_worker_with_a_user_of_its_own_reads_its_model_and_finds_no_other() -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        cache = Path(place) / "cache"
        before = os.umask(0o077)
        try:
            path = fetch(source_over(MemoryBucket(m={"1/a": A, "config.pbtxt": B}), cache), "m").path
        finally:
            os.umask(before)
        assert users.barred([path]) == ""

        def run(*command: str, group: int) -> int:
            ids: dict[str, Any] = {"user": users.FIRST, "group": group, "extra_groups": []}
            return subprocess.run(command, **ids, stderr=subprocess.PIPE, check=False).returncode

        assert run("cmp", f"{path}/1/a", f"{path}/1/a", group=users.GROUP) == 0
        assert run("ls", str(cache), group=users.GROUP) != 0
        assert run("ls", f"{cache}/models", group=users.GROUP) != 0
        assert run("ls", f"{cache}/objects", group=users.GROUP) != 0
        assert run("ls", str(path), group=users.FIRST + 1) != 0
