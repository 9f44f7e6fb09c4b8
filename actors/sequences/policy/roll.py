"""Which correlation id names which sequence of a model. Pure. Contract, scheduling.md section 6.1."""

from __future__ import annotations

from itertools import count
from typing import Final

from actors.sequences.policy.controls import Controls, Extra
from actors.sequences.policy.records import Key, LiveSequence
from actors.values.errors import InvalidArgument, Unavailable
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, InferRequest

_FLAGS: Final = FLAG_SEQUENCE_START | FLAG_SEQUENCE_END


class Roll:
    """The sequences that ids name. An id names a sequence from its START until the sequence closes."""

    def __init__(self, model: str, controls: Controls, initial: Extra, *, iterative: bool) -> None:
        """`initial` are the states of a sequence that begins; an `iterative` model makes ids of its own."""
        self._model = model
        self._controls = controls
        self._initial = initial
        self._iterative = iterative
        self._made = count(1)
        self.live: dict[Key, LiveSequence] = {}
        self.restarted = 0  # sequences that were begun anew without having ended
        self.last_restarted: int | str = 0
        self.stopping = ""  # why no new sequence is begun

    def enrol(self, request: InferRequest) -> LiveSequence:
        """Return the sequence of `request`, a new one if it begins one.

        Raises InvalidArgument for a request that belongs to no sequence, and Unavailable for a new sequence
        while the roll is `stopping`.
        """
        if request.synthetic and not request.correlation_id:
            return LiveSequence(self._own_key(request, _FLAGS), request.correlation_id, self._initial)
        own = self._iterative and not request.correlation_id
        self._check(request, own=own)
        if self.stopping and (own or request.flags & FLAG_SEQUENCE_START):
            raise Unavailable(self.stopping)
        key: Key
        if own:
            key = self._own_key(request, FLAG_SEQUENCE_START)
            request.correlation_id = str(key[0]) if self._controls.wants_text else key[0]
        else:
            key = request.sequence_key
        sequence = self.live.get(key)
        if sequence is None:
            if not request.flags & FLAG_SEQUENCE_START:
                raise InvalidArgument(
                    f"inference request for sequence {request.correlation_id} to model '{self._model}' must"
                    " specify the START flag on the first request of the sequence"
                )
            sequence = self.live[key] = LiveSequence(key, request.correlation_id, self._initial)
        elif request.flags & FLAG_SEQUENCE_START:
            self.restarted += 1
            self.last_restarted = request.correlation_id
        return sequence

    def _check(self, request: InferRequest, *, own: bool) -> None:
        """Raise InvalidArgument for a request that can't belong to a sequence of this model."""
        mismatch = None if own else self._controls.mismatch(request.correlation_id)
        if mismatch is not None and request.correlation_id:
            control, given = mismatch
            raise InvalidArgument(
                f"{request.prefix}sequence batching control '{control.name}' data-type is '{given}', but"
                f" model '{self._model}' expects '{control.datatype}'"
            )
        to_model = f"to model '{self._model}' must specify"
        if request.rows != 1:
            raise InvalidArgument(
                f"inference request {to_model} batch-size 1 due to requirements of sequence batcher"
            )
        if not request.correlation_id and not own:
            raise InvalidArgument(f"inference request {to_model} a non-zero or non-empty correlation ID")

    def _own_key(self, request: InferRequest, flags: int) -> tuple[int]:
        request.flags |= flags
        return (next(self._made),)

    def strike(self, sequence: LiveSequence) -> bool:
        """Note that a sequence closes. False if no id named it, as that of a probe."""
        return self.live.pop(sequence.key, None) is not None
