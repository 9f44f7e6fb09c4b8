"""Which rules a configuration breaks for certain, if some of its fields can't be read.

`engine.config.parse` leaves out what it can't read, and the rules are checked on the rest, so that an author
learns of everything at once. What is missing because it was left out is no mistake of its own. A comparison
with what was left out says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from engine.models.problems import Problem, within

# Fields that the rules about others look at. While such a field can't be read, what the rule says of the
# others is open.
_JUDGED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("name",),
    "backend": (
        "platform",
        "backend",
        "parameters",
        "input",
        "output",
        "instance_group",
        "ensemble_scheduling",
    ),
    "platform": ("platform", "backend", "input", "output", "instance_group", "ensemble_scheduling"),
    "default_model_filename": ("platform", "backend"),
    "max_batch_size": ("dynamic_batching", "sequence_batching", "input", "output"),
    "input": ("batch_input", "batch_output", "ensemble_scheduling", "output", "model_warmup"),
    "output": ("batch_output", "ensemble_scheduling", "input"),
    "ensemble_scheduling": ("platform", "input", "output"),
    "dynamic_batching": ("platform",),
    "sequence_batching": ("platform", "response_cache"),
    "instance_group": ("sequence_batching",),
    "version_policy": ("parameters",),
}
_TOP: Final = re.compile(r"\w+")
_INDEX: Final = re.compile(r"\[[0-9]+\]\Z")


def certain(problems: Iterable[Problem], spoilt: Iterable[str]) -> list[Problem]:
    """Return the problems of a partial configuration that hold whatever its `spoilt` fields should have been.

    A problem without a key is about something missing, which may well be there.
    """
    fields = {_INDEX.sub("", key) for key in spoilt}  # one element left out moves those behind it
    judged = {name for key in fields if _counts(key) for name in _JUDGED_BY.get(_top(key), ())}
    return [
        problem
        for problem in problems
        if problem.key
        and _top(problem.key) not in judged
        and not any(within(problem.key, field) or within(field, problem.key) for field in fields)
    ]


def _counts(key: str) -> bool:
    """Whether rules about other fields look at `key`: of a tensor, they want its name and nothing else."""
    return _top(key) not in ("input", "output") or "." not in key or key.endswith(".name")


def _top(key: str) -> str:
    found = _TOP.match(key)
    return found[0] if found else ""
