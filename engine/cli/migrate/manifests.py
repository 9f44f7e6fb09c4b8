"""Command lines of tritonserver in Compose files, Kubernetes manifests and charts. Pure: text in, words out.

It reads as much of YAML as such files use where they say what is run: mappings, lists in both forms, quoted
and block texts. Templates need not be filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from engine.cli.migrate.scripts import Found, flow, image_in, in_list, split, unfilled

_ORDER: Final = ("entrypoint", "serverCommand", "command", "serverArgs", "args")
"""Keys that say what is run, in the order of its words. Compose has the first, Kubernetes the others."""

_IMAGES: Final = frozenset({"image", "imageName"})
_KEY: Final = re.compile(r"(?P<indent> *(?:- +)*)(?P<key>[\"']?[\w./-]+[\"']?):(?:\s+(?P<value>.*))?")
_ENTRY: Final = re.compile(r"( *)- +(.*)")
_BLOCK: Final = re.compile(r"[|>][0-9+-]*")
_LOOKS: Final = re.compile(
    r"^\s*(?:- )?(?:apiVersion|kind|services|containers|image|imageName|command|args|serverArgs|entrypoint):",
    re.MULTILINE,
)


@dataclass(slots=True)
class _Mapping:
    """One mapping of the file, as far as it says what is run."""

    indent: int
    words: dict[str, list[str]] = field(default_factory=dict)
    image: str = ""
    line: int = 0


def is_manifest(text: str) -> bool:
    """Whether a text looks like YAML that says what is run."""
    return _LOOKS.search(text) is not None


def in_manifest(text: str) -> Iterator[Found]:
    """Yield the command lines in a file of YAML, templates and all."""
    lines = [_without_comment(line) for line in unfilled(text).splitlines()]
    for mapping in _mappings(lines):
        words = [word for key in _ORDER for word in mapping.words.get(key, ())]
        if words:
            yield from in_list(words, mapping.line, mapping.image or image_in(text))


def _mappings(lines: Sequence[str]) -> Iterator[_Mapping]:
    stack: list[_Mapping] = []
    at = 0
    while at < len(lines):
        match = _KEY.fullmatch(lines[at])
        at += 1
        if match is None:
            continue
        indent, key = len(match["indent"]), match["key"].strip("\"'")
        while stack and (
            stack[-1].indent > indent or (stack[-1].indent == indent and "-" in match["indent"])
        ):
            yield stack.pop()
        if not stack or stack[-1].indent < indent:
            stack.append(_Mapping(indent))
        mapping = stack[-1]
        if key in _IMAGES and match["value"]:
            mapping.image = match["value"].strip().strip("\"'")
        elif key in _ORDER:
            mapping.line = mapping.line or at
            mapping.words[key], at = _value(match["value"] or "", lines, at, indent)
    yield from reversed(stack)


def _value(value: str, lines: Sequence[str], at: int, indent: int) -> tuple[list[str], int]:
    """Return the words of a value that begins behind a key, and the line after it."""
    value = value.strip()
    if value.startswith("["):
        while not value.endswith("]") and at < len(lines):
            value += " " + lines[at].strip()
            at += 1
        return flow(value), at
    if _BLOCK.fullmatch(value):
        text, at = _block(lines, at, indent, folded=value[0] == ">")
        return [text] if "\n" in text.strip() else split(text), at
    if value:
        while (
            at < len(lines)
            and lines[at].strip()
            and _indent(lines[at]) > indent
            and not _ENTRY.match(lines[at])
        ):
            value += " " + lines[at].strip()  # a text that goes on
            at += 1
        return split(_unquoted(value)), at
    words: list[str] = []
    while at < len(lines):
        entry = _ENTRY.fullmatch(lines[at])
        if not lines[at].strip() or lines[at].strip().startswith("$"):  # a template on a line of its own
            at += 1
            continue
        if entry is None or len(entry[1]) < indent or _KEY.fullmatch(entry[2]):
            break
        item, at = entry[2].strip(), at + 1
        if _BLOCK.fullmatch(item):
            item, at = _block(lines, at, len(entry[1]), folded=item[0] == ">")
        else:
            while at < len(lines) and _indent(lines[at]) > len(entry[1]) and lines[at].strip():
                item += " " + lines[at].strip()
                at += 1
        words.append(_unquoted(item))
    return words, at


def _block(lines: Sequence[str], at: int, indent: int, *, folded: bool) -> tuple[str, int]:
    taken = []
    while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > indent):
        taken.append(lines[at].strip())
        at += 1
    return (" " if folded else "\n").join(taken).strip(), at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        inner = text[1:-1]
        return inner.replace("''", "'") if text[0] == "'" else re.sub(r"\\(.)", r"\1", inner)
    return text


def _without_comment(line: str) -> str:
    """Return a line of YAML without a comment of its own or at its end."""
    if line.lstrip().startswith("#"):
        return ""
    return re.sub(r"\s#\s.*$", "", line)
