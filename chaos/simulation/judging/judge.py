"""Whether the outcome of a request is right, or excused by what was done to the server: nothing else is.

An excuse is as narrow as the simulation's knowledge, which is complete. An error because a worker died is
excused only if that very worker was executing that very request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from chaos.simulation.faults import Blow, Window, met
from chaos.simulation.judging import texts
from chaos.simulation.judging.control import BARELY, Control
from chaos.simulation.observers import Looked
from chaos.simulation.outcomes import GONE, LOST, Outcome
from chaos.simulation.world.models import MODELS, VERSION_STEP, Model, parts_of, width_of
from chaos.simulation.world.workers import Journal

# Within `DEATHS_WITHIN`; after so many, an instance is tried only now and then.
MANY_DEATHS: Final = 5
DEATHS_WITHIN: Final = 30.0
TRIED_WITHIN: Final = 50.0  # seconds for which a model that died so often may be gone
STOPPED_WITHIN: Final = 15.0  # seconds that a version's actors may take to stop
QUEUE_TIMEOUT: Final = 0.4  # of the model with bounds, unless the request has its own


class Judge:
    """Knows what was done to the server."""

    def __init__(
        self,
        journal: Journal,
        windows: Sequence[Window],
        crashed: Sequence[str],
        blows: Sequence[Blow],
        control: Control,
        draining_since: float,
    ) -> None:
        self._crashed = crashed
        self._blows = blows
        self._journal = journal
        self._control = control
        self._windows = windows
        self._draining_since = draining_since
        self._poisonous: set[tuple[str, Sequence[int]]] = set()

    def complaints(self, outcomes: Sequence[Outcome], history: Mapping[str, int]) -> Iterator[str]:
        """Yield what is wrong, in words.

        `history` has, by id of a request of a sequence, the sum of it and those before.
        """
        # Inputs like those that have killed a worker are refused.
        self._poisonous = {
            (each.request.model, each.request.values)
            for each in outcomes
            if each.request.poison or self._convicted(each)
        }
        for outcome in outcomes:
            for complaint in self._of(outcome, history):
                yield f"{complaint}: {outcome}"

    def complaints_of_workers(self) -> Iterator[str]:
        """Yield where the server ended a worker that was doing its work.

        The end of a version, and the replacement of an instance, must not do that.
        """
        for at, model, ids in self._journal.ended_under:
            if at < self._draining_since and not self._hit(model, at - STOPPED_WITHIN, at):
                yield f"a worker of '{model}' was ended under {', '.join(ids)} at {at:.3f}, and had done nothing wrong"

    def complaints_of(self, looks: Sequence[Looked]) -> Iterator[str]:
        """Yield what is wrong with what observers got."""
        for looked in looks:
            for complaint in looked.complaints:
                yield f"{complaint}: {looked}"
            if not looked.code:
                yield f"no answer to an observer: {looked}"
            elif looked.code == LOST and not met(
                self._windows, "connections", "", looked.began, looked.ended
            ):
                yield f"an observer lost its connection: {looked}"

    def _of(self, outcome: Outcome, history: Mapping[str, int]) -> Iterator[str]:
        request = outcome.request
        model = MODELS[request.model]
        if not outcome.code:
            yield "no answer at all"
        elif outcome.ok:
            if outcome.finals != 1 or outcome.parts_after_final:
                yield f"{outcome.finals} final answers, {outcome.parts_after_final} parts after the first"
            if request.poison or request.raises:
                yield "a good answer to a request that its model can't answer"
            if not _right(outcome, model, history):
                yield "a wrong answer"
        elif outcome.finals > 1 or outcome.parts_after_final:
            yield f"{outcome.finals} final answers, {outcome.parts_after_final} parts after the first"
        elif not self._excused(outcome, model):
            yield "an error that nothing excuses"
        if request.told is not None:
            yield from texts.complaints(outcome, request.told)
        if outcome.code not in (GONE, LOST, "NOT_FOUND") and self._control.must_be_gone(
            model.name, outcome.began, outcome.ended
        ):
            yield "its model was unloaded, and it is not told so"
        yield from self._executed(outcome, model)

    def _convicted(self, outcome: Outcome) -> bool:
        """Whether a prompt kills, or was taken for one that does."""
        told = outcome.request.told
        return told is not None and (told.asked.dies or self._journal.died_under[outcome.request.id] > 1)

    def _executed(self, outcome: Outcome, model: Model) -> Iterator[str]:
        """Yield what was run again and may not be; each choice of a language model is run by itself."""
        request = outcome.request
        once = 1 if request.told is None else request.told.choices
        for name in (request.model, *model.steps):
            times = self._journal.ended[name, request.id]
            if times > 1 and not MODELS[name].retried:
                yield f"executed {times} times by '{name}', which is not to be run again"
            if self._journal.begun[name, request.id] > once and not self._cut_short(outcome, name):
                yield f"begun more than once by '{name}', though nothing became of its worker or of who looks after it"

    def _excused(self, outcome: Outcome, model: Model) -> bool:
        request, journal = outcome.request, self._journal
        took = outcome.ended - outcome.began + BARELY
        deaths = journal.died_under[request.id]
        match outcome.code:
            case code if code == GONE:
                return bool(request.patience)
            case code if code == LOST:
                return self._within(outcome, "connections") or outcome.ended >= self._draining_since
            case "CANCELLED":
                return bool(request.patience) or (bool(request.deadline) and took >= request.deadline)
            case "DEADLINE_EXCEEDED" if request.told is not None:
                return texts.out_of_time(outcome) or journal.hung_under[request.id] > 0
            case "DEADLINE_EXCEEDED":
                hung = journal.hung_under[request.id] > 0 or (deaths > 0 and took >= model.limit)
                return hung or (bool(request.deadline) and took >= request.deadline)
            case "POISONED":
                return (request.model, request.values) in self._poisonous or deaths > 1
            case "INTERNAL":
                return journal.raised[request.id] > 0
            case "INVALID_ARG":
                return bool(request.sequence) and not request.start and self._sequence_lost(outcome)
            case "NOT_FOUND":
                return _says_gone(outcome) and (
                    self._gone(outcome, model) or self._control.may_be_gone(model.name, outcome.began)
                )
            case "UNAVAILABLE" if request.told is not None and texts.not_resumed(
                outcome, request.told, deaths
            ):
                return True
            case "UNAVAILABLE":
                return (
                    (deaths > 0 and (not model.retried or bool(request.poison)))
                    or deaths > 1
                    or (bool(request.sequence) and self._sequence_lost(outcome))
                    or (model.bounded and _refused_by_policy(outcome, took))
                    or self._gone(outcome, model)
                    or (_says_on_its_way(outcome) and self._control.may_be_gone(model.name, outcome.began))
                    or outcome.ended >= self._draining_since
                    or self._result_lost(outcome, model)
                )
        return False

    def _result_lost(self, outcome: Outcome, model: Model) -> bool:
        """Whether its model ran it and may not run it again, and its instance actor crashed over it."""
        ran = any(
            self._journal.ended[name, outcome.request.id] and not MODELS[name].retried
            for name in (model.name, *model.steps)
        )
        return ran and "instance.packet" in self._crashed

    def _cut_short(self, outcome: Outcome, model: str) -> bool:
        """Whether a worker died under it, or an actor of the model was made to crash meanwhile."""
        if self._journal.died_under[outcome.request.id]:
            return True
        return self._hit(model, outcome.began, outcome.ended)

    def _hit(self, model: str, begin: float, end: float) -> bool:
        return any(
            begin <= blow.at <= end
            and (f"{blow.path}/".startswith(f"models/{model}/") or blow.path == "models")
            for blow in self._blows
        )

    def _gone(self, outcome: Outcome, model: Model) -> bool:
        """Whether the model, or one that it is composed of, was not there, or kept dying."""
        names = (model.name, *model.steps)
        if any(self._within(outcome, "removed", name) for name in names):
            return True
        for name in names:
            deaths = self._journal.deaths.get(name, ())
            for first, last in zip(deaths, deaths[MANY_DEATHS - 1 :], strict=False):
                if last - first <= DEATHS_WITHIN and last <= outcome.ended <= last + TRIED_WITHIN:
                    return True
        return False

    def _within(self, outcome: Outcome, why: str, model: str = "") -> bool:
        return met(self._windows, why, model, outcome.began, outcome.ended)

    def _sequence_lost(self, outcome: Outcome) -> bool:
        """Whether an instance that had the sequence has died.

        A death during the request counts: the sequence may have been given to an instance that died before it
        saw anything of it.
        """
        request, journal = outcome.request, self._journal
        # docs/sequences.md: a retired version goes on with what it has.
        if self._within(outcome, "replaced", request.model):
            return True
        if self._control.was_unloaded(request.model, by=outcome.ended):
            return True
        died = any(outcome.began <= at <= outcome.ended for at in journal.deaths.get(request.model, ()))
        return died or (request.model, request.sequence) in journal.sequences_lost


def _says_gone(outcome: Outcome) -> bool:
    """Whether it is one of the contract's two texts (http.md section 3).

    One is for what was never asked for, and one for what was unloaded.
    """
    names = (outcome.request.model, *MODELS[outcome.request.model].steps)
    if outcome.request.wire == "openai":
        return all(name in outcome.message for name in names)
    return any(
        outcome.message.endswith(f"Request for unknown model: '{name}' {what}")
        for name in names
        for what in ("is not found", "has no available versions")
    )


def _says_on_its_way(outcome: Outcome) -> bool:
    """Whether it is the message for a model that serves no requests yet (docs/differences/protocols.md)."""
    return any(
        f"Request for unknown model: '{name}' has no available versions: it " in outcome.message
        for name in (outcome.request.model, *MODELS[outcome.request.model].steps)
    )


def _refused_by_policy(outcome: Outcome, took: float) -> bool:
    if "maximum queue size" in outcome.message:
        return True
    return took >= (outcome.request.timeout or QUEUE_TIMEOUT)


def _right(outcome: Outcome, model: Model, history: Mapping[str, int]) -> bool:
    request = outcome.request
    version = outcome.version
    if request.told is not None:
        return texts.right(outcome, request.told)
    if model.kind == "ensemble":  # each step's version shows
        [value], [found] = request.values, outcome.values
        return found % VERSION_STEP == model.answer(value) and found // VERSION_STEP >= len(model.steps)
    if model.kind == "sequence":
        expected = [history[request.id] + VERSION_STEP * version]
    elif model.kind == "decoupled":
        expected = [each + VERSION_STEP * version for each in parts_of(request.values[0])]
        return outcome.values == expected
    else:
        expected = model.right(request.values, version)
    if model.wide:
        expected *= width_of(request.values[0])
    return outcome.values == expected
