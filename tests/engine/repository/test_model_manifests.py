"""Whether a model directory is whole, by what a marker or a manifest in it says."""

import hashlib
import os
import shutil
import time
from typing import Any

import pytest

from actors.catalog.settling import Complete, Incomplete, Unknown
from engine.repository.fingerprint import Digests, Root, survey
from engine.repository.manifest import completeness, verify_manifest


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


class Model:
    """The model `m` on disk, as a watcher sees it at one look after the other."""

    def __init__(self, directory):
        self.repository = directory / "repository"
        self.path = self.repository / "m"
        self.digests = Digests(wall_ns=lambda: time.time_ns() + 10**12)  # nothing is fresh
        self.previous = None
        self.write("config.pbtxt", "max_batch_size: 1")
        self.write("1/model.onnx", "one")

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def list(self, *names, manifest="SHA256SUMS"):
        """Write a manifest as `sha256sum` does."""
        directory = (self.path / manifest).parent
        lines = [f"{sha256((directory / name).read_text())}  {name}\n" for name in names]
        self.write(manifest, "".join(lines))

    def tick(self):
        """Return once the file system's clock has moved on."""
        scratch = self.repository.parent / "scratch"
        scratch.touch()
        before = scratch.stat().st_ctime_ns
        while scratch.stat().st_ctime_ns == before:
            scratch.touch()

    def look(self):
        with Root(self.repository) as root:
            found: Any = survey(root, "m")
            known = completeness(root, found, self.digests, previous=self.previous)
        self.previous = found
        return known

    def messages(self):
        return [problem.message for problem in verify_manifest(self.path, digests=self.digests)]


@pytest.fixture
def model(tmp_path):
    return Model(tmp_path)


def test_nothing_says_whether_a_plain_directory_is_whole(model):
    assert model.look() == Unknown()
    assert verify_manifest(model.path) == []


class TestMarker:
    """`_SUCCESS`, which is written last."""

    def test_a_marker_makes_it_complete(self, model):
        model.write("_SUCCESS", "")
        assert model.look() == Complete()
        assert verify_manifest(model.path) == []

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: (m / "1/model.onnx").write_text("other"),
            lambda m: (m / "config.pbtxt").touch(),
            lambda m: (m / "2").mkdir(),
            lambda m: (m / "1/model.onnx").unlink(),
        ],
    )
    def test_it_counts_only_while_nothing_is_newer(self, model, change):
        model.write("_SUCCESS", "").touch()
        model.tick()
        change(model.path)
        assert model.look() == Unknown()
        model.tick()
        (model.path / "_SUCCESS").touch()
        assert model.look() == Complete()

    def test_modification_times_that_were_copied_along_deceive_nobody(self, model):
        model.write("_SUCCESS", "")
        model.tick()
        os.utime(model.write("1/model.onnx", "half"), (0, 0))
        assert model.look() == Unknown()

    def test_a_directory_that_is_moved_in_is_complete(self, model):
        model.write("_SUCCESS", "").touch()
        model.tick()
        model.path.rename(model.repository.parent / "elsewhere").rename(model.path)
        assert model.look() == Complete()

    def test_one_in_a_version_directory_is_a_file_like_others(self, model):
        model.write("1/_SUCCESS", "")
        assert model.look() == Unknown()


class TestManifest:
    """`SHA256SUMS`, which says what there should be."""

    def test_a_manifest_that_matches_makes_it_complete(self, model):
        model.list("config.pbtxt", "1/model.onnx")
        assert model.look() == Complete()
        assert verify_manifest(model.path) == []

    def test_it_may_stand_in_a_version_directory(self, model):
        model.list("model.onnx", manifest="1/SHA256SUMS")
        model.list("config.pbtxt")
        assert model.look() == Complete()
        model.write("1/model.onnx", "other")
        assert model.messages() == [
            f"'1/model.onnx' does not match 1/SHA256SUMS: expected sha256 {sha256('one')}, found {sha256('other')}"
        ]

    def test_in_any_other_directory_it_is_a_file_like_others(self, model):
        model.write("labels/SHA256SUMS", "nonsense")
        assert model.look() == Unknown()
        assert model.messages() == []

    def test_a_model_with_files_that_no_manifest_lists_has_to_settle(self, model):
        model.list("config.pbtxt", "1/model.onnx")
        model.write("2/model.onnx", "two")
        assert model.look() == Unknown()
        assert verify_manifest(model.path) == []

    def test_a_missing_file_is_told(self, model):
        model.list("config.pbtxt", "1/model.onnx")
        (model.path / "1/model.onnx").unlink()
        reason = "'1/model.onnx' is listed in SHA256SUMS and is not there"
        assert model.look() == Incomplete((reason,))
        assert model.messages() == [reason]

    def test_a_file_that_differs_is_told_with_both_digests(self, model):
        model.list("config.pbtxt", "1/model.onnx")
        model.write("1/model.onnx", "eno")
        reason = f"'1/model.onnx' does not match SHA256SUMS: expected sha256 {sha256('one')}, found {sha256('eno')}"
        assert model.look() == Incomplete((reason,))
        (problem,) = verify_manifest(model.path)
        assert (problem.message, problem.path) == (reason, model.path / "SHA256SUMS")
        assert problem.is_error

    def test_a_marker_does_not_outdo_it(self, model):
        model.list("config.pbtxt", "1/model.onnx")
        model.write("1/model.onnx", "eno")
        model.write("_SUCCESS", "")
        assert isinstance(model.look(), Incomplete)

    def test_many_reasons_are_bounded_for_the_log(self, model):
        names = [f"1/{number}" for number in range(20)]
        for name in names:
            model.write(name, "")
        model.list(*names)
        shutil.rmtree(model.path / "1")
        known = model.look()
        assert len(known.reasons) == 6
        assert known.reasons[-1] == "and 15 more"
        assert len(model.messages()) == 20

    def test_it_may_list_itself_as_find_would(self, model):
        model.list("config.pbtxt", "1/model.onnx")
        path = model.path / "SHA256SUMS"
        path.write_text(f"{sha256('')}  ./SHA256SUMS\n{path.read_text()}")
        assert model.look() == Complete()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "'SHA256SUMS' is empty: it lists no file"),
            ("nonsense", "SHA256SUMS:1: expected '<sha256>  <path>', got 'nonsense'"),
            (f"{sha256('one')}  1/model.onnx\n{sha256('x')[:20]}", "SHA256SUMS:2: expected "),
            (f"{sha256('one')}  ../n/1/model.onnx\n", "SHA256SUMS:1: '../n/1/model.onnx' is not a path"),
            (f"{sha256('one')}  /etc/passwd\n", "SHA256SUMS:1: '/etc/passwd' is not a path"),
        ],
    )
    def test_one_that_cannot_be_understood_is_told(self, model, text, message):
        model.write("SHA256SUMS", text)
        known = model.look()
        assert isinstance(known, Incomplete)
        assert [known.reasons[0][: len(message)]] == [message]
        assert [each[: len(message)] for each in model.messages()] == [message]

    def test_a_listed_file_that_is_a_link_out_is_not_read(self, model):
        (model.repository.parent / "secret").write_text("one")
        model.list("1/model.onnx")
        (model.path / "1/model.onnx").unlink()
        (model.path / "1/model.onnx").symlink_to(model.repository.parent / "secret")
        assert isinstance(model.look(), Incomplete)
        assert len(model.messages()) == 1
        assert model.digests.bytes_read == 0

    def test_a_manifest_that_is_a_link_out_is_not_read(self, model):
        (model.repository.parent / "secret").write_text("secret")
        (model.path / "SHA256SUMS").symlink_to(model.repository.parent / "secret")
        assert model.look() == Unknown()
        assert model.messages() == []

    def test_links_are_followed_as_far_as_the_repository_that_is_named(self, model):
        store = model.repository / "store"
        store.mkdir()
        (model.path / "1/model.onnx").rename(store / "model.onnx")
        (model.path / "1/model.onnx").symlink_to(store / "model.onnx")
        model.list("1/model.onnx")
        assert verify_manifest(model.path) == []
        assert verify_manifest(model.path, repository=model.repository) == []

    def test_a_directory_that_is_gone_is_told(self, tmp_path):
        messages = [problem.message for problem in verify_manifest(tmp_path / "repository" / "m")]
        assert messages == ["model directory can't be read: No such file or directory"]
        messages = [problem.message for problem in verify_manifest(tmp_path / "m")]
        assert messages == ["model directory can't be read: No such file or directory"]

    def test_it_can_be_given_up(self, model):
        model.list("config.pbtxt", "1/model.onnx")
        assert verify_manifest(model.path, digests=model.digests, cancelled=lambda: True) == []
        assert model.digests.bytes_read == 0


class TestCopying:
    """A directory that is being copied file by file, its manifest first."""

    def test_a_growing_file_is_not_read_at_each_look(self, model):
        model.list("config.pbtxt", "1/model.onnx")
        whole = "x" * 1000
        model.write("SHA256SUMS", f"{sha256(whole)}  1/model.onnx\n")
        model.write("1/model.onnx", "x")
        assert model.look().reasons[0].startswith("'1/model.onnx' does not match")
        read = model.digests.bytes_read
        for size in (10, 100, 1000):
            with (model.path / "1/model.onnx").open("a") as file:
                file.write("x" * (size - file.tell()))
            assert model.look() == Incomplete(("'1/model.onnx' is still being written",))
        assert model.digests.bytes_read == read
        assert model.look() == Unknown()  # config.pbtxt is not listed
        assert model.digests.bytes_read == read + 1000

    def test_a_file_that_is_moved_into_place_is_read_at_once(self, model):
        model.list("config.pbtxt", "1/model.onnx")
        assert model.look() == Complete()
        model.write("new", "two").replace(model.path / "1/model.onnx")
        model.list("config.pbtxt", "1/model.onnx")
        assert model.look() == Complete()

    def test_files_that_arrive_one_by_one_are_waited_for(self, model):
        texts = {f"1/{number}": str(number) for number in range(3)}
        for name in ("config.pbtxt", "1/model.onnx"):
            texts[name] = (model.path / name).read_text()
        model.write("SHA256SUMS", "".join(f"{sha256(text)} *{name}\n" for name, text in texts.items()))
        for number in range(3):
            assert model.look() == Incomplete(
                tuple(f"'1/{late}' is listed in SHA256SUMS and is not there" for late in range(number, 3))
            )
            model.write(f"1/{number}", str(number))
        assert model.look() == Complete()
