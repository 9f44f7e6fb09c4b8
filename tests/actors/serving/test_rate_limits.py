"""The rate limiter's rules, each by itself and under any order of events."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.seams import faults
from actors.serving.policy.rate_limits import HOST, SHARED, PoolName, PoolSample, RateLimiter
from actors.values.errors import ErrorCode, InvalidArgument
from actors.values.specs import InstanceSpec, RateLimit, Resource
from tests.support.examples import examples


def instance(*resources, priority=0, gpu=None, lanes=1):
    """`resources` are (name, count), or (name, count, True) of a global one."""
    limit = RateLimit(
        resources=tuple(Resource(name=n, count=c, shared=bool(s)) for n, c, *s in resources),
        priority=priority,
    )
    placed = {} if gpu is None else {"kind": "GPU", "device_id": gpu}
    return InstanceSpec(name="i", rate_limit=limit, lanes=lanes, **placed)


class Table:
    """A limiter with instances called by letters, each of its own model; it notes which ones are rung."""

    def __init__(self, capacities=None, **instances):
        self.limiter: Any = RateLimiter(capacities or {})
        self.rung = []
        for key, spec in instances.items():
            self.enter(key, spec)

    def enter(self, key, spec, owner=None):
        self.limiter.enter(owner or key, [(key, spec)], lambda: self.rung.append(key))

    def begin(self, *keys):
        for key in keys:
            assert self.limiter.ask(key), key
            self.limiter.began(key)

    def wait(self, *keys):
        for key in keys:
            assert not self.limiter.ask(key), key

    def end(self, key, *, again=False):
        self.rung.clear()
        self.limiter.ended(key, again=again)
        return self.rung

    def pool(self, name, device=SHARED):
        return self.limiter.statistics().pools[PoolName(name, device)]

    @property
    def line(self):
        return "".join(self.limiter.statistics().line)


def test_an_instance_without_resources_is_never_held_up():
    table = Table(a=instance(("R", 1, True)), free=instance())
    table.begin("a", "free", "free", "free")
    table.wait("a")
    assert not table.limiter.limits("free")
    assert table.limiter.limits("a")


def test_a_capacity_that_nobody_gave_is_the_most_that_one_instance_needs():
    table = Table(a=instance(("R", 3, True)), b=instance(("R", 1, True)))
    assert table.pool("R") == PoolSample(3, 0)
    table.enter("c", instance(("R", 5, True)))
    assert table.pool("R").capacity == 5
    table.limiter.leave("c")
    assert table.pool("R").capacity == 3
    table.limiter.leave("a")
    table.limiter.leave("b")
    assert not table.limiter.statistics().pools


@pytest.mark.parametrize(
    ("key", "line", "rung"),
    [("b", "c", ["c"]), ("a", "bc", []), ("unknown", "bc", [])],
    ids=["in line", "executing", "unknown"],
)
def test_who_withdraws_lets_those_behind_it_begin_if_it_was_in_line(key, line, rung):
    table = Table({("R", None): 2}, a=instance(("R", 1)), b=instance(("R", 2)), c=instance(("R", 1)))
    table.begin("a")
    table.wait("b", "c")
    table.rung.clear()
    table.limiter.withdraw(key)
    assert (table.line, table.rung) == (line, rung)


def test_a_device_has_a_pool_of_its_own():
    one: Any = {"gpu": 0}, {"gpu": 1}, {}
    table = Table(
        {("R", None): 1, ("R", 1): 2},
        **{key: instance(("R", 1), **at) for key, at in zip("abc", one, strict=True)},
    )
    table.begin("a", "b", "c", "b")
    table.wait("a", "b", "c")
    assert table.pool("R", "gpu 0").capacity == 1
    assert table.pool("R", "gpu 1").capacity == 2
    assert table.pool("R", HOST).capacity == 1


@pytest.mark.parametrize(
    ("device", "resource", "pool"),
    [(0, ("R", 1), HOST), (3, ("R", 1, True), SHARED)],
    ids=["device zero is the host of an instance on no GPU", "that of a global resource does not matter"],
)
def test_a_capacity_is_of_the_pool_of_its_device(device, resource, pool):
    assert Table({("R", device): 4}, a=instance(resource)).pool("R", pool).capacity == 4


def test_an_instance_that_could_never_execute_is_refused_in_the_contracts_words():
    table = Table({("R", None): 3})
    with pytest.raises(InvalidArgument) as refused:
        table.enter("a", instance(("R", 4)))
    assert refused.value.message == (
        'Resource count for "R" is limited to 3 which will prevent scheduling of one or more model instances, '
        "the minimum required count is 4"
    )
    assert refused.value.code is ErrorCode.INVALID_ARG
    assert not table.limiter.limits("a")


def test_a_resource_is_global_everywhere_or_nowhere():
    table = Table(a=instance(("R", 1, True)))
    with pytest.raises(InvalidArgument) as refused:
        table.enter("b", instance(("R", 1)))
    assert refused.value.message == (
        'Resource "R" is present as both global and device-specific resource in the model configuration.'
    )
    with pytest.raises(InvalidArgument, match="both global and device-specific"):
        table.enter("b", instance(("S", 1), ("S", 1, True)))
    table.limiter.leave("a")
    table.enter("b", instance(("R", 1)))


def test_a_model_may_make_its_own_resource_global_by_a_reload():
    table = Table()
    table.enter("old", instance(("R", 1)), owner="model")
    table.enter("new", instance(("R", 1, True)), owner="model")
    table.begin("old", "new")


def test_all_instances_of_a_version_enter_or_none():
    limiter: Any = RateLimiter({("R", None): 1})
    with pytest.raises(InvalidArgument):
        limiter.enter("m", [("a", instance(("R", 1))), ("b", instance(("R", 2)))], lambda: None)
    assert not limiter.statistics().pools


def test_the_head_waits_for_what_it_needs_and_nobody_takes_it_bit_by_bit():
    table = Table(
        {("R", None): 2}, big=instance(("R", 2, True)), a=instance(("R", 1, True)), b=instance(("R", 1, True))
    )
    table.begin("a")
    table.wait("big")
    table.wait("b")  # though there is a unit for it
    assert table.end("a") == ["big"]
    table.wait("b")
    table.begin("big")


def test_a_death_frees_all_that_was_held_and_leaves_the_line():
    table = Table({("R", None): 2}, a=instance(("R", 1, True), lanes=2), b=instance(("R", 2, True)))
    table.begin("a", "a")
    table.wait("a", "b")
    table.limiter.died("a")
    assert table.pool("R") == PoolSample(2, 0)
    assert table.line == "b"
    assert table.rung == ["b"]
    table.limiter.ended("a", again=True)  # what was still on its way
    assert table.pool("R").used == 0
    assert table.line == "b"


def test_nobody_begins_without_having_been_let():
    table = Table(a=instance(("R", 1, True)), b=instance(("R", 1, True)))
    with pytest.raises(RuntimeError, match="'a' began to execute"):
        table.limiter.began("a")
    table.begin("a")
    table.wait("b")
    with pytest.raises(RuntimeError, match="'b' began to execute"):
        table.limiter.began("b")


def run(table, always, rounds):
    """Execute one at a time while all in `always` have work for ever; return the order of execution."""
    order = []
    for key in always:
        table.limiter.ask(key)
    for _ in range(rounds):
        key = table.limiter.statistics().line[0]
        table.begin(key)
        order.append(key)
        table.end(key, again=True)
    return order


def test_a_priority_of_two_gets_half_the_share_and_none_counts_as_one():
    table = Table(
        a=instance(("R", 1, True)),
        b=instance(("R", 1, True), priority=1),
        c=instance(("R", 1, True), priority=2),
    )
    order = run(table, "abc", 500)
    assert [order.count(key) for key in "abc"] == pytest.approx([200, 200, 100], abs=1)


def test_a_model_that_comes_late_or_was_idle_does_not_make_up_for_the_past():
    resource = instance(("R", 1, True))
    table = Table(a=resource, b=resource, idle=resource)
    run(table, "ab", 1000)
    table.limiter.ask("idle")
    table.enter("new", resource)
    order = run(table, ["new"], 40)
    assert [order.count(key) for key in ("a", "b", "idle", "new")] == pytest.approx([10] * 4, abs=1)


def test_who_ends_with_more_to_do_is_in_line_before_the_next_is_chosen():
    table = Table(fast=instance(("R", 1, True), priority=1), slow=instance(("R", 1, True), priority=10))
    table.begin("slow")
    table.wait("fast")
    assert table.end("slow", again=True) == ["fast"]
    table.begin("fast")
    assert table.end("fast", again=True) == ["fast"]


NAMES = ("R", "S", "T")


@st.composite
def specs(draw):
    wanted = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=2))
    shared = {"R": True, "S": False, "T": True}
    return instance(
        *((name, draw(st.integers(1, 3)), shared[name]) for name in wanted),
        priority=draw(st.integers(0, 3)),
        gpu=draw(st.sampled_from((None, 0, 1))),
    )


class Limiting(RuleBasedStateMachine):
    """Models come and go, ask, begin, end and die. A model of the limiter: what each holds, by pool."""

    @initialize(
        given=st.dictionaries(
            st.tuples(st.sampled_from(NAMES), st.sampled_from((None, 0))), st.integers(3, 4)
        )
    )
    def start(self, given):
        self.rung = set()
        self.limiter: Any = RateLimiter(given)
        self.members = {}  # key → [spec, executing]
        self.numbers = iter(range(10**6))

    def some(self, data, having=lambda key: True):
        keys = [key for key in self.members if having(key)]
        return data.draw(st.sampled_from(keys)) if keys else None

    @property
    def line(self):
        return self.limiter.statistics().line

    @rule(spec=specs())
    def enter(self, spec):
        if len(self.members) < 8:
            key = next(self.numbers)
            self.limiter.enter(key, [(key, spec)], lambda: self.rung.add(key))
            self.members[key] = [spec, 0]

    @precondition(lambda self: len(self.members) > 4)
    @rule(data=st.data())
    def leave(self, data):
        key = self.some(data)
        self.limiter.leave(key)
        del self.members[key]
        self.rung.discard(key)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def work_comes(self, data):
        key = self.some(data)
        self.try_to_begin(key)

    def try_to_begin(self, key):
        self.rung.discard(key)
        if self.limiter.ask(key):
            self.limiter.began(key)
            self.members[key][1] += 1
            pools = self.limiter.statistics().pools
            held = [pools[name] for name in self.needs(self.members[key][0])]
            assert all(pool.used <= pool.capacity for pool in held)

    @precondition(lambda self: any(each[1] for each in self.members.values()))
    @rule(data=st.data(), again=st.booleans())
    def end(self, data, again):
        key = self.some(data, lambda key: self.members[key][1])
        if self.limiter.limits(key):
            self.limiter.ended(key, again=again)
        self.members[key][1] -= 1

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def die(self, data):
        key = self.some(data)
        self.limiter.died(key)
        self.members[key][1] = 0
        assert key not in self.line
        self.rung.discard(key)

    @precondition(lambda self: self.rung)
    @rule(data=st.data(), wants=st.booleans())
    def answer_the_bell(self, data, wants):
        key = self.some(data, lambda key: key in self.rung)
        if wants and key in self.line:
            self.try_to_begin(key)
        else:
            self.rung.discard(key)
            self.limiter.withdraw(key)

    def needs(self, spec):
        device = f"gpu {spec.device_id}" if spec.kind == "GPU" else HOST
        return {
            PoolName(each.name, SHARED if each.shared else device): each.count
            for each in spec.rate_limit.resources
        }

    @invariant()
    def exactly_what_executes_is_held(self):
        used: dict[Any, Any] = {}
        for spec, executing in self.members.values():
            for name, units in self.needs(spec).items():
                used[name] = used.get(name, 0) + units * executing
        assert {name: pool.used for name, pool in self.limiter.statistics().pools.items()} == used

    @invariant()
    def who_may_begin_has_been_rung(self):
        """The first instance whose pools have free units was rung; otherwise it would wait for ever."""
        statistics = self.limiter.statistics()
        wanted: set[Any] = set()
        for key in statistics.line:
            needs = self.needs(self.members[key][0])
            free = all(
                statistics.pools[name].used + units <= statistics.pools[name].capacity
                for name, units in needs.items()
            )
            if free and wanted.isdisjoint(needs):
                assert key in self.rung
            wanted |= needs.keys()

    @invariant()
    def a_capacity_is_never_too_small_for_anybody(self):
        pools = self.limiter.statistics().pools
        for spec, _ in self.members.values():
            for name, units in self.needs(spec).items():
                assert units <= pools[name].capacity


TestLimiting = Limiting.TestCase
TestLimiting.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)


@given(several=st.lists(specs(), min_size=2, max_size=6), chance=st.randoms(use_true_random=False))
@settings(max_examples=examples(30), deadline=None)
def test_whoever_always_has_work_executes_again_and_again_in_whatever_order_others_end(several, chance):
    limiter: Any = RateLimiter({})
    for key, spec in enumerate(several):
        limiter.enter(key, [(key, spec)], lambda: None)
    limited = [key for key in range(len(several)) if limiter.limits(key)]
    executing, counts = [], dict.fromkeys(limited, 0)
    for _ in range(150):
        for key in chance.sample(limited, len(limited)):
            if key not in executing and limiter.ask(key):
                limiter.began(key)
                executing.append(key)
                counts[key] += 1
        if executing:
            limiter.ended(executing.pop(chance.randrange(len(executing))), again=True)
    assert all(count >= 3 for count in counts.values())


def test_an_instance_that_is_not_known_leaves_without_effect_and_a_need_of_nothing_is_none():
    table = Table(a=instance(("R", 0), ("S", 1)))
    table.limiter.leave("unknown")
    assert [name.resource for name in table.limiter.statistics().pools] == ["S"]


def test_a_limiter_may_be_made_to_fail_where_it_is_asked():
    table = Table(a=instance(("R", 1)))
    points = faults.Points()
    with faults.given(points):
        points.arm("limiter.ask", lambda: None)
        table.begin("a")
