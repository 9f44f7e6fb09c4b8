"""The program that builds one environment; run by path, `python …/engine/environments/building.py <order>`.

The order is JSON. The program tells its steps on standard output, one JSON object on each line. The last
object holds `facts` or an `error`. Standard input is a lifeline: when it ends, because the server no longer
wants the result or has died, everything in this process group ends too.

Two processes do that. The first watches the lifeline and touches nothing that other code has made. The second
builds, within limits (`engine.environments.budget`). One process would not do: a single call into C can hold
the interpreter for minutes, and then no thread of it sees the lifeline end.

Theory of operation. The holder of an environment's lock may build it, in its final place: the scripts of an
environment name the place that it was made in, so that it can't be moved there afterwards. The marker is
written when it is whole. If the holder finds a directory without a marker, an interrupted build has left it,
and the holder removes it.
Standard library only.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Carry out one order, in a child of this process."""
    order = json.loads(sys.argv[1])
    sys.path[0] = str(Path(__file__).parents[2])
    from engine.environments.budget import cpu_seconds

    seconds = cpu_seconds(order["kind"], Path(order["source"]))
    watcher = os.getpid()
    child = os.fork()
    if child:
        sys.exit(_watch(child, order["source"], seconds))
    _die_with(watcher)
    _answer(order, seconds)


def _watch(child: int, source: str, seconds: int) -> int:
    """Wait for the child, and kill this process group if the lifeline ends first; return the exit status."""
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while ended not in {ready for ready, _ in poll.poll()}:
        if not os.read(0, 4096):
            os.killpg(0, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGXCPU:
        _say(
            {
                "error": f"'{source}' is not unpacked: that took more than {seconds} s of CPU,"
                " which is what an archive of its size may take",
                "hint": "unpack it yourself, and name the directory",
            }
        )
        return 0
    return status if status >= 0 else 128 - status


def _die_with(watcher: int) -> None:
    """Have the kernel kill this process when its parent, the watcher, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != watcher:
        os._exit(1)


def _answer(order: dict[str, str], seconds: int) -> None:
    from engine.environments.budget import limit_cpu
    from engine.environments.layout import EnvironmentFailed

    answer: dict[str, Any]
    limit_cpu(seconds)
    try:
        answer = {"facts": _carry_out(order)}
    except EnvironmentFailed as error:
        answer = {"error": str(error), "hint": error.hint}
    except OSError as error:  # no room or no rights: the operator must repair that
        answer = {"error": f"building the environment of '{order['source']}' failed: {error}"}
    _say(answer)


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _step(text: str) -> None:
    _say({"step": text})


def _carry_out(order: dict[str, str]) -> dict[str, Any]:
    from engine.environments.interpreter import examine
    from engine.environments.layout import lock_path, read_marker, write_marker
    from engine.processes import users

    source = Path(order["source"])
    if order["kind"] == "directory":
        return asdict(examine(source, source))
    target = Path(order["target"])
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    users.let_through(target.parent)
    with lock_path(target).open("w") as lock:
        _acquire(lock.fileno())
        facts = read_marker(target)
        if facts is None:
            if order["kind"] == "requirements":
                # Afterwards pip may have left something beside a local package.
                _check(order)
            _clear(target)
            try:
                _build(order["kind"], source, target)
                if order["kind"] == "archive":
                    _check(order)
                _step("examining it")
                facts = examine(target, source)
            except BaseException:
                _clear(target)
                raise
            write_marker(target, facts)
        return asdict(facts)


def _check(order: dict[str, str]) -> None:
    """Raise EnvironmentFailed if the source is no longer what the environment is named after."""
    from engine.environments import requirements
    from engine.environments.layout import EnvironmentFailed

    source = Path(order["source"])
    now = (
        requirements.file_digest(source)
        if order["kind"] == "archive"
        else requirements.digest(source, root=Path("/"))
    )
    if now != order["digest"]:
        raise EnvironmentFailed(
            f"'{source}' was changed while its environment was built", hint="load the model again"
        )


def _acquire(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _step("waiting for another process that builds it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _clear(target: Path) -> None:
    """Remove what an interrupted build has left; half of it must not remain under the environment's name."""
    if not os.path.lexists(target):
        return
    aside = target.with_name(f"{target.name}.removed")
    shutil.rmtree(aside, ignore_errors=True)
    target.rename(aside)
    shutil.rmtree(aside)


def _build(kind: str, source: Path, target: Path) -> None:
    if kind == "requirements":
        from engine.environments import virtual

        _step("making a virtual environment")
        virtual.make(target, source, _step)
        return
    from engine.environments import archive
    from engine.environments.budget import limited_memory

    _step("unpacking")
    target.mkdir()
    with limited_memory():
        archive.unpack(source, target, lambda members: _step(f"unpacking: {members} files"))
    archive.relocate(target)


if __name__ == "__main__":
    main()
