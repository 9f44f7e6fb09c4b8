"""Reply ports for tests, one that may not be answered and one that keeps its parts; requests that only wait."""

from collections.abc import Hashable
from typing import Any

import trio

from actors.values.errors import TritiumError
from actors.values.requests import InferRequest, InferResponse, ReplyPort


class NoPort(ReplyPort):
    """A reply port of a request that only waits, or is only looked at: an answer is a mistake."""

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        raise AssertionError("nothing is answered here")


def waiting_request(
    name: str = "",
    *,
    tenant: str = "",
    rows: int = 1,
    nbytes: int = 0,
    batch_key: Hashable = None,
    **options: Any,
) -> InferRequest:
    """A request that only waits, or is only looked at."""
    options = {"model_name": "add", "reply": NoPort(), "accepted_at": 0.0, **options}
    request = InferRequest(id=name, **options)
    request.tenant, request.rows, request.nbytes, request.batch_key = tenant, rows, nbytes, batch_key
    return request


class Port(ReplyPort):
    """A reply port that keeps all parts, and lets a test wait for the last."""

    def __init__(self) -> None:
        self.parts: list[InferResponse | TritiumError] = []
        self._done = trio.Event()

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        self.parts.append(part)
        if final:
            self._done.set()

    async def wait(self) -> InferResponse | TritiumError:
        """Wait for the last part and return it."""
        await self._done.wait()
        return self.parts[-1]

    @property
    def error(self) -> TritiumError | None:
        """The error it got, or None."""
        return next((part for part in self.parts if isinstance(part, TritiumError)), None)

    @property
    def answered(self) -> bool:
        return any(isinstance(part, InferResponse) for part in self.parts)
