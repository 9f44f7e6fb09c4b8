"""Triton's flags that do nothing here."""

from __future__ import annotations

import math
from typing import Final

from engine.settings.forms import BOOL, AnyForm, integer, number, text, within
from engine.settings.option import Flag, Group

_INT: Final = integer("VALUE")
_TEXT: Final = text("VALUE")
_NO_POOL: Final = "there is no pool: what a connection may hold is bounded by --grpc-connection-bytes"
_DEVICE_MEMORY: Final = "frameworks allocate device memory themselves"
_ONE_LOOP: Final = "one event loop serves all its connections"


def _idle(name: str, why: str, form: AnyForm = _INT, *, repeatable: bool = False) -> Flag:
    return Flag(Group.COMPATIBLE, name, form, no_effect=why, repeatable=repeatable)


COMPATIBLE: Final = (
    _idle("http-thread-count", "one event loop serves all HTTP connections"),
    _idle(
        "grpc-infer-thread-count",
        "one event loop serves all gRPC connections",
        within(2, 128, "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."),
    ),
    _idle("grpc-infer-allocation-pool-size", _NO_POOL),
    _idle(
        "grpc-max-response-pool-size",
        _NO_POOL,
        within(1, math.inf, "Error: --grpc-max-response-pool-size must be greater than 0."),
    ),
    _idle("buffer-manager-thread-count", "each batch is gathered by one copy, without helper threads"),
    _idle("pinned-memory-pool-byte-size", "there is no pinned memory pool", integer("VALUE", wide=True)),
    _idle("cuda-memory-pool-byte-size", _DEVICE_MEMORY, _TEXT, repeatable=True),
    _idle("cuda-virtual-address-size", _DEVICE_MEMORY, _TEXT, repeatable=True),
    _idle("cache-directory", "the caches, local and redis, are built in", _TEXT, repeatable=True),
    _idle("enable-peer-access", "workers do not share device memory", BOOL),
    _idle("sagemaker-thread-count", _ONE_LOOP),
    _idle("vertex-ai-thread-count", _ONE_LOOP),
    _idle(
        "min-supported-compute-capability", "the framework decides which devices it can use", number("VALUE")
    ),
)
