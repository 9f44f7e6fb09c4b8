"""Ask several servers over gRPC: the client library balances, watches their health and asks again.

Run `python examples/clients/balancing_grpc.py HOST:PORT HOST:PORT …`. Needs tritonclient[grpc].
"""

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

HELP = """\
Ask several servers that have the same model, in turn. The service config tells the gRPC library how:
round_robin over all addresses; a server whose health service says NOT_SERVING is left out; and, with
--idempotent, a request that fails as UNAVAILABLE goes to another server.

Without --idempotent the library still sends again what no server has begun to read, and waits while there
is none to ask.
"""
EPILOG = """\
start servers first, each in a terminal of its own:
  tritium serve --model-repository=examples/models --http-port=8000 --grpc-port=8001 --metrics-port=8002
  tritium serve --model-repository=examples/models --http-port=8100 --grpc-port=8101 --metrics-port=8102
and kill one while this program runs:
  python examples/clients/balancing_grpc.py 127.0.0.1:8001 127.0.0.1:8101 --idempotent --requests=5000
in Kubernetes give the name of a headless Service:
  python examples/clients/balancing_grpc.py --target=dns:///tritium-headless:8001
"""


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=HELP, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("servers", nargs="*", metavar="IP:PORT", help="a gRPC listener")
    parser.add_argument("--target", default="", help="a name in place of them, as gRPC's resolvers take it")
    parser.add_argument("--model", default="add_sub", help="a model with its inputs (add_sub)")
    parser.add_argument("--idempotent", action="store_true", help="the model may run twice on a request")
    parser.add_argument("--requests", type=int, default=100, metavar="N", help="how many (100)")
    parser.add_argument("--at-once", type=int, default=4, metavar="N", help="how many at a time (4)")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="for each, all attempts together (30)"
    )
    options = parser.parse_args(arguments)
    if bool(options.servers) == bool(options.target):
        parser.error("give the addresses of servers, or --target")
    return options


def service_config(*, idempotent):
    """Return what the library is to do: see gRFC A6 (retries), A17 (health) and A24 (balancing)."""
    again = {
        "maxAttempts": 5,
        "initialBackoff": "0.05s",
        "maxBackoff": "2s",
        "backoffMultiplier": 2,
        # A full or ending server says UNAVAILABLE, and when to come back: grpc-retry-pushback-ms.
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    service = "inference.GRPCInferenceService"
    repeatable = ["ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata"]
    if idempotent:
        repeatable.append("ModelInfer")
    names = [{"service": service, "method": name} for name in repeatable]
    return {
        "loadBalancingConfig": [{"round_robin": {}}],
        # The name of the whole server in grpc.health.v1.
        "healthCheckConfig": {"serviceName": ""},
        "methodConfig": [
            # While no server can be asked, a call waits, up to its own time limit. Nothing has been sent.
            {"name": [{"service": service}], "waitForReady": True},
            {"name": names, "waitForReady": True, "retryPolicy": again},
        ],
    }


def connect(options):
    """Return a client over one channel, which has a connection to each server."""
    target = options.target or "ipv4:" + ",".join(options.servers)
    return triton.InferenceServerClient(
        target,
        channel_args=[
            ("grpc.service_config", json.dumps(service_config(idempotent=options.idempotent))),
            ("grpc.enable_retries", 1),
            # A machine that is gone sends no goodbye.
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            # A server that restarts is tried again after a second, and not after two minutes.
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            # Answers are as long as models make them.
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ],
    )


def inputs(number):
    first, second = np.arange(16, dtype=np.float32).reshape(1, 16), np.full((1, 16), number, np.float32)
    made = [triton.InferInput("INPUT0", [1, 16], "FP32"), triton.InferInput("INPUT1", [1, 16], "FP32")]
    for tensor, array in zip(made, (first, second), strict=True):
        tensor.set_data_from_numpy(array)
    return made


def main(options):
    """Return the exit status: 1 if a request failed."""
    failed = 0
    with connect(options) as client, ThreadPoolExecutor(options.at_once) as pool:

        def infer(number):
            return client.infer(options.model, inputs(number), client_timeout=options.timeout)

        pending = [pool.submit(infer, number) for number in range(options.requests)]
        for number, each in enumerate(pending, start=1):
            try:
                each.result()
            except InferenceServerException as error:
                failed += 1
                print(f"failed: {error}", file=sys.stderr)
            if number % 50 == 0:
                print(f"{number} done", flush=True)
    print(f"{options.requests - failed} answered, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(parse()))
