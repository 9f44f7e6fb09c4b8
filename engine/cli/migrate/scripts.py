"""Command lines of tritonserver in shell scripts and Dockerfiles. Pure: text in, words out.

Variables, substitutions and templates stay in the words, each as one with a `$`: what they stand for is not
known here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

PROGRAM: Final = "tritonserver"
OPEN: Final = "${...}"
"""What stands in a word for a template or a substitution."""

_LAUNCHER: Final = "launch_triton_server.py"
_IMAGE: Final = re.compile(r"[\w./:-]*tritonserver(?::[\w.-]+|@sha256:[0-9a-f]+)")
_NO_IMAGE: Final = re.compile(r"(?:^|/)bin/tritonserver")
_SUBSTITUTION: Final = re.compile(r"\{\{.*?\}\}|\$\([^()]*\)", re.DOTALL)
_DIRECTIVE: Final = re.compile(r"\s*(?:CMD|ENTRYPOINT)\s+(\[.*\])\s*", re.IGNORECASE)
_ITEM: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^,\[\]]+))\s*(?:,|$)""")
_LONGEST: Final = 200  # lines that one quoted text may go on for


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One command line: what follows `tritonserver`, and the image that it is to run in, if that is told.

    With `launcher`, TensorRT-LLM's script starts the servers, and there are no words.
    """

    words: tuple[str, ...] = ()
    line: int = 0
    image: str = ""
    launcher: bool = False


def unfilled(text: str) -> str:
    """Return text with one word in place of each template and substitution."""
    return _SUBSTITUTION.sub(lambda _: OPEN, text)


def image_in(text: str) -> str:
    """Return the name of Triton's image in a text, if it is there."""
    found = _IMAGE.search(text)
    return found[0] if found is not None and not _NO_IMAGE.search(found[0]) else ""


def flow(text: str) -> list[str]:
    """Return the words of a list such as `["tritonserver", "--log-verbose=1"]`."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    words = []
    for match in _ITEM.finditer(inner):
        quoted, single, bare = match.groups()
        if quoted is not None:
            words.append(re.sub(r"\\(.)", r"\1", quoted))
        elif single is not None or (bare or "").strip():
            words.append(single if single is not None else bare.strip())
    return words


def in_script(text: str) -> Iterator[Found]:
    """Yield the command lines in a shell script or a Dockerfile."""
    image = ""
    directives: list[str] = []
    began = 0
    for line, logical in _logical(unfilled(text)):
        image = image_in(logical) or image
        directive = _DIRECTIVE.fullmatch(logical)
        if directive is not None:
            began = began or line
            directives += flow(directive[1])
            continue
        yield from _in_words(split(logical), line, image)
    if directives:
        yield from in_list(directives, began, image)


def in_list(words: Sequence[str], line: int, image: str) -> Iterator[Found]:
    """Yield the command lines among the words of one process, which may be a shell's."""
    if words and words[0].startswith("--") and image:
        # The image's entry point is the server, or a chart's command that is not told here.
        yield Found(words=tuple(words), line=line, image=image)
        return
    yield from _in_words(words, line, image)


def split(text: str) -> list[str]:
    """Return the words and operators of a line as a shell would."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # a quote without its end
        return text.split()


def _in_words(words: Sequence[str], line: int, image: str) -> Iterator[Found]:
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if (" " in word or "\n" in word) and (PROGRAM in word or _LAUNCHER in word):
            # Another shell's text: told with the line where it begins.
            yield from (replace(each, line=line, image=each.image or image) for each in in_script(word))
        elif PurePosixPath(word).name == _LAUNCHER:
            yield Found(line=line, image=image, launcher=True)
        elif PurePosixPath(word).name == PROGRAM:
            end = next((i for i in range(at, len(words)) if _ends(words[i])), len(words))
            given = list(words[at:end])
            if end < len(words) and given and given[-1].isdigit() and words[end].startswith(">"):
                given.pop()  # the 2 of 2>&1
            if any(each.startswith("--") for each in given):
                yield Found(words=tuple(given), line=line, image=image)
            at = end


def _ends(word: str) -> bool:
    return bool(word) and set(word) <= set("();<>|&")


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) of lines that belong together.

    They end in a backslash, or in the middle of a quoted text.
    """
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        first, logical = at, ""
        while at < len(lines) and at - first < _LONGEST:
            line = lines[at]
            at += 1
            if not logical and line.lstrip().startswith("#"):
                break
            if line.lstrip().startswith("#") and logical.endswith(" "):
                continue  # a comment between lines that go on
            if line.rstrip().endswith("\\"):
                logical += line.rstrip()[:-1] + " "
                continue
            logical += line
            if not _quoting(logical):
                break
            logical += "\n"
        if logical.strip():
            yield first + 1, logical


def _quoting(text: str) -> bool:
    """Whether a quoted text has not ended yet."""
    try:
        shlex.split(text, comments=True)
    except ValueError as error:
        return "quotation" in str(error)
    return False
