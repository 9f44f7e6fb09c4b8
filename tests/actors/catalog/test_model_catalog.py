"""What should run is started: so many at a time, each by itself; every caller gets its true outcome."""

import math
from dataclasses import replace

import pytest
import trio

from actors.catalog.catalog import POLLING, ControlMode
from actors.catalog.operations import Listing, check_name, read_parameters
from actors.values.errors import (
    ErrorCode,
    Internal,
    InvalidArgument,
    PermissionDenied,
    TritiumError,
    Unavailable,
)
from actors.values.specs import InstanceSpec, ModelKey, Probe, Residency
from tests.support.catalog_doubles import EXPLICIT, World, failure, model, superseded_load
from tests.support.doubles import ServedDouble
from tests.support.model_doubles import make_request
from tests.support.tasks import outcome_of


@pytest.fixture
async def world(loaded):
    """A catalog that has loaded "m" on request."""
    world, _ = await loaded(model("m"))
    return world


# -- start-up


async def test_loads_run_side_by_side_but_only_so_many(begin, autojump_clock):
    start = trio.current_time()
    world = await begin(*(model(name) for name in "abcde"), loads_at_once=2)
    assert trio.current_time() - start == pytest.approx(3)
    assert world.tree.most_loading == 2
    assert [state for _, _, state, _ in world.index()] == ["READY"] * 5
    assert not world.catalog.start_failed


async def test_slow_loads_let_others_begin_after_a_while(begin, autojump_clock):
    world = await begin(*(model(name) for name in "abcd"), wait=False)
    world.tree.seconds = {"a": float("inf"), "b": float("inf")}
    await trio.sleep(12)
    assert world.states("c") == world.states("d") == {1: "READY"}
    assert world.states("a") == {1: "LOADING"}
    assert not world.catalog.finished.is_set()


async def test_a_failed_load_is_tried_again_as_often_as_configured(begin, autojump_clock):
    world = await begin(model("flaky"), model("hopeless"), extra_attempts=2, wait=False)
    world.tree.fails = {"flaky": 2, "hopeless": 99}
    await world.catalog.finished.wait()
    assert world.states("flaky") == {1: "READY"}
    assert world.index("hopeless") == [("hopeless", 1, "UNAVAILABLE", "Internal: no")]
    assert world.catalog.start_failed
    assert len(world.tree.started) == 6
    assert len(world.tree.ended) == 2 + 3
    assert sorted(keys["attempt"] for keys in world.log.of("model_loading")) == [1, 1, 2, 2, 3, 3]


async def test_progress_tells_phase_seconds_and_attempt(begin, autojump_clock):
    world = await begin(model("m"), extra_attempts=1, wait=False)
    world.tree.fails = {"m": 1}
    world.tree.seconds = {"m": 5.0}
    await trio.sleep(2)
    assert world.catalog.progress(ModelKey("m")) == {
        "phase": "starting",
        "seconds": 2.0,
        "attempt": 1,
        "phase_seconds": 2.0,
    }
    await trio.sleep(5)
    assert world.catalog.progress(ModelKey("m"))["attempt"] == 2
    await world.catalog.finished.wait()
    assert world.catalog.progress(ModelKey("m")) is None


def phases(world, name):
    """The seconds of each phase of a model's newest load, but for those that took no time."""
    state = [state for state in world.tree.started if state.spec.name == name][-1]
    told = state.standing.phases.seconds(trio.current_time())
    return {phase: round(seconds, 3) for phase, seconds in told.items() if round(seconds, 3)}


async def test_a_load_tells_how_long_its_phases_took(begin, nursery, autojump_clock):
    world = await begin(model("a"), model("b", 1, 2), loads_at_once=1, **EXPLICIT)
    world.tree.seconds = {"a": 3.0, "b": 3.0}
    world.source.read_seconds = {"b": 0.5}
    nursery.start_soon(world.catalog.load, "a", {})
    nursery.start_soon(world.catalog.load, "b", {})
    await trio.sleep(2)
    assert phases(world, "a") == {"starting": 2}  # so far
    await trio.sleep(20)
    assert phases(world, "a") == {"starting": 3}
    assert phases(world, "b") == {"reading": 0.5, "waiting": 5.5, "starting": 3}
    # The next load counts anew.
    await world.unload("b")
    await world.catalog.load("b", {})
    assert phases(world, "b") == {"reading": 0.5, "waiting": 3, "starting": 3}


async def test_the_phases_of_a_failed_attempt_do_not_count(begin, autojump_clock):
    world = await begin(model("m"), extra_attempts=1, wait=False)
    world.tree.fails, world.tree.seconds = {"m": 1}, {"m": 4.0}
    await world.catalog.finished.wait()
    assert phases(world, "m") == {"starting": 4}


async def test_an_ensemble_waits_for_its_models(begin, nursery, autojump_clock):
    world = await begin(model("part"), model("whole", depends_on=("part",)), **EXPLICIT)
    world.source.read_seconds = {"whole": 2.0}
    nursery.start_soon(world.catalog.load, "whole", {})
    await trio.sleep(2.5)
    progress = world.catalog.progress(ModelKey("whole"))
    assert (progress["phase"], progress["seconds"]) == ("waiting for its models", 0.5)
    await trio.sleep(10)
    assert phases(world, "whole") == {"reading": 2, "waiting": 1, "starting": 1}


async def test_a_model_that_cannot_be_configured_is_known_by_its_reason(begin, autojump_clock):
    world = await begin(model("broken", 3, reason="Invalid argument: no"), model("good"))
    assert world.index("broken") == [("broken", 3, "UNAVAILABLE", "Invalid argument: no")]
    assert world.states("good") == {1: "READY"}
    assert world.log.of("model_unavailable") == [{"model": "broken", "reason": "Invalid argument: no"}]


async def test_a_restarted_catalog_adopts_what_runs_and_waits_for_the_rest(begin, autojump_clock):
    world = await begin(model("quick"), model("slow"), wait=False)
    world.tree.seconds["slow"] = 5.0
    await trio.sleep(2)
    quick = world.serving("quick")
    world.root.kill("catalog")
    await world.catalog.finished.wait()
    assert world.serving("quick") == quick
    assert world.states("slow") == {1: "READY"}
    assert sorted(state.spec.name for state in world.tree.started) == ["quick", "slow"]
    assert sorted(world.source.reads) == ["quick", "slow"]


async def test_only_the_named_models_are_loaded_at_start(begin, autojump_clock):
    world = await begin(model("a"), model("b"), mode=ControlMode.EXPLICIT, startup=("b", "ghost"))
    assert world.index() == [("b", 1, "READY", "")]
    assert world.catalog.start_failed
    assert world.log.of("model_unavailable") == [{"model": "ghost", "reason": "it is in no model repository"}]


async def test_a_repository_that_cannot_be_read_fails_the_start(begin, autojump_clock):
    world = await begin(model("a"), wait=False)
    world.source.unreadable = "no network"
    await world.catalog.finished.wait()
    assert world.catalog.start_failed


# -- load and unload on request


async def test_loading_and_unloading_on_request_need_explicit_mode(begin, autojump_clock):
    world = await begin(model("m"))
    for call in (world.catalog.load("m", {}), world.catalog.unload("m", unload_dependents=True)):
        error = await failure(call)
        assert (type(error), error.message) == (Unavailable, POLLING)


async def test_a_failed_load_tells_each_version_and_drops_the_others(begin, autojump_clock):
    world = await begin(model("m", 1, 2, 3), **EXPLICIT)
    world.tree.fails = {("m", 1): 1, ("m", 3): 1}
    error = await failure(world.catalog.load("m", {}))
    assert type(error).__mro__[1] is InvalidArgument
    assert error.message == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: no;"
        "version 3 is at UNAVAILABLE state: Internal: no;\n"
    )
    assert world.index("m") == [
        ("m", 1, "UNAVAILABLE", "Internal: no"),
        ("m", 2, "UNAVAILABLE", "unloaded"),
        ("m", 3, "UNAVAILABLE", "Internal: no"),
    ]


async def test_what_is_not_there_or_not_readable_cannot_be_polled(begin, autojump_clock):
    world = await begin(**EXPLICIT)
    error = await failure(world.catalog.load("ghost", {}))
    assert (type(error), error.message) == (
        Internal,
        "failed to load 'ghost', failed to poll from model repository: it is in no model repository",
    )
    world.source.models["none"] = model("none", reason="Invalid argument: at least one version")
    world.source.models["none"] = world.source.models["none"].__class__(
        key=ModelKey("none"), reason="Invalid argument: at least one version"
    )
    error = await failure(world.catalog.load("none", {}))
    assert error.message == (
        "failed to load 'none', no version is available: Invalid argument: at least one version"
    )
    world.source.models["bad"] = model("bad", reason="Invalid argument: dims")
    error = await failure(world.catalog.load("bad", {}))
    assert error.message == (
        "load failed for model 'bad': version 1 is at UNAVAILABLE state: Invalid argument: dims;\n"
    )


async def test_an_unload_takes_effect_at_once_and_running_requests_finish(loaded, autojump_clock):
    world, state = await loaded(model("m"))
    request = make_request()
    await state.submit(request)
    await world.catalog.unload("m")
    assert world.index("m") == [("m", 1, "UNLOADING", "")]
    with pytest.raises(TritiumError, match="has no available versions"):
        world.router.resolve("m")
    assert state not in world.tree.ended
    state.queue.take(1)
    state.outcome.fail(request, Unavailable("answered"), reason=next(iter(state.statistics.failures)))
    await state.standing.ended.wait()
    assert world.index("m") == [("m", 1, "UNAVAILABLE", "unloaded")]


async def test_what_does_not_drain_within_its_deadline_is_answered(loaded, autojump_clock):
    world, state = await loaded(model("m", drain_timeout=3.0))
    request = make_request()
    await state.submit(request)
    start = trio.current_time()
    await world.catalog.unload("m")
    await state.standing.ended.wait()
    assert trio.current_time() - start == pytest.approx(3)
    assert isinstance(request.reply.error, Unavailable)


async def test_a_failed_model_counts_as_unloaded_once_it_was_unloaded(begin, autojump_clock):
    world = await begin(model("m"), **EXPLICIT)
    world.tree.fails = {"m": 9}
    await failure(world.catalog.load("m", {}))
    await world.catalog.unload("m")
    assert world.index("m") == [("m", 1, "UNAVAILABLE", "unloaded")]


async def test_an_unload_takes_the_place_of_a_load_that_never_ends(begin, nursery, autojump_clock):
    world = await begin(model("m"), **EXPLICIT)
    world.tree.seconds = {"m": float("inf")}
    outcomes = await superseded_load(world, nursery)
    assert outcomes[0].message == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Unavailable: Newer operation has been applied to "
        "the model lifecycle, current load operation is out-dated.;\n"
    )
    assert world.index("m") == [("m", 1, "UNAVAILABLE", "unloaded")]
    assert len(world.tree.ended) == 1
    world.tree.seconds = {}
    await world.catalog.load("m", {})
    assert world.states("m") == {1: "READY"}


async def test_a_load_that_takes_longer_than_its_limit_fails(begin, autojump_clock):
    world = await begin(model("m", load_timeout=4.0), model("n", load_timeout=25.0), **EXPLICIT)
    world.tree.seconds = {"m": float("inf"), "n": float("inf")}
    for name, limit in (("m", 4), ("n", 25)):
        start = trio.current_time()
        error = await failure(world.catalog.load(name, {}))
        assert trio.current_time() - start == pytest.approx(limit)
        assert f"not loaded within the {limit} s of tritium.load_timeout" in error.message


# -- change without a dip


async def test_the_old_version_serves_until_all_new_ones_are_loaded(loaded, nursery, autojump_clock):
    world, old = await loaded(model("m", 1, content="a"))
    world.source.models["m"] = model("m", 1, 2, content="b")
    world.tree.seconds = {("m", 2): 5.0}
    nursery.start_soon(world.catalog.load, "m", {})
    await trio.sleep(4)
    assert world.router.resolve("m") is old
    assert world.index("m") == [("m", 1, "READY", ""), ("m", 2, "LOADING", "")]
    await trio.sleep(2)
    assert world.router.resolve("m").spec.version == 2
    assert world.router.resolve("m", "1") is not old
    await old.standing.ended.wait()
    assert world.index("m") == [("m", 1, "READY", ""), ("m", 2, "READY", "")]
    assert world.swaps == [("m", [1]), ("m", [1, 2])]


async def test_a_reload_that_fails_keeps_the_old(loaded, autojump_clock):
    world, _ = await loaded(model("m", 1, content="a"))
    before = world.serving("m")
    world.source.models["m"] = model("m", 1, 2, content="b")
    world.tree.fails = {("m", 2): 1}
    error = await failure(world.catalog.load("m", {}))
    assert "version 2 is at UNAVAILABLE state: Internal: no;" in error.message
    assert world.serving("m") == before
    assert world.index("m") == [
        ("m", 1, "READY", "reload failed: version 2: Internal: no"),
        ("m", 2, "UNAVAILABLE", "Internal: no"),
    ]
    world.source.models["m"] = model("m", 1, content="b", reason="Invalid argument: dims")
    await failure(world.catalog.load("m", {}))
    assert world.serving("m") == before


async def test_a_reload_that_fails_is_told_beside_what_serves_until_one_succeeds(world, autojump_clock):
    key = ModelKey("m")

    def told():
        [(_, _, state, reason)] = world.index("m")
        [counts] = world.router.roster.loads()
        lane = world.root.tree().as_dict()["children"][0]["children"][0]
        assert counts.reload_failed == {1: bool(reason)}
        assert reason.removeprefix("reload failed: ") == world.router.roster.setback(key, 1)
        assert lane["info"].get("reload_failed", "") == world.router.roster.setback(key, 1)
        return state, reason, counts.failures

    assert told() == ("READY", "", 0)
    world.source.models["m"] = model("m", content="b")
    await world.fail_to_load("m")
    assert told() == ("READY", "reload failed: Internal: no", 1)
    world.source.models["m"] = replace(
        model("m", content="c", reason="Internal: no such field"), readable=False, versions=()
    )
    error = await failure(world.catalog.load("m", {}))
    assert error.message == (
        "failed to load 'm', failed to poll from model repository: Internal: no such field"
    )
    assert told() == ("READY", "reload failed: Internal: no such field", 2)
    del world.source.models["m"]
    await failure(world.catalog.load("m", {}))
    assert told() == ("READY", "reload failed: it is in no model repository", 3)
    world.source.models["m"] = model("m")
    world.source.unreadable = "no network"
    error = await failure(world.catalog.load("m", {}))
    assert error.message == "failed to load 'm', failed to poll from model repository: no network"
    assert told() == ("READY", "reload failed: no network", 4)
    world.source.unreadable = ""
    await world.catalog.load("m", {})  # what serves is what the files say
    assert told() == ("READY", "", 4)
    world.source.models["m"] = model("m", content="b")
    await world.fail_to_load("m")
    await world.catalog.load("m", {})
    assert told() == ("READY", "", 5)


async def test_an_unload_ends_what_is_told_of_a_reload(world, autojump_clock):
    world.source.models["m"] = model("m", content="b")
    await world.fail_to_load("m")
    await world.unload("m")
    assert world.index("m") == [("m", 1, "UNAVAILABLE", "unloaded")]
    await world.catalog.load("m", {})
    assert world.index("m") == [("m", 1, "READY", "")]


async def test_an_instance_count_that_is_the_only_change_scales_in_place(loaded, autojump_clock):
    world, state = await loaded(model("m", config_json=b'{"name": "m", "instance_group": [1]}'))
    more = (InstanceSpec(name="m_0_0"), InstanceSpec(name="m_0_1"))
    world.source.models["m"] = model("m", instances=more, config_json=b'{"name": "m", "instance_group": [2]}')
    await world.catalog.load("m", {})
    assert list(world.serving("m").values()) == [state]
    assert state.spec.instances == more
    assert len(world.tree.started) == 1
    world.tree.scale_fails = "Internal: no memory"
    world.source.models["m"] = model("m", config_json=b'{"name": "m", "instance_group": [3]}')
    error = await failure(world.catalog.load("m", {}))
    assert "no memory" in error.message
    assert list(world.serving("m").values()) == [state]


async def test_a_probe_that_is_not_answered_keeps_a_version_from_serving(begin, autojump_clock):
    world = await begin(model("m", probe=Probe.COMPARE, execution_timeout=2.0), **EXPLICIT)
    # It replaces no version, so it is not probed.
    await world.catalog.load("m", {})
    before = world.serving("m")
    for setting in (Probe.COMPARE, Probe.REQUIRED):
        world.source.models["m"] = model("m", content="new", probe=setting, execution_timeout=2.0)
        # Nothing takes requests from its queue.
        error = await failure(world.catalog.load("m", {}))
        assert "did not answer a probe inference: no answer within 2 s" in error.message
        assert world.serving("m") == before


OTHER = '{"parameters": 1}'


@pytest.fixture
async def overridden(loaded):
    """A catalog that has loaded "m" with another configuration."""
    world, _ = await loaded(model("m"), config=OTHER)
    return world


async def served(world, parameters):
    """Load "m"; return its configuration, and whether it was started again."""
    before = world.serving("m")
    await world.catalog.load("m", parameters)
    (state,) = world.serving("m").values()
    return state.spec.config_json.decode(), state not in before.values()


async def test_an_overriding_load_reloads_and_a_plain_one_keeps_to_it(begin, autojump_clock):
    world = await begin(model("m"), **EXPLICIT)
    assert await served(world, {}) == ("{}", True)
    assert await served(world, {"config": OTHER}) == (OTHER, True)
    assert await served(world, {"config": OTHER}) == (OTHER, True)
    for _ in range(2):
        assert await served(world, {}) == (OTHER, False)


async def test_other_files_end_an_override(overridden, autojump_clock):
    overridden.source.models["m"] = model("m", content="other")
    assert await served(overridden, {}) == ("{}", True)
    overridden.source.models["m"] = model("m")
    assert await served(overridden, {}) == ("{}", True)


async def test_other_files_that_do_not_load_end_an_override_too(overridden, autojump_clock):
    overridden.source.models["m"] = model("m", content="other")
    await overridden.fail_to_load("m")
    (state,) = overridden.serving("m").values()
    assert state.spec.config_json.decode() == OTHER  # what serves is left alone
    overridden.source.models["m"] = model("m")
    assert await served(overridden, {}) == ("{}", True)


async def test_an_unload_ends_an_override(overridden, autojump_clock):
    await overridden.catalog.unload("m")
    assert await served(overridden, {}) == ("{}", True)


async def test_an_override_that_does_not_load_is_not_kept(world, autojump_clock):
    world.tree.fails["m"] = 1
    await failure(world.catalog.load("m", {"config": OTHER}))
    assert await served(world, {}) == ("{}", False)


async def test_files_that_can_not_be_read_end_no_override(overridden, autojump_clock):
    overridden.source.models["m"] = replace(model("m", reason="Internal: no"), content="", readable=False)
    await failure(overridden.catalog.load("m", {}))
    overridden.source.models["m"] = model("m")
    assert await served(overridden, {}) == (OTHER, False)


async def test_files_of_a_request_are_gone_with_the_next_plain_load(overridden, autojump_clock):
    assert await served(overridden, {"config": OTHER, "file:1/model": b"x"}) == (OTHER, True)
    assert await served(overridden, {}) == ("{}", True)
    assert await served(overridden, {}) == ("{}", False)


async def test_an_override_of_nothing_but_the_instances_is_met_in_place(world, autojump_clock):
    for count in (3, 1):
        configuration, anew = await served(world, {"config": f'{{"count": {count}}}'})
        assert (configuration, anew) == (f'{{"instance_group": {count}}}', False)
        assert await served(world, {}) == (configuration, False)  # and it is kept
    assert [len(spec.instances) for spec in world.tree.scaled] == [3, 1]
    assert len(world.tree.started) == 1


async def test_local_copies_live_as_long_as_a_version_that_reads_them(loaded, autojump_clock):
    world, old = await loaded(model("m", content="a"))
    request = make_request()
    await old.submit(request)
    world.source.models["m"] = model("m", content="b")
    await world.catalog.load("m", {})
    first, second = world.source.copies
    assert not first.removed
    old.queue.take(1)
    old.outcome.fail(request, Unavailable("x"), reason=next(iter(old.statistics.failures)))
    await old.standing.ended.wait()
    assert first.removed
    assert not second.removed
    await world.unload("m")
    assert second.removed


# -- what the watcher asks


@pytest.mark.parametrize(("content", "changed"), [("b", False), ("b", True), ("a", True)])
async def test_a_model_that_failed_is_tried_again_once_something_was_written(
    begin, autojump_clock, content, changed
):
    world = await begin(model("m", content="a"), mode=ControlMode.POLL, wait=False)
    world.tree.fails = {"m": 1}
    await world.catalog.finished.wait()
    await world.look("m", changed=False)
    assert world.states("m") == {1: "UNAVAILABLE"}
    assert len(world.tree.started) == 1
    world.source.models["m"] = model("m", content=content)
    world.catalog.look_at(ModelKey("m"), changed=changed)
    await trio.sleep(5)
    assert world.states("m") == {1: "READY"}


async def test_news_of_a_model_that_failed_outlast_a_repository_that_cannot_be_read(begin, autojump_clock):
    world = await begin(model("m"), mode=ControlMode.POLL, wait=False)
    world.tree.fails = {"m": 1}
    await world.catalog.finished.wait()
    world.source.unreadable = "no network"
    await world.look("m")
    world.source.unreadable = ""
    await world.look("m", changed=False)
    assert world.states("m") == {1: "READY"}


async def test_of_two_looks_that_wait_the_one_that_is_done_knows_what_both_did(begin, autojump_clock):
    world = await begin(model("m"), mode=ControlMode.POLL, wait=False)
    world.tree.fails = {"m": 1}
    await world.catalog.finished.wait()
    world.catalog.look_at(ModelKey("m"), changed=False)
    await world.look("m")
    assert world.states("m") == {1: "READY"}


async def test_a_model_that_vanished_is_unloaded_and_forgotten(begin, autojump_clock):
    world = await begin(model("m"), model("n"), mode=ControlMode.POLL)
    (state,) = world.serving("m").values()
    del world.source.models["m"]
    world.catalog.gone(ModelKey("m"))
    await state.standing.ended.wait()
    assert world.states("n") == {1: "READY"}
    assert all(entry[2:] == ("UNAVAILABLE", "unloaded") for entry in world.index("m"))
    assert world.swaps[-1] == ("m", None)


async def test_a_second_model_of_the_same_name_makes_both_unavailable(begin, autojump_clock):
    world = await begin(model("m"), mode=ControlMode.POLL)
    reason = "model appears in two or more repositories"
    world.source.models["m"] = type(world.source.models["m"])(
        key=ModelKey("m"), reason=reason, duplicate=True, content="both"
    )
    await world.look("m")
    assert ("m", 0, "UNAVAILABLE", reason) in world.index("m")
    with pytest.raises(TritiumError):
        world.router.resolve("m")


# -- on demand


async def test_a_model_on_demand_is_dormant_until_it_is_woken_and_again_once_evicted(begin, autojump_clock):
    world = await begin(model("m", residency=Residency.ON_DEMAND), dormant=ServedDouble.of)
    assert isinstance(world.router.resolve("m"), ServedDouble)
    assert world.index("m") == [("m", 1, "UNAVAILABLE", "unloaded")]
    assert not world.catalog.start_failed
    await world.catalog.wake(ModelKey("m"))
    (state,) = world.serving("m").values()
    assert world.router.resolve("m") is state
    await world.catalog.wake(ModelKey("m"))
    assert len(world.tree.started) == 1
    assert await world.catalog.evict(ModelKey("m"))
    assert state.standing.ended.is_set()
    assert isinstance(world.router.resolve("m"), ServedDouble)
    assert not await world.catalog.evict(ModelKey("m"))


# -- composed models


async def test_parts_are_loaded_with_the_whole_and_unloaded_with_it_if_nobody_else_wants_them(
    begin, autojump_clock
):
    whole = model("whole", depends_on=("part", "asked"))
    world = await begin(model("part"), model("asked"), whole, **EXPLICIT)
    await world.catalog.load("asked", {})
    await world.catalog.load("whole", {})
    assert world.states("part") == world.states("whole") == {1: "READY"}
    await world.unload("whole", unload_dependents=True)
    assert world.states("part") == {1: "UNAVAILABLE"}
    assert world.states("asked") == {1: "READY"}


async def test_whoever_unloads_models_with_others_is_asked_for_all_of_them_first(begin, autojump_clock):
    models = {"asked": (), "shared": (), "leaf": (), "part": ("leaf", "shared"), "other": ("shared",)}
    models["whole"] = ("asked", "part", "other")
    world = await begin(*(model(name, depends_on=parts) for name, parts in models.items()), **EXPLICIT)
    await world.catalog.load("asked", {})
    await world.catalog.load("whole", {})
    asked = []

    def permit(name, repository):
        asked.append((name, repository))
        if name == denied:
            raise PermissionDenied(f"not {name}")

    for denied in ("whole", "part", "other", "leaf", "shared"):
        error = await failure(world.catalog.unload("whole", unload_dependents=True, permit=permit))
        assert (type(error), error.message) == (PermissionDenied, f"not {denied}")
        assert all(world.states(name) == {1: "READY"} for name in models)
    del asked[:]
    denied = "asked"  # which stays
    await world.catalog.unload("whole", unload_dependents=True, permit=permit)
    assert {name for name, _ in asked} == {"whole", "part", "other", "leaf", "shared"}
    assert [name for name in models if world.states(name) == {1: "READY"}] == ["asked"]


async def test_whoever_unloads_a_model_alone_is_asked_for_no_other(begin, autojump_clock):
    world = await begin(model("part"), model("whole", depends_on=("part",)), **EXPLICIT)
    await world.catalog.load("whole", {})
    asked = []
    await world.catalog.unload("whole", permit=lambda *which: asked.append(which))
    assert asked == [("whole", "")]
    assert world.states("part") == {1: "READY"}


async def test_models_that_depend_on_each_other_are_refused_with_the_path(begin, autojump_clock):
    world = await begin(model("a", depends_on=("b",)), model("b", depends_on=("a",)), **EXPLICIT)
    error = await failure(world.catalog.load("a", {}))
    text = "circular dependency between ensembles: a -> ... -> b -> a"
    assert error.message == f"load failed for model 'a': {text};\n"
    assert world.index("a") == [("a", 1, "UNAVAILABLE", f"Invalid argument: {text}")]
    assert world.index("b") == [
        ("b", 1, "UNAVAILABLE", "Invalid argument: circular dependency between ensembles: b -> ... -> a -> b")
    ]


async def test_models_that_depend_on_each_other_are_refused_at_start_too(begin, autojump_clock):
    cycle = [model(one, depends_on=(other,)) for one, other in ("ab", "bc", "ca")]
    world = await begin(*cycle)
    for name in "abc":
        ((_, _, state, reason),) = world.index(name)
        assert (state, "circular dependency between ensembles" in reason) == ("UNAVAILABLE", True)


async def test_a_whole_that_was_unloaded_does_not_come_back_with_its_part(loaded, autojump_clock):
    world, _ = await loaded(model("part"), model("whole", depends_on=("part",)))
    await world.catalog.unload("whole")
    await world.catalog.unload("part")
    await world.catalog.load("part", {})
    await trio.sleep(3)
    assert world.states("whole") == {1: "UNAVAILABLE"}


async def test_a_whole_of_a_whole_goes_with_the_innermost_part_and_comes_back_with_it(begin, autojump_clock):
    world = await begin(
        model("part"), model("inner", depends_on=("part",)), model("outer", depends_on=("inner",)), **EXPLICIT
    )
    await world.catalog.load("outer", {})
    assert world.states("part") == world.states("inner") == world.states("outer") == {1: "READY"}
    await world.unload("part")
    assert world.states("inner") == world.states("outer") == {1: "UNAVAILABLE"}
    await world.catalog.load("part", {})
    await trio.sleep(5)
    assert world.states("inner") == world.states("outer") == {1: "READY"}


async def test_parts_are_loaded_before_the_whole_at_start_and_none_of_them_twice(begin, autojump_clock):
    world = await begin(model("a_whole", depends_on=("p", "q")), model("p"), model("q"))
    assert [state.spec.name for state in world.tree.started] == ["p", "q", "a_whole"]
    assert not world.catalog.start_failed


async def test_a_part_that_can_not_be_loaded_at_start_is_tried_once_and_keeps_the_whole_out(
    begin, autojump_clock
):
    world = World(model("part"), model("whole", depends_on=("part",)))
    world.tree.fails["part"] = 9
    async with trio.open_nursery() as nursery:
        await world.begin(nursery)
        assert [state.spec.name for state in world.tree.started] == ["part"]
        assert world.index("whole") == [
            ("whole", 1, "UNAVAILABLE", "Invalid argument: 'whole' is nothing without 'part'")
        ]
        assert world.catalog.start_failed
        nursery.cancel_scope.cancel()


async def test_a_part_that_is_loaded_on_demand_sleeps_on(begin, autojump_clock):
    world = await begin(
        model("part", residency=Residency.ON_DEMAND),
        model("whole", depends_on=("part",)),
        dormant=ServedDouble.of,
    )
    assert world.states("whole") == {1: "READY"}
    assert world.states("part") == {1: "UNAVAILABLE"}
    await world.catalog.wake(ModelKey("part"))
    await world.catalog.evict(ModelKey("part"))
    await trio.sleep(1)
    assert world.states("whole") == {1: "READY"}


async def test_a_whole_whose_part_leaves_the_repository_is_unloaded(begin, autojump_clock):
    world = await begin(model("part"), model("whole", depends_on=("part",)), mode=ControlMode.POLL)
    world.catalog.gone(ModelKey("part"))
    await trio.sleep(1)
    assert world.index() == [("whole", 1, "UNAVAILABLE", "unloaded")]


async def test_a_reload_of_a_part_leaves_a_whole_that_still_fits_as_it_is(loaded, autojump_clock):
    world, _ = await loaded(model("part"), model("whole", depends_on=("part",)))
    (before,) = world.serving("whole").values()
    world.source.models["part"] = model("part", content="d")
    await world.catalog.load("part", {})
    await trio.sleep(1)
    assert list(world.serving("whole").values()) == [before]


# -- parameters


def test_names_that_no_model_can_have_are_refused():
    with pytest.raises(
        InvalidArgument, match=r"Model name cannot be empty\. Please enter a valid name to deploy\."
    ):
        check_name("")
    for blank in (" ", "\t\n  "):
        with pytest.raises(InvalidArgument, match=r"Model name cannot be empty\."):
            check_name(blank)
    for name in ("..", "../x", "a/b", "a\\b", "a\0"):
        with pytest.raises(InvalidArgument, match="must not contain path traversal characters"):
            check_name(name)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"config": b"{}"}, "Config parameter 'config' must have string type for its value"),
        ({"config": "{}", "file:1/m": "x"}, "File parameter 'file:1/m' must have bytes type for its value"),
        ({"file:1/m": b"x"}, "Load parameter 'config' must be specified for model file override"),
        ({"other": "x"}, "Unrecognized load parameter 'other' with type 'str'"),
    ],
)
def test_load_parameters_of_the_wrong_kind_are_refused(parameters, message):
    with pytest.raises(InvalidArgument) as caught:
        read_parameters(parameters)
    assert caught.value.message == message


async def test_a_version_that_failed_counts_no_more_once_the_model_serves_without_it(begin, autojump_clock):
    world = await begin(model("m", 1, content="a"), mode=ControlMode.POLL)
    world.source.models["m"] = replace(model("m", 1, 2, content="a"), content="with another")
    world.tree.fails = {("m", 2): 1}
    await world.look("m")
    assert world.states("m") == {1: "READY", 2: "UNAVAILABLE"}
    world.source.models["m"] = replace(model("m", 1, content="a"), content="without it")
    await world.look("m")
    assert world.states("m") == {1: "READY"}


async def test_a_name_that_two_models_have_is_refused(world, autojump_clock):

    async def two():
        return Listing(keys=[ModelKey("m", "/a"), ModelKey("m", "/b")])

    world.source.listing = two
    error = await failure(world.catalog.load("m", {}))
    assert error.message.startswith("There are 2 identifiers of model 'm' in global map")


async def test_only_the_version_at_fault_is_blamed(begin, autojump_clock):
    broken = replace(model("m", 1, 2, reason="Invalid argument: no"), reasons={2: "Invalid argument: no"})
    world = await begin(broken, **EXPLICIT)
    error = await failure(world.catalog.load("m", {}))
    assert error.message == (
        "load failed for model 'm': version 2 is at UNAVAILABLE state: Invalid argument: no;\n"
    )
    assert world.index("m") == [
        ("m", 1, "UNAVAILABLE", "unloaded"),
        ("m", 2, "UNAVAILABLE", "Invalid argument: no"),
    ]


# -- while it loads


def refused(world, name, version=""):
    """The error for a request to a model that does not serve: its code, text and when to try again."""
    with pytest.raises(TritiumError) as caught:
        world.router.resolve(name, version)
    return caught.value.code, caught.value.message, getattr(caught.value, "retry_after", None)


async def test_a_model_that_is_being_loaded_is_unavailable_and_says_what_it_waits_for(
    begin, nursery, autojump_clock
):
    world = await begin(model("m", 1), **EXPLICIT)
    world.tree.seconds = {"m": 20.0}
    assert refused(world, "m")[:2] == (ErrorCode.NOT_FOUND, "Request for unknown model: 'm' is not found")
    nursery.start_soon(world.catalog.load, "m", {})
    await trio.sleep(8)
    begins = "Request for unknown model: 'm' has no available versions: it is being loaded (phase '"
    code, message, after = refused(world, "m")
    assert (code, after) == (ErrorCode.UNAVAILABLE, pytest.approx(8.0))
    assert message.startswith(begins)
    assert "' for 8 s)" in message
    code, message, after = refused(world, "m", "1")
    assert (code, after) == (ErrorCode.UNAVAILABLE, pytest.approx(8.0))
    assert message.startswith("Request for unknown model: 'm' version 1 is not at ready state: it is being ")
    await trio.sleep(13)
    assert world.router.resolve("m").spec.version == 1

    await world.unload("m")
    assert refused(world, "m")[0] is ErrorCode.NOT_FOUND
    nursery.start_soon(world.catalog.load, "m", {})
    await trio.sleep(5)
    assert refused(world, "m")[2] == pytest.approx(15.0, abs=0.1)  # the last load took 20 s


async def test_a_model_that_waits_to_be_loaded_is_unavailable_too(begin, nursery, autojump_clock):
    world = await begin(model("m"), **EXPLICIT)
    world.source.read_seconds = {"m": 4.0}
    world.tree.fails = {"m": 1}
    errors = outcome_of(nursery, world.catalog.load, "m", {})
    await trio.sleep(3)
    code, message, after = refused(world, "m")
    assert (code, after) == (ErrorCode.UNAVAILABLE, pytest.approx(3.0))
    assert "(phase 'reading' for 3 s)" in message
    # The server does not know yet which versions there are.
    assert refused(world, "m", "7")[0] is ErrorCode.UNAVAILABLE
    await trio.sleep(5)
    assert errors
    assert refused(world, "m")[0] is ErrorCode.NOT_FOUND  # nothing comes of waiting any more


async def test_before_the_repositories_were_looked_into_nobody_knows_what_there_is(nursery, autojump_clock):
    world = World(model("m"))
    world.source.listing_seconds = 2.0
    await world.begin(nursery, wait=False)
    await trio.sleep(1)
    code, message, after = refused(world, "anything")
    assert (code, after) == (ErrorCode.UNAVAILABLE, 1.0)
    assert "has no available versions: the server has just started" in message
    await world.catalog.finished.wait()
    assert refused(world, "anything")[0] is ErrorCode.NOT_FOUND


async def test_a_load_that_nobody_may_ask_for_is_not_worth_asking_for_again(begin, autojump_clock):
    world = await begin(model("m"))
    error = await failure(world.catalog.load("m", {}))
    assert error.retry_after == math.inf
