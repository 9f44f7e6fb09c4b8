"""What several tests of the commands need: a small ONNX model."""

from onnx import TensorProto, helper


def onnx_model(*shape: int | str, kind: int = TensorProto.FLOAT) -> bytes:
    """An ONNX file whose output `y` is its input `x`."""
    ports = [helper.make_tensor_value_info(name, kind, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ports[:1], ports[1:])
    opset = helper.make_opsetid("", 21)
    return helper.make_model(graph, ir_version=10, opset_imports=[opset]).SerializeToString()
