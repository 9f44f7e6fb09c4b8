"""How the tensors of an ensemble's configuration connect its steps (contract, scheduling.md section 7)."""

from __future__ import annotations

from collections.abc import Iterable

from actors.values.specs import Ensemble


class Wiring:
    """The steps of an ensemble's configuration, and how their tensors connect them."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.steps = ensemble.steps
        self._written_by = {
            tensor: number for number, step in enumerate(self.steps) for tensor in step.output_map.values()
        }

    def writer(self, tensor: str) -> tuple[int, str] | None:
        """Return the step that writes `tensor`, and its model's name for it; None for an ensemble's input."""
        number = self._written_by.get(tensor)
        if number is None:
            return None
        written = self.steps[number].output_map
        return number, next(output for output, name in written.items() if name == tensor)

    def contributing(self, requested: Iterable[str]) -> tuple[int, ...]:
        """Return the numbers of the steps that `requested` outputs depend on, ascending."""
        found: set[int] = set()
        open_tensors = list(requested)
        while open_tensors:
            number = self._written_by.get(open_tensors.pop())
            if number is not None and number not in found:
                found.add(number)
                open_tensors += self.steps[number].input_map.values()
        return tuple(sorted(found))
