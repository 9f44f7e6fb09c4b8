"""Which tensors of an ensemble stay on a GPU between the steps that make and read them. Pure.

A tensor stays if all that read it can read it where it was made. The answer reads what goes to the client,
and reads in host memory only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from actors.ensembles.policy.course import ANSWER, Consumer, Course


class StepDevice(NamedTuple):
    """What the model of a step can do with tensors on a GPU."""

    gpu: int = -1  # the one that all of its instances are on; -1: it takes none, and gives none
    inputs: frozenset[str] = frozenset()  # those that it reads there
    outputs: frozenset[str] = frozenset()  # those that it can leave there


HOST_ONLY: Final = StepDevice()


def staying(course: Course, devices: Mapping[int, StepDevice]) -> Mapping[int, frozenset[str]]:
    """Return which outputs of each step stay on its GPU, by the names of its model.

    A step of which none stays is left out.
    """
    found: dict[int, frozenset[str]] = {}
    for number, step in course.steps.items():
        made = devices[number]
        if made.gpu < 0:
            continue
        left = frozenset(
            name
            for name, tensor in step.outputs.items()
            if name in made.outputs
            and tensor not in course.lasting
            and _is_read_there(course.consumers.get(tensor, ()), tensor, made.gpu, devices)
        )
        if left:
            found[number] = left
    return found


def _is_read_there(
    consumers: Sequence[Consumer], tensor: str, gpu: int, devices: Mapping[int, StepDevice]
) -> bool:
    """Whether there are consumers, and each of them reads `tensor` on that GPU, by all of its names."""
    for consumer in consumers:
        if consumer.number == ANSWER:
            return False
        reads = devices[consumer.number]
        names = {name for name, read, _ in consumer.inputs if read == tensor}
        if reads.gpu != gpu or not names <= reads.inputs:
            return False
    return bool(consumers)
