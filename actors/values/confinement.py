"""How far a model's worker is shut in. This imports nothing heavy: the command line reads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Sandbox(Enum):
    """How far a worker process is shut in (`tritium.sandbox`), from the least to the most.

    docs/worker_life.md says what each level takes away.
    """

    OFF = "off"
    # No new privileges, no mounts, no changes of the machine, no other processes' limits.
    GUARD = "guard"
    # Also no network, no namespaces, no kernel interfaces that models don't need.
    BASIC = "basic"
    # Only system calls that models need, no capabilities, no leaving of the process group, no files but its
    # own.
    STRICT = "strict"

    def holds(self, other: Sandbox) -> bool:
        """Whether it takes away at least what `other` does."""
        levels = list(Sandbox)
        return levels.index(self) >= levels.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """The limits of one worker of a model, with all processes that it starts. 0 means no limit."""

    memory: int = 0  # bytes (`tritium.memory_limit_mb`)
    processes: int = 0  # including the worker itself (`tritium.max_processes`)
    sandbox: Sandbox = Sandbox.OFF
    read: tuple[str, ...] = ()  # paths that a strict sandbox may read beyond its own
    write: tuple[str, ...] = ()  # and paths that it may write
    # The operator has asked for this sandbox, and the model for none that is stricter.
    imposed: bool = False
    # No operator asked for this sandbox. Where the kernel can't apply it, there is no warning either.
    by_default: bool = False

    @property
    def watched(self) -> bool:
        """Whether the server must watch the worker's use of memory and processes."""
        return bool(self.memory or self.processes)
