"""Two nested supervisors against a model of OTP's semantics: every event in its order, and every row."""

from itertools import groupby
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.supervision.errors import IntensityExceeded, StartError
from actors.supervision.spec import (
    Backoff,
    ChildSpec,
    Intensity,
    Kind,
    OnExhausted,
    Restart,
    Shutdown,
    Strategy,
)
from actors.supervision.supervisor import Supervisor
from tests.support.examples import examples
from tests.support.otp_model import AWAITING, Actor, Otp, Player
from tests.support.stepped_trio import SteppedTrio
from tests.support.trees import Cue

budgets = st.sampled_from([None, None, Intensity(0, 2.0), Intensity(1, 2.0)])
shutdowns = st.sampled_from([None, None, Shutdown.BRUTAL_KILL])
restarts = st.sampled_from([Restart.PERMANENT, Restart.PERMANENT, Restart.TRANSIENT, Restart.TEMPORARY])
traits = st.tuples(restarts, shutdowns, budgets, st.booleans())
NAMES = ("outer/a", "outer/z", "outer/new", "inner/p", "inner/q", "inner/r", "inner/d", "inner/e")
# No two restarts are due at the same moment, because the order of simultaneous events is not promised.
INITIAL = {name: 0.5 + (3 + 2 * at) / 1024 for at, name in enumerate((*NAMES, "outer/inner"))}
who = st.sampled_from(NAMES)
starts: Any = st.one_of(st.just([]), st.lists(st.sampled_from(["fail", "fail", "crash", "well"]), max_size=4))
anyone = st.sampled_from([*NAMES, "outer/inner"])


def spec_of(name, start, restart, shutdown, own, half_open, **options):
    if restart is Restart.TEMPORARY:
        own = None
    initial = INITIAL[name]
    return ChildSpec(
        name.partition("/")[2],
        start,
        restart=restart,
        shutdown=shutdown,
        intensity=own,
        on_exhausted=OnExhausted.RETRY_AT_CAP if own and half_open else OnExhausted.ESCALATE,
        backoff=Backoff(initial=initial, cap=4 * initial, jitter=0.0),
        **options,
    )


class SupervisorAgainstOtp(RuleBasedStateMachine):
    """An outer supervisor of leaves and of an inner supervisor with leaves of its own."""

    @initialize(
        strategies=st.tuples(st.sampled_from(Strategy), st.sampled_from(Strategy)),
        intensities=st.tuples(st.sampled_from([3, 1, 0]), st.sampled_from([3, 6, 1, 0])),
        options=st.lists(traits, min_size=len(NAMES), max_size=len(NAMES)),
        inner=traits,
    )
    def begin(self, strategies, intensities, options, inner):
        self.trio = SteppedTrio()
        self.journal: list[Any] = []
        self.players = {name: Player(self.journal) for name in NAMES}
        specs = {
            name: spec_of(name, self.players[name].run, *each)
            for name, each in zip(NAMES, options, strict=True)
        }
        outer_flags, inner_flags = (
            {"strategy": strategy, "intensity": Intensity(restarts, 3.0)}
            for strategy, restarts in zip(strategies, intensities, strict=True)
        )
        below = [specs[f"inner/{name}"] for name in "pqr"]
        self.inner = Supervisor(below, **inner_flags)
        specs["outer/inner"] = spec_of("outer/inner", self.inner.run, *inner, kind=Kind.SUPERVISOR)
        above = [specs[f"outer/{name}"] for name in ("a", "inner", "z")]
        self.outer = Supervisor(above, **outer_flags)
        self.specs = specs
        self.actors = {name: Actor(player) for name, player in self.players.items()}
        parts = {name.partition("/")[2]: actor for name, actor in self.actors.items()}
        self.model_inner = Otp("inner/", below, parts, self.trio, **inner_flags)
        self.model = Otp("", above, {**parts, "inner": self.model_inner}, self.trio, **outer_flags)
        self.models = (self.model, self.model_inner)
        self.clock = Clock(self.trio)
        self.model.clock = self.model_inner.clock = self.clock
        for name, player in self.players.items():
            player.supervisor = self.side(name)[0]
        self.step = 0
        self.serve()

    def side(self, name):
        return (self.outer, self.model) if name.startswith("outer") else (self.inner, self.model_inner)

    def serve(self):
        def heard(event):
            more = {"child_restarted": "restarts", "child_exited": "reason"}.get(event.name)
            told = () if more is None else (getattr(event, more),)
            self.journal.append((event.name, event.path, *(getattr(each, "name", each) for each in told)))

        self.serving = self.trio.begin(lambda: self.outer.serve(observer=heard))
        self.model.ended = None
        if self.model.start_all() == "failed":
            self.model.ended = "failed"

    def known(self, name):
        """The child's row in the model, if it is up."""
        row = self.side(name)[1].find(name.partition("/")[2])
        return row if row is not None and row.state == "running" else None

    def ends(self, name, error, reason):
        row, model = self.known(name), self.side(name)[1]
        self.trio.do(self.players[name].end, error)
        model.tell("end", row)
        model.died(row, reason)
        model.read_mail()

    # What children do

    def one_of(self, data, names):
        return data.draw(st.sampled_from(names)) if names else None

    def running(self):
        return [name for name in NAMES if self.known(name) is not None]

    @precondition(lambda self: self.running())
    @rule(data=st.data(), starts=starts)
    def crash(self, data, starts):
        name = self.one_of(data, self.running())
        self.plan(name, starts)
        self.ends(name, Cue(), "crashed")

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def end_well(self, data):
        self.ends(self.one_of(data, self.running()), None, "normal")

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def progress(self, data):
        name = self.one_of(data, self.running())
        self.trio.do(self.players[name].ctx.progressed)
        self.known(name).progress = True

    @rule(name=who, starts=starts, on_stop=st.sampled_from(["stop", "deaf", "crash"]))
    def change(self, name, starts, on_stop):
        self.plan(name, starts)
        if self.known(name) is None:
            self.players[name].on_stop = on_stop

    def plan(self, name, starts):
        self.players[name].starts = list(starts)
        self.actors[name].starts = list(starts)

    # What operators do

    def operate(self, operation, name, argument):
        supervisor, model = self.side(name)
        expected = getattr(model, operation)(argument)
        model.read_mail()
        task = self.trio.begin(self.awaited, getattr(supervisor, operation), argument)
        assert task.done
        assert (type(task.error) if task.error else None) is expected

    @staticmethod
    async def awaited(operation, argument):
        outcome = operation(argument)
        if outcome is not None:
            await outcome

    @rule(name=anyone)
    def start_child(self, name):
        self.operate("start_child", name, self.specs[name])

    def absent(self):
        return [
            name
            for name in NAMES
            if self.side(name)[1].up and self.side(name)[1].find(name.partition("/")[2]) is None
        ]

    @precondition(lambda self: self.absent())
    @rule(data=st.data(), starts=starts)
    def start_another(self, data, starts):
        name = self.one_of(data, self.absent())
        self.plan(name, starts)
        self.operate("start_child", name, self.specs[name])

    def awaiting(self):
        return [
            f"{'inner' if model.prefix else 'outer'}/{row.spec.name}"
            for model in self.models
            for row in model.rows
            if row.state in AWAITING
        ]

    @precondition(lambda self: self.awaiting())
    @rule(data=st.data())
    def terminate_one_that_awaits_its_restart(self, data):
        name = self.one_of(data, self.awaiting())
        self.operate("terminate_child", name, name.partition("/")[2])

    @rule(name=anyone)
    def terminate_child(self, name):
        self.operate("terminate_child", name, name.partition("/")[2])

    @rule(name=anyone)
    def kill(self, name):
        self.operate("kill", name, name if name.startswith("inner/") else name.partition("/")[2])

    @rule(eighths=st.sampled_from([1, 2, 4, 5, 8, 20, 40]))
    def wait(self, eighths):
        self.step += 1
        self.wait_until(self.clock.now + eighths / 8 + self.step / 2**20)  # no two are a round time apart

    @precondition(lambda self: self.model.up)
    @rule(data=st.data())
    def wait_until_a_death_is_as_old_as_counts(self, data):
        ends = [at + model.intensity.period for model in self.models for at in model.deaths]
        for row in (row for model in self.models for row in model.rows):
            ends += [at + row.spec.intensity.period for at in row.own_deaths]
        if ends := [end for end in ends if end > self.clock.now]:
            self.wait_until(self.one_of(data, ends))

    def wait_until(self, end):
        while due := [each for each in self.appointments() if each[0] <= end]:
            self.clock.at, model, row = min(due, key=lambda each: each[0])
            model.fire(row)
        self.clock.at = None
        self.trio.advance(end - self.clock.now)

    def appointments(self):
        return self.model.appointments() + self.model_inner.appointments()

    @precondition(lambda self: self.model.up and self.step > 5)
    @rule()
    def stop(self):
        self.trio.do(self.outer.stop)
        self.model.close("stopped")

    @precondition(lambda self: not self.model.up)
    @rule()
    def serve_again(self):
        self.serve()

    # What must be

    @invariant()
    def the_same_has_happened_in_the_same_order(self):
        heard, self.journal[:] = list(self.journal), []
        for model in self.models:
            expected, model.expected = model.expected, []
            found = [event for event in heard if event[1].startswith("inner/") == bool(model.prefix)]
            for each in expected:
                if isinstance(each, tuple):
                    assert found[:1] == [each], f"{found} and not {expected}"
                    del found[:1]
                else:
                    size = sum(map(len, each.values()))
                    together = sorted(found[:size], key=lambda event: event[1])
                    by_path = {
                        path: list(events) for path, events in groupby(together, lambda event: event[1])
                    }
                    assert by_path == each
                    del found[:size]
            assert not found, f"{found} beyond {expected}"

    @invariant()
    def the_tables_are_the_same(self):
        for supervisor, model in ((self.outer, self.model), (self.inner, self.model_inner)):
            assert supervisor.is_running == model.up
            if model.up:
                rows = [(row.spec.name, row.state, row.restarts) for row in model.rows]
                found = self.trio.do(supervisor.tree).children
                assert [(node.name, node.state.value, node.restarts) for node in found] == rows
                assert supervisor.which_children() == tuple(row[0] for row in rows)

    @invariant()
    def the_root_has_ended_as_it_should(self):
        assert self.serving.done != self.model.up
        ends = {"escalated": IntensityExceeded, "failed": StartError}
        error = None if self.serving.error is None else type(self.serving.error)
        assert error is ends.get(self.model.ended)

    def teardown(self):
        if hasattr(self, "trio"):
            self.trio.close()


class Clock:
    """The time of the run, or the model's time while the run has yet to follow."""

    def __init__(self, trio):
        self.trio = trio
        self.at = None

    @property
    def now(self):
        return self.trio.now if self.at is None else self.at


TestSupervisorAgainstOtp = pytest.mark.slow(SupervisorAgainstOtp.TestCase)
TestSupervisorAgainstOtp.settings = settings(
    max_examples=examples(100), stateful_step_count=50, deadline=None
)
