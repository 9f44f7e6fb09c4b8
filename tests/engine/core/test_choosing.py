"""The choice of the core: compiled twins where they fit, the Python source everywhere else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from engine.core.choosing import LIBRARY, MANIFEST, Unusable, choose, digest_of, imported, source, twins
from engine.core.chosen import CORE
from tests.support.operators import clean_environ

ROOT = Path(__file__).resolve().parents[3]
LISTED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tritium"]["core"]["modules"]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
SAY = "from engine.core.chosen import CORE; import actors.values.requests as m; print(CORE.name, m.__file__)"


@pytest.fixture
def built(tmp_path):
    """A root with two sources, and a folder with the twin of one, which imports the other."""
    root, folder = tmp_path / "root", tmp_path / "tritium_core"
    (root / "actors").mkdir(parents=True)
    (folder / "actors").mkdir(parents=True)
    (root / "actors/hot.py").write_text("from actors.cold import Y\nX = 1\n")
    (root / "actors/cold.py").write_text("Y = 1\n")
    for file in (f"actors/hot{SUFFIX}", f"{LIBRARY}{SUFFIX}"):
        (folder / file).touch()
    sources, besides = ({name: digest_of(source(root, name))} for name in ("actors.hot", "actors.cold"))
    told = {"suffix": SUFFIX, "sources": sources, "besides": besides}
    (folder / MANIFEST).write_text(json.dumps(told))
    return folder, root


def test_every_listed_module_is_there_once_and_in_order():
    assert sorted(set(LISTED)) == LISTED
    assert [name for name in LISTED if not source(ROOT, name).is_file()] == []


def test_what_claims_to_be_compiled_is_and_all_of_it():
    assert CORE.modules == (frozenset(LISTED) if CORE.name == "compiled" else frozenset())
    loaded = CORE.modules & sys.modules.keys()
    assert all(str(sys.modules[name].__file__).endswith(tuple(EXTENSION_SUFFIXES)) for name in loaded)
    listed = set(LISTED) & sys.modules.keys()
    assert CORE.modules or all(str(sys.modules[name].__file__).endswith(".py") for name in listed)


def test_twins_that_fit_are_found_by_name(built):
    folder, root = built
    assert twins(folder, root) == {
        "actors.hot": folder / f"actors/hot{SUFFIX}",
        LIBRARY: folder / f"{LIBRARY}{SUFFIX}",
    }


@pytest.mark.parametrize("name", ["hot", "cold"])
def test_twins_of_another_source_are_not_used(built, name):
    """Nor are those that import another one: its constants are compiled into them."""
    folder, root = built
    (root / f"actors/{name}.py").write_text("Y = 2\n")
    changed = rf"{name}\.py has changed since the core was compiled; install it again"
    with pytest.raises(Unusable, match=changed):
        twins(folder, root)


@pytest.mark.parametrize("file", [f"actors/hot{SUFFIX}", f"{LIBRARY}{SUFFIX}"])
def test_twins_that_are_not_all_there_are_not_used(built, file):
    folder, root = built
    (folder / file).unlink()
    with pytest.raises(Unusable, match=r"is missing; install it again"):
        twins(folder, root)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"suffix": ".so", "sources": {}}'])
def test_what_is_no_manifest_is_not_used(built, text):
    folder, root = built
    (folder / MANIFEST).write_text(text)
    with pytest.raises(Unusable, match=r"manifest\.json is not what a build writes now; install it again"):
        twins(folder, root)


def test_twins_whose_source_is_gone_are_not_used(built):
    folder, root = built
    (root / "actors/hot.py").unlink()
    with pytest.raises(Unusable, match="has changed"):
        twins(folder, root)


def test_twins_for_another_python_are_not_used(built):
    folder, root = built
    (folder / MANIFEST).write_text(json.dumps({"suffix": ".cpython-27.so", "sources": {}, "besides": {}}))
    with pytest.raises(Unusable, match=r"compiled for \.cpython-27\.so, and this Python loads"):
        twins(folder, root)


def test_a_folder_without_a_manifest_is_not_used(tmp_path):
    with pytest.raises(Unusable, match="can't be read"):
        twins(tmp_path, tmp_path)


def test_a_build_finds_what_the_listed_modules_import():
    """Directly or not, and for types alone."""
    found = imported(ROOT, LISTED)
    assert {"protocols.kserve.documents", "actors.supervision.spec", "actors.values.specs"} <= set(found)
    assert not set(found) & set(LISTED)
    assert [name for name in found if not source(ROOT, name).is_file()] == []


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_the_variable_chooses_python(value):
    assert str(choose({"TRITIUM_PURE": value})) == "python (TRITIUM_PURE is set)"


def test_what_was_imported_before_is_not_replaced():
    """This process has imported it all, whichever core it runs."""
    again = choose({"TRITIUM_PURE": "0"})
    assert again.name == "python"
    assert "was imported before the core was chosen" in again.reason or not CORE.modules


@pytest.mark.system
def test_the_environment_decides_for_a_whole_process():
    def told(**environ):
        clean = {name: value for name, value in os.environ.items() if name != "TRITIUM_PURE"}
        done = subprocess.run(
            [sys.executable, "-c", SAY], env=clean | environ, cwd=ROOT, capture_output=True, check=True
        )
        return done.stdout.decode().split()

    assert told(TRITIUM_PURE="1") == ["python", str(ROOT / "actors/values/requests.py")]
    name, file = told()
    assert (name == "compiled") == file.endswith(SUFFIX)


@pytest.mark.system
def test_the_version_tells_which_core_runs():
    def told(**environ):
        command = [sys.executable, "-m", "engine", "--version"]
        return subprocess.run(
            command, env={**os.environ, **environ}, cwd=ROOT, capture_output=True, check=True
        ).stdout.decode()

    assert "core: python (TRITIUM_PURE is set)" in told(TRITIUM_PURE="1")
    assert f"core: {CORE}" in told()


@pytest.mark.system
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("tests.fuzz", ["--help"]),
        ("chaos.simulation", ["--help"]),
        pytest.param("benchmarks.hostile.watched", ["page", "no setting"], marks=pytest.mark.long),
        pytest.param("benchmarks.wakeups.watched", ["page", "no setting"], marks=pytest.mark.long),
    ],
)
def test_programs_that_judge_the_core_run_the_one_that_is_chosen(program, words, tmp_path):
    said = subprocess.run(
        [sys.executable, "-v", "-m", program, *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    imports = re.findall(r"(?m)^import '([\w.]+)'", said.stderr)
    assert not set(imports[: imports.index("engine.core.chosen")]) & set(LISTED)


def test_servers_that_tests_start_run_the_core_that_the_tests_run(monkeypatch):
    monkeypatch.setenv("TRITIUM_PURE", "1")
    monkeypatch.setenv("TRITIUM_HTTP_PORT", "1")
    assert clean_environ()["TRITIUM_PURE"] == "1"
    assert "TRITIUM_HTTP_PORT" not in clean_environ()
