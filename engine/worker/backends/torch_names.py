"""Which configured tensor is which argument or result of a PyTorch model.

Contract: model_config.md section 8.2.

Decisions over names only; nothing here knows torch. A *place* says where an input goes: a position among the
positional arguments, or a keyword. A *path* says where an output is found: the keys and indices that lead
from the returned value to it. An `int` in place of a path counts the returned value's leaves.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from engine.worker.backends.base import LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Union

    Place = Union[int, str]
    Path = tuple[Union[int, str], ...]

_INDEXED = re.compile(r".+__(\d{1,4})")
_ARGUMENT = re.compile(r"(ARGS|KWARGS)\[\s*(?:(\d{1,4})|['\"]?([^\]\['\"]+)['\"]?)\s*\]")
_RESULT = re.compile(r"RESULT((?:\[[^\]\[]+\])*)")
_KEY = re.compile(r"\[\s*(?:(-?\d{1,4})|['\"]?([^\]\['\"]+)['\"]?)\s*\]")


def script_inputs(names: Sequence[str], arguments: Sequence[str], model: str) -> list[int]:
    """Return the position of each input of a TorchScript model whose forward takes `arguments`.

    Inputs go by argument name if all names are arguments, else by `<name>__<index>` if all are spelt so, else
    in order. Raises LoadError for an index that does not exist or is used twice, and for more inputs than
    arguments.
    """
    if len(names) > len(arguments):
        raise _counts(model, names, len(arguments))
    if all(name in arguments for name in names):
        return [list(arguments).index(name) for name in names]
    indices = _indices(names)
    return _checked(indices, names, len(arguments), model) if indices else list(range(len(names)))


def package_inputs(names: Sequence[str], positional: int, keywords: Sequence[str], model: str) -> list[Place]:
    """Return the place of each input of a torch.export program or an AOTInductor package.

    Inputs go by `ARGS[i]` and `KWARGS[name]`, else by `<name>__<index>` over positional and then keyword
    arguments, else in that order. Raises LoadError if not exactly these arguments are given.
    """
    order: list[Place] = [*range(positional), *keywords]
    if len(names) != len(order):
        raise _counts(model, names, len(order))
    matches = [_ARGUMENT.fullmatch(name) for name in names]
    if all(matches):
        places: list[Place] = [
            int(match[2]) if match[1] == "ARGS" and match[2] else match[2] or match[3]
            for match in matches
            if match
        ]
    else:
        indices = _indices(names)
        if not indices:
            return order
        places = [order[index] for index in _checked(indices, names, len(order), model)]
    if set(places) != set(order):
        known = ", ".join([f"ARGS[{i}]" for i in range(positional)] + [f"KWARGS[{key}]" for key in keywords])
        raise LoadError(
            f"unable to load model '{model}', inputs {', '.join(names)} do not name its arguments: {known}"
        )
    return places


def output_paths(names: Sequence[str]) -> list[int | Path]:
    """Return where each output lies: by `RESULT[...]`, else by `<name>__<index>`, else in order."""
    matches = [_RESULT.fullmatch(name) for name in names]
    if all(matches):
        return [
            tuple(int(key[1]) if key[1] else key[2] for key in _KEY.finditer(match[1]))
            for match in matches
            if match
        ]
    return [*(_indices(names) or range(len(names)))]


def _indices(names: Sequence[str]) -> list[int]:
    """Return the indices of names that all end in `__<index>`; nothing if one does not."""
    matches = [_INDEXED.fullmatch(name) for name in names]
    return [int(match[1]) for match in matches if match] if all(matches) else []


def _checked(indices: list[int], names: Sequence[str], count: int, model: str) -> list[int]:
    for name, index in zip(names, indices):
        if index >= count:
            raise LoadError(
                f"unable to load model '{model}', input '{name}' stands for argument {index}, model provides {count}"
            )
        if indices.count(index) > 1:
            raise LoadError(f"unable to load model '{model}', several inputs stand for argument {index}")
    return indices


def _counts(model: str, names: Sequence[str], provided: int) -> LoadError:
    return LoadError(
        f"unable to load model '{model}', configuration expects {len(names)} inputs, model provides {provided}"
    )
