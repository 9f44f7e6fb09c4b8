"""What a model directory holds: stamps that tell that something was written, digests that tell what."""

import hashlib
import os
import shutil
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.repository.fingerprint import Digests, LeadsOut, Root, Unsettled, contents, survey
from engine.repository.source import FetchCancelled, contents_of


def looked(root, name="m", **options):
    """What is there of a model that is there."""
    return survey(root, name, **options)


class Repository:
    """A repository on disk, with the model `m`, and something outside of it."""

    def __init__(self, directory):
        self.path = directory / "repository"
        self.model = self.path / "m"
        self.outside = directory / "outside"
        for each in (self.model / "1", self.outside):
            each.mkdir(parents=True)
        self.write("config.pbtxt", "max_batch_size: 1")
        self.write("1/model.onnx", "one")
        (self.outside / "secret").write_text("secret")
        self.digests = Digests(wall_ns=lambda: time.time_ns() + 10**12)  # nothing is fresh

    def write(self, name, text):
        path = self.model / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def survey(self, name="m", **options):
        with Root(self.path) as root:
            return looked(root, name, **options)

    def stamp(self):
        return self.survey().stamp

    def contents(self, name="m", **options):
        with Root(self.path) as root:
            return contents(root, looked(root, name), self.digests, **options)

    def messages(self, **options):
        return [problem.message for problem in self.survey(**options).problems]


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


class TestStamps:
    """Metadata alone."""

    def test_nothing_written_is_nothing_changed(self, repository):
        assert repository.stamp() == repository.stamp()

    def test_a_stamp_names_every_file_and_directory(self, repository):
        assert [(path, size) for path, size, _ in repository.stamp().files] == [
            ("1/", 0),
            ("1/model.onnx", 3),
            ("config.pbtxt", 17),
        ]

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: (m / "1/model.onnx").write_text("other"),
            lambda m: (m / "1/model.onnx").write_text("eno"),
            lambda m: (m / "1/model.onnx").touch(),
            lambda m: (m / "1/model.onnx").unlink(),
            lambda m: (m / "1/model.onnx").rename(m / "1/model.pt"),
            lambda m: (m / "1/deep/er").mkdir(parents=True),
            lambda m: (m / "2").mkdir(),
            lambda m: (m / "1").rename(m / "2"),
            lambda m: (m / "1/link").symlink_to("model.onnx"),
            lambda m: (m / "1/link").symlink_to("nothing"),
            lambda m: os.mkfifo(m / "1/pipe"),
        ],
    )
    def test_whatever_is_written_is_seen(self, repository, change):
        before = repository.stamp()
        change(repository.model)
        assert repository.stamp() != before

    def test_a_rewrite_that_restores_size_and_modification_time_is_seen(self, repository):
        path, before, contents = repository.model / "1/model.onnx", repository.stamp(), repository.contents()
        times = path.stat()
        path.write_text("eno")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert path.stat().st_mtime_ns == times.st_mtime_ns
        assert repository.stamp() != before
        assert repository.contents() != contents

    def test_another_file_in_its_place_is_seen(self, repository):
        path, before = repository.model / "1/model.onnx", repository.stamp()
        shutil.copy2(path, path.with_name("other"))
        path.with_name("other").replace(path)
        assert repository.stamp() != before

    def test_a_link_that_is_switched_is_seen(self, repository):
        repository.write("a/file", "same")
        repository.write("b/file", "same")
        link = repository.model / "current"
        link.symlink_to("a")
        before = repository.stamp()
        link.unlink()
        link.symlink_to("b")
        assert repository.stamp() != before

    def test_what_is_no_directory_has_no_stamp(self, repository):
        (repository.path / "file").write_text("")
        assert [repository.survey(name) for name in ("absent", "file", "x" * 5000)] == [None] * 3

    def test_a_directory_that_changes_while_it_is_walked_is_no_error(self, repository):
        for name in "abc":
            repository.write(f"{name}/file", "x")

        def removing():
            shutil.rmtree(repository.model / "b", ignore_errors=True)

        found = repository.survey(alive=removing)
        assert "a/file" in found.files
        assert "b/file" not in found.files
        assert found.problems == ()

    def test_a_name_that_is_not_utf8_is_a_file_like_others(self, repository):
        path = os.fsencode(repository.model) + b"/\xff"
        with open(path, "wb"):
            pass
        assert repository.stamp().files[-1][:2] == ("\udcff", 0)
        repository.contents()


class TestContents:
    """What decides."""

    def test_they_are_those_of_the_files_digests_and_of_the_version_directories(self, repository):
        texts = {"1/model.onnx": b"one", "config.pbtxt": b"max_batch_size: 1"}
        digests = {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
        (repository.model / "7").mkdir()
        assert repository.contents() == contents_of(digests, ["7"])

    def test_a_touch_changes_nothing(self, repository):
        before = repository.contents()
        for path in repository.model.rglob("*"):
            path.touch()
        assert repository.contents() == before

    def test_a_copy_is_the_same_model(self, repository):
        shutil.copytree(repository.model, repository.path / "n")
        assert repository.contents("n") == repository.contents("m")

    def test_markers_and_manifests_are_no_part_of_a_model(self, repository):
        before = repository.contents()
        for name in ("_SUCCESS", "SHA256SUMS", "1/SHA256SUMS"):
            repository.write(name, "")
        assert repository.contents() == before
        repository.write("labels/SHA256SUMS", "")
        assert repository.contents() != before

    def test_a_link_inside_the_repository_is_followed(self, repository):
        repository.write("store/model.onnx", "one")
        before = repository.contents().versions[1]
        path = repository.model / "1/model.onnx"
        path.unlink()
        path.symlink_to("../store/model.onnx")
        assert repository.contents().versions[1] == before
        (repository.model / "2").symlink_to("store")
        assert repository.contents().versions[2] == before

    def test_pipes_are_never_opened(self, repository):
        os.mkfifo(repository.model / "1/pipe")
        assert set(repository.contents().versions) == {1}

    def test_it_can_be_given_up(self, repository):
        with pytest.raises(FetchCancelled):
            repository.contents(cancelled=lambda: True)

    @settings(
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        deadline=None,
        max_examples=15,
    )
    @given(
        one=st.dictionaries(st.sampled_from(["1/a", "1/b", "2/a", "c", "d/e"]), st.sampled_from(["x", "y"])),
        other=st.dictionaries(
            st.sampled_from(["1/a", "1/b", "2/a", "c", "d/e"]), st.sampled_from(["x", "y"])
        ),
    )
    def test_they_are_equal_if_and_only_if_the_files_are(self, tmp_path_factory, one, other):
        found = []
        for files in (one, other):
            repository = Repository(tmp_path_factory.mktemp("repository"))
            shutil.rmtree(repository.model / "1")
            for name, text in files.items():
                repository.write(name, text)
            found.append(repository.contents().digest)
        assert (found[0] == found[1]) == (one == other)


class TestDigests:
    """Files are read once."""

    def test_an_unchanged_file_is_not_read_again(self, repository):
        repository.contents()
        read = repository.digests.bytes_read
        assert read == 20
        repository.contents()
        assert repository.digests.bytes_read == read
        repository.write("1/model.onnx", "two")
        repository.contents()
        assert repository.digests.bytes_read == read + 3

    def test_a_file_written_just_now_is_read_again(self, repository):
        repository.digests = Digests(wall_ns=time.time_ns)
        repository.contents()
        repository.contents()
        assert repository.digests.bytes_read == 40

    @pytest.mark.parametrize("late", [False, True])
    def test_a_file_that_changes_while_it_is_read_is_noticed(self, repository, late):
        path = repository.model / "1/model.onnx"
        path.write_bytes(bytes(3 << 20))
        pieces: list[None] = []

        def writing():
            pieces.append(None)
            if len(pieces) == (3 if late else 1):
                path.write_bytes(b"other")

        with Root(repository.path) as root:
            found = looked(root)
            with pytest.raises(Unsettled, match="changed while it was read"):
                repository.digests.digest(root, "m/1/model.onnx", found.files["1/model.onnx"], alive=writing)

    def test_a_file_that_changed_since_the_survey_is_noticed(self, repository):
        with Root(repository.path) as root:
            found = looked(root)
            repository.write("1/model.onnx", "other")
            with pytest.raises(Unsettled):
                contents(root, found, repository.digests)

    def test_a_link_that_is_switched_after_the_survey_is_not_followed_out(self, repository):
        link = repository.model / "1/model.onnx"
        link.rename(repository.model / "store")
        link.symlink_to("../store")
        with Root(repository.path) as root:
            found = looked(root)
            link.unlink()
            link.symlink_to(repository.outside / "secret")
            with pytest.raises(LeadsOut):
                contents(root, found, repository.digests)
        assert repository.digests.bytes_read == 0


class TestLeadingOut:
    """Nothing outside of the repository is read."""

    @pytest.mark.parametrize("name", ["link", "1/link", "1/deep/link"])
    @pytest.mark.parametrize("target", ["outside/secret", "outside", "outside/absent", "repository"])
    def test_a_link_out_is_a_problem_that_names_it(self, repository, name, target):
        link = repository.model / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(repository.path.parent / target)
        found = repository.survey()
        assert [problem.message for problem in found.problems] == [
            f"'{name}' is a link out of the model repository"
        ]
        assert found.problems[0].path == link
        assert not any("secret" in path for path in found.files)

    def test_relative_links_out_and_links_through_them_are_some_too(self, repository):
        (repository.model / "a").symlink_to("b")
        (repository.model / "b").symlink_to("../../outside/secret")
        assert repository.messages() == [f"'{name}' is a link out of the model repository" for name in "ab"]

    def test_a_model_that_is_a_link_out_is_one_too(self, repository):
        (repository.path / "n").symlink_to(repository.outside)
        found = repository.survey("n")
        assert [problem.message for problem in found.problems] == [
            "'n' is a link out of the model repository"
        ]
        assert found.files == {}

    def test_mending_it_is_seen(self, repository):
        link = repository.model / "1/link"
        link.symlink_to(repository.outside)
        before = repository.stamp()
        assert repository.stamp() == before
        link.unlink()
        link.symlink_to("model.onnx")
        assert repository.stamp() != before
        assert repository.messages() == []

    def test_a_link_to_another_model_is_none(self, repository):
        (repository.path / "n").symlink_to("m")
        (repository.model / "1/link").symlink_to("../../m/config.pbtxt")
        assert repository.messages() == []
        assert set(repository.survey("n").files) == {"1/link", "1/model.onnx", "config.pbtxt"}

    def test_a_loop_of_links_ends(self, repository):
        (repository.model / "1/loop").symlink_to("..")
        (repository.model / "circle").symlink_to("circle")
        assert repository.messages() == []
        assert set(repository.survey().files) == {"1/model.onnx", "config.pbtxt"}

    def test_a_repository_that_is_reached_through_links_is_no_way_out(self, repository):
        link = repository.path.parent / "link"
        link.symlink_to(repository.path)
        (repository.model / "2").symlink_to(repository.path / "m" / "1")
        with Root(link) as root:
            assert looked(root).problems == ()

    def test_a_directory_that_becomes_a_link_meanwhile_is_not_followed_out(self, repository):
        repository.write("a/file", "x")
        repository.write("b/file", "x")

        def switching():
            shutil.rmtree(repository.model / "b", ignore_errors=True)
            if not (repository.model / "b").is_symlink():
                (repository.model / "b").symlink_to(repository.outside)

        found = repository.survey(alive=switching)
        assert [problem.message for problem in found.problems] == [
            "'b' is a link out of the model repository"
        ]
        assert "b/secret" not in found.files

    def test_a_repository_that_is_moved_meanwhile_stays_the_same(self, repository):
        repository.write("a/file", "x")
        moved = repository.path.with_name("moved")

        def moving():
            if not moved.exists():
                repository.path.rename(moved)

        found = repository.survey(alive=moving)
        assert found.problems == ()
        assert set(found.files) == {"1/model.onnx", "a/file", "config.pbtxt"}


class TestBounds:
    """A directory that is no model is not walked for ever."""

    def test_the_number_of_files_is_bounded(self, repository):
        for number in range(20):
            repository.write(f"1/{number}", "")
        assert repository.messages(most=10) == ["there are more than 10 files in it"]

    def test_the_depth_is_bounded(self, repository):
        repository.write("d/" * 100 + "file", "")
        assert repository.messages() == ["directories are nested more than 64 deep"]

    def test_links_that_multiply_are_bounded(self, repository):
        for one in "abcdef":
            (repository.model / one).mkdir()
            for other in "abcdef":
                (repository.model / one / other).symlink_to(f"../{other}")
        assert repository.messages(most=500) == ["there are more than 500 files in it"]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_directory_that_may_not_be_read_is_a_problem(self, repository):
        (repository.model / "1").chmod(0)
        try:
            assert repository.messages() == ["'1' can't be read: Permission denied"]
        finally:
            (repository.model / "1").chmod(0o700)
