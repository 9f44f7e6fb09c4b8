"""The manifest of a signed model: `SHA256SUMS`, strictly as coreutils' `sha256sum` writes it.

A manifest that only says whether a copy is complete may be read leniently (`engine.repository.source`). One
that decides which code runs has one reading only, so whatever two programs could read differently is
refused: carriage returns, comments, empty lines, capitals, a path twice, or a path in two spellings.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Final

MANIFEST: Final = "SHA256SUMS"
SIGNATURE: Final = "SHA256SUMS.sig"
MARKER: Final = "_SUCCESS"
"""The file that a tool which copies a model may write last, as Hadoop and Spark do."""

APART: Final = frozenset({MANIFEST, SIGNATURE, MARKER})
"""Files of a model's folder that speak about it and are no part of it: no manifest need list them, and no
copy of a signed model has them."""

_LINE: Final = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.?)", re.DOTALL)
_ESCAPES: Final[Mapping[str, str]] = {"\\": "\\", "n": "\n", "r": "\r"}
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of what people do not see in a name, or that moves what they see."""


class ManifestRefused(Exception):
    """A manifest, or the name of a file, can't be part of a signed model. The message says why and where."""


def read_strictly(data: bytes) -> dict[str, str]:
    """Return the digests by path, relative to the model's folder. Raises ManifestRefused."""
    if not data:
        raise ManifestRefused(f"{MANIFEST} is empty: it lists no file")
    if not data.endswith(b"\n"):
        raise ManifestRefused(f"{MANIFEST} does not end with a line feed, so it may have been cut short")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = data.count(b"\n", 0, error.start) + 1
        raise ManifestRefused(f"{MANIFEST}:{at}: a path is not UTF-8") from None
    listed: dict[str, str] = {}
    for number, line in enumerate(text[:-1].split("\n"), start=1):
        place = f"{MANIFEST}:{number}"
        path, digest = _entry(line, place)
        if path in listed:
            raise ManifestRefused(f"{place}: {path!a} is listed twice")
        listed[path] = digest
    _refuse_doubles(listed)
    if MANIFEST in listed or SIGNATURE in listed:
        raise ManifestRefused(f"{MANIFEST} lists itself or its signature, which come after it")
    return listed


def write_manifest(digests: Mapping[str, str]) -> bytes:
    """Return the manifest of files by path, which `sha256sum -c` takes.

    Raises ManifestRefused for a path that can't be in one.
    """
    for path in digests:
        check_path(path, "")
    _refuse_doubles(digests)
    lines = (f"{digests[path]}  {path}\n" for path in sorted(digests))
    return "".join(map(_escaped, lines)).encode()


def check_path(path: str, place: str) -> None:
    """Raise ManifestRefused if `path` is no plain path inside a folder, or has what no eye sees."""
    before = f"{place}: " if place else ""
    if any(unicodedata.category(character) in _UNSEEN for character in path):
        raise ManifestRefused(f"{before}the path {path!a} has invisible characters: rename the file")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ManifestRefused(f"{before}{path!a} is no plain path inside the model's folder")


def check_model_name(name: str) -> None:
    """Raise ManifestRefused if a model of this name can't be signed."""
    if not name or "/" in name or any(unicodedata.category(character) in _UNSEEN for character in name):
        raise ManifestRefused(f"the model's name {name!a} can't be signed: rename its folder")


def _escaped(line: str) -> str:
    """Return a line as `sha256sum` writes it. Of the characters that it escapes, names may have this one."""
    return "\\" + line.replace("\\", "\\\\") if "\\" in line else line


def _entry(line: str, place: str) -> tuple[str, str]:
    found = _LINE.fullmatch(line)
    if found is None:
        told = f"{place}: expected '<sha256>  <path>' as sha256sum writes it, got {line[:80]!a}"
        raise ManifestRefused(told)
    escaped, digest, path = found.groups()
    if escaped:
        path = _ESCAPED.sub(lambda each: _unescaped(each[1], place), path)
    check_path(path, place)
    return path, digest


def _unescaped(character: str, place: str) -> str:
    if character not in _ESCAPES:
        raise ManifestRefused(f"{place}: the path has an escape that sha256sum does not write")
    return _ESCAPES[character]


def _refuse_doubles(paths: Iterable[str]) -> None:
    """Raise ManifestRefused for two paths that some file systems, and all readers, take for one."""
    seen: dict[str, str] = {}
    for path in paths:
        other = seen.setdefault(unicodedata.normalize("NFKC", path), path)
        if other != path:
            raise ManifestRefused(f"{MANIFEST} lists {other!a} and {path!a}, which look alike: rename one")
