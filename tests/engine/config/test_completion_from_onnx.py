"""ONNX models without ONNX Runtime: what is read from the file and which fields it fills (contract 7.1)."""

import os

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from actors.values.datatypes import DataType
from engine.config.inspection.onnx_file import read_onnx
from engine.config.inspection.wire import Unreadable
from engine.config.load import load_model_config
from tests.support.examples import examples

FILE = {"1/readme": b""}


def port(name, shape=("N", 4), kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(inputs, outputs, *, initializers=(), sparse=(), nodes=(), ir_version=10):
    graph = helper.make_graph(
        list(nodes), "g", list(inputs), list(outputs), list(initializers), sparse_initializer=list(sparse)
    )
    return helper.make_model(graph, ir_version=ir_version, opset_imports=[helper.make_opsetid("", 21)])


def content(*args, **options):
    return model(*args, **options).SerializeToString()


@pytest.fixture
def completed(load):
    """Load a configuration beside an ONNX model and return it completed, or fail with its problems."""

    def run(config, onnx_bytes, **options):
        loaded = load(config, files={"1/model.onnx": onnx_bytes}, **options)
        assert loaded.ok, loaded.problems
        return loaded.configs[-1].config

    return run


def sides(config):
    return [
        [
            (t.name, t.data_type, list(t.dims), list(t.reshape.shape) if t.HasField("reshape") else None)
            for t in side
        ]
        for side in (config.input, config.output)
    ]


BATCHING = content([port("x")], [port("y", ("N", 2, "M"), TensorProto.INT64)])
PLAIN = content([port("x", (3, 4))], [port("y", (3, "K"))])


# -- the rules


def test_a_model_without_any_configuration_is_complete(completed):
    config = completed(None, BATCHING)
    assert (config.max_batch_size, sides(config)) == (4, [[("x", 11, [4], None)], [("y", 9, [2, -1], None)]])
    assert list(config.dynamic_batching.preferred_batch_size) == [4]


@pytest.mark.parametrize(
    ("backend", "size", "scheduler", "dims"),
    [
        ("onnxruntime", 16, "dynamic_batching", [4]),
        ("", 16, "dynamic_batching", [4]),
        ("onnxruntime", 1, None, [4]),  # a batch of one needs no scheduler
        ("onnxruntime", 0, None, [-1, 4]),  # batching is off
    ],
)
def test_the_batch_size_is_the_backend_s_setting(completed, backend, size, scheduler, dims):
    config = completed(None, BATCHING, backend_settings={backend: {"default-max-batch-size": str(size)}})
    assert (config.max_batch_size, config.WhichOneof("scheduling_choice")) == (size, scheduler)
    assert list(config.input[0].dims) == dims


def test_a_configured_batch_size_is_kept(completed):
    config = completed("max_batch_size: 7", BATCHING)
    assert (config.max_batch_size, list(config.dynamic_batching.preferred_batch_size)) == (7, [7])


def test_a_configured_scheduler_is_kept(load):
    loaded = load("sequence_batching { }", files={"1/model.onnx": BATCHING})
    assert loaded.configs[0].config.WhichOneof("scheduling_choice") == "sequence_batching"
    assert loaded.configs[0].config.max_batch_size == 4


def test_a_model_of_fixed_size_does_not_batch(completed):
    config = completed(None, PLAIN)
    assert (config.max_batch_size, config.WhichOneof("scheduling_choice")) == (0, None)


def test_one_fixed_output_is_enough_not_to_batch(completed):
    assert completed(None, content([port("x")], [port("y"), port("z", (1, 4))])).max_batch_size == 0


def test_batching_that_the_model_can_not_do_is_an_error(load):
    loaded = load("\nmax_batch_size: 2", files={"1/model.onnx": PLAIN})
    assert loaded.reason == (
        "Invalid argument: autofill failed for model 'm': model does not support batching while non-zero"
        " max_batch_size is specified"
    )
    assert (loaded.errors[0].path, loaded.errors[0].line) == (loaded.path, 2)


def test_both_sides_given_the_file_is_not_even_opened(load):
    given = (
        "max_batch_size: 2 input { name: 'a' data_type: TYPE_FP16 dims: 1 } "
        "output { name: 'b' data_type: TYPE_FP16 dims: 1 }"
    )
    loaded = load(f"backend: 'onnxruntime' {given}", files=FILE)
    assert loaded.ok
    assert loaded.configs[0].config.WhichOneof("scheduling_choice") is None


def test_one_side_given_only_the_other_is_filled_in(completed):
    config = completed("input { name: 'x' data_type: TYPE_FP32 dims: 4 }", BATCHING)
    assert sides(config) == [[("x", 11, [4], None)], [("y", 9, [2, -1], None)]]
    assert config.max_batch_size == 4


@pytest.mark.parametrize(
    ("onnx_bytes", "inputs", "outputs"),
    [
        pytest.param(PLAIN, [("x", 11, [3, 4], None)], [("y", 11, [3, -1], None)], id="fixed sizes"),
        pytest.param(
            content([port("x", ())], [port("y", (3,))]),
            [("x", 11, [1], None)],
            [("y", 11, [3], None)],
            id="a scalar is one element",
        ),
        pytest.param(
            content([port("x", ("N",))], [port("y")]),
            [("x", 11, [1], [])],
            [("y", 11, [4], None)],
            id="one number a row has a dimension here and none in the model",
        ),
        pytest.param(content([], [port("y", (2,))]), [], [("y", 11, [2], None)], id="it takes nothing"),
    ],
)
def test_tensors_have_the_file_s_shapes(completed, onnx_bytes, inputs, outputs):
    assert sides(completed(None, onnx_bytes)) == [inputs, outputs]


@pytest.mark.parametrize(
    ("config", "onnx_bytes", "told"),
    [
        pytest.param(
            "max_batch_size: 2",
            content([port("x", ())], [port("y")]),
            "model does not support batching",
            id="a scalar and batching exclude each other",
        ),
        pytest.param(
            None,
            content([port("x", (0, 4))], [port("y", (1,))]),
            "model input 'x' dimension must be integer >= 1",
            id="a dimension of nothing",
        ),
        pytest.param(None, BATCHING, "default-max-batch-size is 'many'", id="a setting that is no number"),
    ],
)
def test_what_does_not_go_with_the_file_is_told(load, config, onnx_bytes, told):
    settings = {"onnxruntime": {"default-max-batch-size": "many"}} if "many" in told else {}
    assert told in load(config, files={"1/model.onnx": onnx_bytes}, backend_settings=settings).reason


def test_what_a_scheduler_supplies_is_no_input_of_clients(load):
    config = (
        "sequence_batching { control_input { name: 'start' control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }"
        " state { input_name: 'before' output_name: 'after' data_type: TYPE_FP32 dims: 4 } }"
    )
    onnx_bytes = content([port("x"), port("start"), port("before")], [port("y"), port("after")])
    loaded = load(config, files={"1/model.onnx": onnx_bytes})
    assert [tensor.name for tensor in loaded.configs[0].config.input] == ["x"]


def test_generated_inputs_count_as_given(load):
    config = (
        "batch_input { kind: BATCH_ELEMENT_COUNT target_name: 'n' data_type: TYPE_FP32 source_input: 'x' }"
    )
    loaded = load(config, files={"1/model.onnx": BATCHING})
    assert list(loaded.configs[0].config.input) == []
    assert [tensor.name for tensor in loaded.configs[0].config.output] == ["y"]


@pytest.mark.parametrize(
    ("value", "spelling"),
    [
        (helper.make_tensor_value_info("z", TensorProto.COMPLEX64, (2,)), "complex64"),
        (helper.make_tensor_value_info("z", TensorProto.FLOAT8E4M3FN, (2,)), "float8e4m3fn"),
        (helper.make_tensor_sequence_value_info("z", TensorProto.FLOAT, (2,)), "sequence"),
        (helper.make_sparse_tensor_value_info("z", TensorProto.FLOAT, (2,)), "sparse_tensor"),
    ],
)
def test_a_type_that_no_request_can_carry_is_told_with_the_contract_s_text(load, value, spelling):
    loaded = load(None, files={"1/model.onnx": content([port("x", (2,))], [value])})
    assert loaded.reason == "Invalid argument: unsupported datatype TYPE_INVALID for output 'z' for model 'm'"
    assert spelling in loaded.errors[0].hint


def test_an_output_of_unknown_rank_must_be_written_down(load):
    unknown = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    loaded = load(None, files={"1/model.onnx": content([port("x")], [unknown])})
    assert loaded.reason.endswith(
        "autofill failed for model 'm': the model file gives no shape for output 'y'"
    )
    assert loaded.errors[0].hint == 'add: output [ { name: "y" data_type: TYPE_INT64 dims: [ -1 ] } ]'


def test_completion_off_is_an_error_that_says_so(load):
    loaded = load(
        'name: "m" backend: "onnxruntime" platform: "onnxruntime_onnx"',
        files={"1/model.onnx": BATCHING},
        auto_complete=False,
    )
    assert [problem.message for problem in loaded.errors] == [
        f"model 'm' has no '{side}' in {loaded.path}, and auto-completion is off"
        for side in ("input", "output")
    ]


def test_each_version_is_completed_from_its_own_file(load):
    loaded = load(
        "version_policy { all { } }",
        files={"1/model.onnx": PLAIN, "2/model.onnx": BATCHING, "4/model.onnx": BATCHING},
    )
    assert loaded.ok
    assert [(spec.version, spec.max_batch_size) for spec in loaded.specs] == [(1, 0), (2, 4), (4, 4)]
    assert loaded.specs[0].inputs[0].dims == (3, 4)


def test_a_problem_of_one_version_names_its_file(load, tmp_path):
    loaded = load("version_policy { all { } }", files={"1/model.onnx": BATCHING, "2/model.onnx": b"?"})
    assert [problem.path for problem in loaded.errors] == [tmp_path / "repository/m/2/model.onnx"]
    assert loaded.specs == ()


def test_a_directory_holds_the_model_beside_its_weights(load):
    loaded = load(None, files={"1/model.onnx/model.onnx": BATCHING, "1/model.onnx/weights.bin": b"0"})
    assert loaded.ok
    assert loaded.specs[0].inputs[0].name == "x"


def test_a_link_out_of_the_repository_is_not_followed_into_a_directory(tmp_path, write_model, backends):
    (tmp_path / "elsewhere.onnx").write_bytes(BATCHING)
    directory = write_model(files={"1/model.onnx/weights.bin": b""})
    (directory / "1/model.onnx/model.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    loaded = load_model_config(directory, backends=backends)
    assert loaded.reason.endswith("model file 'model.onnx' of model 'm' is outside the model repository")


def test_a_missing_file_is_told_with_its_path(load):
    loaded = load('backend: "onnxruntime"', files=FILE)
    assert loaded.reason == f"Internal: unable to find '{loaded.path.parent}/1/model.onnx' for model 'm'"


def test_a_named_pipe_in_the_model_s_place_does_not_hang(write_model, backends):
    directory = write_model(config='backend: "onnxruntime"', files=FILE)
    os.mkfifo(directory / "1/model.onnx")
    assert "it is no regular file" in load_model_config(directory, backends=backends).reason


# -- the file


@pytest.fixture
def read(tmp_path):
    def run(onnx_bytes):
        path = tmp_path / "model.onnx"
        path.write_bytes(onnx_bytes)
        return read_onnx(path)

    return run


@pytest.mark.parametrize("datatype", list(DataType))
def test_every_datatype_is_known_by_its_number(read, datatype):
    names = {"BYTES": "STRING", "FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE", "BF16": "BFLOAT16"}
    kind = getattr(TensorProto, names.get(str(datatype), str(datatype)))
    (found,) = read(content([port("x", (2,), kind)], [])).inputs
    assert (found.name, found.datatype, found.shape) == ("x", datatype, (2,))


def test_symbols_are_kept_and_are_of_any_size(read):
    (found,) = read(content([port("x", ("batch", 3, None, "n"))], [])).inputs
    assert (found.shape, found.symbols) == ((-1, 3, -1, -1), ("batch", "", "", "n"))


@pytest.mark.parametrize("ir_version", [3, 10])
def test_inputs_with_a_default_are_left_out(read, ir_version):
    weights = numpy_helper.from_array(np.ones((2, 2), "f4"), "w")
    values = helper.make_tensor("s", TensorProto.FLOAT, (1,), [1.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, (1,), [0]), (4,))
    ports = read(
        content(
            [port("w"), port("x"), port("s")],
            [port("y")],
            initializers=[weights],
            sparse=[sparse],
            ir_version=ir_version,
        )
    )
    assert [each.name for each in ports.inputs] == ["x"]


def test_it_agrees_with_onnx_runtime(read, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["t"], ["u"])]
    made = content(
        [port("x", ("N", 3, None)), port("t", (2,), TensorProto.STRING)],
        [port("y", ("N", 3, None)), port("u", (2,), TensorProto.STRING)],
        nodes=nodes,
    )
    ports = read(made)
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    for ours, theirs in ((ports.inputs, session.get_inputs()), (ports.outputs, session.get_outputs())):
        assert [each.name for each in ours] == [each.name for each in theirs]
        assert [f"tensor({each.spelling})" for each in ours] == [each.type for each in theirs]
        assert [list(each.shape) for each in ours] == [
            [dim if isinstance(dim, int) else -1 for dim in each.shape] for each in theirs
        ]


def test_two_gigabytes_of_weights_are_not_read(tmp_path, monkeypatch):
    path = tmp_path / "large.onnx"
    small = content([port("x")], [port("y")])
    graph = model([port("x")], [port("y")]).graph.SerializeToString()
    size = 1 << 31
    raw = varint(9 << 3 | 2) + varint(size)
    weights = varint(8 << 3 | 2) + b"\x01w" + raw
    initializer = varint(5 << 3 | 2) + varint(len(weights) + size) + weights
    head = varint(7 << 3 | 2) + varint(len(initializer) + size + len(graph)) + initializer
    with path.open("wb") as file:  # sparse: it takes no space
        file.write(small[: small.index(graph) - len(varint(len(graph))) - 1] + head)
        file.seek(size, os.SEEK_CUR)
        file.write(graph)
    fetched = []

    def counting(descriptor, length, position):
        fetched.append(length)
        return pread(descriptor, length, position)

    pread = os.pread
    monkeypatch.setattr("os.pread", counting)
    ports = read_onnx(path)
    assert sum(fetched) < 64 * 1024
    assert [each.name for each in ports.inputs] == ["x"]


def varint(value):
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


# -- files that are not what they seem


def tag(number, wire):
    return varint(number << 3 | wire)


MANY_INPUTS = (tag(11, 2) + varint(3) + tag(1, 2) + b"\x01x") * 10_001


@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        (b"", "it is empty"),
        (b"\x00\x00", "byte 1 begins no field"),
        (b"hello world", "byte 3 begins no field"),
        (tag(7, 2) + varint(1 << 40), "it ends in the middle of a field"),
        (tag(7, 2) + b"\xff" * 11, "has more than ten bytes"),
        (tag(7, 3), "begins no field"),
        (tag(7, 2) + b"\x05" + tag(11, 2) + b"\x7f", "it ends in the middle of a field"),
        (tag(7, 2) + b"\x06" + tag(11, 2) + b"\x04" + tag(1, 2) + b"\x02\xff\xff", "is not UTF-8"),
        (tag(7, 2) + varint(70010) + tag(11, 2) + varint(70006) + tag(1, 2) + varint(70000) + b"x" * 70006, "is too long"),
        (tag(7, 2) + varint(len(MANY_INPUTS)) + MANY_INPUTS, "more than 10000"),
        (content([port("x", [1] * 300)], []), "more than 256 dimensions"),
    ],
)  # fmt: skip
def test_damage_is_told_in_words(read, damaged, what):
    with pytest.raises(Unreadable, match=what):
        read(damaged)


def test_a_damaged_model_is_a_problem_with_the_file_s_path(load):
    loaded = load(None, files={"1/model.onnx": BATCHING[:30]})
    assert loaded.errors[0].message.startswith(
        "autofill failed for model 'm': the ONNX file 'model.onnx' does not tell its inputs and outputs: "
    )
    assert loaded.errors[0].path == loaded.path.parent / "1/model.onnx"


WHOLE = content(
    [port("x"), port("w", (2, 2))],
    [port("y", ("N", 2, "M"), TensorProto.INT64), helper.make_tensor_sequence_value_info("s", 1, (2,))],
    initializers=[numpy_helper.from_array(np.ones((2, 2), "f4"), "w")],
    nodes=[helper.make_node("Identity", ["x"], ["y"])],
)


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples(300),
)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(WHOLE) - 1),
            st.sampled_from(["set", "cut", "insert", "truncate"]),
            st.binary(min_size=1, max_size=12),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_no_mutation_of_a_model_raises(tmp_path, backends, edits):
    mutated = bytearray(WHOLE)
    for at, how, piece in edits:
        match how:
            case "set":
                mutated[at : at + len(piece)] = piece
            case "cut":
                del mutated[at : at + len(piece)]
            case "insert":
                mutated[at:at] = piece
            case _:
                del mutated[at:]
    directory = tmp_path / "m"
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "1/model.onnx").write_bytes(mutated)
    loaded = load_model_config(directory, backends=backends)
    assert bool(loaded.specs) == loaded.ok
    try:
        theirs = onnx.ModelProto.FromString(bytes(mutated))
    except Exception:  # noqa: BLE001  # protobuf refuses it; so may we
        return
    if loaded.ok:  # what we take from a file is what is in it
        assert {spec.name for spec in loaded.specs[0].inputs} <= {value.name for value in theirs.graph.input}
