"""The data flow of ensembles: random graphs, and the contract's cases (scheduling.md section 7)."""

import weakref
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.ensembles.policy.course import Course, StepModel
from actors.ensembles.policy.flow import Flow
from actors.ensembles.policy.gates import Gates
from actors.ensembles.policy.straight_flow import StraightFlow, flow_along
from actors.values.errors import Internal, InvalidArgument
from actors.values.shapes import fitted
from actors.values.specs import Ensemble, EnsembleStep
from actors.values.wiring import Wiring
from tests.support.examples import examples

PLAIN = StepModel()
DECOUPLED = StepModel(decoupled=True)


def step(text):
    """`model in=tensor ... -> out=tensor ...`"""
    model, _, maps = text.partition(" ")
    ins, outs = (dict(pair.split("=") for pair in part.split()) for part in maps.split("->"))
    return EnsembleStep(model_name=model, input_map=ins, output_map=outs)


def wiring(*steps):
    return Wiring(Ensemble(steps=tuple(step(each) for each in steps)))


def course(graph, requested, **models):
    """`models` has what is known of models by name; others are plain."""
    numbers = graph.contributing(requested)
    known = {number: models.get(graph.steps[number].model_name, PLAIN) for number in numbers}
    return Course(graph, requested, known)


def names(runs):
    return [run.step.number for run in runs]


# -- one case at a time

KINDS = pytest.mark.parametrize("kind", [Flow, StraightFlow])


def test_steps_that_nobody_asked_for_do_not_run_and_unused_outputs_are_not_asked_for():
    graph = wiring("m a=A -> b=B c=C", "m a=B -> b=D", "m a=C -> b=E")
    asked = course(graph, ("E",))
    flow: Any = Flow(asked)
    [first] = flow.begin({"A": 0})
    assert first.step.outputs == {"c": "C"}
    assert names(flow.received(first, {"c": 1}, final=True)) == [2]


def test_an_input_of_the_ensemble_can_be_its_output():
    flow: Any = Flow(course(wiring("m a=A -> b=B"), ("A", "B")))
    [only] = flow.begin({"A": 5})
    flow.received(only, {"b": 6}, final=True)
    assert flow.take_answers() == [{"A": 5, "B": 6}]


@KINDS
def test_a_missing_output_is_a_deadlock_where_somebody_needs_it(kind):
    flow: Any = kind(course(wiring("m a=A -> b=B", "m a=B -> b=C"), ("C",)))
    [first] = flow.begin({"A": 0})
    assert not flow.received(first, {}, final=True)
    assert flow.over
    error = flow.ending("[request id: 7] ")
    assert isinstance(error, InvalidArgument)
    assert error.message == (
        "[request id: 7] unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
    )


@pytest.mark.parametrize("given_inputs", [{"A": 1}, {"A": 1, "O": None}])
def test_a_missing_tensor_is_left_out_where_the_model_can_do_without(given_inputs):
    graph = wiring("first a=A -> b=B", "optional a=A b=B o=O -> c=C")
    flow: Any = Flow(course(graph, ("C",), optional=StepModel(optional=frozenset(("b", "o")))))
    [first] = flow.begin(given_inputs)
    [second] = flow.received(first, {}, final=True)
    assert second.inputs == {"a": 1}


@KINDS
def test_an_output_that_no_step_gave_is_left_out_of_the_answer(kind):
    flow = kind(course(wiring("m a=A -> b=B c=C", "m a=A -> b=D"), ("B", "C", "D")))
    first, other = flow.begin({"A": 0})
    flow.received(first, {"c": "c"}, final=True)
    flow.received(other, {}, final=True)
    assert flow.over
    assert list(flow.take_answers()) == [{"C": "c"}]
    assert flow.ending("") is None


def test_every_response_of_a_decoupled_step_is_an_answer_whatever_outputs_it_has():
    flow: Any = Flow(course(wiring("many a=A -> b=B c=C"), ("B", "C"), many=DECOUPLED))
    [many] = flow.begin({"A": 0})
    flow.received(many, {"b": 1}, final=False)
    flow.received(many, {}, final=False)
    flow.received(many, {"b": 2, "c": 3}, final=False)
    flow.received(many, {}, final=True, empty=True)
    assert flow.take_answers() == [{"B": 1}, {}, {"B": 2, "C": 3}]
    assert flow.over


@KINDS
def test_an_error_is_told_when_everything_that_runs_has_ended(kind):
    graph = wiring("m a=A -> b=B", "m a=A -> b=C", "m a=B c=C -> b=D")
    flow: Any = kind(course(graph, ("D",)))
    one, other = flow.begin({"A": 0})
    flow.failed(one, Internal("first"), final=True)
    assert not flow.over
    flow.failed(other, Internal("second"), final=True)
    assert flow.over
    assert flow.ending("").message == "first"
    assert not flow.take_answers()


@KINDS
def test_nothing_runs_after_a_stop(kind):
    flow: Any = kind(course(wiring("m a=A -> b=B", "m a=B -> b=C"), ("C",)))
    [first] = flow.begin({"A": 0})
    flow.stop(Internal("enough"))
    assert not flow.received(first, {"b": 1}, final=True)
    assert flow.over
    assert flow.ending("").message == "enough"


def test_an_error_in_the_middle_of_a_stream_ends_the_request_when_the_stream_has_ended():
    flow: Any = Flow(course(wiring("many a=A -> b=B"), ("B",), many=DECOUPLED))
    [many] = flow.begin({"A": 0})
    flow.received(many, {"b": 1}, final=False)
    flow.failed(many, Internal("broken"), final=False)
    assert not flow.over
    assert flow.received(many, {"b": 2}, final=True) == []
    assert flow.over
    assert flow.take_answers() == []
    assert flow.ending("").message == "broken"


@KINDS
def test_a_plain_step_runs_once_though_a_response_comes_in_two_parts(kind):
    flow: Any = kind(course(wiring("m a=A -> b=B", "m a=B -> b=C"), ("C",)))
    [first] = flow.begin({"A": 0})
    begun = [
        *flow.received(first, {"b": 1}, final=False),
        *flow.received(first, {"b": 1}, final=True),
    ]
    assert [(run.step.number, run.inputs) for run in begun] == [(1, {"a": 1})]
    flow.received(begun[0], {"b": 2}, final=True)
    assert list(flow.take_answers()) == [{"C": 2}]


@pytest.mark.parametrize(("models", "kind"), [({}, StraightFlow), ({"m": DECOUPLED}, Flow)])
def test_a_request_gets_the_cheap_flow_where_no_step_is_decoupled(models, kind):
    assert type(flow_along(course(wiring("m a=A -> b=B"), ("B",), **models))) is kind


def test_each_response_of_a_decoupled_step_is_an_answer_of_its_own_and_they_keep_their_order():
    graph = wiring("many a=A -> b=B", "m a=B -> b=C")
    flow: Any = Flow(course(graph, ("C",), many=DECOUPLED))
    [many] = flow.begin({"A": 0})
    [zero] = flow.received(many, {"b": 0}, final=False)
    [one] = flow.received(many, {"b": 1}, final=False)
    flow.received(one, {"b": "one"}, final=True)
    assert flow.take_answers() == []  # the first is still on its way
    flow.received(zero, {"b": "zero"}, final=True)
    assert flow.take_answers() == [{"C": "zero"}, {"C": "one"}]
    assert not flow.over
    assert flow.received(many, {}, final=True, empty=True) == []
    assert flow.over
    assert flow.ending("") is None


def test_a_decoupled_ensemble_may_end_without_an_answer():
    flow: Any = Flow(course(wiring("many a=A -> b=B"), ("B",), many=DECOUPLED))
    [many] = flow.begin({"A": 0})
    flow.received(many, {}, final=True, empty=True)
    assert flow.over
    assert flow.ending("") is None


def test_outputs_of_one_iteration_stay_together_and_those_from_before_go_with_each():
    graph = wiring("plain a=A -> b=P", "many a=A -> b=B", "m a=B -> b=C", "more a=C -> b=D")
    flow: Any = Flow(course(graph, ("P", "B", "D"), many=DECOUPLED, more=DECOUPLED))
    plain, many = flow.begin({"A": 0})
    flow.received(plain, {"b": "p"}, final=True)
    [m0] = flow.received(many, {"b": "b0"}, final=False)
    [m1] = flow.received(many, {"b": "b1"}, final=True)
    [more1] = flow.received(m1, {"b": "c1"}, final=True)
    [more0] = flow.received(m0, {"b": "c0"}, final=True)
    flow.received(more1, {"b": "d10"}, final=True)
    flow.received(more0, {"b": "d00"}, final=False)
    flow.received(more0, {"b": "d01"}, final=True)
    assert [tuple(each.values()) for each in flow.take_answers()] == [
        ("p", "b0", "d00"),
        ("p", "b0", "d01"),
        ("p", "b1", "d10"),
    ]


def test_a_long_stream_leaves_nothing_behind():
    class Part:
        pass

    flow: Any = Flow(course(wiring("many a=A -> b=B", "m a=B -> b=C"), ("C", "B"), many=DECOUPLED))
    [many] = flow.begin({"A": Part()})
    parts: Any = weakref.WeakSet()
    for _ in range(50):
        made = {"b": Part()}
        parts.update(made.values())
        [run] = flow.received(many, made, final=False)
        made = {"b": Part()}
        parts.update(made.values())
        flow.received(run, made, final=True)
        assert len(flow.take_answers()) == 1
    del run, made
    assert len(parts) == 0


# -- gates


def test_a_gate_lets_so_many_through_and_the_next_when_one_has_ended():
    gates = Gates(2)
    assert [gates.enter(0, run) for run in "abcd"] == [True, True, False, False]
    assert gates.enter(1, "other")
    assert gates.withdraw(0, "c")
    assert not gates.withdraw(0, "c")
    assert gates.ended(0) == "d"
    assert gates.ended(0) is None


def test_one_that_has_waited_too_long_goes_and_counts():
    gates = Gates(1)
    assert [gates.enter(0, run) for run in "abc"] == [True, False, False]
    assert gates.give_up(0, "b")
    assert not gates.give_up(0, "b")
    assert gates.ended(0) is None  # two were on their way
    assert gates.ended(0) == "c"


# -- shapes


@pytest.mark.parametrize(
    ("shape", "rank", "batches", "seen"),
    [
        ((4, 16), 1, True, (4, 16)),
        ((16,), 1, True, (1, 16)),
        ((4, 16), 2, False, (4, 16)),
        ((1, 16), 1, False, (16,)),
        ((4, 16), 1, False, (4, 16)),  # for its model to refuse
        ((), 0, False, ()),
    ],
)
def test_a_tensor_keeps_its_shape_unless_only_a_batch_of_one_is_between(shape, rank, batches, seen):
    assert tuple(fitted(shape, rank, batches=batches)) == seen


# -- any graph


@st.composite
def graphs(draw):
    """Steps that read earlier steps' tensors, the requested outputs, and which steps are decoupled."""
    tensors = [f"I{number}" for number in range(draw(st.integers(1, 3)))]
    inputs = tuple(tensors)
    origin: dict[str, tuple[int, ...]] = dict.fromkeys(tensors, ())  # the decoupled steps before it
    steps, models = [], {}
    for number in range(draw(st.integers(1, 6))):
        group = origin[draw(st.sampled_from(tensors))]
        reachable = [name for name in tensors if origin[name] == group]  # what load-time rules allow to meet
        reads = draw(st.lists(st.sampled_from(reachable), min_size=1, max_size=3, unique=True))
        writes = [f"T{number}_{each}" for each in range(draw(st.integers(1, 2)))]
        decoupled = draw(st.integers(0, 4)) == 0
        steps.append(
            EnsembleStep(
                model_name=f"m{number}",
                input_map={f"i{each}": name for each, name in enumerate(reads)},
                output_map={f"o{each}": name for each, name in enumerate(writes)},
            )
        )
        models[number] = DECOUPLED if decoupled else PLAIN
        for name in writes:
            origin[name] = (*group, number) if decoupled else group
        tensors += writes
    group = origin[draw(st.sampled_from(tensors))]
    wanted = [name for name in tensors if origin[name] == group[: len(origin[name])]]
    requested = draw(st.lists(st.sampled_from(wanted), min_size=1, max_size=4, unique=True))
    return Wiring(Ensemble(steps=tuple(steps))), inputs, tuple(requested), models


def value_of(run, output, response):
    return (run.step.number, output, response, tuple(sorted(run.inputs.items())))


class Play:
    """One request, whose steps give two responses where they are decoupled, in any order."""

    def __init__(self, graph, pick, *, fail_at=None, kind=flow_along, null=frozenset()):
        """`null` are the steps' outputs, and the client's inputs, that are left out."""
        wires, inputs, requested, models = graph
        numbers = wires.contributing(requested)
        self.flow = kind(Course(wires, requested, {number: models[number] for number in numbers}))
        self.pick = pick
        self.null = null
        self.fail_at = fail_at
        self.ran: Any = Counter()
        self.answers = []
        self.open = [(run, 0) for run in self.flow.begin({name: name for name in inputs if name not in null})]

    def play(self):
        done = 0
        self.answers += self.flow.take_answers()
        while self.open:
            run, responses = self.open.pop(self.pick(len(self.open)))
            final = not run.step.decoupled or responses == 1
            outputs = {
                name: value_of(run, name, responses)
                for name, tensor in run.step.outputs.items()
                if tensor not in self.null
            }
            if done == self.fail_at:
                self.flow.failed(run, Internal("broken"), final=final)
                runs = []
            else:
                runs = self.flow.received(run, outputs, final=final)
            if self.fail_at is not None and done >= self.fail_at:
                assert not runs
            done += 1
            if final:
                self.ran[run.step.number, run.iteration] += 1
            else:
                self.open.append((run, responses + 1))
            self.open += [(each, 0) for each in runs]
            assert self.flow.over is not bool(self.open)
            self.answers += self.flow.take_answers()
        return self


@settings(max_examples=examples(150, few=25), deadline=None)
@given(graphs(), st.data())
def test_whatever_order_steps_end_in_every_step_runs_once_and_the_answers_are_the_same(graph, data):
    first = Play(graph, lambda count: 0).play()
    other = Play(graph, lambda count: data.draw(st.integers(0, count - 1))).play()
    assert set(first.ran.values()) <= {1}
    assert first.ran == other.ran
    assert first.answers == other.answers
    assert first.answers
    assert first.flow.ending("") is None
    assert all(set(answer) == set(graph[2]) for answer in first.answers)


@settings(max_examples=examples(100, few=25), deadline=None)
@given(graphs(), st.integers(0, 8), st.data())
def test_after_an_error_nothing_begins_and_it_ends_when_everything_has(graph, fail_at, data):
    played = Play(graph, lambda count: data.draw(st.integers(0, count - 1)), fail_at=fail_at).play()
    assert played.flow.over
    if sum(played.ran.values()) > fail_at:
        assert played.flow.ending("") is not None
    assert set(played.ran.values()) <= {1}


@settings(max_examples=examples(200, few=25), deadline=None)
@given(graphs(), st.integers(0, 12), st.data())
def test_the_cheap_flow_of_ensembles_without_decoupled_steps_does_what_the_other_does(graph, fail_at, data):
    wires, inputs, requested, models = graph
    optional = frozenset(data.draw(st.sets(st.sampled_from([f"i{number}" for number in range(3)]))))
    models = {number: StepModel(optional=optional) for number in models}
    tensors = [*inputs, *(name for each in wires.steps for name in each.output_map.values())]
    null = data.draw(st.sets(st.sampled_from(tensors), max_size=3))
    picks = data.draw(st.lists(st.integers(0, 1000), min_size=8, max_size=8))
    played = []
    for kind in (Flow, StraightFlow):
        choices = iter(picks)
        pick = lambda count, choices=choices: next(choices, 0) % count  # noqa: E731
        played.append(
            Play((wires, inputs, requested, models), pick, fail_at=fail_at, kind=kind, null=null).play()
        )
    slow, quick = played
    assert quick.ran == slow.ran
    assert quick.answers == slow.answers
    endings = [repr(each.flow.ending("[p] ")) for each in played]
    assert endings[0] == endings[1]
