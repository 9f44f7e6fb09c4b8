"""The catalog in virtual time: operations of all kinds at once, and their outcomes.

Its models depend on nothing, so each goes its own way, and the model foretells every outcome and its moment.
"""

import math
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.catalog.catalog import ControlMode
from actors.catalog.loading import LoadFailed, Superseded
from actors.values.errors import Internal, NotFound, Unavailable
from actors.values.specs import ModelKey
from tests.support.catalog_doubles import World, model
from tests.support.examples import examples
from tests.support.stepped_trio import SteppedTrio

NAMES = ("a", "b", "c")
SECONDS = {"a": 1.0, "b": 1.3125, "c": 2.0625}  # no two loads end at one moment but those that began together
OTHER = '{"parameters": 1}'  # a configuration that a load request brings along
names = st.sampled_from(NAMES)


class Asked:
    """An operation as the model knows it: how it ends, once it has."""

    def __init__(self, kind, task=None, *, changed=False):
        self.kind = kind
        self.changed = changed
        self.task = task
        self.over = False
        self.error = None
        self.lives = 3 if kind in ("look", "gone") else 1


class Lane:
    """What the model knows of one model: what serves, by version, and what is done with it."""

    def __init__(self, name):
        self.name = name
        # By version: content, whether a request has configured it, and the copy that it was loaded from.
        self.serving = {}
        self.kept = None  # the copy of what was last taken for good
        self.content = ""  # of what was applied, if it was applied well
        self.refused = ""  # the same if it was not
        self.overrode = None  # the content over which a configuration of a request is in force
        self.over = False  # what is being loaded has such a configuration
        self.waiting = []
        self.current = None
        self.found = None
        self.copy = None
        self.reads = 0
        # Of the current operation, by version: when its attempt ends and how many are left, or how it ended.
        self.loads = {}


class CatalogAlone(RuleBasedStateMachine):
    """Models that depend on nothing: each has its own line, and an order to unload goes to the front."""

    @initialize(extra=st.integers(0, 2))
    def begin(self, extra):
        self.extra = extra
        self.trio = SteppedTrio()
        self.world = self.trio.do(
            partial(World, mode=ControlMode.EXPLICIT, startup=(), loads_at_once=100, extra_attempts=extra)
        )
        self.world.tree.seconds = dict(SECONDS)
        self.trio.begin(self.world.root.serve)
        self.nursery = self.trio.begin(self.hold_nursery)
        self.lanes = {name: Lane(name) for name in NAMES}
        self.asked = []
        self.found = {}
        self.fails = {}
        self.contents = 0
        self.crashed_at = {}
        self.there = set()  # names that have a lane
        self.left = set()  # of those, the ones whose model has left
        self.freed_at = {}
        self.copies: Any = {name: [] for name in NAMES}  # that were made of each model, in order
        read = self.world.source.read

        async def read_and_note(key, *args):
            found = await read(key, *args)
            if found is not None:
                self.copies[key.name].append(found.copy)
            return found

        self.world.source.read = read_and_note
        self.expected_could_not = []
        for name in NAMES:
            self.change(name, (1,), "")

    async def hold_nursery(self):
        import trio

        async with trio.open_nursery() as self.world.tree.nursery:
            await trio.sleep_forever()

    # The repository

    @rule(
        name=names,
        versions=st.sampled_from([(1,), (2,), (1, 2), (1, 2, 3)]),
        reason=st.sampled_from(["", "", "", "Invalid argument: dims"]),
    )
    def change(self, name, versions, reason):
        self.contents += 1
        self.put(model(name, *versions, content=f"{self.contents}/", reason=reason))

    @rule(
        name=names,
        reason=st.sampled_from(["", "Invalid argument: dims"]),
        fails=st.integers(0, 2),
        look=st.booleans(),
    )
    def reload(self, name, reason, fails, look):
        """What serves is to be replaced, or cannot be."""
        self.change(name, (1, 2), reason)
        self.will_fail(name, 2, fails)
        self.look_or_load(look, name)

    def look_or_load(self, look, name):
        if look:
            self.look(name, changed=True)
        else:
            self.load(name)

    def put(self, found):
        self.found[found.key.name] = self.world.source.models[found.key.name] = found

    @rule(name=names, versions=st.sampled_from([(1,), (1, 2), (1, 2, 3)]))
    def choose_versions(self, name, versions):
        """Another version policy, with unchanged files."""
        before = self.found.get(name)
        if before is not None and not before.reason:
            files = before.content.partition(" ")[0]
            found = model(name, *versions, content=files)
            self.put(
                type(found)(
                    key=found.key, specs=found.specs, versions=versions, content=f"{files} {versions}"
                )
            )

    @precondition(lambda self: len(self.found) == len(NAMES))
    @rule(name=names, look=st.booleans())
    def vanish(self, name, look):
        del self.found[name], self.world.source.models[name]
        if look:
            self.look(name, changed=True)

    @rule(name=names, look=st.booleans())
    def ask_while_repositories_cannot_be_read(self, name, look):
        self.world.source.unreadable = "no network"
        self.look_or_load(look, name)
        self.world.source.unreadable = ""

    @rule(name=names, version=st.integers(1, 3), times=st.integers(0, 3))
    def will_fail(self, name, version, times):
        self.fails[name, version] = self.world.tree.fails[name, version] = times

    # Operations

    @rule(name=names)
    def load(self, name):
        self.ask(name, "load", self.world.catalog.load, name, {})

    @rule(name=names)
    def load_with_another_configuration(self, name):
        self.ask(name, "override", self.world.catalog.load, name, {"config": OTHER})

    def ask(self, name, kind, function, *args):
        task = self.trio.begin(function, *args)
        asked = Asked(kind, task)
        self.asked.append(asked)
        # If a repository cannot be asked, its known models count as present.
        found = name in self.there if self.world.source.unreadable else name in self.found
        if found:
            self.there.add(name)
            self.lanes[name].waiting.append(asked)
        else:
            asked.over, asked.error = True, Internal
        self.go_on()

    @rule(name=names)
    def unload(self, name):
        asked = Asked("unload", self.trio.begin(self.world.catalog.unload, name))
        self.asked.append(asked)
        if name in self.there:
            self.supersede(self.lanes[name])
            self.lanes[name].waiting.append(asked)
        else:
            asked.over = True
        self.go_on()

    @rule(name=names, changed=st.booleans())
    def look(self, name, changed):
        self.trio.do(partial(self.world.catalog.look_at, ModelKey(name), changed=changed))
        lane = self.lanes[name]
        waiting = [each for each in lane.waiting if each.kind == "look"]
        if waiting:
            waiting[0].changed |= changed
        else:
            lane.waiting.append(Asked("look", changed=changed))
        self.there.add(name)
        self.go_on()

    @rule(name=names)
    def gone(self, name):
        self.trio.do(self.world.catalog.gone, ModelKey(name))
        if name in self.there:
            self.supersede(self.lanes[name])
            self.lanes[name].waiting.append(Asked("gone"))
        self.go_on()

    def may_crash(self, name, every):
        """Whether enough time has passed since the last crash.

        The first crash in a while, and only that one, is followed by a restart at once.
        """
        return self.trio.now >= self.crashed_at.get(name, -math.inf) + every

    @precondition(lambda self: self.may_crash("catalog", 6.0))
    @rule()
    def the_catalog_crashes(self):
        self.crashed_at["catalog"] = self.trio.now
        self.trio.do(self.world.root.kill, "catalog")

    def lanes_that_may_crash(self):
        return sorted(name for name in self.there if self.may_crash(name, 61.0))

    @precondition(lambda self: self.lanes_that_may_crash())
    @rule(data=st.data())
    def a_lane_crashes(self, data):
        """A crash answers the lane's operation; only one that no caller waits for is tried again.

        Then the next waiting operation begins.
        """
        name = data.draw(st.sampled_from(self.lanes_that_may_crash()))
        lane = self.lanes[name]
        self.crashed_at[name] = self.trio.now
        self.trio.do(self.world.lanes.kill, f"lanes/{name}")
        if lane.current is not None:
            lane.current.lives -= 1
            if lane.current.lives:
                lane.waiting.insert(0, lane.current)
                lane.current, lane.loads = None, {}
            else:
                self.finish(lane, Internal)
        self.go_on()

    @rule(quarters=st.sampled_from([1, 2, 4, 8, 12, 250]))
    def wait(self, quarters):
        self.trio.advance(quarters / 4 + 1 / 1024)
        self.go_on()

    # The model

    def supersede(self, lane):
        for asked in [each for each in lane.waiting if each.kind in ("load", "override", "look")]:
            lane.waiting.remove(asked)
            asked.over, asked.error = True, Superseded
        if lane.current is not None:
            self.finish(lane, Superseded)

    def finish(self, lane, error=None):
        lane.current.over, lane.current.error = True, error
        lane.current, lane.loads = None, {}

    def go_on(self):
        """Whatever is due by now happens."""
        for lane in self.lanes.values():
            while self.step(lane):
                pass
            self.freed_at.pop(lane.name, None)
            if lane.name in self.left and lane.current is None:
                self.left.discard(lane.name)
                self.there.discard(lane.name)
                lane.overrode = None

    def step(self, lane):
        if lane.current is None:
            if not lane.waiting:
                return False
            lane.current = lane.waiting.pop(0)
            self.start(lane, self.freed_at.get(lane.name, self.trio.now))
            return True
        running = {v: each for v, each in lane.loads.items() if isinstance(each, tuple)}
        due = {v: each for v, each in running.items() if each[0] <= self.trio.now}
        for version, (ends, left) in sorted(due.items()):
            failing = self.fails.get((lane.name, version), 0)
            if failing:
                self.fails[lane.name, version] = failing - 1
            again = (ends + SECONDS[lane.name], left - 1) if left else "failed"
            lane.loads[version] = again if failing else "loaded"
        if due:
            self.freed_at[lane.name] = max(ends for ends, _ in due.values())
        if lane.loads and not any(isinstance(each, tuple) for each in lane.loads.values()):
            if "failed" in lane.loads.values():
                self.refuse(lane)
            else:
                self.swap(lane)
            return True
        return bool(due)

    def start(self, lane, now):
        kind = lane.current.kind
        if kind in ("unload", "gone"):
            self.unloaded(lane)
            if kind == "gone":
                self.leave(lane)
            self.finish(lane)
            return
        if lane.current.changed:
            lane.refused = ""
        found = None if self.world.source.unreadable else self.found.get(lane.name)
        if found is None:
            if kind == "look":
                self.expected_could_not.append((lane.name, False))
                if not self.world.source.unreadable:
                    self.unloaded(lane)
                    self.leave(lane)
            self.finish(lane, None if kind == "look" else Internal)
            return
        lane.found = found
        kept = kind == "load" and lane.overrode is not None
        lane.over = kind == "override" or (kept and lane.overrode == found.content)
        lane.reads += 2 if kept and not lane.over else 1
        lane.copy = lane.reads
        content = found.content
        if kind == "look" and content in (lane.content, lane.refused):
            self.finish(lane)
            return
        lane.content = lane.refused = ""
        self.left.discard(lane.name)
        if found.reason:
            if not lane.serving:
                lane.kept = None
            self.refuse(lane)
            return
        forced = kind == "override"
        lane.loads = {
            spec.version: (now + SECONDS[lane.name], self.extra)
            for spec in found.specs
            if forced or lane.serving.get(spec.version, ("", 0))[0] != (spec.content, lane.over)
        }
        if not lane.loads:
            self.swap(lane)

    @staticmethod
    def unloaded(lane):
        lane.serving, lane.kept, lane.content, lane.refused, lane.overrode = {}, None, "", "", None

    def refuse(self, lane):
        lane.refused = lane.found.content
        if not lane.over:
            lane.overrode = None
        self.finish(lane, LoadFailed)

    def swap(self, lane):
        lane.serving = {
            spec.version: ((spec.content, lane.over), lane.copy)
            if spec.version in lane.loads
            else lane.serving[spec.version]
            for spec in lane.found.specs
        }
        lane.kept = lane.copy
        lane.content = lane.found.content
        lane.overrode = lane.found.content if lane.over else None
        self.finish(lane)

    def leave(self, lane):
        """The lane is forgotten once nothing is to be done with it any more."""
        self.left.add(lane.name)

    # What must be

    @invariant()
    def everybody_has_the_outcome_that_is_due(self):
        for asked in self.asked:
            if asked.task is not None:
                assert asked.task.done == asked.over, asked.kind
                assert (type(asked.task.error) if asked.task.error else None) is asked.error, asked.kind
        assert self.world.could_not == self.expected_could_not

    @invariant()
    def what_serves_is_what_should(self):
        for name, lane in self.lanes.items():
            states = self.world.serving(name)
            assert {
                v: (state.spec.content, state.spec.config_json == OTHER.encode())
                for v, state in states.items()
            } == {v: content for v, (content, _) in lane.serving.items()}
            if states:
                assert self.world.router.resolve(name) is states[max(states)]
            else:
                with pytest.raises((NotFound, Unavailable)):
                    self.world.router.resolve(name)
            loading = {v for v, each in lane.loads.items() if isinstance(each, tuple)}
            shown = self.world.states(name)
            assert {v for v, state in shown.items() if state == "LOADING"} >= loading - set(states)
            assert {v for v, state in shown.items() if state == "READY"} >= set(states) - set(lane.loads)

    @invariant()
    def nothing_is_kept_that_nobody_uses(self):
        if any(lane.current or lane.waiting for lane in self.lanes.values()):
            return
        tree = self.world.tree
        serving = [state for name in NAMES for state in self.world.serving(name).values()]
        assert set(tree.started) - set(tree.ended) == set(serving)
        assert not set(tree.ended) & set(serving)
        for name, lane in self.lanes.items():
            used = {copy for _, copy in lane.serving.values()}
            used |= set() if lane.kept is None else {lane.kept}
            assert {n for n, copy in enumerate(self.copies[name], 1) if not copy.removed} == used
        assert self.trio.do(lambda: self.world.around.loads.borrowed_tokens) == 0

    def teardown(self):
        if hasattr(self, "trio"):
            try:
                self.trio.advance(1000.0)
                assert all(asked.task is None or asked.task.done for asked in self.asked)
            finally:
                self.trio.close()


TestCatalogAlone = pytest.mark.slow(CatalogAlone.TestCase)
TestCatalogAlone.settings = settings(max_examples=examples(130), stateful_step_count=40, deadline=None)
