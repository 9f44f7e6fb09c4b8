"""Which configured tensor is which argument or result: decisions over names."""

import pytest

from engine.worker.backends.base import LoadError
from engine.worker.backends.torch_names import output_paths, package_inputs, script_inputs


@pytest.mark.parametrize(
    ("names", "arguments", "positions"),
    [
        (["b", "a"], ["a", "b"], [1, 0]),  # all are arguments
        (["INPUT__1", "INPUT__0"], ["a", "b"], [1, 0]),  # all have an index
        (["X__1", "Y"], ["a", "b"], [0, 1]),  # not all: in order
        (["a", "other"], ["b", "a"], [0, 1]),
        (["X"], ["a", "b"], [0]),
        ([], ["a"], []),
    ],
)
def test_script_inputs_go_by_argument_name_then_index_then_order(names, arguments, positions):
    assert script_inputs(names, arguments, "m") == positions


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a", "b", "c"], "configuration expects 3 inputs, model provides 2"),
        (["X__0", "Y__2"], "input 'Y__2' stands for argument 2, model provides 2"),
        (["X__1", "Y__1"], "several inputs stand for argument 1"),
    ],
)
def test_script_inputs_without_a_place_are_refused(names, reason):
    with pytest.raises(LoadError, match=f"unable to load model 'm', {reason}"):
        script_inputs(names, ["a", "b"], "m")


@pytest.mark.parametrize(
    ("names", "positional", "keywords", "places"),
    [
        (["ARGS[1]", "ARGS[0]"], 2, [], [1, 0]),
        (["KWARGS[scale]", "ARGS[0]"], 1, ["scale"], ["scale", 0]),
        (["KWARGS['scale']", "ARGS[ 0 ]"], 1, ["scale"], ["scale", 0]),
        (["IN__1", "IN__0"], 1, ["scale"], ["scale", 0]),
        (["x", "y"], 1, ["scale"], [0, "scale"]),
    ],
)
def test_package_inputs_go_by_place_then_index_then_order(names, positional, keywords, places):
    assert package_inputs(names, positional, keywords, "m") == places


@pytest.mark.parametrize(
    "names", [["ARGS[0]", "ARGS[0]"], ["ARGS[0]", "ARGS[7]"], ["ARGS[0]", "KWARGS[scale]"]]
)
def test_package_inputs_must_name_every_argument(names):
    with pytest.raises(LoadError, match=r"do not name its arguments: ARGS\[0\], ARGS\[1\]"):
        package_inputs(names, 2, [], "m")


def test_package_inputs_must_be_as_many_as_the_arguments():
    with pytest.raises(LoadError, match="configuration expects 1 inputs, model provides 2"):
        package_inputs(["x"], 2, [], "m")


@pytest.mark.parametrize(
    ("names", "paths"),
    [
        (["RESULT"], [()]),
        (["RESULT[1]", "RESULT[0]['k']", "RESULT[key][2]"], [(1,), (0, "k"), ("key", 2)]),
        (["OUT__1", "OUT__0"], [1, 0]),
        (["scores", "labels"], [0, 1]),
        (["scores__0", "labels"], [0, 1]),
    ],
)
def test_outputs_go_by_path_then_index_then_order(names, paths):
    assert output_paths(names) == paths
