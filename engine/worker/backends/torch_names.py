"""Which configured tensor is which argument or result of a PyTorch model.

Contract: model_config.md section 8.2.

Decisions over names only; nothing here knows torch. A *path* says where an input goes or an output is found:
the keys and indices that lead to it from the arguments, or from the returned value. An `int` in place of a
path counts the leaves.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from engine.worker.backends.base import LoadError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Union

    Path = tuple[Union[int, str], ...]

_INDEXED = re.compile(r".+__(\d{1,4})")
_ARGUMENT = re.compile(r"(ARGS|KWARGS)((?:\[[^\]\[]+\])+)")
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


def package_inputs(names: Sequence[str], leaves: Sequence[Path], model: str) -> list[int]:
    """Return which argument each input of a torch.export program or an AOTInductor package is.

    `leaves` are the paths of its tensors from `ARGS` and `KWARGS` on, as `argument_paths` gives them. Inputs
    go by `ARGS[i]` and `KWARGS[name]`, with more keys behind them where arguments are nested, else by
    `<name>__<index>` over the leaves, else in their order. Raises LoadError if not exactly these are given.
    """
    if len(names) != len(leaves):
        raise _counts(model, names, len(leaves))
    matches = [_ARGUMENT.fullmatch(name) for name in names]
    if not all(matches):
        indices = _indices(names)
        return _checked(indices, names, len(leaves), model) if indices else list(range(len(names)))
    known = [tuple(map(str, leaf)) for leaf in leaves]
    asked = [(match[1], *map(str, _keys(match[2]))) for match in matches if match]
    if set(asked) != set(known):
        spelt = ", ".join(str(leaf[0]) + "".join(f"[{key}]" for key in leaf[1:]) for leaf in leaves)
        raise LoadError(
            f"unable to load model '{model}', inputs {', '.join(names)} do not name its arguments: {spelt}"
        )
    return [known.index(path) for path in asked]


def argument_paths(spec: str) -> list[Path]:
    """Return the paths of all tensors that a callable takes, in order.

    `spec` describes positional and keyword arguments, as torch's `treespec_dumps` writes it.
    """
    positional, keyword = json.loads(spec)[1]["children_spec"]
    return [*_leaves(positional, ("ARGS",)), *_leaves(keyword, ("KWARGS",))]


def _leaves(node: Mapping[str, Any], path: Path) -> Iterator[Path]:
    if node["type"] is None:
        yield path
        return
    children = node["children_spec"]
    context = node["context"]
    named = json.loads(context) if isinstance(context, str) else context
    # A dict has its keys there; a list and a tuple have nothing.
    keys = named if isinstance(named, list) and len(named) == len(children) else range(len(children))
    for key, child in zip(keys, children):
        yield from _leaves(child, (*path, key))


def output_paths(names: Sequence[str]) -> list[int | Path]:
    """Return where each output lies: by `RESULT[...]`, else by `<name>__<index>`, else in order."""
    matches = [_RESULT.fullmatch(name) for name in names]
    if all(matches):
        return [_keys(match[1]) for match in matches if match]
    return [*(_indices(names) or range(len(names)))]


def _keys(written: str) -> Path:
    return tuple(int(key[1]) if key[1] else key[2] for key in _KEY.finditer(written))


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
