"""`actors.catalog.settling`: what is looked at, what has gone, and what is waited for."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.catalog.settling import (
    LASTING,
    STILL_CHANGING,
    Change,
    Changed,
    Complete,
    Incomplete,
    Left,
    NoAnswer,
    Seen,
    Settling,
    SourceBack,
    SourceLost,
    Unknown,
    Waiting,
)
from actors.values.specs import ModelKey
from tests.support.examples import examples

REPOSITORY = "/models"
DOWN = NoAnswer("it is not mounted")
INCOMPLETE = Incomplete(("'x' is missing",))


def key(name, namespace=""):
    return ModelKey(name, namespace)


class Polls:
    """A policy under test, polled once a second."""

    def __init__(self, *first, **options):
        self.settling = Settling(**options)
        self.now = 0.0
        for view in first:
            self.see(view)

    def see(self, view=None, **others):
        """Poll; `view` is of the one repository, `others` by source.

        A bare stamp stands for an observation of unknown state.
        """
        self.now += 1.0
        observation = {REPOSITORY: view} if view is not None else {}
        observation.update(others)
        self.verdict = self.settling.observe(
            {source: self._seen(each) for source, each in observation.items()}, now=self.now
        )
        return list(self.verdict.decisions)

    @staticmethod
    def _seen(view):
        if isinstance(view, NoAnswer):
            return view
        return {name: seen if isinstance(seen, Seen) else Seen(seen) for name, seen in view.items()}

    @property
    def notices(self):
        return list(self.verdict.notices)


def watching(*, now="1"):
    """Return polls whose policy has looked at everything."""
    return Polls({"m": now}, {"m": now}, {"m": now})


@pytest.fixture
def polls():
    return watching()


def first_seen(name="m", source=""):
    return Changed(key(name, source), Change.FIRST_SEEN)


MODIFIED = Changed(key("m"), Change.MODIFIED)
GONE = Left(key("m"))
WHOLE, BOTH = {"one": {"m": "1"}, "two": {}}, {"one": {"m": "1"}, "two": {"m": "1"}}
UNFINISHED = {"m": Seen("2", INCOMPLETE)}

STORIES: dict[str, Any] = {
    "everything is looked at once after the start": [
        ({"a": "1", "b": "1"}, []),
        ({"a": "1", "b": "1"}, [first_seen("a"), first_seen("b")]),
        ({"a": "1", "b": "1"}, []),
    ],
    "what changes between the first looks was modified": [
        ({"m": "1"}, []),
        ({"m": "2"}, []),
        ({"m": "2"}, [MODIFIED]),
        ({"m": "2"}, []),
    ],
    "an incomplete model waits for ever": [
        *[({"m": "1"}, []), ({"m": "1"}, [first_seen()])],
        *[(UNFINISHED, [])] * 50,
        ({"m": Seen("3", Complete())}, [MODIFIED]),
    ],
    "a model that went right after the start has gone, for it may be loaded": [
        ({"m": "1"}, []),
        ({}, []),
        ({}, [GONE]),
    ],
    "a source that never answered so far has everything looked at": [
        *[(DOWN, []), (DOWN, []), ({"m": "1"}, [])],
        ({"m": "1"}, [first_seen()]),
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_a_model_is_looked_at_when_it_has_come_to_rest(story):
    polls = Polls()
    for view, decisions in STORIES[story]:
        assert polls.see(view) == decisions


@pytest.mark.parametrize(
    ("views", "found"),
    [
        ([{}], True),
        ([{"m": "1"}], False),  # it may still be changing
        ([{"m": "1"}, {"m": "1"}], True),
        ([{"m": "1"}, {"m": "1"}, {"m": "2"}], False),
        ([{"m": Seen("1", INCOMPLETE)}, {"m": Seen("1", INCOMPLETE)}], True),
        ([DOWN], False),
        ([{}, DOWN, DOWN, DOWN], False),
    ],
)
def test_everything_is_found_when_each_source_has_answered_and_its_models_are_at_rest(views, found):
    assert Polls(*views).settling.found_all is found


def test_why_a_model_is_incomplete_is_told_once_and_when_it_changes(polls):
    waits = Waiting(source=REPOSITORY, name="m", since=4.0, reasons=("'x' is missing",))
    polls.see({"m": Seen("2", Incomplete(("'x' is missing",)))})
    assert polls.notices == [waits]
    polls.see({"m": Seen("3", Incomplete(("'x' is missing",)))})
    assert polls.notices == []
    assert polls.settling.waiting() == (waits,)
    polls.see({"m": Seen("4", Incomplete(("'x' does not match",)))})
    assert polls.notices == [Waiting(source=REPOSITORY, name="m", since=4.0, reasons=("'x' does not match",))]


def test_a_copy_that_goes_on_is_told_once(polls):
    polls.see({"m": "2"})
    assert polls.notices == []
    assert polls.settling.waiting() == (Waiting(source=REPOSITORY, name="m", since=4.0),)
    polls.see({"m": "3"})
    assert polls.notices == [Waiting(source=REPOSITORY, name="m", since=4.0, reasons=(STILL_CHANGING,))]
    polls.see({"m": "4"})
    assert polls.notices == []
    polls.see({"m": "4"})
    assert polls.notices == []
    assert polls.settling.waiting() == ()


def test_a_model_that_went_before_it_was_looked_at_is_nobodys_business(polls):
    assert [polls.see(view) for view in ({"m": "1", "n": "1"}, {"m": "1"}, {"m": "1"})] == [[], [], []]
    assert polls.settling.waiting() == ()


class TestSourcesThatDoNotAnswer:
    """A vanished mount is not an order to unload."""

    def test_loss_and_return_are_told_once(self, polls):
        polls.see(DOWN)
        lost = SourceLost(source=REPOSITORY, since=4.0, reason="it is not mounted")
        assert polls.notices == [lost]
        assert polls.settling.unavailable() == (lost,)
        polls.see(DOWN)
        assert polls.notices == []
        polls.see(NoAnswer("it is another directory"))
        assert polls.notices == [SourceLost(source=REPOSITORY, since=4.0, reason="it is another directory")]
        polls.see({"m": "1"})
        assert polls.notices == [SourceBack(source=REPOSITORY, after=3.0)]
        assert polls.settling.unavailable() == ()

    def test_a_loss_that_lasts_is_told_once_more(self, polls):
        start = polls.now + 1
        notices = []
        for _ in range(100):
            polls.see(DOWN)
            notices += polls.notices
        brief = SourceLost(source=REPOSITORY, since=start, reason="it is not mounted")
        assert notices == [brief, replace(brief, lasting=True)]
        assert polls.settling.unavailable() == (notices[-1],)

    def test_a_loss_lasts_only_after_its_time_and_is_forgotten_with_its_return(self, polls):
        for _ in range(int(LASTING)):  # polled once a second
            polls.see(DOWN)
            assert not any(notice.lasting for notice in polls.notices)
        polls.see({"m": "1"})
        assert polls.notices == [SourceBack(source=REPOSITORY, after=LASTING)]
        polls.see(DOWN)
        assert [notice.lasting for notice in polls.notices] == [False]

    def test_another_reason_for_a_loss_that_lasts_is_one_that_lasts(self, polls):
        for _ in range(int(LASTING) + 5):
            polls.see(DOWN)
        polls.see(NoAnswer("it is another directory"))
        (notice,) = polls.notices
        assert (notice.reason, notice.lasting) == ("it is another directory", True)


APART = "namespaces tell equal names apart"
SEVERAL_SOURCES: dict[str, Any] = {
    "a name that leaves one of two sources is looked at": [
        (BOTH, []),
        (BOTH, [MODIFIED]),
        (WHOLE, []),
        (WHOLE, [MODIFIED]),
        ({"one": {}, "two": {}}, []),
        ({"one": {}, "two": {}}, [GONE]),
    ],
    "a name that moves to another source is looked at once": [
        (WHOLE, []),
        (WHOLE, [first_seen()]),
        ({"one": {}, "two": {"m": "1"}}, []),
        ({"one": {}, "two": {"m": "1"}}, [MODIFIED]),
    ],
    "what a look saw too early is looked at again": [
        (WHOLE, []),
        (WHOLE, [first_seen()]),
        ({"one": {"m": "2"}, "two": {}}, []),
        # A look at this time finds the model in both repositories.
        ({"one": {"m": "2"}, "two": {"m": "half"}}, [MODIFIED]),
        ({"one": {"m": "2"}, "two": {}}, []),
        ({"one": {"m": "2"}, "two": {}}, [MODIFIED]),
    ],
    APART: [
        (BOTH, []),
        (BOTH, [first_seen("m", "one"), first_seen("m", "two")]),
        (WHOLE, []),
        (WHOLE, [Left(key("m", "two"))]),
    ],
}


@pytest.mark.parametrize("story", SEVERAL_SOURCES)
def test_a_name_in_two_sources_is_looked_at_when_either_has_come_to_rest(story):
    polls = Polls(namespacing=story == APART)
    for views, decisions in SEVERAL_SOURCES[story]:
        assert polls.see(**views) == decisions


@pytest.mark.parametrize(
    ("name", "changed", "story"),
    [
        ("m", False, [({"m": "1"}, [first_seen()]), ({"m": "1"}, [])]),
        ("m", True, [({"m": "1"}, [MODIFIED])]),
        ("m", False, [(DOWN, []), ({"m": "1"}, []), ({"m": "1"}, [first_seen()])]),
        ("m", False, [({}, []), ({}, [GONE])]),
        ("n", False, [({"m": "1"}, [])]),
    ],
    ids=[
        "at the next poll",
        "a change that was told in vain is told again as a change",
        "not before its source answers",
        "one that went meanwhile has gone",
        "an unknown name is left alone",
    ],
)
def test_a_look_without_a_result_is_repeated(polls, name, changed, story):
    polls.settling.look_again(key(name), changed=changed)
    for view, decisions in story:
        assert polls.see(view) == decisions


SOURCES = st.sampled_from(["one", "two"])
NAMES = st.sampled_from(["a", "b"])
STATES = st.sampled_from([Unknown(), Complete(), Incomplete(("something is missing",))])


class Watched(RuleBasedStateMachine):
    """Repositories that change at any time, and an observer that believes the policy's decisions."""

    def __init__(self):
        super().__init__()
        self.settling = Settling()
        self.clock = 0
        self.stamps = 0
        self.truth: Any = {"one": {}, "two": {}}  # source -> name -> Seen
        self.down = set()
        self.answered: Any = {"one": [], "two": []}  # every view of a source, None where it did not answer
        self.believed = {}  # name -> {source: stamp} when it was last looked at

    @initialize(first=st.dictionaries(NAMES, STATES))
    def begin(self, first):
        for name, state in first.items():
            self._write("one", name, state)

    def _write(self, source, name, state):
        self.stamps += 1
        self.truth[source][name] = Seen(self.stamps, state)

    @rule(source=SOURCES, name=NAMES, state=STATES, polls=st.integers(0, 2))
    def write(self, source, name, state, polls):
        self._write(source, name, state)
        self._poll(polls)

    @rule(source=SOURCES, name=NAMES, polls=st.integers(0, 2))
    def remove(self, source, name, polls):
        self.truth[source].pop(name, None)
        self._poll(polls)

    @rule(sources=st.sets(SOURCES), polls=st.integers(1, 2))
    def lose_and_find(self, sources, polls):
        self.down = sources
        self._poll(polls)

    @rule(unheard=st.sets(SOURCES))
    def hear_no_news(self, unheard):
        self.poll(unheard)

    def _poll(self, times):
        for _ in range(times):
            self.poll()

    def poll(self, unheard=()):
        before = {source: dict(self._last(source) or {}) for source in self.truth}
        views = {
            source: DOWN if source in self.down else dict(models)
            for source, models in self.truth.items()
            if source not in unheard
        }
        self.clock += 1
        for source, view in views.items():
            if not isinstance(view, NoAnswer) and not any(each is not None for each in self.answered[source]):
                # The model may have been loaded before the first look.
                for name in view:
                    self.believed.setdefault(name, {}).setdefault(source, "as it was at start")
        verdict = self.settling.observe(views, now=float(self.clock))
        for decision in verdict.decisions:
            self._check(decision, views, before)
            self._believe(decision)
        assert len({decision.key for decision in verdict.decisions}) == len(verdict.decisions)
        for source, view in views.items():
            self.answered[source].append(None if view is DOWN else view)
        return verdict.decisions

    def _last(self, source):
        """Return the last view of a source, or None if it did not answer."""
        return self.answered[source][-1] if self.answered[source] else None

    def _check(self, decision, views, before):
        name = decision.key.name
        heard = {source: view for source, view in views.items() if view is not DOWN}
        if isinstance(decision, Changed):
            assert any(
                (name in view and isinstance(view[name].completeness, Complete))
                or (
                    self._last(source) is not None
                    and before[source].get(name) == view.get(name)
                    and not (name in view and isinstance(view[name].completeness, Incomplete))
                )
                for source, view in heard.items()
            ), "looked at what was changing"
        else:
            assert any(name not in view for view in heard.values()), "nobody missed it"
            believed = self.believed.get(name, {})
            for source in self.truth:
                if source not in heard:
                    assert source not in believed, "a source that said nothing had it"
                elif name in heard[source]:
                    assert source not in believed, "it is there"
            for source, view in heard.items():
                if name not in view and source in believed:
                    assert self._last(source) is not None, "missed by one look only"
                    assert name not in self._last(source), "missed by one look only"

    def _believe(self, decision):
        name = decision.key.name
        if isinstance(decision, Left):
            self.believed.pop(name, None)
            return
        old = self.believed.get(name, {})
        now = {}
        for source, models in self.truth.items():
            if source in self.down:
                if source in old:
                    now[source] = old[source]
            elif name in models:
                now[source] = models[name].stamp
        self.believed[name] = now

    def _true(self):
        names = sorted({name for models in self.truth.values() for name in models})
        return {
            name: {source: models[name].stamp for source, models in self.truth.items() if name in models}
            for name in names
        }

    @precondition(lambda self: self.answered["one"])
    @rule()
    def come_to_rest(self):
        """Every state that lasts is acted on in the end."""
        self.down = set()
        for models in self.truth.values():
            for name, seen in models.items():
                if isinstance(seen.completeness, Incomplete):
                    self.stamps += 1
                    models[name] = Seen(self.stamps, Unknown())
        self.poll()
        self.poll()
        assert self.believed == self._true()
        assert self.settling.waiting() == ()
        assert self.settling.unavailable() == ()
        assert self.poll() == ()

    @precondition(lambda self: self.answered["one"])
    @rule(source=SOURCES, name=NAMES, state=st.sampled_from([Unknown(), Complete()]))
    def change_once(self, source, name, state):
        """Make a change that lasts: the policy reports it exactly once."""
        self.come_to_rest()
        self._write(source, name, state)
        told = [decision for _ in range(4) for decision in self.poll()]
        assert [(type(decision), decision.key.name) for decision in told] == [(Changed, name)]

    @precondition(lambda self: self.answered["one"])
    @rule(source=SOURCES, name=NAMES)
    def remove_once(self, source, name):
        """As is a removal."""
        self.come_to_rest()
        if self.truth[source].pop(name, None) is not None:
            elsewhere = any(name in models for models in self.truth.values())
            told = [decision for _ in range(4) for decision in self.poll()]
            assert [type(decision) for decision in told] == [Changed if elsewhere else Left]

    @precondition(lambda self: self.answered["one"])
    @rule(sources=st.sets(SOURCES), polls=st.integers(1, 4))
    def be_away(self, sources, polls):
        """A source that was away and has not changed asks for nothing."""
        self.come_to_rest()
        self.down = sources
        for _ in range(polls):
            assert self.poll() == ()
        self.down = set()
        for _ in range(3):
            assert self.poll() == ()

    @invariant()
    def what_waits_is_there_or_was(self):
        for waiting in self.settling.waiting():
            assert waiting.since <= self.clock


Watched.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
TestWatchedRepositories = Watched.TestCase
