"""The argument of `auto_complete_config`: every rule of the contract, with its text."""

import re
from pathlib import Path

import pytest

from engine.worker.backends.python.triton_python_backend_utils import ModelConfig

WHERE = "auto-complete-config function for model 'm'"
X = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}


def config(**fields):
    return ModelConfig({"name": "m", "max_batch_size": 0, "input": [], "output": [], **fields})


DECOUPLED = {"decoupled": True}


@pytest.mark.parametrize(
    ("fields", "change", "expected"),
    [
        pytest.param(
            {},
            lambda made: made.as_dict().update(max_batch_size=5),
            {"max_batch_size": 5},
            id="as_dict is the configuration itself",
        ),
        pytest.param(
            {"max_batch_size": 4},
            lambda made: made.set_max_batch_size(8),
            {"max_batch_size": 8},
            id="a larger batch size replaces a smaller one",
        ),
        pytest.param(
            {},
            lambda made: made.set_dynamic_batching(),
            {"dynamic_batching": {}},
            id="dynamic batching is switched on",
        ),
        pytest.param(
            {"dynamic_batching": {"preserve_ordering": True}},
            lambda made: made.set_dynamic_batching(),
            {"dynamic_batching": {"preserve_ordering": True}},
            id="dynamic batching is left as it is",
        ),
        pytest.param(
            {},
            lambda made: (made.add_input({**X, "optional": True}), made.add_output(X)),
            {"input": [{**X, "optional": True}], "output": [X]},
            id="new tensors are appended",
        ),
        pytest.param(
            {"input": [{"name": "X", "data_type": "TYPE_INVALID", "dims": [], "reshape": {"shape": []}}]},
            lambda made: made.add_input(X),
            {"input": [{**X, "reshape": {"shape": []}}]},
            id="a configured tensor is completed in place",
        ),
        pytest.param(
            {"output": [{**X, "label_filename": "labels.txt"}]},
            lambda made: made.add_output({**X, "dims": (4,)}),
            {"output": [{**X, "dims": (4,), "label_filename": "labels.txt"}]},
            id="a configured tensor may say the same",
        ),
        pytest.param(
            {},
            lambda made: [made.set_model_transaction_policy(DECOUPLED) for _ in range(2)],
            {"model_transaction_policy": DECOUPLED},
            id="a policy is set where there is none",
        ),
        pytest.param(
            {},
            lambda made: made.set_model_transaction_policy({}),
            {"model_transaction_policy": {}},
            id="a policy of nothing says nothing",
        ),
    ],
)
def test_a_configuration_is_completed(fields, change, expected):
    made = config(**fields)
    change(made)
    assert {key: made.as_dict()[key] for key in expected} == expected


@pytest.mark.parametrize("size", [3, 0])
def test_a_smaller_batch_size_contradicts_the_configuration(size):
    with pytest.raises(
        ValueError,
        match=f"^configuration specified max_batch_size 4, but in {WHERE} specified max_batch_size {size}$",
    ):
        config(max_batch_size=4).set_max_batch_size(size)


@pytest.mark.parametrize("found", ["sequence_batching", "ensemble_scheduling"])
def test_another_scheduler_contradicts_dynamic_batching(found):
    with pytest.raises(
        ValueError, match=f"^Configuration specified scheduling_choice as '{found}', but {WHERE} tries to set"
    ):
        config(**{found: {}}).set_dynamic_batching()


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


# -- each rule in `docs/python_backend/rules.md` names tests that there are


ROOT = Path(__file__).parents[4]
DOCUMENT = (ROOT / "docs" / "python_backend" / "rules.md").read_text()
ROWS = [line for line in DOCUMENT.splitlines() if line.startswith("| ") and not line.startswith("| rule ")]
MODULES = {path.stem: path for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0].strip("| ")[:60])
def test_a_rule_is_proven_by_tests_that_there_are(row):
    named = re.findall(r"`(test_\w+)::(test_\w+)`", row)
    assert named
    for module, test in named:
        assert re.search(rf"^(async )?def {test}\(", MODULES[module].read_text(), re.MULTILINE), test


def test_no_row_was_overlooked():
    assert len(ROWS) > 80
