"""The formats that model files have: what runs each, and what to do about those that nothing here runs.

File names and platforms are those of the contract, backends.md section 1.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A backend that runs a format, and what a configuration says for it.

    `file` is the model's name in a version folder; empty for a format whose files all keep their names. With
    `named`, the configuration has to name it.
    """

    backend: str
    file: str = ""
    platform: str = ""
    named: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFormat:
    """One format: its engines, the preferred one first, and what its owner does if there is none."""

    name: str
    tag: str  # what tells two models of one name apart
    engines: tuple[Engine, ...] = ()
    advice: str = ""


def _forest(model_type: str, file: str) -> tuple[Engine, ...]:
    return (Engine(backend="fil", file=file, parameters={"model_type": model_type}),)


_NO_PROGRAM: Final = (
    "it holds weights, and not the program that uses them. Where the module is defined, save it with its"
    " program: torch.export.save(torch.export.export(module, (example,)), 'NAME.pt2'). Or write a model.py"
    " that makes the module and loads the weights"
)
_TO_ONNX: Final = "export the model that it was made from to ONNX"
_FOREST_PICKLE: Final = (
    "a server loads no pickles, because loading one runs the code in it. `tritium convert sklearn IN OUT`"
    " makes a treelite checkpoint of a forest; skl2onnx makes ONNX of other models"
)

ONNX: Final = ModelFormat(
    name="ONNX",
    tag="onnx",
    engines=(
        Engine(backend="onnxruntime", file="model.onnx", platform="onnxruntime_onnx"),
        Engine(backend="openvino", file="model.onnx", named=True),
    ),
)
ORT: Final = ModelFormat(
    name="ONNX Runtime's own",
    tag="ort",
    engines=(Engine(backend="onnxruntime", file="model.ort", platform="onnxruntime_onnx", named=True),),
)
TORCHSCRIPT: Final = ModelFormat(
    name="TorchScript",
    tag="torchscript",
    engines=(Engine(backend="pytorch", file="model.pt", platform="pytorch_libtorch"),),
)
EXPORTED: Final = ModelFormat(
    name="torch.export",
    tag="pt2",
    engines=(Engine(backend="pytorch", file="model.pt2", platform="torch_aoti"),),
)
COMPILED: Final = ModelFormat(
    name="AOTInductor package",
    tag="aoti",
    engines=(Engine(backend="pytorch", file="model.pt2", platform="torch_aoti"),),
)
STATE_DICT: Final = ModelFormat(name="PyTorch weights", tag="weights", advice=_NO_PROGRAM)
PICKLED_MODULE: Final = ModelFormat(
    name="pickled PyTorch module",
    tag="pickle",
    advice=(
        "it is a pickle, which needs the module's source and runs code as it is loaded. Where that source is,"
        " save the module with its program:"
        " torch.export.save(torch.export.export(module, (example,)), 'NAME.pt2')"
    ),
)
TORCH_MOBILE: Final = ModelFormat(
    name="PyTorch Mobile",
    tag="mobile",
    advice="it is for phones: save the module that it was made from with torch.export.save or torch.jit.save",
)
EXECUTORCH: Final = ModelFormat(
    name="ExecuTorch",
    tag="executorch",
    advice="it is for small devices: save the program that it was made from with torch.export.save",
)
TORCHSERVE: Final = ModelFormat(
    name="TorchServe archive",
    tag="mar",
    advice="unzip it, and run this command on the folder; its handler becomes a model.py",
)
SAFETENSORS: Final = ModelFormat(name="safetensors weights", tag="weights", advice=_NO_PROGRAM)
LANGUAGE: Final = ModelFormat(
    name="language model",
    tag="llm",
    engines=(Engine(backend="transformers"),),
)
DIFFUSERS: Final = ModelFormat(
    name="diffusers pipeline", tag="diffusers", advice="write a model.py that runs it (docs/authoring.md)"
)
GGUF: Final = ModelFormat(
    name="GGUF",
    tag="gguf",
    advice=(
        "no backend here runs it. Get the folder with config.json and *.safetensors that it was made from:"
        " `tritium run --llm FOLDER` serves that (docs/llm.md)"
    ),
)
OPENVINO: Final = ModelFormat(
    name="OpenVINO IR", tag="openvino", engines=(Engine(backend="openvino", file="model.xml"),)
)
SAVED_MODEL: Final = ModelFormat(
    name="TensorFlow SavedModel",
    tag="savedmodel",
    engines=(
        Engine(backend="tensorflow", file="model.savedmodel", platform="tensorflow_savedmodel"),
        Engine(backend="openvino", file="model.saved_model", named=True),
    ),
)
GRAPH_DEF: Final = ModelFormat(
    name="TensorFlow GraphDef",
    tag="graphdef",
    engines=(
        Engine(backend="tensorflow", file="model.graphdef", platform="tensorflow_graphdef"),
        Engine(backend="openvino", file="model.pb", named=True),
    ),
)
KERAS: Final = ModelFormat(
    name="Keras",
    tag="keras",
    advice="load it with Keras and call model.export('FOLDER'), which writes a SavedModel for this",
)
HDF5: Final = ModelFormat(
    name="HDF5",
    tag="h5",
    advice="a Keras model is loaded with Keras: there call model.export('FOLDER'), which writes a SavedModel",
)
TFLITE: Final = ModelFormat(
    name="TensorFlow Lite",
    tag="tflite",
    engines=(Engine(backend="openvino", file="model.tflite", named=True),),
)
PADDLE: Final = ModelFormat(
    name="PaddlePaddle",
    tag="paddle",
    engines=(Engine(backend="openvino", file="model.pdmodel", named=True),),
)
XGBOOST_JSON: Final = ModelFormat(
    name="XGBoost JSON", tag="xgboost", engines=_forest("xgboost_json", "xgboost.json")
)
XGBOOST_UBJ: Final = ModelFormat(
    name="XGBoost UBJ", tag="xgboost", engines=_forest("xgboost_ubj", "xgboost.ubj")
)
XGBOOST_BINARY: Final = ModelFormat(
    name="XGBoost binary", tag="xgboost", engines=_forest("xgboost", "xgboost.model")
)
LIGHTGBM: Final = ModelFormat(name="LightGBM text", tag="lightgbm", engines=_forest("lightgbm", "model.txt"))
TREELITE: Final = ModelFormat(
    name="treelite checkpoint", tag="treelite", engines=_forest("treelite_checkpoint", "checkpoint.tl")
)
CATBOOST: Final = ModelFormat(
    name="CatBoost",
    tag="catboost",
    advice="load it with CatBoost and call model.save_model('NAME.onnx', format='onnx')",
)
SKLEARN: Final = ModelFormat(name="scikit-learn pickle", tag="sklearn", advice=_FOREST_PICKLE)
PICKLE: Final = ModelFormat(
    name="Python pickle",
    tag="pickle",
    advice=(
        "a server loads no pickles, because loading one runs the code in it. Save the model in its library's"
        " own format, or write a model.py that loads it (docs/authoring.md)"
    ),
)
SKOPS: Final = ModelFormat(
    name="skops",
    tag="skops",
    advice=(
        "load it where scikit-learn is; `tritium convert sklearn` takes forests from a pickle, and skl2onnx"
        " makes ONNX of other models"
    ),
)
TENSORRT: Final = ModelFormat(
    name="TensorRT plan",
    tag="tensorrt",
    engines=(Engine(backend="tensorrt", file="model.plan", platform="tensorrt_plan"),),
    advice="a plan runs on the kind of GPU that it was built on; to run elsewhere, " + _TO_ONNX,
)
DALI: Final = ModelFormat(
    name="DALI pipeline",
    tag="dali",
    engines=(Engine(backend="dali", file="model.dali"),),
    advice="write a model.py that does the same to its inputs (docs/authoring.md)",
)
PYTHON: Final = ModelFormat(
    name="Python model", tag="python", engines=(Engine(backend="python", file="model.py"),)
)
COREML: Final = ModelFormat(name="Core ML", tag="coreml", advice=f"only Apple's devices run it: {_TO_ONNX}")
CAFFE: Final = ModelFormat(
    name="Caffe weights", tag="caffe", advice="no framework that runs it is maintained: convert it to ONNX"
)
PMML: Final = ModelFormat(name="PMML", tag="pmml", advice=_TO_ONNX)
TFJS: Final = ModelFormat(
    name="TensorFlow.js", tag="tfjs", advice="export the model that it was made from as a SavedModel"
)
PADDLE_JSON: Final = ModelFormat(
    name="PaddlePaddle 3 program",
    tag="paddle",
    advice="export it as .pdmodel and .pdiparams, or to ONNX with paddle2onnx",
)
ARRAYS: Final = ModelFormat(
    name="NumPy arrays",
    tag="numpy",
    advice="they are numbers, and no program: write a model.py that uses them",
)
POINTER: Final = ModelFormat(
    name="Git LFS pointer",
    tag="lfs",
    advice="the file itself is elsewhere: run 'git lfs pull' where the repository was cloned",
)

ALL: Final[tuple[ModelFormat, ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, ModelFormat)
)
FILES: Final = frozenset(engine.file for each in ALL for engine in each.engines if engine.file)
"""Names that models' files have in a version folder."""
