"""The model of `add_sub`, in ONNX: what it computes, and how it can be made to fail."""

from __future__ import annotations

from typing import Final

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from chaos.workload.answers import DIVISORS

OPSET: Final = 21
IR_VERSION: Final = 10
# Turns of the loop that is to hang: no machine gets to the end within any limit.
TURNS: Final = 2**40
SMALLEST: Final = -(2**63)


def add_sub() -> bytes:
    """Return the model: SUM, DIFFERENCE and REMAINDER of A and B, all INT32 [n, 1].

    It has what harms it, see `DIVISORS`.
    """
    nodes = [
        *_constants(),
        *_turns(),
        helper.make_node("Loop", ["turns", "", "A"], ["a"], body=_body()),
        helper.make_node("Add", ["a", "B"], ["SUM"]),
        helper.make_node("Sub", ["a", "B"], ["DIFFERENCE"]),
        *_remainder(),
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.INT32, ["n", 1]) for name in names]
        for names in (("A", "B"), ("SUM", "DIFFERENCE", "REMAINDER"))
    )
    graph: GraphProto = helper.make_graph(nodes, "add_sub", inputs, outputs)
    model: ModelProto = helper.make_model(
        graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
    )
    return model.SerializeToString()


def _constants() -> list[NodeProto]:
    given = {
        "hang": (TensorProto.INT32, DIVISORS["hang"]),
        "fpe": (TensorProto.INT32, DIVISORS["fpe"]),
        "smallest": (TensorProto.INT64, SMALLEST),
        "many": (TensorProto.INT64, TURNS),
        "none": (TensorProto.INT64, 0),
    }
    return [
        helper.make_node("Constant", [], [name], value=helper.make_tensor(name, kind, [], [value]))
        for name, (kind, value) in given.items()
    ]


def _turns() -> list[NodeProto]:
    """How many turns the loop has: none, unless a row asks for it."""
    return [
        helper.make_node("Equal", ["B", "hang"], ["hangs"]),
        helper.make_node("Where", ["hangs", "many", "none"], ["turns_by_row"]),
        helper.make_node("ReduceMax", ["turns_by_row"], ["turns"], keepdims=0),
    ]


def _remainder() -> list[NodeProto]:
    """INT64's division traps.

    The one of INT32 is vectorised and Mod looks at its divisor, in some versions of the runtime.
    """
    return [
        helper.make_node("Mod", ["a", "B"], ["modulo"]),
        helper.make_node("Equal", ["B", "fpe"], ["traps"]),
        helper.make_node("Cast", ["a"], ["a_wide"], to=TensorProto.INT64),
        helper.make_node("Cast", ["B"], ["divisor"], to=TensorProto.INT64),
        helper.make_node("Where", ["traps", "smallest", "a_wide"], ["dividend"]),
        helper.make_node("Div", ["dividend", "divisor"], ["quotient_wide"]),
        helper.make_node("Cast", ["quotient_wide"], ["quotient"], to=TensorProto.INT32),
        helper.make_node("Where", ["traps", "quotient", "modulo"], ["REMAINDER"]),
    ]


def _body() -> GraphProto:
    """Return a turn of the loop: it goes on, and passes A on unchanged."""
    return helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["goes_on"]),
            helper.make_node("Identity", ["a_in"], ["a_out"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a_in", TensorProto.INT32, ["n", 1]),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a_out", TensorProto.INT32, ["n", 1]),
        ],
    )
