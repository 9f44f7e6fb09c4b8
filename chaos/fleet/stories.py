"""What must hold for a roll over servers under load: no client notices a good one, and a bad one ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from chaos.fleet.ground import BETTER, BROKEN, FAULTY, GOOD, ILL, Controlling, Ground
from chaos.fleet.load import Tally, ask

PATIENCE: Final = 120.0


@dataclass(slots=True)
class Finding:
    """What a story came to: figures, and what went against what must hold."""

    story: str
    figures: dict[str, float] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def must(self, holds: bool, what: str) -> None:
        """Note what does not hold."""
        if not holds:
            self.complaints.append(what)


async def good_roll(ground: Ground, controller: Controlling, tally: Tally, finding: Finding) -> None:
    """A version that works goes over all replicas, and no client notices."""
    ground.want(BETTER)
    finding.figures["seconds"] = await ground.until_all_serve(BETTER)
    finding.must(not tally.errors, f"clients saw {dict(tally.errors)} errors: {tally.said[:3]}")


def _refused(version: int) -> Callable[[Ground, Controlling, Tally, Finding], Awaitable[None]]:
    async def story(ground: Ground, controller: Controlling, tally: Tally, finding: Finding) -> None:
        before = len(controller.events)
        ground.want(version)
        await _until(lambda: any("refused" in line for line in controller.decisions()[-1:]))
        began = trio.current_time()
        await ground.until_all_serve(GOOD)
        finding.figures["restored_seconds"] = trio.current_time() - began
        loads = [each for each in controller.events[before:] if each["event"] == "fleet_load"]
        touched = {each["replica"] for each in loads if str(version) in each["release"]}
        finding.figures["touched"] = len(touched)
        finding.must(len(touched) == 1, f"{sorted(touched)} were touched")
        finding.must(not tally.errors, f"clients saw {dict(tally.errors)} errors: {tally.said[:3]}")
        finding.must(
            finding.figures["restored_seconds"] <= 5 + 2, "it was not restored within 5 s and a load"
        )

    return story


async def bad_under_traffic(ground: Ground, controller: Controlling, tally: Tally, finding: Finding) -> None:
    """A version fails clients alone: one replica's share of them sees that, until it is found."""
    ground.want(FAULTY)
    await _until(lambda: any("refused" in line for line in controller.decisions()[-1:]))
    await ground.until_all_serve(GOOD)
    await trio.sleep(1)
    finding.figures |= {"errors": sum(tally.errors.values()), "answers": sum(tally.answers.values())}
    finding.must(bool(tally.errors), "no client met the version: the story says nothing")
    finding.must(len(tally.errors) == 1, f"errors came from {len(tally.errors)} replicas")


async def killed_controller(ground: Ground, controller: Controlling, tally: Tally, finding: Finding) -> None:
    """The controller is killed after each of its decisions and loads, and the same roll ends."""
    ground.want(BETTER)
    kills = 0
    try:
        with trio.fail_after(PATIENCE):
            # What it logs comes after what it writes down: a kill between the two leaves no line.
            while not await ground.is_good(BETTER):
                known = _steps(controller)
                while _steps(controller) == known and not await ground.is_good(BETTER):  # noqa: ASYNC110
                    await trio.sleep(0.02)
                controller.kill()
                kills += 1
                controller = ground.controller()
        finding.figures["seconds"] = await ground.until_all_serve(BETTER)
    finally:
        controller.end()
    finding.figures["kills"] = kills
    rolled = controller.decisions().count("roll version 2 out")
    finding.must(rolled == 1, f"the roll was begun {rolled} times")
    finding.must(not tally.errors, f"clients saw {dict(tally.errors)} errors: {tally.said[:3]}")


def _steps(controller: Controlling) -> int:
    return sum(each["event"] in ("fleet_decided", "fleet_load") for each in controller.events)


STORIES: Final[Mapping[str, Callable[[Ground, Controlling, Tally, Finding], Awaitable[None]]]] = {
    "good roll": good_roll,
    "does not load": _refused(BROKEN),
    "fails its probe": _refused(ILL),
    "bad under traffic": bad_under_traffic,
    "controller killed": killed_controller,
}


async def tell(name: str, ground: Ground, *, clients: int, pause: float) -> Finding:
    """Play a story over a fleet that serves the good version, under load."""
    finding, tally = Finding(name), Tally()
    ground.want(GOOD)
    controller = ground.controller()
    try:
        await ground.until_all_serve(GOOD)
        await _until(lambda: any("good on" in line for line in controller.decisions()[-1:]))
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                ports = [server.http_port for server in ground.servers.values()]
                nursery.start_soon(partial(ask, ports, tally, pause=pause))
            await _until(lambda: tally.total >= 20 * clients)
            await STORIES[name](ground, controller, tally, finding)
            nursery.cancel_scope.cancel()
    finally:
        controller.kill()
    finding.figures |= {"requests": tally.total, "slowest_seconds": tally.slowest}
    return finding


async def _until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110  # other processes bring it about
            await trio.sleep(0.02)
