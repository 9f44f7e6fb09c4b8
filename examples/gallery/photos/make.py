"""Photos: decode, resize, classify. The two photographs come with scikit-learn."""

from importlib.util import find_spec
from pathlib import Path

NEEDS = dict.fromkeys(("sklearn", "PIL", "onnx", "onnxruntime"), "pip install -e '.[gallery]'")
SIDE = 16
LABELS = ("temple", "dahlia")


def make(repository, say):
    """Write both ONNX models; learn from the left two thirds of each photograph."""
    import numpy as np
    import onnxruntime
    from sklearn.linear_model import LogisticRegression

    resize = save(resizer(), repository / "photo_resize")
    session = onnxruntime.InferenceSession(resize, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    sets = {"train": ([], []), "test": ([], [])}
    for label, pixels in enumerate(photographs()):
        third = pixels.shape[1] * 2 // 3
        for kind, part, count in (("train", pixels[:, :third], 100), ("test", pixels[:, third:], 50)):
            for _ in range(count):
                rows, labels = sets[kind]
                crop = a_crop(part, rng)
                rows.append(session.run(None, {"PIXELS": crop})[0].ravel())
                labels.append(label)
    model = LogisticRegression(C=0.05, max_iter=300).fit(*sets["train"])
    save(classifier(model.coef_[0], model.intercept_[0]), repository / "photo_classify")
    (repository / "photos" / "1").mkdir()
    return f"{model.score(*sets['test']):.0%} of 100 crops from the right thirds are told apart"


def photographs():
    """Return the two photographs of scikit-learn, a temple and a dahlia: UINT8 [427, 640, 3]."""
    import numpy as np
    from PIL import Image

    # Where it lies is known without importing it, which takes a second.
    folder = Path(find_spec("sklearn").origin).parent / "datasets" / "images"
    for name in ("china.jpg", "flower.jpg"):
        with Image.open(folder / name) as image:
            yield np.asarray(image.convert("RGB"))


def a_crop(pixels, rng):
    """Return a part of a photograph, at least half of each side, mirrored half of the time."""
    height, width, _ = pixels.shape
    h, w = int(height * rng.uniform(0.5, 1)), int(width * rng.uniform(0.5, 1))
    top, left = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
    crop = pixels[top : top + h, left : left + w]
    return crop[:, ::-1] if rng.random() < 0.5 else crop


def resizer():
    """UINT8 [height, width, 3] → FP32 [3, SIDE, SIDE] from 0 to 1; each pixel is the mean of its part."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    constants = {"sizes": np.array([3, SIDE, SIDE], np.int64), "white": np.array(255, np.float32)}
    nodes = [
        helper.make_node("Cast", ["PIXELS"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["floats"], ["planes"], perm=[2, 0, 1]),
        helper.make_node("Resize", ["planes", "", "", "sizes"], ["small"], mode="linear", antialias=1),
        helper.make_node("Div", ["small", "white"], ["SMALL"]),
    ]
    return helper.make_graph(
        nodes,
        "resize",
        [helper.make_tensor_value_info("PIXELS", TensorProto.UINT8, ["height", "width", 3])],
        [helper.make_tensor_value_info("SMALL", TensorProto.FLOAT, [3, SIDE, SIDE])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )


def classifier(weights, bias):
    """FP32 [3, SIDE, SIDE] → FP32 [2], the probabilities, of a logistic regression."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    constants = {
        "row": np.array([1, -1], np.int64),
        "weights": np.stack([np.zeros_like(weights), weights], 1).astype(np.float32),
        "bias": np.array([0, bias], np.float32),
        "labels": np.array([2], np.int64),
    }
    nodes = [
        helper.make_node("Reshape", ["SMALL", "row"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weights", "bias"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
        helper.make_node("Reshape", ["scores", "labels"], ["SCORES"]),
    ]
    return helper.make_graph(
        nodes,
        "classify",
        [helper.make_tensor_value_info("SMALL", TensorProto.FLOAT, [3, SIDE, SIDE])],
        [helper.make_tensor_value_info("SCORES", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )


def save(graph, model):
    """Write a graph as version 1 of a model; IR 10 and opset 21, which every current runtime reads."""
    import onnx

    made = onnx.helper.make_model(
        graph,
        ir_version=10,
        opset_imports=[onnx.helper.make_opsetid("", 21)],
        producer_name="tritium-examples",
    )
    onnx.checker.check_model(made)
    path = model / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    onnx.save(made, path)
    return path
