"""What computes an ONNX model: ONNX Runtime's providers, the best first, and the options of each.

Contract: backends.md sections 2.1 and 2.3. An instance on a GPU has the CUDA provider, whose options are the
model's parameters and those of the accelerator named `cuda`. With the accelerator `tensorrt` TensorRT's
provider comes before it, and CUDA computes what TensorRT can't. The CPU's provider is always the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.worker.backends.base import LoadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo

    Provider = tuple[str, Mapping[str, str]]

_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"
_OPENVINO = "OpenVINOExecutionProvider"
_TENSORRT = "TensorrtExecutionProvider"

# Triton's numbers for what ONNX Runtime's options have names for.
_NAMES: Mapping[str, Mapping[str, str]] = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
}
_CUDA_KEYS = (*_NAMES, "gpu_mem_limit", "do_copy_in_default_stream")
_CUDA_SWITCHES = ("do_copy_in_default_stream", "use_ep_level_unified_stream")
_DEVICE = "device_id"

_PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "True"},
    "BF16": {"trt_bf16_enable": "True"},
    "INT8": {"trt_int8_enable": "True"},
}
_WORKSPACE_BYTES = str(1 << 30)
# The accelerator's parameters that the provider has by another name.
_RENAMED: Mapping[str, str] = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_KEPT = (
    "trt_max_partition_iterations",
    "trt_min_subgraph_size",
    "trt_dla_enable",
    "trt_dla_core",
    "trt_engine_cache_enable",
    "trt_engine_cache_path",
    "trt_engine_cache_prefix",
    "trt_dump_subgraphs",
    "trt_force_sequential_engine_build",
    "trt_context_memory_sharing_enable",
    "trt_layer_norm_fp32_fallback",
    "trt_timing_cache_enable",
    "trt_timing_cache_path",
    "trt_force_timing_cache",
    "trt_detailed_build_log",
    "trt_build_heuristics_enable",
    "trt_sparsity_enable",
    "trt_builder_optimization_level",
    "trt_auxiliary_streams",
    "trt_tactic_sources",
    "trt_extra_plugin_lib_paths",
    "trt_profile_min_shapes",
    "trt_profile_max_shapes",
    "trt_profile_opt_shapes",
    "trt_cuda_graph_enable",
    "trt_dump_ep_context_model",
    "trt_ep_context_file_path",
    "trt_ep_context_embed_mode",
)
# ONNX Runtime's Python bindings take no 1 and 0 for these.
_SWITCHES = frozenset(
    {
        "trt_int8_use_native_calibration_table",
        "trt_dla_enable",
        "trt_engine_cache_enable",
        "trt_dump_subgraphs",
        "trt_force_sequential_engine_build",
        "trt_context_memory_sharing_enable",
        "trt_layer_norm_fp32_fallback",
        "trt_timing_cache_enable",
        "trt_force_timing_cache",
        "trt_detailed_build_log",
        "trt_build_heuristics_enable",
        "trt_sparsity_enable",
        "trt_cuda_graph_enable",
        "trt_dump_ep_context_model",
    }
)
_ON, _OFF = ("true", "on", "1"), ("false", "off", "0")


def providers(onnxruntime: Any, model: ModelInfo, threads: int) -> list[Any]:
    """Return the providers as a session takes them. Raises LoadError for one that can't be had.

    `threads` are those of the session.
    """
    on_cpu = [*_of_openvino(onnxruntime, model, threads), _CPU]
    if model.kind != "GPU":
        if _accelerators(model, "gpu"):
            model.log(
                "warning",
                f"model '{model.name}': 'gpu_execution_accelerator' has no effect for instance"
                f" '{model.instance_name}' of kind KIND_{model.kind}",
            )
        return on_cpu
    asked = _on_gpu(model)
    onnxruntime.preload_dlls()  # CUDA and cuDNN may be pip packages, where the loader does not look
    available = onnxruntime.get_available_providers()
    if _CUDA not in available:
        raise LoadError(
            f"unable to load model '{model.name}', instance '{model.instance_name}' has kind KIND_GPU but the"
            f" installed onnxruntime has no CUDA provider (it has {', '.join(available)});"
            " install onnxruntime-gpu or use KIND_CPU"
        )
    if any(name == _TENSORRT for name, _ in asked) and _TENSORRT not in available:
        raise LoadError(
            f"unable to load model '{model.name}', execution accelerator 'tensorrt' needs ONNX Runtime's"
            f" provider for TensorRT, and the installed one has {', '.join(available)}; install"
            " onnxruntime-gpu, and TensorRT in the version that it was built for"
        )
    return [*asked, *on_cpu]


def check_started(onnxruntime_session: Any, model: ModelInfo, asked: Sequence[Any]) -> None:
    """Raise LoadError if a session goes without a GPU's provider that it was asked to have.

    ONNX Runtime leaves out a provider whose libraries can't be loaded, and says so in its log only.
    """
    running = onnxruntime_session.get_providers()
    for each in asked:
        name = each if isinstance(each, str) else each[0]
        if name in (_CUDA, _TENSORRT) and name not in running:
            what, needs = ("CUDA", "CUDA and cuDNN") if name == _CUDA else ("TensorRT", "CUDA and TensorRT")
            raise LoadError(
                f"unable to load model '{model.name}', instance '{model.instance_name}' has kind KIND_GPU but"
                f" ONNX Runtime could not start its {what} provider; are {needs} installed, in the versions"
                " it was built for?"
            )


def _accelerators(model: ModelInfo, kind: str) -> Sequence[Mapping[str, Any]]:
    written = model.config.get("optimization", {}).get("execution_accelerators", {})
    found: Sequence[Mapping[str, Any]] = written.get(f"{kind}_execution_accelerator", ())
    return found


def _on_gpu(model: ModelInfo) -> list[Provider]:
    """Return TensorRT's provider, if it is asked for, and CUDA's."""
    cuda: dict[str, str] = {}
    found: list[Provider] = []
    for accelerator in _accelerators(model, "gpu"):
        name, parameters = accelerator.get("name", ""), accelerator.get("parameters", {})
        if name == "cuda":
            cuda.update(_cuda_options(model, parameters))
        elif name == "tensorrt":
            found = [(_TENSORRT, {**_tensorrt_options(parameters), _DEVICE: str(model.device_id)})]
        else:
            raise LoadError(f"unknown Execution Accelerator '{name}' is requested")
    # As in Triton, the model's own parameters win.
    cuda.update(_cuda_options(model, {k: model.parameters[k] for k in _CUDA_KEYS if k in model.parameters}))
    return [*found, (_CUDA, {**cuda, _DEVICE: str(model.device_id)})]


def _cuda_options(model: ModelInfo, parameters: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for key, value in parameters.items():
        if key == _DEVICE:
            raise LoadError(
                f"unable to load model '{model.name}', execution accelerator 'cuda' has parameter '{key}',"
                " which follows from the instance group's 'gpus'"
            )
        names = _NAMES.get(key)
        if names is not None:
            if value not in names and value not in names.values():
                raise LoadError(f"unsupported {key} value '{value}' is requested")
            value = names.get(value, value)
        elif key in _CUDA_SWITCHES:
            value = "1" if _boolean(value) else "0"
        found[key] = value
    return found


def _tensorrt_options(parameters: Mapping[str, str]) -> dict[str, str]:
    found = {"trt_max_workspace_size": _WORKSPACE_BYTES}
    for key, value in parameters.items():
        option = _RENAMED.get(key, key)
        if key == "precision_mode":
            if value not in _PRECISIONS:
                raise LoadError(f"unsupported precision mode '{value}' is requested")
            found.update(_PRECISIONS[value])
        elif key not in _RENAMED and key not in _KEPT:
            raise LoadError(f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator")
        elif option in _SWITCHES:
            found[option] = "True" if _boolean(value) else "False"
        else:
            found[option] = value
    return found


def _boolean(text: str) -> bool:
    if text.lower() in _ON:
        return True
    if text.lower() in _OFF:
        return False
    raise LoadError(f"failed to convert '{text}' to boolean")


def _of_openvino(onnxruntime: Any, model: ModelInfo, threads: int) -> list[Provider]:
    """Return the provider of `cpu_execution_accelerator`, whose one name is `openvino`.

    As in Triton, its parameters mean nothing. It computes in FP32, on the threads that a session has.
    """
    asked = _accelerators(model, "cpu")
    if not asked:
        return []
    available = onnxruntime.get_available_providers()
    if _OPENVINO not in available:
        raise LoadError(
            f"unable to load model '{model.name}', execution accelerator 'openvino' needs ONNX Runtime's"
            f" provider for OpenVINO, and the installed one has {', '.join(available)}; give the server an"
            " environment with the package onnxruntime-openvino in place of onnxruntime, or choose backend"
            " 'openvino', which reads ONNX files as well"
        )
    if any(each.get("parameters") for each in asked):
        model.log("warning", f"model '{model.name}': parameters of accelerator 'openvino' have no effect")
    return [(_OPENVINO, {"device_type": "CPU", "precision": "FP32", "num_of_threads": str(threads)})]
