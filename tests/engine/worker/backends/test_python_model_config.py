"""The argument of `auto_complete_config`: every rule of the contract, with its text."""

import re
from pathlib import Path

import pytest

from engine.worker.backends.python.triton_python_backend_utils import ModelConfig

WHERE = "auto-complete-config function for model 'm'"
X = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}


def config(**fields):
    return ModelConfig({"name": "m", "max_batch_size": 0, "input": [], "output": [], **fields})


def test_as_dict_is_the_configuration_itself():
    made = config()
    made.as_dict()["max_batch_size"] = 5
    assert made.as_dict()["max_batch_size"] == 5


def test_a_larger_batch_size_replaces_a_smaller_one():
    made = config(max_batch_size=4)
    made.set_max_batch_size(8)
    assert made.as_dict()["max_batch_size"] == 8


@pytest.mark.parametrize("size", [3, 0])
def test_a_smaller_batch_size_contradicts_the_configuration(size):
    with pytest.raises(
        ValueError,
        match=f"^configuration specified max_batch_size 4, but in {WHERE} specified max_batch_size {size}$",
    ):
        config(max_batch_size=4).set_max_batch_size(size)


def test_dynamic_batching_is_switched_on_and_left_as_it_is():
    made = config()
    made.set_dynamic_batching()
    assert made.as_dict()["dynamic_batching"] == {}
    made = config(dynamic_batching={"preserve_ordering": True})
    made.set_dynamic_batching()
    assert made.as_dict()["dynamic_batching"] == {"preserve_ordering": True}


@pytest.mark.parametrize("found", ["sequence_batching", "ensemble_scheduling"])
def test_another_scheduler_contradicts_dynamic_batching(found):
    with pytest.raises(
        ValueError, match=f"^Configuration specified scheduling_choice as '{found}', but {WHERE} tries to set"
    ):
        config(**{found: {}}).set_dynamic_batching()


def test_new_tensors_are_appended():
    made = config()
    made.add_input({**X, "optional": True})
    made.add_output(X)
    assert made.as_dict()["input"] == [{**X, "optional": True}]
    assert made.as_dict()["output"] == [X]


def test_a_configured_tensor_is_completed_in_place():
    made = config(input=[{"name": "X", "data_type": "TYPE_INVALID", "dims": [], "reshape": {"shape": []}}])
    made.add_input(X)
    assert made.as_dict()["input"] == [{**X, "reshape": {"shape": []}}]


def test_a_configured_tensor_may_say_the_same():
    made = config(output=[{**X, "label_filename": "labels.txt"}])
    made.add_output({**X, "dims": (4,)})
    assert made.as_dict()["output"][0]["label_filename"] == "labels.txt"


@pytest.mark.parametrize(
    ("method", "given", "text"),
    [
        ("add_input", {**X, "shape": 1},
         f"input 'X' in {WHERE} contains property other than 'name', 'data_type', 'dims' and 'optional'."),
        ("add_output", {**X, "optional": True},
         f"output 'X' in {WHERE} contains property other than 'name', 'data_type' and 'dims'."),
        ("add_input", {"data_type": "TYPE_FP32", "dims": [1]}, f"input in {WHERE} is missing 'name' property."),
        ("add_output", {"data_type": "TYPE_FP32", "dims": [1]}, f"output in {WHERE} is missing 'name' property."),
        ("add_input", {"name": "X", "dims": [1]}, f"input 'X' in {WHERE} is missing 'data_type' property."),
        ("add_output", {"name": "X", "data_type": "TYPE_FP32"}, f"output 'X' in {WHERE} is missing 'dims' property."),
        ("add_input", {"name": "A", "data_type": "TYPE_INT8", "dims": [4]},
         "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'A', model provides TYPE_INT8"),
        ("add_output", {"name": "B", "data_type": "TYPE_INT8", "dims": [4]},
         "unable to load model 'm', configuration expects datatype TYPE_FP32 for output 'B', model provides TYPE_INT8"),
        ("add_input", {"name": "A", "data_type": "TYPE_FP32", "dims": [5, -1]},
         "model 'm', tensor 'A': the model expects dims [5, -1] but the model configuration specifies dims [4]"),
        ("add_input", {"name": "A", "data_type": "TYPE_FP32", "dims": [4], "optional": True},
         "model 'm', tensor 'A': the model expects optional True but the model configuration specifies optional False"),
        ("set_model_transaction_policy", {"decoupled": True, "x": 1},
         f"model transaction property in {WHERE} contains property other than 'decoupled'."),
        ("set_model_transaction_policy", {"decoupled": True},
         "trying to change decoupled property in auto-complete-config for model 'm', which is already set to 'False'."),
    ],
)  # fmt: skip
def test_a_contradiction_has_the_contract_s_text_and_changes_nothing(method, given, text):
    made = config(
        input=[{"name": "A", "data_type": "TYPE_FP32", "dims": [4], "optional": False}],
        output=[{"name": "B", "data_type": "TYPE_FP32", "dims": [4]}],
        model_transaction_policy={"decoupled": False},
    )
    before = repr(made.as_dict())
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        getattr(made, method)(given)
    assert repr(made.as_dict()) == before


def test_the_transaction_policy_is_set_where_there_is_none():
    made = config()
    made.set_model_transaction_policy({"decoupled": True})
    made.set_model_transaction_policy({"decoupled": True})
    assert made.as_dict()["model_transaction_policy"] == {"decoupled": True}


def test_a_policy_of_nothing_says_nothing():
    made = config()
    made.set_model_transaction_policy({})
    assert made.as_dict()["model_transaction_policy"] == {}


# -- each rule in `docs/python_backend.md` names tests that there are


ROOT = Path(__file__).parents[4]
DOCUMENT = (ROOT / "docs" / "python_backend.md").read_text()
TABLES = DOCUMENT.partition("## What proves it")[2]
ROWS = [line for line in TABLES.splitlines() if line.startswith("| ") and not line.startswith("| rule ")]
MODULES = {path.stem: path for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0].strip("| ")[:60])
def test_a_rule_is_proven_by_tests_that_there_are(row):
    named = re.findall(r"`(test_\w+)::(test_\w+)`", row)
    assert named
    for module, test in named:
        assert re.search(rf"^(async )?def {test}\(", MODULES[module].read_text(), re.MULTILINE), test


def test_no_row_was_overlooked():
    assert len(ROWS) > 80
