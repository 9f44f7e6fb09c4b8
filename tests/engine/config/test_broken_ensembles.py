"""Mistakes in ensembles: each with its exact text, its place, its field and a hint.

The texts are those of the contract, model_config.md section 4.8.
"""

import pytest

INPUT = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 }\n'
OUTPUT = 'output { name: "OUT" data_type: TYPE_FP32 dims: 4 }\n'
HEAD = 'name: "m"\nplatform: "ensemble"\n'


def step(inputs, outputs, model="x"):
    maps = [
        f'{side}_map {{ key: "{key}" value: "{value}" }}'
        for side, pairs in (("input", inputs), ("output", outputs))
        for key, value in pairs
    ]
    return f'  step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}\n'


ONLY = step([("i", "IN")], [("o", "OUT")])


def ensemble(*steps, head=HEAD + INPUT + OUTPUT, more=""):
    return f"{head}ensemble_scheduling {{\n{''.join(steps)}}}\n{more}"


# Each: an id, the text, and every error: its place, key, message and hint.
BROKEN = [
    ('a backend', ensemble(ONLY, head=HEAD + 'backend: "python"\n' + INPUT + OUTPUT),
     [((3, 1), 'backend', "Ensemble model 'm' must have platform type 'ensemble' and empty backend type", "leave 'backend' out")]),
    ('steps of a model of another platform', ensemble(ONLY, head='backend: "python"\n' + INPUT + OUTPUT),
     [((4, 1), 'ensemble_scheduling', "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble", 'write platform: "ensemble", and no backend')]),
    ('no schedule', HEAD + INPUT + OUTPUT,
     [((2, 1), 'platform', 'ensemble scheduling must be set for ensemble m whose platform is ensemble', 'add: ensemble_scheduling { step [ … ] }')]),
    ('instances', ensemble(ONLY, more="instance_group { count: 2 }"),
     [((8, 1), 'instance_group', "instance group should not be specified for ensemble 'm'", 'leave it out: the models of its steps have instances')]),
    ('an optimization', ensemble(ONLY, more="optimization { }"),
     [((8, 1), 'optimization', "optimization should not be specified for ensemble 'm'", 'leave it out: it belongs to the models of the steps')]),
    ('a warmup', ensemble(ONLY, more='model_warmup { name: "w" }'),
     [((8, 1), 'model_warmup', "model_warmup can not be specified for ensemble 'm'", 'leave it out: warm up the models of the steps')]),
    ('no steps', ensemble(),
     [((5, 1), 'ensemble_scheduling', "must specify 'step' for ensemble 'm'", 'add: step { model_name: "…" model_version: -1 input_map { … } output_map { … } }')]),
    ('a step without a model', ensemble(step([("i", "IN")], [("o", "OUT")], model="")),
     [((6, 3), 'ensemble_scheduling.step[0]', "must specify 'model_name' in step 0 of ensemble 'm'", 'add: model_name: "…"')]),
    ('a step without inputs', ensemble(ONLY, step([], [("o", "EXTRA")])),
     [((7, 3), 'ensemble_scheduling.step[1]', "must specify 'input_map' in step 1 of ensemble 'm'", 'add: input_map { key: "<the model\'s tensor>" value: "<the ensemble\'s>" }')]),
    ('a step without outputs', ensemble(ONLY, step([("i", "IN")], [])),
     [((7, 3), 'ensemble_scheduling.step[1]', "must specify 'output_map' in step 1 of ensemble 'm'", 'add: output_map { key: "<the model\'s tensor>" value: "<the ensemble\'s>" }')]),
    ('a tensor of two steps', ensemble(ONLY, ONLY),
     [((7, 79), 'ensemble_scheduling.step[1].output_map["o"]', "ensemble tensor 'OUT' can appear in an output map only once for ensemble 'm' step 1", 'give it another name here')]),
    ('a tensor of two outputs', ensemble(step([("i", "IN")], [("o", "OUT"), ("p", "OUT")])),
     [((6, 116), 'ensemble_scheduling.step[0].output_map["p"]', "ensemble tensor 'OUT' can appear in an output map only once for ensemble 'm' step 0", 'give it another name here')]),
    ('an input of two tensors', ensemble(step([("i", "IN"), ("i", "IN")], [("o", "OUT")])),
     [((6, 79), 'ensemble_scheduling.step[0].input_map["i"]', "input 'i' in model 'x' is mapped to multiple ensemble tensors for ensemble 'm' step 0", 'keep one of the entries')]),
    ('an input that nothing takes', ensemble(ONLY, head=HEAD + INPUT + INPUT.replace("IN", "MORE") + OUTPUT),
     [((4, 9), 'input[1].name', "ensemble input 'MORE' for ensemble m' is not used", "no step's 'input_map' has it as value")]),
    ('an output that nothing gives', ensemble(ONLY, head=HEAD + INPUT + OUTPUT + OUTPUT.replace("OUT", "MORE")),
     [((5, 10), 'output[1].name', "ensemble output 'MORE' for ensemble m' is not used", "no step's 'output_map' has it as value")]),
    ('an output that is not written', ensemble(step([("i", "IN")], [("o", "mid")]), step([("i", "OUT")], [("o", "end")])),
     [((4, 10), 'output[0].name', "output 'OUT' for ensemble 'm' is not written", "follow it back: each tensor is an input of the ensemble, or in one step's 'output_map'"), ((7, 80), 'ensemble_scheduling.step[1].output_map["o"]', "ensemble tensor 'end' is unused in ensemble 'm'", 'nothing that comes from the inputs gives it a value'), ((6, 79), 'ensemble_scheduling.step[0].output_map["o"]', "ensemble tensor 'mid' is unused in ensemble 'm'", "no step and no output takes it: leave it out of the 'output_map'")]),
    ('an output that hangs on nothing', ensemble(step([("i", "IN"), ("j", "lost")], [("o", "OUT")])),
     [((4, 10), 'output[0].name', "output 'OUT' for ensemble 'm' is not written: at least one of its depending tensors, 'lost', is not connected", "follow it back: each tensor is an input of the ensemble, or in one step's 'output_map'"), ((6, 79), 'ensemble_scheduling.step[0].input_map["j"]', "ensemble tensor 'lost' is unused in ensemble 'm'", 'nothing that comes from the inputs gives it a value')]),
    ('a cycle of two steps', ensemble(step([("i", "IN"), ("j", "b")], [("o", "a")]), step([("i", "a")], [("o", "b"), ("p", "OUT")])),
     [((4, 10), 'output[0].name', "output 'OUT' for ensemble 'm' is not written: at least one of its depending tensors, 'a', is not connected", "follow it back: each tensor is an input of the ensemble, or in one step's 'output_map'"), ((6, 113), 'ensemble_scheduling.step[0].output_map["o"]', "ensemble tensor 'a' is unused in ensemble 'm'", 'nothing that comes from the inputs gives it a value'), ((6, 79), 'ensemble_scheduling.step[0].input_map["j"]', "ensemble tensor 'b' is unused in ensemble 'm'", 'nothing that comes from the inputs gives it a value')]),
    ('a tensor that nothing takes', ensemble(step([("i", "IN")], [("o", "OUT"), ("p", "spare")])),
     [((6, 116), 'ensemble_scheduling.step[0].output_map["p"]', "ensemble tensor 'spare' is unused in ensemble 'm'", "no step and no output takes it: leave it out of the 'output_map'")]),
    ('a tensor that nothing gives', ensemble(ONLY, step([("i", "none")], [("o", "spare")])),
     [((7, 44), 'ensemble_scheduling.step[1].input_map["i"]', "ensemble tensor 'none' is unused in ensemble 'm'", 'nothing that comes from the inputs gives it a value'), ((7, 81), 'ensemble_scheduling.step[1].output_map["o"]', "ensemble tensor 'spare' is unused in ensemble 'm'", 'nothing that comes from the inputs gives it a value')]),
    ('an input without a type', ensemble(ONLY, head=HEAD + 'input { name: "IN" dims: 4 }\n' + OUTPUT),
     [((3, 1), 'input[0].data_type', "model input 'IN' must specify 'data_type' for m", 'such as data_type: TYPE_FP32')]),
    ('a cache of a decoupled one', ensemble(ONLY, more="model_transaction_policy { decoupled: true }\nresponse_cache { enable: true }"),
     [((9, 18), 'response_cache.enable', "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable the response cache.", "leave 'response_cache' out")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "errors"), [pytest.param(*row[1:], id=row[0]) for row in BROKEN])
def test_a_mistake_is_told_with_its_text_and_place(load, errors_of, text, errors):
    loaded = load(text, files={"1/.keep": b""})
    assert errors_of(loaded) == errors
    assert loaded.reason == f"Invalid argument: {errors[0][2]}"


def test_an_ensemble_without_a_mistake_can_be_served(load):
    loaded = load(ensemble(ONLY), files={"1/.keep": b""})
    assert loaded.ok
    (spec,) = loaded.specs
    assert (spec.platform, spec.backend, spec.instances, spec.depends_on) == ("ensemble", "", (), ("x",))


def test_an_ensemble_needs_a_version_directory_too(load):
    loaded = load(ensemble(ONLY), files={"labels.txt": b""})
    (problem,) = loaded.errors
    assert problem.message == "at least one version must be available under the version policy of model 'm'"
    assert problem.hint == "an ensemble needs a numbered directory too, such as 1/, which may be empty"
