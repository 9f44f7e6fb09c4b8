"""Opens a model: chooses a SavedModel's graph and signature, and loads graphs into TensorFlow's sessions."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from engine.worker.backends.base import LoadError
from engine.worker.backends.tensorflow.parameters import DEFAULT_FILES, GRAPH_DEF, SAVED_MODEL, memory_limit
from engine.worker.backends.tensorflow.signatures import (
    CallSignature,
    GraphTensor,
    NotASavedModel,
    TaggedGraph,
    read_graphs,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.worker.backends.base import ModelInfo
    from engine.worker.backends.tensorflow.parameters import TensorFlowOptions

_DAMAGED = (
    "it is damaged, cut short, or no {kind}: export it again, or copy it again and compare its checksum with"
    " the original's"
)
_QUIET = "2"  # errors only: TensorFlow repeats each failed request's error as a warning


def import_tensorflow() -> Any:
    """Import TensorFlow, which is to write no more than errors to the log."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", _QUIET)
    import tensorflow

    tensorflow.get_logger().setLevel("ERROR")
    return tensorflow


def artifact(model: ModelInfo, options: TensorFlowOptions) -> str:
    """Return the path of the model: the folder of a SavedModel, or the file of a GraphDef.

    Raises LoadError if it is missing, or is the other kind of thing.
    """
    default = DEFAULT_FILES[GRAPH_DEF if options.graph_def else SAVED_MODEL]
    path = os.path.join(model.version_directory, model.artifact or default)
    if not os.path.exists(path):
        raise LoadError(f"unable to find '{path}' for model instance '{model.instance_name}'")
    if options.graph_def == os.path.isdir(path):
        wanted, hint = ("a file", SAVED_MODEL) if options.graph_def else ("a folder", GRAPH_DEF)
        raise LoadError(
            f"unable to load model '{model.name}', '{path}' must be {wanted} for the platform"
            f" '{model.config.get('platform')}'; did you mean platform '{hint}'?"
        )
    return path


def signature_of(
    model: ModelInfo, path: str, options: TensorFlowOptions
) -> tuple[Sequence[str], CallSignature]:
    """Return the tags of the graph in a SavedModel that is to be loaded, and by what it is called.

    Raises LoadError where there is none such, and for a damaged file.
    """
    graph = _tagged(model, _graphs(model, path), options)
    chosen = graph.signatures.get(options.signature)
    if chosen is None and options.any_signature and graph.callable_by:
        other = graph.callable_by[0]
        model.log(
            "warning",
            f"unable to find serving signature '{options.signature}' in model '{model.name}', using"
            f" signature '{other}'",
        )
        chosen = graph.signatures[other]
    if chosen is None:
        has = ", ".join(graph.callable_by) or "none"
        raise LoadError(
            f"unable to load model '{model.name}', expected '{options.signature}' signature; its signatures"
            f" are: {has}"
        )
    return graph.tags, chosen


def _graphs(model: ModelInfo, path: str) -> list[TaggedGraph]:
    try:
        return read_graphs(path)
    except FileNotFoundError as error:
        others = "; ".join(sorted(os.listdir(path))) or "nothing"
        raise LoadError(
            f"unable to load model '{model.name}', '{path}' has no saved_model.pb; it holds {others}"
        ) from error
    except (NotASavedModel, OSError) as error:
        raise LoadError(
            f"unable to load model '{model.name}', '{path}/saved_model.pb': {error}"
            f" ({_DAMAGED.format(kind='SavedModel')})"
        ) from error


def _tagged(model: ModelInfo, graphs: Sequence[TaggedGraph], options: TensorFlowOptions) -> TaggedGraph:
    """Return the graph with that tag alone, else one that has it among others."""
    having = [each for each in graphs if options.tag in each.tags]
    if not having:
        tags = ", ".join(sorted({tag for each in graphs for tag in each.tags})) or "none"
        raise LoadError(
            f"unable to load model '{model.name}', expected '{options.tag}' tag; its tags are: {tags}"
        )
    return min(having, key=lambda each: len(each.tags))


def configured(tensorflow: Any, model: ModelInfo, options: TensorFlowOptions) -> Any:
    """Return the `ConfigProto` of a model's sessions. Raises LoadError if the GPU asked for is not there."""
    config = tensorflow.compat.v1.ConfigProto(
        intra_op_parallelism_threads=options.intra,
        inter_op_parallelism_threads=options.inter,
        use_per_session_threads=options.own_threads,
        allow_soft_placement=options.soft_placement,
    )
    # Spinning burns the cores that other instances want.
    config.experimental.disable_thread_spinning = True
    optimizer = config.graph_options.optimizer_options
    optimizer.global_jit_level = optimizer.GlobalJitLevel.Value(options.jit)
    if options.mixed_precision:
        rewriting = config.graph_options.rewrite_options
        rewriting.auto_mixed_precision = rewriting.Toggle.Value("ON")
    if model.kind == "CPU":
        config.device_count["GPU"] = 0
        return config
    _check_gpu(tensorflow, model)
    if model.kind == "GPU":
        config.gpu_options.visible_device_list = str(model.device_id)
    if options.memory_fraction:
        config.gpu_options.per_process_gpu_memory_fraction = options.memory_fraction
    else:
        config.gpu_options.allow_growth = True
        # Beside growth it is the most that TensorFlow takes.
        config.gpu_options.per_process_gpu_memory_fraction = memory_limit(model)
    return config


def _check_gpu(tensorflow: Any, model: ModelInfo) -> None:
    there = len(tensorflow.config.list_physical_devices("GPU"))
    if there > max(model.device_id, 0):
        return
    raise LoadError(
        f"unable to load model '{model.name}', instance '{model.instance_name}' has kind KIND_{model.kind}"
        f" and TensorFlow finds {there or 'no'} GPUs; install tensorflow[and-cuda], or use KIND_CPU"
    )


def open_saved_model(tensorflow: Any, model: ModelInfo, path: str, tags: Sequence[str], config: Any) -> Any:
    """Return a session with a SavedModel's graph in it, its variables restored. Raises LoadError."""
    v1 = tensorflow.compat.v1
    graph = tensorflow.Graph()
    try:
        session = v1.Session(graph=graph, config=config)
        with graph.as_default():
            v1.saved_model.loader.load(session, list(tags), path)
    except Exception as error:  # TensorFlow raises what it likes
        raise LoadError(f"unable to load model '{model.name}', {describe(error)}") from error
    return session


def read_graph_def(tensorflow: Any, model: ModelInfo, path: str) -> Any:
    """Return the `Graph` of a file. Raises LoadError for a damaged file and unknown operations."""
    definition = tensorflow.compat.v1.GraphDef()
    try:
        with open(path, "rb") as file:
            definition.ParseFromString(file.read())
        if not definition.node:
            raise LoadError(
                f"unable to load model '{model.name}', '{path}': it has no operations"
                f" ({_DAMAGED.format(kind='GraphDef')})"
            )
    except LoadError:
        raise
    except Exception as error:  # protobuf's error has no stable home
        raise LoadError(
            f"unable to load model '{model.name}', '{path}': {describe(error)}"
            f" ({_DAMAGED.format(kind='GraphDef')})"
        ) from error
    graph = tensorflow.Graph()
    try:
        with graph.as_default():
            tensorflow.graph_util.import_graph_def(definition, name="")
    except Exception as error:  # as above
        raise LoadError(f"unable to load model '{model.name}', {describe(error)}") from error
    return graph


def open_graph_def(
    tensorflow: Any, model: ModelInfo, graph: Any, init_ops: Sequence[str], config: Any
) -> Any:
    """Return a session with a graph, in which the operations to begin with have run. Raises LoadError."""
    try:
        session = tensorflow.compat.v1.Session(graph=graph, config=config)
        if init_ops:
            session.run([graph.get_operation_by_name(name) for name in init_ops])
    except Exception as error:  # as above
        raise LoadError(f"unable to load model '{model.name}', {describe(error)}") from error
    return session


def init_ops_of(model: ModelInfo, path: str) -> list[str]:
    """Return the operations to begin with. Raises LoadError for a file that does not name them."""
    if not path:
        return []
    try:
        with open(path, encoding="utf-8") as file:
            names = json.load(file)["init_ops"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(
            f"unable to load model '{model.name}', '{path}' must hold JSON of the form"
            ' {"init_ops": ["name", ...]}'
        ) from error
    return names


def tensors_of(graph: Any) -> CallSignature:
    """Return what a GraphDef's requests may feed and fetch: its placeholders, and every first output."""
    operations = graph.get_operations()
    inputs = [_of_operation(each) for each in operations if each.type == "Placeholder"]
    outputs = [_of_operation(each) for each in operations if each.outputs and each.type != "Placeholder"]
    return CallSignature(inputs, outputs)


def _of_operation(operation: Any) -> GraphTensor:
    tensor = operation.outputs[0]
    rank = tensor.shape.rank
    shape = None if rank is None else [-1 if each is None else each for each in tensor.shape.as_list()]
    number = tensor.dtype.base_dtype.as_datatype_enum
    return GraphTensor(operation.name, tensor.name, number, shape)


def describe(error: Exception) -> str:
    """Return a TensorFlow error without the stack of the code that made the graph."""
    text = str(getattr(error, "message", None) or error).strip() or type(error).__name__
    return text.partition("\n\nOriginal stack trace")[0].partition("\n\nErrors may have originated")[0]
