"""Random crashes and random operations at once: the tree always stays a tree."""

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import trio

from actors.supervision.errors import SupervisionError
from actors.supervision.lifecycle import ChildState
from actors.supervision.spec import Backoff, Intensity, OnExhausted, Restart, Shutdown, Strategy
from actors.supervision.supervisor import Supervisor
from tests.support.trees import Puppet, serving

FOREVER = Intensity(10**6, 0.01)
ALIVE = (ChildState.STARTING, ChildState.RUNNING, ChildState.STOPPING)


def troupe(random, journal):
    """Ten puppets of every temper, and their specs."""
    puppets = [
        Puppet(
            str(n),
            journal=journal,
            start_delay=random.choice([0.0, 0.0, 0.3]),
            stop_delay=random.choice([None, 0.0, 0.2, 9.0]),
        )
        for n in range(10)
    ]
    specs = {}
    for puppet in puppets:
        restart = random.choice(list(Restart))
        options = {"restart": restart, "shutdown": random.choice([None, 0.1, Shutdown.BRUTAL_KILL])}
        if restart is not Restart.TEMPORARY and random.random() < 0.3:
            options |= {"intensity": Intensity(1, 5.0), "on_exhausted": OnExhausted.RETRY_AT_CAP}
        specs[puppet.name] = puppet.spec(**options)
    return puppets, specs


async def perform(random, supervisor, puppet, spec):
    """One act: something the outside world, or the child itself, might do."""
    match random.randrange(7):
        case 0 | 1:
            puppet.crash()
        case 2:
            puppet.finish()
        case 3:
            puppet.fail_starts = random.randrange(3)
            puppet.crash()
        case 4:
            supervisor.kill(f"inner/{puppet.name}")
        case 5:
            with trio.move_on_after(random.choice([0.05, 60])):
                await supervisor.terminate_child(puppet.name)
        case 6:
            with trio.move_on_after(random.choice([0.05, 60])):
                await supervisor.start_child(spec)


async def torment(random, supervisor, puppets, specs):
    for _ in range(60):
        puppet = random.choice(puppets)
        # A refusal is as good an answer as any. Groups refuse all children that come and go.
        with suppress(SupervisionError, ValueError):
            await perform(random, supervisor, puppet, specs[puppet.name])
        await trio.sleep(random.choice([0.0, 0.0, 0.01, 0.5]))


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("seed", range(12))
async def test_after_any_storm_each_life_has_ended_once_and_the_tree_stops(autojump_clock, strategy, seed):
    print(f"chaos seed {seed}")
    random = Random(seed)
    journal: list[str] = []
    puppets, specs = troupe(random, journal)
    backoff = Backoff(initial=0.05, cap=0.4)
    inner = Supervisor(list(specs.values())[:6], strategy=strategy, intensity=FOREVER, backoff=backoff)
    async with serving(Supervisor([inner.spec("inner")], intensity=FOREVER), seed=seed) as tree:
        with trio.fail_after(1000):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(torment, random, inner, puppets, specs)
            for puppet in puppets:
                puppet.fail_starts = 0
            await trio.sleep(100)
        lives: Any = Counter()
        for line in journal:
            act, name = line.split()
            lives[name] += {"start": 1, "end": -1}.get(act, 0)
            assert lives[name] in (0, 1), f"two lives of {name} at once: {journal}"
        nodes = tree.root.tree().find("inner").children
        assert {node.name for node in nodes if node.state in ALIVE} == {n for n, up in lives.items() if up}
        assert {node.state for node in nodes} <= {ChildState.RUNNING, ChildState.STOPPED}
    assert Counter(line.split()[0] for line in journal)["start"] == sum(
        line.startswith("end") for line in journal
    )
