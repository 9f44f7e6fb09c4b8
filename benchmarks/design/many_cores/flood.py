"""Asks an owner as quickly as it answers, over several rings, with requests that are encoded beforehand.

    python -m benchmarks.design.many_cores.flood SOCKET MODEL RINGS WINDOW SECONDS

It stands for as many protocol processes as there are RINGS, at a fraction of their cost. So the owner, on a
core of its own, is what gives the rate. Each ring has WINDOW calls open. It prints answers a second.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Sequence

from actors.values.specs import ModelSpec
from benchmarks.design.many_cores import forms, line
from benchmarks.design.many_cores.forms import Book
from benchmarks.design.many_cores.line import Line
from benchmarks.design.many_cores.threaded import inputs_of


class Asker:
    """One ring's calls: `window` of them are open at any time."""

    def __init__(self, there: Line, spec: ModelSpec, window: int) -> None:
        self._line = there  # its socket tells the owner that this process lives
        self.calls, self.answers = there.calls, there.answers
        inputs = inputs_of(spec)
        form = Book(self.calls.put).number(spec.name, -1, spec.output_names, inputs)
        self._frames = [forms.call(forms.CALL, form, number, "", inputs) for number in range(window)]
        self.answered = self.failed = 0
        for frame in self._frames:
            self.calls.put(frame)
        self.calls.ring()

    def turn(self) -> int:
        """Ask again for each answer that has come; return how many have."""
        count = 0
        while (frame := self.answers.take()) is not None:
            kind = frame[0]
            if kind == forms.FORM:
                continue
            if kind == forms.FAILURE:
                self.failed += 1
                number = forms.read_failure(frame)[0]
            else:
                number = int.from_bytes(frame[8:16], "little")
            self.calls.put(self._frames[number])
            count += 1
        if count:
            self.answers.done()
            self.calls.ring()
            self.answered += count
        return count


def main(argv: Sequence[str]) -> None:
    """Ask for some seconds; print the rate."""
    path, model, rings, window, seconds = argv
    askers: list[Asker] = []
    poll = select.epoll()
    for _ in range(int(rings)):
        there, specs = line.join(path)
        askers.append(Asker(there, specs[model], int(window)))
        poll.register(there.answers.doorbell, select.EPOLLIN)
    begun = time.monotonic()
    while time.monotonic() - begun < float(seconds):
        if sum([asker.turn() for asker in askers]):
            continue
        if all(asker.answers.may_sleep() for asker in askers):
            poll.poll(0.5)
        for asker in askers:
            asker.answers.awake()
    answered = sum(asker.answered for asker in askers)
    failed = sum(asker.failed for asker in askers)
    print(f"{answered / (time.monotonic() - begun):.0f} {failed}")


if __name__ == "__main__":
    main(sys.argv[1:])
