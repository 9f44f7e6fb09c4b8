"""What each command of `tritium fleet` does. Its libraries are those of the extra `fleet`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import trio

from engine.cli.fleet.balancing import proxy_config
from engine.cli.fleet.picture import text
from engine.cli.fleet.steering import (
    Interrupted,
    Story,
    Unfinished,
    ended_in_order,
    for_good,
    logger,
    look_once,
    say,
    spoken,
    steer,
    watched,
)
from engine.fleet.controller import Controller
from engine.fleet.document.editing import with_versions, write_whole
from engine.fleet.document.nodes import BadDocument
from engine.fleet.document.reading import text_of
from engine.fleet.picture import Lane, Picture, is_stuck, needed_for
from engine.fleet.showing import document
from engine.observability.text import printable

_CLEAR: Final = "\x1b[2J\x1b[H"


def _status(options: argparse.Namespace) -> int:
    if options.watch is None:
        return _show(options)

    def show(picture: Picture) -> None:
        shown = text(picture)
        sys.stdout.write(f"{_CLEAR}{shown}" if sys.stdout.isatty() else shown)
        sys.stdout.flush()

    return watched(options, show)


def _show(options: argparse.Namespace) -> int:
    picture = look_once(options)
    sys.stdout.write(f"{json.dumps(document(picture), indent=2)}\n" if options.json else text(picture))
    return 0 if picture.settled else 1


def _plan(options: argparse.Namespace) -> int:
    picture = look_once(options)
    if picture.why:
        say(picture.why)
        return 1
    due = [lane for lane in picture.lanes if lane.waits]
    for lane in due:
        where = f"its replicas are {', '.join(lane.placed)}" if lane.placed else lane.short
        line = "; ".join(each for each in (f"{lane.model}: {lane.waits}", where) if each)
        sys.stdout.write(f"{printable(line)}\n")
    for lane in picture.lanes:
        if not lane.waits and lane.wanted in lane.refused:
            refused = f"{lane.model}: {lane.wanted} was refused: {lane.refused[lane.wanted]}"
            sys.stdout.write(f"{printable(refused)}\n")
    if not due:
        sys.stdout.write("nothing is to be done\n")
    return 0


def _apply(options: argparse.Namespace, only: str = "") -> int:
    def concerned(picture: Picture) -> list[Lane]:
        return [lane for lane in picture.lanes if only in ("", lane.model)]

    def is_done(picture: Picture) -> bool:
        return picture.settled or is_stuck(concerned(picture), picture)

    async def settle(controller: Controller) -> Picture:
        return await controller.run(until=_saying(is_done))

    picture = _change(options, settle, only=only)
    sys.stdout.write(text(picture))
    return 1 if any(lane.stuck or lane.wanted in lane.refused for lane in concerned(picture)) else 0


def _roll(options: argparse.Namespace) -> int:
    versions = sorted({*options.versions})
    path = Path(options.file)
    written = text_of(path)
    changed = with_versions(str(path), written, options.model, versions)
    if changed != written:
        try:
            write_whole(path, changed)
        except OSError as error:
            raise BadDocument(f"{path} can't be written: {error.strerror or error}") from error
        several = "versions" if len(versions) > 1 else "version"
        say(f"{path}: {options.model} has {several} {', '.join(map(str, versions))} now")
    return _apply(options, only=options.model)


def _drain(options: argparse.Namespace) -> int:
    name = options.replica

    def is_done(picture: Picture) -> bool:
        if picture.members and name not in {each.name for each in picture.members}:
            return True
        if options.undo:
            look = picture.looks.get(name)
            return name not in picture.drained and look is not None and not look.seen.withdrawn
        return picture.drained.get(name, False) or bool(kept(picture))

    def kept(picture: Picture) -> str:
        """Return for what the replica serves on until the file or the fleet is another."""
        if options.undo or picture.drained.get(name) is not False:
            return ""
        return _needed(name, picture) if is_stuck(picture.lanes, picture) else ""

    async def wait(controller: Controller) -> Picture:
        controller.drain(name, back=options.undo)
        return await controller.run(until=_saying(is_done))

    picture = _change(options, wait)
    names = sorted(each.name for each in picture.members)
    if name not in names:
        say(f"there is no replica '{name}'; there are {', '.join(names) or 'none'}")
        return 1
    if reason := kept(picture):
        say(
            f"{name} is not drained: {reason}. It serves on until others serve all that it does;"
            " --undo ends the drain"
        )
        return 1
    sys.stdout.write(
        f"{name} serves again\n"
        if options.undo
        else f"{name} is drained: it gets no new requests, nothing waits there, and it may be ended\n"
    )
    return 0


def _saying(is_done: Callable[[Picture], bool]) -> Callable[[Picture], bool]:
    """Say at each turn what is waited for, if that has changed, until it is done."""
    said: list[str] = []

    def until(picture: Picture) -> bool:
        if is_done(picture):
            return True
        waits = [f"{lane.model}: {lane.waits}" for lane in picture.lanes if lane.waits]
        unreached = [f"{name} is not reached: {why}" for name, why in sorted(picture.troubles.items())]
        drains = [_draining(name, picture) for name, done in sorted(picture.drained.items()) if not done]
        lines = [*([picture.why] if picture.why else []), *unreached, *waits, *drains]
        for line in lines:
            if line not in said:
                say(f"… {line}")
        said[:] = lines
        return False

    return until


def _draining(name: str, picture: Picture) -> str:
    look = picture.looks.get(name)
    if look is not None and look.seen.withdrawn:
        return f"{name} gets no new requests from balancers that have seen it; what waits there is answered"
    needed = _needed(name, picture)
    return f"{name} serves on for {needed}" if needed else f"{name} is about to be drained"


def _needed(name: str, picture: Picture) -> str:
    seen = {each.name: None for each in picture.members} | {n: look.seen for n, look in picture.looks.items()}
    return needed_for(name, picture.lanes, seen)


def _change(options: argparse.Namespace, story: Story, *, only: str = "") -> Picture:
    """Return what came of a story that changes the fleet. Raises Unfinished."""
    try:
        return steer(options, partial(ended_in_order, story), spoken, forced=True, only=only)
    except (trio.TooSlowError, Interrupted) as error:
        why, status = f"not done after {options.timeout:g} s", 1
        if isinstance(error, Interrupted):
            why, status = str(error), error.status
        shows = f"`tritium fleet status --file {options.file}` shows how far it came"
        raise Unfinished(f"{why}; {shows}, and the next command goes on", status) from error


def _run(options: argparse.Namespace) -> int:
    options.name = options.name or platform.node()
    tell = logger(options.log_format)
    tell("fleet_controller_starts", name=options.name, file=options.file, pid=os.getpid())
    try:
        steer(options, partial(for_good, address=options.metrics_address, tell=tell), tell)
    except OSError as error:
        if options.metrics_address is None:
            raise
        say(f"--metrics-address={options.metrics_address}: {error}")
        return 1
    return 0


COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "status": _status,
    "plan": _plan,
    "apply": _apply,
    "run": _run,
    "roll": _roll,
    "drain": _drain,
    "proxy-config": proxy_config,
}
