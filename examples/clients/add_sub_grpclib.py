"""Add and subtract over gRPC, with Tritium's own stubs.

Run `python examples/clients/add_sub_grpclib.py [host:port]`. Needs tritium.
"""

import argparse
import asyncio
import sys

import numpy as np
from grpclib.client import Channel
from grpclib.exceptions import GRPCError, StreamTerminatedError

from protocols.grpc.generated.grpc_service_stub import GRPCInferenceServiceStub
from protocols.kserve.proto.grpc_service_pb2 import (
    ModelInferRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)

DEFAULT = "127.0.0.1:8001"
HELP = """\
Ask a server for its readiness and its name, for one sum and difference, then for several on one stream.

The stubs in protocols.grpc.generated are made for grpclib, whose client runs on asyncio. Each is a plain coroutine:
one message in, one message out; ModelStreamInfer takes and gives any number. Tensors travel raw, as little-endian
elements in raw_input_contents and raw_output_contents, which spares both sides a conversion.
"""
EPILOG = """\
start a server first:
  tritium serve --model-repository=examples/models
"""


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=HELP, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "address",
        nargs="?",
        default=DEFAULT,
        type=_address,
        help=f"host:port of the gRPC listener ({DEFAULT})",
    )
    parser.add_argument("--model", default="add_sub", help="a model with its inputs and outputs (add_sub)")
    parser.add_argument(
        "--requests", type=_count, default=3, metavar="N", help="how many to send on the stream (3)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="for each call; the server is told it (10)",
    )
    return parser.parse_args(arguments)


def _address(text):
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port; {DEFAULT} and [::1]:8001 are")
    return host.strip("[]"), int(port)


def _count(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of requests; 1 and more are")
    return int(text)


def request(model, a, b, request_id):
    """Make one request for float32 [rows, 16] arrays `a` and `b`."""
    message = ModelInferRequest(model_name=model, id=request_id)
    for name, array in (("INPUT0", a), ("INPUT1", b)):
        message.inputs.add(name=name, datatype="FP32", shape=array.shape)
        message.raw_input_contents.append(array.astype("<f4").tobytes())
    return message


def arrays(response):
    """Read a response's tensors: name to array."""
    return {
        output.name: np.frombuffer(raw, "<f4").reshape(output.shape)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def show(response):
    outputs = arrays(response)
    print(f"  request {response.id!r} to {response.model_name} {response.model_version}")
    print("    sum       ", *outputs["OUTPUT0"][0].astype(int))
    print("    difference", *outputs["OUTPUT1"][0].astype(int))


async def talk(channel, options):
    stub = GRPCInferenceServiceStub(channel)
    ready = await stub.ServerReady(ServerReadyRequest(), timeout=options.timeout)
    identity = await stub.ServerMetadata(ServerMetadataRequest(), timeout=options.timeout)
    print(f"{identity.name} {identity.version} is {'ready' if ready.ready else 'not ready'}")
    a = np.arange(16, dtype=np.float32).reshape(1, 16)
    twos = np.full_like(a, 2)

    print("ModelInfer")
    show(await stub.ModelInfer(request(options.model, a, twos, "one"), timeout=options.timeout))

    print("ModelStreamInfer")
    async with stub.ModelStreamInfer.open(timeout=options.timeout) as stream:
        # This opens the call: without it there is nothing to read from yet.
        await stream.send_request()
        sending = asyncio.create_task(_send(stream, options, a))
        try:
            async for answer in stream:
                if answer.error_message:
                    # An error on a stream is that request's own: the status stays OK, and the stream goes on.
                    print(f"  request {answer.infer_response.id!r} failed: {answer.error_message}")
                else:
                    show(answer.infer_response)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def _send(stream, options, a):
    """Send while another task receives: the answers come as they are ready."""
    for number in range(options.requests):
        message = request(options.model, a, np.full_like(a, number), str(number))
        await stream.send_message(message, end=number + 1 == options.requests)


async def main(options):
    """Return the exit status: 0, or 1 with the reason on stderr."""
    host, port = options.address
    channel = Channel(host, port)
    try:
        await talk(channel, options)
    except TimeoutError:
        print(f"no answer within {options.timeout} s", file=sys.stderr)
    except OSError as error:
        print(f"no server at {host}:{port} ({error}).\n{EPILOG}", end="", file=sys.stderr)
    except GRPCError as error:
        print(f"the server answered {error.status.name}: {error.message}", file=sys.stderr)
    except StreamTerminatedError as error:
        print(f"{error}. Is {host}:{port} the gRPC listener? HTTP's is another port.", file=sys.stderr)
    else:
        return 0
    finally:
        channel.close()
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parse())))
