"""Valid configurations, and the specifications they become."""

from pathlib import Path

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.hardware.gpus import GpuMemory
from actors.values.specs import (
    ControlKind,
    ControlSpec,
    Direct,
    DirectStrategy,
    DynamicBatching,
    InputSpec,
    InstanceSpec,
    OldestStrategy,
    OutputSpec,
    Probe,
    QueueBounds,
    QueuePolicy,
    RateLimit,
    Residency,
    Resource,
    Retry,
    TimeoutAction,
)
from actors.values.traffic import TrafficPlan
from engine.config.load import load_model_config
from engine.config.parse import parse
from engine.config.translate import depends_on

IO = (
    'input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ] '
    'output [ { name: "S" data_type: TYPE_FP32 dims: [ 4 ] } ] '
)
ONNX = 'backend: "onnxruntime" max_batch_size: 8 ' + IO
PYTHON = 'backend: "python" ' + IO
PYTORCH = 'backend: "pytorch" max_batch_size: 4 ' + IO


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


def buckets(numbers):
    family = 'family: "nv_inference_first_response_histogram_ms"'
    return f"metric_control {{ metric_identifier {{ {family} }} histogram_options {{ buckets: {numbers} }} }}"


# (id, configuration, what of the specification to look at, its value)
VALID = [
    ("the whole minimum", ONNX, lambda spec: (spec.name, spec.version, spec.backend, spec.platform, spec.artifact),
     ("m", 1, "onnxruntime", "onnxruntime_onnx", "model.onnx")),
    ("a platform that is the backend's name", PYTHON, lambda spec: (spec.platform, spec.artifact), ("python", "model.py")),
    ("an inferred backend", IO, lambda spec: (spec.backend, spec.artifact), ("onnxruntime", "model.onnx")),
    ("a discovered torch model", 'platform: "pytorch_libtorch" ' + IO, lambda spec: (spec.backend, spec.artifact),
     ("pytorch", "model.pt")),
    ("a third party's backend", 'platform: "my_platform" ' + IO, lambda spec: (spec.backend, spec.artifact),
     ("mine", "model.mine")),
    ("another file name", ONNX + 'default_model_filename: "a.onnx"', lambda spec: spec.artifact, "a.onnx"),
    ("no batches", IO, lambda spec: (spec.max_batch_size, spec.batches), (0, False)),
    ("batches", ONNX, lambda spec: (spec.max_batch_size, spec.batches), (8, True)),
    ("the change from one version to the next",
     ONNX + parameter("tritium.load_timeout", "9") + parameter("tritium.drain_timeout", "4") + parameter("tritium.probe", "off"),
     lambda spec: (spec.load_timeout, spec.drain_timeout, spec.probe), (9.0, 4.0, Probe.OFF)),
    ("readiness", ONNX + parameter("tritium.probe_interval", "0.5") + parameter("tritium.essential", "false"),
     lambda spec: (spec.probe_interval, spec.essential), (0.5, False)),
    ("residency", ONNX + parameter("tritium.residency", "pinned"), lambda spec: spec.residency, Residency.PINNED),
    ("traffic",
     ONNX + "version_policy { all { } } " + parameter("tritium.traffic", '{\\"weights\\": {\\"1\\": 1}}'),
     lambda spec: spec.traffic, TrafficPlan(weights={1: 1.0})),
    ("what is not said of all this", ONNX,
     lambda spec: (spec.load_timeout, spec.drain_timeout, spec.probe, spec.probe_interval, spec.essential, spec.residency,
                   spec.traffic, spec.depends_on),
     (0.0, 30.0, Probe.COMPARE, 0.0, True, Residency.ALWAYS, None, ())),
    ("no scheduler", ONNX, lambda spec: spec.scheduling, Direct()),
    ("a dynamic batcher", ONNX + "dynamic_batching { }", lambda spec: spec.scheduling,
     DynamicBatching(preferred_batch_sizes=(8,))),
    ("microseconds", ONNX + "dynamic_batching { preferred_batch_size: [ 8, 4, 8 ] max_queue_delay_microseconds: 1500 }",
     lambda spec: spec.scheduling, DynamicBatching(preferred_batch_sizes=(4, 8), max_queue_delay=0.0015)),
    ("levels without number", ONNX + f"dynamic_batching {{ priority_levels: {2**64 - 1} default_priority_level: {2**64 - 2}"
     f" priority_queue_policy {{ key: {2**64 - 1} value {{ max_queue_size: 7 }} }} }}",
     lambda spec: spec.scheduling, DynamicBatching(preferred_batch_sizes=(8,), priority_levels=2**64 - 1, default_priority_level=2**64 - 2,
                                                   priority_queue_policies={2**64 - 1: QueuePolicy(max_queue_size=7)})),
    ("ordering", ONNX + "dynamic_batching { preserve_ordering: true }", lambda spec: spec.scheduling.preserve_ordering, True),
    ("queue policies",
     ONNX + "dynamic_batching { priority_levels: 2 default_priority_level: 2"
     " default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 3 allow_timeout_override: true }"
     " priority_queue_policy { key: 1 value { max_queue_size: 5 } } }",
     lambda spec: spec.scheduling,
     DynamicBatching(
         preferred_batch_sizes=(8,),
         priority_levels=2,
         default_priority_level=2,
         default_queue_policy=QueuePolicy(
             timeout_action=TimeoutAction.DELAY, default_timeout=3e-06, allow_timeout_override=True
         ),
         priority_queue_policies={1: QueuePolicy(max_queue_size=5)},
     )),
    ("inputs",
     'backend: "python" max_batch_size: 1 input [ { name: "T" data_type: TYPE_STRING dims: [ -1, 2 ] optional: true }, '
     '{ name: "R" data_type: TYPE_BF16 dims: 1 reshape { } allow_ragged_batch: true } ] '
     'output { name: "S" data_type: TYPE_BOOL dims: [ 2, 3 ] reshape { shape: 6 } }',
     lambda spec: (spec.inputs, spec.outputs),
     (
         (
             InputSpec(name="T", datatype=DataType.BYTES, dims=(-1, 2), optional=True),
             InputSpec(name="R", datatype=DataType.BF16, dims=(1,), reshape=(), ragged=True),
         ),
         (OutputSpec(name="S", datatype=DataType.BOOL, dims=(2, 3), reshape=(6,)),),
     )),
    ("what others are made from",
     ONNX + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_FP32 '
     'source_input: "A" } batch_output { target_name: "S" '
     'kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "A" }',
     lambda spec: (spec.inputs[0].feeds, spec.outputs[0].scattered), (True, True)),
    ("a format", 'backend: "python" input { name: "I" data_type: TYPE_UINT8 format: FORMAT_NCHW dims: [ 3, 2, 2 ] } '
     'output { name: "S" data_type: TYPE_FP32 dims: 1 }', lambda spec: spec.inputs[0].dims, (3, 2, 2)),
    ("metric tags", ONNX + 'metric_tags { key: "team" value: "vision" }', lambda spec: spec.metric_tags, {"team": "vision"}),
    ("buckets of the first response's histogram", ONNX + f"model_metrics {{ {buckets('9')} {buckets('[ 0.5, 20 ]')} }}",
     lambda spec: spec.first_response_buckets, (0.5, 20.0)),
    ("no buckets", ONNX, lambda spec: spec.first_response_buckets, ()),
    ("operator libraries", ONNX + 'model_operations { op_library_filename: "ops.so" }',
     lambda spec: b'"op_library_filename":["ops.so"]' in spec.config_json, True),
    ("parameters", ONNX + parameter("b", "2") + parameter("a", "1"), lambda spec: spec.parameters, {"a": "1", "b": "2"}),
    ("a retry", PYTHON + parameter("tritium.retry", "always"), lambda spec: spec.retry, Retry.ALWAYS),
    ("no retry", PYTHON, lambda spec: spec.retry, Retry.NEVER),
    ("a pure backend", ONNX, lambda spec: spec.retry, Retry.ALWAYS),
    ("threads", ONNX + parameter("tritium.threads", "2"), lambda spec: spec.threads, 2),
    ("isolation", ONNX + parameter("tritium.isolation", "thread"), lambda spec: spec.isolation, "thread"),
    ("an execution timeout", ONNX + parameter("tritium.execution_timeout", "0.25"), lambda spec: spec.execution_timeout, 0.25),
    ("queue bounds", ONNX + parameter("tritium.queue.max_requests", "9"), lambda spec: spec.queue_bounds, QueueBounds(requests=9)),
    ("mixed precision", PYTORCH + parameter("tritium.amp", "bf16"), lambda spec: spec.parameters["tritium.amp"], "bf16"),
    ("rate limits", ONNX + 'instance_group { rate_limiter { resources [ { name: "R" count: 4 }, { name: "S" global: true count: 1 } ] priority: 2 } }',
     lambda spec: spec.instances[0].rate_limit, RateLimit(resources=(Resource(name="R", count=4), Resource(name="S", count=1, shared=True)), priority=2)),
    ("a host policy", ONNX + 'instance_group { host_policy: "p" }', lambda spec: spec.instances[0].host_policy, "p"),
    ("a passive group", ONNX + "instance_group [ { count: 2 }, { passive: true count: 1 } ]",
     lambda spec: [(each.name, each.passive) for each in spec.instances], [("m_0_0", False), ("m_0_1", False), ("m_1_0", True)]),
    ("a graph level", ONNX + "optimization { graph { level: 1 } eager_batching: true }",
     lambda spec: b'"graph":{"level":1}' in spec.config_json, True),
]  # fmt: skip


@pytest.mark.parametrize(("text", "look", "expected"), [pytest.param(*row[1:], id=row[0]) for row in VALID])
def test_a_valid_configuration_becomes_a_specification(load, text, look, expected):
    loaded = load(text)
    assert (loaded.problems, loaded.reason) == ((), "")
    (spec,) = loaded.specs
    assert look(spec) == expected


# (id, configuration, GPUs, (name, kind, device, lanes) of each worker)
INSTANCES = [
    ("onnxruntime shares one worker by default", ONNX, 0, [("m_0", "CPU", 0, 2)]),
    ("a group without a count shares one worker", ONNX + "instance_group { kind: KIND_CPU }", 0, [("m_0_0", "CPU", 0, 2)]),
    ("a written count is a count of workers", ONNX + "instance_group { count: 2 }", 0,
     [("m_0_0", "CPU", 0, 1), ("m_0_1", "CPU", 0, 1)]),
    ("a written count may share", ONNX + "instance_group { count: 3 } " + parameter("tritium.worker", "model"), 0,
     [("m_0_0", "CPU", 0, 3)]),
    ("an unwritten count may not share", ONNX + parameter("tritium.worker", "instance"), 0,
     [("m_0", "CPU", 0, 1), ("m_1", "CPU", 0, 1)]),
    ("python has one worker", PYTHON, 0, [("m_0", "CPU", 0, 1)]),
    ("python has a worker an instance", PYTHON + "instance_group { count: 2 }", 0,
     [("m_0_0", "CPU", 0, 1), ("m_0_1", "CPU", 0, 1)]),
    ("python stays on the CPU", PYTHON, 1, [("m_0", "CPU", 0, 1)]),
    ("a GPU group is on every GPU", PYTORCH, 2, [("m_0", "GPU", 0, 1), ("m_1", "GPU", 1, 1)]),
    ("a GPU group has its count on each GPU", PYTORCH + "instance_group { kind: KIND_GPU count: 2 gpus: [ 1, 0 ] }", 2,
     [("m_0_0", "GPU", 1, 1), ("m_0_1", "GPU", 1, 1), ("m_0_2", "GPU", 0, 1), ("m_0_3", "GPU", 0, 1)]),
    ("a shared worker for each GPU",
     PYTORCH + "instance_group { kind: KIND_GPU count: 2 } " + parameter("tritium.worker", "model"), 2,
     [("m_0_0", "GPU", 0, 2), ("m_0_1", "GPU", 1, 2)]),
    ("groups of one name count on", PYTORCH + 'instance_group { name: "g" count: 1 } instance_group { name: "g" count: 1 }', 0,
     [("g_0", "CPU", 0, 1), ("g_1", "CPU", 0, 1)]),
    ("a model kind", PYTORCH + "instance_group { kind: KIND_MODEL count: 1 }", 2, [("m_0_0", "MODEL", 0, 1)]),
    ("each group decides for itself", ONNX + "instance_group { count: 1 } instance_group { }", 0,
     [("m_0_0", "CPU", 0, 1), ("m_1_0", "CPU", 0, 2)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "gpus", "expected"), [pytest.param(*row[1:], id=row[0]) for row in INSTANCES]
)
def test_instance_groups_become_workers(load, text, gpus, expected):
    (spec,) = load(text, gpus=gpus).specs
    assert spec.instances == tuple(
        InstanceSpec(name=name, kind=kind, device_id=device, lanes=lanes)
        for name, kind, device, lanes in expected
    )


def test_a_group_whose_gpu_is_open_has_its_count_in_all(load):
    text = PYTORCH + "instance_group { kind: KIND_GPU count: 2 gpus: [ 1, 0 ] } "
    (spec,) = load(text + parameter("tritium.gpu_placement", "free_memory"), gpus=2).specs
    assert spec.instances == tuple(
        InstanceSpec(name=f"m_0_{number}", kind="GPU", device_id=1, candidates=(1, 0)) for number in range(2)
    )


def test_on_a_machine_without_gpus_none_is_open(load):
    (spec,) = load(PYTORCH + parameter("tritium.gpu_placement", "free_memory"), gpus=0).specs
    assert {(each.kind, each.candidates) for each in spec.instances} == {("CPU", ())}


def test_an_instance_may_see_its_own_gpu_only_and_take_a_part_of_it(load):
    settings = parameter("tritium.gpus_seen", "own") + parameter("tritium.gpu_memory", "50%")
    (spec,) = load(PYTORCH + settings + parameter("tritium.gpu_compute", "30"), gpus=1).specs
    assert [each.own_gpu for each in spec.instances] == [True]
    assert (spec.gpu_memory, spec.gpu_compute) == (GpuMemory(share=0.5), 30)


def test_each_chosen_version_gets_a_specification(load):
    files = {f"{number}/model.onnx": b"" for number in (1, 2, 10)}
    loaded = load(ONNX + "version_policy { latest { num_versions: 2 } }", files=files)
    assert loaded.versions == (2, 10)
    assert [(spec.version, spec.version_directory.name) for spec in loaded.specs] == [(2, "2"), (10, "10")]
    assert {spec.model_directory for spec in loaded.specs} == {loaded.path.parent}


def test_a_backend_s_own_settings_go_before_those_for_all(load):
    settings = {"": {"a": "1", "b": "1"}, "onnxruntime": {"b": "2"}, "python": {"c": "3"}}
    (spec,) = load(ONNX, backend_settings=settings).specs
    assert spec.settings == {"a": "1", "b": "2"}


def test_directories_are_absolute(write_model, backends, monkeypatch):
    directory = write_model(config=ONNX)
    monkeypatch.chdir(directory.parent)
    (spec,) = load_model_config(Path("m"), backends=backends).specs
    assert (spec.model_directory, spec.version_directory) == (directory, directory / "1")


class TestLabels:
    """`label_filename`."""

    TEXT = (
        'backend: "onnxruntime" input { name: "A" data_type: TYPE_FP32 dims: 1 } '
        'output { name: "S" data_type: TYPE_FP32 dims: 3 label_filename: "%s" }'
    )

    def test_one_label_a_line(self, load):
        loaded = load(
            self.TEXT % "labels.txt", files={"1/model.onnx": b"", "labels.txt": "cat\nsea lion\r\n\ndög\n"}
        )
        assert loaded.specs[0].outputs[0].labels == ("cat", "sea lion", "", "dög")

    @pytest.mark.parametrize("name", ["../labels.txt", "a/../../labels.txt", "/etc/hostname", "out.txt"])
    def test_a_file_elsewhere_is_refused(self, write_model, backends, name):
        directory = write_model(config=self.TEXT % name)
        (directory.parent / "labels.txt").write_text("cat\n")
        (directory / "out.txt").symlink_to(directory.parent / "labels.txt")
        loaded = load_model_config(directory, backends=backends)
        assert loaded.reason == (
            f"Unsupported: label file path '{name}' for output 'S' in model 'm' is outside model directory"
        )
        assert (loaded.errors[0].key, loaded.errors[0].line) == ("output[0].label_filename", 1)
        assert loaded.specs == ()

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            (
                {},
                "failed to read label file 'labels.txt' for output 'S' in model 'm': No such file or directory",
            ),
            (
                {"labels.txt": b"\xff"},
                "label file 'labels.txt' for output 'S' in model 'm' is not UTF-8 at byte 0",
            ),
        ],
        ids=["missing", "no text"],
    )
    def test_a_file_without_labels_is_told(self, load, files, message):
        loaded = load(self.TEXT % "labels.txt", files={"1/model.onnx": b"", **files})
        assert loaded.errors[0].message == message


# Each: a warmup input's fields, the content of its file, the message.
BROKEN_WARMUP = [
    ('data_type: TYPE_FP32 dims: 4 input_data_file: "a.raw"', b"123",
     "[request id: <id_unknown>] warmup setting expects 16 bytes, but the data provided from a.rawonly has 3 bytes"),
    ('data_type: TYPE_STRING dims: 2 input_data_file: "a.raw"', b"\x02\0\0\0hi",
     "warmup data file 'a.raw': packed BYTES tensor 'A' holds 1 elements, its shape 2"),
    ('data_type: TYPE_FP32 dims: 4 input_data_file: "b.raw"', b"",
     "failed to read warmup data file 'b.raw': No such file or directory"),
    ('data_type: TYPE_FP32 dims: 4 input_data_file: "../config.pbtxt"', b"",
     "warmup data file '../config.pbtxt' for input 'A' is outside the model's warmup directory"),
    ("data_type: TYPE_FP32 dims: [ 1000000, 1000000 ] zero_data: true", b"",
     "warmup input 'A' is larger than 1073741824 bytes"),
    ("dims: 4 zero_data: true", b"", "warmup setting expects input 'A' to have 'data_type' set"),
]  # fmt: skip


ZEROS = "data_type: TYPE_FP32 dims: 4 zero_data: true"


class TestWarmup:
    """`model_warmup` (contract, scheduling.md section 10)."""

    @staticmethod
    def text(fields, *, batch_size=2, more=""):
        return (
            ONNX + f'model_warmup {{ name: "w" batch_size: {batch_size} {more} '
            f'inputs {{ key: "A" value {{ {fields} }} }} }}'
        )

    def test_a_sample_is_batch_size_requests_of_one_item(self, load):
        loaded = load(self.text(ZEROS, batch_size=3, more="count: 5"))
        (sample,) = loaded.specs[0].warmup
        assert (sample.name, sample.count, len(sample.requests)) == ("w", 5, 3)
        (tensor,) = sample.requests[2]
        assert (tensor.name, tensor.datatype, tuple(tensor.shape)) == ("A", DataType.FP32, (1, 4))
        assert tensor.as_numpy().tolist() == [[0.0] * 4]

    def test_a_sample_of_batch_size_0_is_skipped(self, load):
        assert load(self.text("dims: -1", batch_size=0)).specs[0].warmup == ()

    @pytest.mark.parametrize(
        ("old", "new"),
        [("max_batch_size: 8", ""), ('key: "A"', 'key: "START"')],
        ids=["a model without batches", "a tensor that is no input"],
    )
    def test_where_nothing_is_batched_there_is_no_batch_dimension(self, load, old, new):
        (sample,) = load(self.text(ZEROS).replace(old, new)).specs[0].warmup
        assert (sample.count, tuple(sample.requests[0][0].shape)) == (1, (4,))

    @pytest.mark.parametrize(
        "datatype", [datatype for datatype in DataType if datatype is not DataType.BYTES]
    )
    def test_random_data_are_numbers_of_the_type(self, load, datatype):
        text = self.text(f"data_type: {datatype.config_name} dims: [ 5, 3 ] random_data: true")
        array = load(text).specs[0].warmup[0].requests[0][0].as_numpy()
        assert array.shape == (1, 5, 3)
        assert array.any()
        assert not (array != array).any()

    @pytest.mark.parametrize(
        ("fields", "content", "row"),
        [
            pytest.param("data_type: TYPE_STRING dims: 2 zero_data: true", b"", [b"", b""], id="no strings"),
            pytest.param(
                "data_type: TYPE_STRING dims: 2 random_data: true", b"", [b"", b""], id="any strings"
            ),
            pytest.param(
                'data_type: TYPE_UINT8 dims: 4 input_data_file: "a.raw"',
                bytes(range(6)),
                [0, 1, 2, 3],
                id="a file of one item, which may be longer",
            ),
            pytest.param(
                'data_type: TYPE_STRING dims: 2 input_data_file: "a.raw"',
                b"\x02\0\0\0hi\0\0\0\0",
                [b"hi", b""],
                id="a file of packed strings",
            ),
        ],
    )
    def test_each_request_has_the_same_data(self, load, fields, content, row):
        (sample,) = (
            load(self.text(fields), files={"1/model.onnx": b"", "warmup/a.raw": content}).specs[0].warmup
        )
        assert [tensor.as_numpy().tolist() for (tensor,) in sample.requests] == [[row]] * 2

    @pytest.mark.parametrize(("fields", "content", "message"), BROKEN_WARMUP)
    def test_unusable_data_keep_the_model_from_loading(self, load, fields, content, message):
        loaded = load(self.text(fields), files={"1/model.onnx": b"", "warmup/a.raw": content})
        assert loaded.errors[0].message == message
        assert loaded.errors[0].key == 'model_warmup[0].inputs["A"]'
        assert loaded.specs == ()

    def test_a_batch_size_beyond_reason_is_refused(self, load):
        loaded = load(self.text("data_type: TYPE_FP32 dims: 4 zero_data: true", batch_size=4_000_000_000))
        assert (
            loaded.errors[0].message == "warmup sample 'w' for m has batch size 4000000000, more than 65536"
        )


def test_an_ensemble_depends_on_the_models_of_its_steps_each_once():
    steps = "".join(f'step {{ model_name: "{name}" }} ' for name in "baba")
    config = parse(f"ensemble_scheduling {{ {steps} }}", Path("config.pbtxt")).config
    assert config is not None
    assert depends_on(config) == ("b", "a")


# -- `sequence_batching` as actors get it (contract, model_config.md section 4.7)


HEAD = 'name: "m"\nbackend: "python"\nmax_batch_size: 8\n'
SEQUENCE_IO = (
    'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }\n'
)


def spec_of(load, batching, more="", **files):
    loaded = load(
        f"{HEAD}{SEQUENCE_IO}sequence_batching {{ {batching} }}\n{more}",
        files={"1/model.py": b"", **{name.replace("__", "/"): data for name, data in files.items()}},
        run_model_code=False,
    )
    assert loaded.errors == ()
    [spec] = loaded.specs
    return spec, loaded.warnings


def test_nothing_written_is_the_direct_strategy_and_a_second(load):
    spec, _ = spec_of(load, "")
    assert (spec.scheduling.strategy, spec.scheduling.max_idle) == (DirectStrategy(), 1.0)
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
