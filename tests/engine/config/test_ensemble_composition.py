"""How an ensemble and the models of its steps fit together: model_config.md 4.8, repository.md 7."""

from pathlib import Path

import pytest

from actors.values.datatypes import DataType
from actors.values.specs import Direct, InputSpec, ModelSpec, OutputSpec
from engine.config.parse import parse
from engine.config.rules.composition import (
    ComposingModel,
    ComposingTensor,
    Dependency,
    circular_dependency,
    composing_model,
    composition_problems,
    dependency_problems,
    find_cycle,
    is_decoupled,
    unavailable_models,
)

F32, I32 = "TYPE_FP32", "TYPE_INT32"


def model(name, inputs, outputs, *, batch=0, decoupled=False):
    return ComposingModel(
        name=name,
        max_batch_size=batch,
        inputs=tuple(tensor(*given) for given in inputs),
        outputs=tuple(tensor(*given) for given in outputs),
        decoupled=decoupled,
    )


def tensor(name, data_type=F32, dims=(4,), optional=False):
    return ComposingTensor(name=name, data_type=data_type, dims=dims, optional=optional)


def ensemble(*steps, batch=0, dims="[ 4 ]", outputs=("OUT",)):
    """Return an ensemble `E` from IN to `outputs`.

    A step is its model, its inputs and its outputs, named by the ensemble's tensors.
    """
    written = "".join(
        f'step {{ model_name: "{name}" model_version: {version} {mapped("input_map", taken)} {mapped("output_map", given)} }}'
        for name, version, taken, given in steps
    )
    text = (
        f'name: "E" platform: "ensemble" max_batch_size: {batch}'
        f' input {{ name: "IN" data_type: TYPE_FP32 dims: {dims} }}'
        + "".join(f' output {{ name: "{name}" data_type: TYPE_FP32 dims: {dims} }}' for name in outputs)
        + f" ensemble_scheduling {{ {written} }}"
    )
    config = parse(text, Path("E/config.pbtxt")).config
    assert config is not None
    return config


def mapped(side, pairs):
    return " ".join(f'{side} {{ key: "{key}" value: "{value}" }}' for key, value in pairs.items())


ONE = ensemble(("A", -1, {"x": "IN"}, {"y": "OUT"}))
TWO = ensemble(("A", -1, {"x": "IN"}, {"y": "mid"}), ("B", -1, {"x": "mid"}, {"y": "OUT"}))
PLAIN = model("A", [("x",)], [("y",)])


def told(config, *models):
    return [(problem.message, problem.key) for problem in composition_problems(config, models)]


STEP = "ensemble_scheduling.step"
# Each: an id, the ensemble, the models of its steps, and every problem: its text and its key.
PROBLEMS = [
    ("models that fit together", TWO,
     [PLAIN, model("B", [("x",), ("z", I32, (1,), True)], [("y",), ("spare", I32)])], []),
    ("outputs of one decoupled step that meet again",
     ensemble(("A", -1, {"x": "IN"}, {"y": "a", "z": "b"}), ("C", -1, {"l": "a", "r": "b"}, {"y": "OUT"})),
     [model("A", [("x",)], [("y",), ("z",)], decoupled=True), model("C", [("l",), ("r",)], [("y",)])], []),
    ("answers from steps behind one decoupled step",
     ensemble(("A", -1, {"x": "IN"}, {"y": "ONE", "z": "mid"}), ("B", -1, {"x": "mid"}, {"y": "TWO"}),
              outputs=("ONE", "TWO")),
     [model("A", [("x",)], [("y",), ("z",)], decoupled=True), model("B", [("x",)], [("y",)])], []),
    ("an input that the model doesn't have", ensemble(("A", -1, {"x": "IN", "w": "IN"}, {"y": "OUT"})), [PLAIN],
     [("in ensemble E, ensemble tensor IN is mapping to non-existing input w in model A", f'{STEP}[0].input_map["w"]')]),
    ("an input without a tensor", ONE, [model("A", [("x",), ("w",)], [("y",)])],
     [("in ensemble E, input w in model A is not mapped to any ensemble tensors", f"{STEP}[0].input_map")]),
    ("an output that the model doesn't have", ensemble(("A", -1, {"x": "IN"}, {"y": "OUT", "w": "more"})), [PLAIN],
     [("in ensemble E, ensemble tensor more is mapped from non-existing output w in model A", f'{STEP}[0].output_map["w"]')]),
    ("two outputs to one tensor", ensemble(("A", -1, {"x": "IN"}, {"y": "OUT", "z": "OUT"})),
     [model("A", [("x",)], [("y",), ("z",)])],
     [("in ensemble E, multiple outputs in model A are mapped to the same ensemble tensor OUT", f'{STEP}[0].output_map["z"]')]),
    ("another datatype than the ensemble's", ONE, [model("A", [("x", I32)], [("y",)])],
     [("in ensemble E, ensemble tensor IN: inconsistent data type: TYPE_FP32 is inferred from model E while TYPE_INT32"
       " is inferred from model A", f'{STEP}[0].input_map["x"]')]),
    ("another datatype than the step before", TWO, [model("A", [("x",)], [("y", "TYPE_STRING")]), model("B", [("x", I32)], [("y",)])],
     [("in ensemble E, ensemble tensor mid: inconsistent data type: TYPE_STRING is inferred from model A while TYPE_INT32"
       " is inferred from model B", f'{STEP}[1].input_map["x"]')]),
    ("another shape than the step before", TWO,
     [model("A", [("x",)], [("y", F32, (-1, 16))]), model("B", [("x", F32, (-1, 8))], [("y",)])],
     [("in ensemble E, ensemble tensor mid: inconsistent shape: [-1,16] is inferred from model A while [-1,8] is inferred"
       " from model B", f'{STEP}[1].input_map["x"]')]),
    ("another shape behind the batch dimension", ensemble(("A", -1, {"x": "IN"}, {"y": "OUT"}), batch=4),
     [model("A", [("x", F32, (5,))], [("y",)], batch=8)],
     [("in ensemble E, ensemble tensor IN: inconsistent shape: [-1,4] is inferred from model E while [-1,5] is inferred"
       " from model A", f'{STEP}[0].input_map["x"]')]),
    ("another rank", ONE, [model("A", [("x", F32, (4, 1))], [("y",)])],
     [("in ensemble E, ensemble tensor IN: inconsistent shape: [4] is inferred from model E while [4,1] is inferred from"
       " model A", f'{STEP}[0].input_map["x"]')]),
    ("larger batches than a model takes", ensemble(("A", -1, {"x": "IN"}, {"y": "OUT"}), batch=16),
     [model("A", [("x",)], [("y",)], batch=8)],
     [("ensemble E allows maximum batch size 16, but it contains model A which only allows maximum batch size to be 8",
       "max_batch_size")]),
    ("a merge of two decoupled models",
     ensemble(("A", -1, {"x": "IN"}, {"y": "a"}), ("B", -1, {"x": "IN"}, {"y": "b"}), ("C", -1, {"l": "a", "r": "b"}, {"y": "OUT"})),
     [model("A", [("x",)], [("y",)], decoupled=True), model("B", [("x",)], [("y",)], decoupled=True),
      model("C", [("l",), ("r",)], [("y",)])],
     [("in ensemble E, step of model 'C' receives inputs originated from different decoupled models", "ensemble_scheduling")]),
    ("a merge of a decoupled model and the request",
     ensemble(("A", -1, {"x": "IN"}, {"y": "a"}), ("C", -1, {"l": "a", "r": "IN"}, {"y": "OUT"})),
     [model("A", [("x",)], [("y",)], decoupled=True), model("C", [("l",), ("r",)], [("y",)])],
     [("in ensemble E, step of model 'C' receives inputs originated from different decoupled models", "ensemble_scheduling")]),
    ("answers of two decoupled models",
     ensemble(("A", -1, {"x": "IN"}, {"y": "ONE"}), ("B", -1, {"x": "IN"}, {"y": "TWO"}), outputs=("ONE", "TWO")),
     [model("A", [("x",)], [("y",)], decoupled=True), model("B", [("x",)], [("y",)], decoupled=True)],
     [("in ensemble E, step of model 'E' receives inputs originated from different decoupled models", "ensemble_scheduling")]),
    ("answers of a decoupled model and of another",
     ensemble(("A", -1, {"x": "IN"}, {"y": "ONE"}), ("B", -1, {"x": "IN"}, {"y": "TWO"}), outputs=("ONE", "TWO")),
     [model("A", [("x",)], [("y",)], decoupled=True), model("B", [("x",)], [("y",)])],
     [("in ensemble E, step of model 'E' receives inputs originated from different decoupled models", "ensemble_scheduling")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "models", "problems"), [pytest.param(*row[1:], id=row[0]) for row in PROBLEMS]
)
def test_what_does_not_fit_is_told_and_nothing_else(config, models, problems):
    assert told(config, *models) == problems


# Each: what the ensemble's tensor is, what the model's is; both fit.
FITTING = [
    ("[ 4 ]", 0, (4,), 0),
    ("[ -1 ]", 0, (4,), 0),
    ("[ 4 ]", 0, (-1,), 0),
    ("[ 4 ]", 8, (4,), 8),
    ("[ 4 ]", 8, (-1, 4), 0),  # a model without batches sees the ensemble's batch as a dimension
    ("[ -1, 4 ]", 0, (4,), 8),
    ("[ 4 ]", 4, (4,), 8),
]


@pytest.mark.parametrize(("dims", "batch", "inner", "inner_batch"), FITTING)
def test_any_size_and_the_batch_dimension_are_allowed_for(dims, batch, inner, inner_batch):
    config = ensemble(("A", -1, {"x": "IN"}, {"y": "OUT"}), batch=batch, dims=dims)
    assert told(config, model("A", [("x", F32, inner)], [("y", F32, inner)], batch=inner_batch)) == []


def test_answers_that_can_not_be_told_apart_are_named_with_their_steps():
    config = ensemble(
        ("A", -1, {"x": "IN"}, {"y": "ONE"}), ("B", -1, {"x": "IN"}, {"y": "TWO"}), outputs=("ONE", "TWO")
    )
    models = [model("A", [("x",)], [("y",)], decoupled=True), model("B", [("x",)], [("y",)])]
    [problem] = composition_problems(config, models)
    assert problem.hint == (
        "all outputs must come from the same decoupled step, or all from none: 'ONE' comes from that of step 0,"
        " 'TWO' comes from none"
    )


def test_an_ensemble_is_decoupled_where_one_of_its_models_is():
    assert is_decoupled([PLAIN, model("B", [], [], decoupled=True)])
    assert not is_decoupled([PLAIN])


def test_a_specification_tells_what_an_ensemble_must_know():
    spec = ModelSpec(
        name="A", version=1, platform="", backend="python", max_batch_size=8,
        inputs=(InputSpec(name="x", datatype=DataType.BYTES, dims=(-1,), optional=True),),
        outputs=(OutputSpec(name="y", datatype=DataType.FP32, dims=(4,), reshape=(2, 2)),),
        scheduling=Direct(), instances=(), model_directory=Path(), version_directory=Path(), artifact="", config_json=b"",
        decoupled=True,
    )  # fmt: skip
    assert composing_model(spec) == model(
        "A", [("x", "TYPE_STRING", (-1,), True)], [("y",)], batch=8, decoupled=True
    )


def test_missing_models_are_named_once_and_in_order():
    problem = unavailable_models("E", ["b", "a", "b"])
    assert problem.message == "ensemble E contains models that are not available or ambiguous: a, b"


LOADED = Dependency(versions=frozenset((1, 2)))
# Each: an id, the versions that the two steps want, how the models stand, and the texts.
DEPENDENCIES = [
    ("all is well", (-1, 2), {"A": LOADED, "B": LOADED}, []),
    ("one is missing", (-1, -1), {"A": LOADED, "B": None},
     ["ensemble E contains models that are not available or ambiguous: B"]),
    ("both are missing", (-1, -1), {}, ["ensemble E contains models that are not available or ambiguous: A, B"]),
    ("one is invalid", (-1, -1), {"A": Dependency(invalid="no name"), "B": LOADED},
     ["ensemble 'E' depends on 'A' which is not valid. Model 'A' failed with error: no name"]),
    ("one is not loaded", (-1, -1), {"A": Dependency(), "B": LOADED},
     ["ensemble 'E' depends on 'A' which has no loaded version."]),
    ("one failed to load", (-1, -1), {"A": LOADED, "B": Dependency(failure="no memory")},
     ["ensemble 'E' depends on 'B' which has no loaded version. Model 'B' loading failed with error: no memory"]),
    ("another version is loaded", (3, -1), {"A": LOADED, "B": LOADED},
     ["ensemble 'E' depends on 'A' whose required version 3 is not loaded."]),
    ("no version is named", (0, 1), {"A": LOADED, "B": LOADED},
     ["ensemble 'E' depends on 'A' whose required version 0 is not loaded."]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "dependencies", "texts"), [pytest.param(*row[1:], id=row[0]) for row in DEPENDENCIES]
)
def test_a_dependency_that_is_not_there_is_told(wanted, dependencies, texts):
    config = ensemble(
        ("A", wanted[0], {"x": "IN"}, {"y": "mid"}), ("B", wanted[1], {"x": "mid"}, {"y": "OUT"})
    )
    assert [problem.message for problem in dependency_problems(config, dependencies)] == texts


def test_a_version_that_was_left_out_is_explained():
    (problem,) = dependency_problems(ensemble(("A", 0, {"x": "IN"}, {"y": "OUT"})), {"A": LOADED})
    assert problem.hint == "an unset 'model_version' is 0: write -1 for the latest"
    assert problem.key == "ensemble_scheduling.step[0]"


def test_a_model_that_two_steps_need_is_told_once():
    config = ensemble(("A", -1, {"x": "IN"}, {"y": "mid"}), ("A", -1, {"x": "mid"}, {"y": "OUT"}))
    assert len(list(dependency_problems(config, {"A": Dependency()}))) == 1


# Each: the dependencies, and the cycle from A, if there is one.
CYCLES = [
    ({"A": ["B"], "B": ["C"]}, ()),
    ({"A": ["B", "C"], "B": ["D"], "C": ["D"]}, ()),
    ({"A": ["B"], "B": ["C"], "C": ["B"]}, ()),  # it is B's, not A's
    ({"A": ["A"]}, ("A", "A")),
    ({"A": ["B"], "B": ["A"]}, ("A", "B", "A")),
    ({"A": ["X", "B"], "B": ["C"], "C": ["D", "A"]}, ("A", "B", "C", "A")),
]


@pytest.mark.parametrize(("depends_on", "cycle"), CYCLES)
def test_a_cycle_is_found_from_any_model_of_it(depends_on, cycle):
    assert find_cycle("A", depends_on) == cycle
    assert (circular_dependency("A", depends_on) is None) == (not cycle)


def test_a_cycle_is_told_in_triton_s_words_with_all_of_its_models():
    problem = circular_dependency("A", {"A": ["B"], "B": ["C"], "C": ["A"]})
    assert problem is not None
    assert problem.message == "circular dependency between ensembles: A -> ... -> B -> A"
    assert problem.hint == "the whole cycle: A -> C -> B -> A"
