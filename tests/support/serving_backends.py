"""Backends for `engine.worker.serve` on a thread: what a batch's first element says happens."""

import sys

from actors.values.datatypes import DataType
from engine.worker.backends.base import Backend


class Odd(Backend):
    """OUTPUT = INPUT, unless the input asks it to leave or to answer with something odd."""

    name = "odd"

    def load(self, model):
        self.model = model

    def execute(self, batch):
        cue = batch.stacked("INPUT")[0, 0]
        if cue == 1.0:
            sys.exit(3)
        for request in batch.requests:
            parameters = None
            if cue == 2.0:
                parameters = {"when": object()}
            if cue == 3.0:
                parameters = {"story": "x" * (17 * 1024 * 1024)}
            request.respond([("OUTPUT", DataType.FP32, request.input("INPUT"))], parameters)
