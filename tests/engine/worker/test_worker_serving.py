"""The worker's loop over a real connection, on a thread: a model's error is an answer or the worker's end."""

import socket
import threading

import numpy as np
import pytest
import trio
import trio.testing

from actors.serving.instances.launching import model_fields
from actors.serving.instances.pipe import Pipe
from actors.serving.instances.worker import LiveWorker
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.specs import InputSpec, InstanceSpec, OutputSpec
from actors.values.tensors import Tensor
from engine.worker.serve import Serving
from tests.support.doubles import Double
from tests.support.model_doubles import make_request, make_spec


class Threaded(Double):
    """A worker on a thread, and the server's end of it."""

    def __init__(self, lanes):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.spec = make_spec(
            instances=(InstanceSpec(name="model_0", lanes=lanes),),
            inputs=(InputSpec(name="INPUT", datatype=DataType.FP32, dims=(2,)),),
            outputs=(OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(2,)),),
        )
        self.answers = []
        self.ready_at_last = trio.Event()
        self.logs = []
        self.worker = LiveWorker(Pipe(ours), self.spec, self.spec.instances[0], self, prefetch=True)
        fields = model_fields(self.spec, self.spec.instances[0])
        self.worker.load("tests.support.serving_backends:Odd", fields, {})
        self.thread = threading.Thread(target=self._serve, args=(theirs,))
        self.thread.start()

    @staticmethod
    def _serve(sock):
        with sock:
            try:
                Serving(sock, on_disconnect=lambda: None).run()
            except SystemExit:
                return

    # actors.serving.instances.worker.WorkerEvents

    def ready(self):
        self.ready_at_last.set()

    def load_failed(self, message, traceback):
        raise AssertionError(message + traceback)

    def finished(self, batch, result, answers, *, borrowed):
        self.answers += [answer for _, _, answer in answers]

    def unsent(self, batch, error):
        raise error

    def logged(self, level, message):
        self.logs.append(message)

    def slot_freed(self):
        pass

    async def read(self):
        """Handle what the worker says until it ends."""
        while True:
            packet = self.worker.pipe.receive_nowait()
            if packet == b"":
                return
            if packet is None:
                await self.worker.pipe.wait_readable()
            else:
                self.worker.on_packet(packet)

    def send(self, cue):
        request = make_request()
        request.inputs = [Tensor.from_numpy("INPUT", np.full((1, 2), cue, np.float32))]
        request.requested_outputs = self.spec.output_names
        self.worker.dispatch([request], now=0.0)

    async def run(self, *cues):
        """Load, run a batch for each cue, stop, and read to the end."""
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.worker.pipe.flush)
                nursery.start_soon(self.worker.sender.run)
                async with trio.open_nursery() as reading:
                    reading.start_soon(self.read)
                    await self.ready_at_last.wait()
                    for cue in cues:
                        self.send(cue)
                    await trio.testing.wait_all_tasks_blocked()  # the second waits behind the first
                    self.worker.stop()
                nursery.cancel_scope.cancel()
        self.worker.close()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.mark.parametrize("lanes", [1, 2])
async def test_batches_are_run_and_stop_ends_it(lanes):
    served = Threaded(lanes)
    await served.run(0.0, 0.0)
    assert [answer.code for answer in served.answers] == [None, None]


# A process would show it on stderr.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("lanes", [1, 2])
async def test_a_model_that_exits_breaks_the_connection_whichever_lane_it_ran_on(lanes):
    for _ in range(3):  # so that with two lanes either has had its turn, most likely
        served = Threaded(lanes)
        await served.run(1.0)
        assert not served.answers


@pytest.mark.parametrize(
    ("cue", "words", "line"),
    [
        (2.0, "response parameter 'when' is of type object", "execute raised"),
        (3.0, "parameters and error texts take", ""),
    ],
)
async def test_what_cannot_be_written_or_is_too_much_is_an_error_answer(cue, words, line):
    served = Threaded(1)
    await served.run(cue)
    (answer,) = served.answers
    assert answer.code is ErrorCode.INTERNAL
    assert words in answer.message
    assert not line or any(line in each for each in served.logs)
