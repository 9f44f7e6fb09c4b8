"""What the file of a forest tells of itself: how many columns it wants, and whether it classifies.

A wrong number costs a clear error of the backend.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from engine.repository.bare.policy.formats import (
    LIGHTGBM,
    TREELITE,
    XGBOOST_JSON,
    XGBOOST_UBJ,
    ModelFormat,
)
from engine.worker.backends.fil.formats import TREELITE_HEAD

_JSON_COLUMNS: Final = re.compile(rb'"num_feature"\s{0,8}:\s{0,8}"(\d{1,9})"')
_JSON_GOAL: Final = re.compile(rb'"objective"\s{0,8}:\s{0,8}\{\s{0,40}"name"\s{0,8}:\s{0,8}"([a-z:_]{1,40})"')
_UBJ_TEXT: Final = rb"S(?:[iU].|I..|l.{4}|L.{8})"
_UBJ_COLUMNS: Final = re.compile(rb"num_feature" + _UBJ_TEXT + rb"(\d{1,9})", re.DOTALL)
_UBJ_GOAL: Final = re.compile(rb"objective\{.{1,10}name" + _UBJ_TEXT + rb"([a-z:_]{1,40})", re.DOTALL)
_LGB_COLUMNS: Final = re.compile(rb"^max_feature_idx=(\d{1,9})\r?$", re.MULTILINE)
_LGB_GOAL: Final = re.compile(rb"^objective=([a-z_]{1,40})", re.MULTILINE)
_CLASSIFYING: Final = frozenset(
    (b"binary", b"multiclass", b"multiclassova", b"cross_entropy", b"multi:softmax", b"multi:softprob")
)

_BINARY, _MULTICLASS = 0, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """`columns` is 0, and `classifies` None, if the file does not tell."""

    columns: int = 0
    classifies: bool | None = None


def forest_of(form: ModelFormat, head: bytes, tail: bytes) -> Forest | None:
    """Return what a file tells that begins with `head` and ends with `tail`; None if it is no forest."""
    if form is TREELITE:
        return _of_checkpoint(head)
    if form is LIGHTGBM:
        return _of_texts(head, _LGB_COLUMNS, _LGB_GOAL, beyond=1)
    if form is XGBOOST_JSON:
        return _of_texts(tail + head, _JSON_COLUMNS, _JSON_GOAL)
    if form is XGBOOST_UBJ:
        return _of_texts(tail + head, _UBJ_COLUMNS, _UBJ_GOAL)
    return Forest() if form.tag == "xgboost" else None


def _of_texts(text: bytes, columns: re.Pattern[bytes], goal: re.Pattern[bytes], beyond: int = 0) -> Forest:
    width, said = columns.search(text), goal.search(text)
    return Forest(
        columns=int(width[1]) + beyond if width is not None else 0,
        classifies=None if said is None else said[1] in _CLASSIFYING or said[1].startswith(b"binary:"),
    )


def _of_checkpoint(head: bytes) -> Forest:
    *_, columns, task = TREELITE_HEAD.unpack_from(head)
    return Forest(columns=columns, classifies=task in (_BINARY, _MULTICLASS))
