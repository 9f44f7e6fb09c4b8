"""Controllers behind the commands: one look, one change, or for good."""

from __future__ import annotations

import argparse
import math
import os
import platform
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from engine.cli.client import headers_for
from engine.fleet.asking import Access, HttpReplica
from engine.fleet.controller import Controller
from engine.fleet.discovery.finding import Discovery
from engine.fleet.document.nodes import BadDocument
from engine.fleet.document.reading import read_file
from engine.fleet.loads import Tell
from engine.fleet.picture import Picture
from engine.fleet.ports import Member
from engine.fleet.serving import Window, show
from engine.fleet.trust import BadFile, Clients
from engine.fleet.wanted import Wanted
from engine.observability.text import printable

_LATE: Final = 60.0  # seconds by which an answer to a load may come after the roll has given it up

Story = Callable[[Controller], Awaitable[Picture]]


class Unfinished(Exception):
    """A command came to no end. `status` is the process's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Interrupted(Exception):
    """A signal ended a story. The fleet has been left in order."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.status = 128 + number


class FleetFile:
    """The fleet's file, read again when it has changed. What can't be read is told, and the last stays."""

    def __init__(self, path: Path, tell: Tell) -> None:
        """Raises BadDocument if it can't be used at the start."""
        self._path = path
        self._tell = tell
        self.wanted = read_file(path)  # as it was read last
        self._stamp = self._mark()
        self._complaint = ""

    def read(self) -> Wanted:
        """Return what it says now."""
        stamp = self._mark()
        if stamp != self._stamp:
            try:
                self.wanted = read_file(self._path)
            except BadDocument as error:
                if str(error) != self._complaint:
                    self._tell("fleet_file_refused", reason=str(error))
                self._complaint = str(error)
            else:
                self._complaint = ""
                self._tell("fleet_file_read", file=str(self._path))
            self._stamp = stamp
        return self.wanted

    def _mark(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return status.st_mtime_ns, status.st_size, status.st_ino


def steer(options: argparse.Namespace, story: Story, tell: Tell, **how: Any) -> Picture:
    """Run a story with a controller, which leaves the fleet to others at the end.

    Raises BadDocument, ServerUnavailable, and trio.TooSlowError after the options' `timeout`.
    """
    file = FleetFile(Path(options.file), tell)
    headers, _ = headers_for(options, os.environ)
    try:
        return trio.run(_steer, options, story, tell, file, dict(headers), how)
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is None:
            raise KeyboardInterrupt from group
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if error is group:
            raise
        raise error from None  # it shows by itself where it comes from


def look_once(options: argparse.Namespace) -> Picture:
    """Return what one look shows, without a change."""

    async def look(controller: Controller) -> Picture:
        return await controller.run(until=lambda picture: True)

    return steer(options, look, spoken, dry=True)


def watched(options: argparse.Namespace, take: Callable[[Picture], Awaitable[None] | None]) -> int:
    """Give what is seen to `take`, every `options.watch` seconds until a signal; return the exit status."""

    async def look(controller: Controller) -> Picture:
        while True:
            taken = take(await controller.run(until=lambda picture: True))
            if taken is not None:
                await taken
            await trio.sleep(options.watch)

    try:
        steer(options, partial(ended_in_order, look), spoken, dry=True)
    except Interrupted:
        return 0
    raise AssertionError("it is watched until a signal")


async def _steer(
    options: argparse.Namespace,
    story: Story,
    tell: Tell,
    file: FleetFile,
    headers: Mapping[str, str],
    how: Mapping[str, Any],
) -> Picture:
    def access() -> Access:
        wanted = file.wanted
        load = wanted.rules.load_timeout + _LATE
        asked = wanted.timing.request
        return Access(headers=headers, request=asked, load=load, server_name=wanted.tls.server_name)

    def connect(member: Member) -> HttpReplica:
        return HttpReplica(member, clients.client, access)

    try:
        clients = Clients(lambda: file.wanted.tls, tell)
    except BadFile as error:
        raise BadDocument(f"{options.file}: {error}") from error
    name = getattr(options, "name", None) or f"{options.what}@{platform.node()}:{os.getpid()}"
    discovery = Discovery()
    controller = Controller(name, file.read, discovery.discover, connect, tell, **how)
    try:
        with trio.fail_after(getattr(options, "timeout", math.inf)):
            return await story(controller)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + file.wanted.timing.request):
            await controller.close()
        discovery.close()
        await clients.close()


async def ended_in_order(story: Story, controller: Controller) -> Picture:
    """Tell a story until its end, or until SIGTERM or SIGINT. Raises Interrupted."""
    told: list[int] = []

    async def listen(scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                told.append(number)
                scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen, nursery.cancel_scope)
        picture = await story(controller)
        nursery.cancel_scope.cancel()
        return picture
    raise Interrupted(told[0])


async def for_good(controller: Controller, *, address: str | None, tell: Tell) -> Picture:
    """Steer until SIGTERM or SIGINT, and show what is seen at `address`."""
    ended = trio.Event()

    async def listen() -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                ended.set()
                return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        if address:
            nursery.start_soon(partial(show, Window(lambda: controller.picture), address, ended=ended))
        nursery.start_soon(partial(controller.run, until=lambda picture: ended.is_set()))
        await ended.wait()
        tell("fleet_controller_ends")
        nursery.cancel_scope.cancel()
    return controller.picture


def logger(form: str) -> Tell:
    """Return what writes an event as a line of text or JSON to standard error."""
    rendered = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.processors.KeyValueRenderer(key_order=["timestamp", "event"])
    )
    log = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[structlog.processors.TimeStamper(fmt="iso", utc=True), rendered],
    )

    def tell(event: str, **keys: object) -> None:
        with suppress(BrokenPipeError):
            log.msg(event, **keys)

    return tell


def spoken(event: str, **keys: object) -> None:
    """Say an event to an operator who waits at a terminal."""
    match event:
        case "fleet_decided":
            line = f"{keys['model']}: {keys['decision']}"
        case "fleet_load":
            line = f"{keys['model']}: {keys['replica']} loads {keys['release']}"
        case "fleet_unload":
            line = f"{keys['model']}: {keys['replica']} unloads it"
        case "fleet_load_failed" | "fleet_unload_failed" | "fleet_load_lost":
            line = f"{keys['model']}: {keys['replica']}: {keys['reason']}"
        case "fleet_traffic":
            line = f"{keys['model']}: {keys['replica']} has the traffic plan"
        case "fleet_traffic_rolled_back":
            line = f"{keys['model']}: version {keys['version']} gets no more traffic: {keys['reason']}"
        case "fleet_tls_refused" | "fleet_taken_over" | "fleet_file_refused" | "fleet_members_unknown":
            line = str(keys["reason"])
        case _:
            return
    say(line)


def say(line: str) -> None:
    """Tell an operator a line. A reader who has gone does not end what is under way."""
    with suppress(BrokenPipeError):
        sys.stderr.write(f"{printable(line)}\n")
