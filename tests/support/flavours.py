"""Every way to serve: listeners over models in memory, `tritium serve`, hypercorn with either worker.

Each flavour is a context manager around a running server, which yields its addresses.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import onnx
import trio
from onnx import TensorProto, helper

from protocols.grpc.listener import GrpcListener
from protocols.grpc.services.offered import services
from protocols.http.app import V2App
from protocols.http.listener import HttpListener
from protocols.http.options import V2Options
from tests.protocols.fakes import FakeServer
from tests.support.forked import ForkedProcess, start_module
from tests.support.operators import clean_environ

ROOT = Path(__file__).parents[2]
LOOPBACK = {
    "TRITIUM_HTTP_ADDRESS": "127.0.0.1",
    "TRITIUM_HTTP_PORT": "0",
    "TRITIUM_GRPC_ADDRESS": "127.0.0.1",
    "TRITIUM_GRPC_PORT": "0",
    "TRITIUM_ALLOW_METRICS": "false",
}


@dataclass(frozen=True)
class Addresses:
    """`host:port` of both protocols."""

    http: str
    grpc: str


Flavour = Callable[[Path], AbstractContextManager[Addresses]]


@contextmanager
def listeners_alone(server: FakeServer, options: V2Options | None = None) -> Iterator[Addresses]:
    """Serve `server` from a thread of this process, over HTTP with `options`."""
    opened: Queue[Addresses] = Queue()
    stop: list[Callable[[], None]] = []
    crashes: list[tuple[str, Exception]] = []

    def crashed(path: str, bug: Exception) -> None:
        crashes.append((path, bug))
        traceback.print_exception(bug)

    async def serve() -> None:
        token = trio.lowlevel.current_trio_token()
        app = V2App(server.server, options=options)
        listeners: list[HttpListener | GrpcListener] = [
            HttpListener(app, admit=app.admit),
            GrpcListener(services(server.server), on_crash=crashed),
        ]
        async with AsyncExitStack() as stack:
            sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in listeners]
            nursery = await stack.enter_async_context(trio.open_nursery())
            stop.append(lambda: token.run_sync_soon(nursery.cancel_scope.cancel))
            for listener, sock in zip(listeners, sockets, strict=True):
                await nursery.start(
                    listener.serve, sock, lambda name, run: nursery.start_soon(run, name=name)
                )
            opened.put(Addresses(*("{}:{}".format(*sock.getsockname()) for sock in sockets)))
        for listener in listeners:
            listener.close()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        yield opened.get(timeout=10)
    finally:
        stop[0]()
        thread.join()
    assert not crashes


def process(
    *command: str,
    http: str = r"Started HTTPService at (\S+?)\"?\s",
    said: Path | None = None,
    **environ: str,
) -> Flavour:
    """Return the flavour of a server process, which tells its HTTP address by a line that `http` matches.

    What it writes is kept in the file `said`, where one is named.
    """

    @contextmanager
    def serve(repository: Path) -> Iterator[Addresses]:
        settings = {"TRITIUM_MODEL_REPOSITORY": str(repository), **LOOPBACK}
        with tempfile.TemporaryFile() if said is None else said.open("w+b") as output:
            env = clean_environ() | settings | environ
            server: subprocess.Popen[bytes] | ForkedProcess
            if command[0] == "engine":
                server = start_module("engine", command[1:], env=env, stdout=output, stderr=output)
            else:
                server = subprocess.Popen(
                    [sys.executable, "-m", *command],
                    cwd=ROOT,
                    env=env,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            try:
                yield _wait_ready(server, output.fileno(), http)
            finally:
                server.terminate()
                try:
                    assert server.wait(40) == 0, _text_of(output.fileno())  # it drains for 30 s at most
                finally:
                    server.kill()

    return serve


def _text_of(descriptor: int) -> str:
    return os.pread(descriptor, 1_000_000, 0).decode()


def _wait_ready(server: subprocess.Popen[bytes] | ForkedProcess, output: int, http: str) -> Addresses:
    for _ in range(600):
        said = _text_of(output)
        assert server.poll() is None, said
        found = [re.search(each, said) for each in (http, r"Started GRPCInferenceService at (\S+?)\"?\s")]
        if found[0] and found[1] and _probe(found[0][1]):
            return Addresses(found[0][1], found[1][1])
        threading.Event().wait(0.05)
    raise AssertionError(_text_of(output))


def _probe(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    finally:
        connection.close()


_HYPERCORN = r"Running on http://(\S+)"
PROCESSES = {
    "tritium-serve": process("engine", "serve"),
    "hypercorn-asyncio": process("hypercorn", "-b", "127.0.0.1:0", "engine.asgi", http=_HYPERCORN),
    "hypercorn-trio": process("hypercorn", "-k", "trio", "-b", "127.0.0.1:0", "engine.asgi", http=_HYPERCORN),
}


# Models

_CONFIG_TYPES = {
    TensorProto.BOOL: "TYPE_BOOL",
    TensorProto.INT8: "TYPE_INT8",
    TensorProto.INT16: "TYPE_INT16",
    TensorProto.INT32: "TYPE_INT32",
    TensorProto.INT64: "TYPE_INT64",
    TensorProto.UINT8: "TYPE_UINT8",
    TensorProto.UINT16: "TYPE_UINT16",
    TensorProto.UINT32: "TYPE_UINT32",
    TensorProto.UINT64: "TYPE_UINT64",
    TensorProto.FLOAT16: "TYPE_FP16",
    TensorProto.BFLOAT16: "TYPE_BF16",
    TensorProto.FLOAT: "TYPE_FP32",
    TensorProto.DOUBLE: "TYPE_FP64",
    TensorProto.STRING: "TYPE_STRING",
}


def write_common_models(folder: Path) -> None:
    """Write the ONNX models `add`, `strings` and `scores` of `tests.protocols.fakes.default_models`."""
    write_onnx_model(
        folder,
        "add",
        nodes=[("Add", ["A", "B"], "S"), ("Sub", ["A", "B"], "D")],
        inputs=[("A", TensorProto.FLOAT, [16]), ("B", TensorProto.FLOAT, [16])],
        outputs=[("S", TensorProto.FLOAT, [16]), ("D", TensorProto.FLOAT, [16])],
    )
    for name, kind, labels in (
        ("strings", TensorProto.STRING, ""),
        ("scores", TensorProto.FLOAT, "cat\ndog\n"),
    ):
        write_onnx_model(
            folder,
            name,
            nodes=[("Identity", ["X"], "Y")],
            inputs=[("X", kind, [-1])],
            outputs=[("Y", kind, [-1])],
            labels=labels,
        )


def write_onnx_model(folder, name, *, nodes, inputs, outputs, labels=""):
    """Write a model of `nodes` (operator, inputs, output) that batches; a port is (name, ONNX type, dims)."""

    def info(name, kind, dims):
        # A dimension of unknown size is its tensor's own.
        sizes = (f"K_{name}" if dim < 0 else dim for dim in dims)
        return helper.make_tensor_value_info(name, kind, ["N", *sizes])

    def config(entries, extra=""):
        return ", ".join(
            f'{{ name: "{name}" data_type: {_CONFIG_TYPES[kind]} dims: {dims}{extra} }}'
            for name, kind, dims in entries
        )

    graph = helper.make_graph(
        [helper.make_node(op, ins, [out]) for op, ins, out in nodes],
        name,
        [info(*entry) for entry in inputs],
        [info(*entry) for entry in outputs],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    version = folder / name / "1"
    version.mkdir(parents=True)
    onnx.save(model, version / "model.onnx")
    label_file = ' label_filename: "labels.txt"' if labels else ""
    (folder / name / "config.pbtxt").write_text(
        f'backend: "onnxruntime"\nmax_batch_size: 8\ninput [ {config(inputs)} ]\n'
        f"output [ {config(outputs, label_file)} ]\ninstance_group [ {{ count: 1 kind: KIND_CPU }} ]\n"
    )
    if labels:
        (folder / name / "labels.txt").write_text(labels)
