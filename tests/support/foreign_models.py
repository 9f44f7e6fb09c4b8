"""Models of frameworks that are not installed, written byte by byte: `Y = relu(X)` over rows of 3 FP32.

TensorFlow's and PaddlePaddle's files are protocol buffers, and TensorFlow Lite's are flat buffers. Field
numbers are from `tensorflow/core/framework/*.proto` and `protobuf/saved_model.proto`, `framework.proto` of
PaddlePaddle, and `schema.fbs` of TensorFlow Lite.
"""

from pathlib import Path

import flatbuffers

from tests.support.protobufs import message

_FLOAT = 1  # tensorflow.DT_FLOAT


def _entry(key, value):
    return message((1, key), (2, value))


def _graph_def():
    shape = message((2, message((1, -1))), (2, message((1, 3))))
    dtype, of_shape = message((6, _FLOAT)), message((7, shape))
    x = message((1, "X"), (2, "Placeholder"), (5, _entry("dtype", dtype)), (5, _entry("shape", of_shape)))
    y = message((1, "Y"), (2, "Relu"), (3, "X"), (5, _entry("T", dtype)))
    return message((1, x), (1, y), (4, message((1, 1645))))


def frozen_graph(path: Path) -> None:
    """Write a frozen graph of TensorFlow."""
    path.write_bytes(_graph_def())


def saved_model(folder: Path) -> None:
    """Write a SavedModel whose signature calls its input `features` and its output `positive`."""
    given = [("positive", "Y:0", _FLOAT, [-1, 3])]
    tagged_graphs(folder, {("serve",): {"serving_default": ([("features", "X:0", _FLOAT, [-1, 3])], given)}})


def tagged_graphs(folder: Path, graphs) -> None:
    """Write a SavedModel: by the tags of each graph its signatures, by their names.

    A signature is two lists of (name, place in the graph, type's number, shape). A shape of None has no known
    rank. The graph is always `Y = relu(X)`.
    """
    content = message((1, 1))
    for tags, signatures in graphs.items():
        entries = [
            _entry(
                name, message(*((at, _tensor(*each)) for at, side in enumerate(sides, 1) for each in side))
            )
            for name, sides in signatures.items()
        ]
        info = message(*((4, tag) for tag in tags))
        content += message((2, message((1, info), (2, _graph_def()), *((5, each) for each in entries))))
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(content)


def _tensor(name, place, number, shape):
    dims = [(3, 1)] if shape is None else [(2, message((1, size))) for size in shape]
    return _entry(name, message((1, place), (2, number), (3, message(*dims))))


def paddle(path: Path) -> None:
    """Write a program of PaddlePaddle that has no weights."""
    dims = ((2, -1), (2, 3))
    dense = message((1, 7), (3, message((1, message((1, 5), *dims)))))
    variables = [message((1, name), (2, dense)) for name in ("X", "Y")]
    variables += [
        message((1, "feed"), (2, message((1, 9))), (3, 1)),
        message((1, "fetch"), (2, message((1, 10))), (3, 1)),
    ]

    def operator(kind, taken, given, *attributes):
        return message(
            *((1, message((1, "X"), (2, name))) for name in taken),
            *((2, message((1, "Out"), (2, name))) for name in given),
            (3, kind),
            *((4, attribute) for attribute in attributes),
        )

    column = message((1, "col"), (2, 0), (3, 0))
    operators = [
        operator("feed", ["feed"], ["X"], column),
        operator("relu", ["X"], ["Y"]),
        operator("fetch", ["Y"], ["fetch"], column),
    ]
    block = message((1, 0), (2, -1), *((3, each) for each in variables), *((4, each) for each in operators))
    path.write_bytes(message((1, block), (4, message((1, 2_006_000)))))


def tflite(path: Path) -> None:
    """Write a model of TensorFlow Lite, for batches of one row."""
    build = flatbuffers.Builder()

    def table(fields, **slots):
        build.StartObject(fields)
        for slot, (add, value) in ((int(key[1:]), each) for key, each in slots.items()):
            getattr(build, f"Prepend{add}Slot")(slot, value, 0)
        return build.EndObject()

    def vector(values, size=4, *, offsets=False):
        build.StartVector(size, len(values), size)
        for value in reversed(values):
            (build.PrependUOffsetTRelative if offsets else build.PrependInt32)(value)
        return build.EndVector()

    names = [build.CreateString(name) for name in ("X", "Y", "main")]
    tensors = []
    for at in (0, 1):
        shape = vector([1, 3])
        tensors.append(
            table(
                8,
                _0=("UOffsetTRelative", shape),
                _2=("Uint32", 0),
                _3=("UOffsetTRelative", names[at]),
            )
        )
    tensors_at = vector(tensors, offsets=True)
    taken, given = vector([0]), vector([1])
    relu = table(9, _1=("UOffsetTRelative", taken), _2=("UOffsetTRelative", given))
    operators = vector([relu], offsets=True)
    graph = table(
        5,
        _0=("UOffsetTRelative", tensors_at),
        _1=("UOffsetTRelative", taken),
        _2=("UOffsetTRelative", given),
        _3=("UOffsetTRelative", operators),
        _4=("UOffsetTRelative", names[2]),
    )
    graphs = vector([graph], offsets=True)
    codes = vector([table(4, _0=("Int8", 19), _2=("Int32", 1), _3=("Int32", 19))], offsets=True)
    buffers = vector([table(1)], offsets=True)
    model = table(
        8,
        _0=("Uint32", 3),
        _1=("UOffsetTRelative", codes),
        _2=("UOffsetTRelative", graphs),
        _4=("UOffsetTRelative", buffers),
    )
    build.Finish(model, b"TFL3")
    path.write_bytes(bytes(build.Output()))
