"""What the server reads of the files of a language model's version: where its weights are, and its adapters.

Contract: llm.md section 3, of Triton's vLLM backend. The server reads `multi_lora.json`, and not the engine:
so it is read again while the model serves, and a mistake in it keeps what serves as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from actors.values.generation.adapters import Adapter
from engine.config.inspection.model import leads_out
from engine.models.layout import ADAPTERS_FILE, VersionDirectory
from engine.models.links import Links
from engine.models.problems import Problem
from engine.worker.backends.language.model_folder import ARGUMENTS_FILE, identity_of

_LONGEST: Final = 4 * 1024 * 1024  # bytes of a file
_SWITCH: Final = "enable_lora"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")  # no answer that lists adapters could have one


def read_adapters(
    versions: Iterable[VersionDirectory], repository: Path, links: Links
) -> tuple[Mapping[int, tuple[Adapter, ...]], list[Problem]]:
    """Return the adapters of versions whose engine can serve some, and what is wrong with their files."""
    adapters: dict[int, tuple[Adapter, ...]] = {}
    problems: list[Problem] = []
    for version in versions:
        adapters[version.number], wrong = _read(version.path, version.number, repository, links)
        problems += wrong
    return adapters, problems


def _read(
    version: Path, number: int, repository: Path, links: Links
) -> tuple[tuple[Adapter, ...], list[Problem]]:
    if not _are_enabled(version / ARGUMENTS_FILE):
        return (), []
    path = version / ADAPTERS_FILE

    def wrong(message: str, hint: str = "") -> tuple[tuple[Adapter, ...], list[Problem]]:
        return (), [Problem(message=message, path=path, hint=hint, versions=(number,))]

    if leads_out(version, ADAPTERS_FILE, repository, links):
        return wrong(f"'{path}' leads out of the model repository")
    if not path.is_file():
        return wrong(
            f"Triton backend cannot find {path}.", "write {} into it if adapters are only loaded by API"
        )
    try:
        said = _document(path)
    except (OSError, ValueError, RecursionError) as error:
        return wrong(f"'{path}' can't be read as JSON: {error}")
    if not isinstance(said, dict):
        return wrong(f"'{path}' must be a JSON object")
    for name, root in said.items():
        mistake = _mistake(name, root)
        if mistake:
            return wrong(f"'{path}': {mistake}")
    return tuple(_adapter(version, name, root) for name, root in said.items()), []


def _mistake(name: str, root: Any) -> str:
    """Return what is wrong with an adapter's name or path; empty for nothing."""
    for text in (name, root):
        if isinstance(text, str) and not text.isascii() and _SURROGATE.search(text):
            return f"{text[:100]!r} has half a surrogate pair"
    if not isinstance(root, str) or not root:
        return f"adapter '{name}' must have the path of its folder, got {root!r}"
    if "\0" in root:
        return f"adapter '{name}': {root[:100]!r} is no path"
    return "" if name else f"the adapter in '{root}' has no name"


def _adapter(version: Path, name: str, root: str) -> Adapter:
    """Return an adapter; a path is relative to the version's directory. What is no folder is a hub's name."""
    folder = version / root
    if not folder.is_dir():
        return Adapter(name, root, root)
    return Adapter(name, root, str(folder), identity_of([str(folder)]))


def read_folder(version: Path) -> Path | None:
    """Return the folder that has the model's files, if it is another one than the version's directory."""
    named = _arguments(version / ARGUMENTS_FILE).get("model")
    if not isinstance(named, str) or not named or "\0" in named:
        return None
    folder = version / named
    return folder if folder.is_dir() and not folder.samefile(version) else None


def _are_enabled(arguments: Path) -> bool:
    # A text in repositories that templates have written.
    return str(_arguments(arguments).get(_SWITCH, False)).lower() == "true"


def _arguments(path: Path) -> Mapping[str, Any]:
    """Return the engine's arguments. What is wrong with them, the engine tells."""
    try:
        said = _document(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _document(path: Path) -> Any:
    with path.open("rb") as file:
        text = file.read(_LONGEST + 1)
    if len(text) > _LONGEST:
        raise ValueError(f"it has more than {_LONGEST} bytes")
    return json.loads(text)
