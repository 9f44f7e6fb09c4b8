"""ModelStreamInfer: many requests on one call, their order, their errors and their ends."""

import gc
import re
import sys
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.values.datatypes import DataType
from actors.values.errors import Cancelled, DeadlineExceeded, ErrorCode, Internal, TritiumError, Unavailable
from actors.values.marks import ClientMarks
from actors.values.requests import Endings, InferResponse
from actors.values.tensors import Tensor
from protocols.grpc.call import FIRST_ANSWER, STREAM_LIMIT
from protocols.grpc.codec.messages import Message
from protocols.grpc.policy import GrpcOptions
from protocols.grpc.services.inference import InferenceService
from tests.protocols.fakes import FakeModel, FakeServer, hold, make_spec
from tests.protocols.grpc_calls import Client, infer_request
from tests.support.examples import examples

NUMBER = np.array([[5]], np.int64)
X = [("X", "INT64", NUMBER)]
FINAL = "triton_final_response"


@pytest.fixture
def server():
    return FakeServer()


@pytest.fixture
def held(server):
    return server.model("held")


@pytest.fixture
def streams(server):
    return server.model("streams")


@pytest.fixture
async def call(server):
    async with warm(server) as call:
        yield call


class Call(Client):
    """A call that is being served, and its outcome."""

    error = None
    done = False

    async def serve(self):
        try:
            await super().serve()
        except TritiumError as error:
            self.error = error
        self.done = True

    async def ask(self, *requests):
        """Send requests, and let the service do all that it can."""
        self.send(*requests)
        await settle()

    async def ids(self):
        """Return the ids of all answers, once the service has done all that it can."""
        await settle()
        return [each.infer_response.id for each in self.received]


@asynccontextmanager
async def serving(server, *, options=None, metadata=None, deadline=float("inf")):
    """Serve a call; at the end the client leaves, unless it is over."""
    call = Call(InferenceService(server.server, options), metadata=metadata, deadline=deadline)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.serve)
        yield call
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def warm(server, **kwargs):
    """Serve a call that has had a small answer, so that more than one request may be in flight."""
    async with serving(server, **kwargs) as call:
        call.send(infer_request("strings", [("X", "BYTES", np.array([[]], np.uint8))], id="warm"))
        await call.receive()
        yield call


async def settle():
    await trio.testing.wait_all_tasks_blocked()


def answer(model, request, *, outputs=True, final=True, value=1):
    """Have `model` give one part for `request`; return it."""
    tensors = [Tensor.from_numpy("Y", np.array([[value]], np.int64))] if outputs else []
    part = model.respond(request, tensors)
    request.reply.put(part, final=final)
    return part


async def answered(*args, **kwargs):
    answer(*args, **kwargs)
    await settle()


# Order


async def test_answers_come_in_the_order_of_the_requests(held, call):
    await call.ask(*(infer_request("held", X, id=str(index)) for index in range(3)))
    first, second, third = held.submitted
    answer(held, third)
    answer(held, second)
    assert await call.ids() == ["warm"]
    answer(held, first)
    assert await call.ids() == ["warm", "0", "1", "2"]


async def test_a_request_that_is_read_in_slices_keeps_its_turn(server, held):
    long = infer_request("strings", id="long")
    long.inputs.add(name="X", datatype="BYTES", shape=[1, 50_000]).contents.bytes_contents.extend(
        [b""] * 50_000
    )
    broken = infer_request("strings", id="broken")
    broken.inputs.add().CopyFrom(long.inputs[0])
    broken.inputs[0].datatype = "INT32"
    async with warm(server) as call:
        came = trio.Event()
        held.on_submit = lambda: came.set() if held.submitted[-1].id == "last" else None
        call.send(infer_request("held", X, id="first"), long, broken, infer_request("held", X, id="last"))
        await came.wait()
        first, last = held.submitted
        answer(held, last)
        answer(held, first)
        answers = [await call.receive() for _ in range(4)]
    assert [each.infer_response.id for each in answers] == ["first", "long", "broken", "last"]
    assert [bool(each.error_message) for each in answers] == [False, False, True, False]


async def test_order_holds_across_models(server, call):
    await call.ask(
        infer_request("held", X, id="slow"),
        infer_request("zeros", [("X", "INT64", NUMBER[0])], id="fast"),
    )
    assert await call.ids() == ["warm"]
    answer(server.model("held"), server.model("held").submitted[0])
    assert await call.ids() == ["warm", "slow", "fast"]


async def test_an_error_waits_for_its_turn_too(server, call):
    await call.ask(infer_request("held", X, id="slow"), infer_request("nobody", id="wrong"))
    assert await call.ids() == ["warm"]
    answer(server.model("held"), server.model("held").submitted[0])
    assert await call.ids() == ["warm", "slow", "wrong"]


async def test_an_answer_that_comes_too_early_gives_its_memory_back_at_once(held, call):
    await call.ask(infer_request("held", X, id="1"), infer_request("held", X, id="2"))
    early = answer(held, held.submitted[1], value=42)
    await settle()
    assert not early.leased
    assert held.released == 1
    await answered(held, held.submitted[0])
    assert call.received[-1].infer_response.raw_output_contents[0] == (42).to_bytes(8, "little")
    assert held.released == 2


async def test_decoupled_answers_come_as_they_are_produced(streams, call):
    call.send(infer_request("streams", X, id="1"), infer_request("streams", X, id="2"))
    await call.ask(infer_request("held", X, id="3"))
    first, second = streams.submitted
    answer(streams, second, final=False)
    answer(streams, first, final=False)
    answer(streams, second, final=False)
    answer(streams, first)
    answer(streams, second)
    assert await call.ids() == ["warm", "2", "1", "2", "1", "2"]
    finals = [each.infer_response.parameters[FINAL].bool_param for each in call.received[1:]]
    assert finals == [False, False, False, True, True]


async def test_decoupled_answers_are_held_while_the_client_takes_nothing(streams, held, call):
    await call.ask(infer_request("streams", X, id="stream"), infer_request("held", X, id="turn"))
    call.call.stream.pending = STREAM_LIMIT
    (request,) = streams.submitted
    for _ in range(3):
        answer(streams, request, final=False)
    answer(held, held.submitted[0])
    assert await call.ids() == ["warm", "turn"]  # what lends a model's memory is not held
    assert (streams.released, held.released) == (0, 1)
    call.call.stream.pending = STREAM_LIMIT - 1
    call.stream.departed()
    assert await call.ids() == ["warm", "turn", "stream", "stream", "stream"]
    assert streams.released == 3


async def test_decoupled_answers_that_are_held_are_let_go_of_with_the_call(server, streams):
    async with warm(server) as call:
        await call.ask(infer_request("streams", X, id="stream"))
        call.call.stream.pending = STREAM_LIMIT
        for _ in range(3):
            answer(streams, streams.submitted[0], final=False)
        await settle()
        assert streams.released == 0
    assert streams.released == 3
    assert streams.cancelled == streams.submitted


async def test_decoupled_answers_do_not_wait_for_requests_before_them(server, call):
    await call.ask(infer_request("held", X, id="slow"), infer_request("streams", X, id="free"))
    answer(server.model("streams"), server.model("streams").submitted[0])
    assert await call.ids() == ["warm", "free"]


async def test_a_decoupled_models_refusal_does_not_wait(call):
    call.send(infer_request("held", X, id="slow"))
    await call.ask(infer_request("streams", X, id="wrong", parameters={"sequence_start": 1}))
    assert await call.ids() == ["warm", "wrong"]


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["held", "streams", "wrong"]), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
    early_end=st.booleans(),
)
def test_whatever_the_order_of_completion_each_rule_of_order_holds(kinds, order, early_end):
    async def run():
        server = FakeServer()
        async with warm(server) as call:
            for index, kind in enumerate(kinds):
                call.send(infer_request("nobody" if kind == "wrong" else kind, X, id=f"{kind} {index}"))
            if early_end:
                call.half_close()
            await settle()
            submitted = [(model, r) for model in server.models.by_name.values() for r in model.submitted]
            submitted = [(model, request) for model, request in submitted if request.id != "warm"]
            order.shuffle(submitted)
            produced = []
            for model, request in submitted:
                parts = order.randrange(3) if model.spec.decoupled else 0
                for _ in range(parts):
                    answer(model, request, final=False)
                answer(model, request)
                if model.spec.decoupled:
                    produced += [request.id] * (parts + 1)
                if order.random() < 0.5:
                    await settle()
            call.half_close()
            await settle()
            assert call.done
            assert call.error is None
            received = (await call.ids())[1:]
            assert [i for i in received if i.startswith("streams")] == produced
            in_turn = [f"{kind} {index}" for index, kind in enumerate(kinds) if kind != "streams"]
            assert [i for i in received if not i.startswith("streams")] == in_turn
            for model in server.models.by_name.values():
                assert model.cancelled == []
            assert server.model("held").released == kinds.count("held")
            assert server.model("streams").released == len(produced)

    trio.run(run)


# Final responses


async def test_every_answer_says_whether_it_is_the_last(call):
    (response,) = call.received
    assert response.error_message == ""
    assert response.infer_response.parameters[FINAL].bool_param is True


async def test_a_completion_without_outputs_is_not_told(streams, call):
    await call.ask(infer_request("streams", X, id="1"))
    answer(streams, streams.submitted[0], final=False)
    answer(streams, streams.submitted[0], outputs=False)
    call.half_close()
    assert await call.ids() == ["warm", "1"]
    assert call.done
    assert streams.released == 2


async def test_a_completion_without_outputs_is_told_to_those_who_ask(streams, call):
    await call.ask(
        infer_request("streams", X, id="1", parameters={"triton_enable_empty_final_response": True})
    )
    await answered(streams, streams.submitted[0], outputs=False)
    last = call.received[-1].infer_response
    assert (last.id, last.model_name, last.model_version) == ("1", "streams", "1")
    assert list(last.outputs) == []
    assert last.parameters[FINAL].bool_param is True


async def test_an_answer_without_outputs_of_another_model_is_an_answer(held, call):
    await call.ask(infer_request("held", X, id="1"))
    answer(held, held.submitted[0], outputs=False)
    assert await call.ids() == ["warm", "1"]


async def test_more_than_one_answer_of_a_model_that_is_not_decoupled_is_an_error(held, call):
    await call.ask(infer_request("held", X, id="1"))
    for final in (False, False, True):
        answer(held, held.submitted[0], final=final)
    await settle()
    assert call.received[-1].error_message == "expected a single response, got 3"
    assert held.released == 3


async def test_what_comes_after_the_final_part_is_let_go_of(held, call):
    await call.ask(infer_request("held", X, id="1"))
    answer(held, held.submitted[0])
    late = answer(held, held.submitted[0])
    assert await call.ids() == ["warm", "1"]
    assert not late.leased


# Errors inside the stream


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (infer_request("nobody", id="1"), "Request for unknown model: 'nobody' is not found"),
        (
            infer_request("add", version="9", id="1"),
            "Request for unknown model: 'add' version 9 is not found",
        ),
        (
            infer_request("add", version="x", id="1"),
            "failed to get model version from specified version string 'x' (details: stoll), "
            "version should be an integral value > 0",
        ),
        (
            infer_request("add", X, id="1", parameters={"triton_odd": 1}),
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            "with 'triton_' are allowed: triton_enable_empty_final_response",
        ),
        (infer_request("add", X, id="1"), "unexpected inference input 'X' for model 'add'"),
    ],
)
async def test_an_error_before_execution_carries_the_id_and_nothing_else(server, request_, text):
    async with serving(server) as call:
        call.send(request_)
        response = await call.receive()
        assert response.error_message == text
        about = response.infer_response
        assert (about.id, about.model_name, about.model_version, dict(about.parameters)) == ("1", "", "", {})
        assert not call.done


async def test_an_error_of_a_request_without_id_has_an_empty_one(server):
    async with serving(server) as call:
        call.send(infer_request("nobody"))
        response = await call.receive()
        assert response.HasField("infer_response")
        assert response.infer_response.id == ""


async def test_bytes_that_are_no_request_are_an_error_inside_the_stream(server):
    async with serving(server) as call:
        call.send_raw(b"\x0a\xff\xff")
        assert "inference.ModelInferRequest" in (await call.receive()).error_message
        call.send(infer_request("strings", [("X", "BYTES", np.array([[]], np.uint8))], id="next"))
        assert (await call.receive()).infer_response.id == "next"


async def test_an_error_during_execution_names_the_model_and_the_version_as_asked_for(held, call):
    await call.ask(infer_request("held", X, id="1", version="1"), infer_request("held", X, id="2"))
    for request in held.submitted:
        request.reply.put(Unavailable("the worker died"), final=True)
    await settle()
    for response, version in zip(call.received[1:], ["1", ""], strict=True):
        assert response.error_message == "the worker died"
        about = response.infer_response
        assert (about.model_name, about.model_version) == ("held", version)
        assert about.parameters[FINAL].bool_param is True


async def test_an_error_amid_a_decoupled_answer_is_not_its_last(streams, call):
    await call.ask(infer_request("streams", X, id="1"))
    streams.submitted[0].reply.put(Internal("one of them failed"), final=False)
    await answered(streams, streams.submitted[0])
    failed, last = call.received[1:]
    assert (failed.error_message, failed.infer_response.parameters[FINAL].bool_param) == (
        "one of them failed",
        False,
    )
    assert last.infer_response.parameters[FINAL].bool_param is True


async def test_an_error_without_a_text_is_told_as_an_error_still(held, call):
    await call.ask(infer_request("held", X))
    held.submitted[0].reply.put(Cancelled(""), final=True)
    await settle()
    assert call.received[-1].error_message


async def test_an_answer_that_can_not_be_told_is_an_error_and_lets_go_of_its_memory(server):
    async with serving(server, options=GrpcOptions(max_send_message=100)) as call:
        call.send(infer_request("zeros", [("X", "INT64", np.array([1000]))], id="1"))
        response = await call.receive()
        assert re.fullmatch(
            r"Response has byte size \d+ which exceeds gRPC's byte size limit 100\.", response.error_message
        )
        assert response.infer_response.model_name == "zeros"
        assert server.model("zeros").released == 1


async def test_during_shutdown_each_request_is_refused_inside_the_stream(server):
    server.health.exiting = True
    async with serving(server) as call:
        call.send(infer_request("add", X, id="1"))
        response = await call.receive()
        assert response.error_message == (
            "GRPC server is shutting down and has stopped accepting new requests."
        )
        assert response.infer_response.id == "1"
        call.half_close()
        await settle()
        assert call.done


# `triton_grpc_error`


@pytest.mark.parametrize("value", ["false", "1", ""])
async def test_only_true_asks_for_errors_as_the_status(server, value):
    async with serving(server, metadata={"triton_grpc_error": value}) as call:
        call.send(infer_request("nobody"))
        assert (await call.receive()).error_message


async def test_the_first_error_becomes_the_status_where_the_client_asked_for_that(server):
    async with serving(server, metadata={"triton_grpc_error": "true"}) as call:
        await call.ask(infer_request("nobody"))
        assert call.error.code is ErrorCode.NOT_FOUND
        assert call.error.message == "Request for unknown model: 'nobody' is not found"
        assert call.received == []


async def test_an_error_as_the_status_cancels_what_is_in_flight_and_drops_what_comes(server, held, streams):
    async with warm(server, metadata={"triton_grpc_error": "true"}) as call:
        call.send(*(infer_request("held", X, id=str(index)) for index in range(3)))
        await call.ask(infer_request("streams", X, id="3"))
        slow, early, wrong = held.submitted
        answer(held, early)
        await answered(streams, streams.submitted[0], final=False)
        wrong.reply.put(Unavailable("the worker died"), final=True)
        await settle()
        assert (call.error.code, call.error.message) == (ErrorCode.UNAVAILABLE, "the worker died")
        assert held.cancelled == [slow]
        assert streams.cancelled == streams.submitted
        late = answer(held, slow)
        assert not late.leased
        assert await call.ids() == ["warm", "3"]


async def test_an_answer_that_can_not_be_told_becomes_the_status_too(server):
    options = GrpcOptions(max_send_message=100)
    async with serving(server, metadata={"triton_grpc_error": "true"}, options=options) as call:
        await call.ask(infer_request("zeros", [("X", "INT64", np.array([1000]))], id="1"))
        assert call.error.code is ErrorCode.INVALID_ARG


async def test_an_error_amid_a_decoupled_answer_cancels_the_rest_of_it(server, streams):
    async with warm(server, metadata={"triton_grpc_error": "true"}) as call:
        await call.ask(infer_request("streams", X, id="1"))
        streams.submitted[0].reply.put(Internal("one of them failed"), final=False)
        await settle()
        assert call.error.message == "one of them failed"
        assert streams.cancelled == streams.submitted


# Ends


async def test_after_a_half_close_what_is_in_flight_is_finished(held, call):
    call.send(infer_request("held", X, id="1"))
    call.half_close()
    await settle()
    assert not call.done
    answer(held, held.submitted[0])
    assert await call.ids() == ["warm", "1"]
    assert call.done
    assert call.error is None


async def test_a_call_without_requests_ends_well(server):
    async with serving(server) as call:
        call.half_close()
        await settle()
        assert call.done
        assert call.error is None


async def test_a_client_that_leaves_has_every_request_in_flight_cancelled(server, held, streams):
    async with warm(server) as call:
        call.send(*(infer_request("held", X, id=str(index)) for index in range(3)))
        await call.ask(infer_request("streams", X, id="3"))
        early = answer(held, held.submitted[1])
        await settle()
    assert held.cancelled == [held.submitted[0], held.submitted[2]]
    assert streams.cancelled == streams.submitted
    late = answer(streams, streams.submitted[0])
    assert not early.leased
    assert not late.leased
    assert held.released == 1
    assert streams.released == 1


async def test_answers_that_were_not_sent_when_the_client_left_are_let_go_of(server, held):
    async with warm(server) as call:
        await call.ask(infer_request("held", X, id="1"))
        part = answer(held, held.submitted[0])
    assert not part.leased
    assert held.cancelled == []


async def test_a_stream_that_can_not_be_read_on_ends_with_its_error(held, call):
    await call.ask(infer_request("held", X, id="1"))
    call.wire.reader.broken = Internal("failed to decompress")
    call.stream.feed(Message(b"", compressed=True))
    await settle()
    assert call.error.message == "failed to decompress"
    assert held.cancelled == held.submitted


# Bounds


async def test_requests_that_are_batched_are_read_together_before_the_first_answer(server, held):
    """A batch delay of 3 s would answer three requests after 3, 6 and 6 s if the first were read alone."""
    async with serving(server) as call:
        await call.ask(*(infer_request("held", X, id=str(index)) for index in range(3)))
        assert len(held.submitted) == 3


async def test_before_the_first_answer_moderate_answers_are_expected(server, held):
    at_first = STREAM_LIMIT // FIRST_ANSWER
    async with serving(server) as call:
        await call.ask(*(infer_request("held", X, id=str(index)) for index in range(20)))
        assert len(held.submitted) == at_first
        await answered(held, held.submitted[0])
        assert len(held.submitted) == 20


async def test_a_large_answer_is_not_remembered_for_ever(server, held):
    async with serving(server) as call:
        call.send(infer_request("zeros", [("X", "INT64", np.array([STREAM_LIMIT // 4]))], id="large"))
        for _ in range(600):
            await call.ask(infer_request("strings", [("X", "BYTES", np.array([[]], np.uint8))]))
        await call.ask(*(infer_request("held", X, id=str(index)) for index in range(20)))
        assert len(held.submitted) == 20


async def test_no_more_is_begun_than_answers_find_room(server, held):
    async with serving(server) as call:
        await call.ask(infer_request("zeros", [("X", "INT64", np.array([STREAM_LIMIT // 4]))], id="large"))
        await call.ask(*(infer_request("held", X, id=str(index)) for index in range(9)))
        assert len(held.submitted) == 3
        await answered(held, held.submitted[0])
        assert len(held.submitted) == 4


async def test_an_answer_that_the_client_does_not_take_stalls_the_call(held, call):
    await call.ask(infer_request("held", X))
    call.call.stream.pending = STREAM_LIMIT
    await call.ask(infer_request("held", X))
    assert len(held.submitted) == 1
    call.call.stream.pending = 0
    call.stream.departed()
    await settle()
    assert len(held.submitted) == 2


class Full(FakeModel):
    """Has no room until `room` is set."""

    def __init__(self, name):
        super().__init__(make_spec(name, inputs=[("X", DataType.INT64, (1,))]), hold)
        self.room = trio.Event()
        self.refusal = None

    def submit_nowait(self, request):
        raise trio.WouldBlock

    async def submit(self, request):
        await self.room.wait()
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(request)


async def test_a_full_queue_stalls_the_call_until_there_is_room():
    full = Full("busy")
    server = FakeServer([*FakeServer().models.by_name.values(), full])
    held = server.model("held")
    async with warm(server) as call:
        call.send(infer_request("held", X, id="before"), infer_request("busy", X, id="1"))
        await call.ask(infer_request("held", X, id="after"))
        answer(held, held.submitted[0])  # what is in flight is answered meanwhile
        assert await call.ids() == ["warm", "before"]
        assert [request.id for request in held.submitted] == ["before"]
        full.room.set()
        await settle()
        assert [request.id for request in full.submitted] == ["1"]
        assert [request.id for request in held.submitted] == ["before", "after"]


async def test_a_refusal_after_waiting_for_room_is_one_before_execution():
    full = Full("busy")
    full.refusal = Unavailable("Exceeds maximum queue size")
    full.room.set()
    async with serving(FakeServer([full])) as call:
        call.send(infer_request("busy", X, id="1"))
        response = await call.receive()
        assert response.error_message == "Exceeds maximum queue size"
        assert response.infer_response.model_name == ""


async def test_a_client_that_leaves_while_its_request_waits_for_room_is_forgotten():
    full = Full("busy")
    async with serving(FakeServer([full])) as call:
        await call.ask(infer_request("busy", X, id="1"))
    assert len(full.cancelled) == 1
    assert full.submitted == []


# Metadata, deadline, request log


async def test_metadata_of_the_call_is_applied_to_each_request(server, held):
    held.marks = ClientMarks(affinity_header="x-user")
    options = GrpcOptions(header_forward_pattern=re.compile("my-", re.IGNORECASE))
    metadata = {"my-header": "value", "x-user": "ada"}
    async with warm(server, options=options, metadata=metadata) as call:
        await call.ask(
            infer_request("held", X, id="1"), infer_request("held", X, id="2", parameters={"own": 3})
        )
        first, second = held.submitted
        assert (first.parameters, second.parameters) == (
            {"my-header": "value"},
            {"my-header": "value", "own": 3},
        )
        assert (first.affinity, second.affinity) == ("ada", "ada")


async def test_reserved_metadata_is_an_error_of_each_request(server):
    options = GrpcOptions(header_forward_pattern=re.compile("priority"))
    async with serving(server, options=options, metadata={"priority": "1"}) as call:
        call.send(infer_request("held", X, id="1"), infer_request("held", X, id="2"))
        for expected in "12":
            response = await call.receive()
            assert response.infer_response.id == expected
            assert response.error_message == (
                "Header 'priority' is reserved for Triton usage and cannot be forwarded."
            )


async def test_the_deadline_of_the_call_is_that_of_each_request(server, autojump_clock, held):
    deadline = trio.current_time() + 9
    async with warm(server, deadline=deadline) as call:
        await call.ask(infer_request("held", X))
        assert held.submitted[0].deadline == deadline


async def test_the_hook_is_told_of_each_request_once(server, autojump_clock, held, streams):
    told = []
    options = GrpcOptions(
        endings=Endings(lambda request, outcome, _: told.append((request.id, type(outcome))))
    )
    async with warm(server, options=options) as call:
        call.send(infer_request("streams", X, id="parts"), infer_request("held", X, id="failed"))
        call.send(infer_request("add", X, id="refused"), infer_request("nobody", id="unread"))
        await call.ask(infer_request("held", X, id="left"))
        answer(streams, streams.submitted[0], final=False)
        answer(streams, streams.submitted[0], outputs=False)
        held.submitted[0].reply.put(Unavailable("the worker died"), final=True)
        await settle()
    assert sorted((id_, kind.__name__) for id_, kind in told) == [
        ("failed", "Unavailable"),
        ("left", "Cancelled"),
        ("parts", "InferResponse"),
        ("refused", "InvalidArgument"),
        ("warm", "InferResponse"),
    ]


async def test_the_hook_is_told_why_a_request_was_given_up(server, autojump_clock):
    told = []
    options = GrpcOptions(
        endings=Endings(lambda request, outcome, _: told.append((request.id, type(outcome))))
    )
    async with warm(server, options=options, deadline=trio.current_time() + 9) as call:
        call.send(infer_request("held", X, id="late"))
        await trio.sleep(9)
    assert told[1:] == [("late", DeadlineExceeded)]
    told.clear()
    async with warm(server, options=options) as call:
        await call.ask(infer_request("held", X, id="left"))
    assert told[1:] == [("left", Cancelled)]


@pytest.mark.parametrize("end", ["answer", "error", "cancel"])
async def test_a_request_that_is_over_is_held_by_nobody(server, end, held):
    message = infer_request("held", X, id="1").SerializeToString()
    gc.disable()  # what it would have to find is held too long
    try:
        before = sys.getrefcount(message)
        async with warm(server) as call:
            call.send_raw(message)
            await settle()
            if end == "answer":
                answer(held, held.submitted[0])
            elif end == "error":
                held.submitted[0].reply.put(Internal("no"), final=True)
            await settle()
            held.submitted.clear()
            assert (sys.getrefcount(message) == before) is (end != "cancel")
        held.cancelled.clear()
        assert sys.getrefcount(message) == before
    finally:
        gc.enable()


async def test_a_large_answer_lends_its_memory_until_it_is_sent(server):
    async with serving(server) as call:
        call.send(infer_request("zeros", [("X", "INT64", np.array([300_000]))], id="1"))
        response = await call.receive()
        assert len(response.infer_response.raw_output_contents[0]) == 300_000
        (lease,) = call.wire.leases
        assert isinstance(lease, InferResponse)
        assert server.model("zeros").released == 1


# The server shuts down


async def test_a_call_with_nothing_in_flight_is_ended_when_the_server_leaves(server):
    async with serving(server) as call:
        await settle()
        call.stream.leave()
        await settle()
        assert call.done
        assert call.error.code is ErrorCode.UNAVAILABLE
        assert call.error.message == ("GRPC server is shutting down and has stopped accepting new requests.")


async def test_what_is_in_flight_when_the_server_leaves_is_answered_first(server, held):
    async with serving(server) as call:
        await call.ask(infer_request("held", X, id="last"))
        call.stream.leave()
        await settle()
        assert not call.done
        assert not held.cancelled
        await answered(held, held.submitted[0])
        assert [message.infer_response.id for message in call.received] == ["last"]
        assert call.error.code is ErrorCode.UNAVAILABLE
