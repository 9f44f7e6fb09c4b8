"""The line of runs that are ready for an engine: each waits here until one has room for it. Passive.

    resumed   another engine had them before: they go first, one after the other
    new       the others. While any waits here, few further requests leave the version's queue
    coming    they have an engine, whose queue could not take them at once: a task submits them, in order

Which engine has room is `actors.generation.policy.placement`'s to say. A turn of the generator looks again
whenever a run has ended or begun, or an engine has come or gone.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final, NoReturn

import trio

from actors.generation.engine import Engine
from actors.generation.families import EngineLoad, RouteCount
from actors.generation.policy.placement import EngineSize, Placement, Route, Seat
from actors.generation.policy.prefixes import MOST_BLOCKS, chained, seed_of
from actors.seams.bell import Bell
from actors.values.errors import Internal, TritiumError, Unavailable

if TYPE_CHECKING:
    from actors.generation.generation import EngineRun
    from actors.generation.resumption import Resumption

WINDOW: Final = 16
"""Runs of the line that are looked at: so many may be ready and wait for room."""


PLACED_AT_ONCE: Final = 32
"""Runs that are given to engines in one turn of the loop."""


class EngineLine:
    """See the module."""

    def __init__(
        self, engine: Engine, resumption: Resumption, ring: Callable[[], None], *, queued: int = 0
    ) -> None:
        """`ring` has the generator take a turn. `queued` is the bound of `Placement`."""
        self._engine = engine
        self._resumption = resumption
        self._ring = ring
        self.placement = Placement(queued)
        self._counts = {route: [0, 0, 0] for route in Route}  # the numbers of `RouteCount`
        self._resumed: dict[EngineRun, None] = {}
        self._new: dict[EngineRun, None] = {}
        self._coming: deque[EngineRun] = deque()
        self._submitting: EngineRun | None = None  # the first of these, while its submission waits
        self._came = Bell()
        self._reserved = False  # room that comes is for what is to leave an engine, and not for what is new
        self._resting = False  # engines sleep, or are to, so nothing new begins
        # What may still be done in this turn of the loop: blocks to hash or note, and runs to give away.
        self._blocks, self._placing = MOST_BLOCKS, PLACED_AT_ONCE

    def __len__(self) -> int:
        """How many runs wait."""
        return len(self._resumed) + len(self._new) + len(self._coming)

    @property
    def resuming(self) -> bool:
        """Whether a run that another engine had waits for room."""
        return bool(self._resumed)

    def has_place(self, opening: int) -> bool:
        """Whether another run may come to wait, where so many requests are about to."""
        if self._coming:
            return False
        if self._resumed:
            return self.refuses
        return not self._new or len(self._new) + opening < WINDOW

    @property
    def refuses(self) -> bool:
        """Whether no engine lives, and new runs do not wait for one."""
        return not self.placement.accounts and self._refusal(resumed=False) is not None

    @property
    def loads(self) -> list[EngineLoad]:
        """What each engine has."""
        return [
            EngineLoad(each.name, len(each.seats), each.queued, each.held, len(each.known))
            for each in self.placement.accounts.values()
        ]

    @property
    def routes(self) -> list[RouteCount]:
        """What was given to engines so far."""
        counts = self._counts
        return [RouteCount(route.value, *counts[route]) for route in Route if counts[route][0]]

    # -- runs come -------------------------------------------------------------------------------------------

    def submit(self, run: EngineRun) -> None:
        """Give a run to an engine, at once or when there is room. Its answer may be an error."""
        run.line = self
        self._new[run] = None
        if self._resting:
            self._ring()  # for it, engines are to wake
        elif len(self._new) <= WINDOW:
            self._advance()

    def take_up(self, run: EngineRun) -> None:
        """The same for one that another engine had before."""
        run.line = self
        self._resumed[run] = None
        self._advance()

    def turn(self) -> None:
        """Give engines what they have room for now. Rings if that takes another turn."""
        self._blocks, self._placing = MOST_BLOCKS, PLACED_AT_ONCE
        self._advance()

    def look(self) -> None:
        """Have the generator look again if an engine has come or gone."""
        come_or_gone = self.placement.living(self._engine.engines)
        if come_or_gone or (len(self) and not self.placement.accounts):
            self._ring()

    def _advance(self) -> None:
        if not (self._resumed or self._new) or self._coming:
            return
        if self.placement.living(self._engine.engines):
            self._ring()  # more may begin now than what is in line
        if not self.placement.accounts:
            self._refuse()
            return
        while self._resumed and not self._coming:
            if not self._place(self._resumed):
                return
        if self._resumption.trial or len(self._resumption) or self._reserved or self._resting:
            return  # meanwhile nothing else begins
        while self._new and not self._coming:
            if not self._place(self._new):
                return

    def _refuse(self) -> None:
        """While no engine lives, runs wait for one, unless they are not to."""
        for line in (self._resumed, self._new):
            error = self._refusal(resumed=line is self._resumed)
            while line and error is not None:
                run = next(iter(line))
                del line[run]
                run.put(error, final=True)

    def turn_away(self, why: str) -> None:
        """End all that waits for an engine, and say why."""
        for run in [*self._resumed, *self._new]:
            run.generation.give_up(Unavailable(f"{run.parent.prefix}{why}"))

    def _refusal(self, *, resumed: bool) -> TritiumError | None:
        try:
            self._engine.check(resumed=resumed)
        except TritiumError as error:
            return error
        return None

    def _place(self, line: dict[EngineRun, None]) -> bool:
        """Give the next run of a line to an engine; return whether one had room."""
        if not self._placing or self._blocks <= 0:
            self._ring()  # lets other tasks have the loop in between
            return False
        runs: list[EngineRun] = []
        for run in islice(line, 1 if line is self._resumed else WINDOW):
            if run.seat is None and not self._prepare(run):
                self._ring()  # likewise
                break
            runs.append(run)
        seats = [run.seat for run in runs if run.seat is not None]
        chosen = self.placement.next(seats)
        if chosen is None:
            return False
        run, seat = runs[chosen.place], seats[chosen.place]
        del line[run]
        self._placing -= 1
        self._blocks -= len(seat.hashes)
        self.placement.take(seat, chosen.account)
        self._count(seat, chosen.route)
        self._hand(run)
        return True

    def _count(self, seat: Seat, route: Route) -> None:
        counts = self._counts[route]
        counts[0] += 1
        counts[1] += seat.prompt
        counts[2] += seat.prompt - seat.left

    def _hand(self, run: EngineRun) -> None:
        """Give a run to its engine."""
        try:
            self._engine.submit_nowait(run.request)
        except trio.WouldBlock:
            self._coming.append(run)
            self._came.ring()
        except TritiumError as error:
            run.put(error, final=True)
        except Exception:
            run.put(Internal(f"{run.parent.prefix}could not be given to the engine"), final=True)
            raise
        else:
            run.submitted = True

    async def submit_coming(self) -> NoReturn:
        """Submit what its engine could not take at once, for ever."""
        heard = 0
        while True:
            heard = await self._came.wait(heard)
            while self._coming:
                await self._submit(self._coming[0])
            self._ring()

    async def _submit(self, run: EngineRun) -> None:
        """Submit the first that comes. Where this is cancelled, it still comes."""
        error: TritiumError | None = None
        self._submitting = run
        try:
            if not run.ended:
                await self._engine.submit(run.request)
                run.submitted = True
        except TritiumError as refusal:
            error = refusal
        except Exception:
            self._coming.popleft()
            run.put(Internal(f"{run.parent.prefix}could not be given to the engine"), final=True)
            raise
        finally:
            self._submitting = None
        self._coming.popleft()
        if error is not None:
            run.put(error, final=True)

    # -- what becomes of them --------------------------------------------------------------------------------

    def call_off(self, run: EngineRun) -> None:
        """Nothing more of a run is wanted."""
        if run.submitted or run is self._submitting:
            self._engine.cancel(run.request)
            return
        run.ended = True
        self._resumed.pop(run, None)
        self._new.pop(run, None)
        self.ended(run)

    def began(self, run: EngineRun, cached: int = -1) -> None:
        """The first token of a run has come: the engine had `cached` tokens of its prompt; -1: not told."""
        if run.seat is not None:
            self.placement.began(run.seat, cached)
            if len(self):
                self._ring()

    def ended(self, run: EngineRun, *, whole: bool = False) -> None:
        """A run is over; `whole`: as its engine has said all of it."""
        seat = run.seat
        if seat is None or seat.account is None:
            return
        self.placement.ended(seat, self._text(run, seat) if whole and seat.begun else None)
        if len(self):
            self._ring()

    def place_anew(self, run: EngineRun) -> None:
        """The engine of a run has gone before it heard of it: another one has it now, if any lives."""
        seat = run.seat
        if seat is None:
            return
        self.placement.ended(seat)
        chosen = self.placement.choose(seat, anywhere=True) if self.placement.accounts else None
        if chosen is not None:
            self.placement.take(seat, chosen[0])

    def reserve(self, *, wanted: bool) -> None:
        """Have nothing new begin while `wanted`: what is to leave an engine waits for room in another."""
        if self._reserved and not wanted and len(self):
            self._ring()
        self._reserved = wanted

    def rest(self, *, wanted: bool) -> None:
        """Have nothing new begin while `wanted`: engines sleep, or are to."""
        self._resting = wanted

    @property
    def is_giving(self) -> bool:
        """Whether an engine is about to be given a run, however little new may begin."""
        return bool(self._resumed or self._coming)

    def has_room(self, run: EngineRun) -> bool:
        """Whether another engine has room for what its own is to end."""
        if self._resumed or self._coming:
            return False
        self.placement.living(self._engine.engines)
        choice, sampling = run.choice, run.choice.sampling
        said = len(choice.ids)
        seat = Seat(
            choice,
            prompt=len(choice.prompt.ids) + said,
            most=-1 if sampling.get("embed") else sampling["max_tokens"] - said,
            hashes=() if run.seat is None else run.seat.hashes,
        )
        return self.placement.has_room(seat)

    # -- what is known of a run ------------------------------------------------------------------------------

    def _prepare(self, run: EngineRun) -> bool:
        """Find out what can be known of a run before it begins. False: not in this turn of the loop."""
        choice = run.choice
        sampling, prompt, journal = choice.sampling, choice.prompt, run.generation.journal
        tokens = len(prompt.ids) + len(choice.ids)
        if sampling.get("embed"):
            run.seat = Seat(choice, prompt=tokens, most=-1)
            return True
        size = EngineSize.of(self._engine.facts)
        hashes: list[int] = []
        if size.shares and size.block_size:
            if not choice.ids and prompt.hashes is not None:
                hashes = prompt.hashes
            elif self._blocks <= 0:
                return False
            else:
                ids = prompt.ids + choice.ids if choice.ids else prompt.ids
                hashes = chained(ids, size.block_size, _seed_of(run))
                self._blocks -= len(hashes)
                if not choice.ids:
                    prompt.hashes = hashes
        run.seat = Seat(
            choice,
            prompt=tokens,
            most=sampling["max_tokens"] - len(choice.ids),
            hashes=hashes,
            affinity=run.parent.affinity,
            resumed=run.resumed,
            identity=journal.engine if choice.ids and journal is not None else "",
        )
        return True

    def _text(self, run: EngineRun, seat: Seat) -> list[int]:
        """Return the hashes of a whole text, prompt and answer."""
        account, hashes = seat.account, list(seat.hashes)
        size = account.size.block_size if account is not None and account.size.shares else 0
        if not size or len(hashes) >= MOST_BLOCKS:
            return hashes
        ids, choice = array("i"), run.choice
        skipped = len(hashes) * size
        ids.extend(choice.prompt.ids[skipped:])
        ids.extend(choice.ids[max(0, skipped - len(choice.prompt.ids)) :])
        before = hashes[-1] if hashes else _seed_of(run)
        return [*hashes, *chained(ids, size, before, most=MOST_BLOCKS - len(hashes))]


def _seed_of(run: EngineRun) -> int:
    sampling = run.choice.sampling
    return seed_of(str(sampling.get("adapter") or ""), str(sampling.get("cache_salt") or ""))
