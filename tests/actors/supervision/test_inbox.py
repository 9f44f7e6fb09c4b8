"""Inboxes, calls, casts and monitors, in a tree and in virtual time."""

import pytest
import trio

from actors.supervision.actor import Actor
from actors.supervision.errors import ActorDied, CallTimedOut, StartError
from actors.supervision.inbox import Call, Down, Inbox
from actors.supervision.restart import Crashed, Killed, Normal, NotStarted, Stopped
from actors.supervision.spec import ChildSpec, Restart, Strategy
from actors.supervision.supervisor import Supervisor
from actors.supervision.testing import Puppet, serving, settled


class Echo(Actor[str]):
    """Answers calls with their message, and remembers all other messages."""

    def __init__(self, ctx, heard):
        super().__init__(ctx)
        self.heard = heard

    async def handle(self, message):
        match message:
            case Call("boom"):
                raise ValueError("boom")
            case Call("refuse") as call:
                call.fail(LookupError("refused"))
            case Call("silence") as call:
                self.heard.append(call)
            case Call("slow") as call:
                await trio.sleep(3)
                call.answer("late")
            case Call("twice") as call:
                call.answer(1)
                call.answer(2)
            case Call(message=text) as call:
                call.answer(text)
            case _:
                self.heard.append(message)

    async def finish(self):
        self.heard.append("finished")


class Watcher(Actor[object]):
    """Monitors what it is cast, and remembers each Down."""

    def __init__(self, ctx, seen):
        super().__init__(ctx)
        self.seen = seen

    async def handle(self, message):
        if isinstance(message, Down):
            self.seen.append(message)
        else:
            self.ctx.monitor(message)


def echo(heard, **options):
    return ChildSpec("echo", lambda ctx: Echo(ctx, heard).run(), **{"inbox": 4, **options})


async def test_a_call_returns_the_actors_answer(autojump_clock):
    async with serving(Supervisor([echo([])])) as tree:
        assert await tree.root.registry["echo"].call("hello") == "hello"


async def test_a_cast_is_handled_in_order(autojump_clock):
    heard = []
    async with serving(Supervisor([echo(heard)])) as tree:
        ref = tree.root.registry["echo"]
        await ref.cast("a")
        ref.cast_nowait("b")
        await settled()
        assert heard == ["a", "b"]


async def test_what_the_actor_refuses_with_is_raised_at_the_caller_and_the_actor_lives(autojump_clock):
    async with serving(Supervisor([echo([])])) as tree:
        ref = tree.root.registry["echo"]
        with pytest.raises(LookupError, match="refused"):
            await ref.call("refuse")
        assert await ref.call("hello") == "hello"
        assert "child_exited" not in tree.names()


async def test_a_call_whose_actor_crashes_over_it_fails_at_once_with_the_reason(autojump_clock):
    async with serving(Supervisor([echo([])])) as tree:
        ref = tree.root.registry["echo"]
        with pytest.raises(ActorDied, match="boom") as caught:
            await ref.call("boom")
        assert trio.current_time() == tree.root.tree().since
        assert isinstance(caught.value.reason, Crashed)


async def test_queued_calls_fail_when_the_actor_dies_and_the_next_life_starts_empty(autojump_clock):
    heard = []
    async with serving(Supervisor([echo(heard)])) as tree:
        ref = tree.root.registry["echo"]
        outcomes = []

        async def ask(message):
            try:
                outcomes.append(await ref.call(message))
            except ActorDied as died:
                outcomes.append(str(died.reason))

        async with trio.open_nursery() as nursery:
            for message in ["silence", "slow", "queued"]:
                nursery.start_soon(ask, message)
                await settled()
            ref.cast_nowait("lost")
            tree.root.kill_child("echo")
        assert outcomes == ["killed"] * 3
        assert await ref.call("again") == "again"
        assert "lost" not in heard


async def test_senders_waiting_for_room_are_told_when_the_actor_dies(autojump_clock):
    async with serving(Supervisor([echo([], inbox=1)])) as tree:
        ref = tree.root.registry["echo"]
        told = []

        async def send(method, message):
            try:
                await method(message)
            except ActorDied as died:
                told.append((method.__name__, died.reason))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, ref.call, "slow")
            await settled()
            ref.cast_nowait("fills the inbox")
            nursery.start_soon(send, ref.cast, "waits")
            nursery.start_soon(send, ref.call, "waits")
            await settled()
            tree.root.kill_child("echo")
        assert sorted(told, key=str) == [("call", Killed()), ("call", Killed()), ("cast", Killed())]


async def test_a_caller_that_is_cancelled_leaves_nothing_behind(autojump_clock):
    heard = []
    async with serving(Supervisor([echo(heard)])) as tree:
        ref = tree.root.registry["echo"]
        with trio.move_on_after(1) as patience:
            await ref.call("silence")
        assert patience.cancelled_caught
        assert heard[0].abandoned
        assert ref.statistics().unanswered == 0


async def test_a_kept_inbox_survives_the_actor_and_only_received_calls_fail(autojump_clock):
    heard = []
    async with serving(Supervisor([echo(heard, keep_inbox=True, inbox=1)])) as tree:
        ref = tree.root.registry["echo"]
        outcomes = {}

        async def ask(message):
            try:
                outcomes[message] = await ref.call(message)
            except ActorDied as died:
                outcomes[message] = died.reason

        async with trio.open_nursery() as nursery:
            for message in ["slow", "queued", "waiting for room"]:
                nursery.start_soon(ask, message)
                await settled()
            tree.root.kill_child("echo")
        assert outcomes == {
            "slow": Killed(),
            "queued": "queued",
            "waiting for room": "waiting for room",
        }


async def test_a_kept_inbox_takes_messages_between_two_lives(autojump_clock):
    heard = []
    supervisor = Supervisor([echo(heard, keep_inbox=True)])
    async with serving(supervisor) as tree:
        ref = tree.root.registry["echo"]
        for _ in range(2):  # the second restart waits
            with pytest.raises(ActorDied):
                await ref.call("boom")
        assert tree.root.tree().find("echo").state.value == "backing_off"
        assert await ref.call("hello") == "hello"


async def test_a_kept_inbox_is_closed_when_no_life_will_follow(autojump_clock):
    async with serving(Supervisor([echo([], keep_inbox=True)])) as tree:
        ref = tree.root.registry["echo"]
        for _ in range(2):
            with pytest.raises(ActorDied):
                await ref.call("boom")
        with trio.fail_after(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tree.root.terminate_child, "echo")
                with pytest.raises(ActorDied):
                    await ref.call("hello")


async def test_a_call_to_a_dead_actor_is_an_error_at_once(autojump_clock):
    async with serving(Supervisor([echo([], restart=Restart.TEMPORARY)])) as tree:
        ref = tree.root.registry["echo"]
        await tree.root.terminate_child("echo")
        before = trio.current_time()
        for attempt in (ref.call, ref.cast):
            with pytest.raises(ActorDied) as caught:
                await attempt("hello")
            assert (caught.value.path, caught.value.reason) == ("echo", Stopped())
        with pytest.raises(ActorDied):
            ref.cast_nowait("hello")
        assert trio.current_time() == before


async def test_a_call_to_an_address_where_nothing_ever_lived_says_so(autojump_clock):
    async with serving(Supervisor()) as tree:
        with pytest.raises(ActorDied) as caught:
            await tree.root.registry.ref("nowhere").call("hello")
        assert caught.value.reason == NotStarted()


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({}, 5.0),
        ({"timeout": 2.0}, 2.0),
        ({"deadline": 1.5}, 1.5),
        ({"timeout": 2.0, "deadline": 1.0}, 1.0),
        ({"timeout": 1.0, "deadline": 2.0}, 1.0),
    ],
)
async def test_an_unanswered_call_ends_at_the_earliest_limit(autojump_clock, limits, seconds):
    async with serving(Supervisor([echo([])])) as tree:
        before = trio.current_time()
        if "deadline" in limits:
            limits = {**limits, "deadline": before + limits["deadline"]}
        with pytest.raises(CallTimedOut, match="gave no answer in time: 'silence'"):
            await tree.root.registry["echo"].call("silence", **limits)
        assert trio.current_time() == pytest.approx(before + seconds)


async def test_a_full_inbox_holds_the_caller_back_until_the_deadline(autojump_clock):
    async with serving(Supervisor([echo([], inbox=1)])) as tree:
        ref = tree.root.registry["echo"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ref.call, "slow")
            await settled()
            ref.cast_nowait("fills the inbox")
            with pytest.raises(trio.WouldBlock):
                ref.cast_nowait("too much")
            with pytest.raises(CallTimedOut, match="its inbox is busy"):
                await ref.call("hello", timeout=2)
            assert await ref.call("hello", timeout=2) == "hello"  # there is room after three seconds


async def test_an_answer_to_a_caller_that_gave_up_goes_nowhere(autojump_clock):
    heard = []
    async with serving(Supervisor([echo(heard)])) as tree:
        ref = tree.root.registry["echo"]
        with pytest.raises(CallTimedOut):
            await ref.call("silence", timeout=1)
        (call,) = heard
        assert call.abandoned
        call.answer("late")
        assert ref.statistics().unanswered == 0


async def test_answering_twice_is_a_bug_in_the_actor(autojump_clock):
    async with serving(Supervisor([echo([])])) as tree:
        assert await tree.root.registry["echo"].call("twice") == 1
        await settled()
        assert "answered twice" in str(tree.root.tree().find("echo").last_exit)


async def test_an_answer_may_come_later_and_from_elsewhere(autojump_clock):
    heard = []
    async with serving(Supervisor([echo(heard)])) as tree, trio.open_nursery() as nursery:

        async def ask():
            assert await tree.root.registry["echo"].call("silence") == 42

        nursery.start_soon(ask)
        await settled()
        heard[0].answer(42)


async def test_statistics_count_what_waits(autojump_clock):
    heard = []
    async with serving(Supervisor([echo(heard, inbox=1)])) as tree:
        ref = tree.root.registry["echo"]
        async with trio.open_nursery() as nursery:
            for message in ["slow", "queued", "waiting"]:
                nursery.start_soon(ref.call, message)
                await settled()
            stats = ref.statistics()
            assert (stats.depth, stats.capacity, stats.waiting, stats.unanswered) == (1, 1, 1, 3)
            assert tree.root.tree().find("echo").inbox_depth == 1


async def test_an_actor_asked_to_stop_finishes_its_message_and_leaves_the_rest(autojump_clock):
    heard = []
    async with serving(Supervisor([echo(heard)])) as tree:
        ref = tree.root.registry["echo"]
        outcomes = {}

        async def ask(message):
            try:
                outcomes[message] = await ref.call(message)
            except ActorDied as died:
                outcomes[message] = died.reason

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "slow")
            await settled()
            nursery.start_soon(ask, "queued")
            await settled()
            await tree.root.terminate_child("echo")
        assert outcomes == {"slow": "late", "queued": Stopped()}
        assert heard == ["finished"]
        assert "child_kill_forced" not in tree.names()


async def test_an_idle_actor_stops_at_once(autojump_clock):
    heard = []
    async with serving(Supervisor([echo(heard)])) as tree:
        before = trio.current_time()
        await tree.root.terminate_child("echo")
        assert trio.current_time() == before
        assert heard == ["finished"]


async def test_a_monitor_tells_of_a_death_once(autojump_clock):
    seen = []
    a = Puppet("a")
    watcher = ChildSpec("w", lambda ctx: Watcher(ctx, seen).run(), inbox=1)
    async with serving(Supervisor([a.spec(), watcher])) as tree:
        registry = tree.root.registry
        await registry["w"].cast(registry["a"])
        await settled()
        a.finish()
        await settled()
        a.finish()
        await settled()
        assert seen == [Down("a", Normal())]


async def test_a_monitor_of_a_dead_actor_tells_at_once(autojump_clock):
    seen = []
    watcher = ChildSpec("w", lambda ctx: Watcher(ctx, seen).run(), inbox=1)
    async with serving(Supervisor([watcher])) as tree:
        await tree.root.registry["w"].cast(tree.root.registry.ref("nowhere"))
        await settled()
        assert seen == [Down("nowhere", NotStarted())]


async def test_a_down_can_be_taken_without_waiting_and_a_closed_inbox_gets_none(autojump_clock):
    inbox = Inbox("w", 1)
    async with serving(Supervisor()) as tree:
        nowhere = tree.root.registry.ref("nowhere")
        nowhere.monitor(inbox)
        assert inbox.statistics().depth == 1
        assert inbox.receive_nowait() == Down("nowhere", NotStarted())
        inbox.close(Normal())
        nowhere.monitor(inbox)
        assert not inbox.is_open


async def test_a_down_gets_past_a_full_inbox(autojump_clock):
    a = Puppet("a")
    seen = []

    async def busy(ctx):
        ctx.monitor(ctx.sibling("a"))
        ctx.started()
        await trio.sleep(1)
        seen.extend([message async for message in ctx.inbox])

    async with serving(Supervisor([a.spec(), ChildSpec("w", busy, inbox=1)])) as tree:
        tree.root.registry["w"].cast_nowait("full")
        a.crash(error := ValueError("x"))
        await trio.sleep(2)
        await tree.root.terminate_child("w")
        assert seen == [Down("a", Crashed(error)), "full"]


async def test_a_cancelled_monitor_is_silent(autojump_clock):
    a = Puppet("a")
    inbox = Inbox("w", 1)
    async with serving(Supervisor([a.spec()])) as tree:
        tree.root.registry["a"].monitor(inbox).cancel()
        a.finish()
        await settled()
        with pytest.raises(trio.WouldBlock):
            inbox.receive_nowait()


async def test_a_watchers_monitors_end_with_its_life(autojump_clock):
    seen = []
    a = Puppet("a")
    watcher = ChildSpec("w", lambda ctx: Watcher(ctx, seen).run(), inbox=1, keep_inbox=True)
    async with serving(Supervisor([a.spec(), watcher])) as tree:
        registry = tree.root.registry
        await registry["w"].cast(registry["a"])
        await settled()
        tree.root.kill_child("w")
        await settled()
        a.finish()
        await settled()
        assert seen == []


async def test_waiting_for_a_death_gives_the_reason(autojump_clock):
    a = Puppet("a")
    async with serving(Supervisor([a.spec(restart=Restart.TEMPORARY)])) as tree:
        ref = tree.root.registry["a"]
        reasons = []

        async def wait():
            reasons.append(await ref.wait_died())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await settled()
            a.shut_down()
        assert reasons == [Stopped()] * 2
        assert await ref.wait_died() == Stopped()
        assert repr(ref) == "<Ref 'a' shutdown>"


async def test_a_child_without_an_inbox_cannot_be_called(autojump_clock):
    async with serving(Supervisor([Puppet("a").spec()])) as tree:
        ref = tree.root.registry["a"]
        assert ref.statistics() is None
        with pytest.raises(TypeError, match="give its spec a capacity"):
            await ref.call("hello")


async def test_a_child_without_an_inbox_cannot_receive(autojump_clock):
    async with serving(Supervisor()) as tree:
        with pytest.raises(StartError, match=r"did not start.*give its spec a capacity"):
            await tree.root.start_child(ChildSpec("a", lambda ctx: Actor(ctx).run()))


async def test_two_tasks_cannot_drain_one_inbox(autojump_clock):
    inbox = Inbox("a", 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.receive)
        await settled()
        with pytest.raises(trio.BusyResourceError, match="one task drains it"):
            await inbox.receive()
        inbox.put_nowait("end")


async def test_an_actor_without_handle_says_what_it_received(autojump_clock):
    async with serving(Supervisor([ChildSpec("a", lambda ctx: Actor(ctx).run(), inbox=1)])) as tree:
        tree.root.registry["a"].cast_nowait("x")
        await settled()
        assert "Actor received 'x' and has no `handle`" in str(tree.root.tree().find("a").last_exit)


async def test_letting_the_end_of_an_inbox_propagate_is_a_clean_stop(autojump_clock):
    async def drain(ctx):
        ctx.started()
        async with trio.open_nursery():
            while True:
                await ctx.inbox.receive()

    async with serving(Supervisor([ChildSpec("a", drain, inbox=1)])) as tree:
        await tree.root.terminate_child("a")
        assert tree.root.tree().find("a").last_exit == Stopped()


async def test_an_address_stays_right_when_an_ancestor_restarts(autojump_clock):
    a = Puppet("a")
    branch = Supervisor([echo([])])
    root = Supervisor([a.spec(), branch.spec("branch")], strategy=Strategy.REST_FOR_ONE)
    async with serving(root) as tree:
        ref = tree.root.registry["branch/echo"]
        a.crash()
        await settled()
        assert tree.root.registry["branch/echo"] is ref
        assert await ref.call("hello") == "hello"


async def test_an_address_taken_early_works_once_the_child_is_there(autojump_clock):
    async with serving(Supervisor()) as tree:
        ref = tree.root.registry.ref("echo")
        await tree.root.start_child(echo([]))
        assert await ref.call("hello") == "hello"


async def test_the_registry_lists_what_lives_below_a_path(autojump_clock):
    branch = Supervisor([Puppet("a").spec(), Puppet("b/0").spec()])
    async with serving(Supervisor([branch.spec("branch"), Puppet("branching").spec()])) as tree:
        registry = tree.root.registry
        assert registry.under("branch") == ("branch/a", "branch/b/0")
        assert registry.under("") == tuple(registry)
        assert len(registry) == 4
        assert "branch/a" in registry
        await tree.root.terminate_child("branch")
        assert registry.under("branch") == ()
        with pytest.raises(KeyError):
            registry["branch/a"]
