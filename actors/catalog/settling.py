"""When is a change in a repository worth looking at? Only once it has come to rest.

Contract, repository.md section 3.1.

Theory of operation. A copy into a repository is seen in every state between nothing and done, and a mount
that is gone looks like an empty directory. So a single look is never believed:

- A model is read again once two successive looks at it have seen the same stamp, or at once if it is known to
  be complete. A model that is known to be incomplete waits for as long as it takes.
- A model has gone once two successive looks at its source, which answered, have both missed it.
- A source that does not answer says nothing at all about its models, and nothing is decided about them. When
  it is back, its models are compared with what was seen before it left: if they are unchanged, nothing is to
  be done. The lost source is reported when it is noticed, and once more when it has lasted, because a
  directory that was put in another's place is not believed at first either, and is back at once.

A stamp is only ever compared with another. Looking at a model is harmless, because the receiver of the
decision compares its content. So every model is looked at once after the start. A decision is per name: to
look if a source still has it, else that it has gone.

`Settling` holds what is known between the looks. It waits for nothing, and is told the time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, TypeAlias

from actors.values.specs import ModelKey

STILL_CHANGING: Final = "its files are still changing"

LASTING: Final = 30.0
"""Seconds without an answer after which a source is not merely being replaced.

A link that now leads elsewhere is such a replacement.
"""


@dataclass(frozen=True, slots=True)
class Complete:
    """A marker or a manifest of checksums says that everything is there."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A manifest says that something is missing or differs: what, each in a few words."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing says whether everything is there."""


Completeness: TypeAlias = Complete | Incomplete | Unknown


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look at a model saw: stamps that are equal mean that nothing was written between two looks."""

    stamp: Hashable
    completeness: Completeness = Unknown()


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A source did not answer, or its answer is not to be trusted."""

    reason: str


View: TypeAlias = NoAnswer | Mapping[str, Seen]
"""One look at one source: its models by name."""

Observation: TypeAlias = Mapping[str, View]
"""One look at the sources, by URI.

A source that is not in it has no news: it is as if there had been no look at it.
"""


class Change(StrEnum):
    """What is new about a model."""

    FIRST_SEEN = "first_seen"  # there is no earlier state to compare it with, as at the start
    ADDED = "added"
    MODIFIED = "modified"


@dataclass(frozen=True, slots=True)
class Changed:
    """Something is new about a model, and it has come to rest: it is to be read again."""

    key: ModelKey
    change: Change


@dataclass(frozen=True, slots=True)
class Left:
    """No source has the model any more."""

    key: ModelKey


@dataclass(frozen=True, slots=True)
class Listed:
    """Every source has been read, and all decisions about their models were told before."""


Decision: TypeAlias = Changed | Left

News: TypeAlias = Decision | Listed
"""What the catalog is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A change that is not acted on yet, when it was first seen, and why it waits.

    Without reasons it was seen only once.
    """

    source: str
    name: str
    since: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLost:
    """A source does not answer; the models it had last are taken to be still there.

    `lasting`: it has not answered for `LASTING` seconds.
    """

    source: str
    since: float
    reason: str
    lasting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBack:
    """A source answers again, after that many seconds without an answer."""

    source: str
    after: float


Notice: TypeAlias = Waiting | SourceLost | SourceBack


@dataclass(frozen=True, slots=True)
class Findings:
    """What to do, at most one decision for each model, and what to report, each thing once."""

    decisions: tuple[Decision, ...] = ()
    notices: tuple[Notice, ...] = ()


class _Mark(Enum):
    """What stands in place of a stamp."""

    ABSENT = "absent"  # there is no such model
    NEVER = "never"  # no decision was made yet
    BROKEN = "broken"  # there was no look just before


@dataclass(slots=True)
class _Place:
    """One name in one source."""

    # The stamp, or the mark, of the last decision.
    decided: Hashable
    # What the look before saw.
    previous: Hashable = _Mark.BROKEN
    # When a change was first seen that is not decided.
    since: float | None = None
    reasons: tuple[str, ...] = ()
    # Two successive looks saw different things, and that is not decided.
    moved: bool = False

    def see(self, seen: Seen | None, now: float) -> Change | None:
        """Take note of a look, and return what is new if it is time to decide on it."""
        current: Hashable = _Mark.ABSENT if seen is None else seen.stamp
        before, self.previous = self.previous, current
        if current == self.decided:
            self.since, self.reasons, self.moved = None, (), False
            return None
        self.moved |= before is not _Mark.BROKEN and current != before
        first = self.since is None
        if self.since is None:
            self.since = now
        match Unknown() if seen is None else seen.completeness:
            case Incomplete(reasons):
                self.reasons = reasons
                return None
            case Unknown() if current != before:
                growing = not first and _Mark.BROKEN is not before and seen is not None
                self.reasons = (STILL_CHANGING,) if growing else ()
                return None
        change = self._change
        self.decided, self.since, self.reasons, self.moved = current, None, (), False
        return change

    @property
    def _change(self) -> Change:
        if self.decided is _Mark.ABSENT:
            return Change.ADDED
        if self.decided is _Mark.NEVER and not self.moved:
            return Change.FIRST_SEEN
        return Change.MODIFIED

    @property
    def held(self) -> bool:
        """Whether the name is there, as far as the last decision said."""
        return self.decided is not _Mark.ABSENT

    @property
    def forgettable(self) -> bool:
        """Whether a place that was never looked at would do as well."""
        return not self.held and self.since is None


@dataclass(slots=True)
class _Shelf:
    """One source."""

    looked: bool = False  # it has answered at least once
    places: dict[str, _Place] = field(default_factory=dict)
    lost: SourceLost | None = None

    def lose(self, source: str, reason: str, now: float) -> Iterator[Notice]:
        """The source does not answer: what was seen twice running must be seen twice anew."""
        for place in self.places.values():
            place.previous = _Mark.BROKEN
        since = now if self.lost is None else self.lost.since
        lost = SourceLost(source=source, since=since, reason=reason, lasting=now - since >= LASTING)
        if lost != self.lost:
            self.lost = lost
            yield lost

    def place(self, name: str) -> _Place:
        """Return the place of a name, which may be new."""
        place = self.places.get(name)
        if place is None:
            place = self.places[name] = _Place(_Mark.ABSENT if self.looked else _Mark.NEVER)
        return place


class Settling:
    """Everything seen of all sources so far; see the module.

    With `namespacing`, equal names in two sources are two models; otherwise they are one, which is looked at
    when it appears in another source or leaves one of them.
    """

    def __init__(self, *, namespacing: bool = False) -> None:
        self._namespacing = namespacing
        self._shelves: dict[str, _Shelf] = {}

    def observe(self, observation: Observation, *, now: float) -> Findings:
        """Take note of one look at the sources, and decide what to do about it."""
        changes: dict[ModelKey, Change] = {}
        notices: list[Notice] = []
        for source, view in observation.items():
            shelf = self._shelves.setdefault(source, _Shelf())
            if isinstance(view, NoAnswer):
                notices += shelf.lose(source, view.reason, now)
                continue
            if shelf.lost is not None:
                notices.append(SourceBack(source=source, after=now - shelf.lost.since))
                shelf.lost = None
            for name in sorted({*shelf.places, *view}):
                place = shelf.place(name)
                reasons = place.reasons
                change = place.see(view.get(name), now)
                if change is not None:
                    key = self._key(name, source)
                    changes[key] = Change.MODIFIED if key in changes else change
                elif place.since is not None and place.reasons and place.reasons != reasons:
                    notices.append(
                        Waiting(source=source, name=name, since=place.since, reasons=place.reasons)
                    )
            shelf.looked = True
        decisions = tuple(self._decision(key, change) for key, change in changes.items())
        self._tidy()
        return Findings(decisions, tuple(notices))

    def look_again(self, key: ModelKey, *, changed: bool) -> None:
        """A look failed through no fault of the model's: have it repeated when its source answers.

        `changed`: it was to be looked at because it has changed.
        """
        for place in self._places_of(key):
            place.decided = _Mark.NEVER
            place.moved |= changed

    def waiting(self) -> tuple[Waiting, ...]:
        """Return every change that is not acted on yet.

        The first look at every model after the start is not such a change.
        """
        return tuple(
            Waiting(source=source, name=name, since=place.since, reasons=place.reasons)
            for source, shelf in self._shelves.items()
            for name, place in sorted(shelf.places.items())
            if place.since is not None and (place.decided is not _Mark.NEVER or place.reasons)
        )

    def unavailable(self) -> tuple[SourceLost, ...]:
        """Return every source that does not answer."""
        return tuple(shelf.lost for shelf in self._shelves.values() if shelf.lost is not None)

    @property
    def found_all(self) -> bool:
        """Whether every source answers and all its models are decided on, except known unfinished ones."""
        return all(
            shelf.looked
            and shelf.lost is None
            and all(place.since is None or place.reasons for place in shelf.places.values())
            for shelf in self._shelves.values()
        )

    def _key(self, name: str, source: str) -> ModelKey:
        return ModelKey(name, source if self._namespacing else "")

    def _places_of(self, key: ModelKey) -> list[_Place]:
        return [
            shelf.places[key.name]
            for source, shelf in self._shelves.items()
            if key == self._key(key.name, source) and key.name in shelf.places
        ]

    def _decision(self, key: ModelKey, change: Change) -> Decision:
        places = self._places_of(key)
        held = sum(place.held for place in places)
        if not held:
            return Left(key)
        for place in places:
            # The look that follows also sees changes in other sources that have not come to rest.
            if place.since is not None:
                place.decided = _Mark.NEVER
        return Changed(key, Change.MODIFIED if held > 1 and change is Change.ADDED else change)

    def _tidy(self) -> None:
        for shelf in self._shelves.values():
            shelf.places = {name: place for name, place in shelf.places.items() if not place.forgettable}
