"""`tritium.model`: the decorator that makes a function, or a class that can be called, a model."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from engine.worker.authoring.signature import Signature, read_signature
from engine.worker.authoring.tensors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

F = TypeVar("F", bound="Callable[..., Any]")

_MARK = "__tritium_model__"


class Declared(NamedTuple):
    """What `tritium.model` was told, by the hints and by its arguments.

    `max_queue_delay` is in seconds, None if none is asked for.
    """

    target: Any  # the function, or the class
    signature: Signature
    max_batch_size: int
    max_queue_delay: float | None

    @property
    def is_class(self) -> bool:
        """Whether an object is to be made before anything can be called."""
        return isinstance(self.target, type)

    @property
    def joins(self) -> bool:
        """Whether the rows of several requests are given to one call.

        They are if the function batches and asks for nothing of a single request.
        """
        return bool(self.max_batch_size) and not self.signature.request and not self.signature.kind.decoupled


@overload
def model(function: F) -> F: ...


@overload
def model(
    *, max_batch_size: int = ..., max_queue_delay: float | None = ..., output: str = ...
) -> Callable[[F], F]: ...


def model(
    function: Any = None,
    *,
    max_batch_size: int = 0,
    max_queue_delay: float | None = None,
    output: str = "output",
) -> Any:
    """Make a function the model of its file; it stays the function it is, and can be called as before.

    Parameters hinted with `FP32[Array, 16]` and the like are inputs; those with a default are optional. The
    return value is the output called `output`, or one output for each field of a NamedTuple, TypedDict or
    dataclass. With `max_batch_size` over 0 every array has a batch dimension in front, and one call may have
    the rows of several requests, for which it waits up to `max_queue_delay` seconds. A generator gives any
    number of responses to a request. `async` functions run on an event loop that lives as long as the model.
    Of a class, `__call__` is the function; see docs/authoring.md. Raises DeclarationError.
    """
    if function is None:
        return lambda given: _declare(given, max_batch_size, max_queue_delay, output)
    return _declare(function, max_batch_size, max_queue_delay, output)


def _declare(function: Any, max_batch_size: int, max_queue_delay: float | None, output: str) -> Any:
    _check_options(max_batch_size, max_queue_delay, output)
    if not isinstance(function, (FunctionType, type)):
        raise DeclarationError(f"tritium.model makes a model of a function or a class; got {function!r}")
    name = function.__name__
    is_class = isinstance(function, type)
    if is_class and "__call__" not in dir(function):
        raise DeclarationError(f"class '{name}' has no __call__: that is what answers requests")
    call = function.__call__ if is_class else function  # of the class, not whether it is callable
    signature = read_signature(call, name=name, output=output, method=is_class)
    setattr(function, _MARK, Declared(function, signature, max_batch_size, max_queue_delay))
    return function


def _check_options(max_batch_size: object, max_queue_delay: object, output: object) -> None:
    if not isinstance(max_batch_size, int) or isinstance(max_batch_size, bool) or max_batch_size < 0:
        raise DeclarationError(
            f"max_batch_size is a number of rows, 0 for no batching; got {max_batch_size!r}"
        )
    if max_queue_delay is not None:
        if not isinstance(max_queue_delay, (int, float)) or not 0 <= max_queue_delay < 3600:
            raise DeclarationError(f"max_queue_delay is seconds, such as 0.002; got {max_queue_delay!r}")
        if not max_batch_size:
            raise DeclarationError(
                "max_queue_delay is how long a batch may wait for more rows: it needs a max_batch_size"
            )
    if not isinstance(output, str) or not output:
        raise DeclarationError(f"output is the name of the output; got {output!r}")


def declared_in(module: ModuleType) -> Declared | None:
    """Return what `tritium.model` declares in a module, None if it declares nothing.

    What the module imported from elsewhere does not count. Raises DeclarationError if there are several.
    """
    # Only functions and classes: anything else in a module may run code when it is asked for an attribute.
    own = [
        value
        for value in list(vars(module).values())
        if isinstance(value, (FunctionType, type)) and value.__module__ == module.__name__
    ]
    found = {id(value): vars(value)[_MARK] for value in own if _MARK in vars(value)}
    if len(found) > 1:
        names = " and ".join(f"'{declared.signature.name}'" for declared in found.values())
        raise DeclarationError(f"{names} are both declared with tritium.model: a file has one model")
    return next(iter(found.values()), None)
