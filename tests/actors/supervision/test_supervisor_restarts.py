"""Which children restart, with which siblings, how often and after how long: OTP's rows, in virtual time."""

import itertools
from typing import Any

import pytest
import trio

from actors.supervision.errors import IntensityExceeded
from actors.supervision.events import ChildExited, Context, RestartsExhausted
from actors.supervision.restart import Crashed, Killed, Normal
from actors.supervision.spec import (
    Backoff,
    ChildSpec,
    Intensity,
    OnExhausted,
    Restart,
    Strategy,
)
from actors.supervision.supervisor import Supervisor
from tests.support.trees import Cue, Puppet, serving, settled

PLAIN = Backoff(jitter=0.0)

EXITS = {
    "normal": (lambda tree, puppet: puppet.finish(), Normal),
    "crash": (lambda tree, puppet: puppet.crash(), Crashed),
    "killed": (lambda tree, puppet: tree.root.kill(puppet.name), Killed),
}
RESTARTED = {
    Restart.PERMANENT: {"normal", "crash", "killed"},
    Restart.TRANSIENT: {"crash", "killed"},
    Restart.TEMPORARY: set(),
}
GROUPS = {Strategy.ONE_FOR_ONE: "b", Strategy.ONE_FOR_ALL: "abc", Strategy.REST_FOR_ONE: "bc"}


def puppets(names, **options):
    journal: list[Any] = []
    return journal, [Puppet(name, journal=journal, **options) for name in names]


@pytest.mark.parametrize(
    ("strategy", "restart", "exit_kind"), list(itertools.product(Strategy, Restart, EXITS))
)
async def test_an_exit_restarts_exactly_the_group_that_strategy_and_restart_type_name(
    autojump_clock, strategy, restart, exit_kind
):
    journal, (a, b, c) = puppets("abc")
    leave, reason = EXITS[exit_kind]
    async with serving(Supervisor([a.spec(), b.spec(restart=restart), c.spec()], strategy=strategy)) as tree:
        journal.clear()
        leave(tree, b)
        await settled()
        restarted = exit_kind in RESTARTED[restart]
        group = GROUPS[strategy] if restarted else ""
        assert [p.lives for p in (a, b, c)] == [1 + (p.name in group) for p in (a, b, c)]
        assert journal == [
            "end b",
            *(f"end {name}" for name in reversed(group) if name != "b"),
            *itertools.chain.from_iterable((f"start {name}", f"ready {name}") for name in group),
        ]
        expected = {"a": "running", "b": "running" if restarted else "stopped", "c": "running"}
        if restart is Restart.TEMPORARY:
            del expected["b"]
        tree.check(expected)
        exited = next(event for event in tree.about(ChildExited) if event.path == "b")
        assert isinstance(exited.reason, reason)
        reported = restart is Restart.PERMANENT or exit_kind in ("crash", "killed")
        assert exited.context is (Context.CHILD_TERMINATED if reported else None)


@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
async def test_a_temporary_sibling_ends_with_its_group_and_does_not_return(autojump_clock, strategy):
    _, (a, b) = puppets("ab")
    async with serving(Supervisor([a.spec(), b.spec(restart=Restart.TEMPORARY)], strategy=strategy)) as tree:
        await settled(a.crash)
        tree.check({"a": "running"})
        assert b.lives == 1


@pytest.mark.parametrize("waits", [False, True])
async def test_two_deaths_of_one_group_at_once_restart_it_once_and_charge_it_once(autojump_clock, waits):
    _, (a, b) = puppets("ab")
    backoff = Backoff(initial=1.0, jitter=0.0, first_immediate=not waits)
    supervisor = Supervisor(
        [a.spec(), b.spec()], strategy=Strategy.ONE_FOR_ALL, intensity=Intensity(1, 5.0), backoff=backoff
    )
    async with serving(supervisor) as tree:
        a.crash()
        b.crash()
        await trio.sleep(2)
        tree.check({"a": "running", "b": "running"})
        assert [p.lives for p in (a, b)] == [2, 2]


async def test_a_slow_restart_does_not_delay_a_siblings_under_one_for_one(autojump_clock):
    _, (a, b) = puppets("ab")
    async with serving(Supervisor([a.spec(), b.spec()])) as tree:
        a.start_delay = 60
        await settled(a.crash)
        await settled(b.crash)
        tree.check({"a": "starting", "b": "running"})


async def test_one_crash_more_than_the_intensity_gives_up_and_stops_the_others_in_order(autojump_clock):
    journal, (a, b, c) = puppets("abc")
    async with serving(
        Supervisor(
            [a.spec(), b.spec(), c.spec()], intensity=Intensity(1, 5.0), backoff=Backoff(initial=0.0, cap=0.0)
        )
    ) as tree:
        await settled(a.crash)
        journal.clear()
        a.crash(error := Cue("last"))
        gave_up = await tree.gave_up()
    assert isinstance(gave_up, IntensityExceeded)
    assert (gave_up.supervisor, gave_up.offender, gave_up.reason) == ("root", "a", Crashed(error))
    assert journal == ["end a", "end c", "end b"]
    (event,) = tree.about(RestartsExhausted)
    assert (event.supervisor, event.path, event.context) == ("root", "a", Context.SHUTDOWN)


async def test_restarts_wait_longer_each_time_the_first_not_at_all(a, autojump_clock):
    supervisor = Supervisor(
        [a.spec()], intensity=Intensity(10, 5.0), backoff=Backoff(initial=0.1, cap=0.5, jitter=0.0)
    )
    async with serving(supervisor) as tree:
        a.fail_starts = 5
        a.crash()
        await trio.sleep(4)
        tree.check({"a": "running"})
    first = a.started_at[0]
    assert [t - first for t in a.started_at[1:]] == pytest.approx([0, 0.1, 0.3, 0.7, 1.2, 1.7])


async def test_jitter_is_drawn_from_the_injected_source(autojump_clock):
    async def waits(seed):
        a = Puppet("a", fail_starts=0)
        async with serving(Supervisor([a.spec()], intensity=Intensity(9, 5.0)), seed=seed):
            a.fail_starts = 3
            a.crash()
            await trio.sleep(3)
        return [later - earlier for earlier, later in itertools.pairwise(a.started_at)]

    first, again, other = await waits(1), await waits(1), await waits(2)
    assert first == pytest.approx(again)
    assert first != pytest.approx(other)
    for wait, full in zip(first[1:], [0.1, 0.2, 0.4], strict=False):
        assert full / 2 <= wait <= full


async def test_a_stop_request_is_never_starved_by_a_crash_loop(a, autojump_clock):
    async with serving(
        Supervisor([a.spec()], intensity=Intensity(10**6, 0.001), backoff=Backoff(initial=0.0, cap=0.0))
    ) as tree:
        a.fail_starts = 10**9
        a.crash()
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        assert a.lives > 3
        tree.root.stop()
    assert not tree.root.is_running


async def test_a_stop_request_gets_through_while_a_child_backs_off(a, autojump_clock):
    backoff = Backoff(initial=100.0, cap=100.0, jitter=0.0, first_immediate=False)
    async with serving(Supervisor([a.spec()], backoff=backoff)):
        await settled(a.crash)
    assert trio.current_time() == a.started_at[0]


async def test_exhaustion_escalates_through_two_levels_to_the_root(a, autojump_clock):
    inner = Supervisor([a.spec()], intensity=Intensity(0, 5.0))
    middle = Supervisor(
        [inner.spec("inner")], intensity=Intensity(1, 5.0), backoff=Backoff(initial=0.0, cap=0.0)
    )
    root = Supervisor([middle.spec("middle")], intensity=Intensity(0, 5.0))
    async with serving(root) as tree:
        await settled(a.crash)
        assert a.lives == 2
        a.crash()
        gave_up: Any = await tree.gave_up()
    assert gave_up.offender == "middle"
    assert gave_up.reason.offender == "middle/inner"
    assert gave_up.reason.reason.offender == "middle/inner/a"
    assert [event.path for event in tree.about(RestartsExhausted)] == [
        "middle/inner/a",
        "middle/inner/a",
        "middle/inner",
        "middle",
    ]


async def test_a_transient_supervisor_that_gives_up_is_restarted(a, autojump_clock):
    # OTP's supervisor exits with `shutdown` here, so its transient supervisors stay down. Ours is a failure.
    inner = Supervisor([a.spec()], intensity=Intensity(0, 5.0))
    async with serving(Supervisor([inner.spec("inner", restart=Restart.TRANSIENT)])) as tree:
        await settled(a.crash)
        tree.check({"inner": "running", "inner/a": "running"})


BUDGET = {"intensity": Intensity(2, 30.0), "on_exhausted": OnExhausted.RETRY_AT_CAP}


async def test_an_exhausted_child_is_retried_half_open_at_the_cap_for_ever(autojump_clock):
    _, (a, b) = puppets("ab")
    backoff = Backoff(initial=0.1, cap=30.0, jitter=0.0)
    async with serving(Supervisor([a.spec(backoff=backoff, **BUDGET), b.spec()])) as tree:
        a.fail_starts = 100
        a.crash()
        await trio.sleep(1)
        tree.check({"a": "exhausted", "b": "running"})
        await trio.sleep(10 * 30)
        tree.check({"a": "exhausted", "b": "running"})
        assert b.lives == 1
        gaps = [later - earlier for earlier, later in itertools.pairwise(a.started_at)]
        assert gaps[2:] == pytest.approx([30.0] * 10)
        (event,) = tree.about(RestartsExhausted)
        assert event.context is None


async def test_a_group_of_exceptions_is_one_crash_kept_whole(autojump_clock):
    async def tangle(ctx):
        ctx.started()

        async def fail(error):
            raise error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, ValueError("one"))
            nursery.start_soon(fail, ValueError("two"))

    async with serving(Supervisor([ChildSpec("a", tangle, restart=Restart.TEMPORARY)])) as tree:
        await settled()
        (event,) = tree.about(ChildExited)
        assert isinstance(event.reason.exception, ExceptionGroup)


async def test_failures_mixed_with_a_cancellation_are_the_reason_and_the_cancellation_goes_on(autojump_clock):
    async def tangle(ctx):
        ctx.started()

        async def fail_when_cancelled():
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("over being cancelled")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_when_cancelled)
            nursery.start_soon(trio.sleep_forever)

    async with serving(Supervisor([ChildSpec("a", tangle)])) as tree:
        await settled()
        await tree.root.terminate_child("a")
        (event,) = tree.about(ChildExited)
        assert event.context is Context.SHUTDOWN_ERROR
        assert isinstance(event.reason, Crashed)
        assert isinstance(event.reason.exception, ExceptionGroup)
        assert "over being cancelled" in str(event.reason.exception.exceptions[0])
