"""Mistakes in `config.pbtxt`: each with its exact text (contract, model_config.md), its field and its place."""

import pytest

from actors.messages.errors import ErrorCode

INPUT = 'input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
OUTPUT = 'output [ { name: "S" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
HEAD = 'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 8\n'
REST = INPUT + OUTPUT  # lines 4 and 5, so that what a case adds begins on line 6


def with_input(fields):
    return f"{HEAD}input [ {{ {fields} }} ]\n{OUTPUT}"


def with_output(fields):
    return f"{HEAD}{INPUT}output [ {{ {fields} }} ]\n"


def plus(text):
    return HEAD + REST + text


DIM_TEXT = "dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
RESHAPE_TEXT = "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"
FIRST_RESPONSE = (
    'model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" }'
    " histogram_options { %s } } }"
)
SIZE = "has different size for dims and reshape"
GROUP = "instance group G of model m"

# (id, text, message of the first error, key, (line, column))
BROKEN = [
    ("the directory is called otherwise", HEAD.replace('"m"', '"n"') + REST,
     "unexpected directory name 'm' for model 'n', directory name must equal model name", "name", (1, 1)),
    ("an unknown platform without a backend", 'platform: "caffe"\n' + REST,
     "unexpected platform type 'caffe' for m", "platform", (1, 1)),
    ("a platform of another backend", 'backend: "onnxruntime" platform: "pytorch_libtorch"\n' + REST,
     "unexpected 'platform' and 'backend' pair, got:pytorch_libtorch, onnxruntime", "platform", (1, 24)),
    ("libtorch beside pytorch", 'backend: "pytorch"\nplatform: "libtorch"\n' + REST,
     "unexpected 'platform' and 'backend' pair, got:libtorch, pytorch", "platform", (2, 1)),
    ("an unknown backend", 'backend: "onnxrunntime"\n' + REST,
     "unable to find backend library for backend 'onnxrunntime', try specifying runtime on the model configuration.",
     "backend", (1, 1)),
    ("a backend that can't be imported", 'backend: "broken"\n' + REST,
     "unable to find backend library for backend 'broken', try specifying runtime on the model configuration.",
     "backend", (1, 1)),
    ("a negative batch size", HEAD.replace("8", "-1") + REST,
     "'max_batch_size' must be non-negative value for m", "max_batch_size", (3, 1)),
    ("a preferred size of zero", plus("dynamic_batching { preferred_batch_size: [ 4, 0 ] }"),
     "dynamic batching preferred size must be positive for m", "dynamic_batching.preferred_batch_size", (6, 20)),
    ("a preferred size beyond the batch", plus("dynamic_batching {\n  preferred_batch_size: 9 }"),
     "dynamic batching preferred size must be <= max batch size for m", "dynamic_batching.preferred_batch_size", (7, 3)),
    ("no default priority level", plus("dynamic_batching { priority_levels: 3 }"),
     "default priority level must be in range [1, 3] for m", "dynamic_batching.default_priority_level", (6, 1)),
    ("a default priority level too high",
     plus("dynamic_batching { priority_levels: 3 default_priority_level: 4 }"),
     "default priority level must be in range [1, 3] for m", "dynamic_batching.default_priority_level", (6, 39)),
    ("a policy of no level",
     plus("dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } } }"),
     "priority queue policy must have priority level in range [1, 2] for m", "dynamic_batching.priority_queue_policy", (6, 65)),
    ("ordering with priorities",
     plus("dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }"),
     "Only one priority level is allowed when 'preserve_ordering' is true for m", "dynamic_batching.preserve_ordering", (6, 20)),
    ("ordering with delayed timeouts",
     plus("dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 } }"),
     "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
     "dynamic_batching.preserve_ordering", (6, 20)),
    ("a metric without identifier", plus("model_metrics { metric_control { histogram_options { buckets: 1 } } }"),
     "metric control must specify 'metric_identifier'", "model_metrics.metric_control[0]", (6, 17)),
    ("a metric without family", plus("model_metrics { metric_control { metric_identifier { } histogram_options { buckets: 1 } } }"),
     "metric identifier must specify non-empty 'family'", "model_metrics.metric_control[0]", (6, 17)),
    ("a metric without options",
     plus('model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" } } }'),
     "metric control must specify 'histogram_options'", "model_metrics.metric_control[0]", (6, 17)),
    ("a histogram without buckets",
     plus('model_metrics { metric_control { metric_identifier { family: "x" } histogram_options { } } }'),
     "histogram options must specify non-empty 'buckets'", "model_metrics.metric_control[0]", (6, 17)),
    ("a histogram whose buckets do not ascend", plus(FIRST_RESPONSE % "buckets: [ 1, 5, 5 ]"),
     "histogram options must specify finite, ascending 'buckets' for m",
     "model_metrics.metric_control[0].histogram_options.buckets", (6, 127)),
    ("a histogram with the bucket that is always there", plus(FIRST_RESPONSE % "buckets: [ 1, inf ]"),
     "histogram options must specify finite, ascending 'buckets' for m",
     "model_metrics.metric_control[0].histogram_options.buckets", (6, 127)),
    ("a histogram with a bucket of nothing", plus(FIRST_RESPONSE % "buckets: nan"),
     "histogram options must specify finite, ascending 'buckets' for m",
     "model_metrics.metric_control[0].histogram_options.buckets", (6, 127)),
    ("an input without name", with_input("data_type: TYPE_FP32 dims: 4"),
     "model input must specify 'name' for m", "input[0]", (4, 1)),
    ("an output without name", with_output("data_type: TYPE_FP32 dims: 4"),
     "model output must specify 'name' for m", "output[0]", (5, 1)),
    ("an input without data type", with_input('name: "A" dims: 4'),
     "model input 'A' must specify 'data_type' for m", "input[0].data_type", (4, 1)),
    ("an output without data type", with_output('name: "S" dims: 4'),
     "model output 'S' must specify 'data_type' for m", "output[0].data_type", (5, 1)),
    ("a data type by a number that is none", with_input('name: "A" data_type: 99 dims: 4'),
     "model input 'A' must specify 'data_type' for m", "input[0].data_type", (4, 21)),
    ("no dims", with_input('name: "A" data_type: TYPE_FP32'),
     "model input 'A' must specify 'dims' for m", "input[0].dims", (4, 1)),
    ("a dim of zero", with_input('name: "A" data_type: TYPE_FP32 dims: [ 4, 0 ]'),
     f"model input 'A' {DIM_TEXT} for m", "input[0].dims", (4, 42)),
    ("a dim below -1", with_output('name: "S" data_type: TYPE_FP32 dims: -2'),
     f"model output 'S' {DIM_TEXT} for m", "output[0].dims", (5, 43)),
    ("a reshape dim of zero", with_input('name: "A" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 4, 0 ] }'),
     f"model input 'A' {RESHAPE_TEXT} for m", "input[0].reshape", (4, 50)),
    ("a reshape of another size", with_input('name: "A" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 3 ] }'),
     f"model input 'A' {SIZE} for m", "input[0].reshape", (4, 50)),
    ("an empty reshape of four", with_output('name: "S" data_type: TYPE_FP32 dims: 4 reshape { }'),
     f"model output 'S' {SIZE} for m", "output[0].reshape", (5, 51)),
    ("an empty reshape without batches",
     HEAD.replace("8", "0") + 'input [ { name: "A" data_type: TYPE_FP32 dims: 1 reshape { } } ]\n' + OUTPUT,
     "model input 'A' cannot have empty reshape for non-batching model as scalar tensors are not supported for m",
     "input[0].reshape", (4, 50)),
    ("a reshape that gains a variable dim",
     with_input('name: "A" data_type: TYPE_FP32 dims: [ -1, 2 ] reshape { shape: [ -1, -1 ] }'),
     "model input 'A' has different number of variable-size dimensions for dims and reshape for m",
     "input[0].reshape", (4, 58)),
    ("a reshape across a variable dim",
     with_input('name: "A" data_type: TYPE_FP32 dims: [ 2, -1, 3 ] reshape { shape: [ 3, -1, 2 ] }'),
     f"model input 'A' {SIZE} for m", "input[0].reshape", (4, 61)),
    ("a format for other ranks", with_input('name: "A" data_type: TYPE_FP32 dims: 4 format: FORMAT_NHWC'),
     "model input NHWC/NCHW require 3 dims for m", "input[0].format", (4, 50)),
    ("a shape tensor", with_input('name: "A" data_type: TYPE_INT32 dims: 4 is_shape_tensor: true'),
     "model input 'A' shape tensors are only supported for TensorRT platform for m", "input[0].is_shape_tensor", (4, 51)),
    ("a non-linear output", with_output('name: "S" data_type: TYPE_FP32 dims: 4 is_non_linear_format_io: true'),
     "model output 'S' Non-linear IO format is only supported for the TensorRT platform for m",
     "output[0].is_non_linear_format_io", (5, 51)),
    ("two inputs of one name", HEAD + INPUT + INPUT + OUTPUT,
     "model input 'A' is specified more than once for m", "input[1].name", (5, 11)),
    ("GPUs for a CPU group", plus('instance_group { name: "G" kind: KIND_CPU gpus: 0 }'),
     f"{GROUP} has kind KIND_CPU but specifies one or more GPUs", "instance_group[0].gpus", (6, 43)),
    ("GPUs for a model group", plus('instance_group { name: "G" kind: KIND_MODEL gpus: 0 }'),
     f"{GROUP} has kind KIND_MODEL but specifies one or more GPUs", "instance_group[0].gpus", (6, 45)),
    ("a GPU group where there are none", plus('instance_group { name: "G" kind: KIND_GPU }'),
     f"{GROUP} has kind KIND_GPU but no GPUs are available", "instance_group[0].kind", (6, 28)),
    ("an unnamed GPU group where there are none", plus("instance_group { kind: KIND_GPU gpus: 0 }"),
     "instance group m_0 of model m has kind KIND_GPU but no GPUs are available", "instance_group[0].kind", (6, 18)),
    ("a profile", plus('instance_group { name: "G" profile: "0" }'),
     f"{GROUP} and platform onnxruntime_onnxspecifies profile field which is only supported for TensorRT models",
     "instance_group[0].profile", (6, 28)),
    ("a warmup input of any size",
     plus('model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: -1 zero_data: true } } }'),
     "warmup setting expects all variable-size dimensions are specified for input 'A'",
     'model_warmup[0].inputs["A"].dims', (6, 87)),
    ("a warmup input without data",
     plus('model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: 4 } } }'),
     "[request id: <id_unknown>] warmup setting expects input 'A' to have input_data_type set",
     'model_warmup[0].inputs["A"]', (6, 40)),
    ("a version policy that chooses nothing", plus("version_policy { specific { versions: 7 } }"),
     "at least one version must be available under the version policy of model 'm'", "version_policy", (6, 1)),
    ("a model file above the version", plus('default_model_filename: "../../x.onnx"'),
     "model file '../../x.onnx' of model 'm', version 1, is outside the model repository",
     "default_model_filename", (6, 1)),
    ("an unknown setting", plus('parameters { key: "tritium.retries" value { string_value: "always" } }'),
     "unknown setting 'tritium.retries'", 'parameters["tritium.retries"]', (6, 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message", "key", "place"), [pytest.param(*row[1:], id=row[0]) for row in BROKEN]
)
def test_a_mistake_is_told_with_its_text_and_place(load, text, message, key, place):
    loaded = load(text)
    assert not loaded.ok
    assert loaded.specs == ()
    first = loaded.errors[0]
    assert (first.message, first.key, (first.line, first.column)) == (message, key, place)
    assert first.code is ErrorCode.INVALID_ARG
    assert first.path == loaded.path
    assert loaded.reason == f"Invalid argument: {message}"
    assert loaded.versions == (() if "specific" in text else (1,))


UNSUPPORTED = [
    ('platform: "ensemble"\n', 'platform: "ensemble"', (1, 1)),
    (plus("sequence_batching { }"), "sequence_batching", (6, 1)),
    ('platform: "ensemble"\nensemble_scheduling { step { model_name: "x" } }', "ensemble_scheduling", (2, 1)),
    (plus("model_transaction_policy { decoupled: true }"), "model_transaction_policy.decoupled", (6, 28)),
    (plus("response_cache { enable: true }"), "response_cache.enable", (6, 18)),
    (plus('model_repository_agents { agents { name: "checksum" } }'), "model_repository_agents", (6, 27)),
    (plus('batch_input { target_name: "N" data_type: TYPE_FP32 source_input: "A" }'), "batch_input", (6, 1)),
    (plus('batch_output { target_name: "S" source_input: "A" }'), "batch_output", (6, 1)),
    (plus('runtime: "libmine.so"'), "runtime", (6, 1)),
    (plus('model_operations { op_library_filename: "ops.so" }').replace("onnxruntime", "python"),
     "model_operations.op_library_filename", (6, 20)),
    (plus('optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }'),
     "optimization.execution_accelerators", (6, 41)),
    (plus('optimization { execution_accelerators { gpu_execution_accelerator { name: "cuda" } } }'),
     "optimization.execution_accelerators", (6, 41)),
    (with_input('name: "A" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true'), "allow_ragged_batch", (4, 51)),
    (plus("instance_group { passive: true }"), "instance_group.passive", (6, 18)),
    (plus("instance_group { secondary_devices { device_id: 1 } }"), "instance_group.secondary_devices", (6, 18)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "field", "place"), UNSUPPORTED, ids=[row[1] for row in UNSUPPORTED])
def test_what_this_version_does_not_do_is_refused_by_name(load, text, field, place):
    loaded = load(text)
    first = loaded.errors[0]
    assert first.message == f"'{field}' of model 'm' is not supported by this version"
    assert first.code is ErrorCode.UNSUPPORTED
    assert (first.line, first.column) == place
    assert loaded.reason == f"Unsupported: {first.message}"
    assert loaded.specs == ()


def test_file_names_by_compute_capability_are_refused_where_there_is_a_gpu(load):
    text = plus('cc_model_filenames { key: "7.5" value: "a.onnx" } instance_group { kind: KIND_GPU }')
    assert load(text, gpus=1).errors[0].code is ErrorCode.UNSUPPORTED


def test_file_names_by_compute_capability_mean_nothing_on_the_cpu(load):
    assert load(plus('cc_model_filenames { key: "7.5" value: "a.onnx" }')).ok


def test_a_gpu_that_is_not_there_is_named(load):
    loaded = load(plus('instance_group { name: "G" kind: KIND_GPU gpus: [ 0, 5 ] }'), gpus=2)
    assert loaded.errors[0].message == (
        "instance group G of model m specifies invalid or unsupported gpu id 5. GPUs with at least the minimum"
        " required CUDA compute compatibility of 6 are: 0, 1"
    )


def test_every_mistake_is_told_at_once_and_the_first_is_the_reason(load):
    loaded = load(
        'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: -3\n'
        'input [ { name: "A" dims: 0 } ]\noutput [ { name: "S" data_type: TYPE_FP32 } ]\n'
        'instance_group { kind: KIND_GPU }\nparameters { key: "tritium.threads" value { string_value: "x" } }\n'
    )
    assert [(problem.line, problem.key) for problem in loaded.errors] == [
        (3, "max_batch_size"),
        (4, "input[0].data_type"),
        (4, "input[0].dims"),
        (5, "output[0].dims"),
        (6, "instance_group[0].kind"),
        (7, 'parameters["tritium.threads"]'),
    ]
    assert loaded.reason == "Invalid argument: 'max_batch_size' must be non-negative value for m"


def test_of_an_ensemble_only_the_refusal_is_told(load):
    loaded = load('platform: "ensemble"\nensemble_scheduling { step { model_name: "x" } }', files={})
    assert [problem.key for problem in loaded.errors] == ["ensemble_scheduling"]


@pytest.mark.parametrize(("backend", "file"), [("onnxruntime", "model.onnx"), ("python", "model.py")])
def test_missing_inputs_and_outputs_name_the_file_and_what_to_add(load, backend, file):
    loaded = load(f'backend: "{backend}"', files={f"1/{file}": b""})
    assert [problem.message for problem in loaded.errors] == [
        f"model 'm' has no '{side}' in {loaded.path}, and this version does not complete it from the model file"
        for side in ("input", "output")
    ]
    assert loaded.errors[0].hint == 'add: input [ { name: "…" data_type: TYPE_FP32 dims: [ … ] } ]'


def test_a_model_that_gives_no_backend_away_is_told_how_to_name_one(load):
    loaded = load(REST, files={"1/weights.bin": b""})
    assert [problem.message for problem in loaded.errors] == [
        "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration."
        " Expected model name of the form 'model.<backend_name>'."
    ]


def test_a_name_is_required_where_nothing_is_completed(load):
    loaded = load('platform: "onnxruntime_onnx"\n' + REST, auto_complete=False)
    assert [problem.message for problem in loaded.errors] == [
        "model configuration must specify 'name'",
        "unexpected platform type 'onnxruntime_onnx' for ",
    ]


def test_metrics_that_can_not_be_customised_are_a_warning(load):
    metric = 'metric_control { metric_identifier { family: "nv_inference_count" } histogram_options { buckets: [ 2, 1 ] } }'
    loaded = load(plus(f"model_metrics {{ {metric} }}"))
    assert [problem.message for problem in loaded.warnings] == [
        "metric family 'nv_inference_count' can not be customised"
    ]
    assert loaded.specs[0].first_response_buckets == ()


@pytest.mark.parametrize(
    "optimization",
    [
        "priority: PRIORITY_MIN",
        "cuda { graphs: true }",
        "cuda { busy_wait_events: true }",
        "cuda { graph_spec { batch_size: 1 } }",
        "cuda { output_copy_stream: true }",
        "gather_kernel_buffer_threshold: 4",
    ],
)
def test_a_hint_at_what_does_not_exist_is_a_warning(load, optimization):
    loaded = load(plus(f"optimization {{ {optimization} }}"))
    assert loaded.ok
    assert len(loaded.warnings) == 1
    assert "has no effect" in loaded.warnings[0].message
    assert loaded.warnings[0].line == 6
