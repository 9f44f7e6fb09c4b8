"""What a worker is answered over one of its connections for calls. Passive; only the pipe waits."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from actors.calls.account import Account
from actors.calls.call_pipe import CallPipe, Packet
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, TritiumError, Unavailable
from actors.values.requests import InferResponse, release
from actors.wire import frames
from actors.wire.batch_frames import Answer, Part, Placed
from actors.wire.call_frames import laid_out
from actors.wire.call_segments import WORTH_A_SEGMENT, write_segment
from actors.wire.frames import FrameError

if TYPE_CHECKING:
    from actors.values.tensors import Buffer

_TEXT_LIMIT: Final = 8 * 1024  # characters of an error's message


class AnswerSender:
    """Sends answers over one connection, each part copied out of its memory at once."""

    def __init__(self, pipe: CallPipe, account: Account) -> None:
        self._pipe = pipe
        self._account = account
        self._handed: deque[int] = deque()  # sizes of segments that the worker has not taken

    def send(self, number: int, part: InferResponse | TritiumError, *, final: bool) -> int:
        """Send one part of an answer, copied; return how many bytes its tensors take."""
        account = self._account
        if isinstance(part, InferResponse):
            waiting = account.unsent
            if waiting + sum([tensor.nbytes for tensor in part.outputs]) > account.limits.nbytes:
                release(part)
                part = Unavailable(f"answers of {waiting} bytes wait for the caller to read them")
        if isinstance(part, TritiumError):
            self._refuse(number, part.code, part.message[:_TEXT_LIMIT], final=final)
            return 0
        if final and not part.outputs and not part.parameters:
            part.release()
            self._send(Part(number, 0, None, b"", 0, final=True))
            return 0
        placed, pieces, nbytes = laid_out(part.outputs)
        answer = Answer(placed, part.parameters)
        try:
            if nbytes < WORTH_A_SEGMENT or account.handed >= account.limits.segments:
                self._send(Part(number, 0, answer, b"".join(pieces), nbytes, final=final))
            else:
                self._send_segment(Part(number, 0, answer, b"", nbytes, final=final), pieces)
        except ValueError as error:
            # The data beside the tensors is too much for a frame.
            self._refuse(number, ErrorCode.INTERNAL, str(error), final=final)
            return 0
        except OSError as error:
            refusal = f"no memory for an answer of {nbytes} bytes: {error.strerror}"
            self._refuse(number, ErrorCode.UNAVAILABLE, refusal, final=final)
            return 0
        finally:
            part.release()
        return nbytes

    def send_told(self, number: int, told: Mapping[str, object]) -> None:
        """Send the answer to a question."""
        text = json.dumps(told, separators=(",", ":")).encode()
        placed = Placed("", DataType.UINT8, (len(text),), 0, len(text))
        self._send(Part(number, 0, Answer([placed]), text, len(text), final=True))

    def _refuse(self, number: int, code: ErrorCode, message: str, *, final: bool) -> None:
        self._send(Part(number, 0, Answer(code=code, message=message), b"", 0, final=final))

    def _send(self, part: Part) -> None:
        whole = part.packet()
        if whole is not None:
            self._pipe.send_whole(whole, part.nbytes, final=part.final)
            return
        packets: Iterator[Packet] = ((packet, ()) for packet in part.packets())
        self._pipe.send_answer(packets, part.nbytes, final=part.final)

    def _send_segment(self, part: Part, pieces: Sequence[Buffer]) -> None:
        first = next(part.packets())
        announced = frames.encode_segment(0, 0, part.nbytes), (write_segment(pieces),)
        self._handed.append(part.nbytes)
        self._account.handed += 1
        self._account.untaken += part.nbytes
        self._pipe.send_answer(iter((announced, (first, ()))), 0, final=part.final)

    def taken(self, packet: bytes) -> None:
        """The worker has taken the oldest segment. Raises FrameError where it was given none."""
        del packet
        if not self._handed:
            raise FrameError("a worker has taken a segment that it was not given")
        self._account.handed -= 1
        self._account.untaken -= self._handed.popleft()

    def close(self) -> None:
        """The connection has ended: nothing more is taken."""
        self._account.handed -= len(self._handed)
        self._account.untaken -= sum(self._handed)
        self._handed.clear()
