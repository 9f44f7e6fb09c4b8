"""A backend whose tensors lie on a GPU, for workers whose driver is the stand-in of `fake_gpu`."""

import json
import os
from pathlib import Path

import numpy as np

from actors.values.datatypes import DataType
from engine.worker.backends.base import Backend
from engine.worker.devices import cuda
from engine.worker.devices.arrays import DeviceArray


class Allocation:
    """Device memory of the model's own."""

    def __init__(self, device, data):
        self.device = device
        self.address = cuda.driver().allocate(device, max(1, len(data)))
        host = np.frombuffer(data, np.uint8)
        cuda.driver().copy_to_device(device, host.ctypes.data, self.address, len(data))

    def __del__(self):
        cuda.driver().free(self.device, self.address)


class OnDevice(Backend):
    """OUTPUT = 2 × INPUT, on the GPU; WHERE has a row for each of INPUT: 1 if that lay on the GPU, else 0.

    The parameters say how: with `stacked`, all requests are answered together; with `host`, OUTPUT is in host
    memory, else on GPU `device` (the instance's); with `twice`, the first request is answered once more, with
    zeros, after the whole batch.
    """

    name = "on_device"
    device_tensors = True

    def load(self, model):
        self.model = model

    def execute(self, batch):
        self.model.log("verbose", json.dumps([sorted(batch.device_inputs), sorted(batch.device_outputs)]))
        if len(batch.requests) == 1:
            assert batch.device_outputs == batch.requests[0].device_outputs
        if "stacked" in self.model.parameters:
            batch.respond(self.outputs(batch.stacked("INPUT"), float("INPUT" in batch.device_inputs)))
            if "twice" in self.model.parameters:
                first = batch.requests[0]
                first.respond(self.outputs(0 * first.input("INPUT"), 0.0))
            return
        for request in batch.requests:
            found = request.device_input("INPUT")
            values = request.input("INPUT")
            if found is not None:
                assert np.array_equal(found.to_host(), values)
                assert found.shape == values.shape
            request.respond(self.outputs(values, float(found is not None)))

    def outputs(self, values, where):
        doubled = np.ascontiguousarray(2 * values, "<f4")
        output: np.ndarray | DeviceArray = doubled
        if "host" not in self.model.parameters:
            device = int(self.model.parameters.get("device", self.model.device_id))
            owner = Allocation(device, doubled.tobytes())
            output = DeviceArray(owner, owner.address, doubled.shape, DataType.FP32, device_id=device)
        rows = np.full((len(values), 1), where, "<f4")
        return [("OUTPUT", DataType.FP32, output), ("WHERE", DataType.FP32, rows)]


class Reading(OnDevice):
    """The same by a backend that leaves everything to `feeds`."""

    name = "reading"

    def execute(self, batch):
        batch.respond(self.outputs(batch.feeds()["INPUT"], 0.0))


class Lazy(OnDevice):
    """It looks at a request's input when the next batch has come."""

    name = "lazy"

    def execute(self, batch):
        for request in vars(self).pop("kept", ()):
            try:
                request.input("INPUT")
            except RuntimeError as error:
                self.model.log("info", f"late: {error}")
        self.kept = list(batch.requests)
        batch.respond(self.outputs(np.zeros((batch.rows, 4), "<f4"), 0.0))


class Losing(OnDevice):
    """The GPU is lost before it reads its inputs, or, with `late`, before it gives its outputs."""

    name = "losing"

    def execute(self, batch):
        mark = Path(os.environ["FAKE_CUDA"], f"lost.{self.model.device_id}")
        outputs = self.outputs(batch.stacked("INPUT"), 0.0) if "late" in self.model.parameters else None
        mark.touch()
        try:
            if outputs is None:
                values = batch.stacked("INPUT")
                assert not values.any()
                outputs = [("OUTPUT", DataType.FP32, values), ("WHERE", DataType.FP32, values[:, :1])]
            batch.respond(outputs)
        finally:
            mark.unlink()
