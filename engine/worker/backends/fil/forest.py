"""A forest that treelite has read from a file: its scores by treelite's own predictor (GTIL)."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.worker.backends.base import LoadError
from engine.worker.backends.fil import formats
from engine.worker.backends.fil.lightgbm_text import fault_of
from engine.worker.backends.fil.structure import MAJOR, Structure, Unsound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.values.tensors import Array
    from engine.worker.backends.fil.parameters import Options

_PREFIX = re.compile(r"\[\d\d:\d\d:\d\d\] \S+: (?:Check failed: )?")
_TEXT_LIMIT = 600  # characters of what treelite says
_MEMORY_FACTOR = 64  # a model takes at most so many times its file's bytes while it is read …
_MEMORY_BASE = 512 * 1024 * 1024  # … and this


class Forest:
    """A sound model in treelite's memory.

    It takes `columns` features and gives `classes` scores a row: 1 for a regressor, and for a binary
    classifier with one score. `nodes` are all trees' together.
    """

    def __init__(self, model: Any, structure: Structure, path: str, format_: str) -> None:
        self.model = model
        self.path = path
        self.format = format_
        self.columns, self.trees = structure.columns, structure.trees
        self.wide = model.output_type == "float64"
        self.kind = np.float64 if self.wide else np.float32
        self.targets, self.classes, self.nodes = structure.targets, structure.classes, structure.nodes
        self._structure = structure
        self._granted: dict[int, int] = {}

    def depth(self) -> int:
        """Return how many tests the longest way down a tree has."""
        return self._structure.depth()

    def scores(self, x: Array, threads: int) -> Array:
        """Return the scores [rows, classes] of `x`, FP32 [rows, columns], in the model's own precision."""
        from treelite import gtil

        scores: Array = gtil.predict(self.model, x, nthread=self._threads(threads))
        return scores.reshape(len(x), self.classes)

    def leaves(self, x: Array, threads: int) -> Array:
        """Return the number of the leaf that each row ends in, INT32 [rows, trees]."""
        from treelite import gtil

        leaves: Array = gtil.predict_leaf(self.model, x, nthread=self._threads(threads))
        return leaves.astype(np.int32).reshape(len(x), self.trees)

    def _threads(self, wanted: int) -> int:
        """Return what to ask treelite for. It refuses more threads than OpenMP has; 0 takes those."""
        from treelite import gtil
        from treelite.core import TreeliteError

        if wanted not in self._granted:
            row = np.zeros((1, self.columns), np.float32)
            try:
                gtil.predict(self.model, row, nthread=wanted)
                self._granted[wanted] = wanted
            except TreeliteError:
                self._granted[wanted] = 0
        return self._granted[wanted]


def read_forest(path: str, options: Options, *, bounded: bool) -> Forest:
    """Read a file, by what is in it. `bounded` refuses memory out of proportion to it, to the whole process.

    Raises LoadError, with treelite's text where that could not read it.
    """
    with open(path, "rb") as file:
        head = file.read(formats.HEAD)
    mistake = formats.mistaken(head, options.model_type)
    if mistake:
        raise LoadError(f"'{os.path.basename(path)}' can't be read: {mistake}")
    found = formats.recognise(head)
    assert found is not None  # what is not mistaken was recognised
    from treelite.core import TreeliteError

    name = os.path.basename(path)
    limit = _bounded_memory(os.path.getsize(path)) if bounded else contextlib.nullcontext()
    try:
        with limit:
            structure = _checked_file(path, found)
            model = _read(path, found, options)
            return Forest(model, structure or Structure(model.serialize_bytes()), path, found)
    except Unsound as error:
        raise LoadError(f"'{name}' can't be read as {found}: {error}{_hint(path, found)}") from error
    except MemoryError as error:
        told = "it wants more memory than a file of its size can need"
        raise LoadError(f"'{name}' can't be read as {found}: {told}{_hint(path, found)}") from error
    except (TreeliteError, UnicodeDecodeError) as error:
        text = " ".join(_PREFIX.sub("", str(error)).split())[:_TEXT_LIMIT]
        raise LoadError(f"'{name}' can't be read as {found}: {text}{_hint(path, found)}") from error


def _checked_file(path: str, found: str) -> Structure | None:
    """Look at a file before treelite does, as far as it would believe what it reads. Raises Unsound."""
    if found not in (formats.LIGHTGBM, formats.CHECKPOINT):
        return None
    with open(path, "rb") as file:
        content = file.read()
    if found == formats.LIGHTGBM:
        fault = fault_of(content)
        if fault:
            raise Unsound(fault)
        return None
    # One of an older version is looked at when treelite has read it.
    return Structure(content) if content[:4] == MAJOR.to_bytes(4, "little") else None


def _read(path: str, found: str, options: Options) -> Any:
    import treelite

    frontend = treelite.frontend
    if found == formats.CHECKPOINT:
        return treelite.Model.deserialize(path)
    if found == formats.LIGHTGBM:
        return frontend.load_lightgbm_model(path)
    if found == formats.XGBOOST_BINARY:
        return frontend.load_xgboost_model_legacy_binary(path)
    choice = "json" if found == formats.XGBOOST_JSON else "ubjson"
    return frontend.load_xgboost_model(path, format_choice=choice, allow_unknown_field=options.unknown_fields)


def _hint(path: str, found: str) -> str:
    with open(path, "rb") as file:
        linear = found != formats.LIGHTGBM and b"gblinear" in file.read(1 << 20)
    if linear:
        return " (its booster is 'gblinear', which has no trees: this backend serves forests)"
    return " (damaged or cut short? compare its checksum with the original's)"


@contextlib.contextmanager
def _bounded_memory(nbytes: int) -> Iterator[None]:
    """Let allocations fail that a file of `nbytes` can't need; a forged count would fill the machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _private_bytes() + _MEMORY_FACTOR * nbytes + _MEMORY_BASE
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _private_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * resource.getpagesize()
