"""Decoupled models behind a real server: streams as Triton's own clients see them.

Clients stall and leave, and workers die.
"""

import os
import queue
import signal
from textwrap import dedent
from typing import Any

import numpy as np
import psutil
import pytest
import trio
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

from actors.wire.frames import WINDOW_BYTES
from protocols.grpc.call import STREAM_LIMIT
from tests.support.triton_inputs import inputs
from tests.survival.grpc_wire import STREAM_INFER, channel_to, inference
from tests.survival.server import until

PATIENCE = 20.0  # seconds
MIB = 1024 * 1024
FINAL = "triton_final_response"

CONFIG = """
name: "counting"
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "SIZE" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "DATA" data_type: TYPE_UINT8 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

MODEL = """
import pathlib
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

NOTES = pathlib.Path(@NOTES@)
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            threading.Thread(target=self.count, args=(request, sender), daemon=True).start()

    def count(self, request, sender):
        count, size = (tensor.as_numpy()[0] for tensor in request.inputs())
        with open(NOTES / f"sent-{request.request_id()}", "w") as notes:
            for number in range(count):
                if sender.is_cancelled():
                    (NOTES / f"cancelled-{request.request_id()}").touch()
                    break
                outputs = [
                    pb_utils.Tensor("NUMBER", np.array([number], np.int32)),
                    pb_utils.Tensor("DATA", np.full(size, number % 251, np.uint8)),
                ]
                sender.send(pb_utils.InferenceResponse(outputs))
                notes.write(".")
                notes.flush()
        sender.send(flags=FINAL)
"""


class Notes:
    """What the model writes down."""

    def __init__(self, path):
        self.path = path
        path.mkdir()

    def sent(self, request_id):
        """How many responses it has sent to a request."""
        note = self.path / f"sent-{request_id}"
        return note.stat().st_size if note.exists() else 0

    def cancelled(self, request_id):
        """Whether it has seen that the client left."""
        return (self.path / f"cancelled-{request_id}").exists()


@pytest.fixture
def notes(tmp_path, repository):
    made = Notes(tmp_path / "notes")
    version = repository.path / "counting" / "1"
    version.mkdir(parents=True)
    (repository.path / "counting" / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(dedent(MODEL).replace("@NOTES@", repr(str(made.path))))
    return made


class Stream:
    """A stream of tritonclient.grpc's, whose callback fills a queue."""

    def __init__(self, url):
        self.client = tritonclient.grpc.InferenceServerClient(url)
        self.answers: queue.Queue[Any] = queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put((result, error)))

    def ask(self, request_id, count, size=4, **options):
        given = inputs(tritonclient.grpc, COUNT=np.array([count], np.int32), SIZE=np.array([size], np.int32))
        self.client.async_stream_infer("counting", given, request_id=request_id, **options)

    def receive(self):
        """The next answer: a request's id, a number, an error's text, or None for the end alone."""
        result, error = self.answers.get(timeout=PATIENCE)
        if error is not None:
            return error
        response = result.get_response()
        number = result.as_numpy("NUMBER")
        if number is None:
            assert response.parameters[FINAL].bool_param
            return response.id, None
        assert (result.as_numpy("DATA") == number[0] % 251).all()
        assert not response.parameters[FINAL].bool_param
        return response.id, int(number[0])

    def close(self, *, cancel=False):
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()


@pytest.mark.usefixtures("own_interpreter")
async def test_a_client_that_stalls_stalls_its_model_thread_and_costs_no_memory(tritium_server, notes):
    size = 16 * 1024
    # What may wait in the stream, in the window, and above their limits.
    bound = STREAM_LIMIT + WINDOW_BYTES + 4 * size
    async with tritium_server() as server, channel_to(server.grpc_port, window=0) as channel:
        before = psutil.Process(server.pid).memory_full_info().uss
        call = await channel.call(STREAM_INFER)
        given = {"COUNT": np.array([100_000], np.int32), "SIZE": np.array([size], np.int32)}
        await call.send(inference("counting", given, request_id="stalled"))
        seen = -1
        while seen != notes.sent("stalled") or not seen:
            seen = notes.sent("stalled")
            await trio.sleep(0.5)
        assert WINDOW_BYTES <= seen * size <= bound
        assert psutil.Process(server.pid).memory_full_info().uss - before < 8 * MIB

        def converse(url):
            stream = Stream(url)
            stream.ask("other", 300, size)
            assert [stream.receive() for _ in range(300)] == [("other", number) for number in range(300)]
            stream.close()

        await trio.to_thread.run_sync(converse, server.grpc_url)
        assert notes.sent("stalled") == seen
        channel.close()
        await until(lambda: notes.cancelled("stalled"))


async def test_a_killed_worker_ends_each_stream_with_one_error_and_serves_again(tritium_server, notes):
    def begin(url):
        stream = Stream(url)
        for request_id in "abc":
            stream.ask(request_id, 2_000_000_000, enable_empty_final_response=True)
        began: set[int] = set()
        while began != set("abc"):
            began.add(stream.receive()[0])
        return stream

    def end(stream):
        errors: list[str] = []
        while len(errors) < 3:
            answer = stream.receive()
            if isinstance(answer, InferenceServerException):
                errors.append(answer)
        stream.ask("again", 2)
        again = [stream.receive(), stream.receive()]
        stream.close()
        return errors, again

    async with tritium_server() as server:
        stream = await trio.to_thread.run_sync(begin, server.grpc_url)
        (pid,) = await server.workers("counting")
        os.kill(pid, signal.SIGKILL)
        errors, again = await trio.to_thread.run_sync(end, stream)
        assert all(
            "died of signal 9 (SIGKILL) while it ran this request" in error.message() for error in errors
        )
        assert again == [("again", 0), ("again", 1)]
        assert await server.metric("nv_inference_request_failure", model="counting") == 3
