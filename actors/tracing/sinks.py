"""Where finished traces go: Triton's file, or an exporter that the engine gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from actors.values.families import Block
from actors.values.tracing.traces import FinishedTrace


class TraceSink(ABC):
    """Takes finished traces. All of this is called on one thread at a time, which may wait.

    `lost` counts the traces that were taken and could not be written.
    """

    lost: int = 0

    @abstractmethod
    def write(self, traces: Sequence[FinishedTrace]) -> None:
        """Take traces, in the order in which they ended; none where it should only look at what it holds."""

    def blocks(self) -> Iterator[Block]:
        """Yield what it tells of itself in numbers."""
        return iter(())

    @abstractmethod
    def close(self) -> None:
        """The server ends: write what is left. Nothing follows."""
