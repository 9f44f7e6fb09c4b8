"""The controller of a fleet: looks at all replicas, and brings one change after the other over them.

It keeps nothing that it can't read back from the replicas. While it is gone, changes stop, and service does
not. Of several controllers one is at work, the owner of the highest epoch; others stand by.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from engine.fleet.loads import Loads, Tell
from engine.fleet.picture import Lane, Picture, Standing, is_settled, needed_for
from engine.fleet.policy.books import Books, UnknownBooks, read_books
from engine.fleet.policy.claims import Rival, enough, latest, next_epoch
from engine.fleet.policy.placing import place, why_fewer
from engine.fleet.policy.rolling import Roll
from engine.fleet.policy.scaling import wanted_replicas
from engine.fleet.policy.sharing import is_in_force, plan_for, plan_text, spared_by_all
from engine.fleet.policy.values import NONE, Load, Seen, Step, Unload, Wait, Wish, Write
from engine.fleet.ports import Look, Member, Refused, Replica, Superseded, Unreachable
from engine.fleet.wanted import Wanted

_MOST_STEPS: Final = 1000
_HEARTBEAT: Final = 2.0  # seconds
_FEWEST: Final = "sees {there} of {known} replicas: a change needs more than half of them"
_NONE: Final = "the fleet has no replicas: its file lists none, and none were found"

Discover = Callable[[Wanted], Awaitable[Sequence[Member]]]
Connect = Callable[[Member], Replica]


@dataclass(slots=True)
class _Known:
    """What is remembered of a replica."""

    member: Member
    port: Replica
    seen: Seen | None = None
    seen_at: float = -1e9
    trouble: str = "not asked yet"
    withdrawn_at: float | None = None
    shared: dict[str, tuple[str, str]] = field(
        default_factory=dict
    )  # by model: boot, and the plan it was given


class Controller:
    """Steers the fleet that `wanted` describes, which `read` returns anew at each turn.

    `name` is its own among controllers: one that is started again under the same name goes on at once.
    `forced` has it take over from one that works. `tell` gets events with their keys.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], Wanted],
        discover: Discover,
        connect: Connect,
        tell: Tell,
        *,
        forced: bool = False,
        only: str = "",
        dry: bool = False,
    ) -> None:
        self._name = name
        self._read = read
        self._discover = discover
        self._connect = connect
        self._tell = tell
        self._forced = forced
        self._only = only
        self._dry = dry
        self._known: dict[str, _Known] = {}
        self._rolls: dict[str, Roll] = {}
        self._loads = Loads(tell, self._lose)
        self._books = Books()
        self._epoch = 0
        self._sequence = 0
        self._written_at = 0.0
        self._works = False
        self._lost = ""  # why members could not be found
        self._rival: Rival | None = None
        self._is_blind = True  # it does not see enough of the fleet to say anything
        self._drain: dict[str, bool] = {}  # what is asked for, and not in the books yet
        self.picture = Picture()

    # -- what others ask for

    def drain(self, replica: str, *, back: bool = False) -> None:
        """Have a replica be emptied before it is removed, or come back."""
        self._drain[replica] = not back

    async def run(self, *, until: Callable[[Picture], bool] = lambda picture: False) -> Picture:
        """Steer until `until` says that the picture is what was waited for; return it."""
        async with trio.open_nursery() as nursery:
            while True:
                wanted = self._read()
                began = trio.current_time()
                await self._turn(wanted, nursery)
                if until(self.picture):
                    break
                await trio.sleep_until(began + wanted.timing.interval)
            nursery.cancel_scope.cancel()
        return self.picture

    async def close(self) -> None:
        """Leave the fleet to the next controller."""
        if self._works:
            self._works = False
            self._books = replace(self._books, owner="")
            self._sequence += 1
            with suppress(Superseded):
                await self._write(self._books, [each for each in self._known.values() if not each.trouble])

    # -- one turn

    async def _turn(self, wanted: Wanted, nursery: trio.Nursery) -> None:
        self._loads.forget(trio.current_time() - wanted.rules.retry)
        await self._meet(wanted)
        looks = await self._look(wanted)
        why = self._stand(wanted, looks)
        try:
            if not why and not self._works and not self._dry:
                await self._claim(wanted, looks)
            if not why and not self._dry:
                await self._keep(looks)
            waits = {} if why else await self._steer(wanted, looks, nursery)
        except Superseded as error:
            self._lose(str(error))
            waits, why = {}, str(error)
        self._paint(wanted, looks, waits, why)

    async def _meet(self, wanted: Wanted) -> None:
        """Know who belongs to the fleet."""
        try:
            members = await self._discover(wanted)
        except Unreachable as error:
            if str(error) != self._lost:
                self._tell("fleet_members_unknown", reason=str(error))
            self._lost = str(error)
            return
        self._lost = ""
        there = {each.name: each for each in members}
        for name in [*self._known]:
            if name not in there:
                del self._known[name]
                self._tell("fleet_replica_left", replica=name)
        for name, member in there.items():
            known = self._known.get(name)
            if known is None or known.member != member:
                self._known[name] = _Known(member, self._connect(member))
                self._tell("fleet_replica_joined", replica=name, url=member.url)

    async def _look(self, wanted: Wanted) -> dict[str, Look]:
        looks: dict[str, Look] = {}
        models = {wish.model: [wish.release] for wish in wanted.wishes}
        plans = {wish.model for wish in wanted.wishes if wish.traffic is not None}
        for model, ledger in self._books.ledgers.items():
            models.setdefault(model, []).extend((ledger.good, ledger.rolling, *ledger.refused))

        async def look(known: _Known) -> None:
            trying = any(roll.trying == known.member.name for roll in self._rolls.values())
            try:
                with trio.fail_after(wanted.timing.request):
                    seen = await known.port.look(models, plans=plans, deep=trying)
            except (Unreachable, trio.TooSlowError) as error:
                known.trouble = str(error) or f"no answer within {wanted.timing.request:g} s"
                return
            known.trouble = ""
            known.seen_at = trio.current_time()
            known.seen = replace(
                self._loads.shown_in(seen.seen),
                labels=known.member.labels,
                room=known.member.memory,
            )
            if not seen.seen.withdrawn:
                known.withdrawn_at = None
            elif known.withdrawn_at is None:
                known.withdrawn_at = known.seen_at
            looks[known.member.name] = replace(seen, seen=known.seen)

        async with trio.open_nursery() as nursery:
            for known in self._known.values():
                nursery.start_soon(look, known)
        # A server that is met under another name as well counts once, by the first.
        first: dict[str, str] = {}
        for name, one in sorted(looks.items()):
            if (other := first.setdefault(one.seen.boot, name)) != name:
                self._known[name].trouble = f"it is the same server as {other}; list it once"
        return {name: one for name, one in sorted(looks.items()) if first[one.seen.boot] == name}

    # -- who is at work

    def _stand(self, wanted: Wanted, looks: Mapping[str, Look]) -> str:
        """Return why to do nothing, or nothing."""
        self._is_blind = True
        if not self._known:
            return self._lost or _NONE
        if not enough(looks, self._known):
            return _FEWEST.format(there=len(looks), known=len(self._known))
        last = latest(look.register for look in looks.values())
        try:
            books = read_books(last.document)
        except UnknownBooks as error:
            return str(error)
        self._is_blind = False
        if self._works:
            if max(look.register.epoch for look in looks.values()) > self._epoch:
                self._lose(f"controller {books.owner or 'unknown'} has taken over")
                return f"controller {books.owner or 'unknown'} has taken over"
            return ""
        self._books, self._epoch = books, last.written
        if self._dry or self._forced:
            return ""
        if self._rival is None:
            self._rival = Rival()
        if self._rival.works(last, books.owner, self._name, wanted.timing.takeover, trio.current_time()):
            return f"controller {books.owner} is at work"
        return ""

    def _lose(self, why: str) -> None:
        if self._works:
            self._tell("fleet_taken_over", reason=why)
        self._works, self._rival = False, None
        self._forced = False  # once
        self._rolls.clear()

    async def _claim(self, wanted: Wanted, looks: Mapping[str, Look]) -> None:
        epoch = next_epoch((look.register for look in looks.values()), random.getrandbits(16))
        registers = {}
        for name in looks:
            try:
                registers[name] = await self._known[name].port.write(epoch, 0, None)
            except Unreachable as error:
                self._known[name].trouble = str(error)
        if not enough(registers, self._known):
            raise Superseded("too few replicas took the claim")
        # What was written last before the claim: no other controller's writes are taken from now on.
        self._books = replace(read_books(latest(registers.values()).document), owner=self._name)
        self._epoch, self._sequence, self._works, self._forced = epoch, 0, True, False
        self._tell("fleet_claimed", epoch=epoch, replicas=len(registers))
        await self._spread(self._books)

    async def _keep(self, looks: Mapping[str, Look]) -> None:
        """Write the books again where they are missing, and now and then so that others see them written."""
        due = trio.current_time() - self._written_at >= _HEARTBEAT
        behind = any(look.register.age < (self._epoch, self._sequence) for look in looks.values())
        books = self._with_drained(looks)
        if due or behind or books != self._books:
            await self._spread(books)

    def _with_drained(self, looks: Mapping[str, Look]) -> Books:
        drained = dict(self._books.drained)
        for name, wanted in [*self._drain.items()]:
            if wanted and name in looks:
                drained[name] = looks[name].seen.boot
            elif not wanted:
                drained.pop(name, None)
            else:
                continue
            del self._drain[name]
        # One that was started again is there to serve.
        drained = {n: b for n, b in drained.items() if n not in looks or looks[n].seen.boot == b}
        drained = {n: b for n, b in drained.items() if n in self._known}
        return self._books if drained == self._books.drained else replace(self._books, drained=drained)

    async def _spread(self, books: Books) -> None:
        """Have more than half of the replicas keep the books. Raises Superseded, also if that fails."""
        self._sequence += 1
        taken = await self._write(books, [each for each in self._known.values() if not each.trouble])
        if not enough(taken, self._known):
            raise Superseded(f"the books were kept by {len(taken)} of {len(self._known)} replicas only")
        self._books = books
        self._written_at = trio.current_time()

    async def _write(self, books: Books, replicas: Sequence[_Known]) -> list[str]:
        document, taken, lost = books.document(), [], []

        async def write(known: _Known) -> None:
            name = known.member.name
            try:
                await known.port.write(
                    self._epoch, self._sequence, document, withdrawn=self._withdrawn(name, books)
                )
            except Unreachable as error:
                known.trouble = str(error)
            except Superseded as error:
                lost.append(str(error))
            else:
                taken.append(name)

        async with trio.open_nursery() as nursery:
            for known in replicas:
                nursery.start_soon(write, known)
        if lost:
            raise Superseded(lost[0])
        return taken

    def _withdrawn(self, name: str, books: Books) -> bool | None:
        """Return whether a replica is to be kept from being ready; None where that is left as it is."""
        if name in books.drained:
            if self.picture.standing is not Standing.WORKS:
                return None
            seen = {each: known.seen for each, known in self._known.items()}
            return None if needed_for(name, self.picture.lanes, seen) else True
        return False if self._has_all(name) else None

    def _has_all(self, name: str) -> bool:
        """Whether a replica serves all that it should by now."""
        seen = self._known[name].seen
        if seen is None or self.picture.standing is not Standing.WORKS:
            return False
        return all(
            bool(seen.served(lane.model).ready)
            for lane in self.picture.lanes
            if name in lane.placed and (lane.good or lane.rolling)
        )

    # -- what is done

    async def _steer(
        self, wanted: Wanted, looks: Mapping[str, Look], nursery: trio.Nursery
    ) -> dict[str, Wait]:
        seen = {name: look.seen for name, look in looks.items()}
        # What is to be removed keeps its models for those who still send there.
        seen = {name: each for name, each in seen.items() if name not in self._books.drained}
        placed, _ = self._place(wanted)
        waits: dict[str, Wait] = {}
        for model in self._models(wanted):
            if self._only and model != self._only:
                continue
            wish = wanted.wish(model)
            holders = [name for name in placed.get(model, ()) if name in seen]
            waits[model] = await self._bring(model, wish, holders, seen, wanted, nursery)
            if wish is not None and wish.traffic is not None and not self._dry and not waits[model].why:
                waits[model] = await self._share(wish, holders, seen)
        return waits

    def _models(self, wanted: Wanted) -> list[str]:
        """Return the models that the file names, and those that the fleet serves still."""
        return sorted({wish.model for wish in wanted.wishes} | set(self._books.ledgers))

    def _place(self, wanted: Wanted) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
        """Return each model's replicas, and why it has too few. One that just went away keeps its place."""
        now = trio.current_time()
        there = {
            name: known.seen
            for name, known in self._known.items()
            if known.seen is not None
            and name not in self._books.drained
            and now - known.seen_at <= wanted.rules.return_timeout
        }
        placed = place(wanted.wishes, there)
        return placed, {each.model: why_fewer(each, placed[each.model], there) for each in wanted.wishes}

    async def _bring(
        self,
        model: str,
        wish: Wish | None,
        holders: Sequence[str],
        seen: Mapping[str, Seen],
        wanted: Wanted,
        nursery: trio.Nursery,
    ) -> Wait:
        """Do what there is to do for a model; return what is waited for."""
        roll = Roll(model) if self._dry else self._rolls.setdefault(model, Roll(model))
        view = dict(seen)
        for _ in range(_MOST_STEPS):
            step = roll.step(
                wish, self._books.ledger(model), holders, view, wanted.rules, trio.current_time()
            )
            if isinstance(step, Wait):
                return step
            if self._dry:
                return Wait(model, _planned(step))
            if isinstance(step, Unload):
                # Others first: a replica that gives a model up may be the last that has it.
                await self._unload(step)
                gone = view[step.replica]
                left = {name: each for name, each in gone.models.items() if name != model}
                view[step.replica] = replace(gone, models=left)
            elif isinstance(step, Load):
                there = view[step.replica]
                self._loads.begin(step, self._known[step.replica].port, there.boot, self._epoch, nursery)
                view[step.replica] = self._loads.shown_in(there)
            else:
                await self._note(step)
        raise AssertionError(f"no end of steps for model {model}")

    async def _note(self, step: Write) -> None:
        ledgers = {**self._books.ledgers, step.model: step.ledger}
        if step.ledger.good == NONE and not step.ledger.rolling and not step.ledger.refused:
            del ledgers[step.model]
        await self._spread(replace(self._books, ledgers=ledgers))
        self._tell("fleet_decided", model=step.model, decision=step.why)

    async def _unload(self, step: Unload) -> None:
        self._tell("fleet_unload", replica=step.replica, model=step.model)
        try:
            await self._known[step.replica].port.unload(step.model, self._epoch)
        except (Refused, Unreachable) as error:
            self._tell("fleet_unload_failed", replica=step.replica, model=step.model, reason=str(error))

    async def _share(self, wish: Wish, holders: Sequence[str], seen: Mapping[str, Seen]) -> Wait:
        """Have all replicas of a model share its requests out alike; return what is waited for."""
        plan = wish.traffic or {}
        known = self._books.spared.get(wish.model)
        if plan:
            spared = spared_by_all(wish.model, plan, known, [seen[name] for name in holders])
            if spared != known:
                books = replace(self._books, spared={**self._books.spared, wish.model: spared})
                await self._spread(books)
                for version, why in spared.versions.items():
                    self._tell("fleet_traffic_rolled_back", model=wish.model, version=version, reason=why)
            plan = plan_for(plan, spared)
        waits = Wait(wish.model)
        for name in holders:
            shown = seen[name].served(wish.model).traffic
            given = seen[name].boot, plan_text(plan)
            replica = self._known[name]
            if shown is None or is_in_force(plan, (), shown) or replica.shared.get(wish.model) == given:
                continue
            waits = Wait(wish.model, f"{name} takes the traffic plan")
            try:
                await replica.port.share(wish.model, plan, self._epoch)
            except (Refused, Unreachable) as error:
                refused = f"{name} does not take the traffic plan: {error}"
                waits = Wait(wish.model, refused, stuck=isinstance(error, Refused))
            else:
                replica.shared[wish.model] = given
                self._tell("fleet_traffic", replica=name, model=wish.model)
        return waits

    # -- what is shown

    def _paint(self, wanted: Wanted, looks: Mapping[str, Look], waits: Mapping[str, Wait], why: str) -> None:
        placed, short = self._place(wanted)
        lanes = []
        for model in self._models(wanted):
            wish, ledger = wanted.wish(model), self._books.ledger(model)
            spared = self._books.spared.get(model)
            lanes.append(
                Lane(
                    model=model,
                    wanted=wish.release if wish else NONE,
                    good=ledger.good,
                    rolling=ledger.rolling,
                    trying=self._rolls[model].trying if model in self._rolls else "",
                    passed=sorted(ledger.passed),
                    refused=ledger.refused,
                    placed=placed.get(model, ()),
                    spared=spared.versions if spared else {},
                    waits=waits[model].why if model in waits else "",
                    stuck=model in waits and waits[model].stuck,
                    short=short.get(model, ""),
                )
            )
        standing = Standing.WORKS if self._works or self._dry else Standing.STANDS_BY
        self.picture = Picture(
            standing=standing,
            why=why,
            epoch=self._epoch,
            owner=self._books.owner,
            members=[known.member for known in self._known.values()],
            looks=looks,
            troubles={name: known.trouble for name, known in self._known.items() if known.trouble},
            lanes=lanes,
            drained={
                name: self._is_empty(name, looks, wanted.timing.drain_delay) for name in self._books.drained
            },
            replicas_wanted=wanted_replicas(wanted.scale, (look.seen.waiting for look in looks.values())),
            settled=not self._is_blind
            and not self._loads
            and len(looks) == len(self._known)
            and (bool(self._only) or not self._holds(looks))
            and is_settled([lane for lane in lanes if self._only in ("", lane.model)], looks),
        )

    def _holds(self, looks: Mapping[str, Look]) -> bool:
        """Whether a replica waits still to be told that it has its models."""
        return any(look.seen.withdrawn and name not in self._books.drained for name, look in looks.items())

    def _is_empty(self, name: str, looks: Mapping[str, Look], delay: float) -> bool:
        """Whether a replica may be ended: balancers have seen it unready, and nothing waits there."""
        if name not in looks:
            return name not in self._known
        since = self._known[name].withdrawn_at
        told = since is not None and trio.current_time() - since >= delay
        return told and not looks[name].seen.waiting


def _planned(step: Step) -> str:
    match step:
        case Load():
            return f"load {step.release} on {step.replica}"
        case Unload():
            return f"unload it on {step.replica}"
        case Write():
            return step.why
        case _:
            return ""
