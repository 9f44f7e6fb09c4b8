"""The states of a call, and the table of what moves it from one to the next.

The first rule: the table is the only place that says what may follow what. The second: a call that is closed
takes no more answers, and one whose method began is told of its end exactly once.

A unary call::

                    PARK             BEGIN                 ANSWER                SEND
    RECEIVING ──────────► PARKED ─────────► BEGUN ─────────────► ANSWERED ─────────────► SENT ──┐
        │  └───────────── BEGIN ─────────────▲ │                    │                    ▲ │    │
        │ ANSWER                 │ ANSWER      │ LOSE          LOSE │               SEND │ │    │ END
        ├────────────────────────┴─────────────┼──────► REFUSED ────┼────────────────────┘ │    │
        │ LOSE                                 ▼          │         ▼                 LOSE │    ▼
        │                                     LOST ◄──────┼─────────┘                      │   OVER
        │                                      │ SEND     │ LOSE                           │    ▲
        └────────────────────────────────────► GONE ◄─────┴────────────────────────────────┘    │
                                               └──────────────────── END ───────────────────────┘

A call of a coroutine: RECEIVING ─SERVE► SERVED ─SPEAK► SPEAKING ─ANSWER► SENT ─END► OVER; it is GONE from any
of them with LOSE.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class CallState(Enum):
    """What a call waits for.

    `closed` calls are answered, or lost their client. `told` is False while a method has to be told of the
    end. Of a call that is `gone`, the stream is no more. A call takes a step with
    `call.state = call.state.after[step]`, which raises RuntimeError where the table has no such row: a bug.
    """

    RECEIVING = "receiving"  # its request is on its way, or is unfolded
    PARKED = "parked"  # its request is whole, and waits for room
    BEGUN = "begun"  # a unary method has the request
    SERVED = "served"  # a coroutine method runs
    SPEAKING = "speaking"  # ... and has sent initial metadata
    ANSWERED = "answered"  # its outcome waits to be sent; its method is then told of it
    REFUSED = "refused"  # its outcome waits to be sent; no method began
    SENT = "sent"  # its answer is on its way to the client, as the windows allow
    LOST = "lost"  # its client is gone; its method is to be told
    GONE = "gone"  # its client is gone, and nothing is to be told any more
    OVER = "over"  # all that it took has been given back

    after: Mapping[Step, CallState]

    def __init__(self, name: str) -> None:
        self.closed = name not in {"receiving", "parked", "begun", "served", "speaking"}
        self.gone = name in {"lost", "gone"}
        self.told = name not in {"answered", "lost"}

    # Members are compared by identity. Hashing their names in Python would cost a call half a microsecond.
    __hash__ = object.__hash__


class Step(Enum):
    """What happens to a call."""

    PARK = "park"  # its request is whole, and there is no room for an answer
    BEGIN = "begin"  # its unary method is given the request
    SERVE = "serve"  # its coroutine method is started
    SPEAK = "speak"  # its initial metadata is sent
    ANSWER = "answer"  # it got its outcome: an answer, an error or a status
    LOSE = "lose"  # its client left, or the connection ends
    SEND = "send"  # its outcome was sent or, with the client gone, dropped
    END = "end"  # what it took is given back

    __hash__ = object.__hash__


# Python 3.11 runs Python code to look up a member of an Enum. Names that are bound once cost a call nothing.
PARK: Final = Step.PARK
BEGIN: Final = Step.BEGIN
SERVE: Final = Step.SERVE
SPEAK: Final = Step.SPEAK
ANSWER: Final = Step.ANSWER
LOSE: Final = Step.LOSE
SEND: Final = Step.SEND
END: Final = Step.END
RECEIVING: Final = CallState.RECEIVING
BEGUN: Final = CallState.BEGUN

_S = CallState

TRANSITIONS: Final[Mapping[CallState, Mapping[Step, CallState]]] = MappingProxyType(
    {
        _S.RECEIVING: {
            Step.PARK: _S.PARKED,
            Step.BEGIN: _S.BEGUN,
            Step.SERVE: _S.SERVED,
            Step.ANSWER: _S.REFUSED,
            Step.LOSE: _S.GONE,
        },
        _S.PARKED: {Step.BEGIN: _S.BEGUN, Step.ANSWER: _S.REFUSED, Step.LOSE: _S.GONE},
        _S.BEGUN: {Step.ANSWER: _S.ANSWERED, Step.LOSE: _S.LOST},
        _S.SERVED: {Step.SPEAK: _S.SPEAKING, Step.ANSWER: _S.SENT, Step.LOSE: _S.GONE},
        _S.SPEAKING: {Step.ANSWER: _S.SENT, Step.LOSE: _S.GONE},
        _S.ANSWERED: {Step.SEND: _S.SENT, Step.LOSE: _S.LOST},
        _S.REFUSED: {Step.SEND: _S.SENT, Step.LOSE: _S.GONE},
        # A method that fails when it is told of the end costs its call an error. That is too late to be sent.
        _S.SENT: {Step.SEND: _S.SENT, Step.LOSE: _S.GONE, Step.END: _S.OVER},
        # The end of a lost connection finds calls in any state, and may find them twice.
        _S.LOST: {Step.SEND: _S.GONE, Step.LOSE: _S.LOST, Step.END: _S.OVER},
        _S.GONE: {Step.SEND: _S.GONE, Step.LOSE: _S.GONE, Step.END: _S.OVER},
        _S.OVER: {},
    }
)
"""The state that a call is in after each step that it can take."""


class _Following(dict[Step, CallState]):
    """One row of the table."""

    def __init__(self, state: CallState, row: Mapping[Step, CallState]) -> None:
        super().__init__(row)
        self._state = state

    def __missing__(self, step: Step) -> CallState:
        raise RuntimeError(f"a call that is {self._state.value} can't {step.value}")


# Several steps a call: a member's own row costs no call of a function.
for _state, _row in TRANSITIONS.items():
    _state.after = _Following(_state, _row)
