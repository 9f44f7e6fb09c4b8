"""A loop a thread: what requests cost in one thread and in several, with the interpreter lock and without it.

    PYTHON -m benchmarks.design.many_cores.threads --threads 1 2 --seconds 2

Run it with each interpreter that is to be compared; where the lock is off, it says so. Each thread has its
own `trio.run`, decoder, listener state and connections: a connection's client is a task beside it in the
same thread, so that threads share nothing but what a server's threads would share, which is the code and
the configuration. With `--queue` each request passes one queue of all threads, under a lock, and is
answered by its own thread. Figures hold the client's part too; it is the same everywhere, so compare
figures with one another.

orjson may lack a build for an interpreter. Then, or with `--without-orjson`, the standard library's JSON
stands in for it in this process.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from actors.values.specs import ModelSpec

_CONNECTIONS: Final = 8  # a thread
_CHECK_EVERY: Final = 64  # requests between looks at the clock


def stand_in_for_orjson() -> None:
    """Have `import orjson` give the standard library's JSON."""
    module = ModuleType("orjson")

    def dumps(value: object, default: Callable[[Any], Any] | None = None, option: int | None = None) -> bytes:
        del option
        return json.dumps(value, default=default, separators=(",", ":")).encode()

    given: dict[str, Any] = {
        "dumps": dumps,
        "loads": json.loads,
        "JSONDecodeError": json.JSONDecodeError,
        "JSONEncodeError": TypeError,
        "Fragment": bytes,
        "OPT_SERIALIZE_NUMPY": 0,
        "OPT_NON_STR_KEYS": 0,
        "OPT_INDENT_2": 0,
        "OPT_SORT_KEYS": 0,
        "OPT_APPEND_NEWLINE": 0,
    }
    for name, value in given.items():
        setattr(module, name, value)
    sys.modules["orjson"] = module


def run(threads: int, seconds: float, *, queue: bool) -> tuple[float, float]:
    """Return requests a second of all threads together, and CPU µs a request."""
    from benchmarks.design.many_cores.threaded import add_sub

    spec = add_sub()
    counts: list[int] = []
    start = threading.Barrier(threads + 1)
    line: tuple[deque[object], threading.Lock] | None = (deque(), threading.Lock()) if queue else None

    def body() -> None:
        counts.append(serve_for(spec, start, seconds, line))

    every = [threading.Thread(target=body) for _ in range(threads)]
    for thread in every:
        thread.start()
    start.wait()
    began, used = time.monotonic(), time.process_time()
    for thread in every:
        thread.join()
    took, used = time.monotonic() - began, time.process_time() - used
    return sum(counts) / took, used * 1e6 / sum(counts)


def serve_for(
    spec: ModelSpec,
    start: threading.Barrier,
    seconds: float,
    line: tuple[deque[object], threading.Lock] | None,
) -> int:
    """Serve clients in this thread's own loop; return how many answers they had."""
    import trio

    from actors.values.requests import Endings
    from benchmarks.design.many_cores.protocol import RemoteModels, server_of
    from benchmarks.design.many_cores.threaded import Inline, request_bytes
    from engine.server.frontends import v2_app
    from engine.settings.settings import Settings
    from protocols.http.listener import HttpListener
    from protocols.transport.receiving import ReceivingRoom

    answered = 0
    request = request_bytes(spec)

    async def ask(client: socket.socket, until: float) -> None:
        nonlocal answered
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(client))
        count = 0
        async with stream:
            while count % _CHECK_EVERY or trio.current_time() < until:
                await stream.send_all(request)
                answer = await stream.receive_some(65536)
                assert answer.startswith(b"HTTP/1.1 200")
                count += 1
        answered += count

    async def main() -> None:
        settings = Settings.from_argv(["--model-repository=none"], {})
        room = ReceivingRoom()
        app = v2_app(
            settings, server_of(RemoteModels({spec.name: Inline(spec, line)})), endings=Endings(), room=room
        )
        listener = HttpListener(app, room=room)
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
            address = listening.getsockname()
            async with trio.open_nursery() as nursery:

                def spawn(name: str, connection: Callable[[], Any]) -> None:
                    nursery.start_soon(connection, name=name)

                async def listen() -> None:
                    await listener.serve(listening, spawn)

                nursery.start_soon(listen)
                clients = [socket.create_connection(address) for _ in range(_CONNECTIONS)]
                start.wait()
                async with trio.open_nursery() as asking:
                    for client in clients:
                        asking.start_soon(ask, client, trio.current_time() + seconds)
                listener.drain()
                await listener.wait_drained()
                nursery.cancel_scope.cancel()
        listener.close()

    trio.run(main)
    return answered


def locked() -> bool:
    """Whether this interpreter has its lock."""
    asked: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return asked()


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each number of threads."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.design.many_cores.threads")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--queue", action="store_true", help="requests pass one queue of all threads")
    parser.add_argument("--without-orjson", action="store_true")
    options = parser.parse_args(argv)
    if options.without_orjson or find_spec("orjson") is None:
        stand_in_for_orjson()
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    for threads in options.threads:
        rate, cost = run(threads, options.seconds, queue=options.queue)
        print(
            f"{sys.version.split()[0]}{'t' if free else ''} lock {'on' if locked() else 'off'}:"
            f" {threads} threads, {rate:,.0f} requests/s, {cost:.1f} µs of CPU each"
        )


if __name__ == "__main__":
    main()
