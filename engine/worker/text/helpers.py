"""Processes that prepare asks for a text worker, which forks them from itself: they have its tokenizer.

A template is code, and a prompt may be of any length. So neither runs where tokens of all streams become
text. A helper bounds itself: a template's processor time by a timer, all of its processor time and its memory
by the kernel, and what it may do by the strict sandbox of workers (docs/worker_life.md). A helper that ends
takes one ask with it; the worker forks another.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from actors.values.generation.asking import Ask
from actors.wire.text_frames import decode_head, pack_ids, unpack_ask
from engine.worker import sandbox
from engine.worker.text.lines import Line, LineEnded
from engine.worker.text.preparing import Preparer
from engine.worker.text.refusing import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.worker.text.loading import Loaded
    from engine.worker.text.preparing import Choices

TEMPLATE_SECONDS: Final = 1.0
"""Of processor time, for a template."""

STUCK_SECONDS: Final = 2
"""More of it until the kernel ends a helper whose template is stuck in one operation."""

ASK_SECONDS: Final = 60
"""Of processor time, for all that an ask takes."""

MEMORY: Final = 1024 * 1024 * 1024
"""Bytes of address space beyond what the worker has that a helper may take."""

_ROOT: Final = str(Path(__file__).parents[3])

_SIGNALS: Final = {
    signal.SIGXCPU: "takes too much processor time",
    signal.SIGABRT: "takes too much memory",
    signal.SIGKILL: "was ended (signal 9): it takes too much memory, or too long",
}


class Helper:
    """A helper, as the worker knows it."""

    def __init__(self, pid: int, line: Line) -> None:
        self.pid = pid
        self.line = line
        self.stream: int | None = None  # what it works on
        self.since = 0.0

    def end(self) -> str:
        """End it; return why it can't have prepared what it worked on."""
        self.line.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return _SIGNALS.get(signal.Signals(number), f"ended its process (signal {number})")
        return f"ended its process (exit status {os.WEXITSTATUS(status)})"


def fork(loaded: Loaded, choices: Choices, unwanted: Callable[[], None]) -> Helper:
    """Return a new helper. `unwanted` closes, in it, what belongs to the worker. Raises OSError."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return Helper(pid, Line(ours))
    try:
        ours.close()
        unwanted()
        _run(Line(theirs), loaded, choices)
    except BaseException:  # noqa: BLE001  # nothing may go up into the worker's own code
        traceback.print_exc()
    os._exit(1)


def _run(line: Line, loaded: Loaded, choices: Choices) -> NoReturn:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the worker
    _bound_memory()
    # Should a template's code get out of jinja2's sandbox, it reaches what this Python imports, and no more.
    missing = sandbox.enter("strict", childless=True, read=sandbox.own_paths(_ROOT), write=[], given=[])
    if missing:
        print(f"chat templates run without {'; '.join(missing)}", file=sys.stderr, flush=True)  # noqa: T201
    preparer = Preparer(loaded, choices, rendering=_bounded)
    while True:
        try:
            head, body = line.receive()
        except LineEnded:
            os._exit(0)
        _bound_time(ASK_SECONDS)
        line.send(*_answer(preparer, head, body))
        del head, body


def _answer(preparer: Preparer, head: bytes, body: bytes) -> tuple[list[Any], bytes]:
    """Return the answer to an order: what the worker tells the server, and the plan as one more item."""
    order = decode_head(head)
    stream = order[1]
    try:
        document, texts = unpack_ask(order[2], body)
        prepared = preparer.prepare(Ask.of(document), order[3])
    except Refused as error:
        return ["refused", stream, error.status, str(error), error.param], b""
    except MemoryError:
        return ["refused", stream, 400, "The request takes too much memory to be made into tokens", ""], b""
    except RecursionError:
        return ["refused", stream, 400, "The request nests too deeply", ""], b""
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return ["refused", stream, 400, f"The request can't be made into tokens: {error!r}", ""], b""
    plan = prepared.plan._asdict()
    if order[0] == "restore":
        return ["restored", stream, plan, order[4]], body[texts:]
    counts = [len(ids) for ids in prepared.prompts]
    ids = b"".join([pack_ids(ids) for ids in prepared.prompts])
    return ["opened", stream, counts, dict(prepared.sampling), dict(prepared.more), plan], ids


# -- bounds


class _TooSlowly(BaseException):
    """The time is over. No template can catch it."""


def _bounded(render: Callable[[], str]) -> str:
    """Run a template. Raises Refused where it takes too long."""

    def over(_number: int, _frame: object) -> NoReturn:
        raise _TooSlowly

    _bound_time(TEMPLATE_SECONDS + STUCK_SECONDS)
    signal.signal(signal.SIGPROF, over)
    try:
        signal.setitimer(signal.ITIMER_PROF, TEMPLATE_SECONDS)
        try:
            return render()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
    except _TooSlowly:
        raise Refused(
            f"The chat template did not end within {TEMPLATE_SECONDS:g} s of processor time", param="messages"
        ) from None
    finally:
        _bound_time(ASK_SECONDS)


def _bound_time(seconds: float) -> None:
    """Have the kernel end this process once it has taken so much more processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = math.ceil(used.ru_utime + used.ru_stime + seconds)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(
        resource.RLIMIT_CPU, (until if hard == resource.RLIM_INFINITY else min(until, hard), hard)
    )


def _bound_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = taken + MEMORY if hard == resource.RLIM_INFINITY else min(taken + MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
