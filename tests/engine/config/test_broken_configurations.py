"""Mistakes in `config.pbtxt`: each with its exact text, its place, its field and a suggestion.

The texts are those of the contract, model_config.md.
"""

import pytest

from actors.values.errors import ErrorCode

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


FIRST_RESPONSE = (
    'model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" }'
    " histogram_options { %s } } }"
)

# Each: an id, the text, and every error: its place, key, message and hint.
BROKEN = [
    ('the directory is called otherwise', HEAD.replace('"m"', '"n"') + REST,
     [((1, 1), 'name', "unexpected directory name 'm' for model 'n', directory name must equal model name", 'leave \'name\' out, or write name: "m"')]),
    ('an unknown platform without a backend', 'platform: "caffe"\n' + REST,
     [((1, 1), 'platform', "unexpected platform type 'caffe' for m", "name the 'backend'")]),
    ("KServe's name of a platform", 'platform: "onnx_onnxv1"\n' + REST,
     [((1, 1), 'platform', "unexpected platform type 'onnx_onnxv1' for m", "did you mean 'onnxruntime_onnx'?")]),
    ("a backend in the platform's place", 'platform: "onnxruntime"\n' + REST,
     [((1, 1), 'platform', "unexpected platform type 'onnxruntime' for m", 'that is a backend: write backend: "onnxruntime"')]),
    ('a misspelt platform', 'platform: "onnxruntime_onx"\n' + REST,
     [((1, 1), 'platform', "unexpected platform type 'onnxruntime_onx' for m", "did you mean 'onnxruntime_onnx'?")]),
    ('a platform of another backend', 'backend: "onnxruntime" platform: "pytorch_libtorch"\n' + REST,
     [((1, 24), 'platform', "unexpected 'platform' and 'backend' pair, got:pytorch_libtorch, onnxruntime", "'onnxruntime' goes with onnxruntime_onnx")]),
    ('libtorch beside pytorch', 'backend: "pytorch"\nplatform: "libtorch"\n' + REST,
     [((2, 1), 'platform', "unexpected 'platform' and 'backend' pair, got:libtorch, pytorch", "'pytorch' goes with pytorch_libtorch or torch_aoti")]),
    ('an unknown backend', 'backend: "onnxrunntime"\n' + REST,
     [((1, 1), 'backend', "unable to find backend library for backend 'onnxrunntime', try specifying runtime on the model configuration.", "did you mean 'onnxruntime'?")]),
    ('a backend that is nothing like another', 'backend: "zzz"\n' + REST,
     [((1, 1), 'backend', "unable to find backend library for backend 'zzz', try specifying runtime on the model configuration.", 'backends here: broken, mine, onnxruntime, openvino, python, pytorch; if it is a backend of your own, put its libtriton_zzz.so or its model.py into <--backend-directory>/zzz (docs/backends/c_libraries.md, python_based.md)')]),
    ('a backend by its short name', 'backend: "onnx"\n' + REST,
     [((1, 1), 'backend', "unable to find backend library for backend 'onnx', try specifying runtime on the model configuration.", "did you mean 'onnxruntime'?")]),
    ("a platform in the backend's place", 'backend: "pytorch_libtorch"\n' + REST,
     [((1, 1), 'backend', "unable to find backend library for backend 'pytorch_libtorch', try specifying runtime on the model configuration.", "that is a platform; its backend is 'pytorch'")]),
    ("a backend that can't be imported", 'backend: "broken"\n' + REST,
     [((1, 1), 'backend', "unable to find backend library for backend 'broken', try specifying runtime on the model configuration.", "its module can't be imported: ImportError: no libmagic")]),
    ('a runtime outside of the backend', plus('runtime: "../libc.so"'),
     [((6, 1), 'runtime', "backend library name '../libc.so' escapes backend directory '/opt/tritonserver/backends/onnxruntime', for model 'm', check model config runtime field", "leave 'runtime' out")]),
    ('a negative batch size', HEAD.replace("8", "-1") + REST,
     [((3, 1), 'max_batch_size', "'max_batch_size' must be non-negative value for m", '0 means that shapes have no batch dimension')]),
    ('instances without number', plus("instance_group { count: 2147483647 }"),
     [((6, 18), 'instance_group[0].count', 'instance group m_0 of model m has 2147483647 instances, more than 4096', 'about one for each core is plenty')]),
    ('a preferred size of zero', plus("dynamic_batching { preferred_batch_size: [ 4, 0 ] }"),
     [((6, 20), 'dynamic_batching.preferred_batch_size', 'dynamic batching preferred size must be positive for m', 'leave it out to prefer the largest batch')]),
    ('a preferred size beyond the batch', plus("dynamic_batching {\n  preferred_batch_size: 9 }"),
     [((7, 3), 'dynamic_batching.preferred_batch_size', 'dynamic batching preferred size must be <= max batch size for m', "'max_batch_size' is 8")]),
    ('no default priority level', plus("dynamic_batching { priority_levels: 3 }"),
     [((6, 1), 'dynamic_batching.default_priority_level', 'default priority level must be in range [1, 3] for m', 'it is the level of requests that name none')]),
    ('a default priority level too high', plus("dynamic_batching { priority_levels: 3 default_priority_level: 4 }"),
     [((6, 39), 'dynamic_batching.default_priority_level', 'default priority level must be in range [1, 3] for m', 'it is the level of requests that name none')]),
    ('a policy of no level', plus("dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } } }"),
     [((6, 65), 'dynamic_batching.priority_queue_policy["3"]', 'priority queue policy must have priority level in range [1, 2] for m', "'priority_levels' is 2")]),
    ('ordering with priorities', plus("dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }"),
     [((6, 20), 'dynamic_batching.preserve_ordering', "Only one priority level is allowed when 'preserve_ordering' is true for m", "leave out 'preserve_ordering' or 'priority_levels'")]),
    ('ordering with delayed timeouts', plus("dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 } }"),
     [((6, 20), 'dynamic_batching.preserve_ordering', "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m", "leave out 'preserve_ordering', or use timeout_action: REJECT")]),
    ('a timeout action without a name', plus("dynamic_batching { default_queue_policy { timeout_action: 7 } }"),
     [((6, 43), 'dynamic_batching.default_queue_policy.timeout_action', "'timeout_action' has no value 7", 'one of REJECT, DELAY')]),
    ('a cache of a decoupled model', plus("model_transaction_policy { decoupled: true }\nresponse_cache { enable: true }"),
     [((7, 18), 'response_cache.enable', "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable the response cache.", "leave 'response_cache' out")]),
    ('a metric without identifier', plus("model_metrics { metric_control { histogram_options { buckets: 1 } } }"),
     [((6, 17), 'model_metrics.metric_control[0]', "metric control must specify 'metric_identifier'", 'add: metric_identifier { family: "nv_inference_first_response_histogram_ms" }')]),
    ('a metric without family', plus("model_metrics { metric_control { metric_identifier { } histogram_options { buckets: 1 } } }"),
     [((6, 17), 'model_metrics.metric_control[0]', "metric identifier must specify non-empty 'family'", 'add: family: "nv_inference_first_response_histogram_ms"')]),
    ('a metric without options', plus('model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" } } }'),
     [((6, 17), 'model_metrics.metric_control[0]', "metric control must specify 'histogram_options'", 'add: histogram_options { buckets: [ 10, 100, 1000 ] }')]),
    ('a histogram without buckets', plus(FIRST_RESPONSE % ""),
     [((6, 17), 'model_metrics.metric_control[0]', "histogram options must specify non-empty 'buckets'", 'such as buckets: [ 10, 100, 1000 ]')]),
    ('a histogram whose buckets do not ascend', plus(FIRST_RESPONSE % "buckets: [ 1, 5, 5 ]"),
     [((6, 127), 'model_metrics.metric_control[0].histogram_options.buckets', "histogram options must specify finite, ascending 'buckets' for m", 'upper bounds in milliseconds; the one of +Inf is added')]),
    ('a histogram with the bucket that is always there', plus(FIRST_RESPONSE % "buckets: [ 1, inf ]"),
     [((6, 127), 'model_metrics.metric_control[0].histogram_options.buckets', "histogram options must specify finite, ascending 'buckets' for m", 'upper bounds in milliseconds; the one of +Inf is added')]),
    ('a histogram with a bucket of nothing', plus(FIRST_RESPONSE % "buckets: nan"),
     [((6, 127), 'model_metrics.metric_control[0].histogram_options.buckets', "histogram options must specify finite, ascending 'buckets' for m", 'upper bounds in milliseconds; the one of +Inf is added')]),
    ('an input without name', with_input("data_type: TYPE_FP32 dims: 4"),
     [((4, 1), 'input[0]', "model input must specify 'name' for m", 'add: name: "…"')]),
    ('an output without name', with_output("data_type: TYPE_FP32 dims: 4"),
     [((5, 1), 'output[0]', "model output must specify 'name' for m", 'add: name: "…"')]),
    ('an input without data type', with_input('name: "A" dims: 4'),
     [((4, 1), 'input[0].data_type', "model input 'A' must specify 'data_type' for m", 'such as data_type: TYPE_FP32')]),
    ('an output without data type', with_output('name: "S" dims: 4'),
     [((5, 1), 'output[0].data_type', "model output 'S' must specify 'data_type' for m", 'such as data_type: TYPE_FP32')]),
    ('a data type by a number that is none', with_input('name: "A" data_type: 99 dims: 4'),
     [((4, 21), 'input[0].data_type', "model input 'A' must specify 'data_type' for m", 'such as data_type: TYPE_FP32')]),
    ('no dims', with_input('name: "A" data_type: TYPE_FP32'),
     [((4, 1), 'input[0].dims', "model input 'A' must specify 'dims' for m", 'such as dims: [ -1 ], without the batch dimension')]),
    ('a dim of zero', with_input('name: "A" data_type: TYPE_FP32 dims: [ 4, 0 ]'),
     [((4, 42), 'input[0].dims', "model input 'A' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m", 'a scalar is dims: [ 1 ] with reshape { }')]),
    ('a dim below -1', with_output('name: "S" data_type: TYPE_FP32 dims: -2'),
     [((5, 43), 'output[0].dims', "model output 'S' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m", 'write -1')]),
    ('a reshape dim of zero', with_input('name: "A" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 4, 0 ] }'),
     [((4, 50), 'input[0].reshape', "model input 'A' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for m", 'the shape of a scalar is empty: reshape { }')]),
    ('a reshape of another size', with_input('name: "A" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 3 ] }'),
     [((4, 50), 'input[0].reshape', "model input 'A' has different size for dims and reshape for m", "'dims' holds 4 elements, 'reshape' 3")]),
    ('an empty reshape of four', with_output('name: "S" data_type: TYPE_FP32 dims: 4 reshape { }'),
     [((5, 51), 'output[0].reshape', "model output 'S' has different size for dims and reshape for m", "'dims' holds 4 elements, 'reshape' 1")]),
    ('an empty reshape without batches', HEAD.replace("8", "0") + 'input [ { name: "A" data_type: TYPE_FP32 dims: 1 reshape { } } ]\n' + OUTPUT,
     [((4, 50), 'input[0].reshape', "model input 'A' cannot have empty reshape for non-batching model as scalar tensors are not supported for m", 'leave it out')]),
    ('a reshape that gains a variable dim', with_input('name: "A" data_type: TYPE_FP32 dims: [ -1, 2 ] reshape { shape: [ -1, -1 ] }'),
     [((4, 58), 'input[0].reshape', "model input 'A' has different number of variable-size dimensions for dims and reshape for m", "'dims' has 1, 'reshape' has 2")]),
    ('a reshape across a variable dim', with_input('name: "A" data_type: TYPE_FP32 dims: [ 2, -1, 3 ] reshape { shape: [ 3, -1, 2 ] }'),
     [((4, 61), 'input[0].reshape', "model input 'A' has different size for dims and reshape for m", 'what is between variable-size dimensions must hold as many elements on both sides')]),
    ('a format for other ranks', with_input('name: "A" data_type: TYPE_FP32 dims: 4 format: FORMAT_NHWC'),
     [((4, 50), 'input[0].format', 'model input NHWC/NCHW require 3 dims for m', "it has 1: write 3, or leave 'format' out")]),
    ('a shape tensor', with_input('name: "A" data_type: TYPE_INT32 dims: 4 is_shape_tensor: true'),
     [((4, 51), 'input[0].is_shape_tensor', "model input 'A' shape tensors are only supported for TensorRT platform for m", 'leave it out')]),
    ('an output shape tensor', with_output('name: "S" data_type: TYPE_INT32 dims: 4 is_shape_tensor: true'),
     [((5, 52), 'output[0].is_shape_tensor', "model output 'S' shape tensors are only supported for TensorRT platform for m", 'leave it out')]),
    ('a non-linear input', with_input('name: "A" data_type: TYPE_FP32 dims: 4 is_non_linear_format_io: true'),
     [((4, 50), 'input[0].is_non_linear_format_io', "model input 'A' Non-linear IO format is only supported for the TensorRT platform for m", 'leave it out')]),
    ('a non-linear output', with_output('name: "S" data_type: TYPE_FP32 dims: 4 is_non_linear_format_io: true'),
     [((5, 51), 'output[0].is_non_linear_format_io', "model output 'S' Non-linear IO format is only supported for the TensorRT platform for m", 'leave it out')]),
    ('two inputs of one name', HEAD + INPUT + INPUT + OUTPUT,
     [((5, 11), 'input[1].name', "model input 'A' is specified more than once for m", 'give it another name')]),
    ('two outputs of one name', HEAD + INPUT + OUTPUT + OUTPUT,
     [((6, 12), 'output[1].name', "model output 'S' is specified more than once for m", 'give it another name')]),
    ('a batch input without a source', plus('batch_input { target_name: "N" data_type: TYPE_FP32 }'),
     [((6, 1), 'batch_input[0].source_input', "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0 for m", 'one of A')]),
    ('a batch input with two sources', plus('batch_input { kind: BATCH_ITEM_SHAPE target_name: "N" data_type: TYPE_FP32 source_input: [ "A", "A" ] }'),
     [((6, 76), 'batch_input[0].source_input', "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 2 for m", 'one of A')]),
    ('a batch input of another type', plus('batch_input { target_name: "N" data_type: TYPE_INT64 source_input: "A" }'),
     [((6, 32), 'batch_input[0].data_type', 'batch input data type must be TYPE_INT32 or TYPE_FP32 for m', 'write data_type: TYPE_INT32')]),
    ('a batch input of nothing that is there', plus('batch_input { target_name: "N" data_type: TYPE_FP32 source_input: "AA" }'),
     [((6, 53), 'batch_input[0].source_input', "unknown source input name 'AA' for m", "did you mean 'A'?")]),
    ('a batch input of no kind', plus('batch_input { kind: 8 target_name: "N" data_type: TYPE_FP32 source_input: "A" }'),
     [((6, 15), 'batch_input[0].kind', "unknown batch input kind '8' for m", 'one of BATCH_ELEMENT_COUNT, BATCH_ACCUMULATED_ELEMENT_COUNT, BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, BATCH_MAX_ELEMENT_COUNT_AS_SHAPE, BATCH_ITEM_SHAPE, BATCH_ITEM_SHAPE_FLATTEN')]),
    ('a batch input without a name', plus('batch_input { data_type: TYPE_FP32 source_input: "A" }'),
     [((6, 1), 'batch_input[0].target_name', "batch input must specify 'target_name' for m",
       'name the input of the model that it is')]),
    ('a batch input that is an input',
     plus('batch_input { target_name: "A" data_type: TYPE_FP32 source_input: "A" }'),
     [((6, 15), 'batch_input[0].target_name',
       "batch input 'A' is specified more than once among the inputs for m", 'give it another name')]),
    ('a batch output without a source', plus('batch_output { target_name: "S" }'),
     [((6, 1), 'batch_output[0].source_input', "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0 for m", 'one of A')]),
    ('a batch output of more dims than its source',
     plus('batch_output { target_name: "S" source_input: "A" }')
     .replace('"S" data_type: TYPE_FP32 dims: [ 4 ]', '"S" data_type: TYPE_FP32 dims: [ 4, -1 ]'),
     [((6, 33), 'batch_output[0].source_input',
       "batch output 'S' can't be cut by input 'A', which has fewer dims for m",
       "write dims: [ -1 ] for 'S', or another source")]),
    ('a batch output that is none', plus('batch_output { target_name: "T" source_input: "A" }'),
     [((6, 16), 'batch_output[0].target_name', "unknown target output name 'T' for m", 'one of S')]),
    ('a batch output twice', plus('batch_output { target_name: "S" source_input: "A" }\nbatch_output { target_name: "S" source_input: "A" }'),
     [((7, 16), 'batch_output[1].target_name', "target output name 'S' can only be specified once for m", 'keep one of them')]),
    ('a batch output of nothing that is there', plus('batch_output { target_name: "S" source_input: "B" }'),
     [((6, 33), 'batch_output[0].source_input', "unknown source input name 'B' for m", 'one of A')]),
    ('a batch output of no kind', plus('batch_output { kind: 8 target_name: "S" source_input: "A" }'),
     [((6, 16), 'batch_output[0].kind', "unknown batch output kind '8' for m", 'one of BATCH_SCATTER_WITH_INPUT_SHAPE')]),
    ('GPUs for a CPU group', plus('instance_group { name: "G" kind: KIND_CPU gpus: 0 }'),
     [((6, 43), 'instance_group[0].gpus', 'instance group G of model m has kind KIND_CPU but specifies one or more GPUs', "leave 'gpus' out, or write kind: KIND_GPU")]),
    ('GPUs for a model group', plus('instance_group { name: "G" kind: KIND_MODEL gpus: 0 }'),
     [((6, 45), 'instance_group[0].gpus', 'instance group G of model m has kind KIND_MODEL but specifies one or more GPUs', "leave 'gpus' out, or write kind: KIND_GPU")]),
    ('a GPU group where there are none', plus('instance_group { name: "G" kind: KIND_GPU }'),
     [((6, 28), 'instance_group[0].kind', 'instance group G of model m has kind KIND_GPU but no GPUs are available', "leave 'kind' out: a GPU is used where there is one")]),
    ('an unnamed GPU group where there are none', plus("instance_group { kind: KIND_GPU gpus: 0 }"),
     [((6, 18), 'instance_group[0].kind', 'instance group m_0 of model m has kind KIND_GPU but no GPUs are available', "leave 'kind' out: a GPU is used where there is one")]),
    ('a profile', plus('instance_group { name: "G" profile: "0" }'),
     [((6, 28), 'instance_group[0].profile', 'instance group G of model m and platform onnxruntime_onnxspecifies profile field which is only supported for TensorRT models', 'leave it out')]),
    ('a resource that is shared and is not', plus('instance_group { rate_limiter { resources [ { name: "R" global: true }, { name: "R" } ] } }'),
     [((6, 73), 'instance_group[0].rate_limiter.resources[1]', 'Resource "R" is present as both global and device-specific resource in the model configuration.', "write 'global' everywhere or nowhere, or give it another name")]),
    ('only passive instances', plus('instance_group [ { passive: true }, { passive: true count: 2 } ]'),
     [((6, 20), 'instance_group[0].passive', 'all instances of model m are passive, so that none could execute its requests', "leave 'passive' out of one group")]),
    ('a secondary device without a name', plus('instance_group { secondary_devices { kind: 3 } }'),
     [((6, 38), 'instance_group[0].secondary_devices[0].kind', "'kind' has no value 3", 'one of KIND_NVDLA')]),
    ('a warmup input of any size', plus('model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: -1 zero_data: true } } }'),
     [((6, 87), 'model_warmup[0].inputs["A"].dims', "warmup setting expects all variable-size dimensions are specified for input 'A'", 'write the sizes, without the batch dimension')]),
    ('a warmup input without data', plus('model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: 4 } } }'),
     [((6, 40), 'model_warmup[0].inputs["A"]', "[request id: <id_unknown>] warmup setting expects input 'A' to have input_data_type set", 'add: random_data: true')]),
    ('a warmup input without a type', plus('model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { dims: 4 zero_data: true } } }'),
     [((6, 40), 'model_warmup[0].inputs["A"]', "warmup setting expects input 'A' to have 'data_type' set", 'such as data_type: TYPE_FP32')]),
    ('a warmup batch of millions', plus('model_warmup { name: "w" batch_size: 5000000 }'),
     [((6, 26), 'model_warmup[0].batch_size', "warmup sample 'w' for m has batch size 5000000, more than 65536", "use 'count' to run a sample more often")]),
    ('a warmup file that is too small', plus('model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: 4 input_data_file: "short" } } }'),
     [((6, 40), 'model_warmup[0].inputs["A"]', '[request id: <id_unknown>] warmup setting expects 16 bytes, but the data provided from shortonly has 3 bytes', "data files are named relative to the model's directory warmup/")]),
    ('a warmup file that is not there', plus('model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: 4 input_data_file: "absent" } } }'),
     [((6, 40), 'model_warmup[0].inputs["A"]', "failed to read warmup data file 'absent': No such file or directory", "data files are named relative to the model's directory warmup/")]),
    ('a label file that is not there', with_output('name: "S" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt"'),
     [((5, 51), 'output[0].label_filename', "failed to read label file 'labels.txt' for output 'S' in model 'm': No such file or directory", "label files are named relative to the model's directory, beside config.pbtxt")]),
    ('a version policy that chooses nothing', plus("version_policy { specific { versions: 7 } }"),
     [((6, 1), 'version_policy', "at least one version must be available under the version policy of model 'm'", 'put the model file into a numbered directory, such as 1/')]),
    ('a model file above the version', plus('default_model_filename: "../../x.onnx"'),
     [((6, 1), 'default_model_filename', "model file '../../x.onnx' of model 'm', version 1, is outside the model repository", '')]),
    ('an unknown setting', plus('parameters { key: "tritium.retries" value { string_value: "always" } }'),
     [((6, 1), 'parameters["tritium.retries"]', "unknown setting 'tritium.retries'", "did you mean 'tritium.retry'?")]),
    ('a setting with another value', plus('parameters { key: "tritium.probe" value { string_value: "always" } }'),
     [((6, 1), 'parameters["tritium.probe"]', "'tritium.probe' is 'always', which is no valid value", "use 'compare' or 'required' or 'off'")]),
    ('traffic for versions that are not served', plus('parameters { key: "tritium.traffic" value { string_value: \'{"weights": {"1": 9, "2": 1}}\' } }'),
     [((6, 1), 'parameters["tritium.traffic"]', "'tritium.traffic' needs 2 versions, but 'version_policy' serves the latest 1 only", 'write version_policy { specific { versions: [ 1, 2 ] } }')]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "errors"), [pytest.param(*row[1:], id=row[0]) for row in BROKEN])
def test_a_mistake_is_told_with_its_place_its_text_and_a_suggestion(load, errors_of, text, errors):
    loaded = load(text, files={"1/model.onnx": b"", "warmup/short": b"123"})
    assert errors_of(loaded) == errors
    assert not loaded.ok
    assert loaded.specs == ()
    first = loaded.errors[0]
    assert (first.code, first.path) == (ErrorCode.INVALID_ARG, loaded.path)
    assert loaded.reason == f"Invalid argument: {errors[0][2]}"
    assert loaded.versions == (() if "specific" in text else (1,))


UNSUPPORTED = [
    (plus('model_operations { op_library_filename: "ops.so" }').replace("onnxruntime", "python"),
     "model_operations.op_library_filename", (6, 20)),
    (plus('optimization { execution_accelerators { cpu_execution_accelerator { name: "xnnpack" } } }'),
     "optimization.execution_accelerators", (6, 41)),
    (plus('optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }')
     .replace("onnxruntime", "python"), "optimization.execution_accelerators", (6, 41)),
    (plus('optimization { execution_accelerators { gpu_execution_accelerator { name: "cuda" } } }')
     .replace("onnxruntime", "python"), "optimization.execution_accelerators", (6, 41)),
    (plus("instance_group { secondary_devices { device_id: 1 } }"), "instance_group.secondary_devices", (6, 18)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "field", "place"), UNSUPPORTED, ids=[row[1] for row in UNSUPPORTED])
def test_what_this_version_does_not_do_is_refused_by_name(load, text, field, place):
    loaded = load(text)
    first = loaded.errors[0]
    assert first.message == f"'{field}' of model 'm' is not supported by this version"
    assert first.code is ErrorCode.UNSUPPORTED
    assert (first.line, first.column) == place
    assert (loaded.reason, loaded.specs) == (f"Unsupported: {first.message}", ())


def test_file_names_by_compute_capability_are_refused_where_there_is_a_gpu(load):
    text = plus('cc_model_filenames { key: "7.5" value: "a.onnx" } instance_group { kind: KIND_GPU }')
    assert load(text, gpus=1).errors[0].code is ErrorCode.UNSUPPORTED


def test_file_names_by_compute_capability_mean_nothing_on_the_cpu(load):
    assert load(plus('cc_model_filenames { key: "7.5" value: "a.onnx" }')).ok


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        pytest.param(
            plus('instance_group { name: "G" kind: KIND_GPU gpus: [ 0, 5 ] }'),
            {"gpus": 2},
            "instance group G of model m specifies invalid or unsupported gpu id 5. GPUs with at least the minimum"
            " required CUDA compute compatibility of 6 are: 0, 1",
            id="a GPU that is not there",
        ),
        pytest.param(
            REST,
            {"files": {"1/weights.bin": b""}},
            "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration."
            " Expected model name of the form 'model.<backend_name>'.",
            id="nothing that gives the backend away",
        ),
        pytest.param(
            'platform: "onnxruntime_onnx"\n' + REST,
            {"auto_complete": False},
            "model configuration must specify 'name'",
            id="no name, where nothing is completed",
        ),
    ],
)
def test_a_mistake_that_stands_in_no_file_is_told(load, text, options, message):
    assert [problem.message for problem in load(text, **options).errors] == [message]


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


# -- if some fields of a file are unreadable, the same pass checks the rest
#
# It reports only errors that are certain.


def test_unknown_fields_wrong_types_and_broken_rules_are_told_in_one_pass(load):
    text = (
        'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 8\n'
        'input [ { name: "A" data_type: FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "S" data_type: TYPE_FP32 dims: [ 0 ] } ]\n'
        "instance_group { kind: KIND_GPU }\n"
        "dynamic_batch { }\n"
        'parameters { key: "tritium.probe" value { string_value: "no" } }\n'
        'model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: 4 input_data_file: "absent" } } }\n'
        "sequence_batching { control_input { } }\n"
    )
    loaded = load(text)
    assert not loaded.readable
    assert [(error.line, error.column, error.key) for error in loaded.errors] == [
        (4, 32, "input[0].data_type"),
        (7, 1, "dynamic_batch"),
        (10, 21, "sequence_batching.control_input[0]"),
        (5, 43, "output[0].dims"),
        (6, 18, "instance_group[0].kind"),
        (9, 40, 'model_warmup[0].inputs["A"]'),
        (8, 1, 'parameters["tritium.probe"]'),
    ]
    assert all(error.path == loaded.path for error in loaded.errors)
    assert loaded.errors[0].message.startswith("failed to read text proto from ")
    assert loaded.errors[2].message == "sequence batching control tensor must have a name for m"


def test_places_are_those_of_the_file_where_fields_before_them_were_left_out(load):
    loaded = load(HEAD + "zzz { a: 1 }  zzz: [ 1, 2\n] instance_group { kind: KIND_GPU }" + INPUT + OUTPUT)
    assert [(error.line, error.column, error.key) for error in loaded.errors] == [
        (4, 1, "zzz"),
        (4, 15, "zzz"),
        (5, 20, "instance_group[0].kind"),
    ]


# Each: an id, and a text with one mistake. If the wrong text were taken at its word, another mistake would
# follow.
ALONE = [
    ("a misspelt backend", 'bakend: "python"\n'),
    ("a backend without quotes", "backend: onnxruntime\n" + INPUT + OUTPUT),
    ("a misspelt name", 'nmae: "n"\nbackend: "onnxruntime"\n' + INPUT + OUTPUT),
    ("misspelt dims", HEAD + 'input [ { name: "A" data_type: TYPE_FP32 dim: [ 4 ] } ]\n' + OUTPUT),
    ("a datatype that is none", HEAD + INPUT.replace("TYPE_FP32", "FP33") + OUTPUT),
    ("a batch size in quotes", HEAD.replace("8", '"8"') + INPUT + OUTPUT + "dynamic_batching { preferred_batch_size: 4 }\n"),
    ("an input that is no message", HEAD + 'input: "A"\n' + OUTPUT
     + 'batch_input { target_name: "N" data_type: TYPE_FP32 source_input: "A" }\n'),
    ("one of two inputs", HEAD + 'input [ "A", { name: "B" data_type: TYPE_FP32 dims: 0 } ]\n' + OUTPUT),
    ("misspelt inputs", HEAD + INPUT.replace("input", "inputs") + OUTPUT),
    ("a parameter without string_value", HEAD + INPUT + OUTPUT + 'parameters { key: "tritium.probe" value: "off" }\n'),
    ("a misspelt step of an ensemble", 'platform: "ensemble"\nensemble_scheduling { steps { } }\n'),
    ("a misspelt schedule", 'platform: "ensemble"\nensemble_schedulin { }\n'),
    ("two schedulers", HEAD + INPUT + OUTPUT + "dynamic_batching { } sequence_batching { }\n"),
]  # fmt: skip


@pytest.mark.parametrize("text", [pytest.param(row[1], id=row[0]) for row in ALONE])
def test_what_follows_from_a_mistake_only_is_not_told(load, text):
    loaded = load(text)
    assert len(loaded.errors) == 1
    assert loaded.errors[0].message.startswith("failed to read text proto from ")


def test_an_override_is_checked_in_the_same_way(load):
    document = '{"backend": "onnxruntime", "max_batchsize": 4, "instance_group": [{"kind": "KIND_GPU"}]}'
    loaded = load(HEAD + INPUT + OUTPUT, override=document)
    assert [error.key for error in loaded.errors] == ["max_batchsize", "instance_group[0].kind"]
    assert loaded.errors[0].message.startswith("Invalid config override: ")


SEQUENCE_HEAD = 'name: "m"\nbackend: "python"\nmax_batch_size: 4\n'


# -- mistakes in `sequence_batching`: each with its exact text, its place, its field and a hint
#
# The texts are those of the contract, model_config.md section 4.7.


def sequence(text):
    return f"{SEQUENCE_HEAD}sequence_batching {{\n  {text}\n}}\n"


def control(text):
    return sequence(f'control_input {{ name: "C" control {{ {text} }} }}')


def state(text, more=""):
    return sequence(
        f'state {{ input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ 2, -1 ] {text} }}{more}'
    )


def initial(text):
    return state(f"initial_state {{ {text} }}")


# Each: an id, the text, and every error: its place, key, message and hint. The strategy begins on line 5.
BROKEN_SEQUENCES = [
    ('a cache of a sequence model', SEQUENCE_HEAD + "sequence_batching { }\nresponse_cache { enable: true }",
     [((5, 18), 'response_cache.enable', 'Response Cache does not currently support model m with sequence batching scheduler. Please disable the response cache.', "leave 'response_cache' out")]),
    ('a control without a name', sequence("control_input { control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }"),
     [((5, 3), 'sequence_batching.control_input[0]', 'sequence batching control tensor must have a name for m', "it is the name of the model's own input")]),
    ('a tensor of two controls', sequence('control_input { name: "C" } control_input { name: "C" }'),
     [((5, 47), 'sequence_batching.control_input[1].name', "sequence batching control tensor 'C' is specified for multiple control kinds for m", "give each control a tensor of its own")]),
    ('two controls of one tensor', sequence('control_input { name: "C" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }, { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] }'),
     [((5, 100), 'sequence_batching.control_input[0].control[1]', "sequence batching control tensor 'C' is specified for multiple control kinds for m", "give each control a tensor of its own")]),
    ('a control with the name of an input', 'input { name: "C" data_type: TYPE_FP32 dims: 1 }\n' + sequence('control_input { name: "C" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'),
     [((6, 19), 'sequence_batching.control_input[0].name', "sequence batching tensor 'C' has the name of an input of the configuration", "the scheduler gives it to the model, so it is not listed under 'input'")]),
    ('a state with the name of a control', sequence('control_input { name: "C" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }\n  state { input_name: "C" output_name: "T" data_type: TYPE_FP32 dims: 1 }'),
     [((6, 11), 'sequence_batching.state[0].input_name', "sequence batching tensor 'C' has the name of a control tensor", "the scheduler gives it to the model, so it is not listed under 'input'")]),
    ('a checkpoint of nothing', sequence('oldest { }') + 'parameters { key: "tritium.checkpoint" value { string_value: "true" } }',
     [((7, 1), 'parameters["tritium.checkpoint"]', "'tritium.checkpoint' is 'true', but model 'm' has no implicit state that could be kept where an instance dies", "declare what the model remembers by sequence_batching { state [ ... ] }, or leave it out")]),
    ('two tensors of one kind', sequence("\n".join(f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] }} }}' for name in "AB")),
     [((6, 37), 'sequence_batching.control_input[1].control[0].kind', 'sequence batching specifies multiple CONTROL_SEQUENCE_END tensors for m', 'keep one of them')]),
    ('a boolean control without values', control("kind: CONTROL_SEQUENCE_READY"),
     [((5, 29), 'sequence_batching.control_input[0].control[0]', "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for CONTROL_SEQUENCE_READY for m", 'such as int32_false_true: [ 0, 1 ]')]),
    ('a control with values of two types', control("int32_false_true: [ 0, 1 ] bool_false_true: [ false, true ]"),
     [((5, 66), 'sequence_batching.control_input[0].control[0].bool_false_true', "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' for CONTROL_SEQUENCE_START for m", "keep the one of the tensor's datatype")]),
    ('a control with one int32', control("kind: CONTROL_SEQUENCE_END int32_false_true: 1"),
     [((5, 66), 'sequence_batching.control_input[0].control[0].int32_false_true', "sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_END for m", 'the values of false and of true')]),
    ('a control with three floats', control("kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1, 2 ]"),
     [((5, 68), 'sequence_batching.control_input[0].control[0].fp32_false_true', "sequence batching control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_READY for m", 'the values of false and of true')]),
    ('a control with one bool', control("bool_false_true: true"),
     [((5, 39), 'sequence_batching.control_input[0].control[0].bool_false_true', "sequence batching control 'bool_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START for m", 'the values of false and of true')]),
    ('values for a correlation id', control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 int32_false_true: [ 0, 1 ]"),
     [((5, 91), 'sequence_batching.control_input[0].control[0].int32_false_true', "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for CONTROL_SEQUENCE_CORRID for m", "the correlation id itself is the value: give it a 'data_type'")]),
    ('a correlation id of floats', control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32"),
     [((5, 69), 'sequence_batching.control_input[0].control[0].data_type', 'unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING', 'TYPE_UINT64 takes every number that a client may send')]),
    ('a correlation id of no type', control("kind: CONTROL_SEQUENCE_CORRID"),
     [((5, 29), 'sequence_batching.control_input[0].control[0].data_type', 'unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING', 'TYPE_UINT64 takes every number that a client may send')]),
    ('a control of no kind', control("kind: 9"),
     [((5, 39), 'sequence_batching.control_input[0].control[0].kind', "'kind' has no value 9", 'one of CONTROL_SEQUENCE_START, CONTROL_SEQUENCE_READY, CONTROL_SEQUENCE_END, CONTROL_SEQUENCE_CORRID')]),
    ('a preferred size of zero', sequence("oldest { preferred_batch_size: [ 0, 4 ] }"),
     [((5, 12), 'sequence_batching.oldest.preferred_batch_size', 'sequence batching preferred batch size must be positive for m', 'leave it out to prefer the largest batch')]),
    ('a preferred size beyond the batch', sequence("oldest { preferred_batch_size: 5 }"),
     [((5, 12), 'sequence_batching.oldest.preferred_batch_size', 'sequence batching preferred batch size must be <= max batch size for m', "'max_batch_size' is 4")]),
    ('more than all slots', sequence("direct { minimum_slot_utilization: 1.5 }"),
     [((5, 12), 'sequence_batching.direct.minimum_slot_utilization', 'sequence batching minimum slot utilization must be in range (0.0, 1.0] for m', 'it is a share of the slots, such as 0.5')]),
    ('fewer slots than none', sequence("direct { minimum_slot_utilization: -0.5 }"),
     [((5, 12), 'sequence_batching.direct.minimum_slot_utilization', 'sequence batching minimum slot utilization must be in range (0.0, 1.0] for m', 'it is a share of the slots, such as 0.5')]),
    ('slots that are no number', sequence("direct { minimum_slot_utilization: nan }"),
     [((5, 12), 'sequence_batching.direct.minimum_slot_utilization', 'sequence batching minimum slot utilization must be in range (0.0, 1.0] for m', 'it is a share of the slots, such as 0.5')]),
    ('two initial states', state('initial_state [ { name: "I" data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true }, { name: "J" } ]'),
     [((5, 164), 'sequence_batching.state[0].initial_state[1]', "initial_state field for state input 'S' must contain exactly one or zero element. Found '2' elements.", 'keep one of them')]),
    ('an initial state of another type', initial('name: "I" data_type: TYPE_INT32 dims: [ 2, 3 ] zero_data: true'),
     [((5, 107), 'sequence_batching.state[0].initial_state[0].data_type', "The data type used for 'initial_state' field of state 'S' does not match the state data type.", "the state's is TYPE_FP32")]),
    ('an initial state without a name', initial("data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true"),
     [((5, 81), 'sequence_batching.state[0].initial_state[0]', "Field 'name' must be set when using initial_state for state input 'S'.", 'any name will do: add name: "zeros"')]),
    ('a state twice', state("", '\n  state { input_name: "S" output_name: "U" data_type: TYPE_FP32 dims: 1 }'),
     [((6, 11), 'sequence_batching.state[1].input_name', "State input name 'S' specified more than once.", 'each state has an input of its own')]),
    ('an initial state of another rank', initial('name: "I" data_type: TYPE_FP32 dims: 2 zero_data: true'),
     [((5, 128), 'sequence_batching.state[0].initial_state[0].dims', "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'S'. 1 != 2", 'the state has dims [2, -1]')]),
    ('an initial state of any size', initial('name: "I" data_type: TYPE_FP32 dims: [ 2, -1 ] zero_data: true'),
     [((5, 128), 'sequence_batching.state[0].initial_state[0].dims', "'initial_state' field for state input name 'S' contains variable dimensions.", 'a value has sizes: write them')]),
    ('an initial state of another size', initial('name: "I" data_type: TYPE_FP32 dims: [ 3, 3 ] zero_data: true'),
     [((5, 128), 'sequence_batching.state[0].initial_state[0].dims', "'initial_state' dim for input name 'S' doesn't match 'state' dim description. 3 != 2", 'the state has dims [2, -1]')]),
    ('an initial state without data', initial('name: "I" data_type: TYPE_FP32 dims: [ 2, 3 ]'),
     [((5, 81), 'sequence_batching.state[0].initial_state[0]', "initial_state setting expects state'S' to have state_data set", 'add: zero_data: true')]),
    ('a file that is too small', initial('name: "I" data_type: TYPE_FP32 dims: [ 2, 3 ] data_file: "short"'),
     [((5, 143), 'sequence_batching.state[0].initial_state[0].data_file', 'initial_state setting expects 24 bytes, but the data provided from shortonly has 3 bytes.', "data files are named relative to the model's directory initial_state/")]),
    ('a file that is not there', initial('name: "I" data_type: TYPE_FP32 dims: [ 2, 3 ] data_file: "absent"'),
     [((5, 143), 'sequence_batching.state[0].initial_state[0].data_file', "failed to read initial state data file 'absent' for state 'S': No such file or directory", "data files are named relative to the model's directory initial_state/")]),
    ('a growable state in two buffers', state("use_growable_memory: true") + "instance_group { kind: KIND_GPU gpus: 0 }",
     [((5, 81), 'sequence_batching.state[0].use_growable_memory', "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 'S'.", "the field is 'use_same_buffer_for_input_output'")]),
    ('a growable state on the CPU', state("use_growable_memory: true use_same_buffer_for_input_output: true") + "instance_group { kind: KIND_CPU }",
     [((5, 81), 'sequence_batching.state[0].use_growable_memory', "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change the instance type to KIND_GPU or set 'use_growable_memory' to false for state input 'S'.", 'add: instance_group { kind: KIND_GPU }')]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "errors"), [pytest.param(*row[1:], id=row[0]) for row in BROKEN_SEQUENCES])
def test_a_mistake_is_told_with_its_place_and_a_hint(load, errors_of, text, errors):
    loaded = load(
        text, files={"1/model.py": b"", "initial_state/short": b"123"}, gpus=1, run_model_code=False
    )
    assert errors_of(loaded) == errors
    assert loaded.reason == f"Invalid argument: {errors[0][2]}"


@pytest.mark.parametrize("size", [24, 100])
def test_a_file_that_is_large_enough_is_no_mistake(load, size):
    text = initial('name: "I" data_type: TYPE_FP32 dims: [ 2, 3 ] data_file: "enough"')
    loaded = load(text, files={"1/model.py": b"", "initial_state/enough": bytes(size)}, run_model_code=False)
    assert loaded.errors == ()
    [spec] = loaded.specs
    assert spec.scheduling.states[0].initial.data == bytes(24)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            sequence(
                'state { input_name: "S" output_name: "T" data_type: TYPE_STRING dims: 1'
                ' initial_state { name: "I" data_type: TYPE_STRING dims: 1 data_file: "text" } }'
            ),
            "initial state data file 'text': ",
            id="damaged strings",
        ),
        pytest.param(
            initial('name: "I" data_type: TYPE_FP32 dims: [ 2, 3 ] data_file: "../config.pbtxt"'),
            "initial state data file '../config.pbtxt' for state 'S' is outside the model's initial_state directory",
            id="a file outside of the directory",
        ),
    ],
)
def test_a_file_that_cannot_be_an_initial_state_is_told(load, text, message):
    files = {"1/model.py": b"", "initial_state/text": b"\x09\0\0\0short"}
    (error,) = load(text, files=files, run_model_code=False).errors
    assert error.message.startswith(message)
    assert error.key == "sequence_batching.state[0].initial_state[0].data_file"


FROM = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 }\n'
INTO = 'output { name: "OUT" data_type: TYPE_FP32 dims: 4 }\n'
WHOLE = 'name: "m"\nplatform: "ensemble"\n'


# -- mistakes in ensembles: each with its exact text, its place, its field and a hint
#
# The texts are those of the contract, model_config.md section 4.8.


def step(inputs, outputs, model="x"):
    maps = [
        f'{side}_map {{ key: "{key}" value: "{value}" }}'
        for side, pairs in (("input", inputs), ("output", outputs))
        for key, value in pairs
    ]
    return f'  step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}\n'


ONLY = step([("i", "IN")], [("o", "OUT")])


def ensemble(*steps, head=WHOLE + FROM + INTO, more=""):
    return f"{head}ensemble_scheduling {{\n{''.join(steps)}}}\n{more}"


# Each: an id, the text, and every error: its place, key, message and hint.
BROKEN_ENSEMBLES = [
    ('a backend', ensemble(ONLY, head=WHOLE + 'backend: "python"\n' + FROM + INTO),
     [((3, 1), 'backend', "Ensemble model 'm' must have platform type 'ensemble' and empty backend type", "leave 'backend' out")]),
    ('steps of a model of another platform', ensemble(ONLY, head='backend: "python"\n' + FROM + INTO),
     [((4, 1), 'ensemble_scheduling', "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble", 'write platform: "ensemble", and no backend')]),
    ('no schedule', WHOLE + FROM + INTO,
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
    ('an input that nothing takes', ensemble(ONLY, head=WHOLE + FROM + FROM.replace("IN", "MORE") + INTO),
     [((4, 9), 'input[1].name', "ensemble input 'MORE' for ensemble m' is not used", "no step's 'input_map' has it as value")]),
    ('an output that nothing gives', ensemble(ONLY, head=WHOLE + FROM + INTO + INTO.replace("OUT", "MORE")),
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
    ('an input without a type', ensemble(ONLY, head=WHOLE + 'input { name: "IN" dims: 4 }\n' + INTO),
     [((3, 1), 'input[0].data_type', "model input 'IN' must specify 'data_type' for m", 'such as data_type: TYPE_FP32')]),
    ('a cache of a decoupled one', ensemble(ONLY, more="model_transaction_policy { decoupled: true }\nresponse_cache { enable: true }"),
     [((9, 18), 'response_cache.enable', "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable the response cache.", "leave 'response_cache' out")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "errors"), [pytest.param(*row[1:], id=row[0]) for row in BROKEN_ENSEMBLES])
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
    (problem,) = load(ensemble(ONLY), files={"labels.txt": b""}).errors
    assert problem.message == "at least one version must be available under the version policy of model 'm'"
    assert problem.hint == "an ensemble needs a numbered directory too, such as 1/, which may be empty"
