"""A worker process whose driver is the stand-in of `fake_gpu`, and the server's end of its connection."""

import contextlib
import os
import socket
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np

from actors.serving.instances.launching import model_fields
from actors.values.datatypes import DataType
from actors.values.specs import InputSpec, InstanceSpec, OutputSpec
from actors.values.tensors import element_count
from actors.wire import frames
from actors.wire.arena import INPUT, OUTPUT, ControlPage, Segment
from actors.wire.batch_frames import Execute, GatheredInput, Result
from actors.wire.device_spans import DEVICE, tell_devices
from tests.support.model_doubles import make_spec

ROOT = Path(__file__).parents[2]
ENTRY = ROOT / "engine" / "worker" / "__main__.py"
REQUESTS = 16


class Asked:
    """One request: `rows` of INPUT on the host, or the shape of what lies at `place` on the GPU."""

    def __init__(self, rows=None, *, shape=None, place=None, region=None, wanted=(), target=None, names=()):
        self.rows = None if rows is None else np.asarray(rows, "<f4")
        self.shape = tuple(shape) if self.rows is None else self.rows.shape
        told = tell_devices(
            {} if place is None else {"INPUT": place},
            wanted,
            {} if target is None else {"OUTPUT": target},
            {} if region is None else {"INPUT": region},
        )
        self.metadata: dict[str, object] = {"outputs": list(names)} if names else {}
        if told:
            self.metadata[DEVICE] = told


class Worker:
    """Batches go out and results come in, one after the other."""

    def __init__(self, environ, backend, *, stack, lanes=1, max_batch_size=64, ragged=False, **parameters):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock = stack.enter_context(ours)
        ours.settimeout(60)
        support = str(Path(__file__).parent)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(ENTRY), str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **environ, "PYTHONPATH": support},
            )
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)
        self.spec = make_spec(
            max_batch_size=max_batch_size,
            instances=(InstanceSpec(name="model_0", lanes=lanes),),
            inputs=(InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,), ragged=ragged),),
            outputs=(
                OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(-1,)),
                OutputSpec(name="WHERE", datatype=DataType.FP32, dims=(1,)),
            ),
            parameters=parameters,
        )
        self.buffers = {}  # device, nbytes, handle by number, as they were told
        self.told = 0
        self.logs = []
        self.result = None
        self._batches = 0
        self._load(backend, lanes)

    def _load(self, backend, lanes):
        slots = 1
        page = Segment.create(ControlPage.size_for(slots, REQUESTS))
        self.control = ControlPage(page, lanes, REQUESTS)
        fields = model_fields(self.spec, self.spec.instances[0])
        body = {
            "backend": f"device_backends:{backend}",
            "model": fields,
            "limits": {"open_files": 256},
            "lanes": lanes,
            "slots": slots,
            "cancellable": REQUESTS,
            "control_size": page.size,
        }
        text = frames.encode_json(0, body)[1:]
        letter = Segment.create(len(text))
        letter.view[:] = text
        self._send(bytes((frames.LOAD,)), page.fd, letter.fd)
        page.close_fd()
        letter.close_fd()
        letter.close()
        said = self._read_until(frames.READY, frames.LOAD_FAILED)
        if said[0] == frames.LOAD_FAILED:
            raise RuntimeError(frames.decode_json(said)["message"])
        self.segments = [Segment.create(1 << 20) for _ in (INPUT, OUTPUT)]
        for side in (INPUT, OUTPUT):
            segment = self.segments[side]
            self._send(frames.encode_segment(0, side, segment.size), segment.fd)
            segment.close_fd()

    def _send(self, packet, *descriptors):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
        self._sock.sendmsg([packet], rights)

    def _read_until(self, *kinds):
        while True:
            packet = self._sock.recv(frames.MAX_FRAME)
            assert packet, "the worker has ended"
            if packet[0] in kinds:
                return packet
            if packet[0] == frames.EXPORTED:
                number, *buffer = frames.decode_exported(packet)
                self.buffers[number] = buffer
                self.told += 1
            elif packet[0] == frames.LOG:
                self.logs.append(frames.decode_json(packet)["message"])
            else:
                raise AssertionError(packet)

    def run(self, *asked, cancel=()):
        """Execute one batch; return each request's answer.

        That is an `Answer` that is an error, or the outputs by name: an array, or what says where it is.
        """
        self._batches += 1
        rows = [each.shape[0] if self.spec.max_batch_size else 1 for each in asked]
        job = Execute(self._batches, 0, rows, [self._gathered(asked)], self._metadata(asked))
        self.control.offer(0, len(asked))
        for index in cancel:
            self.control.cancel(0, index)
        self._send(job.encode())
        self.result = Result.decode(self._read_until(frames.RESULT))
        if self.result.stacked is not None:
            return [
                {placed.name: self._stacked(placed, rows, index) for placed in self.result.stacked}
                for index in range(len(asked))
            ]
        return [
            answer if answer.code is not None else {each.name: self._array(each) for each in answer.outputs}
            for answer in self.result.answers or ()
        ]

    @staticmethod
    def _metadata(asked):
        each = [one.metadata for one in asked]
        return each if any(each) else None

    def _gathered(self, asked):
        sizes = [4 * element_count(one.shape) for one in asked]
        on_device = asked[0].rows is None
        start = 0
        for one, size in zip(asked, sizes, strict=True):
            if not on_device:
                self.segments[INPUT].view[start : start + size] = one.rows.tobytes()
            start += size
        if len({one.shape[1:] for one in asked}) == 1:
            shape = (sum(one.shape[0] for one in asked), *asked[0].shape[1:])
            return GatheredInput(0, shape, 0, sum(sizes), on_device=on_device)
        parts = list(zip([one.shape for one in asked], sizes, strict=True))
        return GatheredInput(0, None, 0, sum(sizes), parts, on_device=on_device)

    def _array(self, placed):
        if placed.written or placed.on_device:
            return placed
        data = bytes(self.segments[OUTPUT].view[placed.offset : placed.offset + placed.nbytes])
        return np.frombuffer(data, "<f4").reshape(placed.shape)

    def _stacked(self, placed, rows, index):
        whole = self._array(placed)
        if placed.on_device:
            return whole
        start = sum(rows[:index])
        return whole[start : start + rows[index]]

    def release(self, number):
        """Tell that nothing reads a buffer any longer."""
        self._send(frames.encode_released(number))

    def stop(self):
        """Have it end by itself."""
        self._send(bytes((frames.STOP,)))
        while self._sock.recv(frames.MAX_FRAME):
            pass
        return self.process.wait(30)


@contextlib.contextmanager
def worker(environ, backend="OnDevice", **options):
    """Run a worker, and end it."""
    with contextlib.ExitStack() as stack:
        yield Worker(environ, backend, stack=stack, **options)
