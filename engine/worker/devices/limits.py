"""How much of its GPU's memory an instance may take, as its framework is told (`tritium.gpu_memory`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.worker.backends.base import LoadError

if TYPE_CHECKING:
    from engine.worker.backends.base import ModelInfo

KEY = "tritium.gpu_memory"


def is_limited(model: ModelInfo) -> bool:
    """Whether there is a limit at all."""
    return bool(model.gpu_memory or model.gpu_share)


def limit_in_bytes(model: ModelInfo, total: int) -> int:
    """Return the limit on a GPU with `total` bytes; 0 where there is none. Raises LoadError if it is more."""
    if model.gpu_memory > total:
        raise LoadError(
            f"unable to load model '{model.name}', '{KEY}' is {model.gpu_memory} bytes, and the GPU of"
            f" instance '{model.instance_name}' has {total}"
        )
    return model.gpu_memory or int(model.gpu_share * total)


def limit_as_share(model: ModelInfo, total: int) -> float:
    """Return the limit as a share of a GPU with `total` bytes; 0.0 where there is none. Raises LoadError."""
    return model.gpu_share or limit_in_bytes(model, total) / total


def refuse_beside(model: ModelInfo, key: str, place: str) -> None:
    """Raise LoadError: the framework's own setting `key`, in `place`, says another limit."""
    raise LoadError(
        f"unable to load model '{model.name}', both '{KEY}' and '{key}' ({place}) limit its memory of the"
        " GPU; leave one of them out"
    )
