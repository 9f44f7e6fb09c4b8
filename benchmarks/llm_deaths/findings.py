"""What became of streams through deaths of their engines. Pure.

All times are seconds since the run began. A stream is hit by a death if its engine was the one: its last
event says how many engines it has had, and its longest pauses across deaths are where it changed them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.llm_stream.timing import quantile

POISONED: Final = "poisoned"
UNLUCKY: Final = "is not tried once more"
TOO_LATE: Final = "(tritium.resume_within)"
BY_THE_RULE: Final = (POISONED, UNLUCKY, TOO_LATE)
"""Of what an error says with which the rule lets a stream end: docs/llm.md."""
NEAR: Final = 0.01
"""Two tokens whose logarithmic probabilities are closer than this may change places in another engine."""

ON_THEIR_WAY: Final = 0.5
"""Seconds for which events still come that a dead engine's last steps have brought about."""


@dataclass(slots=True)
class Stream:
    """One answer as its client saw it."""

    prompt: int
    asked: float
    texts: list[tuple[float, str]] = field(default_factory=list)  # when an event came, and its text
    attempts: int = 1  # engines that it took
    tokens: int = -1  # as usage says
    finish: str = ""
    error: str = ""
    streamed: bool = True

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(text for _, text in self.texts)


@dataclass(frozen=True, slots=True)
class Right:
    """An answer without a kill. `sure` characters of it follow from probabilities that are not near."""

    text: str
    tokens: int
    sure: int

    def is_met(self, stream: Stream) -> bool:
        """Whether a finished stream has this text, up to where another engine may choose otherwise."""
        if stream.text == self.text:
            return stream.tokens == self.tokens
        return self.sure < len(self.text) and stream.text[: self.sure] == self.text[: self.sure]


def sure_of(tokens: Sequence[tuple[str, Sequence[float]]]) -> int:
    """Return how many characters come before the first token whose two best are near.

    `tokens` are the tokens' texts, with the logarithmic probabilities of the best ones.
    """
    count = 0
    for text, best in tokens:
        if len(best) > 1 and best[0] - best[1] < NEAR:
            break
        count += len(text)
    return count


@dataclass(frozen=True, slots=True)
class Kill:
    """An engine that was killed, how many others stood, and when the one in its place was ready.

    A `ready` of -1 says that it was not.
    """

    at: float
    engine: str
    others: int = 0
    ready: float = -1.0


@dataclass(frozen=True, slots=True)
class Pause:
    """How long a stream that had begun said nothing, and since when, across the death of its engine.

    `stood`: another engine stood all the time.
    """

    begin: float
    seconds: float
    stood: bool


@dataclass(slots=True)
class Found:
    """All of a run."""

    streams: Sequence[Stream]
    kills: Sequence[Kill]
    rights: Mapping[int, Right]

    @property
    def ended(self) -> Sequence[Stream]:
        """Those that have come to their end, whichever."""
        return [each for each in self.streams if each.finish or each.error]

    @property
    def wrong(self) -> Sequence[Stream]:
        """Those with another text than without kills, or, where they ended early, than its beginning."""
        return [each for each in self.streams if not self._is_right(each)]

    def _is_right(self, stream: Stream) -> bool:
        right = self.rights[stream.prompt]
        if stream.finish and not stream.error:
            return right.is_met(stream)
        return right.text.startswith(stream.text) or stream.text[: right.sure] == right.text[: right.sure]

    @property
    def errors(self) -> Counter[str]:
        """Streams that ended with an error, by what it says."""
        return Counter(each.error for each in self.streams if each.error)

    @property
    def beyond_the_rule(self) -> int:
        """Streams that ended with an error which is none of the rule's own."""
        return sum(count for why, count in self.errors.items() if not any(own in why for own in BY_THE_RULE))

    @property
    def starts(self) -> Sequence[float]:
        """Seconds from a kill until the engine in its place was ready."""
        return [kill.ready - kill.at for kill in self.kills if kill.ready >= 0.0]

    @property
    def firsts(self) -> Sequence[float]:
        """Seconds to the first event of streams during which no engine died."""
        return [
            each.texts[0][0] - each.asked
            for each in self.streams
            if each.texts
            and each.streamed
            and each.attempts == 1
            and not self._across(each.asked, each.texts[0][0])
        ]

    def _across(self, begin: float, end: float) -> Sequence[Kill]:
        return [kill for kill in self.kills if begin - ON_THEIR_WAY <= kill.at <= end]

    def hit(self, stream: Stream, kill: Kill) -> Pause | None:
        """Return a stream's pause at a kill, if it had one."""
        across = [
            each
            for each in self.pauses_of(stream)
            if kill in self._across(each.begin, each.begin + each.seconds)
        ]
        return across[0] if across else None

    def pauses(self, *, stood: bool) -> Sequence[float]:
        """Return the seconds of all pauses, where another engine stood or where none did."""
        return [
            pause.seconds
            for stream in self.streams
            for pause in self.pauses_of(stream)
            if pause.stood is stood
        ]

    def pauses_of(self, stream: Stream) -> Sequence[Pause]:
        """Return the pauses of one stream, the longest first; a wait for its first event is none."""
        if not stream.streamed or not stream.texts:
            return []
        waits = sorted(self._waits(stream), key=lambda each: -each[0].seconds)[: stream.attempts - 1]
        return [pause for pause, spoke in waits if spoke]

    def _waits(self, stream: Stream) -> Iterator[tuple[Pause, bool]]:
        """Yield how long it waited across each time in which an engine died, and if it had spoken."""
        before, spoke = stream.asked, False
        for at, _ in stream.texts:
            kills = self._across(before, at)
            if kills:
                yield Pause(before, at - before, all(kill.others for kill in kills)), spoke
            before, spoke = at, True


def table(found: Found, seconds: float) -> Sequence[tuple[str, str]]:
    """Return what is told of a run, as labels and texts."""
    whole = [each for each in found.streams if each.finish and not each.error]
    survived = [each for each in whole if each.attempts > 1]
    rows = [
        ("seconds", f"{seconds:.0f}"),
        ("kills", f"{len(found.kills)}, {60 * len(found.kills) / seconds:.1f} a minute"),
        (
            "answers that came to their end",
            f"{len(whole)}, {sum(not each.streamed for each in whole)} not streamed",
        ),
        (
            "of these, through deaths",
            f"{len(survived)}, up to {max((each.attempts for each in whole), default=0)} engines",
        ),
        ("wrong texts or counts", str(len(found.wrong))),
        ("ended with an error", f"{found.errors.total()}, {found.beyond_the_rule} but by the rule"),
    ]
    rows += [(f"  {why}", str(count)) for why, count in found.errors.most_common(5)]
    for label, values in (
        ("engine's start, from its kill", found.starts),
        ("first event of a stream, without a death", found.firsts),
        ("pause at a death, where no other stood", found.pauses(stood=False)),
        ("pause at a death, where another stood", found.pauses(stood=True)),
    ):
        if not values:
            continue
        told = [quantile(values, share) for share in (0.5, 0.99)]
        rows.append((label, f"p50 {told[0]:.3f} s, p99 {told[1]:.3f} s, of {len(values)}"))
    return rows


def goals(found: Found) -> Iterator[tuple[str, float, float]]:
    """Yield median pauses, and what each may be at most: an engine's start, or a second, and a prefill.

    The prefill is taken to be what a stream waits for its first event.
    """
    prefill = quantile(found.firsts, 0.5)
    for label, stood, start in (
        ("no other stood", False, quantile(found.starts, 0.5)),
        ("another stood", True, 1.0),
    ):
        pauses = found.pauses(stood=stood)
        if pauses:
            yield label, quantile(pauses, 0.5), start + prefill
