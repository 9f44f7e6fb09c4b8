"""What ONNX Runtime is asked to compute a model with; what starts on a GPU is for `pytest -m gpu`."""

from typing import Any

import pytest

from actors.values.datatypes import DataType
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.onnx_providers import check_started, providers
from engine.worker.backends.testing import model_info

CUDA, TENSORRT, CPU = "CUDAExecutionProvider", "TensorrtExecutionProvider", "CPUExecutionProvider"
X = [TensorInfo("X", DataType.FP32, [4])]


class Installed:
    """What is asked of the module `onnxruntime`, and of a session."""

    def __init__(self, *available):
        self.available = list(available)

    def preload_dlls(self):
        pass

    def get_available_providers(self):
        return self.available

    get_providers = get_available_providers


ALL = Installed(TENSORRT, CUDA, CPU)


def on_gpu(*accelerators, parameters=None, installed=ALL, kind="GPU", log=lambda level, message: None):
    written = [{"name": name, "parameters": given} for name, given in accelerators]
    config = {"optimization": {"execution_accelerators": {"gpu_execution_accelerator": written}}}
    model = model_info(
        inputs=X, outputs=X, kind=kind, device_id=3, parameters=parameters, config=config, log=log
    )
    return providers(installed, model, 1)


def refused(*accelerators, **options):
    with pytest.raises(LoadError) as caught:
        on_gpu(*accelerators, **options)
    return str(caught.value)


def tensorrt(**parameters):
    [(name, options), (then, _), last] = on_gpu(("tensorrt", parameters))
    assert (name, then, last, options.pop("device_id")) == (TENSORRT, CUDA, CPU, "3")
    return options


def test_a_gpu_has_cuda_and_then_the_cpu():
    assert on_gpu() == [(CUDA, {"device_id": "3"}), CPU]


def test_options_of_the_cuda_accelerator_go_to_its_provider():
    parameters = {"prefer_nhwc": "1", "use_ep_level_unified_stream": "true", "cudnn_conv_algo_search": "2"}
    expected = {
        "prefer_nhwc": "1",
        "use_ep_level_unified_stream": "1",
        "cudnn_conv_algo_search": "DEFAULT",
        "device_id": "3",
    }
    assert on_gpu(("cuda", parameters)) == [(CUDA, expected), CPU]


def test_a_parameter_of_the_model_wins_over_the_accelerators():
    [(_, options), _] = on_gpu(
        ("cuda", {"gpu_mem_limit": "1", "arena_extend_strategy": "0"}), parameters={"gpu_mem_limit": "2"}
    )
    assert options == {"gpu_mem_limit": "2", "arena_extend_strategy": "kNextPowerOfTwo", "device_id": "3"}


@pytest.mark.parametrize("value", ["1", "HEURISTIC"])
def test_an_option_is_tritons_number_or_onnx_runtimes_name(value):
    [(_, options), _] = on_gpu(parameters={"cudnn_conv_algo_search": value})
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"


def test_tensorrt_goes_before_cuda_with_a_workspace_of_a_gibibyte():
    assert tensorrt() == {"trt_max_workspace_size": str(2**30)}


@pytest.mark.parametrize(
    ("mode", "option"),
    [
        ("FP16", {"trt_fp16_enable": "True"}),
        ("BF16", {"trt_bf16_enable": "True"}),
        ("INT8", {"trt_int8_enable": "True"}),
        ("FP32", {}),
    ],
)
def test_the_precision_of_tensorrt_is_a_switch(mode, option):
    assert tensorrt(precision_mode=mode) == {"trt_max_workspace_size": str(2**30), **option}


def test_parameters_of_tensorrt_have_the_providers_names():
    assert tensorrt(
        max_workspace_size_bytes="77",
        int8_calibration_table_name="t.table",
        int8_use_native_calibration_table="0",
        trt_engine_cache_enable="1",
        trt_engine_cache_path="/var/cache/engines",
        trt_cuda_graph_enable="on",
        trt_profile_min_shapes="X:1x4",
    ) == {
        "trt_max_workspace_size": "77",
        "trt_int8_calibration_table_name": "t.table",
        "trt_int8_use_native_calibration_table": "False",
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": "/var/cache/engines",
        "trt_cuda_graph_enable": "True",
        "trt_profile_min_shapes": "X:1x4",
    }


@pytest.mark.parametrize(
    ("accelerator", "reason"),
    [
        (("xnnpack", {}), "unknown Execution Accelerator 'xnnpack' is requested"),
        (
            ("tensorrt", {"trt_fast": "1"}),
            "unknown parameter 'trt_fast' is provided for TensorRT Execution Accelerator",
        ),
        (("tensorrt", {"precision_mode": "FP8"}), "unsupported precision mode 'FP8' is requested"),
        (("tensorrt", {"trt_dla_enable": "maybe"}), "failed to convert 'maybe' to boolean"),
        (("cuda", {"do_copy_in_default_stream": "2"}), "failed to convert '2' to boolean"),
        (
            ("cuda", {"cudnn_conv_algo_search": "9"}),
            "unsupported cudnn_conv_algo_search value '9' is requested",
        ),
        (
            ("cuda", {"arena_extend_strategy": "9"}),
            "unsupported arena_extend_strategy value '9' is requested",
        ),
        (
            ("cuda", {"device_id": "1"}),
            "unable to load model 'model', execution accelerator 'cuda' has parameter 'device_id', which"
            " follows from the instance group's 'gpus'",
        ),
    ],
)
def test_what_an_accelerator_does_not_have_is_refused(accelerator, reason):
    assert refused(accelerator) == reason


def test_accelerators_of_gpus_are_not_read_for_a_cpu():
    logged = []
    found = on_gpu(("xnnpack", {}), kind="CPU", log=lambda level, message: logged.append(message))
    assert found == [CPU]
    assert logged == [
        "model 'model': 'gpu_execution_accelerator' has no effect for instance 'model_0_0' of kind KIND_CPU"
    ]


def test_a_provider_that_is_not_installed_is_named():
    said = refused(("tensorrt", {}), installed=Installed(CUDA, CPU))
    assert (
        "needs ONNX Runtime's provider for TensorRT, and the installed one has CUDAExecutionProvider" in said
    )
    assert "the installed onnxruntime has no CUDA provider" in refused(installed=Installed(CPU))


@pytest.mark.parametrize(
    ("running", "told"), [((CPU,), "TensorRT"), ((TENSORRT, CPU), "CUDA"), ((TENSORRT, CUDA, CPU), "")]
)
def test_a_provider_that_does_not_start_keeps_the_model_from_loading(running, told):
    model = model_info(inputs=X, outputs=X, kind="GPU")
    asked: list[Any] = [(TENSORRT, {}), (CUDA, {}), CPU]
    if told:
        with pytest.raises(LoadError, match=f"could not start its {told} provider"):
            check_started(Installed(*running), model, asked)
    else:
        check_started(Installed(*running), model, asked)
