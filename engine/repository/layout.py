"""What lies in a model repository: models, and their version directories (contract, repository.md sections 1 and 2).

Pure functions over directories. What is found is named by the entries of a listing, so that no name leads anywhere else,
and a link is followed only as far as its own repository (DESIGN section 9).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors.messages.errors import ErrorCode
from engine.config.problems import Problem, Severity
from protocols.kserve.proto.model_config_pb2 import ModelVersionPolicy

DUPLICATE_REASON: Final = "model appears in two or more repositories"

# Directories of a model that are no versions, and say nothing about it.
_RESERVED: Final = frozenset(("warmup", "initial_state", "configs"))
_LEADING_NUMBER: Final = re.compile(r"[0-9]+")
_LARGEST_VERSION: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class VersionDirectory:
    """One version of a model on disk."""

    number: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDirectory:
    """One model on disk."""

    name: str
    path: Path
    repository: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """All models of some repositories by name. A name that stands in two of them is in `duplicates` only."""

    models: Mapping[str, ModelDirectory]
    duplicates: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def scan(repositories: Sequence[Path]) -> Scan:
    """Return every model directory of `repositories`, by name."""
    models: dict[str, ModelDirectory] = {}
    duplicates: set[str] = set()
    problems: list[Problem] = []
    for repository in dict.fromkeys(path.resolve() for path in repositories):
        try:
            entries = sorted(repository.iterdir())
        except OSError:
            problems.append(not_a_repository(repository))
            continue
        for path in entries:
            found = _candidate(path, repository)
            if isinstance(found, Problem):
                problems.append(found)
            elif found is not None and found.name in models:
                duplicates.add(found.name)
                problems.append(_duplicate(found, models[found.name]))
            elif found is not None:
                models[found.name] = found
    served = {name: models[name] for name in sorted(models) if name not in duplicates}
    return Scan(models=served, duplicates=tuple(sorted(duplicates)), problems=tuple(problems))


def find_model(repositories: Sequence[Path], name: str) -> ModelDirectory | Problem:
    """Return the directory of the model `name`, which a client may have chosen, or why there is none."""
    if not name:
        return Problem(message="Model name cannot be empty. Please enter a valid name to deploy.")
    if name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        return Problem(
            message=f"invalid model name '{name}', model name must not contain path traversal characters"
        )
    found: list[ModelDirectory] = []
    for repository in dict.fromkeys(path.resolve() for path in repositories):
        candidate = _candidate(repository / name, repository)
        if isinstance(candidate, Problem):
            return candidate
        if candidate is not None:
            found.append(candidate)
    if len(found) > 1:
        return _duplicate(found[1], found[0])
    if not found:
        return Problem(
            message=f"there is no directory '{name}' in any model repository", code=ErrorCode.NOT_FOUND
        )
    return found[0]


def not_a_repository(path: Path) -> Problem:
    """Return the problem of a repository that can't be listed."""
    return Problem(message="repository path is not a valid directory", path=path)


def version_directories(model_directory: Path) -> tuple[tuple[VersionDirectory, ...], tuple[Problem, ...]]:
    """Return a model's versions, ascending, and what was found in their place.

    A name counts by the digits it begins with (`1abc` is version 1), but the plain number goes first.
    """
    found: dict[int, Path] = {}
    problems: list[Problem] = []
    try:
        entries = sorted(
            path for path in model_directory.iterdir() if path.name not in _RESERVED and path.is_dir()
        )
    except OSError as error:
        reason = error.strerror or str(error)
        return (), (Problem(message=f"model directory can't be listed: {reason}", path=model_directory),)
    root = model_directory.parent.resolve()
    for path in entries:
        digits = _LEADING_NUMBER.match(path.name)
        if digits is None:
            continue
        number = int(digits[0]) if len(digits[0]) < 20 else _LARGEST_VERSION + 1
        if path.name.startswith("0") or number > _LARGEST_VERSION:
            problems.append(_ignored(path))
        elif not _resolved_inside(path, root):
            problems.append(_leads_out(path))
        else:
            if path.name != digits[0]:
                problems.append(_prefixed(path, number, taken=number in found))
            found.setdefault(number, path)  # sorted: `1` comes before `1abc`
    return tuple(VersionDirectory(number, found[number]) for number in sorted(found)), tuple(problems)


def select_versions(policy: ModelVersionPolicy, available: Iterable[int]) -> tuple[int, ...]:
    """Return the versions that `policy` serves, ascending; without a choice, the highest."""
    versions = sorted(set(available))
    match policy.WhichOneof("policy_choice"):
        case "all":
            return tuple(versions)
        case "specific":
            wanted = frozenset(policy.specific.versions)
            return tuple(version for version in versions if version in wanted)
        case "latest":
            count = policy.latest.num_versions
            return tuple(versions[-count:]) if count else ()
        case _:
            return tuple(versions[-1:])


def _candidate(path: Path, repository: Path) -> ModelDirectory | Problem | None:
    """Return the model at `path`, None where that is no directory, or the problem of a link that leads out."""
    try:
        if not path.is_dir():
            return None
    except OSError:  # a name too long for the file system, for one
        return None
    if not _resolved_inside(path, repository):
        return _leads_out(path)
    return ModelDirectory(name=path.name, path=path, repository=repository)


def _resolved_inside(path: Path, root: Path) -> bool:
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):  # a loop of links
        return False
    return resolved != root and resolved.is_relative_to(root)


def _leads_out(path: Path) -> Problem:
    return Problem(
        message=f"'{path.name}' is a link out of the model repository",
        path=path,
        hint="copy the directory into the repository, or make its target a repository of its own",
    )


def _duplicate(one: ModelDirectory, other: ModelDirectory) -> Problem:
    return Problem(
        message=DUPLICATE_REASON,
        path=one.path,
        key=one.name,
        hint=f"'{one.name}' is in {other.repository} as well; neither is served",
        code=ErrorCode.INTERNAL,
    )


def _ignored(path: Path) -> Problem:
    return Problem(
        severity=Severity.WARNING,
        message=f"version directory '{path.name}' is ignored: a version is a positive number without leading zeros",
        path=path,
    )


def _prefixed(path: Path, number: int, *, taken: bool) -> Problem:
    message = (
        f"version directory '{path.name}' is ignored: there is a version {number} already"
        if taken
        else f"version directory '{path.name}' is taken for version {number}"
    )
    return Problem(severity=Severity.WARNING, message=message, path=path)
