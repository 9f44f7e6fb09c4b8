"""A decoupled backend that answers as its parameters say.

The worker process imports it through PYTHONPATH.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import Backend, SenderClosed

FP32 = DataType.FP32


class Streaming(Backend):
    """Sends as many responses to a request as its first element says.

    The parameter `mode` names the method that sends them.
    """

    name = "streaming"

    def load(self, model):
        self.answer = getattr(self, model.parameters.get("mode", "in_threads"))
        directory = model.parameters.get("directory")
        self.directory = Path(directory) if directory else None
        self.kept = []

    def execute(self, batch):
        self.answer(batch)

    def in_threads(self, batch):
        """Long after `execute` has returned, where need be."""
        for request in batch.requests:
            threading.Thread(target=self.count, args=(request, request.sender()), daemon=True).start()

    def at_once(self, batch):
        """Before `execute` returns."""
        for request in batch.requests:
            self.count(request, request.sender())

    def count(self, request, sender):
        columns = request.input("INPUT").shape[1]
        for number in range(int(request.input("INPUT")[0, 0])):
            if sender.cancelled():
                self.note(f"cancelled-{request.id}")
                break
            sender.send([("OUTPUT", FP32, np.full((1, columns), number, np.float32))])
            self.note("sent", f"{request.id} {number}\n")
        sender.finish()

    def note(self, name, line=""):
        """Leave a trace for a test that looks for one."""
        if self.directory is not None:
            with (self.directory / name).open("a") as file:
                file.write(line)

    def final_with_the_last(self, batch):
        for request in batch.requests:
            last = int(request.input("INPUT")[0, 0]) - 1
            for number in range(last + 1):
                output = ("OUTPUT", FP32, np.full((1, 4), number, np.float32))
                request.sender().send([output], {"number": number}, final=number == last)

    def as_others_do(self, batch):
        batch.respond([("OUTPUT", FP32, batch.stacked("INPUT") * 2)])

    def both_ways(self, batch):
        """The first request by a sender, the others by one array."""
        batch.requests[0].sender().finish()
        self.as_others_do(batch)

    def with_errors(self, batch):
        for request in batch.requests:
            sender = request.sender()
            for number in range(int(request.input("INPUT")[0, 0])):
                sender.fail(ErrorCode.UNAVAILABLE, f"not {number}", final=False)
            sender.fail(ErrorCode.INVALID_ARG, "and no more")
            try:
                sender.send([])
            except SenderClosed:
                self.note("refused")

    def letting_go(self, batch):
        for request in batch.requests:
            request.sender().send([("OUTPUT", FP32, np.zeros((1, 4), np.float32))])

    def raising(self, batch):
        self.kept += [request.sender() for request in batch.requests]
        raise ValueError("no such luck")

    def dying(self, batch):
        for request in batch.requests:
            self.kept.append(request.sender())
            self.kept[-1].send([("OUTPUT", FP32, np.zeros((1, 4), np.float32))])
        if batch.requests[0].input("INPUT")[0, 0] < 0:
            os.kill(os.getpid(), signal.SIGSEGV)

    def hanging(self, batch):
        """One response every 0.2 s, then none."""
        for request in batch.requests:
            sender = request.sender()
            self.kept.append(sender)
            threading.Thread(target=self.slowly, args=(request, sender), daemon=True).start()

    def slowly(self, request, sender):
        for _ in range(int(request.input("INPUT")[0, 0])):
            time.sleep(0.2)
            sender.send([("OUTPUT", FP32, np.zeros((1, 4), np.float32))])
