"""The trail in virtual time: changes wait for their records, and a full disk refuses them."""

import pytest
import trio
import trio.testing

from actors.seams import threads
from actors.supervision.spec import ChildSpec
from actors.supervision.supervisor import Supervisor
from actors.values.auditing import AuditUnwritable, ManagedChange, Requester, recorded
from actors.values.errors import Internal, PermissionDenied, Unauthenticated
from engine.audit.denials import GATHERING, WINDOW
from engine.audit.records import LONGEST
from engine.audit.trail import AGAIN, MOST_NOTES, Trail, audit_blocks
from tests.support.auditing import MemoryFile
from tests.support.logged import Logged

CI = Requester("ci", "192.0.2.7")


class World:
    """A trail over a file in memory, and its actor in a tree."""

    def __init__(self, nursery):
        self.file = MemoryFile()
        self.log = Logged()
        self.trail = Trail(self.file, wall_clock=lambda: 5_000, boot=0xABC, log=self.log)
        self.root = Supervisor([self.trail.spec()])
        self._nursery = nursery

    async def start(self):
        threads.give(Inline())
        await self._nursery.start(lambda task_status: self.root.serve(task_status=task_status))

    @property
    def told(self):
        return [(each.action, each.outcome) for each in self.file.written]

    def node(self):
        [child] = self.root.tree().children
        return child.info

    async def change(self, carry_out, **options):
        change = ManagedChange(action="model_load", model="m", **options)
        return await recorded(self.trail.at("grpc"), change, CI, carry_out)

    def deny(self, address="192.0.2.7", error=None):
        error = error or Unauthenticated("no")
        self.trail.at("http").denied("inference", "m", Requester("", address), error)


class Inline:
    """Threads that do their work at once, so that virtual time stands still meanwhile."""

    async def run_sync(self, function, *args, abandon_on_cancel=False, limiter=None):
        await trio.lowlevel.checkpoint()
        return function(*args)


@pytest.fixture
async def world(nursery, autojump_clock):
    world = World(nursery)
    await world.start()
    return world


async def done():
    return "result"


class TestChanges:
    async def test_a_change_begins_once_its_record_is_written_and_ends_with_another_of_the_same_id(
        self, world
    ):
        async def carry_out():
            assert world.told == [("model_load", "asked")]
            assert world.file.rooms == [LONGEST]
            return "result"

        assert await world.change(carry_out, files={"config": "{}", "file:1/a": b"abc"}) == "result"
        asked, end = world.file.written
        assert (asked.identity, asked.address, asked.via, asked.model) == ("ci", "192.0.2.7", "grpc", "m")
        assert asked.facts["files"]["file:1/a"] == {
            "bytes": 3,
            "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        }
        assert asked.facts["files"]["config"]["bytes"] == 2
        assert (end.outcome, end.id, end.facts) == ("done", asked.id, {})
        assert asked.id == "00000abc-1"
        assert world.file.rooms == [LONGEST, None]

    @pytest.mark.parametrize(
        ("error", "outcome", "code"),
        [
            (Internal("broken"), "failed", "INTERNAL"),
            (PermissionDenied("no uploads"), "denied", "PERMISSION_DENIED"),
            (ValueError("a bug"), "failed", ""),
        ],
    )
    async def test_a_change_that_fails_says_why(self, autojump_clock, world, error, outcome, code):
        async def carry_out():
            raise error

        with pytest.raises(type(error)):
            await world.change(carry_out)
        await trio.testing.wait_all_tasks_blocked()
        end = world.file.written[-1]
        assert (end.outcome, end.code) == (outcome, code)
        assert str(error) in end.reason

    async def test_a_change_whose_caller_leaves_is_abandoned(self, autojump_clock, world):
        with trio.move_on_after(1):
            await world.change(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        assert world.told == [("model_load", "asked"), ("model_load", "abandoned")]

    async def test_room_is_kept_for_the_outcome_of_each_change_under_way(
        self, autojump_clock, world, nursery
    ):
        for _ in range(3):
            nursery.start_soon(world.change, trio.sleep_forever)
            await trio.testing.wait_all_tasks_blocked()
        world.trail.note("files_reloaded", {})
        await trio.testing.wait_all_tasks_blocked()
        assert world.file.rooms == [LONGEST, 2 * LONGEST, 3 * LONGEST, 3 * LONGEST]
        nursery.cancel_scope.cancel()


class TestFullDisk:
    async def test_no_change_is_carried_out_and_the_client_is_told_why(self, autojump_clock, world):
        world.file.full = True
        with pytest.raises(AuditUnwritable, match="can't be written: No space left on device"):
            await world.change(lambda: trio.testing.wait_all_tasks_blocked())
        assert world.trail.trouble == "No space left on device"
        assert world.log.of("audit_unavailable") == [
            {"file": "/audit.jsonl", "error": "No space left on device"}
        ]
        await trio.sleep(0.1)
        assert world.node()["trouble"] == "No space left on device"

    async def test_room_for_the_outcome_is_needed_as_well(self, autojump_clock, world):
        world.file.roomless = True
        with pytest.raises(AuditUnwritable):
            await world.change(done)

    async def test_the_outcome_of_a_change_waits_for_the_disk_and_its_client_does_not(
        self, autojump_clock, world
    ):
        async def carry_out():
            world.file.full = True
            return "result"

        assert await world.change(carry_out) == "result"
        assert world.told == [("model_load", "asked")]
        world.file.full = False
        await trio.sleep(2 * AGAIN)
        assert world.told == [("model_load", "asked"), ("model_load", "done")]

    async def test_its_end_is_noticed_without_a_request_and_what_was_refused_is_told(
        self, autojump_clock, world
    ):
        world.file.full = True
        for _ in range(5):
            with pytest.raises(AuditUnwritable):
                await world.change(done)
        world.trail.note("files_reloaded", {"what": "auth-file"})
        await trio.sleep(10)
        assert world.told == []
        world.file.full = False
        await trio.sleep(2 * AGAIN + GATHERING)
        assert world.told == [("files_reloaded", "done"), ("model_load", "denied")]
        assert world.log.of("audit_available") == [{"file": "/audit.jsonl"}]
        assert len(world.log.of("audit_unavailable")) == 1
        assert "trouble" not in world.node()
        await trio.sleep(WINDOW)
        assert world.file.written[-1].facts["count"] == 4
        assert await world.change(done) == "result"

    async def test_a_change_is_carried_out_at_once_when_the_disk_has_room_again(self, autojump_clock, world):
        world.file.full = True
        with pytest.raises(AuditUnwritable):
            await world.change(done)
        world.file.full = False
        assert await world.change(done) == "result"

    async def test_notes_are_kept_up_to_a_bound_and_the_lost_ones_are_counted(self, autojump_clock, world):
        world.file.full = True
        for _ in range(MOST_NOTES + 7):
            world.trail.note("files_reloaded", {})
        await trio.sleep(10)
        world.file.full = False
        await trio.sleep(3 * AGAIN)
        world.trail.note("files_reloaded", {})
        await trio.testing.wait_all_tasks_blocked()
        [lost] = [each for each in world.file.written if each.action == "audit_records_lost"]
        assert lost.facts == {"count": 7}
        assert len(world.file.written) == MOST_NOTES + 2


class TestDenials:
    async def test_a_denial_is_written_within_a_moment_and_its_repetitions_as_a_count(
        self, autojump_clock, world
    ):
        for _ in range(1000):
            world.deny()
        await trio.sleep(2 * GATHERING)
        [first] = world.file.written
        assert (first.outcome, first.code, first.reason, first.facts) == (
            "denied",
            "UNAUTHENTICATED",
            "no",
            {},
        )
        await trio.sleep(WINDOW)
        [_, counted] = world.file.written
        assert counted.facts["count"] == 999

    async def test_denials_of_a_moment_are_one_write(self, autojump_clock, world):
        for number in range(50):
            world.deny(f"192.0.2.{number}")
        await trio.sleep(2 * GATHERING)
        assert len(world.file.written) == 50
        assert len(world.file.rooms) == 1

    async def test_long_names_are_cut(self, autojump_clock, world):
        world.trail.at("http").denied("inference", "m" * 10_000, CI, PermissionDenied("r" * 10_000))
        await trio.sleep(2 * GATHERING)
        [denied] = world.file.written
        assert len(denied.model) < 100
        assert len(denied.reason) < 100

    async def test_nothing_happens_while_nothing_is_denied(self, autojump_clock, world):
        await trio.sleep(10 * WINDOW)
        assert world.file.rooms == []


class TestTheEnd:
    async def test_what_waits_is_written_when_the_server_stops_and_its_last_record_is_the_last(
        self, autojump_clock, world
    ):
        world.trail.ends_with("server_stopped", {"pid": 1})
        world.deny()
        world.deny()
        world.root.stop()
        await trio.testing.wait_all_tasks_blocked()
        assert world.told == [("inference", "denied"), ("inference", "denied"), ("server_stopped", "done")]
        world.trail.close()
        assert world.file.closed

    async def test_what_was_told_outlives_the_actor(self, nursery, autojump_clock):
        world = World(nursery)
        lives = []

        async def dies_once(ctx):
            lives.append(ctx)
            if len(lives) == 1:
                ctx.started()
                await trio.sleep(1)
                raise ValueError("a bug")
            await world.trail.run(ctx)

        world.root = Supervisor([ChildSpec("audit", dies_once)])
        await world.start()
        world.trail.note("server_started", {})
        assert world.told == []
        await trio.sleep(5)
        assert world.told == [("server_started", "done")]

    async def test_a_bug_of_the_actor_ends_nothing_else_and_is_tried_again(self, autojump_clock, world):
        append = world.file.append

        def broken(*_, **__):
            raise ValueError("a bug")

        world.file.append = broken
        world.trail.note("server_started", {})
        await trio.sleep(600)
        assert world.root.is_running
        world.file.append = append
        await trio.sleep(60)
        assert world.told == [("server_started", "done")]


async def test_metrics_tell_of_records_failures_and_whether_it_can_be_written(autojump_clock, world):
    await world.change(done)
    world.deny()
    world.file.full = True
    with pytest.raises(AuditUnwritable):
        await world.change(done)
    told = {
        block.name.removeprefix("tritium_audit_"): block.series[0].value
        for block in audit_blocks(world.trail)
    }
    assert told == {"records_total": 2, "write_failures_total": 1, "denials_total": 2, "writable": 0}


async def test_without_an_audit_log_a_change_is_simply_carried_out():
    assert await recorded(None, ManagedChange(action="traffic"), CI, done) == "result"
