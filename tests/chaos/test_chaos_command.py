"""What people meet at the command line: examples that work, and errors that say what to do."""

import re

import pytest

from chaos.__main__ import EXAMPLES, main
from chaos.flags import EVERY_FAULT


def test_the_faults_in_the_examples_are_there():
    [named] = re.findall(r"--only ([a-z_ ]+)", EXAMPLES)
    assert set(named.split()) <= EVERY_FAULT.keys()


def test_a_folder_without_a_record_can_not_be_checked(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", str(tmp_path)])
    assert ended.value.code == 2
    assert f"no manifest.json in {tmp_path}" in capsys.readouterr().err


def test_a_folder_that_holds_something_is_left_alone(tmp_path, capsys):
    (tmp_path / "precious").write_text("")
    assert main(["--minutes", "0.1", "--folder", str(tmp_path)]) == 2
    assert "name a folder that is empty, or not there" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["precious"]
