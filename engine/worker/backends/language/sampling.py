"""Chooses a step's tokens: from logits to ids, for all streams of a batch at once.

In vLLM's order: what a grammar, a list or a minimum forbids; bias; penalties; then the most probable token,
or temperature, `min_p`, `top_k`, `top_p` and a draw. Probabilities are told as the model gave them, before
any of that. A row that wants nothing special costs its share of one `argmax`, or of one `softmax` and a draw.

A draw divides probabilities by exponential noise and takes the largest, which equals `multinomial`. The noise
of a stream with a seed follows from that and from how many tokens it has said: so its tokens do not depend on
what else is in the batch, nor on which engine has said the ones before.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.worker.backends.language.choosing import Choosing

_FORBIDDEN = -math.inf
_FEW = 8  # ids that there is room for at first
_STRIDE = 0x9E3779B97F4A7C15  # between the seeds of two tokens: any odd number that is far from small


class Seen:
    """The ids that a stream has had, and how often it said each of them itself."""

    __slots__ = ("_at", "_counts", "_ids", "_size")

    def __init__(self, prompt: Sequence[int]) -> None:
        unique = np.unique(np.asarray(prompt, np.int64))
        self._size = len(unique)
        self._ids = np.empty(2 * self._size + _FEW, np.int64)
        self._ids[: self._size] = unique
        self._counts = np.zeros(len(self._ids), np.float32)
        self._at = {number: place for place, number in enumerate(unique.tolist())}

    def add(self, token: int) -> None:
        """The stream has said this one."""
        place = self._at.get(token)
        if place is None:
            if self._size == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._at[token] = place = self._size
            self._ids[place] = token
            self._size += 1
        self._counts[place] += 1

    @property
    def ids(self) -> np.ndarray[Any, Any]:
        """Each id once."""
        return self._ids[: self._size]

    @property
    def counts(self) -> np.ndarray[Any, Any]:
        """How often the stream has said each of `ids`; 0 for what only its prompt has."""
        return self._counts[: self._size]


class Row:
    """One stream, as its tokens are chosen."""

    __slots__ = (
        "_bad",
        "_bias",
        "_closed",
        "_device",
        "_given",
        "_stops",
        "choosing",
        "edits",
        "failure",
        "generator",
        "matcher",
        "said",
        "seen",
    )

    def __init__(
        self,
        choosing: Choosing,
        prompt: Sequence[int],
        vocabulary: int,
        device: Any,
        *,
        matcher: Any = None,
        said: Sequence[int] = (),
    ) -> None:
        """`said` are the ids that another engine has generated behind the prompt.

        Bounds of the number of tokens count without them. `failure` says why the grammar can't take them.
        """
        self.choosing = choosing
        self.matcher = matcher
        self.said: list[int] = []
        self.seen = Seen(prompt) if choosing.penalises else None
        self._device = device
        self._bad = bad = choosing.bad_words_ids
        self._bias = _pairs(choosing.logit_bias, device)
        self._closed = _all_but(choosing.allowed_token_ids, vocabulary, device)
        self._stops = (
            torch.tensor(sorted(choosing.stops), dtype=torch.int64, device=device)
            if choosing.stops and choosing.min_tokens
            else None
        )
        self.edits = any(each is not None for each in (self._bias, self._closed, self._stops)) or bool(bad)
        self.generator: torch.Generator | None = None
        if choosing.seed is not None and not choosing.greedy:
            self.generator = torch.Generator(device=device)
        self._given = len(said)
        self.failure = ""
        for token in said:
            self.take(token)
            self.failure = self.failure or self.accept(token)

    def edit(self, logits: torch.Tensor) -> None:
        """Forbid and favour tokens, in place; all but grammar and penalties."""
        if self._bias is not None:
            logits[self._bias[0]] += self._bias[1]
        if self._closed is not None:
            logits.masked_fill_(self._closed, _FORBIDDEN)
        if self._stops is not None and len(self.said) - self._given < self.choosing.min_tokens:
            logits[self._stops] = _FORBIDDEN
        last = [word[-1] for word in self._bad if _begins(self.said, word)]
        if last:
            logits[torch.tensor(last, dtype=torch.int64, device=self._device)] = _FORBIDDEN

    def take(self, token: int) -> None:
        """Go on behind this one."""
        self.said.append(token)
        if self.seen is not None:
            self.seen.add(token)

    def accept(self, token: int) -> str:
        """Have the grammar go on behind a token; return what is wrong with that, or nothing."""
        if self.matcher is None or self.matcher.consume_token(token):
            return ""
        return str(self.matcher.get_error()) or f"token {token} is none that the grammar allows"

    @property
    def finish(self) -> str:
        """`stop` or `length` if the last token was the last; else nothing."""
        count = len(self.said) - self._given
        if self.said[-1] in self.choosing.stops and count > self.choosing.min_tokens:
            return "stop"
        return "length" if count >= self.choosing.max_tokens else ""

    def seeded(self) -> torch.Generator | None:
        """Return the generator of the next token's noise, if the request has a seed.

        What it gives follows from the seed and from how many tokens were said: so an engine that goes on
        behind another's tokens draws as that one would have.
        """
        if self.generator is not None:
            assert self.choosing.seed is not None
            mixed = (self.choosing.seed + len(self.said) * _STRIDE) % 2**63
            self.generator.manual_seed(mixed)
        return self.generator


class Chosen:
    """What a step has chosen."""

    __slots__ = ("chances", "failures", "tokens")

    def __init__(self, rows: int) -> None:
        self.tokens: list[int] = []
        self.chances: list[list[list[Any]] | None] = [None] * rows
        self.failures: dict[int, str] = {}  # by row: why there is no token


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> Chosen:
    """Choose a token for each row of `logits` [rows, vocabulary], which is changed.

    Rows go on behind them.
    """
    chosen = Chosen(len(rows))
    asked = [place for place, row in enumerate(rows) if row.choosing.logprobs is not None]
    truth = logits[asked].log_softmax(-1) if asked else None
    ruled = [place for place, row in enumerate(rows) if row.matcher is not None]
    if ruled:
        _keep_to_grammars(logits, ruled, rows, chosen)
    for place, row in enumerate(rows):
        if row.edits:
            row.edit(logits[place])
    _penalise(logits, rows)
    tokens = logits.argmax(-1)
    drawn = [place for place, row in enumerate(rows) if not row.choosing.greedy]
    if drawn:
        tokens[drawn] = _draw(logits[drawn], [rows[place] for place in drawn])
    # What every token is forbidden for, or what the model gave no number for, ends as that stream's error.
    sound = logits.gather(1, tokens[:, None])[:, 0].isfinite().tolist()
    chosen.tokens = tokens.tolist()
    if truth is not None:
        _tell_chances(truth, asked, rows, chosen)
    for place, row in enumerate(rows):
        if not sound[place]:
            chosen.failures.setdefault(place, _why_none(row))
            continue
        row.take(chosen.tokens[place])
        failure = row.accept(chosen.tokens[place])
        if failure:
            chosen.failures.setdefault(place, failure)
    return chosen


def _why_none(row: Row) -> str:
    if row.matcher is not None or row.edits:
        return "no token is left to choose: what the request forbids and what it asks for exclude each other"
    return "the model's output for this request is not a number"


# -- what is forbidden, favoured and penalised -----------------------------------------------------------


def _keep_to_grammars(
    logits: torch.Tensor, places: Sequence[int], rows: Sequence[Row], chosen: Chosen
) -> None:
    vocabulary = logits.shape[1]
    words = np.zeros((len(places), (vocabulary + 31) // 32), np.int32)
    for at, place in enumerate(places):
        matcher = rows[place].matcher
        matcher.unsafe_compute_mask_ptr(words[at].ctypes.data, words[at].nbytes)
        if matcher.is_error():
            chosen.failures[place] = f"the grammar can't go on: {matcher.get_error()[:500]}"
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=vocabulary, bitorder="little")
    closed = torch.from_numpy(bits == 0).to(logits.device)
    if len(places) == len(rows):
        logits.masked_fill_(closed, _FORBIDDEN)
    else:
        logits[list(places)] = logits[list(places)].masked_fill(closed, _FORBIDDEN)


def _penalise(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    """Apply the three penalties to the few ids that each row has had, all rows at once."""
    places = [place for place, row in enumerate(rows) if row.seen is not None]
    if not places:
        return
    seen = [row.seen for row in rows if row.seen is not None]
    sizes = [len(each.ids) for each in seen]
    choosing = [rows[place].choosing for place in places]

    def spread(values: Sequence[float]) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.array(values, np.float32), sizes)).to(logits.device)

    at = torch.from_numpy(np.repeat(np.array(places), sizes)).to(logits.device)
    ids = torch.from_numpy(np.concatenate([each.ids for each in seen])).to(logits.device)
    counts = torch.from_numpy(np.concatenate([each.counts for each in seen])).to(logits.device)
    values = logits[at, ids]
    repetition = spread([each.repetition_penalty for each in choosing])
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= spread([each.frequency_penalty for each in choosing]) * counts
    values -= spread([each.presence_penalty for each in choosing]) * (counts > 0)
    logits[at, ids] = values


# -- drawing ---------------------------------------------------------------------------------------------


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Draw a token for each row. `logits` is changed."""

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=logits.dtype, device=logits.device)[:, None]

    chosen = [row.choosing for row in rows]
    logits /= column([each.temperature for each in chosen])
    if any(each.min_p for each in chosen):
        most = logits.amax(-1, keepdim=True)
        # As probabilities: p < min_p * largest.
        lowest = most + column([math.log(each.min_p) if each.min_p else _FORBIDDEN for each in chosen])
        logits.masked_fill_(logits < lowest, _FORBIDDEN)
    cut = [place for place, each in enumerate(chosen) if each.top_k or each.top_p < 1.0]
    if cut:
        kept = _cut(logits[cut], [chosen[place] for place in cut])
        logits[cut] = kept
    chances = logits.softmax(-1)
    noise = torch.empty_like(chances).exponential_()
    for place, row in enumerate(rows):
        generator = row.seeded()
        if generator is not None:
            noise[place].exponential_(generator=generator)
    return (chances / noise).argmax(-1)


def _cut(logits: torch.Tensor, chosen: Sequence[Choosing]) -> torch.Tensor:
    """Forbid all but each row's `top_k` most probable tokens, and of these all but `top_p` of the whole.

    Tokens as probable as the last one that is kept are kept too, as vLLM's `top_k` has it. Sorting puts
    equals in any order, and in another one for another batch, so none of them may depend on it.
    """
    vocabulary = logits.shape[1]
    if all(each.top_k for each in chosen):
        # The largest first, as many as any row wants: far cheaper than to sort them all.
        values = logits.topk(max(each.top_k for each in chosen), -1).values
    else:
        values = logits.sort(-1, descending=True).values
    most = torch.tensor([each.top_k or vocabulary for each in chosen], device=logits.device)[:, None]
    kept = torch.arange(values.shape[1], device=logits.device)[None, :] < most
    if any(each.top_p < 1.0 for each in chosen):
        chances = values.masked_fill(~kept, _FORBIDDEN).softmax(-1)
        before = chances.cumsum(-1) - chances
        share = torch.tensor([each.top_p for each in chosen], device=logits.device)[:, None]
        # A share of 1 keeps all, whatever the sum's last digits are. The first is always kept.
        kept &= (before < share) | (share >= 1.0)
        kept[:, 0] = True
    last = values.gather(1, kept.sum(-1, keepdim=True) - 1)
    return logits.masked_fill(logits < last, _FORBIDDEN)


# -- telling ---------------------------------------------------------------------------------------------


def _tell_chances(truth: torch.Tensor, asked: Sequence[int], rows: Sequence[Row], chosen: Chosen) -> None:
    """Tell of each row the chosen token, then its most probable ones: [id, logprob, rank]."""
    counts = [rows[place].choosing.logprobs or 0 for place in asked]
    tokens = torch.tensor([chosen.tokens[place] for place in asked], device=truth.device)[:, None]
    own = truth.gather(1, tokens)
    ranks = ((truth > own).sum(-1) + 1).tolist()
    values = own[:, 0].tolist()
    most = max(counts)
    best, ids = (each.tolist() for each in truth.topk(most, -1)) if most else ([], [])
    for at, place in enumerate(asked):
        told: list[list[Any]] = [[chosen.tokens[place], _finite(values[at]), ranks[at]]]
        told += [[ids[at][rank], _finite(best[at][rank]), rank + 1] for rank in range(counts[at])]
        chosen.chances[place] = told


def _finite(value: float) -> float:
    """Return a number that JSON has: OpenAI's and vLLM's servers tell -9999 of what can't come."""
    return max(-9999.0, value)


def _pairs(bias: Any, device: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    if not bias:
        return None
    return (
        torch.tensor(list(bias), dtype=torch.int64, device=device),
        torch.tensor(list(bias.values()), dtype=torch.float32, device=device),
    )


def _all_but(ids: Sequence[int], vocabulary: int, device: Any) -> torch.Tensor | None:
    if not ids:
        return None
    # It is filled in before it goes to the device: a copy is waited for, but work of a thread that checks
    # requests is not waited for by the stream that a GPU's steps run on.
    closed = torch.ones(vocabulary, dtype=torch.bool)
    closed[torch.tensor(list(ids), dtype=torch.int64)] = False
    return closed.to(device)


def _begins(said: Sequence[int], word: Sequence[int]) -> bool:
    """Whether a text ends with all of a word but its last id."""
    before = len(word) - 1
    return not before or (len(said) >= before and list(said[-before:]) == list(word[:-1]))
