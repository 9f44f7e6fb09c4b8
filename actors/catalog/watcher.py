"""The watcher: in poll mode, it looks at the repositories every few seconds and tells the catalog of changes.

It tells only changes that have come to rest. `actors.catalog.settling` makes the decisions. This actor
keeps the time, carries decisions out, and shows what it waits for. Its observations outlive its crashes. So a
new life does not look at everything again, and does not forget the changes that it was about to tell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, assert_never

import trio

from actors.catalog.deployment import INTENSITY
from actors.catalog.settling import (
    Change,
    Changed,
    Decision,
    Left,
    Listed,
    News,
    Notice,
    Observation,
    Settling,
    SourceBack,
    SourceLost,
    Waiting,
)
from actors.seams import faults
from actors.supervision.context import ChildContext
from actors.supervision.spec import Backoff, ChildSpec, OnExhausted
from actors.values.events import Event, Log
from actors.values.specs import ModelKey

MOST_SHOWN: Final = 50  # models that the tree names as waited for


class Watcher:
    """Passive around the actor `run`; see the module.

    `news` leads to the catalog. `observe` returns one look at the sources. It may take any time, on
    threads that it leaves behind when it is cancelled: the next look begins `interval` seconds after one
    has ended. An exception of `observe` ends a life of the actor, and each new life begins later than the
    one before (`spec`). `wall_clock` returns seconds since 1970, for readers of the tree.
    """

    def __init__(
        self,
        observe: Callable[[], Awaitable[Observation]],
        news: trio.MemorySendChannel[News],
        *,
        interval: float,
        log: Log,
        wall_clock: Callable[[], float],
        namespacing: bool = False,
    ) -> None:
        if interval <= 0:
            raise ValueError(f"the watcher's interval is {interval} s; it needs some time between two looks")
        self._observe = observe
        self._news = news
        self._interval = interval
        self._log = log
        self._wall_clock = wall_clock
        self._settling = Settling(namespacing=namespacing)
        self._decided: deque[Decision] = deque()

    def spec(self, name: str = "watcher") -> ChildSpec:
        """Return the actor as a child: it is restarted for ever, without effect on its siblings."""
        return ChildSpec(
            name,
            self.run,
            intensity=INTENSITY,
            on_exhausted=OnExhausted.RETRY_AT_CAP,
            backoff=Backoff(initial=1.0, cap=max(30.0, self._interval)),
        )

    def look_again(self, key: ModelKey, *, changed: bool) -> None:
        """Tell the catalog of a model again at the next poll, and whether it was told of a change.

        The catalog could not look at it, for no fault of the model's.
        """
        self._settling.look_again(key, changed=changed)

    async def run(self, ctx: ChildContext) -> None:
        """Look, tell, sleep, and so on."""
        ctx.started()
        while True:
            await self._carry_out()
            ctx.publish(poll_seconds=self._interval, looking_since=self._told(trio.current_time()))
            observation = await self._look()
            now = trio.current_time()
            findings = self._settling.observe(observation, now=now)
            self._decided += findings.decisions
            for notice in findings.notices:
                self._tell(notice, now)
            ctx.publish(
                looking_since=None,
                looked=self._told(now),
                waiting=self._waiting(),
                unavailable={
                    lost.source: f"since {self._told(lost.since)}: {lost.reason}"
                    for lost in self._settling.unavailable()
                },
            )
            await self._carry_out()
            if self._settling.found_all:
                await self._news.send(Listed())
            ctx.progressed()
            await trio.sleep(self._interval)

    async def _look(self) -> Observation:
        if faults.points is not None:
            faults.points.passing("watcher.look")
        return await self._observe()

    async def _carry_out(self) -> None:
        """Tell the catalog; waits for it. Changes that a crash leaves untold are told in the next life."""
        if faults.points is not None:
            faults.points.passing("watcher.tell")
        while self._decided:
            decision = self._decided[0]
            match decision:
                case Changed(key, change):
                    if change is not Change.FIRST_SEEN:
                        self._log(Event.REPOSITORY_CHANGED, model=str(key), change=change.value)
                case Left(key):
                    self._log(Event.REPOSITORY_CHANGED, model=str(key), change="removed")
                case _:
                    assert_never(decision)
            await self._news.send(decision)
            self._decided.popleft()

    def _tell(self, notice: Notice, now: float) -> None:
        match notice:
            case Waiting():
                self._log(
                    Event.REPOSITORY_CHANGED,
                    level="warning",
                    model=notice.name,
                    repository=notice.source,
                    change="unfinished",
                    since=self._told(notice.since),
                    reasons=list(notice.reasons),
                )
            case SourceLost():
                self._log(
                    Event.REPOSITORY_UNAVAILABLE,
                    level="error" if notice.lasting else "warning",
                    repository=notice.source,
                    reason=notice.reason,
                    since=self._told(notice.since),
                )
            case SourceBack():
                self._log(
                    Event.REPOSITORY_CHANGED,
                    repository=notice.source,
                    change="available",
                    seconds=round(notice.after, 3),
                )
            case _:
                assert_never(notice)

    def _waiting(self) -> list[str]:
        waiting = self._settling.waiting()
        shown = [
            f"{each.name} in {each.source} since {self._told(each.since)}: "
            + ("; ".join(each.reasons) or "to be seen unchanged")
            for each in waiting[:MOST_SHOWN]
        ]
        return shown if len(waiting) <= MOST_SHOWN else [*shown, f"and {len(waiting) - MOST_SHOWN} more"]

    def _told(self, at: float) -> str:
        """Return a reading of the loop's clock as a date and time."""
        seconds = self._wall_clock() - (trio.current_time() - at)
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
