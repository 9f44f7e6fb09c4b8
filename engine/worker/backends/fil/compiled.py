"""Forests as machine code: tl2cgen writes C for a model, a C compiler makes a library of it.

The library is kept by the digest of the model's file, in a folder of the user that the worker runs as
(`tritium/forests` in XDG_CACHE_HOME, else in ~/.cache). It is used only if its scores of some rows are
those of treelite's own predictor: tl2cgen brings a treelite of its own, which is older.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import stat
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

import numpy as np

from engine.core.caches import cache_directory
from engine.worker.compilers import c_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from actors.values.tensors import Array
    from engine.worker.backends.fil.forest import Forest

MOST_NODES = 10_000
"""Nodes up to which `auto` compiles. gcc took 8 s of one core for 8,000 nodes, and 44 s for 38,000."""

_LAYOUT = 1  # of the library's one function; a change makes another library
_UNIT_NODES = 2500  # nodes in one file of C: the compiler's time grows faster than its length
_COMPILE_TIMEOUT = 600.0  # seconds
_ERROR_LIMIT = 400  # characters of what the compiler says
_SAMPLES = 64  # rows whose scores are compared
_ENTRY = """
#include "header.h"

/* Scores of `rows` rows of `columns` floats. A missing value is a NaN here, and -1 in `predict`. */
void tritium_scores(const float *x, long rows, long columns, long width, RESULT *scores) {
  union Entry row[COLUMNS];
  for (long i = 0; i < rows; ++i, x += columns, scores += width) {
    for (long j = 0; j < columns; ++j) {
      float value = x[j];
      if (value != value) row[j].missing = -1; else row[j].fvalue = value;
    }
    for (long k = 0; k < width; ++k) scores[k] = 0;
    predict(row, 0, scores);
  }
}
"""


class CannotCompile(Exception):
    """There will be no machine code of this forest here. The message says why, in a few words."""


class CompiledForest:
    """The scores of a forest by its own machine code."""

    def __init__(self, library: str, forest: Forest) -> None:
        """Load a library. Raises CannotCompile if it is none, or scores otherwise than the forest."""
        try:
            self._function = ctypes.CDLL(library).tritium_scores
        except (OSError, AttributeError) as error:
            raise CannotCompile(f"the library can't be loaded: {error}") from error
        self._function.restype = None
        self._function.argtypes = [ctypes.c_void_p, *[ctypes.c_long] * 3, ctypes.c_void_p]
        self._classes = forest.classes
        self._kind = forest.kind
        agree(self, forest)

    def scores(self, x: Array, threads: int = 1) -> Array:
        """Return the scores [rows, classes] of `x`, FP32 [rows, columns], on the calling thread."""
        del threads
        x = np.ascontiguousarray(x, np.float32)
        scores = np.empty((len(x), self._classes), self._kind)
        self._function(x.ctypes.data, *x.shape, self._classes, scores.ctypes.data)
        return scores


def compiled(forest: Forest, *, wanted: str, threads: int, phase: Callable[[str], None]) -> CompiledForest:
    """Return machine code of a forest, from the cache if it is there, made with `threads` compilers at once.

    `wanted` is "on" or "auto", which leaves large forests alone. Raises CannotCompile.
    """
    if wanted == "auto" and forest.nodes > MOST_NODES:
        raise CannotCompile(
            f"it has {forest.nodes} nodes, and more than {MOST_NODES} take long to compile"
            " (parameter tritium.fil.compile 'on' compiles it nevertheless)"
        )

    def build(library: str) -> None:
        phase("compiling")
        _build(forest, library, threads)

    return CompiledForest(kept(key_of(forest.path), build), forest)


def kept(name: str, build: Callable[[str], None]) -> str:
    """Return the path of a library in the user's cache; `build` makes it if it is not there.

    Raises CannotCompile.
    """
    folder = os.path.join(cache_directory(os.environ), "forests")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
            raise CannotCompile(f"{folder} belongs to another user, or others may write to it")
        library = os.path.join(folder, f"{name}.so")
        with _alone(f"{library}.lock"):
            if not os.path.exists(library):
                build(library)
    except OSError as error:
        raise CannotCompile(f"the cache {folder} can't be used: {error.strerror or error}") from error
    return library


class Scorer(Protocol):
    """What gives the scores of a forest."""

    def scores(self, x: Array, threads: int) -> Array:
        """Return the scores [rows, classes] of `x`, FP32 [rows, columns]."""


def agree(scorer: Scorer, forest: Forest) -> None:
    """Raise CannotCompile if a forest's machine code scores otherwise than treelite's own predictor."""
    rows = _samples(forest.columns)
    if not np.allclose(scorer.scores(rows, 1), forest.scores(rows, 1), rtol=1e-6, atol=1e-7, equal_nan=True):
        raise CannotCompile("its scores differ from those of treelite's own predictor")


def key_of(path: str) -> str:
    """Return the digest of a model's file, and of what makes code of it."""
    try:
        makers = f"{_LAYOUT} {version('treelite')} {version('tl2cgen')} {os.uname().machine}"
    except ModuleNotFoundError:
        raise CannotCompile("the package 'tl2cgen' is not installed (extra 'fil-compile')") from None
    digest = hashlib.sha256(makers.encode())
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Keep the workers of one model from compiling it several times at once."""
    import fcntl

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(forest: Forest, library: str, threads: int) -> None:
    import tl2cgen

    with tempfile.TemporaryDirectory(dir=os.path.dirname(library), prefix="making-") as folder:
        units = max(1, min(forest.trees, forest.nodes // _UNIT_NODES))
        try:
            tl2cgen.generate_c_code(forest.model, folder, {"parallel_comp": units})
        except tl2cgen.TL2cgenError as error:
            raise CannotCompile(f"tl2cgen: {' '.join(str(error).split())[:_ERROR_LIMIT]}") from error
        entry = os.path.join(folder, "entry.c")
        with open(entry, "w") as file:
            file.write(_ENTRY)
        sources = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".c")]
        kind = "double" if forest.wide else "float"
        options = ["-std=c99", "-O1", "-fPIC", f"-DRESULT={kind}", f"-DCOLUMNS={forest.columns}"]
        with ThreadPoolExecutor(threads) as pool:
            list(
                pool.map(lambda source: run_compiler([*options, "-c", source, "-o", f"{source}.o"]), sources)
            )
        made = f"{folder}/forest.so"
        run_compiler(["-shared", "-o", made, *(f"{source}.o" for source in sources), "-lm"])
        os.replace(made, library)


def run_compiler(arguments: Sequence[str]) -> None:
    """Run the C compiler. Raises CannotCompile where there is none, or it fails."""
    compiler = c_compiler(os.environ)
    if not compiler:
        named = os.environ.get("CC", "")
        raise CannotCompile(
            f"there is no C compiler '{named}', which CC names"
            if named
            else "there is no C compiler (gcc) here"
        )
    command = [compiler, *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMPILE_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotCompile(f"the C compiler did not end within {_COMPILE_TIMEOUT:g} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[:_ERROR_LIMIT]
        raise CannotCompile(f"the C compiler failed with status {done.returncode}: {said}")


def _samples(columns: int) -> Array:
    """Return rows of numbers of all sizes, whole ones for categories, and missing values."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(_SAMPLES, columns)) * 10.0 ** rng.integers(-2, 4, (_SAMPLES, columns))
    rows[::3] = np.abs(np.round(rows[::3]))
    rows[rng.random(rows.shape) < 0.1] = np.nan
    return rows.astype(np.float32)
