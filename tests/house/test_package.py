"""What is published holds Tritium and nothing else, and messages name extras that there are."""

import re
import tomllib

from engine.settings import extras
from tests.house.graph import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = [path for folder in ("engine", "actors", "protocols") for path in (ROOT / folder).rglob("*.py")]


def test_packages_hold_no_tests_chaos_or_benchmarks():
    targets = PROJECT["tool"]["hatch"]["build"]["targets"]
    ours = {"engine", "actors", "protocols"}
    assert {*targets["wheel"]["only-include"]} == ours
    around = {"hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md"}
    assert {*targets["sdist"]["only-include"]} == ours | around
    assert all((ROOT / name).exists() for name in ours | around)


def test_each_extra_that_a_message_names_is_there():
    known = PROJECT["project"]["optional-dependencies"]
    named = {
        extra
        for path in SOURCES
        for extra in re.findall(r"how_to_install\([\"'](\w+)", path.read_text("utf-8"))
    }
    assert {"cloud", "redis", "otel", "auth", "gpu", "llm"} <= named
    assert named <= {*known}


def test_one_function_says_how_an_extra_is_installed():
    spelt = [path for path in SOURCES if "pip install 'tritium[" in path.read_text("utf-8")]
    assert [path.name for path in spelt] == [extras.__file__.rpartition("/")[2]]
