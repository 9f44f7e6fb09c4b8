"""Downloads: in parallel, resumed, checked, stopped."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.repository.remote.download import Verdict, judge
from engine.repository.source import FetchCancelled, FetchFailed, FetchProgress, SourceUnavailable
from tests.engine.repository.storage.doubles import (
    CHUNK,
    MemoryBucket,
    fetch,
    never,
    read,
    source_over,
    unseen,
)

LARGE = hashlib.shake_256(b"weights").digest(9 * CHUNK + 17)  # two segments, the last chunk short


class Lost(Exception):
    """An error that the source does not expect."""


def sums(files: dict[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in files.items()).encode()


def flipped(chunk: bytes) -> bytes:
    return bytes([chunk[0] ^ 1]) + chunk[1:]


def test_files_arrive_whole_and_in_segments(tmp_path: Path) -> None:
    files = {"config.pbtxt": b"# c", "1/weights": LARGE, "1/deep/er/file": b"x", "1/__init__.py": b""}
    bucket = MemoryBucket(m=files)
    assert read(fetch(source_over(bucket, tmp_path), "m").path) == files
    asked = [(start, stop) for key, start, stop in sorted(bucket.requests) if key.endswith("weights")]
    assert asked == [(0, 8 * CHUNK), (8 * CHUNK, len(LARGE))]
    assert bucket.sent == sum(map(len, files.values()))


def test_only_so_many_requests_are_made_at_once(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={f"1/{number}": b"x" * (number + 1) for number in range(40)})
    together = threading.Barrier(3)

    def meet(key: str, _: int) -> None:
        if key.endswith(("/0", "/1", "/2")):
            together.wait(10)  # breaks, and the fetch with it, unless three requests are at it together

    bucket.before_chunk = meet
    fetch(source_over(bucket, tmp_path, parallelism=3), "m")
    assert bucket.most_at_once == 3


def test_progress_counts_up_to_everything_once(tmp_path: Path) -> None:
    files = {"config.pbtxt": b"# c", "1/weights": LARGE, "1/empty": b""}
    source = source_over(MemoryBucket(m=files), tmp_path)
    seen: list[FetchProgress] = []
    source.fetch("m", progress=seen.append, cancelled=never)
    total = sum(map(len, files.values()))
    done = FetchProgress(files_done=3, files=3, bytes_done=total, nbytes=total)
    assert seen[-1] == done
    assert [progress.bytes_done for progress in seen] == sorted(progress.bytes_done for progress in seen)
    assert len(seen) == len(set(seen))
    again: list[tuple[FetchProgress, threading.Thread]] = []
    source.fetch(  # from the cache
        "m", progress=lambda now: again.append((now, threading.current_thread())), cancelled=never
    )
    assert again[-1][0] == done
    assert {thread for _, thread in again} == {threading.current_thread()}


def test_a_cancelled_fetch_stops_at_the_next_chunk_and_the_next_one_goes_on(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/weights": LARGE})
    source = source_over(bucket, tmp_path, parallelism=1)
    with pytest.raises(FetchCancelled):
        source.fetch("m", progress=unseen, cancelled=lambda: bucket.sent >= 5 * CHUNK)
    assert bucket.sent == 5 * CHUNK
    assert (fetch(source, "m").path / "1/weights").read_bytes() == LARGE
    assert bucket.sent == len(LARGE)
    assert sorted(path.name for path in (tmp_path / "staging").iterdir()) == []


def test_a_cancelled_fetch_waits_for_no_request_that_hangs(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/weights": LARGE})
    reached, go_on = threading.Event(), threading.Event()

    def hang(_: str, at: int) -> None:
        if at == 2 * CHUNK:
            reached.set()
            assert go_on.wait(10)

    bucket.before_chunk = hang
    source = source_over(bucket, tmp_path, parallelism=1)
    try:
        with pytest.raises(FetchCancelled):
            source.fetch("m", progress=unseen, cancelled=reached.is_set)
        later: list[bytes] = []
        second = threading.Thread(
            target=lambda: later.append((fetch(source, "m").path / "1/weights").read_bytes())
        )
        second.start()  # it waits for the one that was left behind, and goes on from there
    finally:
        go_on.set()
    second.join(20)
    assert later == [LARGE]
    assert bucket.sent <= len(LARGE) + CHUNK


@pytest.mark.parametrize("failure", [SourceUnavailable("the network is down"), Lost()])
def test_a_failed_fetch_keeps_what_it_has(tmp_path: Path, failure: Exception) -> None:
    bucket = MemoryBucket(m={"1/weights": LARGE})

    def fail(_: str, at: int) -> None:
        if at == 4 * CHUNK:
            raise failure

    bucket.before_chunk = fail
    source = source_over(bucket, tmp_path, parallelism=1)
    with pytest.raises(type(failure)):
        fetch(source, "m")
    bucket.before_chunk = lambda _, __: None
    again = source_over(bucket, tmp_path, parallelism=1)  # as after a restart
    assert (fetch(again, "m").path / "1/weights").read_bytes() == LARGE
    assert bucket.sent == len(LARGE)


def test_an_object_that_changed_under_an_interrupted_download_starts_over(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/weights": LARGE})
    source = source_over(bucket, tmp_path, parallelism=1)
    with pytest.raises(FetchCancelled):
        source.fetch("m", progress=unseen, cancelled=lambda: bucket.sent >= 5 * CHUNK)
    other = bytes(len(LARGE))
    bucket.contents["repo/m/1/weights"] = other
    assert (fetch(source, "m").path / "1/weights").read_bytes() == other


def test_a_model_that_changes_while_it_is_read_is_read_as_it_is_then(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/weights": LARGE, "config.pbtxt": b"# one"})
    source = source_over(bucket, tmp_path, parallelism=1)

    def change(key: str, at: int) -> None:
        if at == 3 * CHUNK and len(bucket.contents["repo/m/1/weights"]) == len(LARGE):
            bucket.contents["repo/m/1/weights"] = LARGE[:5]
            bucket.contents["repo/m/config.pbtxt"] = b"# two"

    bucket.before_chunk = change
    assert read(fetch(source, "m").path) == {"1/weights": LARGE[:5], "config.pbtxt": b"# two"}


def test_a_model_that_never_stops_changing_is_given_up(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/weights": b"0"})
    counting = iter(range(1, 100))

    def change(key: str, _: int) -> None:
        bucket.contents[key] = b"%d" % next(counting)

    bucket.before_chunk = change
    with pytest.raises(FetchFailed, match="changed while it was read, 3 times in a row"):
        fetch(source_over(bucket, tmp_path), "m")


def test_bytes_that_arrive_damaged_are_asked_for_again(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/weights": LARGE})
    damaged = iter([True])
    bucket.damage = lambda _, chunk: flipped(chunk) if next(damaged, False) else chunk
    source = source_over(bucket, tmp_path)
    seen: list[FetchProgress] = []
    fetched = source.fetch("m", progress=seen.append, cancelled=never)
    assert (fetched.path / "1/weights").read_bytes() == LARGE
    assert bucket.sent == 2 * len(LARGE)
    assert seen[-1].bytes_done == len(LARGE)


def test_bytes_that_arrive_damaged_in_two_ways_are_refused(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/weights": b"abc"})
    ways = iter([b"abd", b"abe", b"abc"])
    bucket.damage = lambda _, __: next(ways)
    source = source_over(bucket, tmp_path)
    with pytest.raises(
        FetchFailed, match="'repo/m/1/weights' arrived damaged, twice and each time in another way"
    ):
        fetch(source, "m")
    assert read(fetch(source, "m").path) == {"1/weights": b"abc"}


def test_a_tag_that_only_looks_like_an_md5_costs_one_more_transfer_and_no_more(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/a": b"aaa"}, n={"1/b": b"bbb"})
    bucket.tags = {"repo/m/1/a": "0" * 32, "repo/n/1/b": "1" * 32}
    source = source_over(bucket, tmp_path)
    assert read(fetch(source, "m").path) == {"1/a": b"aaa"}
    assert bucket.sent == 6
    assert read(fetch(source, "n").path) == {"1/b": b"bbb"}
    assert bucket.sent == 9


def test_a_tag_of_several_parts_proves_nothing(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/a": b"aaa"})
    bucket.tags = {"repo/m/1/a": "0" * 32 + "-2"}
    fetch(source_over(bucket, tmp_path), "m")
    assert bucket.sent == 3


def test_a_manifest_is_read_first_and_its_digests_hold(tmp_path: Path) -> None:
    files = {"config.pbtxt": b"# c", "1/weights": LARGE, "1/__init__.py": b""}
    bucket = MemoryBucket(m={**files, "SHA256SUMS": sums(files)})
    assert read(fetch(source_over(bucket, tmp_path), "m").path) == {**files, "SHA256SUMS": sums(files)}
    assert bucket.requests[0][0] == "repo/m/SHA256SUMS"


FIVE = {"config.pbtxt": b"# c", "1/a": b"a", "1/b": b"b", "1/c": b"c", "1/d": b"d"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"config.pbtxt": b"# c", "SHA256SUMS": sums(FIVE)},
            "'m' is incomplete: SHA256SUMS lists what is not there: 1/a, 1/b, 1/c and 1 more",
        ),
        (
            {"1/a": b"a", "1/SHA256SUMS": sums({"b": b"b"})},
            "'m' is incomplete: 1/SHA256SUMS lists what is not there: b",
        ),
        *(
            ({"1/a": b"a", "SHA256SUMS": manifest}, "'m': ")
            for manifest in (b"nonsense", b"\xff", b"0" * 64 + b"  ../x\n")
        ),
    ],
)
def test_a_model_that_is_not_as_its_manifest_says_is_refused_before_it_is_read(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    bucket = MemoryBucket(m=files)
    with pytest.raises(FetchFailed, match=message):
        fetch(source_over(bucket, tmp_path), "m")
    assert len(bucket.requests) == 1


def test_a_version_may_have_a_manifest_of_its_own_and_a_manifest_is_no_content(tmp_path: Path) -> None:
    plain = {"config.pbtxt": b"# c", "1/a": b"a"}
    vouched = plain | {"1/SHA256SUMS": sums({"a": b"a"}), "_SUCCESS": b"1"}
    source = source_over(MemoryBucket(m=plain, n=vouched), tmp_path)
    with_it, without = fetch(source, "n"), fetch(source, "m")
    assert with_it.contents == without.contents
    assert (read(without.path), read(with_it.path)) == (plain, vouched)


def test_a_file_that_is_not_what_the_manifest_says_is_refused(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/a": b"a", "SHA256SUMS": sums({"1/a": b"b"})})
    source = source_over(bucket, tmp_path)
    with pytest.raises(
        FetchFailed, match="'repo/m/1/a' is not what SHA256SUMS says: its SHA-256 is ca978112"
    ):
        fetch(source, "m")
    bucket.contents["repo/m/SHA256SUMS"] = sums({"1/a": b"a"})
    assert read(fetch(source, "m").path)["1/a"] == b"a"


def test_a_cached_file_that_is_not_what_the_manifest_says_is_not_used(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"1/a": b"a"})
    source = source_over(bucket, tmp_path)
    fetch(source, "m")
    bucket.contents["repo/m/SHA256SUMS"] = sums({"1/a": b"b"})
    with pytest.raises(FetchFailed, match="is not what SHA256SUMS says"):
        fetch(source, "m")


def test_hostile_keys_spoil_their_own_model_only(tmp_path: Path) -> None:
    bucket = MemoryBucket(good={"1/a": b"a"}, bad={"1/../../../../escaped": b"x"})
    source = source_over(bucket, tmp_path / "cache")
    stamp = source.stamp("bad")
    assert stamp is not None
    assert source.stamp("bad") == stamp
    with pytest.raises(FetchFailed, match=r"object 'repo/bad/1/\.\./\.\./.*' can't be a file of a model"):
        fetch(source, "bad")
    assert read(fetch(source, "good").path) == {"1/a": b"a"}
    assert not [path for path in tmp_path.rglob("*") if path.name == "escaped"]


def test_directories_that_stand_as_empty_objects_are_made(tmp_path: Path) -> None:
    bucket = MemoryBucket(m={"config.pbtxt": b"# ensemble", "1/__init__.py": b""})
    bucket.markers = {"repo/m", "repo/m/2", "repo/m/2/assets"}
    fetched = fetch(source_over(bucket, tmp_path), "m")
    assert (fetched.path / "2/assets").is_dir()
    assert (fetched.path / "1/__init__.py").is_file()
    assert fetched.contents is not None
    assert fetched.contents.versions.keys() == {1, 2}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "can't be the name of a model's directory") for name in ("..", "a/b", "", "\0")),
        ("n", "there is no 'n' in s3://bucket/repo"),
    ],
)
def test_a_name_that_leads_elsewhere_is_no_model(tmp_path: Path, name: str, message: str) -> None:
    source = source_over(MemoryBucket(m={"1/a": b"a"}), tmp_path)
    assert source.stamp(name) is None
    with pytest.raises(FetchFailed, match=message):
        fetch(source, name)


def test_models_that_share_a_file_transfer_it_each_from_its_own_place(tmp_path: Path) -> None:
    source = source_over(MemoryBucket(m={"1/a": b"same"}, n={"1/a": b"same"}), tmp_path)
    first, second = fetch(source, "m"), fetch(source, "n")
    assert first.contents == second.contents
    assert (first.path.name, second.path.name) == ("m", "n")
    assert (first.path / "1/a").samefile(second.path / "1/a")


@settings(deadline=None)  # a busy machine is no failure
@given(
    *(st.sampled_from(["", "a", "b"]) for _ in range(2)),
    st.sampled_from(["a", "b"]),
    st.booleans(),
)
def test_what_a_manifest_names_is_kept_and_nothing_is_asked_for_a_third_time(
    expected: str, doubted: str, digest: str, fits_tag: bool
) -> None:
    verdict = judge(digest, expected=expected, fits_tag=fits_tag, doubted=doubted)
    if expected:
        assert (verdict is Verdict.KEEP) == (digest == expected)
    elif fits_tag:
        assert verdict is Verdict.KEEP
    if doubted:
        assert verdict is not Verdict.REPEAT
