"""Whether a sequence model has kept its state.

Each answer tells of everything that its sequence has had executed before. A request that failed may or may
not have been executed. If the journal shows that it was executed to its end, its value may be in the sums
that follow; if not, it must not. What follows a START that was never executed must not be answered at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from chaos.checker.story import Story
from chaos.record.records import Invoke, Ok


@dataclass(frozen=True, slots=True)
class SequenceFault:
    """Something that is wrong with a request of a sequence."""

    story: Story
    what: str
    disorder: bool


class Lives:
    """Gathers the requests of each sequence, from its START to its END."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, int], list[Story]] = {}

    def add(self, story: Story) -> Iterator[Sequence[Story]]:
        """Take a request, and yield its sequence if the sequence is whole now."""
        key = (story.invoke.model, story.invoke.sequence)
        life = self._lives.setdefault(key, [])
        life.append(story)
        start = max(
            (each for each in life if each.invoke.start), key=lambda each: each.invoke.t, default=None
        )
        last = max((each.invoke.index for each in life if each.invoke.end), default=None)
        if start is None or last is None:
            return
        # A correlation id may be used again: an earlier life, cut short, is in the list as well.
        latest = sum(each.invoke.t >= start.invoke.t for each in life)
        if latest >= last - start.invoke.index + 1:
            del self._lives[key]
            yield from _split(life)

    def rest(self) -> Iterator[Sequence[Story]]:
        """Yield what never became whole."""
        for life in self._lives.values():
            yield from _split(life)
        self._lives.clear()


def judged(
    life: Sequence[Story], expected: Callable[[Invoke, Sequence[Invoke]], Sequence[int]]
) -> Iterator[SequenceFault]:
    """Yield what is wrong in one sequence, whose requests are in the order in which they were sent."""
    yield from _disorders(life)
    executed: list[Story] = []
    for story in life:
        end = story.end
        if isinstance(end, Ok):
            said = list(end.values)
            right = list(_rights(story, executed, expected))
            if not executed and not story.invoke.start:
                yield SequenceFault(
                    story, "answered, though nothing of its sequence was executed before", False
                )
            elif said not in right:
                words = " or ".join(str(each) for each in right)
                yield SequenceFault(story, f"{said}, and {words} is right", False)
        if isinstance(end, Ok) or _was_executed(story):
            executed.append(story)


def _rights(
    story: Story,
    executed: Iterable[Story],
    expected: Callable[[Invoke, Sequence[Invoke]], Sequence[int]],
) -> Iterator[list[int]]:
    """Yield the answers that may be right: with the executed requests that failed, and without them."""
    answered = [each.invoke for each in executed if isinstance(each.end, Ok)]
    everything = [each.invoke for each in executed]
    yield list(expected(story.invoke, everything))
    if len(answered) < len(everything):
        yield list(expected(story.invoke, answered))


def _was_executed(story: Story) -> bool:
    return any(each.end is not None for each in story.executions)


def _disorders(life: Sequence[Story]) -> Iterator[SequenceFault]:
    latest = float("-inf")
    for story in life:
        begins = [each.begin for each in story.executions]
        if begins and min(begins) < latest:
            yield SequenceFault(story, "executed before the request that its sequence had before it", True)
        latest = max([latest, *begins])


def _split(stories: Sequence[Story]) -> Iterator[Sequence[Story]]:
    """Cut at each START, because a correlation id may be used again.

    Within a life, the index is the order.
    """
    life: list[Story] = []
    for story in sorted(stories, key=lambda each: (each.invoke.t, each.invoke.index)):
        if story.invoke.start and life:
            yield sorted(life, key=lambda each: each.invoke.index)
            life = []
        life.append(story)
    if life:
        yield sorted(life, key=lambda each: each.invoke.index)
