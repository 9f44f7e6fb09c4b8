"""An auth file is exchanged whole, with its mode and owner, one edit after another."""

import os
import threading

import pytest

from engine.identity.document import AuthFileError
from engine.identity.editing import HEAD, NotEdited
from engine.identity.storing import NotStored, edit_file


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "auth.toml"
    path.write_text("# mine\n")
    path.chmod(0o640)
    return path


def more(text):
    return text + "# more\n"


def test_the_mode_stays_and_nothing_is_left_beside(path):
    before = path.stat()
    assert edit_file(str(path), more) is False
    assert path.read_text() == "# mine\n# more\n"
    assert path.stat().st_mode == before.st_mode
    assert path.stat().st_ino != before.st_ino
    assert os.listdir(path.parent) == ["auth.toml"]


def test_a_text_that_stays_is_not_written(path):
    before = path.stat()
    edit_file(str(path), str)
    after = path.stat()  # the time it was read moves, the time it was written does not
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def test_a_new_file_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "new.toml"
    before = os.umask(0)
    try:
        assert edit_file(str(path), more, create=True) is True
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o7777 == 0o600
    assert path.read_text() == HEAD + "# more\n"
    assert edit_file(str(path), more, create=True) is False


def test_an_empty_file_gets_a_head_and_keeps_its_mode(path):
    path.write_text("")
    edit_file(str(path), more, create=True)
    assert path.read_text() == HEAD + "# more\n"
    assert path.stat().st_mode & 0o7777 == 0o640


def test_of_a_link_the_file_behind_it_is_exchanged(path, tmp_path):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "link.toml"
    link.symlink_to("../auth.toml")
    edit_file(str(link), more)
    assert os.readlink(link) == "../auth.toml"
    assert path.read_text() == "# mine\n# more\n"


def test_a_refused_edit_leaves_everything_as_it_was(path):
    def refuse(text):
        raise NotEdited("no")

    before, text = path.stat(), path.read_bytes()
    with pytest.raises(NotEdited):
        edit_file(str(path), refuse)
    after = path.stat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (
        before.st_ino,
        before.st_mode,
        before.st_mtime_ns,
    )
    assert path.read_bytes() == text
    assert os.listdir(path.parent) == ["auth.toml"]


def test_what_can_not_be_encoded_leaves_nothing_beside(path):
    with pytest.raises(UnicodeEncodeError):
        edit_file(str(path), lambda text: "\ud800")
    assert os.listdir(path.parent) == ["auth.toml"]


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(AuthFileError, match="can't be read: No such file"):
        edit_file(str(tmp_path / "no.toml"), more)
    with pytest.raises(NotStored, match=r"no.toml: can't be written: No such file or directory: .*/folder"):
        edit_file(str(tmp_path / "folder" / "no.toml"), more, create=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_owner_stays(path):
    os.chown(path, 12345, 23456)
    edit_file(str(path), more)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


def test_edits_wait_for_each_other(path):
    """Each edit sees the one before: one that is under way keeps the next from reading."""
    inside, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def slow(text):
        inside.set()
        assert go_on.wait(10)
        return text + "# first\n"

    def second():
        edit_file(str(path), lambda text: text + "# second\n")
        done.set()

    first = threading.Thread(target=edit_file, args=(str(path), slow))
    first.start()
    assert inside.wait(10)
    other = threading.Thread(target=second)
    other.start()
    assert not done.wait(0.05)
    go_on.set()
    first.join()
    other.join()
    assert path.read_text() == "# mine\n# first\n# second\n"
