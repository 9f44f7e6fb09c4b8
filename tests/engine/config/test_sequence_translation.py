"""`sequence_batching` as actors get it (contract, model_config.md section 4.7)."""

import numpy as np

from actors.values.datatypes import DataType
from actors.values.specs import ControlKind, ControlSpec, DirectStrategy, OldestStrategy

HEAD = 'name: "m"\nbackend: "python"\nmax_batch_size: 8\n'
IO = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }\n'


def spec_of(load, batching, more="", **files):
    loaded = load(
        f"{HEAD}{IO}sequence_batching {{ {batching} }}\n{more}",
        files={"1/model.py": b"", **{name.replace("__", "/"): data for name, data in files.items()}},
        run_model_code=False,
    )
    assert loaded.errors == ()
    [spec] = loaded.specs
    return spec, loaded.warnings


def test_nothing_written_is_the_direct_strategy_and_a_second(load):
    spec, _ = spec_of(load, "")
    assert spec.scheduling.strategy == DirectStrategy()
    assert spec.scheduling.max_idle == 1.0
    assert not spec.scheduling.checkpoint


def test_durations_are_seconds(load):
    spec, _ = spec_of(
        load,
        "max_sequence_idle_microseconds: 2500000 oldest { max_candidate_sequences: 9 preferred_batch_size: [ 4, 2 ]"
        " max_queue_delay_microseconds: 500 preserve_ordering: true }",
    )
    assert spec.scheduling.max_idle == 2.5
    assert spec.scheduling.strategy == OldestStrategy(
        max_candidate_sequences=9,
        preferred_batch_sizes=(2, 4),
        max_queue_delay=0.0005,
        preserve_ordering=True,
    )


def test_the_model_is_told_of_controls_and_states_after_its_own_tensors(load):
    spec, _ = spec_of(
        load,
        'control_input { name: "S" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ -1, 2 ] } }'
        'control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'
        'state { input_name: "I" output_name: "Y" data_type: TYPE_FP32 dims: 1 }'
        'state { input_name: "J" output_name: "K" data_type: TYPE_STRING dims: [ -1, 2 ] }',
    )
    assert spec.scheduling.controls == (
        ControlSpec(name="S", kind=ControlKind.START, datatype=DataType.FP32, false_true=(-1, 2)),
        ControlSpec(name="C", kind=ControlKind.CORRID, datatype=DataType.BYTES),
    )
    assert [each.name for each in spec.backend_inputs] == ["X", "S", "C", "I", "J"]
    assert [each.name for each in spec.backend_outputs] == ["Y", "K"]
    assert spec.state_names == ("Y", "K")
    texts = spec.scheduling.states[1].initial
    assert texts.as_numpy().tolist() == [[b"", b""]]  # a dimension of any size is 1


def test_a_state_begins_with_its_file(load):
    spec, _ = spec_of(
        load,
        'state { input_name: "I" output_name: "O" data_type: TYPE_INT32 dims: -1'
        ' initial_state { name: "n" data_type: TYPE_INT32 dims: 2 data_file: "two" } }',
        'parameters { key: "tritium.checkpoint" value { string_value: "true" } }',
        initial_state__two=np.array([3, 4], np.int32).tobytes(),
    )
    assert spec.scheduling.states[0].initial.as_numpy().tolist() == [3, 4]
    assert spec.scheduling.checkpoint


def test_what_the_server_s_own_memory_makes_needless_is_a_warning(load):
    _, warnings = spec_of(
        load,
        'state { input_name: "I" output_name: "O" data_type: TYPE_INT32 dims: 1 use_same_buffer_for_input_output: true }',
    )
    assert [each.key for each in warnings] == ["sequence_batching.state[0].use_same_buffer_for_input_output"]
