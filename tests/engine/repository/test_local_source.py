"""A repository in a local directory: what is there, what is not believed, and what is handed out."""

import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from actors.catalog.settling import Complete, Incomplete, Seen, Unknown
from engine.repository.fingerprint import Digests
from engine.repository.local import LocalSource
from engine.repository.source import FetchCancelled, FetchFailed, SourceUnavailable


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    """A repository with the models `a` and `b`."""
    path = tmp_path / "repository"
    for name in "ab":
        (path / name / "1").mkdir(parents=True)
        (path / name / "1" / "model.onnx").write_text(name)
    (path / "README").write_text("no model")
    return path


@pytest.fixture
def source(path, clock):
    digests = Digests(wall_ns=lambda: time.time_ns() + 10**12)  # nothing is fresh
    return LocalSource(path, digests=digests, return_after=1.0, clock=clock)


def fetch(source, name, *, cancelled=lambda: False):
    return source.fetch(name, progress=lambda _: None, cancelled=cancelled)


class TestListing:
    """Names and stamps."""

    def test_every_first_level_directory_is_a_model(self, source, path):
        (path / ".hidden").mkdir()
        assert source.names() == (".hidden", "a", "b")
        assert source.uri == str(path)

    def test_the_uri_is_what_the_operator_wrote(self, path, monkeypatch):
        monkeypatch.chdir(path.parent)
        assert LocalSource("./repository/").uri == "./repository/"
        assert LocalSource("./repository/").names() == ("a", "b")

    def test_links_to_directories_are_candidates_wherever_they_lead(self, source, path):
        (path / "inside").symlink_to("a")
        (path / "outside").symlink_to(path.parent)
        (path / "nowhere").symlink_to("absent")
        (path / "circle").symlink_to("circle")
        (path / "file").symlink_to("README")
        assert source.names() == ("a", "b", "inside", "outside")

    def test_a_name_that_is_not_utf8_is_none(self, source, path):
        os.mkdir(os.fsencode(path) + b"/\xff")
        assert source.names() == ("a", "b")

    def test_a_stamp_is_of_one_model(self, source, path):
        a, b = source.stamp("a"), source.stamp("b")
        (path / "a/1/model.onnx").write_text("other")
        assert source.stamp("a") != a
        assert source.stamp("b") == b

    @pytest.mark.parametrize("name", ["absent", "README", "", ".", "..", "a/1", "../repository/a", "a\0"])
    def test_what_is_no_name_of_a_model_is_not_there(self, source, name):
        assert source.stamp(name) is None
        assert source.look(name) is None
        with pytest.raises(FetchFailed, match="there is no directory"):
            fetch(source, name)

    def test_a_look_says_whether_a_model_is_complete(self, source, path):
        assert source.look("a") == Seen(source.stamp("a"), Unknown())
        (path / "a/_SUCCESS").write_text("")
        assert source.look("a") == Seen(source.stamp("a"), Complete())
        (path / "a/SHA256SUMS").write_text("")
        assert source.look("a").completeness == Incomplete(("'SHA256SUMS' is empty: it lists no file",))

    def test_a_look_remembers_the_one_before(self, source, path):
        (path / "a/SHA256SUMS").write_text(f"{'0' * 64}  1/model.onnx\n")
        source.look("a")
        (path / "a/1/model.onnx").write_text("other")
        assert source.look("a").completeness == Incomplete(("'1/model.onnx' is still being written",))
        (path / "a").rename(path.parent / "a")
        source.names()
        (path.parent / "a/1/model.onnx").write_text("more")
        (path.parent / "a").rename(path / "a")
        assert source.look("a").completeness.reasons[0].startswith("'1/model.onnx' does not match")


class TestMounts:
    """A vanished mount is not an order to unload."""

    def refused(self, source, reason):
        for ask in (
            source.names,
            lambda: source.stamp("a"),
            lambda: source.look("a"),
            lambda: source.problems("a"),
            lambda: fetch(source, "a"),
        ):
            with pytest.raises(SourceUnavailable, match=reason):
                ask()

    @pytest.fixture
    def elsewhere(self, source, path):
        """Where the repository has gone, after it was seen."""
        source.names()
        return path.rename(path.with_name("elsewhere"))

    def test_a_directory_that_is_gone_is_unavailable(self, source, path, elsewhere):
        self.refused(source, "can't be read: No such file or directory")
        elsewhere.rename(path)
        assert source.names() == ("a", "b")

    @pytest.mark.usefixtures("elsewhere")
    def test_a_file_in_its_place_is_unavailable(self, source, path):
        path.write_text("")
        self.refused(source, "can't be read: Not a directory")

    @pytest.mark.usefixtures("elsewhere")
    def test_an_empty_directory_in_its_place_is_never_believed(self, source, path, clock):
        path.mkdir()
        for _ in range(10):
            self.refused(source, "another directory than before, and empty")
            clock.now += 60.0

    def test_the_directory_that_was_there_before_is_believed_at_once(self, source, path, elsewhere):
        path.mkdir()
        self.refused(source, "and empty")
        path.rmdir()
        elsewhere.rename(path)
        assert source.names() == ("a", "b")

    def test_another_directory_is_believed_once_it_stays(self, source, path, clock, elsewhere):
        shutil.copytree(elsewhere, path)
        self.refused(source, "it is believed once it stays")
        clock.now += 0.9
        self.refused(source, "it is believed once it stays")
        clock.now += 0.2
        assert source.names() == ("a", "b")
        assert fetch(source, "a").path == path / "a"

    def test_one_that_is_back_and_empty_is_not_believed_before_something_is_in_it(
        self, source, path, elsewhere
    ):
        self.refused(source, "can't be read")
        elsewhere.rename(path)
        for name in "ab":
            (path / name).rename(path.with_name(name))
        self.refused(source, "and empty")
        path.with_name("a").rename(path / "a")
        assert source.names() == ("a",)
        (path / "a").rename(path.with_name("a"))
        assert source.names() == ()

    def test_one_that_was_empty_may_be_so_when_it_is_back(self, tmp_path):
        path = tmp_path / "repository"
        path.mkdir()
        source = LocalSource(path)
        assert source.names() == ()
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(SourceUnavailable):
            source.names()
        (tmp_path / "elsewhere").rename(path)
        assert source.names() == ()

    def test_one_that_does_not_stay_is_not_believed(self, source, path, clock):
        source.names()
        for number in range(5):
            path.rename(path.with_name(f"elsewhere{number}"))
            shutil.copytree(path.with_name("elsewhere0"), path)
            self.refused(source, "it is believed once it stays")
            clock.now += 10.0

    def test_an_empty_directory_in_between_starts_the_wait_anew(self, source, path, clock):
        source.names()
        path.rename(path.with_name("first"))
        shutil.copytree(path.with_name("first"), path)
        self.refused(source, "once it stays")
        path.rename(path.with_name("second"))
        path.mkdir()
        self.refused(source, "and empty")
        path.rmdir()
        path.with_name("second").rename(path)
        clock.now += 10.0
        self.refused(source, "once it stays")

    def test_two_looks_are_needed_however_short_the_wait(self, path):
        source = LocalSource(path, return_after=0.0)
        source.names()
        path.rename(path.with_name("elsewhere"))
        shutil.copytree(path.with_name("elsewhere"), path)
        with pytest.raises(SourceUnavailable):
            source.names()
        assert source.names() == ("a", "b")

    def test_a_directory_whose_models_were_all_removed_is_empty(self, source, path):
        source.names()
        shutil.rmtree(path / "a")
        shutil.rmtree(path / "b")
        assert source.names() == ()

    def test_a_server_may_start_before_the_mount(self, tmp_path, clock):
        path = tmp_path / "repository"
        path.mkdir()
        source = LocalSource(path, clock=clock)
        assert source.names() == ()
        path.rename(tmp_path / "below")
        (path / "a").mkdir(parents=True)
        with pytest.raises(SourceUnavailable):
            source.names()
        clock.now += 15.0
        assert source.names() == ("a",)

    def test_a_link_to_the_repository_may_be_switched(self, path, clock):
        link = path.with_name("current")
        link.symlink_to(path)
        source = LocalSource(link, clock=clock)
        assert fetch(source, "a").path == path / "a"
        shutil.copytree(path, path.with_name("next"))
        link.unlink()
        link.symlink_to("next")
        with pytest.raises(SourceUnavailable):
            source.names()
        clock.now += 15.0
        assert fetch(source, "a").path == path.with_name("next") / "a"

    @pytest.mark.system
    @pytest.mark.slow
    @pytest.mark.skipif(
        shutil.which("unshare") is None
        or subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", "true"], capture_output=True, check=False
        ).returncode
        != 0,
        reason="mounting takes a mount namespace of one's own",
    )
    def test_a_real_mount_comes_and_goes(self, tmp_path):
        script = textwrap.dedent("""
            import subprocess, sys
            from engine.repository.local import LocalSource
            from engine.repository.source import SourceUnavailable

            path, now = sys.argv[1], [0.0]

            def names():
                now[0] += 15.0
                try:
                    return " ".join(source.names())
                except SourceUnavailable as error:
                    return "empty" if "empty" in str(error) else "waits" if "stays" in str(error) else str(error)

            def sh(command):
                subprocess.run(["sh", "-c", command, "sh", path], check=True)

            sh('mkdir "$1/next" "$1/here"')
            sh('mount -t tmpfs none "$1/next" && mkdir "$1/next/a" "$1/next/c"')
            path += "/here"
            source = LocalSource(path, clock=lambda: now[0])
            sh('mount -t tmpfs none "$1" && mkdir "$1/a" "$1/b"')
            print(names())
            sh('umount "$1"')
            print(names())
            print(names())
            sh('mount --bind "$1/../next" "$1"')
            print(names())
            print(names())
            sh('mount -t tmpfs none "$1"')  # on top of the other
            print(names())
            print(names())
            sh('umount "$1"')
            print(names())
        """)
        ran = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", script, str(tmp_path)],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.stderr == ""
        assert ran.stdout.splitlines() == ["a b", "empty", "empty", "waits", "a c", "empty", "empty", "a c"]


class TestFetching:
    """The directory itself, and what it holds."""

    def test_a_fetch_returns_the_directory_with_its_contents(self, source, path):
        fetched = fetch(source, "a")
        assert fetched.path == path / "a"
        assert set(fetched.contents.versions) == {1}
        (path / "a/1/model.onnx").touch()
        assert fetch(source, "a").contents == fetched.contents
        (path / "a/1/model.onnx").write_text("x")
        assert fetch(source, "a").contents != fetched.contents
        source.release(fetched.path)
        assert (path / "a/1/model.onnx").exists()

    def test_the_last_part_of_the_path_is_the_models_name(self, source, path):
        (path / "link").symlink_to("a")
        fetched = fetch(source, "link")
        assert (fetched.path, fetched.contents) == (path / "link", fetch(source, "a").contents)

    def test_nothing_is_read_where_nobody_compares(self, path):
        source = LocalSource(path, compare=False)
        fetched = fetch(source, "a")
        assert (fetched.path, fetched.contents) == (path / "a", None)
        assert source.digests.bytes_read == 0

    @pytest.mark.parametrize("compare", [True, False])
    def test_a_model_with_a_link_out_is_refused(self, path, compare):
        source = LocalSource(path, compare=compare)
        (path.parent / "secret").write_text("secret")
        (path / "a/1/weights").symlink_to(path.parent / "secret")
        (path / "c").symlink_to(path.parent)
        with pytest.raises(FetchFailed, match=r"^'1/weights' is a link out of the model repository$"):
            fetch(source, "a")
        with pytest.raises(FetchFailed, match=r"^'c' is a link out of the model repository$"):
            fetch(source, "c")
        assert [problem.message for problem in source.problems("a")] == [
            "'1/weights' is a link out of the model repository"
        ]
        assert source.problems("b") == ()
        assert source.problems("absent") == ()
        assert source.digests.bytes_read == 0

    @pytest.mark.parametrize("name", ["1/model.onnx", "1/more", "2/model.onnx"])
    def test_a_model_that_is_written_meanwhile_is_refused(self, source, path, name):
        def writing():
            (path / "a" / name).parent.mkdir(exist_ok=True)
            (path / "a" / name).write_text("half of it")
            return False

        with pytest.raises(FetchFailed, match="model 'a' is being changed"):
            fetch(source, "a", cancelled=writing)

    def test_a_model_that_vanishes_meanwhile_is_refused(self, source, path):
        def removing():
            shutil.rmtree(path / "a", ignore_errors=True)
            return False

        with pytest.raises(FetchFailed, match="model 'a' is being changed"):
            fetch(source, "a", cancelled=removing)

    def test_a_fetch_can_be_given_up(self, source):
        with pytest.raises(FetchCancelled):
            fetch(source, "a", cancelled=lambda: True)

    def test_files_are_read_once(self, source):
        fetch(source, "a")
        read = source.digests.bytes_read
        fetch(source, "a")
        assert source.digests.bytes_read == read == 1
