"""A backend that calls other models as its parameters say.

The worker process imports it through PYTHONPATH.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.wire import frames
from actors.wire.call_frames import Letter
from engine.worker.backends.base import Backend
from engine.worker.calls import CallFailed, CallRequest

FP32 = DataType.FP32


class Calling(Backend):
    """Calls the model that the parameter `callee` names, in the way that the parameter `mode` names."""

    name = "calling"

    def load(self, model):
        self.calls = model.calls
        self.callee = model.parameters.get("callee", "callee")
        self.answer = getattr(self, model.parameters.get("mode", "once"))
        self.directory = Path(model.parameters.get("directory", "."))
        self.meeting = int(model.parameters.get("meet", "0"))
        self.kept = []

    def execute(self, batch):
        for request in batch.requests:
            try:
                self.answer(request)
            except CallFailed as error:
                request.fail(error.code, error.message)

    def request_for(self, request, array=None, **options):
        array = request.input("INPUT") if array is None else array
        return CallRequest(self.callee, [("INPUT", FP32, array)], parent=request.origin, **options)

    def once(self, request, **options):
        """OUTPUT is the callee's, plus one."""
        (response,) = self.calls.infer(self.request_for(request, **options))
        self.pass_on(request, response)

    def pass_on(self, request, response):
        if response.code is not None:
            request.fail(response.code, response.message)
            return
        ((_, _, array),) = response.outputs
        array += 1  # it is ours
        request.respond([("OUTPUT", FP32, array)], response.parameters)

    def once_told(self, request):
        """As `once`, when a file has appeared."""
        self.wait_until_told()
        self.once(request)

    def wait_until_told(self):
        (self.directory / "waiting").touch()
        while not (self.directory / "go").exists():
            time.sleep(0.005)

    def wanting(self, request):
        """As `once`, and wants OUTPUT alone."""
        self.once(request, requested_outputs=["OUTPUT"])

    def by_version(self, request):
        """Of the version that the first element says."""
        self.once(request, version=int(request.input("INPUT")[0, 0]))

    def told(self, request):
        """With everything that a call can say."""
        options = {
            "id": "nested",
            "correlation_id": "sequence",
            "flags": 3,
            "timeout": 5_000_000,
            "priority": 1,
            "parameters": {"a": 1, "b": True, "c": "text"},
            "trace": "00-1-2-01",
            "requested_outputs": ["OUTPUT"],
        }
        self.once(request, **options)

    def streaming(self, request):
        """OUTPUT is the number of responses and the sum of their elements."""
        responses = list(self.calls.infer(self.request_for(request, decoupled=True)))
        failed = next((each for each in responses if each.code is not None), None)
        if failed is not None:
            request.fail(failed.code, failed.message)
            return
        total = sum(float(array.sum()) for each in responses for _, _, array in each.outputs)
        finals = sum(each.final for each in responses)
        request.respond([("OUTPUT", FP32, np.array([[len(responses), total, finals]], np.float32))])

    def slowly(self, request):
        """As `streaming`, but nothing is taken before a file appears."""
        stream = self.calls.infer(self.request_for(request, decoupled=True))
        first = next(stream)
        self.wait_until_told()
        count = 1 + sum(1 for _ in stream)
        request.respond([("OUTPUT", FP32, np.array([[count, first.outputs[0][2][0, 0], 0]], np.float32))])

    def cancelling(self, request):
        """Takes two responses of a stream that has no end, then cancels it."""
        stream = self.calls.infer(self.request_for(request, decoupled=True))
        next(stream)
        next(stream)
        stream.cancel()
        *_, last = stream
        assert last.final
        assert last.code is None
        request.respond([("OUTPUT", FP32, request.input("INPUT"))])

    def letting_go(self, request):
        """Begins a stream that has no end, and forgets it."""
        next(self.calls.infer(self.request_for(request, decoupled=True)))
        request.respond([("OUTPUT", FP32, request.input("INPUT"))])

    def at_once(self, request):
        """Make as many calls, each on its own thread, as the first element says.

        OUTPUT is the sum of the responses and the number of calls.
        """
        count = int(request.input("INPUT")[0, 0])
        sums = []

        def call(number):
            array = np.full((1, 4), number, np.float32)
            (response,) = self.calls.infer(self.request_for(request, array))
            sums.append(float(response.outputs[0][2].sum()))

        threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        request.respond([("OUTPUT", FP32, np.array([[sum(sums), len(sums)]], np.float32))])

    def many_under_way(self, request):
        """As many calls as the first element says, all sent before the first answer is taken."""
        count = int(request.input("INPUT")[0, 0])
        streams = [self.calls.infer(self.request_for(request)) for _ in range(count)]
        codes = [response.code for stream in streams for response in stream]
        refused = codes.count(ErrorCode.UNAVAILABLE)
        request.respond([("OUTPUT", FP32, np.array([[codes.count(None), refused]], np.float32))])

    def asking(self, request):
        """Ask the server to double a number, with attachments, after telling it three others.

        OUTPUT holds what the server answers: it is made from the number, the length of an attachment and the
        values told before.
        """
        value = float(request.input("INPUT")[0, 0])
        for number in range(3):
            self.calls.tell("sum", {"value": number})
        answer = self.calls.ask("double", {"value": value}, {"file": b"x" * 100_000, "empty": b""})
        request.respond([("OUTPUT", FP32, np.array([answer["values"]], np.float32))])

    def asking_in_vain(self, request):
        self.calls.ask("nothing", {})

    def dying(self, request):
        """Begins a call that takes long, and dies of a signal."""
        self.kept.append(self.calls.infer(self.request_for(request)))
        self.wait_until_told()
        os.kill(os.getpid(), signal.SIGKILL)

    def detached(self, request):
        """Begins a call and does not wait for it."""
        self.kept.append(self.calls.infer(self.request_for(request, blocking=False)))
        request.respond([("OUTPUT", FP32, request.input("INPUT"))])

    def recursive(self, request):
        """Calls with what it is given less one, until that is 0; OUTPUT is how deep that went."""
        depth = float(request.input("INPUT")[0, 0])
        if depth == 0.0:
            request.respond([("OUTPUT", FP32, request.input("INPUT"))])
            return
        if self.meeting:
            self.meet()
        (response,) = self.calls.infer(self.request_for(request, request.input("INPUT") - 1))
        self.pass_on(request, response)

    def recursive_told(self, request):
        """As `recursive`, when a file has appeared."""
        self.wait_until_told()
        self.recursive(request)

    def meet(self):
        """Wait until as many executions have arrived."""
        (self.directory / str(os.getpid())).touch()
        while sum(1 for _ in self.directory.iterdir()) < self.meeting:
            time.sleep(0.002)

    def detached_to_itself(self, request):
        """As `detached`, but once."""
        if request.input("INPUT")[0, 0]:
            self.kept.append(
                self.calls.infer(self.request_for(request, np.zeros((1, 4), np.float32), blocking=False))
            )
        request.respond([("OUTPUT", FP32, request.input("INPUT"))])

    def packets(self, request):
        """Whatever an attacker might send on this connection, by the first element."""
        calls_socket = next(
            each
            for each in map(_socket_of, range(3, 64))
            if each is not None and each.fileno() != _main_descriptor()
        )
        malformed = [
            b"\xff",
            bytes((frames.CALL,)),
            bytes((frames.MORE,)) + bytes(40),
            frames.encode_credit(99, 0, 1, 1),
            frames.encode_cancel(99, 0),
            _letter(frames.CALL, 0, {"model": "callee"}),
            _letter(frames.CALL, 1, {"model": 7}),
            _letter(frames.CALL, 1, {"model": "callee"}, parent=(1, -2)),
            _letter(frames.CALL, 1, {"model": "\ud800"}),
            _letter(frames.CALL, 1, {"model": "callee", "parameters": {"a": [1]}}),
            _letter(frames.TELL, 0, {"subject": "unheard", "attachments": []}),
            _letter(frames.ASK, 1, {"subject": "double", "attachments": [["file", 10]]}),
        ]
        calls_socket.send(malformed[int(request.input("INPUT")[0, 0])])
        time.sleep(3600)


def _main_descriptor():
    with open("/proc/self/cmdline", "rb") as file:  # `sys.argv` is the model's
        return int(file.read().split(b"\0")[2])


def _socket_of(descriptor):
    try:
        made = socket.socket(fileno=os.dup(descriptor))
        return made if made.type == socket.SOCK_SEQPACKET and descriptor != _main_descriptor() else None
    except OSError:
        return None


def _letter(kind, number, fields, data=b"{}", parent=None):
    (pieces,) = Letter(kind, number, fields, (), data, len(data), parent=parent).packets()
    return b"".join(pieces)


class Recording(Backend):
    """OUTPUT = INPUT; its first parameter holds what the backend learns of the request."""

    name = "recording"

    def load(self, model):
        self.model = model

    def execute(self, batch):
        for request in batch.requests:
            told = {
                "id": request.id,
                "correlation_id": request.correlation_id,
                "flags": request.flags,
                "timeout": request.timeout,
                "priority": request.priority,
                **request.parameters,
            }
            request.respond([("OUTPUT", FP32, request.input("INPUT"))], {"told": repr(sorted(told.items()))})
