"""The seam to text workers: processes that make tokens of prompts, and text of tokens.

`engine.processes.text` implements it. Frames are those of `actors.wire.text_frames`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from actors.values.tensors import Buffer


class TextWorkerDied(Exception):
    """A text worker has ended, or has sent what is no frame. The text says how."""


class TextWorker(ABC):
    """One process, from its launch to its end. All methods but `receive` return at once."""

    @abstractmethod
    def send(self, head: Sequence[Any], body: Buffer = b"") -> None:
        """Send an order. Frames keep their order; those to a worker that has died are lost.

        A long one leaves in slices, so the loop is never held by it.
        """

    @abstractmethod
    async def receive(self) -> tuple[list[Any], Buffer]:
        """Wait for the next report; return its head and its body. Raises TextWorkerDied at the end."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process's number."""

    @abstractmethod
    def kill(self) -> None:
        """End the process; `receive` raises soon after."""

    @abstractmethod
    async def close(self) -> None:
        """Ask it to end, end it if it takes long, and give back all that it holds. Idempotent."""


class TextWorkers(ABC):
    """Launches text workers for one model version."""

    @abstractmethod
    async def launch(self) -> TextWorker:
        """Start a process. It reports `ready` or `failed` first. Raises OSError where none can be started."""
