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


def test_everything_is_looked_at_once_after_the_start():
    polls = Polls()
    assert polls.see({"a": "1", "b": "1"}) == []
    assert polls.see({"a": "1", "b": "1"}) == [
        Changed(key("a"), Change.FIRST_SEEN),
        Changed(key("b"), Change.FIRST_SEEN),
    ]
    assert polls.see({"a": "1", "b": "1"}) == []


def test_what_changes_between_the_first_looks_was_modified():
    polls = Polls({"m": "1"})
    assert polls.see({"m": "2"}) == []
    assert polls.see({"m": "2"}) == [Changed(key("m"), Change.MODIFIED)]
    assert polls.see({"m": "2"}) == []


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


def test_an_incomplete_model_waits_for_ever():
    polls = watching()
    for _ in range(50):
        assert polls.see({"m": Seen("2", Incomplete(("'x' is missing",)))}) == []
    assert polls.see({"m": Seen("3", Complete())}) == [Changed(key("m"), Change.MODIFIED)]


def test_why_a_model_is_incomplete_is_told_once_and_when_it_changes():
    polls = watching()
    waits = Waiting(source=REPOSITORY, name="m", since=4.0, reasons=("'x' is missing",))
    polls.see({"m": Seen("2", Incomplete(("'x' is missing",)))})
    assert polls.notices == [waits]
    polls.see({"m": Seen("3", Incomplete(("'x' is missing",)))})
    assert polls.notices == []
    assert polls.settling.waiting() == (waits,)
    polls.see({"m": Seen("4", Incomplete(("'x' does not match",)))})
    assert polls.notices == [Waiting(source=REPOSITORY, name="m", since=4.0, reasons=("'x' does not match",))]


def test_a_copy_that_goes_on_is_told_once():
    polls = watching()
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


def test_a_model_that_went_before_it_was_looked_at_is_nobodys_business():
    polls = watching()
    assert [polls.see(view) for view in ({"m": "1", "n": "1"}, {"m": "1"}, {"m": "1"})] == [[], [], []]
    assert polls.settling.waiting() == ()


def test_a_model_that_went_right_after_the_start_has_gone_for_it_may_be_loaded():
    polls = Polls({"m": "1"}, {})
    assert polls.see({}) == [Left(key("m"))]


class TestSourcesThatDoNotAnswer:
    """A vanished mount is not an order to unload."""

    def test_loss_and_return_are_told_once(self):
        polls = watching()
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

    def test_a_loss_that_lasts_is_told_once_more(self):
        polls = watching()
        start = polls.now + 1
        notices = []
        for _ in range(100):
            polls.see(DOWN)
            notices += polls.notices
        brief = SourceLost(source=REPOSITORY, since=start, reason="it is not mounted")
        assert notices == [brief, replace(brief, lasting=True)]
        assert polls.settling.unavailable() == (notices[-1],)

    def test_a_loss_lasts_only_after_its_time_and_is_forgotten_with_its_return(self):
        polls = watching()
        for _ in range(int(LASTING)):  # polled once a second
            polls.see(DOWN)
            assert not any(notice.lasting for notice in polls.notices)
        polls.see({"m": "1"})
        assert polls.notices == [SourceBack(source=REPOSITORY, after=LASTING)]
        polls.see(DOWN)
        assert [notice.lasting for notice in polls.notices] == [False]

    def test_another_reason_for_a_loss_that_lasts_is_one_that_lasts(self):
        polls = watching()
        for _ in range(int(LASTING) + 5):
            polls.see(DOWN)
        polls.see(NoAnswer("it is another directory"))
        (notice,) = polls.notices
        assert (notice.reason, notice.lasting) == ("it is another directory", True)

    def test_a_source_that_never_answered_so_far_has_everything_looked_at(self):
        polls = Polls(DOWN, DOWN, {"m": "1"})
        assert polls.see({"m": "1"}) == [Changed(key("m"), Change.FIRST_SEEN)]


class TestSeveralSources:
    """A name in two of them."""

    def test_a_name_that_leaves_one_of_two_sources_is_looked_at(self):
        polls = Polls()
        polls.see(one={"m": "1"}, two={"m": "1"})
        assert polls.see(one={"m": "1"}, two={"m": "1"}) == [Changed(key("m"), Change.MODIFIED)]
        assert polls.see(one={"m": "1"}, two={}) == []
        assert polls.see(one={"m": "1"}, two={}) == [Changed(key("m"), Change.MODIFIED)]
        polls.see(one={}, two={})
        assert polls.see(one={}, two={}) == [Left(key("m"))]

    def test_a_name_that_moves_to_another_source_is_looked_at_once(self):
        polls = Polls()
        for _ in range(2):
            polls.see(one={"m": "1"}, two={})
        assert polls.see(one={}, two={"m": "1"}) == []
        assert polls.see(one={}, two={"m": "1"}) == [Changed(key("m"), Change.MODIFIED)]

    def test_what_a_look_saw_too_early_is_looked_at_again(self):
        polls = Polls()
        for _ in range(2):
            polls.see(one={"m": "1"}, two={})
        polls.see(one={"m": "2"}, two={})
        # A look at this time finds the model in both repositories.
        assert polls.see(one={"m": "2"}, two={"m": "half"}) == [Changed(key("m"), Change.MODIFIED)]
        assert polls.see(one={"m": "2"}, two={}) == []
        assert polls.see(one={"m": "2"}, two={}) == [Changed(key("m"), Change.MODIFIED)]

    def test_namespaces_tell_equal_names_apart(self):
        polls = Polls(namespacing=True)
        polls.see(one={"m": "1"}, two={"m": "1"})
        assert polls.see(one={"m": "1"}, two={"m": "1"}) == [
            Changed(key("m", "one"), Change.FIRST_SEEN),
            Changed(key("m", "two"), Change.FIRST_SEEN),
        ]
        polls.see(one={"m": "1"}, two={})
        assert polls.see(one={"m": "1"}, two={}) == [Left(key("m", "two"))]


class TestLookingAgain:
    """A look without a result is repeated."""

    def test_a_model_is_looked_at_again_at_the_next_poll(self):
        polls = watching()
        polls.settling.look_again(key("m"), changed=False)
        assert polls.see({"m": "1"}) == [Changed(key("m"), Change.FIRST_SEEN)]
        assert polls.see({"m": "1"}) == []

    def test_a_change_that_was_told_in_vain_is_told_again_as_a_change(self):
        polls = watching()
        polls.settling.look_again(key("m"), changed=True)
        assert polls.see({"m": "1"}) == [Changed(key("m"), Change.MODIFIED)]

    def test_it_is_not_before_its_source_answers(self):
        polls = watching()
        polls.settling.look_again(key("m"), changed=False)
        assert [polls.see(view) for view in (DOWN, {"m": "1"})] == [[], []]
        assert polls.see({"m": "1"}) == [Changed(key("m"), Change.FIRST_SEEN)]

    def test_one_that_went_meanwhile_has_gone(self):
        polls = watching()
        polls.settling.look_again(key("m"), changed=False)
        polls.see({})
        assert polls.see({}) == [Left(key("m"))]

    def test_an_unknown_name_is_nobodys(self):
        polls = watching()
        polls.settling.look_again(key("n"), changed=False)
        assert polls.see({"m": "1"}) == []


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
