"""The locks of a release, `deploy/requirements.lock` and others, against what `pyproject.toml` asks for."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
COMMON = ("cloud", "redis", "auth", "otel", "fleet", "gpu")
LOCKS = {
    "requirements.lock": ("onnx", *COMMON),
    "locks/onnx-gpu.lock": COMMON,
    "locks/torch.lock": ("onnx", "torch", *COMMON),
    "locks/llm.lock": ("onnx", "llm", *COMMON),
}
PYTHONS = ("3.11", "3.12", "3.13")


def entries(lock: str) -> list[str]:
    """Return what a lock asks pip for, one requirement each, with its hashes."""
    text = (ROOT / "deploy" / lock).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def wanted(lock: str) -> list[Requirement]:
    """Return what the project and the extras of a lock depend on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (project["optional-dependencies"][extra] for extra in LOCKS[lock])
    return [Requirement(line) for line in chain(project["dependencies"], *extras)]


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_has_a_version_that_pyproject_admits_for_everything_it_asks_for(lock, python):
    where = {"python_version": python, "python_full_version": f"{python}.9"}
    locked = {}
    for entry in entries(lock):
        requirement = Requirement(entry.partition(" --hash")[0].strip())
        if requirement.marker is None or requirement.marker.evaluate(where):
            [pin] = requirement.specifier
            assert pin.operator == "=="
            locked[canonicalize_name(requirement.name)] = pin.version
    for requirement in wanted(lock):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not in {lock}: run deploy/lock"
        assert requirement.specifier.contains(version), (
            f"{lock} has {version}, but {requirement}: run deploy/lock"
        )


@pytest.mark.parametrize("lock", [*LOCKS, "locks/build.lock"])
def test_every_entry_of_a_lock_has_hashes_and_names_no_place_to_download_from(lock):
    for entry in entries(lock):
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)", entry)
        assert hashes, entry
        rest = re.sub(r"--hash=sha256:[0-9a-f]{64}", "", entry)
        assert "--" not in rest, entry
    assert "://" not in (ROOT / "deploy" / lock).read_text()


def test_what_builds_the_wheel_is_what_pyproject_says():
    asked = (ROOT / "deploy/locks/build.in").read_text().splitlines()
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert [line for line in asked if not line.startswith("#")] == build
