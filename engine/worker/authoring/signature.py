"""From a function's type hints to what a configuration says of its tensors."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import sys
import typing
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.worker.authoring.requests import Request
from engine.worker.authoring.tensors import DeclarationError, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_STREAMS = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)
_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)


class Kind(Enum):
    """How a function answers: with a value or a stream of them, at once or as a coroutine."""

    VALUE = "value"
    COROUTINE = "coroutine"
    STREAM = "stream"
    ASYNC_STREAM = "async stream"

    @property
    def decoupled(self) -> bool:
        """Whether a request may have any number of responses."""
        return self in (Kind.STREAM, Kind.ASYNC_STREAM)


class Input(NamedTuple):
    """One parameter that takes a tensor."""

    type: TensorType
    optional: bool

    def port(self, name: str) -> dict[str, Any]:
        """Return its entry in a configuration's `input`."""
        port = self.type.port(name)
        return {**port, "optional": True} if self.optional else port


class Signature(NamedTuple):
    """What a function takes and gives, read off its hints.

    `request` names the parameter that takes the `Request`, empty if there is none. `bare` says that the
    function returns an array and nothing around it, which is the one output there is.
    """

    name: str
    kind: Kind
    inputs: Mapping[str, Input]
    outputs: Mapping[str, TensorType]
    request: str
    bare: bool


def read_signature(
    function: Callable[..., Any], *, name: str, output: str, method: bool = False
) -> Signature:
    """Return the signature of `function`, called `name` in messages.

    `output` names an output that has no name of its own.

    `method` says that the first parameter is `self`. Raises DeclarationError for hints that say nothing of a
    tensor.
    """
    hints = _hints(function, f"'{name}'")
    inputs: dict[str, Input] = {}
    request = ""
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters[1:] if method else parameters:
        where = f"parameter '{parameter.name}' of '{name}'"
        if parameter.kind in _BY_POSITION:
            raise DeclarationError(
                f"{where} can't be passed by its name, and inputs are: leave out the '*' or '/'"
            )
        hint = hints.get(parameter.name)
        if hint is Request:
            request = parameter.name
        else:
            inputs[parameter.name] = Input(
                _tensor(hint, where), optional=parameter.default is not inspect.Parameter.empty
            )
    if not inputs:
        raise DeclarationError(
            f"'{name}' takes no tensor: declare its inputs, such as {name}(x: FP32[Array, 16])"
        )
    kind = _kind(function)
    outputs, bare = _outputs(hints.get("return"), kind, name, output)
    return Signature(name, kind, inputs, outputs, request, bare)


def _hints(declared: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(declared, include_extras=True)
    except NameError as error:
        raise DeclarationError(
            f"a type hint of {name} can't be read: {error}; it must be defined, in the module, before the model is"
        ) from error
    except TypeError as error:
        if isinstance(error, DeclarationError) or sys.version_info >= (3, 10):
            raise
        raise DeclarationError(
            f"a type hint of {name} can't be read by Python 3.9: {error}; `X | None` is written Optional[X] there"
        ) from error


def _kind(function: Callable[..., Any]) -> Kind:
    if inspect.isasyncgenfunction(function):
        return Kind.ASYNC_STREAM
    if inspect.isgeneratorfunction(function):
        return Kind.STREAM
    return Kind.COROUTINE if inspect.iscoroutinefunction(function) else Kind.VALUE


def _tensor(hint: Any, where: str) -> TensorType:
    """Return what `FP32[Array, 16]`, or the same `| None`, declares."""
    for part in (hint, *typing.get_args(hint)):
        for extra in getattr(part, "__metadata__", ()):
            if isinstance(extra, TensorType):
                return extra
    given = "has no type hint" if hint is None else f"is declared {_shown(hint)}, which is no tensor"
    raise DeclarationError(
        f"{where} {given}: write FP32[Array, 16], the datatype with its dims (-1 for any length)"
    )


def _outputs(hint: Any, kind: Kind, name: str, output: str) -> tuple[dict[str, TensorType], bool]:
    """Return the outputs by name, and whether there is one without a name."""
    where = f"what '{name}' {'yields' if kind.decoupled else 'returns'}"
    if kind.decoupled:
        if typing.get_origin(hint) not in _STREAMS:
            raise DeclarationError(
                f"'{name}' is a generator: declare {where}, such as -> Iterator[FP32[Array, 16]] (AsyncIterator where it is async)"
            )
        hint = typing.get_args(hint)[0]
    fields = _fields(hint, where)
    if fields is None:
        return {output: _tensor(hint, where)}, True
    if not fields:
        raise DeclarationError(f"{where} has no fields, so that there are no outputs")
    return {field: _tensor(each, f"field '{field}' of {where}") for field, each in fields.items()}, False


def _fields(hint: Any, where: str) -> dict[str, Any] | None:
    """Return the fields of a NamedTuple, a TypedDict or a dataclass; None for anything else."""
    if not isinstance(hint, type):
        return None
    structured = (
        (issubclass(hint, tuple) and hasattr(hint, "_fields"))
        or dataclasses.is_dataclass(hint)
        or (issubclass(hint, dict) and hasattr(hint, "__total__"))
    )
    return _hints(hint, where) if structured else None


def _shown(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
