"""What the client of one generation is given, part by part. Passive.

A client that takes an answer as it comes has what it does not read joined to one piece: a slow reader costs
no more than its own text. One that takes it whole has it at the end, and until then nothing has been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from actors.generation.policy.faces import Face, FacePart
from actors.generation.policy.merging import merged
from actors.serving.model import ModelState
from actors.serving.statistics import FailureReason
from actors.values.errors import TritiumError
from actors.values.generation.pieces import Begun, Generated, TextPiece, TokenUsage
from actors.values.requests import InferRequest, InferResponse

UNREAD_PARTS: Final = 32
"""Parts of an answer that a client may leave unread before what follows is joined to one."""


class Answering:
    """See the module."""

    __slots__ = (
        "_clock",
        "_face",
        "_most_pending",
        "_parts",
        "_pending",
        "_request",
        "_state",
        "_streams",
        "_unread",
        "sent",
    )

    def __init__(
        self, state: ModelState, request: InferRequest, face: Face, clock: Callable[[], float]
    ) -> None:
        self._state = state
        self._request = request
        self._face = face
        self._clock = clock
        self._streams = face.ask.stream
        self._parts = 0
        self._unread = 0
        self._pending: list[TextPiece] = []  # that the client has no room for, or does not want yet
        self._most_pending = UNREAD_PARTS  # so many are joined
        self.sent = False  # the client has some of the text

    def begun(self, begun: Begun) -> None:
        """Tell of a prompt."""
        self._put(self._face.begun(begun))

    def piece(self, piece: TextPiece) -> None:
        """Tell more of a choice."""
        if self._pending or self._unread >= UNREAD_PARTS or not self._streams:
            # None goes before those that wait.
            self._pending.append(piece)
            if len(self._pending) >= self._most_pending:
                self._pending = merged(self._pending)
                self._most_pending = 2 * len(self._pending) + UNREAD_PARTS  # choices are not joined
            return
        self._tell(piece)

    def forget(self, choice: int) -> None:
        """A choice begins again; nothing of the answer was sent."""
        self._pending = [piece for piece in self._pending if piece.choice != choice]

    def end(
        self, answer: Sequence[Generated], usage: TokenUsage | None, timing: tuple[int, int, int, int]
    ) -> None:
        """Tell what waits, and that it was all. `timing` is that of `InferResponse`."""
        pending, self._pending = merged(self._pending), []
        for piece in pending:
            self._tell(piece)
        response = self._response(self._face.final(answer, usage))
        if not self._request.answered:
            response.timing = timing
            self._count_first()
            self._state.outcome.count_composed(self._request, timing)
        self._state.outcome.respond(self._request, response)

    def fail(self, error: TritiumError, reason: FailureReason) -> None:
        """End with an error."""
        self._pending = []
        if not self._request.answered:
            self._state.outcome.fail(self._request, self._face.failed(error), reason)

    def _tell(self, piece: TextPiece) -> None:
        self.sent = True
        self._put(self._face.piece(piece))

    def _put(self, part: FacePart | None) -> None:
        if part is None:
            return
        response = self._response(part)
        self._count_first()
        self._parts += 1
        self._unread += 1
        response.on_release(self._read)
        self._state.outcome.respond(self._request, response, final=False)

    def _read(self) -> None:
        """The client has taken a part."""
        self._unread -= 1
        if self._pending and self._streams and self._unread < UNREAD_PARTS // 2:
            pending, self._pending = merged(self._pending), []
            for piece in pending:
                self._tell(piece)

    def _count_first(self) -> None:
        if self._parts == 0 and not self._request.synthetic:
            self._state.statistics.first_part(int((self._clock() - self._request.accepted_at) * 1e9))

    def _response(self, part: FacePart) -> InferResponse:
        spec = self._state.spec
        generated, outputs = part
        response = InferResponse(
            model_name=spec.name, model_version=spec.version, id=self._request.id, outputs=outputs
        )
        response.generated = generated
        return response
