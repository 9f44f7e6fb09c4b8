"""The lock of a release, `deploy/requirements.lock`, against what `pyproject.toml` asks for."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "deploy/requirements.lock"
LOCKED_EXTRAS = ("onnx", "cloud", "redis", "auth")
PYTHONS = ("3.11", "3.12", "3.13")


def entries() -> list[str]:
    """Return what the lock asks pip for, one requirement each, with its hashes."""
    text = LOCK.read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def wanted() -> list[Requirement]:
    """Return what the project and the extras of the lock depend on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (project["optional-dependencies"][extra] for extra in LOCKED_EXTRAS)
    return [Requirement(line) for line in chain(project["dependencies"], *extras)]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_a_version_that_pyproject_admits_for_everything_it_asks_for(python):
    where = {"python_version": python, "python_full_version": f"{python}.9"}
    locked = {}
    for entry in entries():
        requirement = Requirement(entry.partition(" --hash")[0].strip())
        if requirement.marker is None or requirement.marker.evaluate(where):
            [pin] = requirement.specifier
            assert pin.operator == "=="
            locked[canonicalize_name(requirement.name)] = pin.version
    for requirement in wanted():
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not in the lock: run deploy/lock"
        assert requirement.specifier.contains(version), (
            f"the lock has {version}, but {requirement}: run deploy/lock"
        )


def test_every_entry_of_the_lock_has_hashes_and_names_no_place_to_download_from():
    for entry in entries():
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)", entry)
        assert hashes, entry
        rest = re.sub(r"--hash=sha256:[0-9a-f]{64}", "", entry)
        assert "--" not in rest, entry
    assert "://" not in LOCK.read_text()
