"""What a simulated worker does, seen from inside: it speaks the frames of `actors.wire.frames`.

It works over real sockets and real shared memory. It may take its time, hang, die in four ways, talk nonsense,
or refuse to load.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import trio

from actors.seams.bell import Bell
from actors.serving.policy.retries import DeathReason, Exit, Oom, Signal
from actors.serving.probing import PROBE_ID
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, InvalidArgument
from actors.values.requests import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START
from actors.wire import frames
from actors.wire.arena import INPUT, OUTPUT, ControlPage, Segment, align
from actors.wire.batch_frames import Answer, Execute, Part, Placed, Result
from chaos.simulation.world.engines import PACE, SimulatedEngine, Window, refused
from chaos.simulation.world.models import MODELS, VERSION_STEP, Model, parts_of, width_of
from chaos.simulation.world.workers import POISON, RAISE, SimulatedWorker, Workers, World

Array = np.ndarray[Any, Any]

_DEATHS: Final[Mapping[str, DeathReason]] = {
    "segv": Signal(signal.SIGSEGV),
    "killed": Signal(signal.SIGKILL),
    "oom": Oom(),
    "exit": Exit(0),
}


class _Slot:
    def __init__(self) -> None:
        self.segments: list[Segment | None] = [None, None]
        self.used = 0

    def side(self, side: int) -> Segment:
        segment = self.segments[side]
        assert segment is not None
        return segment


async def live(worker: SimulatedWorker, sock: socket.socket, workers: Workers, world: World) -> None:
    """Do what a worker does until it is told to stop. Raises OSError if the server has gone."""
    await _Process(worker, sock, workers, world).run()


class _Process:
    """What a worker does from its LOAD to its end."""

    def __init__(self, worker: SimulatedWorker, sock: socket.socket, workers: Workers, world: World) -> None:
        self._worker = worker
        self._sock = sock
        self._workers = workers
        self._world = world
        self._slots: list[_Slot] = []
        self._grown = Bell()
        self._windows: dict[tuple[int, int], Window] = {}
        self._sums: dict[int, int] = {}
        self._model: Model
        self._version = 0
        self._control: ControlPage
        self._nursery: trio.Nursery
        self._inputs: list[str] = []
        self._calls: socket.socket | None = None
        self._engine: SimulatedEngine | None = None

    async def run(self) -> None:
        """Load, then execute until told to stop. Raises OSError if the server has gone."""
        try:
            await self._run()
        finally:
            if self._calls is not None:
                self._calls.close()
            self._slots.clear()

    async def _run(self) -> None:
        packet, descriptors = await self._receive()
        if not packet:
            return
        lanes = self._begin(descriptors)
        jobs, todo = trio.open_memory_channel[Execute](1000)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if not await self._load():
                return
            nursery.start_soon(self._read, jobs, nursery.cancel_scope)
            async with trio.open_nursery() as executing:
                for lane in range(lanes):
                    executing.start_soon(self._execute_all, lane, todo)
            nursery.cancel_scope.cancel()

    def _begin(self, descriptors: Sequence[int]) -> int:
        control_fd, letter, *calls = descriptors
        if calls:
            self._calls = socket.socket(fileno=calls[0])
        with open(letter, "rb") as file:
            body: dict[str, Any] = json.load(file)
        control = Segment(control_fd, body["control_size"])
        control.close_fd()
        self._control = ControlPage(control, body["lanes"], body["cancellable"])
        self._slots = [_Slot() for _ in range(body["slots"])]
        fields = body["model"]
        self._model = MODELS[fields["name"]]
        self._version = fields["version"]
        self._inputs = [each["name"] for each in fields["inputs"]]
        return int(body["lanes"])

    async def _load(self) -> bool:
        troubles = self._workers.load_troubles.get(self._model.name)
        trouble = troubles.popleft() if troubles else ""
        await self._worker.pause(self._world.chance.uniform(0.01, 0.2) if trouble != "dawdle" else 3.0)
        if trouble in ("refuse", "die"):
            self._workers.journal.load_failures.setdefault(self._model.name, []).append(trio.current_time())
        if trouble == "die":
            self._worker.die(Signal(signal.SIGSEGV))
            await trio.sleep_forever()
        if trouble == "refuse":
            await self._send(
                frames.encode_json(frames.LOAD_FAILED, {"message": "no such weights", "traceback": ""})
            )
            return False
        facts = {}
        if self._model.kind == "language":
            pace = self._world.chance.choice(PACE)
            self._engine = SimulatedEngine(self._worker, pace, self._send, self._generated)
            self._nursery.start_soon(self._engine.run)
            facts = dict(self._engine.facts())
        await self._send(frames.encode_json(frames.READY, {"asks": False, "unapplied": [], "facts": facts}))
        self._worker.loaded = True
        return True

    # -- packets ---------------------------------------------------------------------------------------------

    async def _receive(self) -> tuple[bytes, Sequence[int]]:
        while True:
            try:
                packet, ancillary, _, _ = self._sock.recvmsg(frames.MAX_FRAME, 1024)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)
                continue
            descriptors = array("i")
            for _, _, data in ancillary:
                descriptors.frombytes(data)
            return packet, list(descriptors)

    async def _send(self, packet: bytes) -> None:
        while True:
            try:
                self._sock.send(packet)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock)
            else:
                return

    async def _read(self, jobs: trio.MemorySendChannel[Execute], life: trio.CancelScope) -> None:
        while True:
            await self._worker.pause(0)
            packet, descriptors = await self._receive()
            if not packet:
                life.cancel()
                return
            if packet[0] == frames.STOP:
                jobs.close()
            elif packet[0] == frames.SEGMENT:
                self._replace(packet, descriptors)
            elif packet[0] == frames.PROBE:
                await self._send(frames.encode_probed(ready=True))
            elif packet[0] == frames.CREDIT:
                self._credit(packet)
            elif packet[0] == frames.CANCEL:
                window = self._windows.get(frames.decode_cancel(packet))
                if window is not None:
                    window.cancelled = True
                    window.changed.ring()
            else:
                jobs.send_nowait(self._job(packet))

    def _job(self, packet: bytes) -> Execute:
        if packet[0] == frames.SPILLED:
            slot, side, offset, nbytes = frames.decode_spilled(packet)
            packet = bytes(self._slots[slot].side(side).view[offset : offset + nbytes])
        return Execute.decode(packet)

    def _replace(self, packet: bytes, descriptors: Sequence[int]) -> None:
        index, side, size = frames.decode_segment(packet)
        fresh, slot = Segment(descriptors[0], size), self._slots[index]
        os.close(descriptors[0])
        old = slot.segments[side]
        if side == OUTPUT and old is not None and slot.used:
            fresh.view[: slot.used] = old.view[: slot.used]
        slot.segments[side] = fresh
        self._grown.ring()

    def _credit(self, packet: bytes) -> None:
        batch, index, parts, nbytes = frames.decode_credit(packet)
        window = self._windows.get((batch, index))
        if window is not None:
            window.parts -= parts
            window.nbytes -= nbytes
            window.changed.ring()

    # -- executing -------------------------------------------------------------------------------------------

    async def _execute_all(self, lane: int, todo: trio.MemoryReceiveChannel[Execute]) -> None:
        async for job in todo:
            slot = self._slots[job.slot]
            if self._world.chance.random() < 0.1:
                # The server may take the request back until the next line.
                await self._worker.pause(0.002)
            if not self._control.begin(lane, job.batch_id, job.slot):
                self._world.note("worker", self._worker.pid, "passes over", self._model.name, job.batch_id)
                await self._send(frames.encode_skipped(job.slot, job.batch_id))
                continue
            slot.used = 0
            told = job.metadata or [{}] * len(job.rows)
            ids = [str(each.get("id", "")) for each in told]
            self._worker.executing[lane] = ids
            for each in ids:
                self._workers.journal.begun[self._model.name, each] += 1
            self._world.note("worker", self._worker.pid, "executes", self._model.name, job.batch_id, ids)
            result = await self._answer(job, told, ids)
            await self._send(result.encode())
            for each in ids:
                self._workers.journal.ended[self._model.name, each] += 1
            if self._world.chance.random() < 0.1:
                # Its answer is out, and its lane still says that it executes.
                await self._worker.pause(0.001)
            self._control.end(lane)
            self._worker.executing.pop(lane, None)

    async def _answer(self, job: Execute, told: Sequence[Mapping[str, Any]], ids: Sequence[str]) -> Result:
        misdeeds = self._workers.misdeeds.get(self._model.name)
        clients = any(ids) and not any(each == PROBE_ID for each in ids)
        misdeed = misdeeds.popleft() if misdeeds and clients else None
        seconds = self._world.chance.choice((0.0, 0.001, 0.005, 0.02, 0.05))
        await self._worker.pause(seconds if misdeed is None else misdeed.after)
        poison = next(
            (each["parameters"][POISON] for each in told if POISON in each.get("parameters", {})), None
        )
        if poison is not None:
            await self._misbehave(str(poison), job, ids)
        if misdeed is not None:
            await self._misbehave(misdeed.what, job, ids)
        if misdeed is not None and misdeed.what == "raise":
            return self._refused(job, ids, range(len(ids)))
        failing = [index for index, each in enumerate(told) if RAISE in each.get("parameters", {})]
        if misdeed is not None and misdeed.what == "raise_member":
            failing.append(self._world.chance.randrange(len(ids)))
        return await self._computed(job, told, ids, failing)

    async def _misbehave(self, what: str, job: Execute, ids: Sequence[str]) -> None:
        self._world.note("worker", self._worker.pid, "misbehaves:", what)
        self._worker.misbehaved = True
        if what in _DEATHS:
            self._worker.die(_DEATHS[what])
        match what:
            case "close":
                self._sock.shutdown(socket.SHUT_RDWR)
            case "garbage":
                await self._send(bytes((frames.RESULT,)) + self._world.chance.randbytes(40))
            case "garbage_after":  # the lane says that all is well
                for lane, executing in list(self._worker.executing.items()):
                    if executing == ids:
                        self._control.end(lane)
                await self._send(bytes((frames.RESULT,)) + self._world.chance.randbytes(40))
            case "wrong_batch":
                wrong = Result(job.batch_id + 1000, job.slot, len(job.rows), (0, 0, 0), stacked=[])
                await self._send(wrong.encode())
            case "hang":
                for each in ids:
                    self._workers.journal.hung_under[each] += 1
            case "slow":
                await self._worker.pause(0.5)
                return
            case "raise" | "raise_member":
                return
        await trio.sleep_forever()

    def _refused(self, job: Execute, ids: Sequence[str], failing: Sequence[int]) -> Result:
        for index in failing:
            self._workers.journal.raised[ids[index]] += 1
        answers = [Answer(code=ErrorCode.INTERNAL, message="the model raised") for _ in ids]
        return Result(job.batch_id, job.slot, len(ids), (0, 1000, 0), answers=answers)

    async def _computed(
        self, job: Execute, told: Sequence[Mapping[str, Any]], ids: Sequence[str], failing: Sequence[int]
    ) -> Result:
        if self._engine is not None:
            return self._generate(job, self._engine)
        batched = self._model.kind in ("batched", "sequence")
        values = self._input(job, "VALUE")
        if self._model.kind == "decoupled":
            return await self._stream(job, int(values[0]))
        if self._model.kind == "sequence":
            answers = self._added_up(job, values, told)
        else:
            answers = [self._model.answer(int(value)) for value in values]
        rows = np.array([value + VERSION_STEP * self._version for value in answers], dtype="<i4")
        if self._model.wide:
            rows = np.repeat(rows, width_of(int(values[0])))
        if not failing:
            placed = await self._placed(job, rows, (len(rows), 1) if batched else (len(rows),))
            return Result(job.batch_id, job.slot, len(ids), (0, 1000, 0), stacked=[placed])
        return await self._one_by_one(job, rows, ids, failing, batched=batched)

    async def _one_by_one(
        self, job: Execute, rows: Array, ids: Sequence[str], failing: Sequence[int], *, batched: bool
    ) -> Result:
        found: list[Answer] = []
        start = 0
        for index, count in enumerate(job.rows):
            if index in failing:
                self._workers.journal.raised[ids[index]] += 1
                found.append(Answer(code=ErrorCode.INTERNAL, message="the model raised"))
            else:
                part = rows[start : start + count] if batched else rows
                found.append(
                    Answer([await self._placed(job, part, (len(part), 1) if batched else (len(part),))])
                )
            start += count
        return Result(job.batch_id, job.slot, len(ids), (0, 1000, 0), answers=found)

    def _taken(self, job: Execute, name: str) -> bytes:
        for each in job.inputs:
            if self._inputs[each.index] == name:
                return bytes(self._slots[job.slot].side(INPUT).view[each.offset : each.offset + each.nbytes])
        raise KeyError(name)

    def _input(self, job: Execute, name: str) -> Array:
        return np.frombuffer(self._taken(job, name), dtype="<u8" if name == "CORRID" else "<i4")

    def _added_up(self, job: Execute, values: Array, told: Sequence[Mapping[str, Any]]) -> list[int]:
        """Add up the values of each sequence, by the control inputs; the metadata must say the same."""
        starts, readies = self._input(job, "START"), self._input(job, "READY")
        ends, ids = self._input(job, "END"), self._input(job, "CORRID")
        sums = []
        for index, value in enumerate(values):
            if not readies[index]:
                sums.append(0)
                continue
            sequence, flags = int(ids[index]), int(told[index].get("flags", 0))
            if told[index].get("id") != PROBE_ID and (
                bool(flags & FLAG_SEQUENCE_START),
                bool(flags & FLAG_SEQUENCE_END),
                sequence,
            ) != (
                bool(starts[index]),
                bool(ends[index]),
                told[index].get("correlation_id"),
            ):
                raise AssertionError(f"controls of sequence {sequence} contradict {told[index]}")
            total = int(value) if starts[index] else self._sums.get(sequence, -(10**6)) + int(value)
            self._sums[sequence] = total
            self._worker.sequences.add(sequence)
            if ends[index]:
                del self._sums[sequence]
                self._worker.sequences.discard(sequence)
            sums.append(total)
        return sums

    async def _placed(self, job: Execute, rows: Array, shape: tuple[int, ...]) -> Placed:
        slot, data = self._slots[job.slot], rows.tobytes()
        offset = align(slot.used)
        if offset + len(data) > slot.side(OUTPUT).size:
            await self._send(frames.encode_room(job.slot, job.batch_id, offset + len(data)))
            while offset + len(data) > slot.side(OUTPUT).size:
                await self._grown.next_ring()
        slot.used = offset + len(data)
        slot.side(OUTPUT).view[offset : slot.used] = data
        return Placed("ANSWER", DataType.INT32, shape, offset, len(data))

    # -- decoupled models ------------------------------------------------------------------------------------

    async def _stream(self, job: Execute, value: int) -> Result:
        window = self._windows[job.batch_id, 0] = Window()
        window.cancelled = self._control.cancelled(job.slot, 0)
        late = self._world.chance.random() < 0.5  # answers come after the execution is over
        if late:
            self._nursery.start_soon(self._parts, job, window, value)
            self._worker.executing[-job.batch_id] = [str(each.get("id", "")) for each in job.metadata or ()]
        else:
            await self._parts(job, window, value)
        return Result(job.batch_id, job.slot, 1, (0, 1000, 0), answers=[Answer(open=True)])

    async def _parts(self, job: Execute, window: Window, value: int) -> None:
        for each in parts_of(value):
            while window.full and not window.cancelled:
                await window.changed.next_ring()
            if window.cancelled:
                break
            data = np.array([each + VERSION_STEP * self._version], dtype="<i4").tobytes()
            window.parts += 1
            window.nbytes += len(data)
            answer = Answer([Placed("ANSWER", DataType.INT32, (1,), 0, len(data))])
            for packet in Part(job.batch_id, 0, answer, data, len(data), final=False).packets():
                await self._send(packet)
            await trio.sleep(self._world.chance.choice((0.0, 0.0, 0.003)))
        del self._windows[job.batch_id, 0]
        self._worker.executing.pop(-job.batch_id, None)
        for packet in Part(job.batch_id, 0, None, b"", 0, final=True).packets():
            await self._send(packet)

    # -- language models -------------------------------------------------------------------------------------

    def _generate(self, job: Execute, engine: SimulatedEngine) -> Result:
        ids, told = self._taken(job, "input_ids"), self._taken(job, "sampling")
        sampling = json.loads(told[4:])  # the text behind its length, which takes four bytes
        obeyed = engine.obey(sampling)
        if obeyed is not None:
            return Result(job.batch_id, job.slot, 1, (0, 1000, 0), answers=[obeyed])
        window = self._windows[job.batch_id, 0] = Window()
        window.cancelled = self._control.cancelled(job.slot, 0)
        try:
            engine.begin(job.batch_id, window, np.frombuffer(ids, "<i4").tolist(), sampling)
        except InvalidArgument as error:
            del self._windows[job.batch_id, 0]
            return Result(job.batch_id, job.slot, 1, (0, 1000, 0), answers=[refused(error)])
        self._worker.executing[-job.batch_id] = [str(each.get("id", "")) for each in job.metadata or ()]
        return Result(job.batch_id, job.slot, 1, (0, 1000, 0), answers=[Answer(open=True)])

    def _generated(self, batch: int) -> None:
        del self._windows[batch, 0]
        self._worker.executing.pop(-batch, None)
