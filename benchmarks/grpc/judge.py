"""Checks answers with grpcio's client, which shares no code with the server.

It does so before a load, and by the counts after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks import payloads as values
from benchmarks.grpc import payloads
from benchmarks.grpc.scenarios import GrpcScenario, Way
from benchmarks.payloads import WrongAnswer
from protocols.kserve.proto import grpc_service_pb2 as pb

if TYPE_CHECKING:
    import grpc  # type: ignore[import-untyped]

_TIMEOUT: Final = 30.0
_SETTLE: Final = 1.0  # how long a server may take to count what it has answered


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server speaks gRPC."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests so far, as statistics tell."""

    success: int
    failed: int


def method(way: Way) -> str:
    """Return the path that a row's calls have."""
    return payloads.SERVICE + ("ModelStreamInfer" if way is Way.STREAM else "ModelInfer")


@contextmanager
def _channel(address: Address) -> Iterator[grpc.Channel]:
    """Open a channel. Raises WrongAnswer if grpcio is not installed, and for every call that fails."""
    try:
        import grpc
    except ImportError as error:
        raise WrongAnswer("grpcio is needed to check answers: pip install 'tritium[test]'") from error
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    try:
        with grpc.insecure_channel(str(address), options=options) as channel:
            yield channel
    except grpc.RpcError as error:
        details = error.details() if isinstance(error, grpc.Call) else str(error)
        code = error.code().name if isinstance(error, grpc.Call) else "no status"
        raise WrongAnswer(f"gRPC at {address}: {code} {details}") from error


def _ask(address: Address, name: str, request: Any, response: Any) -> Any:
    with _channel(address) as channel:
        call = channel.unary_unary(
            payloads.SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return call(request, timeout=_TIMEOUT)


def _stream(address: Address, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    with _channel(address) as channel:
        call = channel.stream_stream(
            payloads.SERVICE + "ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        answers = list(call(iter([request]), timeout=_TIMEOUT))
    if len(answers) != 1 or answers[0].error_message:
        raise WrongAnswer(
            f"expected one answer on the stream, got {[each.error_message for each in answers]}"
        )
    response: pb.ModelInferResponse = answers[0].infer_response
    return response


def verify(scenario: GrpcScenario, address: Address) -> int:
    """Send a row's request once and check the answer; return the size of its message. Raises WrongAnswer."""
    inputs = scenario.inputs()
    request = payloads.encode(scenario.first, inputs)
    if scenario.way is Way.STREAM:
        response = _stream(address, request)
        size = pb.ModelStreamInferResponse(infer_response=response).ByteSize()
    else:
        response = _ask(address, "ModelInfer", request, pb.ModelInferResponse)
        size = response.ByteSize()
    values.check(payloads.decode(response), scenario.expected(inputs))
    return int(size)


def counts(address: Address, models: Sequence[str]) -> Counts:
    """Return the counts of all these models together. Raises WrongAnswer."""
    everything = []
    for model in models:
        request = pb.ModelStatisticsRequest(name=model)
        answer = _ask(address, "ModelStatistics", request, pb.ModelStatisticsResponse)
        everything += [each.inference_stats for each in answer.model_stats]
    return Counts(
        success=sum(each.success.count for each in everything),
        failed=sum(each.fail.count for each in everything),
    )


def unaccounted(
    address: Address, models: Sequence[str], before: Counts, *, answered: int, cut_off: int
) -> int:
    """Return how many of `answered` requests the server does not count as successes, or counts as failures.

    `cut_off` is how many the client may have left under way when its time was up: a server counts those as
    failures. Asks until it adds up, or for as long as a server may take to settle. Raises WrongAnswer.
    """
    deadline = time.monotonic() + _SETTLE
    while True:
        after = counts(address, models)
        missing = answered - (after.success - before.success)
        failed = after.failed - before.failed - cut_off
        if max(missing, failed) <= 0 or time.monotonic() > deadline:
            return max(missing, failed, 0)
        time.sleep(0.02)
