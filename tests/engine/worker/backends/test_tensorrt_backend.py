"""TensorRT engines, with a stand-in for TensorRT over the stand-in for the driver.

What is proved is the code around TensorRT: what is copied where, waited for, refused and said. It proves
nothing of TensorRT or of a GPU.
"""

import enum
import sys
import types

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.tensorrt.backend import TensorRtBackend
from engine.worker.backends.testing import LocalBatch, LocalRequest, model_info, run
from engine.worker.devices import cuda
from tests.support.engines import tensorrt
from tests.support.engines.tensorrt import plan, tensor
from tests.support.fake_gpu import Memory, built, copies, in_this_process, lose

pytestmark = pytest.mark.system  # a compiler is started for the stand-in

FP32, INT64 = DataType.FP32, DataType.INT64
UP_TO_8 = [(1, 4), (4, 4), (8, 4)]
DOUBLE = tensor("X", [-1, 4], UP_TO_8), tensor("Y", [-1, 4])
X = TensorInfo("X", FP32, [4])
Y = TensorInfo("Y", FP32, [4])
GROUP = "model_0"  # of the instance that `model_info` tells of


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    """Two devices in this process, for as long as this module runs."""
    with in_this_process(built(tmp_path_factory.mktemp("gpu"))) as environ:
        yield environ


@pytest.fixture(autouse=True)
def package(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt)


class Loaded:
    def __init__(self, info):
        self.logged: list[tuple[str, str]] = []
        info.log = lambda level, message: self.logged.append((level, message))
        self.info, self.backend = info, TensorRtBackend()
        self.backend.load(info)

    def __call__(self, *requests, **options):
        return run(self.backend, self.info, [LocalRequest(inputs, **options) for inputs in requests])


@pytest.fixture
def load(environ, version_directory):
    """Load a plan; unload it afterwards."""
    loaded = []

    def load(written=None, inputs=(X,), outputs=(Y,), *, filename="model.plan", **options):
        (version_directory / filename).write_bytes(plan("double", *DOUBLE) if written is None else written)
        info = model_info(
            version_directory,
            inputs=inputs,
            outputs=outputs,
            **{"kind": "GPU", "max_batch_size": 8, **options},
        )
        loaded.append(Loaded(info))
        return loaded[-1]

    yield load
    for each in loaded:
        each.backend.unload()


def rows(count, start=0, width=4):
    return np.arange(start, start + count * width, dtype="f4").reshape(count, width)


def refused(load, *arguments, **options):
    with pytest.raises(LoadError) as caught:
        load(*arguments, **options)
    return str(caught.value)


def graphs(**options):
    return {"optimization": {"cuda": {"graphs": True, **options}}}


# -- executions


def test_requests_are_computed_together_and_answered_apart(load):
    first, second = load()({"X": rows(1)}, {"X": rows(3, 50)})
    assert np.array_equal(first.outputs["Y"], rows(1) * 2)
    assert np.array_equal(second.outputs["Y"], rows(3, 50) * 2)


def test_a_batch_costs_one_copy_to_the_device_and_one_back(load, environ):
    loaded = load()
    before = len(copies(environ))
    loaded({"X": rows(1)}, {"X": rows(3)})
    assert [(each.kind, each.nbytes) for each in copies(environ)[before:]] == [("HtoD", 64), ("DtoH", 64)]


def test_an_input_on_the_device_and_an_output_that_stays_there_pass_no_host(load, environ):
    loaded = load()
    there = Memory(rows(2))
    before = len(copies(environ))
    [answer] = loaded({"X": there.array}, device_outputs=["Y"])
    # The one copy is the test's own, which looks at the answer.
    assert [each.kind for each in copies(environ)[before:]] == ["DtoH"]
    assert answer.on_device == {"Y"}
    assert np.array_equal(answer.outputs["Y"], rows(2) * 2)


def test_inputs_of_several_requests_are_joined_on_the_device(load, environ):
    loaded = load()
    parts = [Memory(rows(1)), Memory(rows(2, 9))]
    before = len(copies(environ))
    first, second = loaded(*({"X": part.array} for part in parts))
    assert [each.kind for each in copies(environ)[before:]] == ["DtoD", "DtoD", "DtoH"]
    assert np.array_equal(first.outputs["Y"], rows(1) * 2)
    assert np.array_equal(second.outputs["Y"], rows(2, 9) * 2)


def test_an_input_that_is_not_aligned_is_copied_within_the_device(load, environ):
    loaded = load()
    there = Memory(rows(3))
    before = len(copies(environ))
    [answer] = loaded({"X": there.array.rows(1, 3)})
    assert [each.kind for each in copies(environ)[before:]] == ["DtoD", "DtoH"]
    assert np.array_equal(answer.outputs["Y"], rows(3)[1:] * 2)


def test_inputs_on_the_device_and_in_host_memory_go_together(load):
    inputs = [tensor(name, [-1, 4], UP_TO_8) for name in "XZ"]
    loaded = load(plan("sum", *inputs, tensor("Y", [-1, 4])), [X, TensorInfo("Z", FP32, [4])])
    [answer] = loaded({"X": Memory(rows(2)).array, "Z": rows(2, 7)})
    assert np.array_equal(answer.outputs["Y"], rows(2) + rows(2, 7))


@pytest.mark.parametrize("options", [{"busy_wait_events": True}, {"output_copy_stream": True}])
def test_streams_are_as_the_configuration_wants_them(load, options):
    config = {"optimization": {"cuda": options, "priority": "PRIORITY_MAX"}}
    loaded = load(config=config)
    for start in range(3):
        [answer] = loaded({"X": rows(2, start)})
        assert np.array_equal(answer.outputs["Y"], rows(2, start) * 2)


def test_lanes_have_contexts_of_their_own(load):
    loaded = load(lanes=3)
    for start in range(6):
        [answer] = loaded({"X": rows(1, start)})
        assert np.array_equal(answer.outputs["Y"], rows(1, start) * 2)


def test_a_scalar_has_one_element_in_the_configuration(load):
    written = plan("scalar", tensor("X", [], [(), (), ()]), tensor("Y", []))
    one = [TensorInfo(name, FP32, [1]) for name in "XY"]
    [answer] = load(written, one[:1], one[1:], max_batch_size=0)({"X": np.array([4], "f4")})
    assert answer.outputs["Y"].tolist() == [5]


def test_the_size_of_an_output_may_follow_from_elements(load):
    written = plan("nonzero", tensor("X", [-1], [(1,), (4,), (99,)]), tensor("Y", [-1], type="INT64"))
    loaded = load(written, [TensorInfo("X", FP32, [-1])], [TensorInfo("Y", INT64, [-1])], max_batch_size=0)
    for values in ([0, 1, 0, 2], [0] * 9, [3] * 50):
        [answer] = loaded({"X": np.array(values, "f4")})
        assert answer.outputs["Y"].tolist() == np.flatnonzero(values).tolist()


SHAPES = (
    tensor("S", [2], [(2,), (2,), (2,)], type="INT64", is_shape=True, values={"0": [[1, 1], [2, 2], [5, 5]]}),
    tensor("Y", [-1, -1]),
    tensor("T", [2], type="INT64", is_shape=True),
)
MARKED = {
    "input": [{"name": "S", "is_shape_tensor": True}],
    "output": [{"name": "T", "is_shape_tensor": True}],
}
SHAPE_IO = ([TensorInfo("S", INT64, [2])], [TensorInfo("Y", FP32, [-1, -1]), TensorInfo("T", INT64, [2])])


def test_a_shape_tensor_says_how_large_an_output_is(load):
    loaded = load(plan("fill", *SHAPES), *SHAPE_IO, config=MARKED, max_batch_size=0)
    for shape in ([2, 3], [4, 1]):
        [answer] = loaded({"S": np.array(shape)})
        assert answer.outputs["Y"].shape == tuple(shape)
        assert answer.outputs["T"].tolist() == [2 * size for size in shape]
    [answer] = loaded({"S": np.array([2, 6])})
    assert answer.code is ErrorCode.INVALID_ARG
    assert answer.message.endswith(
        "The shape value at index 1 is expected to be in range from 1 to 5, Got: 6"
    )


def test_ragged_requests_are_one_input_beside_where_they_begin(load):
    written = plan(
        "ragged",
        tensor("X", [-1], [(1,), (8,), (64,)]),
        tensor("STARTS", [-1], [(1,), (4,), (8,)]),
        tensor("Y", [-1, 1]),
    )
    config = {
        "batch_input": [
            {
                "kind": "BATCH_ELEMENT_COUNT",
                "target_name": ["STARTS"],
                "data_type": "TYPE_FP32",
                "source_input": ["X"],
            }
        ]
    }
    loaded = load(
        written, [TensorInfo("X", FP32, [-1], ragged=True)], [TensorInfo("Y", FP32, [1])], config=config
    )
    answers = loaded({"X": np.array([[1, 2]], "f4")}, {"X": np.array([[3, 4, 5]], "f4")})
    # The plan takes the counts, 2 and 3, for where to begin: what matters is that it is given them.
    assert [answer.outputs["Y"].tolist() for answer in answers] == [[[3]], [[9]]]


# -- profiles

TWO = [(1, 4), (1, 4), (2, 4)], [(3, 4), (8, 4), (8, 4)]


def two_profiles(load, profiles, **options):
    written = plan("double", tensor("X", [-1, 4], *TWO), tensor("Y", [-1, 4]), profiles=2)
    group = {"name": GROUP, "profile": profiles}
    return load(written, config={"instance_group": [group], **options})


def test_each_batch_goes_to_a_profile_that_takes_it(load):
    loaded = two_profiles(load, ["0", "1"])
    for count in (1, 2, 3, 8, 2):
        [answer] = loaded({"X": rows(count)})
        assert np.array_equal(answer.outputs["Y"], rows(count) * 2)


def test_only_the_profiles_of_the_group_are_used(load):
    loaded = two_profiles(load, ["1"])
    [answer] = loaded({"X": rows(2)})
    assert answer.code is ErrorCode.INVALID_ARG
    assert answer.message == (
        "request specifies invalid shape for input 'X' for model_0_0. Error details: model expected the"
        " shape of"
        " dimension 0 to be between 3 and 8 but received 2"
    )


def test_a_profile_that_the_engine_does_not_have_is_refused(load):
    assert refused(two_profiles, load, ["0", "2"]).endswith(
        "Can not set the specified optimization profile [2] for model_0_0. Expected optimization profile"
        " index range"
        " 0-1"
    )


# -- CUDA graphs


def launched(environ):
    return sum(each.kind == "graph" for each in copies(environ))


def test_graphs_serve_the_sizes_that_were_captured(load, environ):
    batcher = {"dynamic_batching": {"preferred_batch_size": [2]}}
    loaded = load(config={**graphs(), **batcher})
    for count, known in ((1, True), (2, True), (3, False), (8, True), (1, True)):
        before = launched(environ)
        [answer] = loaded({"X": rows(count, 3)})
        assert np.array_equal(answer.outputs["Y"], rows(count, 3) * 2)
        assert launched(environ) - before == known


def test_an_input_on_the_device_is_copied_to_where_a_graph_reads(load, environ):
    loaded = load(config=graphs())
    before = len(copies(environ))
    [answer] = loaded({"X": Memory(rows(1)).array})
    assert [each.kind for each in copies(environ)[before:]] == ["HtoD", "graph", "DtoD", "DtoH"]
    assert np.array_equal(answer.outputs["Y"], rows(1) * 2)


def test_a_graph_with_a_lower_bound_serves_fewer_rows_with_zeros_in_the_rest(load, environ):
    spec = {"batch_size": 8, "graph_lower_bound": {"batch_size": 5}}
    loaded = load(config=graphs(graph_spec=[spec]))
    for count, known in ((8, 1), (5, 1), (4, 0)):
        before = launched(environ)
        [answer] = loaded({"X": rows(count, 3)})
        assert np.array_equal(answer.outputs["Y"], rows(count, 3) * 2)
        assert launched(environ) - before == known


def test_a_graph_has_the_shapes_of_its_inputs(load, environ):
    wide = tensor("X", [-1, -1], [(1, 1), (4, 4), (8, 9)]), tensor("Y", [-1, -1])
    ports = [TensorInfo(name, FP32, [-1]) for name in "XY"]
    spec = {"batch_size": 2, "input": {"X": {"dim": ["7"]}}}
    loaded = load(plan("double", *wide), ports[:1], ports[1:], config=graphs(graph_spec=[spec]))
    for width, known in ((7, 1), (4, 0)):
        before = launched(environ)
        loaded({"X": rows(2, width=width)})
        assert launched(environ) - before == known


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"batch_size": 9}, "does not go with max_batch_size 8"),
        ({"batch_size": 1, "input": {"Z": {"dim": [1]}}}, "names input 'Z', and the engine has: X"),
        ({"batch_size": 2, "graph_lower_bound": {"batch_size": 3}}, "batch_size 3; it must be from 1 to 2"),
        (
            {"batch_size": 2, "graph_lower_bound": {"batch_size": 1, "input": {"X": {"dim": [2]}}}},
            "smaller batches can be filled up, smaller inputs can't",
        ),
    ],
)
def test_a_graph_spec_that_can_not_be_had_is_refused(load, spec, reason):
    assert reason in refused(load, config=graphs(graph_spec=[spec]))


def test_an_engine_with_shape_tensors_goes_without_graphs_and_says_so(load):
    loaded = load(plan("fill", *SHAPES), *SHAPE_IO, config={**MARKED, **graphs()}, max_batch_size=0)
    assert ("warning", "no CUDA graphs: 'S' is a shape tensor, whose elements count") in loaded.logged


# -- failures


def test_a_request_that_fails_costs_its_batchmates_nothing(load):
    wide = tensor("X", [-1, -1], [(1, 1), (4, 4), (2, 4)]), tensor("Y", [-1, -1])
    ports = [TensorInfo(name, FP32, [-1]) for name in "XY"]
    bad, good = load(plan("double", *wide), ports[:1], ports[1:], max_batch_size=2)(
        {"X": rows(3)}, {"X": rows(1)}
    )
    assert bad.code is ErrorCode.INVALID_ARG
    assert np.array_equal(good.outputs["Y"], rows(1) * 2)


class Full(LocalBatch):
    def allocate(self, name, datatype, shape):
        raise MemoryError("no room for outputs")


def test_nothing_is_under_way_when_an_execution_has_failed(load, environ):
    loaded = load()
    before = len(copies(environ))
    batch = Full(loaded.info, [LocalRequest({"X": rows(2)})])
    with pytest.raises(MemoryError):
        loaded.backend.execute(batch)
    assert [each.kind for each in copies(environ)[before:]] == ["HtoD"]
    assert np.array_equal(loaded({"X": rows(2)})[0].outputs["Y"], rows(2) * 2)


def test_what_tensorrt_says_of_a_failure_reaches_the_client(load):
    [answer] = load(plan("fail", *DOUBLE))({"X": rows(1)})
    assert (answer.code, answer.message) == (
        ErrorCode.INTERNAL,
        "TensorRT failed to run 'model_0_0': Cask convolution execution failed",
    )


def test_a_worker_whose_device_is_lost_ends(load, environ):
    loaded = load()
    found = lose(environ)
    try:
        with pytest.raises(SystemExit):
            loaded({"X": rows(1)})
    finally:
        found()


# -- what keeps a plan from being loaded


def test_a_plan_of_another_version_says_which(load):
    assert refused(load, plan("double", *DOUBLE, version="10.3.0.26")) == (
        "unable to load model 'model', unable to create TensorRT engine: the engine plan file is not"
        " compatible with"
        " this version of TensorRT (TensorRT 10.3.0.26 has built the plan, and 10.13.0.35 would run it on"
        " GPU 0, of"
        " compute capability 8.6; build it again with this version, or version-compatible, and give the"
        " server"
        " --backend-config=tensorrt,version-compatible=true)"
    )


def test_a_plan_may_bring_its_own_runtime_where_the_operator_says_so(load):
    loaded = load(plan("double", *DOUBLE, version="10.3.0.26"), settings={"version-compatible": "true"})
    [answer] = loaded({"X": rows(1)})
    assert np.array_equal(answer.outputs["Y"], rows(1) * 2)


def test_what_is_no_plan_is_refused(load):
    assert "is no TensorRT plan: it is damaged, cut short" in refused(load, b"PK\x03\x04" + bytes(99))


def test_a_damaged_plan_is_refused(load):
    assert "unable to create TensorRT engine: Serialization assertion" in refused(
        load, plan("double", *DOUBLE)[:60]
    )


def test_a_plan_of_tensorrt_rtx_names_its_package(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    assert "its plan is for TensorRT-RTX, and no package here reads it (tensorrt_rtx)" in refused(
        load, b"vtrt" + bytes(99)
    )


class RtxRuntime(tensorrt.Runtime):
    def deserialize_cuda_engine(self, plan):
        self.logger.log(tensorrt.ILogger.Severity.ERROR, "Engine deserialization failed")

    def get_engine_validity(self, plan):
        return "INVALID", 2


class Diagnostics(enum.IntEnum):
    VERSION_MISMATCH, UNSUPPORTED_CC = 1, 2


def test_tensorrt_rtx_says_by_name_what_is_wrong_with_a_plan(load, monkeypatch):
    rtx = types.ModuleType("tensorrt_rtx")
    vars(rtx).update(vars(tensorrt), Runtime=RtxRuntime, EngineInvalidityDiagnostics=Diagnostics)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", rtx)
    assert (
        "Engine deserialization failed; it diagnoses UNSUPPORTED_CC (TensorRT-RTX 10.13.0.35 has"
        in refused(load, b"vtrt" + plan("double", *DOUBLE)[4:])
    )


def test_the_plan_may_follow_from_the_compute_capability(load):
    names = {"8.6": "ampere.plan", "9.0": "hopper.plan"}
    loaded = load(filename="ampere.plan", config={"cc_model_filenames": names})
    assert loaded({"X": rows(1)})[0].code is None


def test_a_missing_plan_is_named(load, version_directory):
    said = refused(load, filename="other.plan")
    assert said == f"unable to find '{version_directory}/model.plan' for model instance 'model_0_0'"


def test_a_cpu_does_not_do(load):
    assert "TensorRT backend supports only GPU device" in refused(load, kind="CPU")


def test_a_gpu_that_is_not_there_is_named(load):
    assert "is for GPU 2, and the CUDA driver has 2, counted from 0" in refused(load, device_id=2)


def test_no_package_is_touched_without_a_driver(load, monkeypatch):
    """The real one ends the process."""
    monkeypatch.setattr(cuda, "_made", [])
    monkeypatch.setattr(cuda, "_LIBRARY", "libnothing.so.1")
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    assert "TensorRT needs a GPU: GPU memory can't be reached" in refused(load)


NOT_LINEAR = tensor("X", [-1, 8, 4, 4], [(1, 8, 4, 4), (1, 8, 4, 4), (8, 8, 4, 4)], format="HWC8")
IMAGE = TensorInfo("X", FP32, [8, 4, 4]), TensorInfo("Y", FP32, [8, 4, 4])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {},
            "input 'X' for model 'model' uses a non-linear IO format, but 'is_non_linear_format_io' is"
            " incorrectly"
            " set to false in the model configuration.",
        ),
        (
            {"output": [{"name": "Y", "is_non_linear_format_io": True}]},
            "output 'Y' for model 'model' uses a linear IO format, but 'is_non_linear_format_io' is"
            " incorrectly set"
            " to true in the model configuration.",
        ),
    ],
)
def test_formats_are_as_the_configuration_says(load, config, reason):
    config.setdefault("input", [])
    if "output" in config:
        config["input"] = [{"name": "X", "is_non_linear_format_io": True}]
    written = plan("double", NOT_LINEAR, tensor("Y", [-1, 8, 4, 4]))
    assert refused(load, written, IMAGE[:1], IMAGE[1:], config=config) == reason


@pytest.mark.parametrize(
    ("ports", "reason"),
    [
        ([TensorInfo("Z", FP32, [4])], "unexpected inference input 'Z', allowed inputs are: X"),
        ([X, X], "configuration expects 2 inputs, model provides 1: X"),
        (
            [TensorInfo("X", INT64, [4])],
            "expects datatype TYPE_INT64 for input 'X', model provides TYPE_FP32",
        ),
        (
            [TensorInfo("X", FP32, [5])],
            "model 'model', tensor 'X': the model expects 2 dimensions (shape [-1,4]) but the model"
            " configuration"
            " specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by"
            " the explicit"
            " tensor shape, making complete shape [-1,5])",
        ),
        ([TensorInfo("X", FP32, [4], optional=True)], "optional input 'X' is not supported"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(load, ports, reason):
    assert reason in refused(load, inputs=ports)


def test_a_larger_batch_than_the_profiles_have_is_refused(load):
    assert refused(load, max_batch_size=9) == (
        "unexpected configuration maximum batch size 9 for 'model', model maximum is 8"
    )


def test_an_engine_of_a_fixed_batch_does_not_batch(load):
    fixed = tensor("X", [2, 4], [(2, 4)] * 3), tensor("Y", [2, 4])
    assert "the first dimension must be -1; but shape expected by the model is [2,4]" in refused(
        load, plan("double", *fixed)
    )


@pytest.mark.parametrize(
    ("marks", "reason"),
    [
        (
            {},
            "input 'S' for model 'model' is a shape tensor but the model configuration doesn't mark it as"
            " a shape"
            " tensor.",
        ),
        (
            {**MARKED, "output": [{"name": "Y", "is_shape_tensor": True}]},
            "output 'Y' for model 'model' is incorrectly marked as a shape tensor in the model"
            " configuration.",
        ),
    ],
)
def test_shape_tensors_are_as_the_configuration_says(load, marks, reason):
    assert refused(load, plan("fill", *SHAPES), *SHAPE_IO, config=marks, max_batch_size=0) == reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"parameters": {"execution_context_allocation_strategy": "DYNAMIC"}},
            "Invalid value for 'execution_context_allocation_strategy': 'DYNAMIC' for model instance"
            " 'model_0_0'."
            " Supported values are 'STATIC' and 'ON_PROFILE_CHANGE'.",
        ),
        ({"parameters": {"enable_multi_device": "true"}}, "parameter 'enable_multi_device' is not supported"),
        ({"settings": {"execution-policy": "FAST"}}, "must be one of DEVICE_BLOCKING, BLOCKING"),
        ({"settings": {"version-compatible": "maybe"}}, "failed to convert 'maybe' to boolean"),
        ({"settings": {"plugins": "/nowhere/libp.so"}}, "setting 'plugins' names '/nowhere/libp.so': "),
        (
            {"config": {"instance_group": [{"name": GROUP, "secondary_devices": [{"device_id": 1}]}]}},
            "names DLA core 1, and GPU 0 has 0",
        ),
    ],
)
def test_what_can_not_be_honoured_is_refused_by_name(load, options, reason):
    assert reason in refused(load, **options)


# -- completion


def completed(version_directory, written, config=None):
    (version_directory / "model.plan").write_bytes(written)
    return TensorRtBackend.complete_config(
        model_info(version_directory, inputs=[], outputs=[], config=config or {}, kind="GPU")
    )


def test_an_engine_completes_an_empty_configuration(environ, version_directory):
    assert completed(version_directory, plan("double", *DOUBLE)) == {
        "max_batch_size": 8,
        "dynamic_batching": {},
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}],
    }


def test_the_engine_is_asked_on_a_gpu_that_the_model_uses(environ, version_directory):
    config = {"instance_group": [{"gpus": [7]}], "max_batch_size": 8}
    with pytest.raises(LoadError, match="is for GPU 7, and the CUDA driver has 2"):
        completed(version_directory, plan("double", *DOUBLE), config)


def test_the_largest_of_the_profiles_is_the_batch(environ, version_directory):
    written = plan("double", tensor("X", [-1, 4], TWO[0], TWO[1]), tensor("Y", [-1, 4]), profiles=2)
    found = completed(version_directory, written)
    assert found is not None
    assert found["max_batch_size"] == 8


def test_configured_dims_say_that_a_model_does_not_batch(environ, version_directory):
    config = {"input": [{"name": "X", "dims": [-1, 4]}]}
    found = completed(version_directory, plan("double", *DOUBLE), config)
    assert found is not None
    assert found["max_batch_size"] == 0
    assert found["output"] == [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1, 4]}]


def test_shape_tensors_are_marked(environ, version_directory):
    found = completed(version_directory, plan("fill", *SHAPES))
    assert found is not None
    assert (found["max_batch_size"], found["input"][0]["is_shape_tensor"]) == (0, True)


FIXED = tensor("X", [2, 4], [(2, 4)] * 3), tensor("Y", [2, 4])


@pytest.mark.parametrize(
    ("tensors", "config", "reason"),
    [
        (
            DOUBLE,
            {"max_batch_size": 9},
            "configuration specified max-batch 9 but TensorRT engine only supports max-batch 8",
        ),
        (
            FIXED,
            {"max_batch_size": 2},
            "model does not support batching while non-zero max_batch_size is specified",
        ),
        (
            FIXED,
            {"input": [{"name": "X", "dims": [4]}]},
            "model tensor shape configuration hints for dynamic batching but the underlying engine doesn't"
            " support batching.",
        ),
        ((tensor("X", [1], [(1,)] * 3, type="FP8"), tensor("Y", [1])), {}, "it is of TensorRT's type FP8"),
    ],
)
def test_completion_refuses_what_contradicts_the_engine(environ, version_directory, tensors, config, reason):
    with pytest.raises(LoadError) as caught:
        completed(version_directory, plan("double", *tensors), config)
    assert reason in str(caught.value)


def test_without_a_driver_only_a_complete_configuration_is_believed(environ, version_directory, monkeypatch):
    monkeypatch.setattr(cuda, "_made", [])
    monkeypatch.setattr(cuda, "_LIBRARY", "libnothing.so.1")
    written = plan("double", *DOUBLE)
    assert completed(version_directory, written, {"input": [{}], "output": [{}]}) is None
    with pytest.raises(
        LoadError, match=r"unable to load plan file to auto complete config: .*TensorRT needs"
    ):
        completed(version_directory, written)
