"""Implicit state: an output that becomes an input of the sequence's next request.

Contract, scheduling.md section 6.6. The server keeps the bytes, not the worker. So a sequence can go on after
its worker died, and a model that takes its state as an input needs no memory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.sequences.policy.controls import Extra
from actors.values.errors import Internal
from actors.values.requests import InferRequest
from actors.values.specs import ModelSpec, SequenceBatching, StateSpec
from actors.values.tensors import Tensor


class ImplicitState:
    """The states of one model: the initial ones, and how its answers change them."""

    def __init__(self, spec: ModelSpec, sequences: SequenceBatching) -> None:
        self._model = spec.name
        states = sequences.states
        self._outputs: Mapping[str, tuple[int, StateSpec]] = {
            state.output_name: (at, state) for at, state in enumerate(states)
        }
        self.initial: Extra = tuple(_first(state, batches=spec.batches) for state in states)
        # If they vary, two sequences may not fit into one batch.
        self.varies = any(-1 in state.dims for state in states)

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def visible(self, request: InferRequest, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return those of `outputs` that the client asked for."""
        wanted = request.requested_outputs
        return [tensor for tensor in outputs if tensor.name not in self._outputs or tensor.name in wanted]

    def after(self, before: Extra, outputs: Sequence[Tensor]) -> Extra:
        """Return the states after an execution that gave `outputs`.

        A state that it did not write stays as it was.

        Bytes are copied, because outputs may view memory that is about to be used again. Raises Internal for
        a state of another datatype than configured.
        """
        states = list(before)
        for tensor in outputs:
            found = self._outputs.get(tensor.name)
            if found is None:
                continue
            at, state = found
            if tensor.datatype is not state.datatype:
                raise Internal(
                    f"model '{self._model}' gave state '{state.output_name}' as {tensor.datatype}, its"
                    f" configuration says {state.datatype}"
                )
            states[at] = Tensor(state.input_name, state.datatype, tuple(tensor.shape), bytes(tensor.data))
        return tuple(states)


def _first(state: StateSpec, *, batches: bool) -> Tensor:
    shape = tuple(state.initial.shape)
    return Tensor(state.input_name, state.datatype, (1, *shape) if batches else shape, state.initial.data)
