"""Forests of XGBoost, LightGBM and scikit-learn, as Triton's FIL backend serves them, on a CPU.

Theory of operation. treelite reads the file, whatever library wrote it, and its predictor (GTIL) gives the
scores of all rows of a batch in one call. Machine code of the forest (`compiled`), or a compiled walk over
its nodes (`walking`), takes its place where a C compiler is there. Scores are in the model's own precision,
and become FP32 in the answer. The contract is section 6 of backends.md, with two differences that
docs/backends/fil.md names: the class of a row is that with the highest score, whatever its sign, and
`threshold` is 0.5 where none is written.

Nothing that a client sends makes a forest fail. What can fail are contributions, which are the source
library's: a batch is then run again request by request.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import Backend, LoadError
from engine.worker.backends.fil.answers import ShapeMismatch, answer_for, squeezed
from engine.worker.backends.fil.compiled import CannotCompile, compiled
from engine.worker.backends.fil.contributions import Contributions
from engine.worker.backends.fil.forest import Forest, read_forest
from engine.worker.backends.fil.parameters import INPUT, LEAVES, OUTPUT, SHAP, default_file, read
from engine.worker.backends.fil.walking import walked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from actors.values.tensors import Array
    from engine.worker.backends.base import Batch, ModelInfo, Output, TensorInfo
    from engine.worker.backends.fil.compiled import Scorer
    from engine.worker.backends.fil.parameters import Options

_DATATYPES = {INPUT: DataType.FP32, OUTPUT: DataType.FP32, SHAP: DataType.FP32, LEAVES: DataType.INT32}
_OUTPUTS = (OUTPUT, SHAP, LEAVES)
_MANY_STEPS = 100_000  # rows × trees from which a second thread pays
_DEFAULT_BATCH = 4
_BATCH_SETTING = "default-max-batch-size"


class ForestBackend(Backend):
    """Runs one forest."""

    name = "fil"
    runs_model_code = False

    @classmethod
    def prepare(cls) -> None:
        """Import treelite. See `Backend.prepare`."""
        import treelite.gtil  # noqa: F401

    @classmethod
    def complete_config(cls, model: ModelInfo) -> Mapping[str, Any] | None:
        """Fill in the sides that are missing, and a batch size if there is no input either."""
        config: dict[str, Any] = dict(model.config)
        if config.get("input") and config.get("output"):
            return None
        options = read(model.parameters)
        forest = _forest(model, options)
        most = int(config.get("max_batch_size", 0))
        if not config.get("input"):
            if not most:
                most = config["max_batch_size"] = _default_batch(model.settings)
            dims = [forest.columns] if most else [-1, forest.columns]
            config["input"] = [{"name": INPUT, "data_type": "TYPE_FP32", "dims": dims}]
        if not config.get("output"):
            width = forest.classes if options.probabilities or not options.classifier else 1
            dims = [width] if most else [-1, width]
            config["output"] = [{"name": OUTPUT, "data_type": "TYPE_FP32", "dims": dims}]
        if most > 1 and not any(f"{each}_batching" in config for each in ("dynamic", "sequence")):
            config["dynamic_batching"] = {}
        return config

    def load(self, model: ModelInfo) -> None:
        """Read the forest, and check it against the configuration."""
        if model.kind == "GPU":
            raise LoadError("KIND_GPU cannot be used in CPU-only build")
        if model.kind == "MODEL":
            raise LoadError(f"instance '{model.instance_name}' has kind KIND_MODEL: use KIND_CPU")
        options = read(model.parameters)
        for note in options.notes:
            model.log("warning", note)
        forest = _forest(model, options)
        self._threads = options.threads or model.threads
        self._batches = model.max_batch_size > 0
        self._check_tensors(model, forest)
        self._forest = forest
        self._make = self._makers(model, options)
        self._scorer: Scorer = forest
        try:
            forest.scores(np.full((1, forest.columns), np.nan, np.float32), 1)
        except Exception as error:  # what treelite raises has no base class of its own in all versions
            raise LoadError(f"unable to load model '{model.name}', {error}") from error
        if options.compiling != "off":
            self._scorer = self._compiled(model, options)
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None

    def _compiled(self, model: ModelInfo, options: Options) -> Scorer:
        """Return the fastest that can be had: machine code, else a walk over tables, else treelite's own."""
        try:
            return compiled(self._forest, wanted=options.compiling, threads=self._threads, phase=model.phase)
        except CannotCompile as error:
            reason = str(error)
        level = "warning" if options.compiling == "on" else "info"
        try:
            scorer = walked(self._forest)
        except CannotCompile as error:
            model.log(
                level, f"treelite's own predictor serves this model, no machine code: {reason}; {error}"
            )
            return self._forest
        model.log(level, f"a walk over tables serves this model, no machine code of it: {reason}")
        return scorer

    def unload(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def execute(self, batch: Batch) -> None:
        """Run one batch; if it fails, its requests one by one."""
        try:
            outputs = self._compute(batch.stacked(INPUT), batch.wanted_outputs)
        except Exception as error:  # noqa: BLE001  # the libraries' exceptions share no base class
            if len(batch.requests) == 1:
                batch.fail(*_described(error))
            else:
                self._execute_apart(batch)
            return
        batch.respond(outputs)

    def _execute_apart(self, batch: Batch) -> None:
        for request in batch.requests:
            try:
                request.respond(self._compute(request.input(INPUT), request.requested_outputs))
            except Exception as error:  # noqa: BLE001  # as above
                request.fail(*_described(error))

    def _compute(self, x: Array, wanted: Collection[str]) -> list[Output]:
        return [(name, _DATATYPES[name], make(x)) for name, make in self._make.items() if name in wanted]

    def _makers(self, model: ModelInfo, options: Options) -> dict[str, Callable[[Array], Array]]:
        """Return what computes each configured output of rows [rows, columns]."""
        makers: dict[str, Callable[[Array], Array]] = {}
        for tensor in model.outputs:
            dims = tensor.backend_dims if self._batches else tensor.backend_dims[1:] or [1]
            try:
                makers[tensor.name] = self._maker(tensor.name, dims, options)
            except ShapeMismatch as error:
                raise LoadError(
                    f"unable to load model '{model.name}', output '{tensor.name}': {error}"
                ) from None
        return makers

    def _maker(self, name: str, dims: Sequence[int], options: Options) -> Callable[[Array], Array]:
        if name == OUTPUT:
            answer = answer_for(options, self._forest.classes, dims)
            return lambda x: answer(self._scores(x))
        row = squeezed(dims)
        if name == LEAVES:
            _expect(dims, [self._forest.trees])
            return lambda x: self._forest.leaves(x, self._threads).reshape(len(x), *row)
        contributions = Contributions(self._forest, self._threads)
        _expect(dims, contributions.dims)
        return lambda x: contributions.of(x).reshape(len(x), *row)

    def _scores(self, x: Array) -> Array:
        """Return the scores of rows, on several threads if there is enough to do."""
        if self._pool is None or len(x) < 2 or len(x) * self._forest.trees < _MANY_STEPS:
            return self._scorer.scores(x, 1)
        if isinstance(self._scorer, Forest):
            return self._scorer.scores(x, self._threads)
        parts = np.array_split(x, min(self._threads, len(x)))
        return np.concatenate(list(self._pool.map(self._scorer.scores, parts)))

    def _check_tensors(self, model: ModelInfo, forest: Forest) -> None:
        if forest.targets > 1:
            raise LoadError(f"unable to load model '{model.name}', Multi-target model not supported")
        for side, tensors, allowed in (
            ("input", model.inputs, (INPUT,)),
            ("output", model.outputs, _OUTPUTS),
        ):
            if not tensors:
                raise LoadError(f"unable to load model '{model.name}', the configuration has no {side}")
            for tensor in tensors:
                _check_kind(model, tensor, side, allowed)
        [tensor] = model.inputs
        dims = tensor.backend_dims
        if tensor.optional or tensor.ragged:
            raise LoadError(
                f"unable to load model '{model.name}', input '{INPUT}' can't be optional or ragged"
            )
        if dims[-1:] != [forest.columns] or len(dims) != 2 - self._batches:
            shape = (
                f"[{forest.columns}]"
                if self._batches
                else f"[-1,{forest.columns}] (or max_batch_size above 0)"
            )
            raise LoadError(
                f"unable to load model '{model.name}', input '{INPUT}': the model has"
                f" {forest.columns} columns, so dims should be {shape}, and are [{','.join(map(str, dims))}]"
            )


def _check_kind(model: ModelInfo, tensor: TensorInfo, side: str, allowed: Sequence[str]) -> None:
    if tensor.name not in allowed:
        raise LoadError(
            f"unable to load model '{model.name}', unexpected inference {side} '{tensor.name}',"
            f" allowed {side}s are: {', '.join(allowed)}"
        )
    provided = _DATATYPES[tensor.name]
    if tensor.datatype is not provided:
        raise LoadError(
            f"unable to load model '{model.name}', configuration expects datatype"
            f" {tensor.datatype.config_name} for {side} '{tensor.name}',"
            f" model provides {provided.config_name}"
        )


def _expect(dims: Sequence[int], given: Sequence[int]) -> None:
    if squeezed(dims) != squeezed(given):
        theirs, ours = (",".join(map(str, each)) for each in (given, dims))
        raise ShapeMismatch(f"the model gives [{theirs}] but the configuration makes [{ours}]")


def _forest(model: ModelInfo, options: Options) -> Forest:
    """Read the model's file. Raises LoadError in the words of the contract where it is not there."""
    name = model.artifact or default_file(model.parameters)
    path = os.path.join(model.version_directory, name)
    if not os.path.isfile(path):
        if options.model_type == "treelite_checkpoint":
            raise LoadError(f'Could not open model file "{path}"')
        raise LoadError(f"unable to find '{path}' for model instance '{model.instance_name}'")
    model.phase("reading the forest")
    # A thread of the server must not have the server's memory bounded.
    bounded = model.parameters.get("tritium.isolation") != "thread"
    try:
        return read_forest(path, options, bounded=bounded)
    except LoadError as error:
        raise LoadError(f"unable to load model '{model.name}', {error}") from error


def _default_batch(settings: Mapping[str, str]) -> int:
    text = settings.get(_BATCH_SETTING, str(_DEFAULT_BATCH))
    if not text.isdigit():
        raise LoadError(f"--backend-config=fil,{_BATCH_SETTING}=N takes a whole number, and not '{text}'")
    return int(text)


def _described(error: Exception) -> tuple[ErrorCode, str]:
    lines = str(error).strip().splitlines()
    return ErrorCode.INTERNAL, f"{type(error).__name__}: {lines[0] if lines else 'no more is known'}"
