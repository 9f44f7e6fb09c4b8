"""Which metrics and labels a PromQL expression names.

It reads what the board and the alerts are written in, and is no parser of the whole language: `promtool`
checks the rest.
"""

from __future__ import annotations

import re
from typing import Final

_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_COMMENT: Final = re.compile(r"#[^\n]*")
_RANGE: Final = re.compile(r"\[[^\]]*\]")
_MATCHERS: Final = re.compile(r"\{([^}]*)\}")
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_LABEL: Final = re.compile(r"([A-Za-z_]\w*)\s*(?:=~|!~|!=|=)")
_NAME: Final = re.compile(r"(?<![\w.$:])[A-Za-z_:][\w:]*(?!\s*\()(?![\w:])")
_WORDS: Final = frozenset(
    {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "offset", "bool"}
    | {"inf", "nan"}
)
_SUFFIXES: Final = ("_bucket", "_sum", "_count")


def metrics_in(expression: str) -> frozenset[str]:
    """Return the names of the series that `expression` reads."""
    text = _TEXT.sub('""', _COMMENT.sub("", expression))
    text = _GROUPING.sub(" ", _MATCHERS.sub(" ", _RANGE.sub(" ", text)))
    return frozenset(name for name in _NAME.findall(text) if name.lower() not in _WORDS)


def labels_in(expression: str) -> frozenset[str]:
    """Return the labels that `expression` selects or groups by."""
    text = _TEXT.sub('""', _COMMENT.sub("", expression))
    selected = {label for matchers in _MATCHERS.findall(text) for label in _LABEL.findall(matchers)}
    grouped = {label.strip() for labels in _GROUPING.findall(text) for label in labels.split(",")}
    return frozenset((selected | grouped) - {""})


def family_of(name: str, families: frozenset[str]) -> str | None:
    """Return the family among `families` that the series `name` belongs to; None for none."""
    if name in families:
        return name
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and name.removesuffix(suffix) in families:
            return name.removesuffix(suffix)
    return None
