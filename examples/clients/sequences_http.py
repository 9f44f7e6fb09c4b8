"""Keep a sequence on the server that it began on, and begin anew where that server is gone.

Run `python examples/clients/sequences_http.py HOST:PORT HOST:PORT …`. Needs httpx.
"""

import argparse
import random
import sys
import time

import httpx

HELP = """\
Send numbers to sequence_accumulate, one request each, and print the sums that it answers.

A sequence lives in one server. A server that has a name (--replica-name) tells it with every answer, in
the header tritium-replica. The client sends it back: a proxy that sticks on it finds the same server, and
another server refuses the request, where it would make a sum of half the numbers. Without names the client
keeps to its address.

Where the server is gone, so is the sum. The client has the numbers still, and begins anew elsewhere.
"""
EPILOG = """\
start servers first, each in a terminal of its own:
  tritium serve --model-repository=examples/models --http-port=8000 --grpc-port=8001 --metrics-port=8002
  tritium serve --model-repository=examples/models --http-port=8100 --grpc-port=8101 --metrics-port=8102
"""
REPLICA = "tritium-replica"


class Lost(Exception):
    """The server that has the sequence can't be asked any more, or has forgotten it."""


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=HELP, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("servers", nargs="+", metavar="HOST:PORT", help="an HTTP listener, or a proxy's")
    parser.add_argument("--model", default="sequence_accumulate", help="a model with its inputs and outputs")
    parser.add_argument("--numbers", type=int, default=10, metavar="N", help="send 1 to N (10)")
    parser.add_argument(
        "--pause", type=float, default=0.1, metavar="SECONDS", help="between two requests (0.1)"
    )
    parser.add_argument("--begin", type=int, default=5, metavar="N", help="begin at most so often (5)")
    return parser.parse_args(arguments)


class Sequence:
    """One sequence. Leave it by `end`, or the server keeps it for a while."""

    def __init__(self, client, address, model):
        self._client = client
        self._url = f"http://{address}/v2/models/{model}/infer"
        self._id = random.getrandbits(63) | 1
        self._replica = None

    def send(self, number, *, start=False, end=False):
        """Return the sum so far. Raises Lost, or RuntimeError if the server refuses the request itself."""
        request = {
            "parameters": {"sequence_id": self._id, "sequence_start": start, "sequence_end": end},
            "inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 1], "data": [number]}],
        }
        headers = {REPLICA: self._replica} if self._replica else {}
        try:
            # Nothing is sent again: after an error it is not known whether the number was added.
            answer = self._client.post(self._url, json=request, headers=headers)
        except httpx.TransportError as error:
            raise Lost(repr(error)) from error
        if answer.status_code == httpx.codes.OK:
            self._replica = answer.headers.get(REPLICA)
            return answer.json()["outputs"][0]["data"][0]
        if start and answer.status_code not in (429, 503):
            raise RuntimeError(f"{answer.status_code}: {answer.text}")
        raise Lost(f"{answer.status_code}: {answer.text}")


def add_up(client, address, options):
    """Send all numbers in one sequence, printing each sum; return the last one."""
    sequence, last, total = Sequence(client, address, options.model), options.numbers, 0.0
    for number in range(1, last + 1):
        if number > 1:
            time.sleep(options.pause)
        total = sequence.send(float(number), start=number == 1, end=number == last)
        print(f"{address}: {number} makes {total:g}", flush=True)
    return total


def main(options):
    """Return the exit status: 0 if a sequence came to its end."""
    servers = random.sample(options.servers, len(options.servers))
    with httpx.Client(timeout=10.0) as client:
        for turn in range(options.begin):
            try:
                print(f"the sum is {add_up(client, servers[turn % len(servers)], options):g}")
            except Lost as why:
                print(f"lost, beginning anew: {why}", flush=True)
            else:
                return 0
    print(f"no sequence came to its end in {options.begin} attempts", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(parse()))
