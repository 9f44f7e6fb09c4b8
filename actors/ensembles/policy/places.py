"""The place in a sequence of what a step gave, and of an answer. Pure. Contract, scheduling.md section 7."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, InferRequest, Parameter

_ID, _START, _END = _KEYS = ("sequence_id", "sequence_start", "sequence_end")
_MAX_INT64: Final = 2**63 - 1
# Correlation ids are unsigned, integer parameters of a response are not.
_TO_UNSIGNED: Final = 2**64

Place: TypeAlias = tuple[int | str, int]
"""A correlation id, and the flags that go with it."""


def place_of(
    parameters: Mapping[str, Parameter], before: Place | None, request: InferRequest
) -> Place | None:
    """Return the place in a sequence of a response's tensors; its step had `before` (contract, section 7).

    Where one of the three parameters is given, a flag that is not given is off.
    """
    told = [parameters.get(key) for key in _KEYS]
    if all(each is None for each in told):
        return before
    identity, start, end = told
    flags = (FLAG_SEQUENCE_START if start else 0) | (FLAG_SEQUENCE_END if end else 0)
    if isinstance(identity, int | str) and not isinstance(identity, bool):
        return (identity + _TO_UNSIGNED if isinstance(identity, int) and identity < 0 else identity), flags
    return (request.correlation_id if before is None else before[0]), flags


def parameters_of(place: Place) -> Mapping[str, Parameter]:
    """Return the parameters of an answer that say which place in a sequence it has.

    Integer parameters are signed.
    """
    identity, flags = place
    if isinstance(identity, int) and identity > _MAX_INT64:
        identity -= _TO_UNSIGNED
    return {
        _ID: identity,
        _START: bool(flags & FLAG_SEQUENCE_START),
        _END: bool(flags & FLAG_SEQUENCE_END),
    }
