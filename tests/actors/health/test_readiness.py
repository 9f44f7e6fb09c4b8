"""Readiness in virtual time: models that serve, hang, err, come and go, beside a verdict kept current."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.health.readiness import Readiness
from actors.serving.batcher import run as run_scheduler
from actors.serving.model import ModelState
from actors.serving.routing.router import Router
from actors.serving.standing import Status
from actors.serving.statistics import ModelStatistics
from actors.values.errors import ErrorCode, NotFound, Unavailable
from actors.values.events import Event
from actors.values.specs import InstanceSpec, Probe
from actors.wire.batch_frames import Answer
from tests.support.doubles import ServedDouble
from tests.support.model_doubles import Context, FakeWorker, make_request, make_spec
from tests.support.tasks import outcome_of

ERROR = Answer(code=ErrorCode.INTERNAL, message="no zeros, please")
NOON = 1_800_000_000_000  # milliseconds since the epoch, when the tests' clock starts
WALL_NOON = "2027-01-15T08:00:00.000Z"


HANG_BOUND = 100.0


class Worker(FakeWorker):
    """Answers each batch `after` some seconds, or never; says of itself what a test wants."""

    has_check = True

    def __init__(self, state, instance, nursery):
        super().__init__(state, instance)
        self.nursery = nursery
        self.after = 0.01
        self.hangs = False
        self.answer = None
        self.says = True  # None: nothing, for now
        self.asked = 0
        self.curious = []

    def dispatch(self, requests, *, now, alone=False):
        batch = super().dispatch(requests, now=now, alone=alone)
        if not self.hangs:
            self.nursery.start_soon(self.run)
        return batch

    async def run(self):
        await trio.sleep(self.after)
        self.finish(answers=self.answer and [self.answer])

    def probe(self, tell):
        self.asked += 1
        if self.says is None:
            self.curious.append(tell)
        else:
            tell(self.says)

    def forget(self, tell):
        if tell in self.curious:
            self.curious.remove(tell)

    def die(self):
        self.instance.worker = None
        for tell in list(self.curious):
            tell(False)


class ActorContext(Context):
    """What the tree would show."""

    def __init__(self):
        self.info = {}

    def publish(self, **info):
        self.info |= info


class Server:
    """A router with models in it, and the readiness under test."""

    def __init__(self, nursery, *, strict=True, started=True):
        self.nursery = nursery
        self.router = Router()
        self.finished = trio.Event()
        if started:
            self.finished.set()
        self.start = trio.current_time()
        self.log: list[Any] = []
        self.readiness = Readiness(
            self.router,
            strict=strict,
            finished=self.finished,
            log=lambda event, *, level="info", **keys: self.log.append((event, level, keys)),
            wall_clock=lambda: NOON + round((trio.current_time() - self.start) * 1000),
            hang_bound=HANG_BOUND,
        )
        self.router.roster.on_change(lambda key: self.readiness.changed())
        self.context = ActorContext()
        self.life = trio.CancelScope()
        nursery.start_soon(self.live)

    async def live(self):
        with self.life:
            await self.readiness.run(self.context)

    def state(self, name="add", **changes):
        return ModelState(
            make_spec(name=name, **changes),
            statistics=ModelStatistics(),
            on_status=self.router.roster.changed,
            wall_clock=lambda: 0,
        )

    def loading(self, name="add", **changes):
        state = self.state(name, **changes)
        self.router.roster.load_begun(state.spec.key, state)
        return state

    def ready(self, state, *, says=True):
        """Its instances come up, and requests go to it."""
        workers = [Worker(state, each, self.nursery) for each in state.instances]
        for worker in workers:
            worker.says = says
            state.instance_ready(worker.instance, worker)
        self.nursery.start_soon(run_scheduler, Context(), state)
        serving = self.router.roster.serving(state.spec.key)
        self.router.roster.serve(state.spec.key, {**serving, state.spec.version: state})
        return workers[0]

    def serve(self, name="add", *, says=True, **changes):
        return self.ready(self.loading(name, **changes), says=says)

    async def is_ready(self, *, after=0.0):
        if after:
            await trio.sleep(after)
        return await self.readiness.ready()

    @property
    def changes(self):
        """What was logged: whether ready, and what failed."""
        assert all(event is Event.READINESS_CHANGED for event, _, _ in self.log)
        return [(keys["ready"], keys["failed"]) for _, _, keys in self.log]


@pytest.fixture
async def serving(nursery):
    return lambda **options: Server(nursery, **options)


@pytest.fixture
async def served(serving):
    """Begin with one model that serves; return the server and the model's first worker."""

    def begun(**changes):
        server = serving()
        return server, server.serve(**changes)

    return begun


@pytest.fixture
async def server(serving):
    return serving()


@pytest.fixture
async def worker(server):
    """The worker of a model that the server serves."""
    return server.serve()


@pytest.fixture
async def lenient(serving):
    """A server that is ready whatever its models do."""
    return serving(strict=False)


# -- the verdict


async def test_a_server_is_ready_once_its_start_is_over(serving, autojump_clock):
    server = serving(started=False)
    server.serve()
    assert not await server.is_ready()
    await wait_all_tasks_blocked()
    assert server.changes == []
    server.finished.set()
    await wait_all_tasks_blocked()
    assert await server.is_ready()
    assert server.changes == [(True, [])]
    assert server.context.info == {"ready": True, "failed": 0}


async def test_a_change_of_status_shows_at_once(server, worker, autojump_clock):
    assert await server.is_ready()
    worker.state.standing.become(Status.UNAVAILABLE, "Unavailable: all instances keep dying: signal 11")
    assert not await server.is_ready()
    worker.state.standing.become(Status.READY)
    assert await server.is_ready()
    assert [ready for ready, _ in server.changes] == [True, False, True]
    assert server.changes[1][1] == ["model add version 1: unavailable"]
    assert [level for _, level, _ in server.log] == ["info", "warning", "info"]


async def test_loading_a_model_takes_no_readiness_away_until_it_has_failed(server, worker, autojump_clock):
    assert await server.is_ready()
    other = server.loading("other")
    newer = server.loading(version=2)
    assert await server.is_ready()
    server.router.roster.load_ended(newer.spec.key, newer, "Internal: no such file")
    assert not await server.is_ready()
    server.loading(version=2)
    assert not await server.is_ready()  # it had failed, and has not come up yet
    server.router.roster.load_ended(other.spec.key, other, "unloaded")
    server.serve(version=2)
    assert await server.is_ready()


async def test_a_lenient_server_is_ready_whatever_its_models_do(serving, autojump_clock):
    server = serving(strict=False)
    server.router.roster.mark_broken(make_spec(name="add").key, (), "no version is available")
    assert await server.is_ready()
    await wait_all_tasks_blocked()
    assert server.changes == [(True, ["model add: unavailable"])]


# -- what instances say of themselves


async def test_a_model_that_says_no_shows_at_once(server, worker, autojump_clock):
    assert await server.is_ready()
    worker.says = False
    assert not await server.is_ready()
    assert server.changes[-1] == (False, ["model add version 1: its own readiness check says no"])
    worker.says = True
    assert await server.is_ready()


async def test_a_model_is_asked_when_somebody_asks_and_never_else(server, worker, autojump_clock):
    await trio.sleep(60)
    assert worker.asked == 0
    for number in range(1, 4):
        assert await server.is_ready()
        assert worker.asked == number


async def test_a_lenient_server_asks_nobody(lenient, autojump_clock):
    worker = lenient.serve(says=False)
    assert await lenient.is_ready()
    assert worker.asked == 0


async def test_who_asks_waits_for_what_a_model_says_of_itself(serving, autojump_clock):
    server = serving(started=False)
    worker = server.serve(says=None)
    server.finished.set()
    answers = outcome_of(server.nursery, server.is_ready)
    await trio.sleep(0.5)
    assert answers == []
    worker.says = True
    for tell in list(worker.curious):
        tell(True)
    await wait_all_tasks_blocked()
    assert answers == [True]
    assert server.changes == [(True, [])]


async def test_a_check_that_hangs_is_told_each_time_after_five_seconds(server, worker, autojump_clock):
    assert await server.is_ready()
    worker.says = None
    for _ in range(2):
        begun = trio.current_time()
        assert not await server.is_ready()
        assert trio.current_time() - begun == pytest.approx(5)
        # A caller that has left does not wait here.
        assert worker.curious == []
    assert server.changes[-1][1] == [
        "model add version 1: its own readiness check does not answer within 5 s"
    ]
    worker.says = True
    assert await server.is_ready()


async def test_one_instance_that_says_no_is_enough(served, autojump_clock):
    server, worker = served(instances=tuple(InstanceSpec(name=f"i{n}") for n in range(2)))
    assert await server.is_ready()
    worker.state.instances[1].worker.says = False
    assert not await server.is_ready()


async def test_a_worker_that_dies_while_it_is_asked_has_no_say(server, worker, autojump_clock):
    assert await server.is_ready()
    worker.says = None
    answers = outcome_of(server.nursery, server.is_ready)
    await trio.sleep(1.1)
    worker.die()
    await wait_all_tasks_blocked()
    assert answers == [True]
    assert server.changes == [(True, [])]


async def test_a_models_own_readiness_is_asked_for_now(served, autojump_clock):
    server, one = served()
    two = server.serve(version=2)
    assert await server.readiness.model_ready("add")
    two.says = False
    assert not await server.readiness.model_ready("add")
    assert await server.readiness.model_ready("add", "1")
    one.says = False
    assert not await server.readiness.model_ready("add", "1")
    with pytest.raises(NotFound):
        await server.readiness.model_ready("sub")
    server.loading("sub")
    with pytest.raises(Unavailable):
        await server.readiness.model_ready("sub", "1")


class Front(ServedDouble):
    """Answers for a model in place of a version of it."""

    spec = make_spec()


async def test_a_model_behind_a_front_is_asked_by_its_highest_version(server, worker, autojump_clock):
    two = server.serve(version=2)
    server.router.roster.set_fronting(two.state.spec.key, lambda ready: Front())
    assert await server.readiness.model_ready("add")
    two.says = False
    assert not await server.readiness.model_ready("add")


async def test_a_dormant_model_is_ready_and_left_alone(server, autojump_clock):
    server.router.roster.set_dormant(make_spec(name="add").key, {1: Front()})
    assert await server.is_ready()
    assert await server.readiness.model_ready("add")
    report = await server.readiness.deep()
    assert report.document == {"ready": True, "live": True, "parts": []}


# -- periodic probes


async def test_a_model_is_probed_at_its_interval(served, autojump_clock):
    server, worker = served(probe_interval=5.0)
    server.serve("other")
    await trio.sleep(21)
    assert [round(at - worker.times[0], 1) for at in worker.times] == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert all(request.synthetic for _, (request,), _ in worker.sent)
    (counts,) = server.readiness.probes()
    assert (counts.name, counts.version, counts.probes, counts.failures) == ("add", 1, 5, 0)
    assert counts.seconds == pytest.approx(0.01)
    assert worker.state.statistics.success_count == 0


async def test_a_start_waits_for_the_first_probe(served, autojump_clock):
    server, worker = served(probe_interval=5.0)
    worker.after = 2.0
    assert not await server.is_ready(after=1.0)
    assert await server.is_ready(after=1.1)


async def test_a_model_that_stops_answering_is_told_and_since_when(served, autojump_clock):
    server, worker = served(probe_interval=4.0)
    assert await server.is_ready(after=1)
    worker.hangs = True
    assert not await server.is_ready(after=8)
    assert server.changes[-1] == (
        False,
        ["model add version 1: a probe inference was not answered: no answer within 4 s"],
    )
    (part,) = server.readiness.verdict.parts
    assert part.since == server.start + 8.0
    await trio.sleep(8)
    (part,) = server.readiness.verdict.parts
    assert part.since == server.start + 8.0
    worker.hangs = False
    worker.finish()
    assert await server.is_ready(after=5)
    (counts,) = server.readiness.probes()
    assert counts.failures >= 2


@pytest.mark.parametrize(
    ("changes", "within"),
    [
        ({"probe_interval": 3.0}, 3.0),
        ({"probe_interval": 60.0}, 10.0),
        ({"probe_interval": 60.0, "execution_timeout": 30.0}, 30.0),
        ({"probe_interval": 60.0, "execution_timeout": 2.0}, 2.0),
        ({"probe_interval": 5.0, "execution_timeout": 30.0}, 5.0),
    ],
)
async def test_a_probe_has_limits(served, autojump_clock, changes, within):
    server, worker = served(**changes)
    worker.hangs = True
    await trio.sleep(within - 0.1)
    assert not list(server.readiness.probes())
    await trio.sleep(0.2)
    (counts,) = server.readiness.probes()
    assert counts.seconds == pytest.approx(within)


async def test_one_probe_of_a_model_runs_at_a_time(served, autojump_clock):
    server, worker = served(probe_interval=10.0)
    worker.hangs = True
    await trio.sleep(1)
    began = trio.current_time()
    report = await server.readiness.deep()
    assert trio.current_time() - began == pytest.approx(2.0)
    assert worker.sizes == [1]
    (part,) = report.document["parts"]
    assert not report.ready
    assert "reason" in part


@pytest.mark.parametrize("setting", list(Probe))
async def test_a_model_that_always_errs_is_what_it_always_was_unless_its_probe_is_required(
    served, autojump_clock, setting
):
    server, worker = served(probe_interval=1.0, probe=setting)
    worker.answer = ERROR
    assert await server.is_ready(after=5) is (setting is not Probe.REQUIRED)


@pytest.mark.parametrize("setting", [Probe.COMPARE, Probe.OFF])
async def test_an_error_that_is_new_counts(served, autojump_clock, setting):
    server, worker = served(probe_interval=1.0, probe=setting)
    assert await server.is_ready(after=2.5)
    worker.answer = ERROR
    assert not await server.is_ready(after=1)
    worker.answer = None
    assert await server.is_ready(after=1)


async def test_a_model_that_answers_its_clients_is_busy(served, autojump_clock):
    server, worker = served(probe_interval=2.0)
    await trio.sleep(1)
    worker.after = 2.5
    await worker.state.submit(make_request())
    assert await server.is_ready(after=3.5)
    (counts,) = server.readiness.probes()
    assert counts.failures == 0
    assert server.changes == [(True, [])]


async def test_nothing_is_probed_while_it_loads_or_while_the_server_exits(server, autojump_clock):
    state = server.loading(probe_interval=1.0)
    await trio.sleep(3)
    assert not list(server.readiness.probes())
    worker = server.ready(state)
    server.readiness.exiting = True
    await trio.sleep(3)
    assert not worker.sent


async def test_a_server_that_is_about_to_end_is_not_ready_and_wakes_those_who_watch(server, worker, nursery):
    await wait_all_tasks_blocked()
    turned = []

    async def watch(ready):
        await server.readiness.wait_turned(ready)
        turned.append(ready)

    nursery.start_soon(watch, True)
    await wait_all_tasks_blocked()
    assert (await server.is_ready(), turned) == (True, [])
    server.readiness.withdraw()
    await wait_all_tasks_blocked()
    assert (await server.is_ready(), server.readiness.is_ready, turned) == (False, False, [True])
    assert not server.readiness.exiting
    nursery.start_soon(watch, False)
    await wait_all_tasks_blocked()
    server.readiness.exit()
    await wait_all_tasks_blocked()
    assert (server.readiness.exiting, turned) == (True, [True, False])


async def test_who_watches_is_woken_when_a_model_takes_readiness_away_and_brings_it_back(
    server, worker, nursery, autojump_clock
):
    await wait_all_tasks_blocked()
    turned = []

    async def watch():
        ready = True
        while True:
            await server.readiness.wait_turned(ready)
            ready = not ready
            turned.append(ready)

    nursery.start_soon(watch)
    await trio.sleep(3)
    assert turned == []
    worker.says = False
    await trio.sleep(3)
    assert turned == [False]
    worker.says = True
    await trio.sleep(3)
    assert turned == [False, True]


async def test_a_version_that_is_retired_under_its_probe_is_no_failure(served, autojump_clock):
    server, old = served(probe_interval=4.0)
    await trio.sleep(3)
    old.hangs = True
    await trio.sleep(2)  # the probe is on its way
    new = server.loading(probe_interval=4.0)
    server.ready(new)
    old.state.standing.become(Status.UNLOADING)
    assert await server.is_ready(after=10)
    (counts,) = server.readiness.probes()
    assert counts.failures == 0
    assert server.changes[-1] == (True, [])


async def test_what_is_counted_is_forgotten_with_the_model(served, autojump_clock):
    server, worker = served(probe_interval=1.0)
    state = worker.state
    await trio.sleep(0.5)
    assert len(list(server.readiness.probes())) == 1
    server.router.roster.serve(state.spec.key, {})
    server.router.roster.retired(state.spec.key, state)
    server.router.roster.forget(state.spec.key)
    await trio.sleep(1)
    assert not list(server.readiness.probes())


# -- deep probes


async def test_a_deep_report_names_every_part(server, worker, autojump_clock):
    sick = server.serve("sick")
    await trio.sleep(10)
    sick.hangs = True
    report = await server.readiness.deep()
    assert not report.ready
    assert report.document == {
        "ready": False,
        "live": True,
        "parts": [
            {"part": "model add version 1", "ready": True, "since": WALL_NOON, "seconds": 0.01},
            {
                "part": "model sick version 1",
                "ready": False,
                "reason": "a probe inference was not answered: no answer within 2 s",
                "since": "2027-01-15T08:00:12.000Z",
                "seconds": 2.0,
            },
        ],
    }
    assert await server.is_ready()  # it is not probed by itself, so no probe would ever take that back
    await trio.sleep(60)
    again = await server.readiness.deep()
    assert again.document["parts"][1]["since"] == "2027-01-15T08:00:12.000Z"
    sick.hangs = False
    sick.finish()
    await trio.sleep(1)
    assert (await server.readiness.deep()).ready


async def test_a_deep_report_says_what_is_wrong_without_a_probe_too(lenient, autojump_clock):
    lenient.router.roster.mark_broken(make_spec(name="broken").key, (1,), "Invalid argument: no")
    report = await lenient.readiness.deep()
    assert report.document == {
        "ready": True,  # a lenient server
        "live": True,
        "parts": [
            {
                "part": "model broken version 1",
                "ready": False,
                "reason": "Invalid argument: no",
                "since": WALL_NOON,
            }
        ],
    }


async def test_a_lenient_server_fails_a_deep_probe_all_the_same(lenient, autojump_clock):
    lenient.serve().hangs = True
    assert not (await lenient.readiness.deep()).ready
    assert await lenient.is_ready()


async def test_a_deep_probe_during_the_start_says_so(serving, autojump_clock):
    server = serving(started=False)
    server.serve()
    report = await server.readiness.deep()
    assert not report.ready
    assert report.document["reason"] == "the models found at start are still being loaded"


async def test_an_error_answer_is_noted(server, worker, autojump_clock):
    worker.answer = ERROR
    report = await server.readiness.deep()
    assert report.ready
    assert report.document["parts"][0]["note"] == (
        "a probe inference is answered with an error, as before: no zeros, please"
    )


async def test_a_deep_probe_of_a_periodic_model_feeds_the_verdict(served, autojump_clock):
    server, worker = served(probe_interval=1000.0)
    await trio.sleep(1)
    worker.hangs = True
    await server.readiness.deep()
    assert not await server.is_ready()


async def test_a_busy_model_passes_a_deep_probe_and_the_report_says_why(server, worker, autojump_clock):
    worker.after = 1.5
    for _ in range(2):
        await worker.state.submit(make_request())
    report = await server.readiness.deep()
    assert report.ready
    assert report.document["parts"][0]["note"] == (
        "a probe inference was not answered: no answer within 2 s; but it answered 1 other requests meanwhile"
    )


async def test_a_storm_of_deep_probes_is_one_round(server, worker, autojump_clock):
    async with trio.open_nursery() as nursery:
        reports = [outcome_of(nursery, server.readiness.deep) for _ in range(100)]
    assert len(worker.sent) == 1
    assert len({id(report) for (report,) in reports}) == 1
    await server.readiness.deep()
    assert len(worker.sent) == 1
    await trio.sleep(0.25)
    await server.readiness.deep()
    assert len(worker.sent) == 2


async def test_deep_probes_run_eight_at_once_and_end_in_time(server, autojump_clock):
    workers = [server.serve(f"m{number:02}") for number in range(50)]
    for worker in workers:
        worker.hangs = True
    began = trio.current_time()
    report = await server.readiness.deep()
    assert trio.current_time() - began == pytest.approx(10.0)
    starts = sorted(worker.times[0] - began for worker in workers if worker.sent)
    assert len(starts) == 40
    assert all(starts[at + 8] - starts[at] >= 1.99 for at in range(32))
    assert not report.ready
    reasons = [part["reason"] for part in report.document["parts"]]
    assert reasons.count("there was no time to probe it: others took 10 s") == 10


async def test_a_version_swapped_under_a_deep_probe_is_no_failure(served, autojump_clock):
    server, old = served()
    old.hangs = True
    reports = outcome_of(server.nursery, server.readiness.deep)
    await trio.sleep(1)
    server.ready(server.loading())
    old.state.standing.become(Status.UNLOADING)
    await trio.sleep(5)
    assert reports[0].ready
    assert [part["ready"] for part in reports[0].document["parts"]] == [True]


# -- the actor's own lives


async def test_a_restarted_actor_goes_on_where_the_last_one_was(served, autojump_clock):
    server, worker = served(probe_interval=1.0)
    assert await server.is_ready(after=0.5)
    server.life.cancel()
    await wait_all_tasks_blocked()
    worker.state.standing.become(Status.UNAVAILABLE, "Internal: gone")
    assert not await server.is_ready()  # no task keeps the verdict current
    worker.state.standing.become(Status.READY)
    server.life = trio.CancelScope()
    server.nursery.start_soon(server.live)
    assert await server.is_ready(after=5)
    assert len(worker.sent) > 4


async def test_who_waits_for_a_report_outlives_the_actor(server, worker, autojump_clock):
    worker.after = 1.0
    reports = outcome_of(server.nursery, server.readiness.deep)
    await trio.sleep(0.5)
    server.life.cancel()
    await trio.sleep(1)
    assert not reports
    server.life = trio.CancelScope()
    server.nursery.start_soon(server.live)
    await trio.sleep(2)
    assert reports[0].ready


async def test_without_its_actor_a_deep_probe_says_so_in_time(server, worker, autojump_clock):
    server.life.cancel()
    await wait_all_tasks_blocked()
    with trio.fail_after(13):
        report = await server.readiness.deep()
    assert not report.ready
    assert report.document["reason"] == "no probe was made: readiness itself is being restarted"


async def test_a_caller_that_leaves_takes_nobody_along(server, autojump_clock):
    server.serve().after = 1.0
    with trio.move_on_after(0.5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.readiness.deep)
            reports = outcome_of(server.nursery, server.readiness.deep)
    await trio.sleep(1)
    assert reports[0].ready


# -- what hangs


PAIR = (InstanceSpec(name="add_0"), InstanceSpec(name="add_1"))


def hang(worker):
    """Have a worker begin with an execution that never ends; return its request."""
    worker.hangs = True
    request = make_request()
    worker.state.submit_nowait(request)
    return request


def sibling(worker):
    """The worker of the other instance."""
    return next(each.worker for each in worker.state.instances if each.worker is not worker)


async def test_a_server_is_not_ready_while_the_only_instance_of_a_model_hangs(server, worker, autojump_clock):
    await wait_all_tasks_blocked()
    hang(worker)
    assert await server.is_ready(after=HANG_BOUND - 1)
    assert not await server.is_ready(after=2.5)
    reason = (
        "its only instance has been busy with one execution for more than 100 s (--unready-after-hang-secs);"
        " tritium.execution_timeout would end such a one"
    )
    assert server.changes[-1] == (False, [f"model add version 1: {reason}"])
    worker.finish()
    assert await server.is_ready(after=1.5)


async def test_one_instance_that_hangs_beside_another_does_not_count(served, autojump_clock):
    server, first = served(instances=PAIR)
    await wait_all_tasks_blocked()
    hang(first)
    assert await server.is_ready(after=2 * HANG_BOUND)
    hang(sibling(first))
    assert not await server.is_ready(after=HANG_BOUND + 1.5)
    assert "each of its 2 instances has been busy" in server.changes[-1][1][0]


@pytest.mark.parametrize("spec", [{"execution_timeout": 500.0}, {"essential": False}])
async def test_a_model_with_a_limit_or_without_a_say_may_hang(server, autojump_clock, spec):
    hang(server.serve(**spec))
    assert await server.is_ready(after=2 * HANG_BOUND)


async def test_at_the_end_what_hangs_is_given_up_and_what_others_do_is_not(served, autojump_clock):
    _, first = served(instances=PAIR)
    state, other = first.state, sibling(first)
    await wait_all_tasks_blocked()
    stuck = hang(first)
    await trio.sleep(HANG_BOUND)
    healthy = hang(other)
    state.give_up_stuck(HANG_BOUND, "it is over")
    assert stuck.reply.error.message == "[request id: <id_unknown>] it is over"
    waiting = make_request()
    state.submit_nowait(waiting)
    await wait_all_tasks_blocked()
    assert first.outstanding == {}  # what hangs is given nothing more
    other.finish()
    await wait_all_tasks_blocked()
    assert healthy.reply.answered
    other.finish()
    assert waiting.reply.answered
    with trio.fail_after(1):
        await state.wait_drained()


async def test_an_instance_that_was_given_up_as_stuck_can_be_removed_by_a_replacement_under_way(
    served, autojump_clock
):
    _, first = served(instances=PAIR)
    state, other = first.state, sibling(first)
    await wait_all_tasks_blocked()
    hang(first)
    await trio.sleep(HANG_BOUND)
    healthy = hang(other)
    await wait_all_tasks_blocked()
    state.give_up_stuck(HANG_BOUND, "it is over")
    state.remove_instance(first.instance)
    assert state.instances == state.rotation == [other.instance]
    other.finish()
    assert healthy.reply.answered


async def test_a_server_is_not_ready_while_no_engine_of_a_model_shows_a_sign_of_life(served, autojump_clock):
    server, first = served(instances=PAIR)
    await wait_all_tasks_blocked()
    first.silent_for = 30.0
    assert await server.is_ready(after=1.5)
    sibling(first).silent_for = 35.0
    assert not await server.is_ready(after=1.5)
    assert "no engine has shown a sign of life at its work for 30 s" in server.changes[-1][1][0]
    first.silent_for = 0.0
    assert await server.is_ready(after=1.5)


async def test_a_fleet_keeps_a_server_from_being_ready_that_serves_all_the_same(serving, autojump_clock):
    server = serving()
    server.serve()
    server.readiness.hold(True)
    await trio.sleep(1)
    assert not await server.readiness.ready()
    assert not (await server.readiness.deep()).ready
    turned = trio.Event()

    async def watch():
        await server.readiness.wait_turned(False)
        turned.set()

    server.nursery.start_soon(watch)
    await trio.sleep(1)
    server.readiness.hold(False)
    await turned.wait()
    assert await server.readiness.ready()
