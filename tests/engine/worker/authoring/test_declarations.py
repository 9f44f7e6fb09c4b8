"""What type hints and the decorator's arguments say of a model, and the errors where they are wrong."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, NotRequired, Optional, TypedDict

import numpy as np
import pytest

import tritium
from actors.values.datatypes import BY_PROTOCOL_NAME, DataType
from engine.worker.authoring.declaring import declared_in
from engine.worker.authoring.recognition import model_class
from engine.worker.authoring.signature import Kind
from engine.worker.authoring.tensors import TensorType
from engine.worker.backends.python.completion import ModelConfig
from tritium import BYTES, FP32, INT64, Array, DeclarationError


class Pair(NamedTuple):
    total: FP32[Array, 16]
    label: BYTES[Array, 1]


class Perhaps(TypedDict):
    scores: FP32[Array, -1]
    why: NotRequired[BYTES[Array, 1]]


@dataclass
class Record:
    near: INT64[Array, 3]


def declared(function):
    """Return what `tritium.model` made of a function, as the backend would find it in a file."""
    module = ModuleType(function.__module__)
    vars(module)["function"] = function
    found = declared_in(module)
    assert found is not None
    return found


def signature(function, **options):
    return declared(tritium.model(**options)(function)).signature


def completed(function, **config):
    """The configuration that a function completes from `config`."""
    module = ModuleType(function.__module__)
    vars(module)["function"] = function
    return model_class(module).auto_complete_config(ModelConfig({"name": "m", **config})).as_dict()


# -- inputs


@pytest.mark.parametrize("name", sorted(BY_PROTOCOL_NAME))
def test_every_datatype_has_a_hint(name):
    def double(x: getattr(tritium, name)[Array, 2, -1]) -> FP32[Array, 1]: ...  # type: ignore[valid-type]

    assert signature(double).inputs["x"].type == TensorType(BY_PROTOCOL_NAME[name], (2, -1))


def test_a_parameter_with_a_default_is_an_optional_input():
    def add(
        x: FP32[Array, 4],
        y: FP32[Array, 4] | None = None,
        z: Optional[FP32[Array, 4]] = None,  # noqa: UP045
    ) -> FP32[Array, 4]: ...

    inputs = signature(add).inputs
    assert {name: each.optional for name, each in inputs.items()} == {"x": False, "y": True, "z": True}
    assert all(each.type == TensorType(DataType.FP32, (4,)) for each in inputs.values())


def test_a_parameter_may_take_the_request_and_is_no_input():
    def add(x: FP32[Array, 4], request: tritium.Request) -> FP32[Array, 4]: ...

    assert signature(add).request == "request"
    assert list(signature(add).inputs) == ["x"]


def test_a_function_stays_what_it_is_and_can_be_called():
    @tritium.model(max_batch_size=8)
    def double(x: FP32[Array, 2]) -> FP32[Array, 2]:
        return x * 2

    assert double(np.ones(2, np.float32)).tolist() == [2, 2]
    assert double.__name__ == "double"


# -- outputs


def test_an_array_that_is_returned_is_the_output_called_output_or_as_the_decorator_says():
    def double(x: FP32[Array, 2]) -> FP32[Array, 2]: ...

    assert list(signature(double).outputs) == ["output"]
    assert list(signature(double, output="doubled").outputs) == ["doubled"]


@pytest.mark.parametrize(
    ("structure", "names"),
    [(Pair, ["total", "label"]), (Perhaps, ["scores", "why"]), (Record, ["near"])],
    ids=["named tuple", "typed dict", "dataclass"],
)
def test_each_field_of_what_is_returned_is_an_output(structure, names):
    def compute(x: FP32[Array, 2]) -> structure: ...  # type: ignore[valid-type]

    assert list(signature(compute).outputs) == names


def test_how_a_function_answers_follows_from_what_it_is():
    def value(x: FP32[Array, 2]) -> FP32[Array, 2]: ...

    async def coroutine(x: FP32[Array, 2]) -> FP32[Array, 2]: ...

    def stream(x: FP32[Array, 2]) -> Iterator[FP32[Array, 2]]:
        yield x

    async def async_stream(x: FP32[Array, 2]) -> AsyncIterator[FP32[Array, 2]]:
        yield x

    kinds = [signature(each).kind for each in (value, coroutine, stream, async_stream)]
    assert kinds == [Kind.VALUE, Kind.COROUTINE, Kind.STREAM, Kind.ASYNC_STREAM]
    assert [kind.decoupled for kind in kinds] == [False, False, True, True]


# -- the configuration


def test_the_configuration_is_completed_from_the_hints():
    @tritium.model(max_batch_size=8, max_queue_delay=0.002)
    def compute(text: BYTES[Array, 1], bias: FP32[Array, -1, 2] | None = None) -> Pair: ...

    assert completed(compute) == {
        "name": "m",
        "max_batch_size": 8,
        "input": [
            {"name": "text", "data_type": "TYPE_STRING", "dims": [1]},
            {"name": "bias", "data_type": "TYPE_FP32", "dims": [-1, 2], "optional": True},
        ],
        "output": [
            {"name": "total", "data_type": "TYPE_FP32", "dims": [16]},
            {"name": "label", "data_type": "TYPE_STRING", "dims": [1]},
        ],
        "dynamic_batching": {"max_queue_delay_microseconds": 2000},
    }


def test_a_scheduler_that_is_configured_stays():
    @tritium.model(max_batch_size=8)
    def compute(x: FP32[Array, 2]) -> FP32[Array, 2]: ...

    config = completed(compute, sequence_batching={"direct": {}})
    assert "dynamic_batching" not in config
    assert config["sequence_batching"] == {"direct": {}}


def test_a_generator_makes_the_model_decoupled_and_nothing_batches_unasked():
    @tritium.model
    def count(n: INT64[Array, 1]) -> Iterator[INT64[Array, 1]]:
        yield n

    config = completed(count)
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config


def test_a_configuration_that_says_something_else_is_refused_with_both():
    @tritium.model
    def compute(x: FP32[Array, 2]) -> FP32[Array, 2]: ...

    configured = [{"name": "x", "data_type": "TYPE_FP64", "dims": [2]}]
    with pytest.raises(
        ValueError, match="expects datatype TYPE_FP64 for input 'x', model provides TYPE_FP32"
    ):
        completed(compute, input=configured)


# -- mistakes


@pytest.mark.parametrize("dims", [(), (0,), (-2,), ("n",), (1.5,), (True,)])
def test_a_hint_without_proper_dims_shows_what_would_be_right(dims):
    with pytest.raises(
        DeclarationError, match=r"write FP32\[Array, 16\], the array's type and then its dims"
    ):
        FP32[Array, *dims]


def test_a_hint_without_the_array_type_is_refused():
    with pytest.raises(DeclarationError, match=r"FP32\[16, 16\] declares no tensor"):
        FP32[16, 16]


def no_hint(x) -> FP32[Array, 1]: ...
def no_tensor(x: int) -> FP32[Array, 1]: ...
def no_input() -> FP32[Array, 1]: ...
def only_request(request: tritium.Request) -> FP32[Array, 1]: ...
def nothing_returned(x: FP32[Array, 1]) -> None: ...
def return_without_hint(x: FP32[Array, 1]): ...
def by_position(x: FP32[Array, 1], /) -> FP32[Array, 1]: ...
def any_number(*x: FP32[Array, 1]) -> FP32[Array, 1]: ...
def plain_generator(x: FP32[Array, 1]) -> FP32[Array, 1]:  # type: ignore[misc]
    yield x


def unknown_name(x: "Missing[Array, 1]") -> FP32[Array, 1]: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (no_hint, "parameter 'x' of 'no_hint' has no type hint: write FP32"),
        (no_tensor, "parameter 'x' of 'no_tensor' is declared int, which is no tensor: write FP32"),
        (no_input, "'no_input' takes no tensor: declare its inputs"),
        (only_request, "'only_request' takes no tensor"),
        (nothing_returned, "what 'nothing_returned' returns is declared NoneType, which is no tensor"),
        (return_without_hint, "what 'return_without_hint' returns has no type hint"),
        (by_position, "parameter 'x' of 'by_position' can't be passed by its name"),
        (any_number, "parameter 'x' of 'any_number' can't be passed by its name"),
        (plain_generator, "'plain_generator' is a generator: declare what"),
        (unknown_name, "a type hint of 'unknown_name' can't be read: name 'Missing' is not defined"),
    ],
)
def test_a_function_that_says_too_little_is_told_what_is_missing(function, text):
    with pytest.raises(DeclarationError, match=text.replace("(", r"\(")):
        tritium.model(function)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_batch_size": -1}, "max_batch_size is a number of rows"),
        ({"max_batch_size": "8"}, "max_batch_size is a number of rows"),
        ({"max_queue_delay": 0.1}, "needs a max_batch_size"),
        ({"max_batch_size": 8, "max_queue_delay": -1}, "max_queue_delay is seconds"),
        ({"output": ""}, "output is the name of the output"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, text):
    with pytest.raises(DeclarationError, match=text):
        tritium.model(**options)(lambda x: x)


def test_only_a_function_or_a_class_can_be_a_model():
    with pytest.raises(DeclarationError, match="makes a model of a function or a class; got 3"):
        tritium.model(3)  # type: ignore[call-overload]


def test_a_class_without_call_is_refused():
    with pytest.raises(DeclarationError, match="class 'Mute' has no __call__"):

        @tritium.model
        class Mute: ...


def test_a_file_has_one_model():
    module = ModuleType(__name__)

    @tritium.model
    def first(x: FP32[Array, 1]) -> FP32[Array, 1]: ...

    @tritium.model
    def second(x: FP32[Array, 1]) -> FP32[Array, 1]: ...

    vars(module).update(first=first, second=second, again=first)
    with pytest.raises(DeclarationError, match=r"'first' and 'second' are both declared with tritium\.model"):
        declared_in(module)
    del module.second
    vars(module)["TritonPythonModel"] = object
    with pytest.raises(DeclarationError, match="beside a class TritonPythonModel: a file has one model"):
        model_class(module)


def test_a_model_imported_from_another_file_is_not_this_files():
    module = ModuleType("another")

    @tritium.model
    def imported(x: FP32[Array, 1]) -> FP32[Array, 1]: ...

    vars(module)["imported"] = imported
    assert declared_in(module) is None
