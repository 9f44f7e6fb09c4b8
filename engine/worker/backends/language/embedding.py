"""Embeddings of prompts: one vector of length 1 of the last hidden states.

Which states count is the folder's to say (`model_folder.read_pooling`): their mean, or the first or last one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from actors.values.errors import InvalidArgument
from engine.worker.backends.language.engine import StepOutput
from engine.worker.backends.language.model_folder import FIRST, LAST

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_PADDED_TOKENS = 4096  # tokens of one pass, with padding


class ToEmbed(NamedTuple):
    """A prompt to embed. `dimensions` are how many of the vector's numbers are wanted."""

    ids: Sequence[int]
    dimensions: int


class Embeddings:
    """Runs an encoder, or the body of a causal model, over the prompts that wait: some of them at a time."""

    def __init__(self, body: Any, pooling: str) -> None:
        """`body` gives `last_hidden_state` for `input_ids` and `attention_mask`."""
        self._body = body
        self._device = body.device
        self._pooling = pooling
        config = body.config
        self._size = int(config.get_text_config().hidden_size)
        sizes = getattr(config, "matryoshka_dimensions", None)
        self._sizes = [int(size) for size in sizes] if isinstance(sizes, (list, tuple)) else None
        self._shortens = bool(self._sizes) or bool(getattr(config, "is_matryoshka", False))
        self._waiting: deque[tuple[int, ToEmbed]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def let_go(self) -> None:
        """The body is about to be given up. `take` brings the next one before the next prompt is added."""
        self._body = None

    def take(self, body: Any) -> None:
        """There is a body again: of the same model, and at the same place."""
        self._body = body

    def prepare(self, ids: Sequence[int], dimensions: int | None) -> ToEmbed:
        """Return what `add` takes. Raises InvalidArgument for a length that the model's vectors can't have.

        Only vectors of models that were trained for it mean something when they are cut short; vLLM asks the
        configuration for that in the same way.
        """
        if dimensions is None or dimensions == self._size:
            return ToEmbed(ids, self._size)
        if not self._shortens:
            raise InvalidArgument(
                f"'dimensions' is {dimensions}, but this model was not trained for vectors shorter than its"
                f" {self._size} numbers ('is_matryoshka' of its config.json); leave it out"
            )
        if self._sizes is not None and dimensions not in self._sizes:
            known = ", ".join(map(str, self._sizes))
            raise InvalidArgument(f"'dimensions' is {dimensions}; this model's vectors may have {known}")
        if not 0 < dimensions < self._size:
            raise InvalidArgument(
                f"'dimensions' is {dimensions}; this model's vectors have 1 to {self._size} numbers"
            )
        return ToEmbed(ids, dimensions)

    def add(self, stream: int, wanted: ToEmbed) -> None:
        """Queue a prompt."""
        self._waiting.append((stream, wanted))

    def abort(self, streams: Collection[int]) -> None:
        """Nothing more of these is wanted."""
        self._waiting = deque(each for each in self._waiting if each[0] not in streams)

    def step(self) -> list[StepOutput]:
        """Embed as many of the first prompts as one pass takes."""
        count = how_many([len(wanted.ids) for _, wanted in self._waiting])
        taken = [self._waiting.popleft() for _ in range(count)]
        if not taken:
            return []
        vectors = self.embed([wanted for _, wanted in taken])
        return [StepOutput(stream, embedding=vector) for (stream, _), vector in zip(taken, vectors)]

    def embed(self, wanted: Sequence[ToEmbed]) -> list[list[float]]:
        """Return the vector of each prompt."""
        lengths = torch.tensor([len(each.ids) for each in wanted])
        longest = int(lengths.max())
        ids = torch.zeros(len(wanted), longest, dtype=torch.int64)
        for row, each in enumerate(wanted):
            ids[row, : len(each.ids)] = torch.tensor(each.ids, dtype=torch.int64)
        mask = (torch.arange(longest)[None, :] < lengths[:, None]).long().to(self._device)
        with torch.no_grad():
            hidden = self._body(input_ids=ids.to(self._device), attention_mask=mask).last_hidden_state.float()
        if self._pooling == FIRST:
            pooled = hidden[:, 0]
        elif self._pooling == LAST:
            pooled = hidden[torch.arange(len(wanted)), lengths - 1]
        else:
            pooled = (hidden * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]
        return [
            torch.nn.functional.normalize(vector[: each.dimensions], dim=-1).tolist()
            for vector, each in zip(pooled.cpu(), wanted)
        ]


def how_many(lengths: Sequence[int]) -> int:
    """Return how many of the first prompts of these lengths one pass takes: at least one."""
    longest = 0
    for count, length in enumerate(lengths):
        longest = max(longest, length)
        if count and longest * (count + 1) > _PADDED_TOKENS:
            return count
    return len(lengths)


def most_tokens(body: Any, said: int) -> int:
    """Return how many tokens a model has positions for, of which its configuration has `said`.

    RoBERTa and its kin count positions from behind that of padding, so the last ones don't exist. A prompt
    that reached them would end the engine.
    """
    for name, part in body.named_modules():
        if name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None:
            return min(said, int(part.num_embeddings) - int(part.padding_idx) - 1)
    return said
