"""Starting, stopping, dynamic children, cancellation from outside, and what the tree shows."""

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import trio

from actors.supervision.errors import (
    AlreadyStarted,
    IntensityExceeded,
    NoSuchChild,
    NotRunning,
    StartError,
)
from actors.supervision.events import ChildExited, ChildKillForced, ChildStarted, ChildStartFailed, Context
from actors.supervision.lifecycle import ChildState
from actors.supervision.restart import Crashed, FailedToStart, Killed, Normal, Stopped
from actors.supervision.spec import (
    Backoff,
    ChildSpec,
    Intensity,
    Kind,
    Restart,
    Shutdown,
    Strategy,
)
from actors.supervision.supervisor import Supervisor
from tests.support.trees import Cue, Puppet, serving, settled

WAIT = Backoff(initial=1.0, jitter=0.0, first_immediate=False)


def puppets(names, **options):
    journal: list[Any] = []
    return journal, [Puppet(name, journal=journal, **options) for name in names]


# Starting.


async def test_children_start_left_to_right_each_ready_before_the_next(autojump_clock):
    journal, children = puppets("abc", start_delay=1)
    async with serving(Supervisor([p.spec() for p in children])) as tree:
        assert journal == ["start a", "ready a", "start b", "ready b", "start c", "ready c"]
        assert [event.path for event in tree.about(ChildStarted)] == ["a", "b", "c"]
        assert trio.current_time() - children[0].started_at[0] == pytest.approx(3)


async def test_a_failing_start_stops_the_started_ones_in_reverse_and_fails_the_supervisors(autojump_clock):
    journal, (a, b, c, d) = puppets("abcd")
    c.fail_starts = 1
    supervisor = Supervisor([p.spec() for p in (a, b, c, d)])
    events: list[Any] = []
    with pytest.raises(StartError, match="'c' did not start") as caught:
        await supervisor.serve(observer=events.append)
    assert isinstance(caught.value.__cause__, Cue)
    assert [line for line in journal if not line.startswith("ready")] == [
        "start a",
        "start b",
        "start c",
        "end c",
        "end b",
        "end a",
    ]
    (failed,) = [event for event in events if isinstance(event, ChildStartFailed)]
    assert (failed.path, failed.context) == ("c", Context.START_ERROR)


async def test_a_failing_start_below_fails_every_supervisor_above(autojump_clock):
    a = Puppet("a", fail_starts=1)
    inner = Supervisor([a.spec()])
    with pytest.raises(StartError, match="'inner' did not start") as caught:
        await Supervisor([inner.spec("inner")]).serve()
    assert isinstance(caught.value.reason, FailedToStart)
    assert isinstance(caught.value.reason.exception, StartError)


async def test_a_child_that_returns_before_it_is_ready_has_not_started():
    async def hasty(ctx):
        pass

    with pytest.raises(StartError, match=r"ended \(normal\) before it called started"):
        await Supervisor([ChildSpec("a", hasty)]).serve()


async def test_a_supervisor_that_gives_up_before_it_is_ready_has_not_started(autojump_clock):
    a, b = Puppet("a"), Puppet("b", start_delay=1)
    inner = Supervisor([a.spec(), b.spec()], intensity=Intensity(0, 5.0))

    async def crash_early():
        await settled()
        a.crash()

    async with serving(Supervisor()) as tree, trio.open_nursery() as nursery:
        nursery.start_soon(crash_early)
        # The death waits in the mail until the initial start is over, as in OTP.
        await tree.root.start_child(inner.spec("inner", restart=Restart.TEMPORARY))
        await settled()
        tree.check({})


async def test_a_supervisor_runs_in_one_place(autojump_clock):
    inner = Supervisor()
    with pytest.raises(StartError, match="one Supervisor object is one place in the tree"):
        await Supervisor([inner.spec("one"), inner.spec("two")]).serve()


async def test_stopping_a_root_before_it_is_ready_is_a_failed_start_and_leaves_nothing(autojump_clock):
    journal, (a, b) = puppets("ab", start_delay=5)
    supervisor = Supervisor([a.spec(), b.spec()])

    async def stop_later():
        await trio.sleep(7)
        supervisor.stop()
        supervisor.stop()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_later)
        with pytest.raises(StartError, match="shutdown"):
            await nursery.start(supervisor.serve)
    assert journal == ["start a", "ready a", "start b", "end b", "end a"]


async def test_a_start_function_may_make_what_the_children_share(autojump_clock):
    async def start(ctx):
        shared = []

        async def use(inner):
            shared.append(inner.path)
            inner.started()
            await trio.sleep_forever()

        await Supervisor([ChildSpec("x", use), ChildSpec("y", use)]).run(ctx)

    async with serving(Supervisor([ChildSpec("model", start, kind=Kind.SUPERVISOR)])) as tree:
        tree.check({"model": "running", "model/x": "running", "model/y": "running"})


# Stopping.


async def test_children_stop_right_to_left_each_gone_before_the_next_is_asked(autojump_clock):
    journal, children = puppets("abc", stop_delay=1)
    async with serving(Supervisor([p.spec() for p in children])):
        before = trio.current_time()
        journal.clear()
    assert journal == ["end c", "end b", "end a"]
    assert trio.current_time() - before == pytest.approx(3)


@pytest.mark.parametrize(
    ("stop_delay", "options", "seconds", "reason", "context", "grace"),
    [
        (4.9, {}, 4.9, Stopped(), None, None),
        (60, {"shutdown": 2.0}, 2, Killed(), Context.SHUTDOWN_ERROR, 2.0),
        (60, {"shutdown": Shutdown.BRUTAL_KILL}, 0, Killed(), None, None),
        (10_000, {"shutdown": Shutdown.INFINITY}, 10_000, Stopped(), None, None),
        (None, {}, 0, Stopped(), None, None),
    ],
    ids=[
        "within its budget it stops cleanly",
        "over its budget it is cancelled hard and reported",
        "a brutal kill cancels at once and is no error",
        "infinity waits for as long as it takes",
        "one that cannot be asked is cancelled at once and that is no kill",
    ],
)
async def test_a_child_has_its_budget_to_stop(
    autojump_clock, stop_delay, options, seconds, reason, context, grace
):
    a = Puppet("a", stop_delay=stop_delay)
    async with serving(Supervisor([a.spec(**options)])) as tree:
        before = trio.current_time()
    assert trio.current_time() - before == pytest.approx(seconds)
    (exited,) = tree.about(ChildExited)
    assert (exited.reason, exited.context) == (reason, context)
    assert [(each.grace, each.context) for each in tree.about(ChildKillForced)] == (
        [] if grace is None else [(grace, Context.SHUTDOWN_ERROR)]
    )
    forced = [] if grace is None else ["child_kill_forced"]
    assert tree.names("a") == ["child_started", *forced, "child_exited"]


async def test_a_child_may_wait_to_be_asked(autojump_clock):
    async def wait(ctx):
        ctx.started()
        assert not ctx.stopping.is_set()
        await ctx.stopping.wait()
        assert ctx.stopping.is_set()
        await ctx.stopping.wait()
        ctx.stopping.then(partial(asked.append, "later"))

    asked: list[Any] = []
    async with serving(Supervisor([ChildSpec("a", wait)])) as tree:
        await settled()
    assert tree.about(ChildExited)[0].reason == Stopped()
    assert asked == ["later"]


async def test_a_child_that_first_looks_after_it_was_asked_sees_so(autojump_clock):
    seen = []

    async def look_late(ctx):
        ctx.started()
        try:
            await trio.sleep_forever()
        finally:
            seen.append(ctx.stopping.is_set())
            with trio.CancelScope(shield=True):
                await ctx.stopping.wait()

    async with serving(Supervisor([ChildSpec("a", look_late)])):
        await settled()
    assert seen == [True]


async def test_a_crash_while_stopping_is_a_shutdown_error_and_stops_nobody_else_from_stopping(autojump_clock):
    async def crash_when_asked(ctx):
        ctx.started()
        await ctx.stopping.wait()
        raise Cue

    b = Puppet("b")
    async with serving(Supervisor([b.spec(), ChildSpec("a", crash_when_asked)])) as tree:
        await settled()
    first, second = tree.about(ChildExited)
    assert (first.path, first.context) == ("a", Context.SHUTDOWN_ERROR)
    assert isinstance(first.reason, Crashed)
    assert (second.path, second.context) == ("b", None)


async def test_a_supervisor_below_is_given_all_the_time_its_children_need(autojump_clock):
    journal, (a, b) = puppets("ab", stop_delay=4)
    inner = Supervisor([a.spec(), b.spec()])
    async with serving(Supervisor([inner.spec("inner")])) as tree:
        before = trio.current_time()
        journal.clear()
    assert trio.current_time() - before == pytest.approx(8)
    assert journal == ["end b", "end a"]
    assert not tree.about(ChildKillForced)


async def test_a_supervisor_with_a_budget_takes_its_children_down_with_it(autojump_clock):
    a = Puppet("a", stop_delay=4)
    inner = Supervisor([a.spec()])
    async with serving(Supervisor([inner.spec("inner", shutdown=1.0)])) as tree:
        before = trio.current_time()
    assert trio.current_time() - before == pytest.approx(1)
    assert tree.names("inner")[-2:] == ["child_kill_forced", "child_exited"]
    assert a.journal[-1] == "end a"


async def test_cancellation_from_outside_ends_everything_at_once_and_cleanly(autojump_clock):
    journal, (a, b) = puppets("ab", stop_delay=60)
    inner = Supervisor([b.spec()])
    root = Supervisor([a.spec(), inner.spec("inner")])
    events: list[Any] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(root.serve, observer=events.append))
        before = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() == before
    assert sorted(journal[-2:]) == ["end a", "end b"]
    exits = [event for event in events if isinstance(event, ChildExited)]
    assert {event.context for event in exits} == {None}


async def test_cancellation_in_the_middle_of_stopping_cuts_it_short(autojump_clock):
    a = Puppet("a", stop_delay=60)
    root = Supervisor([a.spec(shutdown=Shutdown.INFINITY)])
    with trio.move_on_after(1):
        async with trio.open_nursery() as nursery:
            await nursery.start(root.serve)
            root.stop()
    assert a.journal[-1] == "end a"
    assert not root.is_running


async def test_a_keyboard_interrupt_is_nobodys_failure_and_passes_through():
    async def interrupted(ctx):
        ctx.started()
        raise KeyboardInterrupt

    with pytest.raises(BaseExceptionGroup) as caught:
        await Supervisor([ChildSpec("a", interrupted)]).serve()
    assert caught.value.split(KeyboardInterrupt)[1] is None


# Dynamic children.


async def test_a_child_that_fails_to_start_is_forgotten_and_the_caller_told(autojump_clock):
    a = Puppet("a", fail_starts=1)
    async with serving(Supervisor()) as tree:
        with pytest.raises(StartError) as caught:
            await tree.root.start_child(a.spec())
        assert isinstance(caught.value.reason, FailedToStart)
        tree.check({})
        await tree.root.start_child(a.spec())
        tree.check({"a": "running"})


async def test_starting_a_child_that_is_up_is_refused(a, autojump_clock):
    async with serving(Supervisor([a.spec()])) as tree:
        with pytest.raises(AlreadyStarted, match="'a' is running"):
            await tree.root.start_child(a.spec())
        with pytest.raises(AlreadyStarted):
            tree.root.start_child_nowait(a.spec(restart=Restart.TEMPORARY))


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda root: root.terminate_child("a"), "shutdown"),
        (lambda root: settled(root.kill, "a"), "killed"),
        (lambda root: settled(root.stop), "shutdown"),
    ],
    ids=["terminated", "killed", "with its supervisor"],
)
async def test_a_child_can_be_ended_while_it_starts(autojump_clock, end, told):
    a = Puppet("a", start_delay=60)
    async with serving(Supervisor()) as tree, trio.open_nursery() as nursery:

        async def start():
            with pytest.raises(StartError, match=told):
                await tree.root.start_child(a.spec())

        nursery.start_soon(start)
        await settled()
        await end(tree.root)
        if tree.root.is_running:
            tree.check({})
        assert trio.current_time() == a.started_at[0]
    assert a.journal == ["start a", "end a"]


async def test_a_cancelled_start_child_takes_the_unfinished_child_with_it(autojump_clock):
    a = Puppet("a", start_delay=60)
    async with serving(Supervisor()) as tree:
        with trio.move_on_after(1):
            await tree.root.start_child(a.spec())
        await settled()
        tree.check({})
        assert a.journal == ["start a", "end a"]


async def test_a_cancelled_terminate_child_leaves_the_budget_standing(autojump_clock):
    a = Puppet("a", stop_delay=60)
    async with serving(Supervisor([a.spec(shutdown=3.0)])) as tree:
        before = trio.current_time()
        with trio.move_on_after(1):
            await tree.root.terminate_child("a")
        tree.check({"a": "stopping"})
        await tree.root.terminate_child("a")
        tree.check({})
        assert trio.current_time() - before == pytest.approx(3)


async def test_two_callers_may_terminate_one_child(autojump_clock):
    a = Puppet("a", stop_delay=60)
    async with serving(Supervisor([a.spec(shutdown=3.0)])) as tree:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tree.root.terminate_child, "a")
            nursery.start_soon(tree.root.terminate_child, "a")
        tree.check({})
        assert len(tree.about(ChildKillForced)) == 1


async def test_operations_on_a_stranger_say_not_found(autojump_clock):
    async with serving(Supervisor()) as tree:
        with pytest.raises(NoSuchChild, match="'x' is not here"):
            await tree.root.terminate_child("x")
        with pytest.raises(NoSuchChild, match="no child is at 'x'"):
            tree.root.kill("x")


@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
async def test_the_children_of_a_group_do_not_come_and_go_alone(a, b, autojump_clock, strategy):
    async with serving(Supervisor([a.spec()], strategy=strategy)) as tree:
        with pytest.raises(ValueError, match="put those that come and go alone under a one_for_one"):
            await tree.root.start_child(b.spec())
        with pytest.raises(ValueError, match=strategy.value):
            tree.root.start_child_nowait(b.spec(restart=Restart.TEMPORARY))
        with pytest.raises(ValueError, match=strategy.value):
            await tree.root.terminate_child("a")
        tree.check({"a": "running"})


async def test_killing_a_child_that_is_down_does_nothing(a, autojump_clock):
    async with serving(Supervisor([a.spec(restart=Restart.TRANSIENT)])) as tree:
        await settled(a.finish)
        tree.root.kill("a")
        tree.check({"a": "stopped"})
        await tree.root.terminate_child("a")
        tree.check({})


async def test_a_supervisor_that_is_down_takes_no_operations():
    supervisor = Supervisor([Puppet("a").spec()])
    for operation in (
        supervisor.stop,
        supervisor.tree,
        supervisor.which_children,
        partial(supervisor.kill, "a"),
        partial(supervisor.start_child_nowait, Puppet("b").spec(restart=Restart.TEMPORARY)),
    ):
        with pytest.raises(NotRunning, match="start it with `serve`"):
            operation()


async def test_a_supervisor_that_is_stopping_takes_no_new_children(autojump_clock):
    a, b = Puppet("a", stop_delay=2), Puppet("b")
    async with serving(Supervisor([a.spec()])) as tree:
        tree.root.stop()
        assert tree.root.tree().state is ChildState.STOPPING
        with pytest.raises(NotRunning, match="'root' is stopping"):
            await tree.root.start_child(b.spec())
        with pytest.raises(NotRunning):
            tree.root.start_child_nowait(b.spec(restart=Restart.TEMPORARY))


async def test_dynamic_children_of_one_for_one_are_stopped_together_and_first(autojump_clock):
    journal, (a, b, c, d) = puppets("abcd", stop_delay=3)
    async with serving(Supervisor([a.spec(), b.spec()])) as tree:
        await tree.root.start_child(c.spec(shutdown=Shutdown.INFINITY))
        await tree.root.start_child(d.spec(shutdown=1.0))
        journal.clear()
        before = trio.current_time()
    assert trio.current_time() - before == pytest.approx(3 + 3 + 3)
    assert journal == ["end d", "end c", "end b", "end a"]


async def test_thousands_of_temporary_children_come_and_go(autojump_clock):
    async def connection(ctx):
        await trio.sleep(1)

    connections = Supervisor()
    async with serving(Supervisor([connections.spec("connections")])) as tree:
        for n in range(2000):
            connections.start_child_nowait(ChildSpec(str(n), connection, restart=Restart.TEMPORARY))
        assert len(connections.which_children()) == 2000
        await trio.sleep(2)
        assert not connections.which_children()
        assert tree.names("connections/7") == ["child_started", "child_exited"]


async def test_a_temporary_child_that_ended_is_freed_without_the_garbage_collector(autojump_clock):
    async def connection(ctx):
        pass

    async with serving(Supervisor()) as tree:
        gc.disable()
        try:
            start = partial(connection)
            gone = weakref.ref(start)
            tree.root.start_child_nowait(ChildSpec("a", start, restart=Restart.TEMPORARY))
            del start
            await settled()
            tree.events.clear()  # they hold the spec
            assert gone() is None
        finally:
            gc.enable()


async def test_thousands_of_temporary_children_share_one_shutdown_budget(autojump_clock):
    async def connection(ctx):
        await ctx.stopping.wait()
        await trio.sleep_forever()

    async with serving(Supervisor()) as tree:
        for n in range(1000):
            tree.root.start_child_nowait(ChildSpec(str(n), connection, restart=Restart.TEMPORARY))
        await settled()
        before = trio.current_time()
    assert trio.current_time() - before == pytest.approx(5)


async def test_a_crashing_temporary_child_is_reported_and_harms_nobody(a, b, autojump_clock):
    async with serving(Supervisor([a.spec()])) as tree:
        tree.root.start_child_nowait(b.spec(restart=Restart.TEMPORARY))
        await settled()
        await settled(b.crash)
        tree.check({"a": "running"})
        assert tree.about(ChildExited)[0].context is Context.CHILD_TERMINATED


async def test_permanent_children_do_not_start_without_a_handshake(autojump_clock):
    async with serving(Supervisor()) as tree:
        with pytest.raises(ValueError, match="for temporary and transient children"):
            tree.root.start_child_nowait(Puppet("a").spec())


async def test_a_transient_child_that_is_added_at_once_is_restarted_when_it_crashes_and_forgotten_when_it_ends(
    a, autojump_clock
):
    async with serving(Supervisor()) as tree:
        tree.root.start_child_nowait(a.spec(restart=Restart.TRANSIENT))
        tree.check({"a": "running"})
        await settled()
        await settled(a.crash)
        tree.check({"a": "running"})
        await settled(a.finish)
        tree.check({})
        tree.root.start_child_nowait(a.spec(restart=Restart.TRANSIENT))  # its name is free


async def test_a_transient_child_that_was_added_at_once_is_forgotten_when_it_is_terminated(
    a, b, autojump_clock
):
    async with serving(Supervisor(backoff=WAIT)) as tree:
        for puppet in (a, b):
            tree.root.start_child_nowait(puppet.spec(restart=Restart.TRANSIENT))
        await settled()
        await tree.root.terminate_child("a")
        tree.check({"b": "running"})
        await settled(b.crash)
        tree.check({"b": "backing_off"})
        await tree.root.terminate_child("b")
        tree.check({})


# Looking.


async def test_children_are_listed_also_those_that_are_down(a, autojump_clock):
    inner = Supervisor()
    async with serving(Supervisor([a.spec(restart=Restart.TRANSIENT), inner.spec("inner")])) as tree:
        await settled(a.finish)
        assert tree.root.which_children() == ("a", "inner")
        tree.check({"a": "stopped", "inner": "running"})


async def test_the_tree_shows_names_states_times_restarts_and_what_children_publish(autojump_clock):
    a = Puppet("0")
    inner = Supervisor([a.spec()])
    async with serving(Supervisor([inner.spec("models/resnet")])) as tree:
        await trio.sleep(10)
        a.ctx.publish(device="cpu", batches=1)
        a.ctx.publish(batches=2)
        node = tree.root.tree().find("models/resnet/0")
        assert (node.name, node.kind, node.state, node.restarts) == ("0", Kind.WORKER, ChildState.RUNNING, 0)
        assert (node.since, node.last_exit) == (a.started_at[0], None)
        assert node.info == {"device": "cpu", "batches": 2}
        await settled(a.finish)
        later = tree.root.tree().find("models/resnet/0")
        assert (later.since, later.restarts, later.last_exit) == (trio.current_time(), 1, Normal())
        assert later.info == {}
        assert node.restarts == 0
        assert tree.root.tree().as_dict()["children"][0]["children"][0]["last_exit"] == "normal"
        assert inner.tree().path == "models/resnet"


async def test_the_root_has_a_name_and_an_empty_path(autojump_clock):
    root = Supervisor()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(root.serve, name="tritium"))
        node = root.tree()
        assert (node.name, node.path, node.state, node.kind) == (
            "tritium",
            "",
            ChildState.RUNNING,
            Kind.SUPERVISOR,
        )
        root.stop()


async def test_a_tree_without_an_observer_goes_about_in_silence(autojump_clock):
    a, b = Puppet("a", stop_delay=9), Puppet("b")
    root = Supervisor(
        [a.spec(shutdown=1.0), b.spec()], backoff=Backoff(initial=0.0, cap=0.0), intensity=Intensity(2, 5.0)
    )

    async def serve(task_status):
        with pytest.raises(IntensityExceeded):
            await root.serve(task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        b.fail_starts = 9
        b.crash()
