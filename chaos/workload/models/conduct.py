"""How a reference model behaves, but for what it computes.

It keeps a journal, and does the harm that it is told to do. It is copied beside each `model.py`.
"""

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

# This module exists in workers only.
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]
from deeds import Deeds, MemberRefused  # type: ignore[import-not-found]  # lies beside this file
from journal import Journal  # type: ignore[import-not-found]  # lies beside this file


class Conduct:
    """The conduct of one worker. All its settings come from the model's configuration."""

    def __init__(self, args: dict[str, str], *, pace: float = 0.005) -> None:
        """`args` are those of `initialize`. Raises RuntimeError if it is told to fail."""
        parameters = json.loads(args["model_config"])["parameters"]
        run, limit = (parameters[key]["string_value"] for key in ("chaos.run", "tritium.memory_limit_mb"))
        self._orders = os.path.join(run, "control", args["model_name"])
        self._journal = Journal(os.path.join(run, "journal"), args["model_name"])
        self._deeds = Deeds(pace=pace, limit=int(limit) << 20)
        self._leaks = False  # whether an order that is held has it leak
        for action in self._taken(starting=True):
            self._deeds.do(action)

    def begin(self, requests: Sequence[Any]) -> "Batch":
        """Enter requests into the journal, then do what orders there are.

        If an order raises, the whole batch gets the exception.
        """
        batch = Batch(self._journal, self._deeds, requests)
        leaks = False
        for action in self._taken(starting=False):
            leaks = leaks or action.startswith("leak_")
            try:
                self._deeds.do(action)
            except MemberRefused as refusal:
                batch.refuse_first(refusal)
        if self._leaks and not leaks:
            self._deeds.release()
        self._leaks = leaks
        return batch

    def answered(self, requests: Sequence[Any], answer: Callable[[int], int]) -> list[Any]:
        """Answer each request of a batch with a function of its value."""
        batch = self.begin(requests)
        made = [batch.response(each, partial(answer, value_of(each))) for each in requests]
        batch.end()
        return made

    def _taken(self, *, starting: bool) -> list[str]:
        """The actions that this worker has to do now: all that are held, and one of those to be done once."""
        held, once = [], ""
        for name in self._names():
            _, action, *ending = name.split(".")
            if action.startswith("init_") is not starting:
                continue
            if ending:
                held.append(action)
            elif not once and self._removes(name):
                once = action
        return [*held, once] if once else held

    def _names(self) -> list[str]:
        """The orders that stand, oldest first."""
        try:
            return sorted(os.listdir(self._orders))
        except FileNotFoundError:
            return []
        except OSError:  # the model has leaked all descriptors that it may have
            with self._deeds.room():
                return sorted(os.listdir(self._orders))

    def _removes(self, name: str) -> bool:
        """Whether it was this worker, rather than another, that took an order."""
        try:
            os.unlink(os.path.join(self._orders, name))
        except FileNotFoundError:
            return False
        return True


class Batch:
    """What is executed together."""

    def __init__(self, journal: Any, deeds: Any, requests: Sequence[Any]) -> None:
        self._journal = journal
        self._deeds = deeds
        self._refusal: MemberRefused | None = None  # for the request that is answered first
        self._executed: list[str] = []
        self._number = journal.begin([each.request_id() for each in requests])

    def refuse_first(self, refusal: MemberRefused) -> None:
        """Have the request that is answered first get an error response."""
        self._refusal = refusal

    def response(self, request: Any, answer: Callable[[], int]) -> Any:
        """Do what the request itself asks for, and make its response."""
        refusal, self._refusal = self._refusal, None
        try:
            if refusal is not None:
                raise refusal
            self.do(poison_of(request))
        except MemberRefused as error:
            return refused(error)
        shape = pb_utils.get_input_tensor_by_name(request, "VALUE").shape()
        made = answering(answer(), shape)
        self._executed.append(request.request_id())
        return made

    def do(self, poison: str) -> None:
        """Do what a request asks for, if it does."""
        if poison:
            self._deeds.do(poison)

    def executed(self, request: Any) -> None:
        """Enter into the journal that one request's whole answer is made."""
        self._journal.end([request.request_id()], self._number)

    def end(self) -> None:
        """The same for all that `response` has made."""
        self._journal.end(self._executed, self._number)


def value_of(request: Any, name: str = "VALUE") -> int:
    """Return the one number of an input."""
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0])


def poison_of(request: Any) -> str:
    """Return the harm that a request asks for, or nothing."""
    tensor = pb_utils.get_input_tensor_by_name(request, "POISON")
    return "" if tensor is None else tensor.as_numpy().ravel()[0].decode()


def answering(answer: int, shape: Sequence[int]) -> Any:
    """Make a response."""
    return pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", np.full(shape, answer, np.int32))])


def refused(refusal: Exception) -> Any:
    """Make a response that is an error."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(refusal)))
