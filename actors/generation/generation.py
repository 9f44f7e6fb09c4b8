"""One request to a language model, from the version's queue to its answer. Passive, and without a task.

    PREPARING   the text worker makes token ids of its prompts
    RUNNING     the engine generates, or has it in its queue: ids go into the journal, and to the text worker
    OVER        it has its final answer

Engine and text worker run apart, and neither waits for a client. What a client does not read is joined to one
piece, so a slow reader costs no more than its own text.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from actors.generation.answering import Answering
from actors.generation.engine import Engine
from actors.generation.policy.beginning import Beginnings
from actors.generation.policy.faces import face_of
from actors.generation.policy.journal import Choice, Journal, Prompt
from actors.generation.policy.metering import Meter
from actors.generation.policy.placement import Seat
from actors.generation.policy.resolving import (
    Limits,
    Telling,
    check_adapter,
    check_prompts,
    embedding,
    resolve,
)
from actors.generation.policy.resuming import Fate, Resumes, end_of, fate_of, onward
from actors.generation.text_line import TextLine, TextUser
from actors.serving.model import ModelState
from actors.serving.statistics import FailureReason
from actors.values.datatypes import DataType
from actors.values.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    TritiumError,
    Unavailable,
    WorkerLost,
)
from actors.values.generation.adapters import Adapter
from actors.values.generation.asking import DETOKENIZE, EMBED, MOST_CHOICES, TOKENIZE
from actors.values.generation.pieces import (
    LENGTH,
    STOP,
    Begun,
    Embedding,
    Generated,
    Text,
    TextPiece,
    TokenChances,
    Tokens,
    TokenUsage,
)
from actors.values.requests import InferRequest, InferResponse, ReplyPort
from actors.values.strings import Strings
from actors.values.tensors import Tensor, pack_bytes

DEADLINE: Final = "deadline"
_ENGINE_FINISHES: Final = frozenset((STOP, LENGTH))


class Phase(Enum):
    """How far a generation has come; see the module."""

    PREPARING = "preparing"
    RUNNING = "running"
    OVER = "over"


class Generating(Protocol):
    """What a generation needs of its version (`actors.generation.generator`)."""

    state: ModelState
    engine: Engine
    texts: TextLine

    @property
    def limits(self) -> Limits:
        """What the model allows."""

    def now(self) -> float:
        """Return the time on trio's clock."""

    def epoch(self) -> int:
        """Return the seconds since the epoch."""

    def submit(self, run: EngineRun) -> None:
        """Give `run` to the engine, at once or when there is room. Its answer may be an error."""

    def lost(self, run: EngineRun, error: WorkerLost | None) -> None:
        """The engine of `run` has died: it is looked into with all others that it had.

        Without an error, the engine is to leave, and has ended it: another one is to take it up.
        """

    @property
    def resumes(self) -> Resumes | None:
        """What the engine can take up behind ids that another has generated; None: nothing is resumed."""

    @property
    def identity(self) -> str:
        """What identifies the engine's model."""

    @property
    def stops(self) -> Sequence[int]:
        """Ids that end a text."""

    def resumes_soon(self, generation: Generation, choice: Choice, *, dead: bool) -> None:
        """Another engine is to take over a choice, within the time that there is for that.

        `dead`: the one before has died.
        """

    def got_on(self) -> None:
        """A choice that another engine has taken over has got on."""

    def call_off(self, run: EngineRun) -> None:
        """Nothing more of `run` is wanted: end it within one step of the engine."""

    def over(self, generation: Generation) -> None:
        """`generation` has had its final answer."""


class Line(Protocol):
    """What a run has come through (`actors.generation.engine_line`)."""

    def began(self, run: EngineRun, cached: int = -1) -> None:
        """The first token of a run has come: the engine had `cached` tokens of its prompt; -1: not told."""

    def ended(self, run: EngineRun, *, whole: bool = False) -> None:
        """A run is over; `whole`: as its engine has said all of it."""


class EngineRun(ReplyPort):
    """One choice, or one text to embed, in the engine: its request, and the reply port of that."""

    __slots__ = (
        "_make",
        "_request",
        "attempt",
        "begun",
        "choice",
        "dropped",
        "ended",
        "generation",
        "leaves",
        "line",
        "seat",
        "submitted",
    )
    relation: ClassVar[str] = "engine"  # of its request to the client's, in the log

    def __init__(self, generation: Generation, choice: Choice, make: Callable[[], InferRequest]) -> None:
        """`make` returns its request, whose reply port is still to be set."""
        self.generation = generation
        self.choice = choice
        self._make = make
        self._request: InferRequest | None = None
        self.submitted = False
        self.attempt = choice.attempts
        self.leaves = False  # its engine was told to end it, for another one to take it up
        self.dropped = False  # likewise, and nothing that it has said counts
        self.begun = False  # it has said something
        self.ended = False
        self.line: Line | None = None
        self.seat: Seat | None = None

    @property
    def request(self) -> InferRequest:
        """Its request, which is made when an engine is to have it: a client's may need thousands."""
        made = self._request
        if made is None:
            made = self._request = self._make()
            made.reply = self
        return made

    def begins(self) -> None:
        """Its first token has come."""
        self.begun = True
        if self.line is not None:
            self.line.began(self)

    @property
    def resumed(self) -> bool:
        """Whether an engine had its choice before."""
        return self.attempt > 1

    @property
    def wanted(self) -> bool:
        """Whether anything waits for its answer."""
        return self.is_open and not self.dropped

    @property
    def is_open(self) -> bool:
        """Whether its choice has not ended."""
        return not (self.generation.is_over or self.choice.closed)

    @property
    def parent(self) -> InferRequest:
        """The client's request."""
        return self.generation.request

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Take one part (`actors.values.requests.ReplyPort`). Never raises."""
        if final:
            self.ended = True
        self.generation.arrived(self, part, final=final)
        if final and self.line is not None:
            self.line.ended(self, whole=isinstance(part, InferResponse) and not self.leaves)


class Generation(TextUser):
    """See the module."""

    __slots__ = (
        "_adapter",
        "_answer",
        "_answering",
        "_beginnings",
        "_owner",
        "_runs",
        "began_at",
        "first_at",
        "journal",
        "meter",
        "number",
        "phase",
        "request",
        "resume_by",
        "stream",
        "token_at",
    )

    def __init__(self, owner: Generating, request: InferRequest) -> None:
        """Raise TritiumError for a request that asks for what there is not."""
        self.request = request
        self._owner = owner
        face = face_of(request)
        self.ask = face.ask
        try:
            self._adapter = self._check()
        except TritiumError as error:
            raise face.failed(error) from None
        self._answering = Answering(owner.state, request, face, owner.now)
        self.phase = Phase.PREPARING
        self.opened_with: Sequence[int] | None = None
        self.deaths = 0
        self.journal: Journal | None = None
        self.began_at = owner.now()
        self.first_at = -1.0  # when the first token came
        self.token_at = -1.0  # when the last one did
        self._answer: list[Generated] = []  # of what generates nothing
        self._beginnings = Beginnings()
        self.unnamed = self._beginnings.unnamed
        self._runs: dict[int, EngineRun] = {}  # by choice
        self.stream = 0
        self.number = 0  # of those that may be late; 0: it has none
        self.meter: Meter | None = None  # of a model with shares or promises
        self.resume_by = math.inf  # when it is too late for another engine

    def _check(self) -> Adapter | None:
        """Return the adapter that is asked for. It stays this request's, though it be unloaded."""
        limits = self._owner.limits
        adapter = check_adapter(self.ask, limits)
        check_prompts(self.ask, limits)
        if max(1, len(self.ask.prompts)) * self.ask.sampling.n > MOST_CHOICES:
            raise InvalidArgument(
                f"{len(self.ask.prompts)} prompts with {self.ask.sampling.n} choices each are more than"
                f" {MOST_CHOICES}"
            )
        return adapter

    def begin(self) -> None:
        """Have the text worker make token ids."""
        self.stream = self._owner.texts.open(self)

    @property
    def is_over(self) -> bool:
        """Whether it has had its final answer."""
        return self.phase is Phase.OVER

    @property
    def embedded(self) -> bool:
        """Whether the engine has given an embedding for it."""
        return self.ask.kind == EMBED and bool(self._answer)

    @property
    def open_runs(self) -> list[EngineRun]:
        """What the engine has still to answer."""
        return [run for run in self._runs.values() if not run.ended]

    # -- from the text worker --------------------------------------------------------------------------------

    def opened(
        self, prompts: Sequence[array[int]], sampling: Mapping[str, Any], more: Mapping[str, Any]
    ) -> None:
        """See `TextUser`."""
        if self.phase is not Phase.PREPARING:
            return
        try:
            kind = self.ask.kind
            if kind in (TOKENIZE, DETOKENIZE):
                self._told(prompts, more)
            else:
                self._start(prompts, sampling, more)
        except TritiumError as error:
            self._fail(error)
        except Exception as bug:  # noqa: BLE001  # of a report that is not what it should be
            self._fail(Internal(f"{self.request.prefix}the text worker's answer is broken: {bug!r}"))

    def _told(self, prompts: Sequence[array[int]], more: Mapping[str, Any]) -> None:
        if self.ask.kind == DETOKENIZE:
            answer: Generated = Text(more["detokenized"])
        else:
            ids = prompts[0] if prompts else array("i")
            strings = more.get("tokens", {}).get("strings") or ()
            answer = Tokens(ids, strings, self._owner.limits.context)
        self._end([answer], None)

    def _start(
        self, prompts: Sequence[array[int]], overrides: Mapping[str, Any], more: Mapping[str, Any]
    ) -> None:
        owner, ask = self._owner, self.ask
        embeds, limits = ask.kind == EMBED, owner.limits
        by_length: dict[int, list[dict[str, Any]]] = {
            length: [embedding(ask, self._adapter)]
            if embeds
            else resolve(ask, overrides, prompt=length, limits=limits, adapter=self._adapter)
            for length in dict.fromkeys([len(ids) for ids in prompts])
        }
        samplings = [by_length[len(ids)] for ids in prompts]
        self.journal = Journal(
            id=self.request.id,
            created=owner.epoch(),
            prompts=[Prompt(ids) for ids in prompts],
            samplings=samplings,
            adapter=ask.adapter,
            engine=owner.identity,
            deadline=self.request.deadline,
        )
        if not embeds:
            texts = more.get("text", ()) if ask.echo else ()
            begun = [
                Begun(
                    len(ids),
                    texts if isinstance(texts, str) else texts[number] if number < len(texts) else "",
                    ids if ask.return_token_ids else (),
                    prompt=number,
                )
                for number, ids in enumerate(prompts)
            ]
            self._beginnings = Beginnings(begun, ask.sampling.n)
            self.unnamed = self._beginnings.unnamed
        if self.meter is not None:
            told = [choice.sampling["max_tokens"] for choice in self.journal.choices] if not embeds else []
            self.meter.prompted(sum(map(len, prompts)), sum(told), len(told), owner.now())
        telling = Telling(samplings[0][0], len(self.journal.choices))
        self.phase = Phase.RUNNING
        ready_at = owner.now()
        for choice in self.journal.choices:
            if not embeds and not choice.sampling["max_tokens"]:
                self.piece(TextPiece(choice.index, finish=LENGTH))
                continue
            asked = telling.of(choice.sampling)
            make = partial(_engine_request, owner, self.request, choice, asked, ready_at)
            self._runs[choice.index] = EngineRun(self, choice, make)
        for run in list(self._runs.values()):
            if self.is_over:
                return
            owner.submit(run)

    def refused(self, error: TritiumError) -> None:
        """See `TextUser`."""
        if not self.is_over:
            self._fail(error)

    def piece(self, piece: TextPiece) -> None:
        """See `TextUser`."""
        if self.is_over or self.journal is None:
            return
        if not 0 <= piece.choice < len(self.journal.choices):
            self._fail(Internal(f"{self.request.prefix}a text worker named choice {piece.choice}"))
            return
        choice = self.journal.choices[piece.choice]
        if choice.closed:
            return
        self._tell_begun(self._beginnings.at_piece(choice.index))
        choice.tell(piece)
        if piece.finish:
            if choice.attempts > 1:
                piece = piece._replace(attempts=choice.attempts)
            run = self._runs.get(choice.index)
            if run is not None and not run.ended:  # a stop text, which no engine knows
                self._owner.call_off(run)
        self._answering.piece(piece)
        if piece.finish and all(each.closed for each in self.journal.choices):
            self._end((), self.journal.usage)

    def choices(self) -> Sequence[Choice]:
        """See `TextUser`."""
        if self.journal is None:
            return ()
        return [choice for choice in self.journal.choices if not choice.closed]

    # -- from the engine -------------------------------------------------------------------------------------

    def arrived(self, run: EngineRun, part: InferResponse | TritiumError, *, final: bool) -> None:
        """The engine has given a part of its answer for a choice."""
        wanted = run.wanted
        if final and run.resumed:
            self._owner.got_on()
        if isinstance(part, TritiumError):
            if wanted and isinstance(part, WorkerLost):
                self._owner.lost(run, part)
            elif wanted and run.leaves and isinstance(part, Cancelled):
                self._owner.lost(run, None)
            elif wanted:
                self._fail(part, FailureReason.BACKEND)
            return
        try:
            if wanted:
                self._take(run, part, final=final)
                if final and run.leaves and run.wanted and not run.choice.finish:
                    self._owner.lost(run, None)
        except TritiumError as error:
            self._fail(error)
        except Exception as bug:  # noqa: BLE001  # of an answer that is not what it should be
            self._fail(Internal(f"{self.request.prefix}the engine's answer is broken: {bug!r}"))
        finally:
            part.release()

    def _take(self, run: EngineRun, part: InferResponse, *, final: bool) -> None:
        choice = run.choice
        ids: Sequence[int] = ()
        chances = None
        for tensor in part.outputs:
            if tensor.name == "token_ids":
                ids = array("i", bytes(tensor.data))
            elif tensor.name == "chances":
                chances = json.loads(tensor.as_numpy().ravel()[0])
            elif tensor.name == "embedding":
                vector = np.frombuffer(bytes(tensor.data), np.float32)
                self._answer.append(Embedding(choice.index, vector.tolist()))
                choice.closed = True
            elif tensor.name == "facts":
                self._take_facts(choice, json.loads(tensor.as_numpy().ravel()[0]))
        if self._answer:
            self._embedded()
            return
        finish = _finish_of(part, self.request, leaves=run.leaves) if final else ""
        if not len(ids) and not finish:
            return
        if not run.begun:
            run.begins()
        if choice.attempts > 1:
            self._goes_on(run)
        self.token_at = self._owner.now()
        if self.first_at < 0.0:
            self.first_at = self.token_at
        self._tell_begun(self._beginnings.at_token(choice.index))
        choice.generated(ids, chances, finish)
        if self.meter is not None:
            self.meter.generated(len(ids), self.token_at)
        self._owner.texts.tokens(self.stream, choice.index, ids, finish, chances)

    def _take_facts(self, choice: Choice, facts: Mapping[str, Any]) -> None:
        journal = self.journal
        if journal is None:
            return
        run, cached = self._runs.get(choice.index), int(facts.get("cached", 0))
        if run is not None and run.line is not None:
            run.line.began(run, cached)
        if choice.index % self.ask.sampling.n == 0 and choice.attempts == 1:
            # The other choices of a prompt find what the first has computed.
            choice.prompt.cached = cached
        told = facts.get("prompt_chances")
        if not told:
            return
        prompt = self._beginnings.computed(choice.index, told)
        if prompt is not None:
            self._owner.texts.chances(self.stream, prompt, told)

    def named(self, prompt: int, chances: Sequence[TokenChances | None]) -> None:
        """See `TextUser`."""
        if not self.is_over:
            self._tell_begun(self._beginnings.named(prompt, chances))

    def _tell_begun(self, begun: Begun | None) -> None:
        if begun is not None:
            self._answering.begun(begun)

    def _embedded(self) -> None:
        journal = self.journal
        if journal is not None and all(choice.closed for choice in journal.choices):
            answer = sorted(self._answer, key=lambda each: each.prompt if isinstance(each, Embedding) else 0)
            self._end(answer, journal.usage)

    # -- when its engine has died, or leaves -----------------------------------------------------------------

    def fate(self, choice: Choice, *, dead: bool) -> tuple[Fate, str]:
        """Return what becomes of a choice whose engine has died, or leaves, and for LOST why."""
        choices = 0 if self.journal is None else len(self.journal.choices)
        sent, engine = self._answering.sent, self._owner.resumes
        return fate_of(self.ask, choice, choices=choices, sent=sent, engine=engine, dead=dead)

    def lose(self, choice: Choice, how: str, *, dead: bool = True) -> bool:
        """The engine of a choice has died, or left; return whether another is to take it up.

        Else it has ended. `how` says what has become of the engine.
        """
        owner = self._owner
        if self.ask.kind != EMBED and not choice.finish:
            choice.finish = end_of(choice, stops=owner.stops, context=owner.limits.context)
            if choice.finish:
                owner.texts.tokens(self.stream, choice.index, (), choice.finish, None)
        if choice.finish:
            return False
        fate, why = self.fate(choice, dead=dead)
        if fate is Fate.LOST:
            self._fail(Unavailable(f"{self.request.prefix}{how}, and {why}"), FailureReason.BACKEND)
            return False
        if self.meter is not None:
            self.meter.interrupted(len(choice.ids) if fate is Fate.AGAIN else 0)
        if fate is Fate.AGAIN:
            choice.begin_again()
            self._answering.forget(choice.index)
            owner.texts.close(self.stream)  # what is under way of its text is out of date
            self.stream = 0
        else:
            choice.go_on()
        owner.resumes_soon(self, choice, dead=dead)
        return True

    def take_up(self, choice: Choice) -> EngineRun:
        """Return the run by which another engine takes up a choice that was lost."""
        if not self.stream:
            self.stream = self._owner.texts.again(self)
        told = json.dumps(onward(choice.sampling, len(choice.ids)) if choice.ids else choice.sampling)
        now = self._owner.now()
        make = partial(_engine_request, self._owner, self.request, choice, told.encode(), now)
        run = EngineRun(self, choice, make)
        self._runs[choice.index] = run
        return run

    def _goes_on(self, run: EngineRun) -> None:
        """Another engine that took over a choice has said more. Raises Unavailable for one that may not."""
        owner, journal = self._owner, self.journal
        self.resume_by = math.inf
        if (
            not run.choice.steps
            and journal is not None
            and owner.engine.identity_of(run.request) != journal.engine
        ):
            raise Unavailable(
                f"{self.request.prefix}its engine is gone, and the one that took over has loaded other files;"
                " an answer does not go on in another model"
            )
        owner.got_on()

    def give_up(self, error: TritiumError) -> None:
        """It is not tried again."""
        if not self.is_over:
            self._fail(error, FailureReason.BACKEND)

    @property
    def used(self) -> tuple[int, int]:
        """The tokens of its prompts, once an engine was given any, and those that were generated."""
        journal = self.journal
        if journal is None or not any(run.submitted or run.resumed for run in self._runs.values()):
            return 0, 0
        prompt = sum(len(prompt.ids) for prompt in journal.prompts)
        return prompt, sum(len(choice.ids) for choice in journal.choices)

    # -- how it ends -----------------------------------------------------------------------------------------

    def _end(self, answer: Sequence[Generated], usage: TokenUsage | None) -> None:
        now = self._owner.now()
        begun = self.first_at if self.first_at >= 0.0 else now
        waited = max(0, int((self.began_at - self.request.accepted_at) * 1e9))
        self._leave()
        self._answering.end(
            answer, usage, (waited, int((begun - self.began_at) * 1e9), int((now - begun) * 1e9), 0)
        )

    def _fail(self, error: TritiumError, reason: FailureReason = FailureReason.OTHER) -> None:
        self._leave()
        self._answering.fail(error, reason)

    def _leave(self) -> None:
        """It is over, however it ends."""
        if self.is_over:
            return
        self.phase = Phase.OVER
        for run in self._runs.values():
            if not run.ended:
                self._owner.call_off(run)
        self._owner.texts.close(self.stream)
        self._owner.over(self)

    def cancel(self) -> None:
        """The client has gone."""
        if not self.is_over:
            self._fail(Cancelled("Request was cancelled"), FailureReason.CANCELED)

    def out_of_time(self) -> None:
        """Its deadline has passed: what there is of its text is the answer."""
        journal = self.journal
        if self.is_over:
            return
        if journal is None or self.first_at < 0.0 or self.ask.kind == EMBED:
            spent = self._owner.now() - self.request.accepted_at
            self._fail(
                DeadlineExceeded(
                    f"{self.request.prefix}the request's own deadline passed before the first token, after"
                    f" {spent:.3f} s"
                )
            )
            return
        for choice in journal.choices:
            if not choice.closed and not self.is_over:
                self.piece(TextPiece(choice.index, finish=LENGTH, reason=DEADLINE))


def _finish_of(part: InferResponse, request: InferRequest, *, leaves: bool) -> str:
    """Return why the engine ended with its final part. Raises Internal for what is no reason of one.

    Empty where it was told to: what `leaves` goes on elsewhere.
    """
    finish = str((part.parameters or {}).get("finish", ""))
    if finish not in _ENGINE_FINISHES and not (leaves and not finish):
        raise Internal(f"{request.prefix}the engine ended the generation: {finish or 'no reason'}")
    return finish


class _Nowhere(ReplyPort):
    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Give back a part that nothing waits for."""
        del final
        if isinstance(part, InferResponse):
            part.release()


_NOWHERE: Final = _Nowhere()


def _engine_request(
    owner: Generating, whole: InferRequest, choice: Choice, told: bytes, ready_at: float
) -> InferRequest:
    """Return what the engine is asked for a choice of `whole`, which was `ready_at` that time."""
    state = owner.state
    ids = choice.prompt.ids + choice.ids if choice.ids else choice.prompt.ids
    packed = pack_bytes((told,))
    request = InferRequest(
        model_name=state.spec.name,
        requested_version=state.spec.version,
        id=whole.id,
        inputs=[
            Tensor("input_ids", DataType.INT32, (len(ids),), memoryview(ids).cast("B")),
            Tensor("sampling", DataType.BYTES, (1,), packed),
        ],
        priority=whole.priority,
        reply=_NOWHERE,  # until its run is made
        accepted_at=ready_at,
    )
    # A long one would be walked before it is queued, and can't be while a turn lasts. It is known.
    request.strings = (None, Strings(1, len(packed), len(packed), 0))
    if whole.caller is not None or whole.synthetic or whole.tenant or whole.affinity:
        deadline = request.deadline
        request.inherit((whole,))
        request.deadline = deadline  # time is looked after here: what was generated by then is an answer
    if whole.span is not None:
        whole.span.child(request, EngineRun.relation, request.accepted_at)
    return request
