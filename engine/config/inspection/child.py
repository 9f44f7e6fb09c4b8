"""Asks a backend to complete a configuration, in a process that is thrown away afterwards.

Model code runs there: it may hang, print without end, crash or leave processes behind. The process gets a
deadline and a process group of its own, which is killed at the end in any case. Its output is bounded, and
the server's secrets are not in its environment.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors.values.specs import Runtime
from engine.models.links import descriptors_in
from engine.processes import users
from engine.processes.confining import command, identity
from engine.processes.inheritance import inherited
from engine.processes.runtime import interpreter, variables

PROGRAM: Final = Path(__file__).parents[2] / "worker" / "completion.py"

_LARGEST_ANSWER: Final = 16 * 1024 * 1024
_OUTPUT_KEPT: Final = 16 * 1024  # bytes from the end of what is printed
_CHUNK: Final = 64 * 1024
_ENVIRONMENT: Final = {"PYTHONDONTWRITEBYTECODE": "1"}  # a model's directory is read, and not written to


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of it.

    `config` is None if there is nothing to add, and if `error` or `broken` say why it failed.
    """

    config: Mapping[str, Any] | None = None
    error: str = ""  # the model's own words
    broken: str = ""  # ours, of a process that gave no answer
    log: tuple[tuple[str, str], ...] = ()  # (level, message)
    output: str = ""  # the end of what was printed


def ask(
    backend: str,
    model: Mapping[str, Any],
    *,
    timeout: float,
    environ: Mapping[str, str] | None = None,
    runtime: Runtime | None = None,
    confined: Mapping[str, str] | None = None,
    own_user: bool = False,
    files: Sequence[Path] = (),
) -> Answer:
    """Let the backend class `module:Class` complete the configuration in `model`.

    `model` has the fields of the backend's `ModelInfo`. The process has the variables `environ`; the default
    is those of a server that is told nothing else. It runs on the interpreter of `runtime`, the server's own
    by default. Its limits are those that the variables `confined` tell (`engine.processes.confining`), as the
    model's workers will have them; with `own_user` it has a user id of its own. `files` are the model's.
    The call waits for up to `timeout` seconds and never raises for what model code does. It must not run on
    an event loop.
    """
    request = json.dumps({"backend": backend, "model": model}).encode()
    runtime = runtime or Runtime()
    environ = {**(inherited(os.environ) if environ is None else environ), **_ENVIRONMENT}
    try:
        environ = {**variables(environ, runtime), **(confined or {})}
        with users.lent(own_user) as user:
            return _run(request, interpreter(runtime), environ, timeout, user, descriptors_in(files))
    except OSError as error:  # the program is missing, or there are no descriptors or processes left
        return Answer(broken=f"no process could be started for it: {error.strerror or error}")


def _run(
    request: bytes,
    python: str,
    environ: Mapping[str, str],
    timeout: float,
    user: int | None,
    held: Sequence[int],
) -> Answer:
    readable, writable = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            with _request_file(request) as stdin:
                line, told = command(PROGRAM, (str(writable), str(os.getpid())), environ, python)
                process = subprocess.Popen(
                    line,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(writable, *held),
                    env=told,
                    start_new_session=True,
                    **identity(user),
                )
        finally:
            os.close(writable)
        return _wait(process, readable, timeout)
    finally:
        os.close(readable)


def _request_file(content: bytes) -> Any:
    """Return a file that holds `content`, to be read from its beginning: a pipe would have to be fed."""
    file = os.fdopen(os.memfd_create("completion", os.MFD_CLOEXEC), "wb+")
    file.write(content)
    file.seek(0)
    return file


class _Heard:
    """What the child has said so far on two pipes, which are read without waiting."""

    def __init__(self, answer: int, output: int) -> None:
        self.answer = bytearray()
        self.output = bytearray()
        self._sinks = {answer: self.answer, output: self.output}
        for descriptor in self._sinks:
            os.set_blocking(descriptor, False)

    def read(self, descriptor: int) -> bool:
        """Take one piece of what is there. False if that is nothing, for now or for ever."""
        sink = self._sinks[descriptor]
        try:
            piece = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        sink += piece
        del self.output[: -2 * _OUTPUT_KEPT]
        return bool(piece)

    @property
    def too_much(self) -> bool:
        return len(self.answer) > _LARGEST_ANSWER

    def drain(self) -> None:
        """Take what is left once the child has ended.

        A process that has escaped the child's group may write on, but its further output is not read.
        """
        for descriptor in self._sinks:
            for _ in range(_LARGEST_ANSWER // _CHUNK + 1):
                if not self.read(descriptor):
                    break


def _wait(process: subprocess.Popen[bytes], readable: int, timeout: float) -> Answer:
    assert process.stdout is not None
    heard = _Heard(readable, process.stdout.fileno())
    finished = False
    try:
        finished = _listen(
            heard, (readable, process.stdout.fileno()), process.pid, time.monotonic() + timeout
        )
    finally:
        # This also runs if the server has run out of descriptors to listen with.
        # Kill before the child is reaped: until then no other process can have its number.
        _kill_group(process.pid)
        process.wait()
        heard.drain()
        process.stdout.close()
    return _conclude(heard, process.returncode, finished=finished, timeout=timeout)


def _listen(heard: _Heard, pipes: tuple[int, int], child: int, deadline: float) -> bool:
    """Read until the process `child` has ended.

    Returns False if it still runs at the deadline, or answers without end.
    """
    ended = os.pidfd_open(child)
    try:
        with selectors.DefaultSelector() as selector:
            for descriptor in (*pipes, ended):
                selector.register(descriptor, selectors.EVENT_READ)
            while not heard.too_much:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                for key, _ in selector.select(left):
                    if key.fd == ended:
                        return True
                    if not heard.read(key.fd):
                        selector.unregister(key.fd)  # its end: what is readable and empty
        return False
    finally:
        os.close(ended)


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _conclude(heard: _Heard, status: int, *, finished: bool, timeout: float) -> Answer:
    output = bytes(heard.output[-_OUTPUT_KEPT:]).decode(errors="replace").strip()
    if heard.too_much:
        return Answer(broken=f"it answered with more than {_LARGEST_ANSWER} bytes", output=output)
    if not finished:
        return Answer(broken=f"it did not return within {timeout:g} s", output=output)
    try:
        answer = json.loads(bytes(heard.answer))
        log = tuple((str(level), str(message)) for level, message in answer["log"])
        if "error" in answer:
            return Answer(error=str(answer["error"]), log=log, output=output)
        config = answer["config"]
        if config is not None and not isinstance(config, dict):
            return Answer(broken=f"it answered with a {type(config).__name__}", log=log, output=output)
        return Answer(config=config, log=log, output=output)
    except (ValueError, TypeError, KeyError, RecursionError):
        died = f"signal {-status}" if status < 0 else f"status {status}"
        return Answer(broken=f"its process ended with {died}", output=output)
