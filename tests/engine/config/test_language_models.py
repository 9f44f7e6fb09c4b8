"""Configurations of language models: what is filled in, and what is refused (contract, llm.md section 3)."""

import pytest

from actors.values.specs import LanguageServing, QueuePolicy, Slo
from engine.processes.backends import BackendTraits

FILES = {"1/model.json": "{}"}
GROUP = "instance_group { count: 1 kind: KIND_MODEL }\n"


@pytest.fixture
def backends():
    return {"vllm": BackendTraits(name="vllm", language=True, concurrent=False, pure=True)}


def test_what_is_missing_is_filled_in_and_the_rest_is_kept(load):
    """Row Files: decoupled and without a batch dimension, whatever is written."""
    own = 'input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }\nmax_batch_size: 8\n'
    loaded = load(f'backend: "vllm"\n{own}{GROUP}', files=FILES)
    assert loaded.ok, loaded.problems
    (spec,) = loaded.specs
    assert (spec.decoupled, spec.max_batch_size) == (True, 0)
    assert [each.name for each in spec.inputs][:3] == ["text_input", "stream", "sampling_parameters"]
    assert {each.name: each.dims for each in spec.outputs}["num_input_tokens"] == (1,)


def test_it_is_decoupled_without_completion_too(load):
    """Where Triton's backend asks the operator to write that."""
    loaded = load(f'name: "m"\nbackend: "vllm"\n{GROUP}', files=FILES, auto_complete=False)
    assert [spec.decoupled for spec in loaded.specs] == [True]


def test_its_queue_may_have_levels_and_policies(load):
    """Those of `dynamic_batching` that are about no batch."""
    levels = """dynamic_batching {
      priority_levels: 3 default_priority_level: 2
      default_queue_policy { max_queue_size: 8 }
      priority_queue_policy { key: 1 value { default_timeout_microseconds: 500000 } } }
    """
    (spec,) = load(f'backend: "vllm"\n{GROUP}{levels}', files=FILES).specs
    assert spec.scheduling == LanguageServing(
        priority_levels=3,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(max_queue_size=8),
        priority_queue_policies={1: QueuePolicy(default_timeout=0.5)},
    )


@pytest.mark.parametrize(("said", "on"), [("true", True), ("True", True), ("false", False), ("1", False)])
def test_its_switches_are_read_as_triton_reads_them(load, said, on):
    """Rows Health and Metrics."""
    parameters = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{said}" }} }}\n'
        for key in ("ENABLE_VLLM_HEALTH_CHECK", "REPORT_CUSTOM_METRICS")
    )
    (spec,) = load(f'backend: "vllm"\n{GROUP}{parameters}', files=FILES).specs
    assert spec.scheduling == LanguageServing(health_check=on, vllm_metrics=on)


def test_its_promises_are_of_tokens(load):
    said = 'parameters { key: "tritium.slo" value { string_value: "{\\"ttft\\": 0.5}" } }'
    (spec,) = load(f'backend: "vllm"\n{GROUP}{said}', files=FILES).specs
    assert spec.slo == Slo(ttft=0.5)


@pytest.mark.parametrize(
    ("more", "key", "message"),
    [
        (
            'input { name: "image" data_type: TYPE_STRING dims: [ -1 ] }',
            "input[0]",
            "model input 'image' is none that a language model has for m",
        ),
        (
            'output { name: "text_output" data_type: TYPE_INT32 dims: [ -1 ] }',
            "output[0].data_type",
            "model output 'text_output' has the wrong data type for m",
        ),
        (
            "dynamic_batching {}",
            "dynamic_batching",
            "'dynamic_batching' is set for language model 'm', whose engine makes batches",
        ),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 1 preferred_batch_size: [ 4 ] }",
            "dynamic_batching.preferred_batch_size",
            "'dynamic_batching.preferred_batch_size' is set for language model 'm', whose engine makes"
            " batches",
        ),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
            "dynamic_batching.default_priority_level",
            "default priority level must be in range [1, 2] for m",
        ),
        (
            'parameters { key: "tritium.slo" value { string_value: "{\\"p99\\": 0.5}" } }',
            'parameters["tritium.slo"]',
            "'tritium.slo': 'p99' is set for a language model",
        ),
        (
            'model_warmup { name: "w" batch_size: 1 count: 1 inputs { key: "text_input"'
            " value { data_type: TYPE_STRING dims: [ 1 ] zero_data: true } } }",
            "model_warmup",
            "'model_warmup' is set for language model 'm', which takes no samples",
        ),
    ],
)
def test_what_a_language_model_can_not_have_is_refused(load, errors_of, more, key, message):
    told = errors_of(load(f'backend: "vllm"\n{more}\n{GROUP}', files=FILES))
    assert (key, message) in [(each[1], each[2]) for each in told], told


@pytest.mark.parametrize(
    ("said", "within"),
    [
        ({}, 60.0),
        ({"tritium.hang_within": "5"}, 5.0),
        ({"tritium.hang_within": "0"}, 0.0),
        ({"tritium.execution_timeout": "30"}, 30.0),
        ({"tritium.execution_timeout": "90"}, 60.0),
        ({"tritium.execution_timeout": "90", "tritium.hang_within": "0"}, 90.0),
    ],
)
def test_how_long_an_engine_may_be_silent(load, said, within):
    """A limit of executions holds for that, too."""
    parameters = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in said.items()
    )
    (spec,) = load(f'backend: "vllm"\n{GROUP}{parameters}', files=FILES).specs
    assert spec.scheduling.hang_within == within
