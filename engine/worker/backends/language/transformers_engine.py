"""The engines of `of_transformers`, in the worker: what imports the library.

It is imported while a backend is made, and not by the server.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from actors.values.errors import InvalidArgument
from engine.worker.backends.base import LoadError
from engine.worker.backends.language.choosing import Bounds, check_prompt, read_choosing
from engine.worker.backends.language.embedding import Embeddings, ToEmbed, most_tokens
from engine.worker.backends.language.engine import Gauges, StepEngine, StepOutput
from engine.worker.backends.language.grammars import Grammars
from engine.worker.backends.language.model_folder import identity_of, read_pooling
from engine.worker.backends.language.paged import PagedLoop, Sizes
from engine.worker.backends.language.sampling import Row, choose
from engine.worker.backends.torch_loading import device_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from engine.worker.backends.base import ModelInfo
    from engine.worker.backends.language.model_folder import Arguments

_CACHE_GIB = 1.0  # of a CPU's memory
_LEAST_CONTEXT = 16  # a cache for less is no use


def load_model(model: ModelInfo, folder: str, arguments: Arguments) -> StepEngine:
    """Return the engine of a model folder, on the instance's device. Raises LoadError."""
    device = device_of(torch, model)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(max(1, model.threads))
    try:
        return load_engine(folder, arguments, device, model.log, model.phase)
    except (LoadError, MemoryError):
        raise
    except Exception as error:  # the library's loaders raise what they like
        raise LoadError(f"unable to load '{folder}', {type(error).__name__}: {error}") from error


def load_engine(
    folder: str, arguments: Arguments, device: Any, log: Any = None, phase: Any = None
) -> StepEngine:
    """Return the engine of a model folder: a causal model's, or an encoder's.

    Raises LoadError, and what the library raises.
    """
    transformers.utils.logging.disable_progress_bar()
    weights = Weights(folder, arguments, device)
    model = weights.model
    if phase is not None:
        phase("making the cache")
    tokenizer = _tokenizer(folder)
    pooling = read_pooling(folder)
    if not weights.causal:
        return EmbeddingEngine(weights, arguments, pooling)
    grammars: Grammars | str
    eos = _ends(model, tokenizer)
    if tokenizer is None:
        grammars = "the model's folder has no tokenizer that can be read"
    else:
        grammars = _grammars(tokenizer, _vocabulary(model), eos, arguments)
    if isinstance(grammars, str) and log is not None:
        log("warning", f"grammars are refused: {grammars}")
    return PagedEngine(weights, grammars, eos, arguments, pooling)


class Weights:
    """A model in memory, that can be given up and had again."""

    def __init__(self, folder: str, arguments: Arguments, device: Any) -> None:
        """Load it. Raises what the library raises."""
        self._folder = folder
        self._arguments = arguments
        self._device = device
        self._identity = identity_of([folder])
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        self.causal = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and any(
            "CausalLM" in str(name) or "LMHead" in str(name) for name in config.architectures or ()
        )
        self.model: Any = self._read()

    def _read(self) -> Any:
        made: Any = transformers.AutoModelForCausalLM if self.causal else transformers.AutoModel
        model = made.from_pretrained(
            self._folder,
            dtype=self._arguments.dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation=self._arguments.attn_implementation or "sdpa",
        )
        return model.eval().requires_grad_(requires_grad=False).to(self._device)

    def give_up(self, level: int) -> None:
        """Keep them in main memory, or drop them. Whatever else had the model has let go of it."""
        if level == 2:
            self.model = None
        elif self._device.type == "cuda":
            self.model.to("cpu")
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def take(self) -> Any:
        """Return the model, which is where it was. Raises RuntimeError if its files are others now."""
        if self.model is None:
            if identity_of([self._folder]) != self._identity:
                raise RuntimeError(f"the files in '{self._folder}' have changed since they were read")
            self.model = self._read()
        return self.model.to(self._device)


def _tokenizer(folder: str) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_fast=True
        )
    except Exception:  # noqa: BLE001  # the loaders raise what they like; texts are the text worker's
        return None


def _grammars(tokenizer: Any, vocabulary: int, eos: Iterable[int], arguments: Arguments) -> Grammars | str:
    if not eos:
        return "the model has no token that ends a text"
    try:
        return Grammars(tokenizer, vocabulary, eos, free_whitespace=not arguments.disable_any_whitespace)
    except ImportError:
        return "the package 'llguidance' is not installed"
    except Exception as error:  # noqa: BLE001  # not a fast tokenizer, or of a kind that is not known
        return f"llguidance can't read the tokenizer: {error}"


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the ids that end a text, by the folder's `generation_config.json`, or what else says so."""
    for source in (model.generation_config, model.config.get_text_config(), tokenizer):
        said = getattr(source, "eos_token_id", None)
        if said is not None:
            return frozenset(said if isinstance(said, (list, tuple)) else [said])
    return frozenset()


def _vocabulary(model: Any) -> int:
    return int(model.config.get_text_config().vocab_size)


def _longest(model: Any, arguments: Arguments) -> int:
    config = model.config.get_text_config()
    own = int(getattr(config, "max_position_embeddings", 0) or 0)
    return (
        min(each for each in (own, arguments.max_model_len) if each)
        if own or arguments.max_model_len
        else 2048
    )


class _Prepared(NamedTuple):
    """A prompt, how its stream's tokens are chosen, and the salt within which it shares prefixes."""

    ids: Sequence[int]
    row: Row
    salt: str


class PagedEngine(StepEngine):
    """See the module."""

    resumes: Sequence[str] = ("seeds", "penalties", "grammars")
    sleeps: Sequence[int] = (1, 2)

    def __init__(
        self,
        weights: Weights,
        grammars: Grammars | str,
        eos: frozenset[int],
        arguments: Arguments,
        pooling: str,
    ) -> None:
        """`grammars` may be the reason why there are none."""
        self._weights, model = weights, weights.model
        self._grammars = grammars
        self._device = model.device
        longest = _longest(model, arguments)
        self._sizes = _sizes(model, longest, arguments)
        try:
            loop = self._loop = PagedLoop(model, self._sizes, self._choose)
        except (ValueError, MemoryError) as error:
            raise LoadError(f"the cache can't be made: {error}") from error
        if self._sizes.blocks is None:  # once it has slept, it is to be as large as the server was told
            self._sizes = self._sizes._replace(blocks=loop.capacity)
        self.context = min(longest, loop.longest)
        if self.context < _LEAST_CONTEXT:
            raise LoadError(
                f"the cache holds {self.context} tokens; raise 'kv_cache_gib', 'num_blocks' or"
                " 'gpu_memory_utilization'"
            )
        self._bounds = Bounds(_vocabulary(model), self.context, eos)
        self.stops = eos
        self._rows: dict[int, Row] = {}
        self._prompts: dict[
            int, int
        ] = {}  # streams whose prompts the loop has not looked for yet: their length
        self._embeddings = Embeddings(model.base_model, pooling)
        self._outputs: list[StepOutput] = []
        self._ended: list[str] = []  # streams whose last blocks the cache has yet to name
        self._prefix_hits = self._prefix_queries = 0
        self._preemptions = 0  # of the loops before this one
        self._awake = True
        self._facts: Mapping[str, Any] = {
            "cache": {
                "block_size": loop.page,
                "blocks": loop.blocks,
                "shared": self._sizes.share_prefixes,
            },
            "step_tokens": self._sizes.step_tokens,
        }

    def sleep(self, level: int) -> None:
        """See `StepEngine`."""
        self._awake = False
        self._preemptions += self._loop.preemptions
        del self._loop
        self._embeddings.let_go()
        gc.collect()  # the loop's parts refer to each other, and to the model
        self._weights.give_up(level)

    def wake(self) -> None:
        """See `StepEngine`."""
        model = self._weights.take()
        self._loop = PagedLoop(model, self._sizes, self._choose)
        self._embeddings.take(model.base_model)
        self._awake = True

    def begin(self) -> None:
        """See `StepEngine`. Threads have a current device each, which is GPU 0 at first."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def prepare(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> _Prepared | ToEmbed:
        """See `StepEngine`."""
        check_prompt(ids, self._bounds)
        if sampling.get("embed"):
            return self._embeddings.prepare(ids, sampling.get("dimensions"))
        for name, why in _REFUSED.items():
            if sampling.get(name) not in (None, "", False):
                raise InvalidArgument(f"'{name}' can't be had: {why}")
        choosing = read_choosing(sampling, len(ids), self._bounds)
        matcher = None
        if choosing.grammar is not None:
            if isinstance(self._grammars, str):
                raise InvalidArgument(f"this engine can enforce no grammar: {self._grammars}")
            matcher = self._grammars.matcher(choosing.grammar)
        prompt = len(ids) - _generated(sampling, len(ids))
        row = Row(
            choosing,
            ids[:prompt],
            self._bounds.vocabulary,
            self._device,
            matcher=matcher,
            said=ids[prompt:],
        )
        if row.failure:
            raise InvalidArgument(f"what was generated so far does not keep to the grammar: {row.failure}")
        return _Prepared(ids, row, str(sampling.get("cache_salt") or ""))

    def add(self, stream: int, prepared: _Prepared | ToEmbed) -> None:
        """See `StepEngine`."""
        if isinstance(prepared, ToEmbed):
            self._embeddings.add(stream, prepared)
            return
        ids, row, salt = prepared
        self._rows[stream] = row
        self._prompts[stream] = len(ids)
        self._loop.add(str(stream), ids, row.choosing.max_tokens, row.choosing.stops, salt)

    def abort(self, streams: Sequence[int]) -> None:
        """See `StepEngine`."""
        for stream in streams:
            self._rows.pop(stream, None)
            self._prompts.pop(stream, None)
        self._embeddings.abort(set(streams))
        self._loop.remove([str(stream) for stream in streams])

    def step(self) -> Sequence[StepOutput]:
        """See `StepEngine`."""
        self._outputs = outputs = self._embeddings.step()
        self._loop.step()
        while self._ended:
            self._loop.forget(self._ended.pop())
        ended = [each.stream for each in outputs if each.error]
        if ended:
            self.abort(ended)
        return outputs

    def _choose(self, logits: Any, names: Sequence[str]) -> Sequence[int]:
        streams = [int(name) for name in names]
        rows = [self._rows[stream] for stream in streams]
        chosen = choose(logits, rows)
        for place, (stream, row) in enumerate(zip(streams, rows)):
            failure = chosen.failures.get(place)
            if failure is not None:
                self._outputs.append(StepOutput(stream, error=failure))
                continue
            token, finish = chosen.tokens[place], row.finish
            chances = chosen.chances[place]
            self._outputs.append(
                StepOutput(
                    stream,
                    (token,),
                    None if chances is None else [chances],
                    self._facts_of(stream) if stream in self._prompts else None,
                    finish,
                    reason=token if finish == "stop" and token in row.choosing.stop_token_ids else None,
                )
            )
            if finish:
                del self._rows[stream]
                self._ended.append(str(stream))
        return chosen.tokens

    def _facts_of(self, stream: int) -> Mapping[str, Any]:
        length, found = self._prompts.pop(stream), self._loop.found(str(stream))
        self._prefix_queries += length
        self._prefix_hits += found
        return {"cached": found}

    @property
    def busy(self) -> bool:
        """See `StepEngine`."""
        return self._awake and (self._loop.busy or bool(self._embeddings))

    def gauges(self) -> Gauges:
        """See `StepEngine`."""
        hits, queries, preemptions = self._prefix_hits, self._prefix_queries, self._preemptions
        if not self._awake:
            return Gauges(prefix_hits=hits, prefix_queries=queries, preemptions=preemptions)
        return Gauges(
            running=self._loop.running,
            waiting=self._loop.waiting + len(self._embeddings),
            cache_used=self._loop.used(),
            prefix_hits=hits,
            prefix_queries=queries,
            preemptions=preemptions + self._loop.preemptions,
        )

    def facts(self) -> Mapping[str, Any]:
        """See `StepEngine`."""
        return self._facts


_REFUSED: Mapping[str, str] = {
    "adapter": "backend 'transformers' serves no adapters; use backend 'vllm'",
    "prompt_logprobs": "backend 'transformers' computes none for prompts; use backend 'vllm'",
}


def _generated(sampling: Mapping[str, Any], ids: int) -> int:
    """Return how many of the ids another engine has generated."""
    count = sampling.get("generated", 0)
    if not isinstance(count, int) or not 0 <= count < ids:
        raise InvalidArgument(
            f"'generated' must be less than the {ids} ids of the request, got {count!r:.50}"
        )
    return count


def _sizes(model: Any, longest: int, arguments: Arguments) -> Any:
    cuda = model.device.type == "cuda"
    page = max(4, arguments.block_size or (256 if cuda else 32))
    blocks: int | None = arguments.num_blocks or None
    if blocks is None and not cuda:
        blocks = _blocks_of_cpu(model, page, longest, arguments.kv_cache_gib)
    step_tokens = arguments.max_num_batched_tokens or (4096 if cuda else 512)
    return Sizes(
        page=page,
        blocks=blocks,
        step_tokens=step_tokens,
        streams=min(step_tokens, arguments.max_num_seqs or (256 if cuda else 64)),
        memory=_share_of_free(model.device, arguments.gpu_memory_utilization) if cuda else 1.0,
        share_prefixes=arguments.enable_prefix_caching,
    )


def _share_of_free(device: Any, wanted: float) -> float:
    """Return the part of the GPU's free memory that the cache takes.

    The library takes that part of all that is free on the GPU. Where the process may not take all of it, the
    cache gets the wanted part of what the process may.
    """
    share: float = torch.cuda.get_per_process_memory_fraction(device)
    if share >= 1.0:
        return wanted
    free: int
    total: int
    free, total = torch.cuda.mem_get_info(device)
    allowed: float = share * total - torch.cuda.memory_reserved(device)
    return max(wanted * min(free, allowed) / max(1, free), 1e-6)


def _blocks_of_cpu(model: Any, page: int, longest: int, gib: float) -> int:
    """Return as many blocks as fit in the memory, but no more than 64 times the model's context."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    block = int(2 * config.num_hidden_layers * heads * width * model.dtype.itemsize * page)
    most = 64 * (longest // page + 1)
    if not gib:
        # Masks and indices on a CPU grow with the cache, so it is no larger than it is likely to be used.
        most = min(most, max(1024, longest // page + 2))
    return max(2, min(int((gib or _CACHE_GIB) * 2**30) // block, most))


class EmbeddingEngine(StepEngine):
    """Serves embeddings of a model that is not causal."""

    def __init__(self, weights: Weights, arguments: Arguments, pooling: str) -> None:
        """Raises LoadError for a model that wants more than token ids: it is tried."""
        self._weights, model = weights, weights.model
        # On a CPU, there is nothing that the first level would give up.
        self.sleeps = (1, 2) if model.device.type == "cuda" else (2,)
        self.context = most_tokens(model, _longest(model, arguments))
        self._bounds = Bounds(_vocabulary(model), self.context + 1)
        self._embeddings = Embeddings(model, pooling)
        try:
            self._embeddings.embed([self._embeddings.prepare([0], None)])
        except Exception as error:  # it raises what it likes
            raise LoadError(
                f"the model is not causal, and gives no embeddings of token ids alone ({error}); serve an"
                " encoder's folder, or one whose 'architectures' has a ForCausalLM"
            ) from error

    def prepare(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> ToEmbed:
        """See `StepEngine`."""
        if not sampling.get("embed"):
            raise InvalidArgument("this model is not causal: it gives embeddings, and generates no text")
        check_prompt(ids, self._bounds)
        return self._embeddings.prepare(ids, sampling.get("dimensions"))

    def sleep(self, level: int) -> None:
        """See `StepEngine`."""
        self._embeddings.let_go()
        self._weights.give_up(level)

    def wake(self) -> None:
        """See `StepEngine`."""
        self._embeddings.take(self._weights.take())

    def add(self, stream: int, prepared: ToEmbed) -> None:
        """See `StepEngine`."""
        self._embeddings.add(stream, prepared)

    def abort(self, streams: Sequence[int]) -> None:
        """See `StepEngine`."""
        self._embeddings.abort(set(streams))

    def step(self) -> Sequence[StepOutput]:
        """See `StepEngine`."""
        return self._embeddings.step()

    @property
    def busy(self) -> bool:
        """See `StepEngine`."""
        return bool(self._embeddings)

    def gauges(self) -> Gauges:
        """See `StepEngine`."""
        return Gauges(waiting=len(self._embeddings))
