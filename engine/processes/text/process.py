"""A model's text worker as the server sees it: a process, and frames to and from it on a stream socket.

Nothing here holds the loop. What the socket does not take at once waits in a backlog, which a task of trio's
own sends in slices; a worker that lets too much wait is ended. Long reports are read in slices as well.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from actors.generation.texts import TextWorker, TextWorkerDied, TextWorkers
from actors.seams.threads import in_thread
from actors.serving.instances.output import OutputReader, Report
from actors.values.tensors import Buffer
from actors.wire.frames import FrameError
from actors.wire.text_frames import LARGEST, LENGTHS_BYTES, decode_head, encode, lengths
from engine.models.links import descriptors_in
from engine.processes.family import Family
from engine.processes.launch import Spawner
from engine.processes.mark import MARK

PROGRAM: Final = Path(__file__).parents[2] / "worker" / "text" / "__main__.py"

BACKLOG: Final = LARGEST
"""Bytes that may wait for a worker, beside the frame that is sent."""

MEMORY: Final = 8 * 1024**3
"""Bytes of address space that a text worker may take: 262,144 tokens take less than one GiB."""

_SLICE: Final = 256 * 1024  # bytes that are copied at a time: some 50 µs
_ENDS_WITHIN: Final = 2.0  # seconds, for a worker whose socket has ended


class TextLauncher(TextWorkers):
    """Launches the text workers of one model version."""

    def __init__(
        self,
        folder: str,
        *,
        model: str,
        environ: Mapping[str, str],
        report: Report,
        tools: str = "",
        reasoning: str = "",
        interpreter: str = sys.executable,
        memory: int = MEMORY,
        backlog: int = BACKLOG,
        spawner: Spawner | None = None,
    ) -> None:
        """Set up a launcher.

        `folder` has the tokenizer. `environ` is what workers inherit (`engine.processes.inheritance`).
        `report` is told what a worker prints. For `tools` and `reasoning` see `Choices` in `preparing`.
        `interpreter` must have tokenizers and jinja2. `memory`: bytes of address space, 0 without a limit.
        A worker that leaves more than `backlog` bytes unread is ended.
        """
        self._first = ["load", folder, {"tools": tools, "reasoning": reasoning}, memory]
        self._held = descriptors_in([Path(folder)])
        self._model = model
        self._environ = environ
        self._report = report
        self._most_waiting = backlog
        self._interpreter = interpreter
        self._spawner = spawner or Spawner()

    async def launch(self) -> TextWorker:
        """See `TextWorkers`."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                started = await self._spawner.run(functools.partial(self._start, theirs))
        except BaseException:
            ours.close()
            raise
        worker = TextProcess(*started, ours, self._report, self._most_waiting)
        worker.send(self._first)
        return worker

    def _start(self, theirs: socket.socket) -> tuple[subprocess.Popen[bytes], Family, int]:
        mark = secrets.token_hex(16)
        output, written = os.pipe2(os.O_CLOEXEC)
        try:
            process = subprocess.Popen(
                [self._interpreter, str(PROGRAM), str(theirs.fileno()), self._model],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                pass_fds=[theirs.fileno(), *self._held],
                env={**self._environ, MARK: mark},
                start_new_session=True,  # a terminal's Ctrl-C is for the server, which then drains
            )
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(written)
        return process, Family(process.pid, mark), output


class TextProcess(TextWorker):
    """One text worker. It is made on the loop."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        family: Family,
        output: int,
        sock: socket.socket,
        report: Report,
        backlog: int,
    ) -> None:
        self._process = process
        self._family = family
        self._pidfd = os.pidfd_open(process.pid)
        self._socket = sock
        self._socket.setblocking(False)
        self._output = OutputReader(output, report)
        self._backlog: deque[memoryview] = deque()
        self._most_waiting = backlog
        self._waiting = 0  # bytes of the backlog
        self._sending = False  # whether a task sends the backlog
        self._why = ""  # why it was ended, if the server did so
        self._held = bytearray()
        self._room = bytearray(_SLICE)
        self._closed = False
        self._buried = False
        self._gone = trio.Event()
        trio.lowlevel.spawn_system_task(self._watch)
        trio.lowlevel.spawn_system_task(self._pass_on_output)

    @property
    def pid(self) -> int:
        """See `TextWorker`."""
        return self._process.pid

    # -- orders

    def send(self, head: Sequence[Any], body: Buffer = b"") -> None:
        """See `TextWorker`."""
        if self._closed:
            return
        pieces = [memoryview(piece) for piece in encode(head, body)]
        size = sum(map(len, pieces))
        if not self._backlog:
            sent = self._try(pieces)
            if sent == size:
                return
            while sent >= len(pieces[0]):
                sent -= len(pieces.pop(0))
            pieces[0] = pieces[0][sent:]
        if self._waiting > self._most_waiting:
            self._end(f"it left {self._waiting} bytes of orders unread")
            return
        self._backlog.extend(pieces)
        self._waiting += sum(map(len, pieces))
        if not self._sending:
            self._sending = True
            trio.lowlevel.spawn_system_task(self._send_backlog)

    def _try(self, pieces: Sequence[memoryview]) -> int:
        """Send what the socket takes now; return how many bytes that was."""
        try:
            return self._socket.sendmsg(pieces)
        except OSError:
            # It has no room, or the worker has ended, and then `receive` says so.
            return 0

    async def _send_backlog(self) -> None:
        try:
            while self._backlog:
                await trio.lowlevel.wait_writable(self._socket)
                piece = self._backlog[0]
                with contextlib.suppress(BlockingIOError):
                    sent = self._socket.send(piece[:_SLICE])
                    self._waiting -= sent
                    self._backlog[0] = piece[sent:]
                if not self._backlog[0]:
                    self._backlog.popleft()
        except (OSError, trio.ClosedResourceError):
            self._backlog.clear()  # the worker has ended
            self._waiting = 0
        finally:
            self._sending = False

    # -- reports

    async def receive(self) -> tuple[list[Any], Buffer]:
        """See `TextWorker`."""
        await trio.lowlevel.checkpoint()
        while True:
            frame = self._frame()
            if frame is not None:
                return frame
            await self._read()

    def _frame(self) -> tuple[list[Any], Buffer] | None:
        """Return the next report that has come whole. Raises TextWorkerDied for what is none."""
        held = self._held
        if len(held) < LENGTHS_BYTES:
            return None
        try:
            head, body = lengths(held)
            start, end = LENGTHS_BYTES + head, LENGTHS_BYTES + head + body
            if len(held) < end:
                return None
            with memoryview(held) as view:
                found = decode_head(view[LENGTHS_BYTES:start]), bytes(view[start:end])
        except FrameError as error:
            self._end(f"it sent {error}")
            raise TextWorkerDied(self._said()) from error
        del held[:end]
        return found

    async def _read(self) -> None:
        while True:
            try:
                count = self._socket.recv_into(self._room)
            except BlockingIOError:
                await self._readable()
                continue
            except OSError:
                count = 0
            break
        if not count:
            await self._ended()
        with memoryview(self._room) as room:
            self._held += room[:count]
        if count == len(self._room):
            await trio.lowlevel.checkpoint()  # there is more of a long one

    async def _readable(self) -> None:
        try:
            await trio.lowlevel.wait_readable(self._socket)
        except trio.ClosedResourceError:
            raise TextWorkerDied(self._said()) from None

    async def _ended(self) -> None:
        """Raise TextWorkerDied, once the process has ended."""
        with trio.move_on_after(_ENDS_WITHIN):
            await self._gone.wait()
        raise TextWorkerDied(self._said())

    def _said(self) -> str:
        if self._why:
            return f"the text worker was ended: {self._why}"
        if self._closed:
            return "the text worker was closed"
        code = self._process.returncode
        if code is None:
            return "the text worker has closed its socket"
        return f"the text worker has ended ({f'signal {-code}' if code < 0 else f'exit status {code}'})"

    # -- the end

    def kill(self) -> None:
        """See `TextWorker`."""
        self._end("the server asked for it")

    def _end(self, why: str) -> None:
        self._why = self._why or why
        if not self._gone.is_set():
            self._family.kill()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def _watch(self) -> None:
        await trio.lowlevel.wait_readable(self._pidfd)
        self._process.poll()
        self._gone.set()

    async def close(self) -> None:
        """See `TextWorker`."""
        self._closed = True
        if self._buried:
            return
        with trio.CancelScope(shield=True):
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # it ends then
            with trio.move_on_after(_ENDS_WITHIN):
                await self._gone.wait()
            if not self._gone.is_set():
                self._end("it did not end when its socket did")
                await self._gone.wait()
            await in_thread(self._family.end)
            self._bury()

    def _bury(self) -> None:
        """Give back what it held. Idempotent, as several may wait for its end."""
        if not self._buried:
            self._buried = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
            trio.lowlevel.notify_closing(self._pidfd)
            os.close(self._pidfd)
            self._output.drain()
            self._output.close()

    async def _pass_on_output(self) -> None:
        with contextlib.suppress(trio.ClosedResourceError, OSError):
            await self._output.run()
