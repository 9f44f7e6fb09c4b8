"""What lies in a model repository: models, and their version directories.

Contract: repository.md sections 1 and 2. These are pure functions over directories. What is found is named by
the entries of a listing, so that no name leads anywhere else. `Links` says how far a link is followed.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors.values.errors import ErrorCode
from actors.values.interfaces import DUPLICATE_REASON
from engine.models.links import Links, resolved
from engine.models.problems import Problem, Severity
from protocols.kserve.proto.model_config_pb2 import ModelVersionPolicy

ADAPTERS_FILE: Final = "multi_lora.json"
"""The file of a version that names its LoRA adapters (contract, llm.md section 3)."""

ADAPTER_MARK: Final = "adapter_config.json"
"""The file by which a folder is known to be an adapter."""

# Directories of a model that are no versions, and say nothing about it.
_RESERVED: Final = frozenset(("warmup", "initial_state", "configs"))
_LEADING_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
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


def scan(repositories: Sequence[Path], links: Links = Links.INSIDE) -> Scan:
    """Return every model directory of `repositories`, by name."""
    models: dict[str, ModelDirectory] = {}
    duplicates: set[str] = set()
    problems: list[Problem] = []
    for repository in dict.fromkeys(path.resolve() for path in repositories):
        try:
            names = sorted(os.listdir(repository))
            os.stat(f"{repository}/.")  # with names alone nothing can be done
        except OSError:
            problems.append(not_a_repository(repository))
            continue
        for name in names:
            found = _candidate(repository / name, repository, links)
            if isinstance(found, Problem):
                problems.append(found)
            elif found is not None and found.name in models:
                duplicates.add(found.name)
                problems.append(_duplicate(found, models[found.name]))
            elif found is not None:
                models[found.name] = found
    served = {name: models[name] for name in sorted(models) if name not in duplicates}
    return Scan(models=served, duplicates=tuple(sorted(duplicates)), problems=tuple(problems))


def candidate_names(listing: int | Path) -> tuple[str, ...]:
    """Return the names of a repository's first-level directories, sorted.

    `listing` may be an open descriptor. A link to a directory is a candidate as well, wherever it leads;
    other code decides whether it is fit to be served. Names that are not UTF-8 are left out, because no
    client could ever ask for them. Raises OSError if the repository can't be listed.
    """
    with os.scandir(listing) as entries:
        return tuple(sorted(entry.name for entry in entries if _sayable(entry.name) and _is_directory(entry)))


def not_a_repository(path: Path) -> Problem:
    """Return the problem of a repository that can't be listed."""
    return Problem(message="repository path is not a valid directory", path=path)


def version_directories(
    model_directory: Path, links: Links = Links.INSIDE
) -> tuple[tuple[VersionDirectory, ...], tuple[Problem, ...]]:
    """Return a model's versions, ascending, and what was found in their place.

    A name counts by the digits it begins with (`1abc` is version 1), but the plain number goes first.
    """
    found: dict[int, Path] = {}
    problems: list[Problem] = []
    try:
        entries = sorted(
            (path, path.is_dir()) for path in model_directory.iterdir() if path.name not in _RESERVED
        )
    except OSError as error:
        reason = error.strerror or str(error)
        return (), (Problem(message=f"model directory can't be listed: {reason}", path=model_directory),)
    root = model_directory.parent.resolve()
    for path, is_directory in entries:
        digits = _LEADING_NUMBER.match(path.name)
        if digits is None:
            continue
        if not is_directory:
            problems += _dangling(path)
            continue
        if path.name.startswith(("0", "+", "-")):
            problems.append(_ignored(path, "a version is a positive number without leading zeros"))
            continue
        number = int(digits[0]) if len(digits[0]) < 20 else _LARGEST_VERSION + 1
        if number > _LARGEST_VERSION:
            problems.append(_ignored(path, f"it is too large, a version is at most {_LARGEST_VERSION}"))
            continue
        strays = _strays(path, root, links)
        if strays is not None:
            problems.append(strays)
            continue
        if path.name != digits[0]:
            problems.append(_prefixed(path, number, taken=number in found))
        # From here on only a link's target is used, because the link may be switched at any time. Sorted: `1`
        # comes before `1abc`.
        found.setdefault(number, resolved(path) if path.is_symlink() else path)
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


def _candidate(path: Path, repository: Path, links: Links) -> ModelDirectory | Problem | None:
    """Return the model at `path`, None if that is no directory, or what is wrong with its name or link."""
    try:
        if not path.is_dir():
            return None
    except OSError:  # it is a link to what may not be looked at, for one
        return None
    if not _sayable(path.name):
        return Problem(message=f"directory name '{shown(path.name)}' is not UTF-8", path=path.parent)
    strays = _strays(path, repository, links)
    return strays or ModelDirectory(name=path.name, path=path, repository=repository)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except PermissionError:
        # This is about what a link leads to. The code that looks into it will report it.
        return True
    except OSError as error:
        # On a mount that does not answer, this cannot be known.
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise
        return False


def shown(path: str) -> str:
    """Return a path as it can be written into a log or an answer: what is not UTF-8 in it as `\\xff`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _sayable(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _strays(path: Path, repository: Path, links: Links) -> Problem | None:
    """Return what is wrong with where the directory `path` leads, if anything."""
    try:
        target = path.resolve()
    except (OSError, RuntimeError):  # a loop of links
        return leads_out(path)
    if links is Links.ANYWHERE:
        return leads_up(path) if repository.is_relative_to(resolved(path)) else None
    return None if target != repository and target.is_relative_to(repository) else leads_out(path)


def _dangling(path: Path) -> Iterator[Problem]:
    """Tell of a version that is a link to nothing: without a word its model would have no version."""
    try:
        if path.is_symlink() and not path.exists():
            yield _ignored(path, f"it is a link to '{shown(os.readlink(path))}', and there is nothing")
    except OSError:  # removed meanwhile, or a loop that may not be looked at
        return


def leads_out(path: Path, *, name: str = "") -> Problem:
    """Return the problem of a link that leads out of its repository.

    `name` is how the link is called, if not by its last part.
    """
    return Problem(
        message=f"'{shown(name or path.name)}' is a link out of the model repository",
        path=Path(shown(str(path))),
        hint="copy the directory into the repository, or make its target a repository of its own",
    )


def leads_up(path: Path, *, name: str = "") -> Problem:
    """Return the problem of a link to its own repository, or to a directory above: it would never end.

    `name` is how the link is called, if not by its last part.
    """
    return Problem(
        message=f"'{shown(name or path.name)}' is a link to a directory that the repository lies in",
        path=Path(shown(str(path))),
        hint="link only what the model needs",
    )


def _duplicate(one: ModelDirectory, other: ModelDirectory) -> Problem:
    return Problem(
        message=DUPLICATE_REASON,
        path=one.path,
        key=one.name,
        hint=f"'{one.name}' is in {other.repository} as well; neither is served",
        code=ErrorCode.INTERNAL,
    )


def _ignored(path: Path, why: str) -> Problem:
    return Problem(
        severity=Severity.WARNING,
        message=f"version directory '{path.name}' is ignored: {why}",
        path=path,
    )


def _prefixed(path: Path, number: int, *, taken: bool) -> Problem:
    message = (
        f"version directory '{path.name}' is ignored: there is a version {number} already"
        if taken
        else f"version directory '{path.name}' is taken for version {number}"
    )
    return Problem(severity=Severity.WARNING, message=message, path=path)
