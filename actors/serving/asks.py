"""The port of what workers ask for beside answering requests: calls of other models, questions to the server.

It is empty by default. `actors.calls` serves it.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

from actors.serving.instances.batches import InFlight
from actors.values.requests import InferRequest
from actors.values.specs import ModelSpec
from actors.wire.frames import FrameError


class Asker(Protocol):
    """A worker, as far as those need to know it that serve what it asks for."""

    steps: int
    """Of an engine: how many steps it has told of."""

    @property
    def outstanding(self) -> Mapping[int, InFlight]:
        """Its batches that are not known to have executed, by number."""

    @property
    def open(self) -> Mapping[int, InFlight]:
        """Its batches that have executed and still have requests to answer."""

    def stop_prefetching(self) -> None:
        """Let no further batch wait behind an execution, which may have to wait for other models."""


class WorkerAsks(ABC):
    """Serves what one worker asks for, for as long as its process lives."""

    @abstractmethod
    async def run(self, condemn: Callable[[FrameError], None]) -> None:
        """Serve until the worker closes the connection.

        `condemn` is called where the worker breaks the protocol.
        """

    @abstractmethod
    def cancelled(self, request: InferRequest) -> None:
        """The client of a request that the worker executes has gone: cancel what is asked only for that."""


class Asks(ABC):
    """Serves what the workers of a version ask for."""

    @abstractmethod
    def connect(self, worker: Asker, spec: ModelSpec, instance: str) -> tuple[WorkerAsks, socket.socket]:
        """Make a connection for one worker; return the server of it and the worker's end.

        The caller runs the first and closes the second.
        """
