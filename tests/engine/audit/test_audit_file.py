"""The file: appended to, chained over restarts, rotations and other writers, and whole on a full disk."""

import ctypes
import errno
import fcntl
import os
import resource
import subprocess
import sys
import textwrap
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from engine.audit.file import AuditFile, AuditUnusable
from engine.audit.reading import Census, read, with_older
from engine.audit.records import LONGEST, Record
from engine.observability.reading.reading import open_log
from tests.support.auditing import entries_in, records_in

MIB = 1024 * 1024


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


@pytest.fixture
def opened():
    """Opens audit files, and closes them at the end."""
    files = []

    def open_file(path, **options):
        files.append(AuditFile(str(path), **{"size": MIB, "keep": 3, **options}))
        return files[-1]

    yield open_file
    for file in files:
        file.close()


def record(action="model_load", **more):
    return Record(time=1.0, action=action, **more)


def actions(path):
    return [each.action for each in records_in(path)]


@contextmanager
def no_file_over(size):
    """Have the kernel refuse to let any file grow over `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_records_are_appended_for_the_owner_alone_and_chained_over_restarts(path, opened):
    opened(path).append([record("a"), record("b")], room=0)
    opened(path).append([record("c")])
    assert [entry.number for entry in entries_in(path)] == [1, 2, 3]
    assert actions(path) == ["a", "b", "c"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_is_written_for_no_records(path, opened):
    opened(path).append([], room=0)
    assert not path.exists()


def test_two_writers_of_one_file_make_one_chain(path, opened):
    one, other = opened(path), opened(path)
    for name in "abcdef":
        (one if name in "abe" else other).append([record(name)], room=LONGEST)
    assert actions(path) == [*"abcdef"]


def test_a_file_is_rotated_before_it_grows_over_its_size_and_no_record_is_lost(path, opened):
    file = opened(path, size=4096, keep=0)
    names = [f"{number:04}" for number in range(100)]
    for name in names:
        file.append([record(name)], room=LONGEST)
    files = with_older(str(path))
    assert len(files) > 3
    assert all(os.path.getsize(each) <= 4096 for each in files)
    assert all(os.stat(each).st_mode & 0o777 == 0o600 for each in files)
    assert actions(path) == names


@pytest.mark.parametrize("keep", [1, 2])
def test_only_so_many_older_files_are_kept(path, opened, keep):
    file = opened(path, size=1024, keep=keep)
    for number in range(60):
        file.append([record(str(number))], room=0)
    assert len(with_older(str(path))) == keep + 1
    assert actions(path)[-1] == "59"


def test_outcomes_need_no_rotation(path, opened):
    file = opened(path, size=1024)
    for _ in range(30):
        file.append([record()])
    assert with_older(str(path)) == [str(path)]


def test_a_rotation_that_was_cut_short_is_finished_by_the_next(path, opened):
    opened(path).append([record("a")], room=0)
    os.link(path, f"{path}.1")
    (path.parent / "audit.jsonl.new").write_text("left behind")
    assert actions(path) == ["a"]
    file = opened(path, size=200)
    for name in "bcd":
        file.append([record(name)], room=0)
    assert actions(path) == [*"abcd"]
    assert not (path.parent / "audit.jsonl.new").exists()


def test_a_file_that_was_moved_away_or_emptied_is_noticed_and_the_chain_goes_on(path, opened):
    file = opened(path)
    file.append([record("a")], room=LONGEST)
    path.rename(f"{path}.2")
    file.append([record("b")], room=LONGEST)
    path.rename(f"{path}.1")
    file.append([record("c")])
    assert actions(path) == [*"abc"]
    os.truncate(path, 0)
    file.append([record("d")])
    [entry] = [each for each, _ in read([str(path)], Census(), open_log)]
    assert entry.number == 4


def test_what_another_process_wrote_into_a_file_before_it_was_moved_is_in_the_chain(path, opened):
    file = opened(path)
    file.append([record("a")], room=LONGEST)
    opened(path).append([record("b")])
    path.rename(f"{path}.1")
    file.append([record("c")])
    assert actions(path) == [*"abc"]


def test_a_server_that_starts_behind_a_rotation_goes_on_with_the_older_files_chain(path, opened):
    opened(path).append([record("a"), record("b")], room=0)
    path.rename(f"{path}.1")
    opened(path).append([record("c")], room=0)
    assert [entry.number for entry in entries_in(path)] == [1, 2, 3]


def test_a_line_that_was_cut_short_costs_that_line_alone(path, opened):
    opened(path).append([record("a")], room=0)
    with path.open("ab") as file:
        file.write(b'{"time":"2026')
    opened(path).append([record("b")], room=0)
    census = Census()
    found = [entry for entry, _ in read([str(path)], census, open_log)]
    assert [entry.record.action for entry in found] == ["a", "b"]
    assert [entry.number for entry in found] == [1, 2]
    assert census.damaged == {str(path): [2]}


def test_a_log_of_something_else_is_appended_to_behind_what_is_there(path, opened):
    path.write_bytes(b"something else\n")
    path.chmod(0o600)
    opened(path).append([record("a")], room=0)
    assert path.read_bytes().startswith(b"something else\n{")


class TestWhatIsNoAuditLog:
    def complaint(self, file):
        with pytest.raises(AuditUnusable) as caught:
            file.check()
        return str(caught.value)

    def test_a_folder_that_is_not_there(self, tmp_path, opened):
        said = self.complaint(opened(tmp_path / "no" / "audit.jsonl"))
        assert said.endswith(f"there is no directory '{tmp_path}/no': make it first")

    def test_a_symbolic_link(self, path, opened):
        path.symlink_to(path.parent / "elsewhere")
        assert "is a symbolic link" in self.complaint(opened(path))
        assert not (path.parent / "elsewhere").exists()

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
    def test_what_is_no_regular_file(self, path, opened, make):
        make(path)
        said = self.complaint(opened(path))
        assert "is no regular file" in said or "Is a directory" in said

    def test_a_file_that_others_may_write(self, path, opened):
        path.touch()
        path.chmod(0o660)
        assert "`chmod go-w` it" in self.complaint(opened(path))

    def test_a_full_disk_is_no_such_reason(self, path, opened, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(os, "open", full)
        opened(path).check()


def test_a_file_of_others_in_the_place_of_the_log_is_a_write_that_failed_until_it_is_mended(path, opened):
    file = opened(path)
    file.check()
    file.append([record("a")], room=0)
    path.rename(f"{path}.1")
    path.touch()
    path.chmod(0o664)
    for _ in range(2):
        with pytest.raises(OSError, match="may be written by other users: `chmod go-w` it"):
            file.append([record("b")], room=0)
    path.chmod(0o600)
    file.append([record("b")], room=0)
    assert actions(path) == ["a", "b"]


def test_a_file_that_may_not_grow_refuses_what_needs_room_and_keeps_room_for_outcomes(path, opened):
    file = opened(path)
    with no_file_over(3 * LONGEST):
        file.append([record("asked")], room=LONGEST)
        asked = 0
        with suppress(OSError):
            while True:
                asked += 1
                file.append([record("asked", reason="x" * 2000)], room=LONGEST)
        with pytest.raises(OSError, match="File too large"):
            file.append([record("asked", reason="x" * 2000)], room=LONGEST)
        assert asked > 1
        file.append([record("outcome", reason="x" * 2000)])
    file.append([record("again")], room=LONGEST)
    assert actions(path) == ["asked"] * asked + ["outcome", "again"]


def test_a_write_that_is_cut_short_is_told_and_the_next_begins_a_line(path, opened):
    file = opened(path)
    file.append([record("a")])
    with no_file_over(path.stat().st_size + 10), pytest.raises(OSError, match="No space left"):
        file.append([record("b")])
    file.append([record("c")])
    census = Census()
    found = [entry.record.action for entry, _ in read([str(path)], census, open_log)]
    assert found == ["a", "c"]
    assert len(census.damaged[str(path)]) == 1


def keeps_room(folder):
    """Whether the file system keeps room behind the end of a file, and counts it."""
    with (folder / "probe").open("wb") as file:
        libc = ctypes.CDLL(None)
        failed = libc.fallocate(file.fileno(), 1, ctypes.c_int64(0), ctypes.c_int64(MIB))
        return not failed and os.fstat(file.fileno()).st_blocks * 512 >= MIB


def test_room_that_was_kept_is_given_back_at_the_end(path, opened):
    if not keeps_room(path.parent):
        pytest.skip("this file system keeps no room behind the end of a file")
    file = opened(path)
    file.append([record()], room=MIB)
    assert path.stat().st_blocks * 512 >= MIB
    file.close()
    assert path.stat().st_blocks * 512 < MIB


def test_what_another_process_writes_at_that_moment_is_not_cut_off(path, opened, monkeypatch):
    """The end of the file is looked at under the lock, and not at all while another has that."""
    cut = []
    truncate = os.ftruncate

    def watched(descriptor, size):
        with path.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        cut.append(size)
        truncate(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", watched)
    file = opened(path)
    file.append([record("a")], room=MIB)
    file.close()
    assert cut == [path.stat().st_size]
    file.append([record("b")], room=MIB)
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        file.close()
    assert len(cut) == 1
    file.append([record("c")], room=MIB)
    assert actions(path) == [*"abc"]


@pytest.mark.system
@pytest.mark.slow
def test_outcomes_are_written_on_a_disk_that_is_full_by_now(tmp_path):
    script = textwrap.dedent("""
        import os, subprocess, sys
        from engine.audit.file import AuditFile
        from engine.audit.records import LONGEST, Record
        from tests.support.auditing import records_in

        folder = sys.argv[1]
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", folder], check=True)
        path = f"{folder}/audit.jsonl"
        file = AuditFile(path, size=2**20, keep=1)
        file.append([Record(time=1.0, action="asked")], room=2 * LONGEST)
        with open(f"{folder}/ballast", "wb", 0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError as error:
                print(error.strerror)
        for _ in range(2):
            file.append([Record(time=1.0, action="outcome", reason="x" * 2000, model="y" * 500)])
        try:
            file.append([Record(time=1.0, action="asked")], room=20 * LONGEST)
        except OSError as error:
            print(error.strerror)
        os.unlink(f"{folder}/ballast")
        file.append([Record(time=1.0, action="again")], room=LONGEST)
        print([each.action for each in records_in(path)])
    """)
    ran = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", script, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode and ("unshare" in ran.stderr or "mount" in ran.stderr):
        pytest.skip(f"no file system can be mounted here: {ran.stderr[-200:]}")
    assert ran.stdout.splitlines() == [
        "No space left on device",
        "No space left on device",
        "['asked', 'outcome', 'outcome', 'again']",
    ], ran.stderr
