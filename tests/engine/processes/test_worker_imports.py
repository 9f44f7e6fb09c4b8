"""What a worker imports, found before it starts, and what of it another user may not read."""

import os
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np
import pytest

from actors.values.confinement import Confinement, Sandbox
from actors.values.specs import Runtime
from engine.processes import imports, users
from engine.processes.confining import own_user
from engine.processes.imports import imports_of

PACKAGES = str(Path(np.__file__).parents[1])


@pytest.fixture
def place():
    """A folder that every user may enter: pytest's own directories are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def environment(place):
    """Make a virtual environment whose one `.pth` file has a comment, code, a folder and a relative path."""
    venv.create(place / "environment", with_pip=False, symlinks=True)
    (packages,) = (place / "environment" / "lib").glob("python*/site-packages")
    (place / "more").mkdir()
    (packages / "local").mkdir()
    (packages / "more.pth").write_text(f"# comment\nimport sys\n{place / 'more'}\nlocal\n\n")
    return place / "environment" / "bin" / "python", packages


@pytest.mark.system
def test_the_servers_python_searches_what_it_says_itself():
    found = imports_of(Runtime(), dict(os.environ))
    assert {path for path in sys.path if path.endswith("site-packages")} <= set(found.folders)
    assert os.path.join(PACKAGES, "numpy") in found.packages
    assert any(".so" in path for path in found.libraries)


@pytest.mark.system
def test_the_folders_of_pythonpath_and_of_libraries_are_searched(place):
    told = {
        "PYTHONPATH": f"{place / 'first'}:{place / 'second'}",
        "LD_LIBRARY_PATH": f"{place / 'libraries'}",
    }
    found = imports_of(Runtime(), told)
    assert {str(place / "first"), str(place / "second")} <= set(found.folders)
    assert str(place / "libraries") in found.libraries


@pytest.mark.system
def test_a_python_that_fails_is_an_error_each_time_and_is_asked_again(monkeypatch, place):
    answering = place / "python"
    answering.write_text("#!/bin/sh\nexit 3\n")
    answering.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(answering))
    told = {"PYTHONPATH": str(place / "asked again")}
    for _ in range(2):
        with pytest.raises(OSError, match=r"does not say where it finds modules: .*exit status 3"):
            imports_of(Runtime(), told)
    answering.write_text("#!/bin/sh\n")
    with pytest.raises(OSError, match="it names no folder"):
        imports_of(Runtime(), told)
    answering.write_text("#!/bin/sh\nprintf /found\n")
    assert imports_of(Runtime(), told).folders == ("/found",)


@pytest.mark.system
def test_a_python_that_does_not_answer_is_an_error(monkeypatch, place):
    silent = place / "python"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    monkeypatch.setattr(imports, "_ANSWERS_WITHIN", 0.01)
    with pytest.raises(OSError, match="timed out"):
        imports_of(Runtime(), {"PYTHONPATH": str(place / "silent")})


def test_a_models_python_searches_its_layout_and_its_pth_files_without_running_them(place):
    python, packages = environment(place)
    (packages / "code.pth").write_text(f"import os; os.mkdir({str(place / 'ran')!r})\n")
    found = imports_of(Runtime(interpreter=str(python)), {"PYTHONPATH": str(place / "given")})
    expected = {str(packages), str(place / "more"), str(packages / "local"), str(place / "given")}
    assert expected <= set(found.folders)
    assert os.path.dirname(os.__file__) in found.folders
    assert not (place / "ran").exists()


@pytest.mark.parametrize("name", ["package", "module.py", "library.cpython-311.so", "package.libs"])
def test_a_module_that_another_user_may_not_read_is_a_barrier(place, name):
    found = place / name
    found.mkdir() if name in ("package", "package.libs") else found.write_text("")
    found.chmod(0o755)
    assert users.barred([], searched=[place]) == ""
    found.chmod(0o700)
    assert f"'{found}' (mode 0700" in users.barred([], searched=[place])


@pytest.mark.parametrize("name", ["__pycache__", "package-1.0.dist-info", "notes", "notes.txt"])
def test_what_no_module_is_called_is_no_barrier(place, name):
    found = place / name
    found.mkdir() if name in ("__pycache__", "package-1.0.dist-info") else found.write_text("")
    found.chmod(0o700)
    assert users.barred([], searched=[place]) == ""


def test_a_folder_of_modules_is_reached_through_others(place):
    (place / "on" / "the").mkdir(parents=True)
    (place / "on").chmod(0o711)
    assert users.barred([], searched=[place / "on" / "the", place / "missing"]) == ""
    (place / "on").chmod(0o700)
    assert f"chmod o+x '{place / 'on'}'" in users.barred([], searched=[place / "on" / "the"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give user ids away")
@pytest.mark.parametrize("private", ["more", "environment/lib"])
def test_a_private_folder_of_packages_keeps_the_servers_user_unless_the_operator_asked(place, private):
    python, _ = environment(place)
    model = place / "model"
    model.mkdir()
    runtime = Runtime(interpreter=str(python))
    if own_user(Confinement(sandbox=Sandbox.STRICT), [model], runtime, {}) != (True, []):
        pytest.skip("this project's own files, or its Python's, are for root alone")
    (place / private).chmod(0o700)
    granted, (told,) = own_user(Confinement(sandbox=Sandbox.STRICT), [model], runtime, {})
    assert not granted
    assert told.startswith(f"a user of its own: '{place / private}' (mode 0700")
    with pytest.raises(OSError, match="a strict sandbox that the server imposes"):
        own_user(Confinement(sandbox=Sandbox.STRICT, imposed=True), [model], runtime, {})
