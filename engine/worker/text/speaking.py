"""From the ids of one choice to its pieces. Pure.

Ids become text, in which stop texts are looked for; then reasoning is told from the answer, and calls of
tools from content. Each step holds back what it can't be sure of. So what has been told depends on the ids
alone, not on how many come at once: a worker that goes on for a dead one has only to be fed the same ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engine.worker.text.stops import Stops, StopSearch
from engine.worker.text.thinking import Thinking
from engine.worker.text.tools.formats import MARKERS, NAMED, format_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from actors.wire.delivered import Delivered
    from engine.worker.text.tools.formats import Format
    from engine.worker.text.tools.told import Delta
    from engine.worker.text.vocabulary import Vocabulary

STOP: Final = "stop"
TOOL_CALLS: Final = "tool_calls"


class Plan(NamedTuple):
    """How the choices of one stream are told; its fields are JSON values."""

    n: int = 1  # choices of each prompt
    beginnings: Sequence[bool] = (False,)  # for each prompt: whether nothing of it is before the text
    stop: Sequence[str] = ()
    include_stop: bool = False
    min_tokens: int = 0  # stop texts do not count in the text of so many
    stop_ids: Sequence[int] = ()
    skip_special: bool = True
    token_ids: bool = False
    logprobs: int = 0
    thinking: str = ""  # as `engine.worker.text.thinking` names it; empty: reasoning is not looked for
    tools: str = ""  # a format's name; empty: calls are not looked for
    names: Sequence[str] = ()  # of the tools
    parallel: bool = True


class Manner:
    """What the choices of one stream share."""

    __slots__ = ("ends", "plan", "skipped", "stops", "vocabulary")

    def __init__(self, plan: Plan, vocabulary: Vocabulary) -> None:
        self.plan = plan
        self.vocabulary = vocabulary
        self.stops = Stops(plan.stop) if any(plan.stop) else None
        self.skipped: Collection[int] = vocabulary.special if plan.skip_special else ()
        if plan.tools and self.skipped:
            self.skipped = vocabulary.special - vocabulary.special_ids(MARKERS)
        self.ends = vocabulary.eos | frozenset(plan.stop_ids) if plan.stop_ids else vocabulary.eos


class Speaker:
    """One choice."""

    __slots__ = (
        "_chances",
        "_count",
        "_decoder",
        "_format",
        "_manner",
        "_search",
        "_singly",
        "_thinking",
        "_thought",
        "_token_ids",
        "_tokens",
        "ended",
    )

    def __init__(self, manner: Manner, choice: int = 0) -> None:
        plan = manner.plan
        self._manner = manner
        beginning = plan.beginnings[choice // plan.n]
        self._decoder = manner.vocabulary.decoder(skipped=manner.skipped, beginning=beginning)
        self._search = None if manner.stops is None else StopSearch(manner.stops, include=plan.include_stop)
        self._thinking = Thinking(plan.thinking) if plan.thinking else None
        self._format: Format | None = None
        if plan.tools:
            self._format = format_of(plan.tools, parallel=plan.parallel, names=plan.names)
        # Ids are read one by one where it matters which of them something came with.
        self._singly = self._search is not None or self._thinking is not None
        self._count = 0  # of all ids
        # Since the last piece:
        self._tokens = 0
        self._thought = 0  # of them
        self._token_ids: list[int] = []
        self._chances: list[Any] = []
        self.ended = False

    def replay(self, ids: Sequence[int], delivered: Delivered) -> None:
        """Go on behind ids whose pieces have been told already; add to `delivered` what those were."""
        out = _Out()
        self._read(ids, out)
        delivered.take(out.text, out.reasoning, out.tools)
        self._tokens = self._thought = 0
        self._token_ids = []

    def feed(
        self, ids: Sequence[int], finish: str = "", chances: Sequence[Sequence[Any]] | None = None
    ) -> dict[str, Any] | None:
        """Return the fields of the piece that these ids complete; None if there is nothing to tell yet.

        `finish` is the engine's. `chances` are, for each id, [id, logprob, rank] of it and of others.
        """
        if self.ended:
            return None
        out = _Out()
        read = self._read(ids, out, ended=finish == STOP)
        if chances:
            self._chances += [self._chance(entry) for entry in chances[:read]]
        reason = self._search.found if self._search is not None else ""
        if reason:
            finish = STOP
        if finish:
            self._end(out, found=bool(reason))
            self.ended = True
            plan = self._manner.plan
            if (
                finish == STOP
                and self._format is not None
                and self._format.told.calls
                and plan.tools != NAMED
            ):
                finish = TOOL_CALLS
        elif not (out.text or out.reasoning or out.tools or self._token_ids or self._chances):
            return None
        return self._piece(out, finish, reason)

    def _read(self, ids: Sequence[int], out: _Out, *, ended: bool = False) -> int:
        """Read ids, up to a stop text; return how many were read."""
        plan = self._manner.plan
        # An id that ended the generation is no text. It is counted, as engines do.
        mute = ended and len(ids) > 0 and not plan.include_stop and ids[-1] in self._manner.ends
        read = len(ids)
        if self._singly:
            read = self._read_singly(ids, mute, out)
        else:
            self._tell(self._decoder.feed(ids[:-1] if mute else ids), out)
            self._count += read
        self._tokens += read
        if plan.token_ids:
            self._token_ids += ids[:read]
        return read

    def _read_singly(self, ids: Sequence[int], mute: bool, out: _Out) -> int:
        search, thinking, least = self._search, self._thinking, self._manner.plan.min_tokens
        for place, token in enumerate(ids, 1):
            self._count += 1
            inside, known = (thinking.inside, thinking.started) if thinking is not None else (False, True)
            text = "" if mute and place == len(ids) else self._decoder.feed((token,))
            if search is not None and self._count > least:
                text = search.feed(text)
            self._tell(text, out)
            if inside:
                self._thought += 1
            elif not known and thinking is not None and thinking.inside:
                self._thought = self._count  # what was held until reasoning had begun
            if search is not None and search.found:
                return place
        return len(ids)

    def _tell(self, text: str, out: _Out) -> None:
        if not text:
            return
        if self._thinking is not None:
            reasoning, text = self._thinking.feed(text)
            out.reasoning += reasoning
        self._answer(text, out)

    def _answer(self, text: str, out: _Out) -> None:
        if self._format is None:
            out.text += text
        elif text:
            out.take(*self._format.feed(text))

    def _end(self, out: _Out, *, found: bool) -> None:
        """Tell what was held back, as nothing more comes."""
        if not found:
            rest = self._decoder.end()
            if self._search is not None:
                rest = self._search.feed(rest) + self._search.end()
            self._tell(rest, out)
        if self._thinking is not None:
            reasoning, text = self._thinking.end()
            out.reasoning += reasoning
            self._answer(text, out)
        if self._format is not None:
            out.take(*self._format.end())

    def _piece(self, out: _Out, finish: str, reason: str) -> dict[str, Any]:
        found = {
            "tokens": self._tokens,
            "text": out.text,
            "reasoning": out.reasoning,
            "tools": out.tools,
            "token_ids": self._token_ids,
            "chances": self._chances,
            "finish": finish,
            "reason": reason,
            "reasoning_tokens": self._thought,
        }
        self._tokens = self._thought = 0
        self._token_ids, self._chances = [], []
        return {name: value for name, value in found.items() if value}

    def _chance(self, entry: Sequence[Any]) -> list[Any]:
        """Return the chance of a generated id, and those of the most probable ones."""
        chosen, wanted = entry[0], self._manner.plan.logprobs
        others = {other[0]: other for other in entry} if wanted else {}
        ranked = sorted(others.values(), key=lambda other: int(other[2]))[:wanted]
        vocabulary = self._manner.vocabulary
        return [_named(chosen, vocabulary), [_named(other, vocabulary) for other in ranked]]


class _Out:
    """What is told in one piece."""

    __slots__ = ("reasoning", "text", "tools")

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.tools: list[Delta] = []

    def take(self, text: str, deltas: Sequence[Delta]) -> None:
        """Add what a format has told."""
        self.text += text
        for delta in deltas:
            if self.tools and self.tools[-1].call == delta.call:
                last = self.tools[-1]
                self.tools[-1] = last._replace(arguments=last.arguments + delta.arguments)
            else:
                self.tools.append(delta)


def named_all(chances: Sequence[Sequence[Any] | None], vocabulary: Vocabulary) -> list[list[Any] | None]:
    """Return the chances of a prompt's tokens with their texts, as a piece has those of an answer's."""
    return [
        [_named(each[0], vocabulary), [_named(other, vocabulary) for other in each[1:]]] if each else None
        for each in chances
    ]


def _named(chance: Sequence[Any], vocabulary: Vocabulary) -> list[Any]:
    token, logprob, rank = chance
    data = vocabulary.data(token)
    return [token, data.decode("utf-8", "replace"), logprob, rank, list(data)]


def plan_of(document: Mapping[str, Any]) -> Plan:
    """Return the plan that `Plan._asdict` made. Raises TypeError for keys that are none of its fields."""
    return Plan(**document)
