"""What models are called that had no names but those of their files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

_GENERAL: Final = frozenset(
    (
        *(
            "model",
            "saved_model",
            "tf_model",
            "openvino_model",
            "pytorch_model",
            "model_final",
            "frozen_graph",
        ),
        *("weights", "checkpoint", "network", "net", "export", "inference", "__model__", "best", "last"),
    )
)
_LONGEST: Final = 100  # characters


def wished_name(stem: str, folder: str) -> str:
    """Return a valid name for a model in the file `stem` of `folder`: the file's if it says anything."""
    name = stem if stem.lower() not in _GENERAL and not stem.isdigit() else folder
    return _valid(name) or _valid(stem) or "model"


def _valid(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_-")[:_LONGEST]


def distinct(wishes: Sequence[tuple[str, str]]) -> list[str]:
    """Return a name for each (name, tag), all different.

    Those who wish for the same one get their tag after it, and where that is not enough, a number. Names that
    differ in case only count as the same: some file systems have it so.
    """
    often = Counter(name.lower() for name, _ in wishes)
    taken: set[str] = {name.lower() for name, _ in wishes if often[name.lower()] == 1}
    given: list[str] = []
    for name, tag in wishes:
        chosen = name
        if often[name.lower()] > 1:
            chosen, count = f"{name}_{tag}", 1
            while chosen.lower() in taken:
                count += 1
                chosen = f"{name}_{tag}_{count}"
        taken.add(chosen.lower())
        given.append(chosen)
    return given
