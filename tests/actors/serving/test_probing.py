"""Probe inferences: what is asked, what counts as an answer, and what an outcome says about a new version."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from actors.generation.policy.faces import face_of
from actors.serving.probing import (
    ProbeOutcome,
    better,
    newly_fails,
    passes,
    probe,
    probe_request,
    probe_trouble,
)
from actors.serving.standing import Status
from actors.serving.validation import Validator
from actors.values.datatypes import DataType
from actors.values.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    Poisoned,
    Unavailable,
)
from actors.values.requests import InferResponse
from actors.values.specs import DynamicBatching, InputSpec, LanguageServing, Probe, QueueBounds, WarmupSample
from actors.values.tensors import Tensor
from tests.support.doubles import Double
from tests.support.model_doubles import Stage, make_spec
from tests.support.ports import NoPort, Port
from tests.support.tasks import outcome_of

LANGUAGE_INPUTS = ("text_input", "sampling_parameters")
GOOD = ProbeOutcome(answered=True, seconds=0.1)
BAD = ProbeOutcome(answered=True, error="no zeros, please", seconds=0.1)
GONE = ProbeOutcome(answered=False, error="no answer within 2 s", seconds=2.0)


def request_for(**changes):
    request = probe_request(make_spec(**changes), reply=Port(), now=1.0)
    Validator(make_spec(**changes))(request)
    return request


# -- what is asked


async def test_zeros_fill_one_row_with_variable_dimensions_of_one():
    request = request_for(
        inputs=(
            InputSpec(name="A", datatype=DataType.FP32, dims=(-1, 3)),
            InputSpec(name="B", datatype=DataType.BF16, dims=(2,), reshape=(2, 1)),
        )
    )
    assert [(each.name, list(each.shape)) for each in request.inputs] == [("A", [1, 1, 3]), ("B", [1, 2])]
    assert not any(each.as_numpy().any() for each in request.inputs)
    assert (request.synthetic, request.rows, request.accepted_at) == (True, 1, 1.0)


async def test_a_model_that_does_not_batch_gets_its_dims_alone():
    request = request_for(max_batch_size=0, inputs=(InputSpec(name="A", datatype=DataType.INT8, dims=(-1,)),))
    assert request.inputs[0].shape == (1,)


async def test_strings_are_empty_and_optional_inputs_left_out():
    request = request_for(
        inputs=(
            InputSpec(name="TEXT", datatype=DataType.BYTES, dims=(2,)),
            InputSpec(name="MORE", datatype=DataType.FP32, dims=(1,), optional=True),
        )
    )
    (text,) = request.inputs
    assert text.as_numpy().tolist() == [[b"", b""]]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(DataType),
            st.lists(st.integers(-1, 4).filter(bool), max_size=4),
            st.booleans(),
        ),
        max_size=5,
    ),
    st.integers(0, 3),
)
def test_every_model_takes_its_probe(declared, max_batch_size):
    spec = make_spec(
        max_batch_size=max_batch_size,
        inputs=tuple(
            InputSpec(name=f"I{at}", datatype=datatype, dims=tuple(dims), optional=optional)
            for at, (datatype, dims, optional) in enumerate(declared)
        ),
    )
    request = probe_request(spec, reply=NoPort(), now=0.0)
    Validator(spec)(request)
    assert len(request.inputs) == sum(not each.optional for each in spec.inputs)


def test_a_language_model_is_asked_for_one_token():
    declared = [InputSpec(name=name, datatype=DataType.BYTES, dims=(1,)) for name in LANGUAGE_INPUTS]
    spec = make_spec(scheduling=LanguageServing(), decoupled=True, max_batch_size=0, inputs=tuple(declared))
    request = probe_request(spec, reply=NoPort(), now=0.0)
    Validator(spec)(request)
    ask = face_of(request).ask
    assert (ask.prompts, ask.sampling.max_tokens, ask.sampling.temperature) == (("1",), 1, 0)


def sample(name, *tensors):
    return WarmupSample(name=name, requests=(tensors,) * 2)


def row(value, shape=(1, 2)):
    return Tensor.from_numpy("INPUT", np.full(shape, value, np.float32))


async def test_the_first_warmup_sample_that_could_be_a_request_is_asked():
    request = request_for(
        warmup=(
            WarmupSample(name="empty", requests=()),
            sample("wrong shape", row(1.0, (1, 3))),
            sample("good", row(2.0)),
            sample("late", row(3.0)),
        )
    )
    assert request.inputs[0].as_numpy().tolist() == [[2.0, 2.0]]
    assert request.synthetic


async def test_samples_that_are_no_requests_are_passed_over():
    request = request_for(warmup=(sample("odd", row(1.0, (1, 3))),))
    assert request.inputs[0].as_numpy().tolist() == [[0.0, 0.0]]


# -- through the model


class Model(Double):
    """Answers at once with what a test says."""

    def __init__(self, *parts, refusal=None):
        self.spec = make_spec(decoupled=len(parts) > 1)
        self.parts = parts
        self.refusal = refusal
        self.cancelled = []
        self.request: Any = None

    async def submit(self, request):
        await trio.lowlevel.checkpoint()
        if self.refusal is not None:
            raise self.refusal
        self.request = request
        for at, part in enumerate(self.parts, 1):
            request.reply.put(part, final=at == len(self.parts))

    def cancel(self, request):
        self.cancelled.append(request)


def response(released):
    made = InferResponse(model_name="model", model_version=1)
    made.on_release(lambda: released.append(made))
    return made


async def test_an_answer_is_timed_and_let_go_of(nursery, autojump_clock):
    stage = Stage(nursery)
    outcomes = outcome_of(nursery, probe, stage.state, within=2.0)
    await trio.sleep(0.5)
    await stage.finished(borrowed=True)
    assert [(each.answered, each.error) for each in outcomes] == [(True, "")]
    assert outcomes[0].seconds == pytest.approx(0.5)
    assert stage.state.statistics.success_count == 0  # it was no client's
    assert not stage.state.in_flight


async def test_every_part_is_let_go_of_and_the_final_one_is_waited_for():
    released: list[Any] = []
    outcome = await probe(Model(response(released), response(released)), within=1.0)
    assert outcome.answered
    assert len(released) == 2


@pytest.mark.parametrize("error", [Internal("ValueError: zero"), InvalidArgument("no")])
async def test_an_error_of_the_models_is_an_answer(error):
    outcome = await probe(Model(error), within=1.0)
    assert (outcome.answered, outcome.error) == (True, error.message)


@pytest.mark.parametrize(
    "error",
    [Unavailable("the worker died"), DeadlineExceeded("hung"), Poisoned("again"), Cancelled("")],
)
async def test_what_did_not_get_through_is_no_answer(error):
    outcome = await probe(Model(error), within=1.0)
    assert not outcome.answered
    assert outcome.error in {error.message, "Cancelled"}
    refused = await probe(Model(refusal=error), within=1.0)
    assert not refused.answered


async def test_long_errors_are_cut():
    outcome = await probe(Model(Internal("x" * 9999)), within=1.0)
    assert len(outcome.error) == 500


async def test_a_model_that_hangs_is_cancelled_and_what_it_says_later_let_go_of(autojump_clock):
    model = Model()
    began = trio.current_time()
    outcome = await probe(model, within=2.0)
    assert outcome == ProbeOutcome(
        answered=False, error="no answer within 2 s", seconds=trio.current_time() - began
    )
    assert model.cancelled == [model.request]
    released: list[Any] = []
    model.request.reply.put(response(released), final=True)
    assert len(released) == 1


async def test_a_full_queue_is_waited_for_and_left_in_time(nursery, autojump_clock):
    stage = Stage(nursery, queue_bounds=QueueBounds(requests=1))
    for _ in range(2):  # one with the worker, one in the queue
        await stage.sent()
    outcome = await probe(stage.state, within=2.0)
    assert not outcome.answered
    assert len(stage.state.queue) == 1
    assert len(stage.state.in_flight) == 2


async def test_a_probe_that_waits_in_the_queue_leaves_it(nursery, autojump_clock):
    stage = Stage(nursery)
    await stage.sent()
    assert not (await probe(stage.state, within=2.0)).answered
    assert len(stage.state.queue) == 0
    assert len(stage.state.in_flight) == 1


async def test_a_probe_shares_no_batch_with_a_client(nursery, autojump_clock):
    stage = Stage(nursery, scheduling=DynamicBatching())
    await stage.sent()
    await stage.send()
    nursery.start_soon(partial(probe, stage.state, within=5.0))
    await stage.settled()
    await stage.send()
    while stage.state.in_flight:
        await stage.finished()
    assert stage.worker.sizes == [1, 1, 1, 1]


async def test_a_version_that_does_not_serve_has_no_answer(nursery, autojump_clock):
    stage = Stage(nursery, ready=False)
    assert "not at ready state" in (await probe(stage.state, within=2.0)).error
    stage.state.standing.become(Status.UNAVAILABLE, "Internal: no")
    assert not (await probe(stage.state, within=2.0)).answered


async def test_whoever_gives_up_takes_the_probe_along(nursery, autojump_clock):
    model = Model()
    with trio.move_on_after(1.0):
        await probe(model, within=5.0)
    assert model.cancelled == [model.request]


# -- what an outcome says


@pytest.mark.parametrize(
    ("setting", "old", "new", "why"),
    [
        (Probe.OFF, GOOD, GONE, ""),
        (Probe.COMPARE, None, GOOD, ""),
        (Probe.COMPARE, None, BAD, ""),
        (Probe.COMPARE, BAD, BAD, ""),
        (Probe.COMPARE, GONE, BAD, ""),
        (Probe.COMPARE, BAD, GOOD, ""),
        (
            Probe.COMPARE,
            GOOD,
            BAD,
            "it answered a probe inference with an error, which the version it replaces does not: no zeros, please",
        ),
        (Probe.COMPARE, GONE, GONE, "it did not answer a probe inference: no answer within 2 s"),
        (Probe.REQUIRED, BAD, GOOD, ""),
        (Probe.REQUIRED, BAD, BAD, "it answered a probe inference with an error: no zeros, please"),
        (Probe.REQUIRED, None, GONE, "it did not answer a probe inference: no answer within 2 s"),
    ],
)
def test_a_new_version_passes_or_is_refused_with_a_reason(setting, old, new, why):
    assert passes(setting, old, new) == why


@pytest.mark.parametrize(
    ("setting", "baseline", "outcome", "trouble"),
    [
        (Probe.COMPARE, None, GOOD, ""),
        (Probe.COMPARE, None, BAD, ""),
        (Probe.COMPARE, BAD, BAD, ""),
        (Probe.OFF, GOOD, BAD, "a probe inference was answered with an error: no zeros, please"),
        (Probe.COMPARE, GOOD, GONE, "a probe inference was not answered: no answer within 2 s"),
        (Probe.REQUIRED, None, BAD, "a probe inference was answered with an error: no zeros, please"),
        (Probe.REQUIRED, None, GOOD, ""),
    ],
)
def test_a_version_that_serves_is_held_to_its_best_answer(setting, baseline, outcome, trouble):
    assert probe_trouble(setting, baseline, outcome) == trouble


OUTCOMES = st.sampled_from([GOOD, BAD, GONE])


@given(st.lists(OUTCOMES))
def test_the_baseline_only_ever_gets_better(outcomes):
    baseline = None
    for outcome in outcomes:
        before, baseline = baseline, better(baseline, outcome)
        assert not (before is not None and not before.error and baseline.error)
    answers = [each for each in outcomes if each.answered]
    assert (baseline is None) is (not answers)
    assert baseline is None or bool(baseline.error) is all(each.error for each in answers)


@given(st.none() | OUTCOMES, OUTCOMES)
def test_an_error_is_new_only_after_an_answer_without_one(before, now):
    assert newly_fails(before, now) is (before is GOOD and now is not GOOD)
