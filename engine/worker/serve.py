"""The worker's loop: load one model, run its batches, say what happened.

The main thread loads, then runs lane 0. Further lanes have a thread each, and any of them may send.
`engine.worker.feeds` says where frames come from. The same loop serves `tritium.isolation = "thread"`, where
it runs on a thread of the server.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from actors.values.errors import ErrorCode, TritiumError
from actors.wire import batch_frames, frames
from actors.wire.arena import OUTPUT, ControlPage, Segment
from actors.wire.batch_frames import Answer
from engine.worker.backends.base import Backend, LoadError, ModelInfo
from engine.worker.calls import Calls
from engine.worker.execution import WorkerBatch
from engine.worker.feeds import Feed, Incoming, make_feed, receive
from engine.worker.forking import when_forked
from engine.worker.joining import Joining, tensor_of
from engine.worker.parts import OpenRequests
from engine.worker.pointers import pointers_in
from engine.worker.regions import close_all
from engine.worker.slots import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from engine.worker.devices.batches import Devices

_TEXT_LIMIT = 12 * 1024  # characters of a reason; the traceback is cut to as much
_PHASE_LIMIT = 100  # characters
_JSON_LIMIT = frames.MAX_FRAME // 3  # bytes of a text in JSON; a frame has up to two of them
_LEVELS = ("info", "warning", "error", "verbose")


# Seconds from `sys.exit` in a model until the server is not left waiting for the exit itself.
_EXIT_PATIENCE = 1.0


class Stopped(Exception):
    """The server asked for an end, or went away, before the model was loaded."""


class Serving:
    """One worker's connection to its server, from `LOAD` to `STOP`."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_disconnect: Callable[[], None],
        before_load: Callable[[Mapping[str, Any]], None] = lambda body: None,
        unapplied: Sequence[str] = (),
    ) -> None:
        self._sock = sock
        self._on_disconnect = on_disconnect
        self._before_load = before_load  # runs between importing the backend class and loading the model
        self._unapplied = unapplied  # limits that this process should have imposed on itself, and could not
        self._slots: list[Slot] = []
        self._lanes = 1
        self._open: OpenRequests | None = None  # a decoupled model's
        self._calls: Calls | None = None
        self._devices: Devices | None = None  # of a backend that takes tensors on a GPU
        self._losing: Any = None  # what recognises errors of a GPU, if the instance is on one
        self._forked = False
        when_forked(self)

    def forked(self) -> None:
        """This is a process that the model has forked.

        The connection is the worker's; this process may send nothing on it but log lines.
        """
        self._forked = True
        if self._open is not None:
            self._open.forked = True

    def run(self) -> None:
        """Serve until `STOP` has been obeyed or the connection is gone."""
        try:
            self._run()
        finally:
            if self._calls is not None:
                self._calls.close()
            if self._devices is not None and not self._forked:
                self._devices.close()

    def _run(self) -> None:
        body = self._receive_load()
        try:
            backend, model = self._load(body)
        except Exception as error:  # noqa: BLE001
            # Any failure of the user's code or files is the load's reason.
            said = _describe(error)
            found = pointers_in(body["model"]["version_directory"])
            if found:
                said["message"] = f"{found} ({said['message']})"
            self._send(frames.encode_json(frames.LOAD_FAILED, said))
            return
        self._has_check = backend.has_check()
        self._feed = self._make_feed(backend, model)
        told = {"asks": self._has_check, "unapplied": list(self._unapplied), "facts": dict(backend.facts())}
        self._send(frames.encode_json(frames.READY, told))
        others = [
            threading.Thread(
                target=self._run_lane, args=(backend, model, lane), name=f"lane-{lane}", daemon=True
            )
            for lane in range(1, self._lanes)
        ]
        for thread in others:
            thread.start()
        self._run_lane(backend, model, 0)
        for thread in others:
            thread.join()
        backend.unload()

    def _make_feed(self, backend: Backend, model: ModelInfo) -> Feed:
        def probe() -> None:
            self._send(frames.encode_probed(ready=_says_ready(backend)))

        def probe_aside() -> None:
            # On a thread of its own: nothing must wait for a model's check, batches above all.
            threading.Thread(target=probe, name="probe", daemon=True).start()

        others: dict[int, Callable[[bytes], None]] = {}
        if model.decoupled:
            self._open = OpenRequests(self._send, model.name)
            others = {frames.CREDIT: self._open.on_credit, frames.CANCEL: self._open.on_cancel}
        if self._devices is not None:
            others[frames.RELEASED] = self._devices.on_released
            others[frames.UNSHARED] = self._devices.on_unshared
        incoming = Incoming(
            self._sock,
            self._slots,
            on_disconnect=self._on_disconnect,
            on_probe=probe_aside,
            others=others,
        )
        if self._open is not None:
            return make_feed(incoming, self._lanes, on_end=self._open.close)
        return make_feed(incoming, self._lanes, threaded=self._has_check)

    def _receive_load(self) -> dict[str, Any]:
        packet, descriptors = receive(self._sock)
        if not packet or packet[0] != frames.LOAD:
            self._on_disconnect()
            raise Stopped
        control_fd, body_fd, *calls_fd = descriptors
        if calls_fd:
            self._calls = Calls(socket.socket(fileno=calls_fd[0]))
        with open(body_fd, "rb") as file:
            body: dict[str, Any] = json.load(file)
        self._lanes = body["lanes"]
        control = Segment(control_fd, body["control_size"])
        control.close_fd()
        self._control = ControlPage(control, self._lanes, body["cancellable"])
        self._slots = [Slot(index) for index in range(body["slots"])]
        return body

    def _load(self, body: Mapping[str, Any]) -> tuple[Backend, ModelInfo]:
        module, _, name = body["backend"].partition(":")
        backend: Backend = getattr(importlib.import_module(module), name)()
        made: Any = None
        if backend.device_tensors:
            from engine.worker.devices.batches import Devices as made
        if body["model"]["kind"] == "GPU":
            # Now: once a model is loaded, our modules can't be found by their names.
            self._losing = importlib.import_module("engine.worker.devices.losing")
        self._before_load(body)
        model = self._model_info(body["model"], whole_batches=backend.whole_batches)
        if made is not None:
            self._devices = made(model, self._send)
        backend.load(model)
        return backend, model

    def _model_info(self, fields: Mapping[str, Any], *, whole_batches: bool) -> ModelInfo:
        fields = dict(fields)
        for side in ("inputs", "outputs"):
            fields[side] = [tensor_of(spec) for spec in fields[side]]
        return ModelInfo(
            **fields, log=self._log, calls=self._calls, phase=self._enter, whole_batches=whole_batches
        )

    def _run_lane(self, backend: Backend, model: ModelInfo, lane: int) -> None:
        try:
            self._execute(backend, model, lane)
        except BaseException as error:
            # `sys.exit` in a model, or a bug of ours. What this lane held would never be answered. So the
            # server is shown a broken connection, settles everything and starts another worker. A process
            # that is about to exit shows that itself, and with its status, unless its exit handlers take
            # long.
            if self._forked:
                raise
            if lane or not isinstance(error, SystemExit):
                self._break_off()
            else:
                timer = threading.Timer(_EXIT_PATIENCE, self._break_off)
                timer.daemon = True
                timer.start()
            raise

    def _break_off(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _execute(self, backend: Backend, model: ModelInfo, lane: int) -> None:
        feed, control, clock = self._feed, self._control, time.perf_counter_ns
        joining = Joining.of(model)
        devices = self._devices
        while True:
            job = feed.next()
            if job is None:
                return
            started = clock()
            if not control.begin(lane, job.batch_id, job.slot, started):
                close_all(job.descriptors)
                self._send(frames.encode_skipped(job.slot, job.batch_id))
                continue
            batch = WorkerBatch(
                job, self._slots[job.slot], model, control, self._ask_for_room, self._open, joining, devices
            )
            any_read = batch.read_regions()
            prepared = clock()
            try:
                if any_read:
                    backend.execute(batch)
            except TritiumError as error:
                batch.fail(error.code, error.message)
            except Exception as error:  # noqa: BLE001
                # The model's exception is its clients' answer, not a crash.
                batch.fail(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")
                self._log("error", f"execute raised\n{traceback.format_exc()}")
            if self._forked:
                _end_of_child()
            computed = clock()
            result = batch.finish()
            if self._losing is not None:
                self._look_at_gpu(self._losing, model, batch, result)
            result.input_ns = prepared - started
            result.infer_ns = computed - prepared - result.output_ns
            result.output_ns += clock() - computed
            self._send_result(result)
            if devices is not None:
                batch.release(result)
            control.end(lane)
            # What the model keeps of it is the model's. The rest must not wait for the next batch.
            del batch

    def _look_at_gpu(
        self, losing: Any, model: ModelInfo, batch: WorkerBatch, result: batch_frames.Result
    ) -> None:
        """Find out what a batch with errors says of the GPU. Raises SystemExit if it is lost to this process."""
        errors = [each.message for each in result.answers or () if each.code is ErrorCode.INTERNAL]
        if batch.short or any(map(losing.is_short, errors)):
            self._send(frames.encode_short(result.slot, result.batch_id))
        why = losing.why_lost(model.device_id) if errors else ""
        if why:
            self._log("error", f"GPU {model.device_id} is lost to this process: {why}; {errors[0]}")
            raise SystemExit(1)

    def _send_result(self, result: batch_frames.Result) -> None:
        packet = _encoded(result)
        if len(packet) > frames.MAX_FRAME:
            slot = self._slots[result.slot]
            offset = slot.place(len(packet), result.batch_id, self._ask_for_room)
            slot.segments[OUTPUT].view[offset : offset + len(packet)] = packet
            packet = frames.encode_spilled(result.slot, OUTPUT, offset, len(packet))
        self._send(packet)

    def _ask_for_room(self, slot: Slot, batch_id: int, nbytes: int) -> None:
        self._send(frames.encode_room(slot.index, batch_id, nbytes))
        self._feed.wait_grown(slot, nbytes)

    def _log(self, level: str, message: str) -> None:
        """Send a log line to the server, tagged with this worker; levels as in `ModelInfo.log`."""
        if level not in _LEVELS:
            raise ValueError(f"log level {level!r} is none of {', '.join(_LEVELS)}")
        self._send(
            frames.encode_json(frames.LOG, {"level": level, "message": _cut(message, 3 * _TEXT_LIMIT // 4)})
        )

    def _enter(self, phase: str) -> None:
        """Tell the server what the load is busy with now (`ModelInfo.phase`)."""
        self._send(frames.encode_json(frames.PHASE, {"phase": _cut(phase, _PHASE_LIMIT)}))

    def _send(self, packet: bytes) -> None:
        if self._forked and packet[0] != frames.LOG:
            return
        try:
            self._sock.send(packet)
        except OSError:
            self._on_disconnect()


def _end_of_child() -> None:
    """End a process that `execute` has forked and that has returned from it.

    Otherwise two processes would read on where one is expected.
    """
    sys.stderr.write("a process that `execute` had forked returned from it: it is ended here\n")
    sys.stderr.flush()
    os._exit(0)


def _encoded(result: batch_frames.Result) -> bytes:
    """Return the frame of a result; one of errors instead if the model gave more than a frame can say."""
    try:
        packet = result.encode()
        if len(packet) <= frames.MAX_SPILLED:
            return packet
        why = f"the answers' parameters and error texts take {len(packet)} bytes, more than {frames.MAX_SPILLED}"
    except Exception as error:  # noqa: BLE001  # 70,000 outputs, say: their number has 16 bits
        why = f"the answers can't be sent to the server: {type(error).__name__}: {error}"
    result.stacked = None
    result.answers = [Answer(code=ErrorCode.INTERNAL, message=why)] * result.requests
    return result.encode()


def _says_ready(backend: Backend) -> bool:
    try:
        return bool(backend.ready())
    except Exception:  # noqa: BLE001  # a check that can't be made is no yes
        traceback.print_exc()
        return False


def _describe(error: BaseException) -> dict[str, Any]:
    """Return the reason of a failed load.

    The operator's own mistake is told in plain words, anything else with its traceback.
    """
    if isinstance(error, LoadError):
        return {"message": _cut(str(error)), "traceback": ""}
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"message": _cut(f"{type(error).__name__}: {error}"), "traceback": _cut(text[-_TEXT_LIMIT:])}


def _cut(text: str, characters: int = _TEXT_LIMIT) -> str:
    """Return the beginning of `text` that a frame has room for.

    That is at most so many characters, and `_JSON_LIMIT` bytes of JSON.
    """
    text = text[:characters]
    nbytes = len(json.dumps(text))
    while nbytes > _JSON_LIMIT:
        text = text[: len(text) * _JSON_LIMIT // nbytes]
        nbytes = len(json.dumps(text))
    return text
