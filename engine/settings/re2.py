"""Regular expressions as Triton takes them, which are RE2's, compiled by Python's `re`.

Most of RE2's syntax is Python's too. The rest is translated: flags for the rest of a group (`(?-i)`), classes
such as `[:alpha:]`, `\\Q...\\E`, `\\z`, `(?<name>...)` and `\\x{...}`. What has no counterpart is refused,
with what to write instead.
"""

from __future__ import annotations

import re
from typing import Final

_FLAGS: Final = re.compile(r"\(\?([imsU]*)(?:-([imsU]*))?([:)])")
_POSIX: Final = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_POSIX_CLASS: Final = re.compile(r"\[:(\^?)(\w+):\]")
_CODE_POINT: Final = re.compile(r"\\x\{([0-9A-Fa-f]{1,6})\}")
_CURES: Final = {
    "p": "Unicode classes such as \\p{L} are not supported: write the ranges, as in [A-Za-z]",
    "P": "Unicode classes such as \\P{L} are not supported: write the ranges, as in [^A-Za-z]",
    "C": "\\C, one byte, is not supported: write (?s:.)",
}


def compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return RE2's `pattern`, compiled.

    Raises re.error, whose text says what is wrong and, where it can, what to write.
    """
    return re.compile(_translated(pattern), flags)


def _translated(pattern: str) -> str:
    out: list[str] = []
    # For each open group the flags that were set within it, which a bar ends and takes up again.
    groups: list[list[str]] = [[]]
    at = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at = _escape(pattern, at, out)
        elif pattern[at] == "[":
            at = _class(pattern, at, out)
        elif (flags := _FLAGS.match(pattern, at)) is not None:
            opening = _opening(pattern, flags)
            if flags[3] == ":":
                groups.append([])
                out.append(opening)
            elif opening:
                groups[-1].append(opening)
                out.append(opening)
            at = flags.end()
        elif pattern.startswith("(?<", at) and pattern[at + 3 : at + 4] not in ("=", "!"):
            groups.append([])
            out.append("(?P<")
            at += 3
        else:
            _plain(pattern[at], groups, out)
            at += 1
    out.append(")" * len(groups[0]))
    return "".join(out)


def _plain(letter: str, groups: list[list[str]], out: list[str]) -> None:
    within = groups[-1]
    if letter == "(":
        groups.append([])
    elif letter == "|" and within:
        letter = ")" * len(within) + "|" + "".join(within)
    elif letter == ")" and len(groups) > 1:
        letter = ")" * (len(groups.pop()) + 1)
    out.append(letter)


def _opening(pattern: str, flags: re.Match[str]) -> str:
    """Return Python's opening of a group under `flags`; empty if there are none for the rest of one."""
    on, off = flags[1], flags[2] or ""
    if "U" in on + off:
        raise re.error("the flag U is not supported: write *? for *, and * for *?", pattern, flags.start())
    if not on and not off:
        return "(?:" if flags[3] == ":" else ""
    return f"(?{on}{'-' if off else ''}{off}:"


def _escape(pattern: str, at: int, out: list[str]) -> int:
    """Translate the escape at `at`, and return the place behind it."""
    kind = pattern[at + 1 : at + 2]
    if kind == "Q":
        end = pattern.find("\\E", at)
        end = len(pattern) if end < 0 else end
        out.append(re.escape(pattern[at + 2 : end]))
        return end + 2
    if kind in _CURES:
        raise re.error(_CURES[kind], pattern, at)
    code_point = _CODE_POINT.match(pattern, at)
    if code_point is not None:
        if int(code_point[1], 16) > 0x10FFFF:
            raise re.error("no character has that number", pattern, at)
        out.append(re.escape(chr(int(code_point[1], 16))))
        return code_point.end()
    out.append("\\Z" if kind == "z" else pattern[at : at + 2])
    return at + 2


def _class(pattern: str, at: int, out: list[str]) -> int:
    """Translate the bracketed class at `at`, and return the place behind it."""
    start = at
    at += 1
    out.append("[")
    if pattern[at : at + 1] == "^":
        out.append("^")
        at += 1
    if pattern[at : at + 1] == "]":
        out.append("\\]")
        at += 1
    while at < len(pattern) and pattern[at] != "]":
        named = _POSIX_CLASS.match(pattern, at)
        if named is not None:
            if named[2] not in _POSIX:
                raise re.error(
                    f"there is no class [:{named[2]}:]; there are {', '.join(_POSIX)}", pattern, at
                )
            if named[1]:
                raise re.error(f"write [^[:{named[2]}:]] for a class without [:{named[2]}:]", pattern, at)
            out.append(_POSIX[named[2]])
            at = named.end()
        elif pattern[at] == "\\":
            at = _escape(pattern, at, out)
        else:
            out.append("\\[" if pattern[at] == "[" else pattern[at])
            at += 1
    if at >= len(pattern):
        raise re.error("a class that begins with [ does not end", pattern, start)
    out.append("]")
    return at + 1
