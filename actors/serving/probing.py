"""A probe: one inference of the server's own, through a model's real queue and instance, and its outcome.

Probes are made for the catalog, before requests are sent to a new version, and for readiness, on demand and
now and then. Whether the *answer* is right can't be known here. A probe shows that a request gets through and
comes back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import trio

from actors.serving.validation import Validator
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, InvalidArgument, TritiumError
from actors.values.requests import InferRequest, InferResponse, ReplyPort, ServedModel
from actors.values.specs import LanguageServing, ModelSpec, Probe
from actors.values.tensors import Tensor, element_count, pack_bytes

PROBE_ID: Final = "tritium-probe"

_SHOWN: Final = 500  # characters of an error that is quoted

_NO_ANSWER: Final = frozenset(
    {ErrorCode.UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED, ErrorCode.CANCELLED, ErrorCode.POISONED}
)
"""The errors of a request that did not get through: refused, timed out, lost with its worker, quarantined.

A model that gives one of these codes itself says that it can't serve, which comes to the same.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOutcome:
    """The result of a probe. An error of the model's own is an answer too."""

    answered: bool
    error: str = ""  # the model's error; or, if it did not answer, why
    seconds: float = 0.0


def probe_request(spec: ModelSpec, *, reply: ReplyPort, now: float) -> InferRequest:
    """Return a request that the model's validation accepts.

    Its inputs are those of the first warmup sample that could be a client's request. Without one they are
    zeros, empty strings for BYTES: one row, variable dimensions 1, optional inputs left out. A language model
    is asked for one token.
    """
    validate = Validator(spec)
    zeros = _one_token() if isinstance(spec.scheduling, LanguageServing) else _zeros(spec)
    request = _request(spec, zeros, reply, now)
    for inputs in _samples(spec):
        candidate = _request(spec, inputs, reply, now)
        try:
            validate(candidate)
        except InvalidArgument:
            # It is used for warmup all the same: warmup does not pass the validation.
            continue
        request = candidate
        break
    request.synthetic = True
    return request


def _request(spec: ModelSpec, inputs: tuple[Tensor, ...], reply: ReplyPort, now: float) -> InferRequest:
    return InferRequest(
        model_name=spec.name,
        requested_version=spec.version,
        id=PROBE_ID,
        inputs=inputs,
        reply=reply,
        accepted_at=now,
    )


def _samples(spec: ModelSpec) -> Iterator[tuple[Tensor, ...]]:
    return (sample.requests[0] for sample in spec.warmup if sample.requests)


def _zeros(spec: ModelSpec) -> tuple[Tensor, ...]:
    tensors = []
    for declared in spec.inputs:
        if declared.optional:
            continue
        dims = [max(dim, 1) if dim < 0 else dim for dim in declared.dims]
        shape = (1, *dims) if spec.batches else tuple(dims)
        size = declared.datatype.size or 4  # BYTES: an empty string is its length alone
        tensors.append(Tensor(declared.name, declared.datatype, shape, bytes(element_count(shape) * size)))
    return tuple(tensors)


def _one_token() -> tuple[Tensor, ...]:
    texts = {"text_input": b"1", "sampling_parameters": b'{"max_tokens": 1, "temperature": 0}'}
    return tuple(Tensor(name, DataType.BYTES, (1,), pack_bytes((text,))) for name, text in texts.items())


class _Port(ReplyPort):
    """The probe's reply port. The outputs are not read, so every part is released at once."""

    __slots__ = ("error", "finished")

    def __init__(self) -> None:
        self.error: TritiumError | None = None  # the first one
        self.finished = trio.Event()

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Take one part. See `actors.values.requests.ReplyPort`."""
        if isinstance(part, InferResponse):
            part.release()
        elif self.error is None:
            self.error = part
        if final:
            self.finished.set()


async def probe(model: ServedModel, *, within: float) -> ProbeOutcome:
    """Have `model` answer one inference within `within` seconds, with the wait for room in its queue.

    A decoupled model has answered with its final part. A request without an answer by then is cancelled.
    Never raises a TritiumError.
    """
    port = _Port()
    began = trio.current_time()
    request = probe_request(model.spec, reply=port, now=began)
    try:
        with trio.move_on_at(began + within):
            await model.submit(request)
            await port.finished.wait()
    except TritiumError as error:
        port.put(error, final=True)
    finally:
        outcome = _outcome(port, within, trio.current_time() - began)
        if not port.finished.is_set():
            model.cancel(request)
    return outcome


def _outcome(port: _Port, within: float, seconds: float) -> ProbeOutcome:
    if not port.finished.is_set():
        return ProbeOutcome(answered=False, error=f"no answer within {within:g} s", seconds=seconds)
    if port.error is None:
        return ProbeOutcome(answered=True, seconds=seconds)
    return ProbeOutcome(
        answered=port.error.code not in _NO_ANSWER,
        error=_short(port.error.message or port.error.code.value),
        seconds=seconds,
    )


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


# -- what an outcome says: pure


def newly_fails(before: ProbeOutcome | None, now: ProbeOutcome) -> bool:
    """Whether `now` is an error, and `before` was an answer without one."""
    return bool(now.error) and before is not None and before.answered and not before.error


def passes(probe_setting: Probe, old: ProbeOutcome | None, new: ProbeOutcome) -> str:
    """Return why a version must not take over, by its probe's outcome and its predecessor's; "" if it may.

    Zeros are no sensible input to every model, so an error alone says little. With `compare` an error counts
    only if the version that is to be replaced (`old`, None if there is none) answers its own probe without
    one.
    """
    if probe_setting is Probe.OFF:
        return ""
    if not new.answered:
        return f"it did not answer a probe inference: {new.error}"
    if probe_setting is Probe.REQUIRED and new.error:
        return f"it answered a probe inference with an error: {new.error}"
    if newly_fails(old, new):
        return f"it answered a probe inference with an error, which the version it replaces does not: {new.error}"
    return ""


def probe_trouble(setting: Probe, baseline: ProbeOutcome | None, outcome: ProbeOutcome) -> str:
    """Return the trouble that a probe's outcome shows in a version that serves; "" for none.

    An error answer is an answer. It counts only if the model answered without one before (`baseline`), or if
    `tritium.probe` is `required`.
    """
    if not outcome.answered:
        return f"a probe inference was not answered: {outcome.error}"
    if newly_fails(baseline, outcome) or (setting is Probe.REQUIRED and outcome.error):
        return f"a probe inference was answered with an error: {outcome.error}"
    return ""


def better(baseline: ProbeOutcome | None, outcome: ProbeOutcome) -> ProbeOutcome | None:
    """Return the best answer that a version has given: an answer without an error, else one with an error."""
    if not outcome.answered or (baseline is not None and not baseline.error):
        return baseline
    return outcome
