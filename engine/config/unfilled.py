"""Places of a template that were not filled in: `${name}`.

The configurations that come with TensorRT-LLM are templates (contract, llm.md section 4.2). In quotes, such a
place means "not set", and the file is a configuration. Without quotes it is none.
"""

from __future__ import annotations

import re
from typing import Final

from engine.models.problems import Problem, Severity
from protocols.kserve.proto.model_config_pb2 import ModelConfig

_PLACE: Final = re.compile(r"\$\{\w*\}\Z")
_SHOWN: Final = 5

REMEDY: Final = "fill the template in: write a value in its place, or leave the field out"


def is_unfilled(value: str) -> bool:
    """Whether a text is a place of a template and nothing else."""
    return value.startswith("${") and _PLACE.match(value) is not None


def unfilled(place: str, field: str = "") -> str:
    """Return what to say of a place that is not in quotes."""
    what = f"the value of '{field}'" if field else "a field"
    return f"{what} is {place}, a place of a template that was not filled in"


def clear_unfilled(config: ModelConfig) -> list[Problem]:
    """Take out in place what is not set, and return warnings.

    Parameters stay as they are written: their readers, the models, know such places too. For settings of the
    server they count as absent (`set_parameters`).
    """
    problems = []
    if is_unfilled(config.backend):
        problems.append(_warning(f"'backend' is {config.backend}, and counts as not set", "backend"))
        config.backend = ""
    places = [key for key in sorted(config.parameters) if is_unfilled(config.parameters[key].string_value)]
    if places:
        more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        problems.append(
            _warning(
                f"parameters that a template left open count as not set: {', '.join(places[:_SHOWN])}{more}",
                f'parameters["{places[0]}"]',
            )
        )
    return problems


def set_parameters(config: ModelConfig) -> dict[str, str]:
    """Return the parameters that have a value."""
    said = {key: config.parameters[key].string_value for key in config.parameters}
    return {key: value for key, value in said.items() if not is_unfilled(value)}


def _warning(message: str, key: str) -> Problem:
    return Problem(severity=Severity.WARNING, message=message, key=key, hint=REMEDY)
