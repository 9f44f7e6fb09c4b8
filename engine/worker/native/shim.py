"""The shim's functions for the worker, by ctypes: `c/host.h` declares the same ones.

`ctypes` gives the interpreter's lock back during each call: a library's execution stops no other thread.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from engine.worker.native.descriptions import Failure, Reading, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LEVELS = ("info", "warning", "error", "verbose")
_LONGEST_ERROR = 64 * 1024  # bytes
_LOG_LINE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)

_POINTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_INT = ctypes.c_int
_U32 = ctypes.c_uint32
_U64 = ctypes.c_uint64
_SIZE = ctypes.c_size_t


# A library may log as long as the process lives, by any of those that it was given.
_CALLBACKS: list[Any] = []


class _Outcome(ctypes.Structure):
    # ctypes reads it.
    _fields_ = (("data", _POINTER), ("size", _SIZE), ("batch", _POINTER))  # type: ignore[mutable-override]


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tritium_log_to": (None, (_LOG_LINE, _INT)),
    "tritium_backend_new": (_POINTER, (_TEXT, _TEXT, _TEXT)),
    "tritium_backend_free": (None, (_POINTER,)),
    "tritium_model_new": (
        _POINTER,
        (
            *(_POINTER, _TEXT, _U64, _TEXT, _TEXT, _INT, _INT, _INT),
            *(_U32, _POINTER, _POINTER, _U32, _POINTER, _POINTER, _POINTER),
        ),
    ),
    "tritium_model_free": (None, (_POINTER,)),
    "tritium_model_completed": (_TEXT, (_POINTER,)),
    "tritium_instance_new": (_POINTER, (_POINTER, _TEXT, _INT, ctypes.c_int32, _TEXT)),
    "tritium_instance_free": (None, (_POINTER,)),
    "tritium_execute": (None, (_POINTER, _POINTER, _POINTER, _SIZE, ctypes.POINTER(_Outcome))),
    "tritium_batch_free": (None, (_POINTER,)),
    "tritium_next": (_INT, (_POINTER, ctypes.POINTER(_Outcome))),
    "tritium_close": (None, (_POINTER,)),
    "tritium_alive": (None, (_POINTER,)),
    "tritium_call": (_INT, (_POINTER, _POINTER, _POINTER, _SIZE)),
    "tritium_attribute_call": (_INT, (_POINTER, _POINTER, _POINTER, _SIZE)),
}


class Shim:
    """The library at `path`, loaded so that other libraries find its functions."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments

    def log_to(self, log: Callable[[str, str], None], *, verbose: bool) -> None:
        """Have `log(level, message)` called for each line that a library logs, from any thread."""

        def line(level: int, file: bytes, number: int, text: bytes) -> None:
            place = f"{file.decode(errors='replace').rpartition('/')[2]}:{number}] " if file else ""
            said = text.decode(errors="replace").rstrip("\n")
            log(_LEVELS[level] if 0 <= level < len(_LEVELS) else "error", place + said)

        callback = _LOG_LINE(line)
        _CALLBACKS.append(callback)
        self._library.tritium_log_to(callback, verbose)

    def backend(self, name: str, directory: str, config: str) -> int:
        """Make a backend. `config` is JSON."""
        text = _bytes(name), _bytes(directory), _bytes(config)
        return self._library.tritium_backend_new(*text)  # type: ignore[no-any-return]

    def model(
        self,
        backend: int,
        *,
        name: str,
        version: int,
        directory: str,
        config: str,
        completes: bool,
        batches: bool,
        decoupled: bool,
        inputs: Sequence[tuple[str, int]],
        outputs: Sequence[tuple[str, int, int]],
    ) -> int:
        """Make a model.

        Inputs are (name, datatype's number); outputs have besides the bytes of a row, or -1.
        """
        return self._library.tritium_model_new(  # type: ignore[no-any-return]
            backend,
            _bytes(name),
            version,
            _bytes(directory),
            _bytes(config),
            completes,
            batches,
            decoupled,
            len(inputs),
            (ctypes.c_char_p * len(inputs))(*(_bytes(each[0]) for each in inputs)),
            (ctypes.c_int32 * len(inputs))(*(each[1] for each in inputs)),
            len(outputs),
            (ctypes.c_char_p * len(outputs))(*(_bytes(each[0]) for each in outputs)),
            (ctypes.c_int32 * len(outputs))(*(each[1] for each in outputs)),
            (ctypes.c_int64 * len(outputs))(*(each[2] for each in outputs)),
        )

    def instance(self, model: int, name: str, kind: int, device_id: int, host_policy: str) -> int:
        """Make an instance. `kind` is the number in the C API; `host_policy` is JSON."""
        return self._library.tritium_instance_new(  # type: ignore[no-any-return]
            model, _bytes(name), kind, device_id, _bytes(host_policy)
        )

    def free(self, what: str, made: int) -> None:
        """Free a backend, a model, an instance or a batch."""
        getattr(self._library, f"tritium_{what}_free")(made)

    def completed(self, model: int) -> str | None:
        """Return the configuration that the library has set, as JSON; None if it has not."""
        text = self._library.tritium_model_completed(model)
        return None if text is None else text.decode()

    def call(self, function: int, argument: int) -> Failure | None:
        """Call a function of a library; return its error."""
        text = ctypes.create_string_buffer(_LONGEST_ERROR)
        code = self._library.tritium_call(function, argument, text, len(text))
        return None if code < 0 else Failure(code_of(code), text.value.decode(errors="replace"))

    def ask_attributes(self, function: int, backend: int) -> Failure | None:
        """Call `TRITONBACKEND_GetBackendAttribute`; return its error."""
        text = ctypes.create_string_buffer(_LONGEST_ERROR)
        code = self._library.tritium_attribute_call(function, backend, text, len(text))
        return None if code < 0 else Failure(code_of(code), text.value.decode(errors="replace"))

    def execute(self, function: int, instance: int, description: bytearray) -> tuple[bytes, int]:
        """Execute a batch; return what became of it, and the batch, which is to be freed."""
        outcome = _Outcome()
        data = (ctypes.c_char * len(description)).from_buffer(description)
        self._library.tritium_execute(function, instance, data, len(description), ctypes.byref(outcome))
        return ctypes.string_at(outcome.data, outcome.size) if outcome.size else b"", outcome.batch

    def next(self, model: int) -> bytes | None:
        """Wait for events of a decoupled model. What they point to is there until the next call."""
        outcome = _Outcome()
        if not self._library.tritium_next(model, ctypes.byref(outcome)):
            return None
        return ctypes.string_at(outcome.data, outcome.size)

    def close(self, model: int) -> None:
        """Have `next` return None once there is nothing left."""
        self._library.tritium_close(model)

    def alive(self) -> tuple[int, int, int, int]:
        """Return how many errors, messages, responses and factories there are."""
        counts = (ctypes.c_int64 * 4)()
        self._library.tritium_alive(counts)
        errors, messages, responses, factories = counts
        return errors, messages, responses, factories

    @staticmethod
    def reading(data: bytes, names: Sequence[str]) -> Reading:
        """Return what reads `data`; `names` are those of the declared outputs."""
        return Reading(data, names, ctypes.string_at)


def _bytes(text: str) -> bytes:
    return text.encode()
