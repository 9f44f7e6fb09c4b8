"""The gRPC example, against grpclib's own server."""

import asyncio  # noqa: TID251 - grpclib's server and client run on nothing else
import importlib.util
import socket
from pathlib import Path

import numpy as np
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from protocols.grpc.generated.grpc_service_base import GRPCInferenceServiceBase
from protocols.kserve.proto import grpc_service_pb2 as pb

EXAMPLE = Path(__file__).parents[2] / "examples" / "clients" / "add_sub_grpclib.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("add_sub_grpclib", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class AddSub(GRPCInferenceServiceBase):
    """What the example calls, on a model that refuses the request of id `refused`."""

    def __init__(self, refused=None):
        self._refused = refused

    async def ServerReady(self, stream):
        await stream.recv_message()
        await stream.send_message(pb.ServerReadyResponse(ready=True))

    async def ServerMetadata(self, stream):
        await stream.recv_message()
        await stream.send_message(pb.ServerMetadataResponse(name="tritium", version="0.0"))

    async def ModelInfer(self, stream):
        request = await stream.recv_message()
        if request.id == self._refused:
            raise GRPCError(
                Status.NOT_FOUND, f"Request for unknown model: '{request.model_name}' is not found"
            )
        await stream.send_message(_add_sub(request))

    async def ModelStreamInfer(self, stream):
        async for request in stream:
            if request.id == self._refused:
                failed = pb.ModelInferResponse(id=request.id)
                answer = pb.ModelStreamInferResponse(error_message="too odd", infer_response=failed)
            else:
                answer = pb.ModelStreamInferResponse(infer_response=_add_sub(request))
            await stream.send_message(answer)


def _add_sub(request):
    a, b = (np.frombuffer(raw, "<f4") for raw in request.raw_input_contents)
    response = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for name, array in (("OUTPUT0", a + b), ("OUTPUT1", a - b)):
        response.outputs.add(name=name, datatype="FP32", shape=request.inputs[0].shape)
        response.raw_output_contents.append(array.tobytes())
    return response


async def _unoffered(self, stream):
    raise GRPCError(Status.UNIMPLEMENTED)


def _complete(service):
    """Fill in the other methods, which grpclib's server wants to see."""
    missing = dict.fromkeys(service.__abstractmethods__, _unoffered)
    return type(service.__name__, (service,), missing)


def run(example, service, *arguments):
    async def both():
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = Server([service])
            await server.start(sock=listening)
            address = "{}:{}".format(*listening.getsockname())
            try:
                return await example.main(example.parse([address, *arguments]))
            finally:
                server.close()
                await server.wait_closed()

    return asyncio.run(both())


def test_it_shows_one_answer_and_then_those_of_a_stream(example, capsys):
    assert run(example, _complete(AddSub)(), "--requests=2") == 0
    shown = capsys.readouterr().out
    assert "tritium 0.0 is ready" in shown
    assert "request 'one' to add_sub 1" in shown
    unary, stream = shown.split("ModelStreamInfer")
    assert "sum        2 3 4 5" in unary
    assert "difference -2 -1 0 1" in unary
    assert stream.index("request '0'") < stream.index("request '1'")
    assert "sum        1 2 3 4" in stream


def test_a_request_that_fails_on_the_stream_costs_no_other(example, capsys):
    assert run(example, _complete(AddSub)(refused="1"), "--requests=3") == 0
    stream = capsys.readouterr().out.partition("ModelStreamInfer")[2]
    assert "request '1' failed: too odd" in stream
    assert "request '2' to add_sub 1" in stream


def test_a_refusal_is_shown_with_its_status(example, capsys):
    assert run(example, _complete(AddSub)(refused="one"), "--model=other") == 1
    assert "NOT_FOUND: Request for unknown model: 'other' is not found" in capsys.readouterr().err


def test_where_no_server_is_the_error_says_how_to_start_one(example, capsys):
    # Bound and not listening: no other process gets the port, and none answers.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        options = example.parse(["{}:{}".format(*closed.getsockname())])
        assert asyncio.run(example.main(options)) == 1
    told = capsys.readouterr().err
    assert "no server at 127.0.0.1" in told
    assert "tritium serve --model-repository=examples/models" in told


def test_help_tells_where_the_server_is_looked_for(example, capsys):
    with pytest.raises(SystemExit, match="0"):
        example.parse(["--help"])
    assert "127.0.0.1:8001" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["localhost"], [":8001"], ["host:99999"], ["--requests=0"]])
def test_an_argument_that_makes_no_sense_is_refused_with_one_that_does(example, capsys, wrong):
    with pytest.raises(SystemExit, match="2"):
        example.parse(wrong)
    assert "and" in capsys.readouterr().err


def test_addresses_of_both_families_are_read(example):
    assert example.parse(["[::1]:8001"]).address == ("::1", 8001)
    assert example.parse([]).address == ("127.0.0.1", 8001)
