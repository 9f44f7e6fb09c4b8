"""transformers' paged cache and scheduler, driven step by step on our own thread.

Everything here that is not public in transformers is named in this module and nowhere else:
`_create_batch_processor`, `_generation_step`, `model_runner._sample`, and what scheduler and cache keep. It
moves between minor releases, so the package is pinned narrowly (pyproject.toml, extra `llm`), and a test goes
through all of it.

The library's own loop (`manager.start()`) is not used: there an error of one request ends every other one, a
cancellation waits, and tokens are chosen for all streams in one way.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.model_runner import infer_max_single_request_tokens
from transformers.generation.continuous_batching.requests import RequestState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    Choose = Callable[[torch.Tensor, Sequence[str]], Sequence[int]]


class Sizes(NamedTuple):
    """How large cache and steps are."""

    page: int  # tokens of a block
    blocks: int | None  # None: what is free of the device's memory
    step_tokens: int  # tokens that one step computes at most
    streams: int  # streams of one step
    memory: float  # part of the device's free memory that the cache may take
    share_prefixes: bool = True


class PagedLoop:
    """Runs a causal model on all streams that its cache has room for."""

    def __init__(self, model: Any, sizes: Sizes, choose: Choose) -> None:
        """`choose` gets logits [rows, vocabulary] in float32 and the rows' streams, and gives their tokens.

        Raises ValueError and MemoryError for sizes that do not fit.
        """
        self._model = model
        self._choose = choose
        cuda = model.device.type == "cuda"
        manager = model.init_continuous_batching(
            generation_config=GenerationConfig(
                do_sample=False, max_new_tokens=1, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=sizes.page,
                num_blocks=sizes.blocks,
                max_batch_tokens=sizes.step_tokens,
                max_requests_per_batch=sizes.streams,
                max_memory_percent=sizes.memory,
                allow_block_sharing=sizes.share_prefixes,
                use_async_batching=False,  # a token would be chosen before the one in front of it is known
                use_cuda_graph=False,  # our choosing looks at each row, which no graph can hold
                auto_switch_to_flash=cuda,
            ),
        )
        self._loop = manager._create_batch_processor()  # noqa: SLF001  # see the module
        manager.batch_processor = self._loop
        manager.output_router.deliver_batch = manager.output_router.deliver = _ignore
        self._scheduler = self._loop.scheduler
        self._cache = self._loop.cache
        self._loop.model_runner._sample = self._sample  # noqa: SLF001
        self._search = self._cache.search_prefix_match
        self._cache.search_prefix_match = self._search_prefix
        self.page = sizes.page
        self._mark = self._cache.mark_complete_blocks
        self._cache.mark_complete_blocks = self._mark_blocks
        self._queue = self._scheduler.add_waiting_request
        self._scheduler.add_waiting_request = self._queue_again
        self._salts: dict[str, str] = {}  # by stream, where it has one
        self._found: dict[str, int] = {}  # by stream: tokens of its prompt that the cache had
        self.preemptions = 0
        """How often a stream has lost its part of the cache to others."""

    @property
    def longest(self) -> int:
        """Tokens that one stream can have if it is alone."""
        return int(infer_max_single_request_tokens(self._cache))

    @property
    def blocks(self) -> int:
        """Blocks of the cache."""
        return sum(int(each.num_blocks) for each in self._cache.cache_allocators.values())

    @property
    def capacity(self) -> int:
        """Blocks of the whole model that the cache holds: what `Sizes` calls `blocks`."""
        return int(self._cache.num_blocks)

    def add(
        self, name: str, ids: Sequence[int], max_tokens: int, stops: Collection[int], salt: str = ""
    ) -> None:
        """Queue a stream. It shares prefixes with streams of the same `salt` only."""
        if salt:
            self._salts[name] = salt
        self._queue(
            RequestState(
                request_id=name,
                initial_tokens=list(ids),
                max_new_tokens=max_tokens,
                eos_token_id=list(stops) or None,
            )
        )

    def remove(self, names: Sequence[str]) -> None:
        """Take streams out, and what they hold of the cache."""
        for name in names:
            self._scheduler.set_request_cancellation(name)
            self.forget(name)
        for state in self._scheduler.clear_cancelled_requests():
            self._loop.offloading_manager.free_request_cpu_cache(state)

    def forget(self, name: str) -> None:
        """A stream has ended."""
        self._salts.pop(name, None)
        self._found.pop(name, None)

    def found(self, name: str) -> int:
        """Return how many tokens of a stream's prompt the cache had."""
        return self._found.get(name, 0)

    def step(self) -> bool:
        """Compute the next tokens. False if there is nothing to do."""
        with torch.no_grad():
            if not self._loop.prepare_next_batch():
                return False
            self._loop._generation_step(self._model)  # noqa: SLF001
            self._loop.update_batch()
        return True

    @property
    def busy(self) -> bool:
        """Whether there are streams."""
        return bool(self._scheduler.active_requests or self._scheduler.waiting_requests)

    @property
    def running(self) -> int:
        """Streams that hold a part of the cache."""
        return len(self._scheduler.active_requests)

    @property
    def waiting(self) -> int:
        """Streams that have none yet, or none any more."""
        return len(self._scheduler.waiting_requests)

    def used(self) -> float:
        """Return the part of the cache that streams hold: kept prefixes that are not in use are free."""
        total = held = 0
        for allocator in self._cache.cache_allocators.values():
            total += allocator.num_blocks
            held += len({block for blocks in allocator.block_table.values() for block in blocks})
        return held / total if total else 0.0

    def _sample(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        rows = [
            future.state.request_id
            for future in self._loop.inputs_and_outputs.requests_in_batch
            if future.has_new_token
        ]
        if rows:
            tokens = self._choose(scores[0, : len(rows)], rows)
            output_ids[0, : len(rows)].copy_(torch.tensor(tokens, dtype=output_ids.dtype))

    def _search_prefix(self, name: str, ids: list[int]) -> int:
        salt = self._salts.get(name)
        # A stream that begins again has said something since: then it is no more about its prompt.
        found = int(self._search(name, ids if salt is None else _salted(salt, ids)))
        self._found[name] = found
        return found

    def _mark_blocks(self, state: Any, blocks: Any) -> None:
        """Name complete blocks, by which others find them: by their tokens, and by the salt."""
        salt = self._salts.get(state.request_id)
        if salt is not None and blocks:
            ids = _salted(salt, state.initial_tokens + state.generated_tokens)
            state = SimpleNamespace(
                request_id=state.request_id, status=state.status, initial_tokens=ids, generated_tokens=[]
            )
        self._mark(state, blocks)

    def _queue_again(self, state: Any) -> None:
        self.preemptions += 1
        self._queue(state)


def _salted(salt: str, ids: list[int]) -> list[int]:
    """Return `ids` as the cache is to know them under a salt.

    It names a block by 64 bits of a hash of its tokens and of all in front of it. So two of 32 bits, the
    first ones, are made to depend on the salt.
    """
    if len(ids) < _SALTED:
        return ids
    digest = blake2b(array("i", ids[:_SALTED]).tobytes(), digest_size=4 * _SALTED, key=_key(salt))
    return [*array("i", digest.digest()), *ids[_SALTED:]]


def _key(salt: str) -> bytes:
    return blake2b(salt.encode("utf-8", "replace")).digest()


_SALTED = 2  # tokens; a block has at least 4


def _ignore(output: Any) -> None:
    """Outputs are taken where tokens are chosen; the library's copies grow with each step."""
