"""A model's versions changed in the file of a fleet, and nothing else of it: comments and order stay."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from engine.fleet.document.nodes import BadDocument, read
from engine.fleet.document.reading import read_wanted


def with_versions(file: str, text: str, model: str, versions: Sequence[int]) -> str:
    """Return the text of a file with other versions of a model.

    Raises BadDocument where the file does not name the model.
    """
    models = read(file, text).members().get("models")
    named = models.members() if models is not None else {}
    if model not in named:
        there = f"it names {', '.join(named)}" if named else "it names none"
        raise BadDocument(f"{file}: no model '{model}' is there; {there}. Add it, with its `versions`")
    entry = named[model].members().get("versions")
    if entry is None:
        named[model].wrong("say which `versions` to serve, such as 3 or [2, 3]")
    written = str(versions[0]) if len(versions) == 1 else f"[{', '.join(map(str, versions))}]"
    start, end = entry.node.start_mark.index, entry.node.end_mark.index
    if isinstance(entry.node, yaml.SequenceNode) and not entry.node.flow_style:
        # A line for each: it ends with the last of them, and what takes its place stands behind the key.
        end = entry.node.value[-1].end_mark.index
        return _checked(file, f"{text[:start].rstrip()} {written}{text[end:]}", model, versions)
    return _checked(file, text[:start] + written + text[end:], model, versions)


def _checked(file: str, text: str, model: str, versions: Sequence[int]) -> str:
    wish = read_wanted(file, text).wish(model)
    if wish is None or wish.release.versions != tuple(sorted(versions)):
        raise BadDocument(f"{file}: the versions of '{model}' can't be changed in place; write them by hand")
    return text


def write_whole(path: Path, text: str) -> None:
    """Put text in a file's place at once, so that no reader gets half of it. Raises OSError."""
    target = path.resolve()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, target.stat().st_mode & 0o7777 if target.exists() else 0o644)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
