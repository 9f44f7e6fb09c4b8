"""Reply ports for tests: one that may not be answered, and one that keeps what it gets."""

import trio

from actors.values.errors import TritiumError
from actors.values.requests import InferResponse, ReplyPort


class NoPort(ReplyPort):
    """A reply port of a request that only waits, or is only looked at: an answer is a mistake."""

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        raise AssertionError("nothing is answered here")


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
