"""Ask several servers over HTTP, and ask again elsewhere where that is safe.

Run `python examples/clients/balancing_http.py HOST:PORT HOST:PORT …`. Needs httpx.
"""

import argparse
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

HELP = """\
Ask several servers that have the same model: the one with the fewest requests in hand, and again at
another one where that is safe.

What never reached a model is always sent again. What may have run is sent again only with --idempotent:
say that of a model whose answer depends on the request alone, and that changes nothing.
"""
EPILOG = """\
start servers first, each in a terminal of its own:
  tritium serve --model-repository=examples/models --http-port=8000 --grpc-port=8001 --metrics-port=8002
  tritium serve --model-repository=examples/models --http-port=8100 --grpc-port=8101 --metrics-port=8102
and kill one while this program runs:
  python examples/clients/balancing_http.py 127.0.0.1:8000 127.0.0.1:8100 --idempotent --requests=5000
"""
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
BUSY, GATEWAY, UNAVAILABLE = 429, 502, 503
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=HELP, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("servers", nargs="+", metavar="HOST:PORT", help="an HTTP listener")
    parser.add_argument("--model", default="add_sub", help="a model with its inputs (add_sub)")
    parser.add_argument("--idempotent", action="store_true", help="the model may run twice on a request")
    parser.add_argument("--requests", type=int, default=100, metavar="N", help="how many (100)")
    parser.add_argument("--at-once", type=int, default=4, metavar="N", help="how many at a time (4)")
    parser.add_argument("--attempts", type=int, default=6, metavar="N", help="at most so many for each (6)")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="for each, all attempts together (30)"
    )
    return parser.parse_args(arguments)


def may_repeat(failure, *, idempotent):
    """Tell whether a request may be sent again after this exception, or this answer.

    A connection that was refused carried nothing. 429 is a refusal before anything runs. A connection that
    breaks later, and a time limit, leave open whether the model has run. So does 503: mostly a refusal, but
    also the answer to a request whose worker died under it. All other answers would be the same elsewhere.
    """
    if isinstance(failure, NOT_SENT):
        return True
    if isinstance(failure, httpx.TransportError):
        return idempotent
    return failure.status_code == BUSY or (idempotent and failure.status_code in (GATEWAY, UNAVAILABLE))


def told_to_wait(failure):
    """Return for how many seconds the server asks to be left alone; None where it does not say."""
    if isinstance(failure, httpx.Response) and failure.headers.get("retry-after", "").isdecimal():
        return float(failure.headers["retry-after"])
    return None


@dataclass
class Server:
    """What is known of one server."""

    address: str
    in_hand: int = 0
    answered: int = 0
    failures: int = 0  # one after the other
    not_before: float = 0.0


class Servers:
    """Chooses among servers. Those that failed are left alone for a while."""

    def __init__(self, addresses):
        self.all = [Server(address) for address in addresses]
        self._lock = threading.Lock()

    def take(self, deadline):
        """Return a server that may be asked now; wait for one, but not beyond the deadline."""
        while True:
            now = time.monotonic()
            with self._lock:
                free = [server for server in self.all if server.not_before <= now]
                if free:
                    chosen = min(free, key=lambda server: (server.in_hand, random.random()))
                    chosen.in_hand += 1
                    return chosen
                until = min(server.not_before for server in self.all)
            if until >= deadline:
                raise TimeoutError("no server can be asked in time")
            time.sleep(until - now)

    def give_back(self, server, failure=None):
        """Take note of an answer, or of a failure."""
        with self._lock:
            server.in_hand -= 1
            if failure is None:
                server.answered, server.failures = server.answered + 1, 0
                return
            pause = told_to_wait(failure)
            if pause is None:
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**server.failures) * random.uniform(0.5, 1.0)
            server.failures += 1
            server.not_before = time.monotonic() + pause


class Client:
    """Asks a model, wherever it is served."""

    def __init__(self, options):
        self.servers = Servers(options.servers)
        self._options = options
        self._http = httpx.Client(limits=httpx.Limits(max_connections=None))
        self._path = f"/v2/models/{options.model}/infer"
        self.repeated = 0

    def infer(self, request):
        """Return the answer as a dictionary. Raises RuntimeError, TimeoutError or an httpx.TransportError."""
        deadline = time.monotonic() + self._options.timeout
        for attempt in range(1, self._options.attempts + 1):
            server = self.servers.take(deadline)
            failure = self._ask(server, request, deadline)
            if isinstance(failure, dict):
                self.servers.give_back(server)
                return failure
            self.servers.give_back(server, failure)
            if attempt == self._options.attempts or not may_repeat(
                failure, idempotent=self._options.idempotent
            ):
                break
            self.repeated += 1
        if isinstance(failure, Exception):
            raise failure
        raise RuntimeError(f"{failure.status_code} from {server.address}: {failure.text}")

    def _ask(self, server, request, deadline):
        """Return the answer, or what came in its place."""
        left = max(0.001, deadline - time.monotonic())
        try:
            answer = self._http.post(f"http://{server.address}{self._path}", json=request, timeout=left)
        except httpx.TransportError as error:
            return error
        return answer.json() if answer.status_code == httpx.codes.OK else answer


def request(number):
    row = {"datatype": "FP32", "shape": [1, 16]}
    return {
        "inputs": [
            {"name": "INPUT0", **row, "data": list(range(16))},
            {"name": "INPUT1", **row, "data": [number] * 16},
        ]
    }


def main(options):
    """Return the exit status: 1 if a request failed."""
    client, failed, run_twice = Client(options), 0, 0
    with ThreadPoolExecutor(options.at_once) as pool:
        pending = [pool.submit(client.infer, request(number)) for number in range(options.requests)]
        for number, each in enumerate(pending, start=1):
            try:
                answer = each.result()
            except (RuntimeError, TimeoutError, httpx.TransportError) as error:
                failed += 1
                print(f"failed: {error!r}", file=sys.stderr)
            else:
                # The server counts its own attempts, where a worker died and the model may be run again.
                run_twice += answer.get("parameters", {}).get("attempts", 1) > 1
            if number % 50 == 0:
                print(f"{number} done", flush=True)
    for server in client.servers.all:
        print(f"{server.address} answered {server.answered}")
    print(f"{client.repeated} sent again, {run_twice} run more than once by a server, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(parse()))
