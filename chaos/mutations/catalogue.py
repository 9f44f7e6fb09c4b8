"""Deliberate bugs, each small enough to be overlooked in a review, and each breaking one promise.

A mutation replaces a piece of a file that occurs in it exactly once, so that the list notices when the code
moves on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Mutation:
    """One bug: in `file`, `old` becomes `new`; `breaks` says for people what is wrong then."""

    name: str
    breaks: str
    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """Return the file's text with the bug in it.

        Raises ValueError if `old` does not occur exactly once.
        """
        times = text.count(self.old)
        if times != 1:
            raise ValueError(
                f"mutation '{self.name}': what it replaces occurs {times} times in {self.file}, not once"
            )
        return text.replace(self.old, self.new)


SUPERVISION: Final = (
    Mutation(
        "missed-restart",
        "a permanent child that returns is not started again",
        "actors/supervision/restart.py",
        "    return restart is Restart.PERMANENT\n",
        "    return restart is Restart.PERMANENT and is_abnormal(reason)\n",
    ),
    Mutation(
        "rest-for-one-forgets-itself",
        "rest_for_one restarts those after the failed child and not the child",
        "actors/supervision/restart.py",
        "names[names.index(failed) :]",
        "names[names.index(failed) + 1 :]",
    ),
    Mutation(
        "one-restart-too-few",
        "the budget is used up one restart early",
        "actors/supervision/restart.py",
        "return len(self.times) > self.intensity.restarts",
        "return len(self.times) >= self.intensity.restarts",
    ),
    Mutation(
        "deaths-never-forgotten",
        "a life with progress does not start the row of deaths afresh, so backoff only grows",
        "actors/supervision/restart.py",
        "        record = replace(record, attempt=0, exhausted=False)\n",
        "        record = replace(record, exhausted=False)\n",
    ),
    Mutation(
        "stops-left-to-right",
        "children are stopped in the order of their start",
        "actors/supervision/branch.py",
        "        for child in list(reversed(self.table)):\n            await self._lives.stop(child)\n",
        "        for child in list(self.table):\n            await self._lives.stop(child)\n",
    ),
    Mutation(
        "group-restart-without-waiting",
        "a group's children start at once and not each after the one before is ready",
        "actors/supervision/branch.py",
        "            await life.wait_settled()\n            if life.failure is not None:\n                return  #",
        "            if life.failure is not None:\n                return  #",
    ),
    Mutation(
        "failed-restart-is-the-end",
        "a restart that fails is not tried again",
        "actors/supervision/lives.py",
        "        return life.purpose is Purpose.RESTART\n",
        "        return False\n",
    ),
)

SCHEDULING: Final = (
    Mutation(
        "lost-reply",
        "the last request of a batch gets no answer",
        "actors/serving/model.py",
        "        for request, outputs, answer in answers:\n            if not request.synthetic:\n",
        "        for request, outputs, answer in answers[: max(1, len(answers) - 1)]:\n            if not request.synthetic:\n",
    ),
    Mutation(
        "wrong-row",
        "every request of a batch is given the first one's rows",
        "actors/wire/gathering.py",
        "            Tensor(name, datatype, (rows, *tail), data[at + (end - rows) * row : at + end * row])\n",
        "            Tensor(name, datatype, (rows, *tail), data[at : at + rows * row])\n",
    ),
    Mutation(
        "answered-requests-run-again",
        "a death puts requests back that have had their answer",
        "actors/serving/policy/retries.py",
        "        unanswered = [request for request in requests if not request.answered]\n",
        "        unanswered = list(requests)\n",
    ),
    Mutation(
        "lost-on-requeue",
        "of what waited in a dead worker, the first request is forgotten",
        "actors/serving/policy/retries.py",
        "    inquest.requeue += inquest.live(waiting)\n",
        "    inquest.requeue += inquest.live(waiting)[1:]\n",
    ),
    Mutation(
        "half-a-batch-lost",
        "bisection keeps the first half of a suspect batch alone",
        "actors/serving/policy/retries.py",
        "for half in (batch[:middle], batch[middle:]) if half]",
        "for half in (batch[:middle],) if half]",
    ),
    Mutation(
        "poison-for-ever",
        "a request that kills its worker alone is tried again without end",
        "actors/serving/policy/retries.py",
        "ALONE_DEATHS_ALLOWED: Final = 1  #",
        "ALONE_DEATHS_ALLOWED: Final = 10**9  #",
    ),
    Mutation(
        "run-twice-what-must-not",
        "a batch of a model that is not to be run twice is put back after a death",
        "actors/serving/policy/retries.py",
        "        if retry is Retry.NEVER:\n",
        "        if retry is Retry.NEVER and reason.blames_request:\n",
    ),
    Mutation(
        "no-timer-for-the-queue",
        "nobody wakes for a queue timeout while all instances are busy",
        "actors/serving/batcher.py",
        "        return min(wake_at, expiry, queue.next_expiry())\n",
        "        return min(wake_at, expiry)\n",
    ),
    Mutation(
        "fresh-work-beside-a-suspect",
        "an instance that hunts a suspect is given other batches too",
        "actors/serving/batcher.py",
        "            if worker is None or not worker.has_room or instance.hunting:\n                continue\n            if worker.idle:",
        "            if worker is None or not worker.has_room:\n                continue\n            if worker.idle:",
    ),
    Mutation(
        "cancelled-requests-run",
        "what was cancelled in the queue is executed all the same",
        "actors/serving/policy/queueing.py",
        "                (self._cancelled if request.cancelled else taken).append(request)\n",
        "                taken.append(request)\n",
    ),
    Mutation(
        "bytes-never-leave",
        "the queue goes on counting the bytes of what has left it",
        "actors/serving/policy/queueing.py",
        "                self._nbytes -= request.nbytes\n                if entry.timed is not None:\n                    self._disarm(entry)\n                (self._cancelled",
        "                if entry.timed is not None:\n                    self._disarm(entry)\n                (self._cancelled",
    ),
    Mutation(
        "sequence-overtaken",
        "the newest request of a sequence goes first",
        "actors/sequences/policy/batches.py",
        "        request = sequence.queue.popleft()\n",
        "        request = sequence.queue.pop()\n",
    ),
    Mutation(
        "sequence-slot-leaked",
        "the slot of a sequence that has ended is nobody's",
        "actors/sequences/policy/slots.py",
        "        if not group.leaving:\n            heappush(self._free, (sequence.index, group.number, group))\n",
        "",
    ),
    Mutation(
        "two-of-a-sequence-at-once",
        "the next request of a sequence does not wait for the one before it",
        "actors/sequences/policy/lives.py",
        "        elif sequence.running is None and len(sequence.queue) == 1:\n",
        "        elif len(sequence.queue) == 1:\n",
    ),
    Mutation(
        "lost-ring",
        "the scheduler is not told when an instance has settled a death",
        "actors/serving/deaths.py",
        "            state.instance_exhausted(instance)  # its trial ended as its lives before\n        state.ring()\n",
        "            state.instance_exhausted(instance)  # its trial ended as its lives before\n",
    ),
    Mutation(
        "ensemble-part-lost",
        "a cancelled ensemble leaves its steps running",
        "actors/ensembles/ensemble_request.py",
        "            elif not step.request.cancelled:\n                step.model.cancel(step.request)\n",
        "            elif not step.request.cancelled:\n                continue\n",
    ),
)

WORKERS: Final = (
    Mutation(
        "leaked-slot",
        "a slot is not given back after its batch",
        "actors/serving/instances/worker.py",
        "        finally:\n            batch.slot.release()\n            if self._tell_idle is not None:\n                self._tell_if_idle()\n",
        "        finally:\n            if self._tell_idle is not None:\n                self._tell_if_idle()\n",
    ),
    Mutation(
        "double-reply",
        "a finished batch stays on the books, and is settled again when its worker dies",
        "actors/serving/instances/worker.py",
        "        del self.outstanding[batch.id]\n        try:\n            self._events.finished(",
        "        try:\n            self._events.finished(",
    ),
    Mutation(
        "credit-never-granted",
        "a stream of responses stops at the end of its first window",
        "actors/wire/parts.py",
        "        self._grant(self, parts, nbytes, waited)\n",
        "",
    ),
    Mutation(
        "cancel-before-the-beginning",
        "a client that leaves before a decoupled model has begun is not told to it",
        "engine/worker/execution.py",
        "                window.cancelled |= control.cancelled(slot.index, index)\n",
        "                window.cancelled |= False\n",
    ),
    Mutation(
        "hang-overlooked",
        "a batch may take three times its limit",
        "actors/serving/instances/instance.py",
        "            self._culprit = worker.overdue(now - limit)\n",
        "            self._culprit = worker.overdue(now - 3 * limit)\n",
    ),
    Mutation(
        "nobody-to-blame",
        "the worker does not say which batch it executes, so that what killed it is taken for waiting and runs again",
        "actors/wire/arena.py",
        "        self._executing[lane] = batch_id\n",
        "",
    ),
    Mutation(
        "rows-of-the-neighbour",
        "a request of a batch sees the inputs of the one before it",
        "engine/worker/backends/python/replies.py",
        "request.input(name) if array is None else array[start:end])",
        "request.input(name) if array is None else array[max(0, start - 1) : max(0, start - 1) + end - start])",
    ),
    Mutation(
        "unanswered-stays-unanswered",
        "what a model raises for a whole batch leaves its requests without an answer",
        "engine/worker/execution.py",
        "            elif answer is None:\n                self.answer(index, Answer(code=code, message=message))\n",
        "            elif answer is None and index:\n                self.answer(index, Answer(code=code, message=message))\n",
    ),
)

MUTATIONS: Final[Sequence[Mutation]] = (*SUPERVISION, *SCHEDULING, *WORKERS)
