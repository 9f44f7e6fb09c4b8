"""A Python model's file: what is imported is what lies there now, and its folder is left as it is."""

import os
import sys
from types import SimpleNamespace

import pytest

from engine.worker.backends.python.source import Source

CODE = "class TritonPythonModel:\n    answer = {}\n"


@pytest.fixture
def version(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = tmp_path / "model" / "1"
    folder.mkdir(parents=True)
    return folder


def loaded(folder):
    info = SimpleNamespace(
        artifact="", version=1, version_directory=str(folder), model_directory=str(folder.parent)
    )
    source = Source(info)
    try:
        return source.load().answer
    finally:
        source.forget()


def test_a_file_that_is_written_twice_within_a_second_is_read_twice(version):
    for answer in (1, 2):
        (version / "model.py").write_text(CODE.format(answer))
        os.utime(version / "model.py", (1_700_000_000, 1_700_000_000))
        assert loaded(version) == answer


def test_a_models_folder_is_not_written_to(version):
    (version / "model.py").write_text(CODE.format(1))
    (version / "beside.py").write_text("")
    loaded(version)
    assert sorted(each.name for each in version.iterdir()) == ["beside.py", "model.py"]
