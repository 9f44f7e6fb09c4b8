"""`tritium serve`: the tree in a process of its own, from the first line of its log to its exit status."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import FrameType

import trio

from actors.seams.bell import Bell
from actors.seams.threads import in_thread
from actors.serving.standing import Status
from actors.values.events import Event, Log
from engine.observability.announcing import Announcer, hear_python
from engine.observability.events import EventLog
from engine.observability.logs import LogSink, configure_logging, json_line, open_sink
from engine.observability.openness import exposures, openness
from engine.observability.running_logs import RunningLogs
from engine.observability.starting.showing import StartDisplay
from engine.processes.collecting import collect_garbage
from engine.processes.kernel import applicable, tell_what_lacks, this_kernel
from engine.processes.orphans import reap_orphans
from engine.processes.process import (
    allow_many_files,
    end_where_threads_are_stuck,
    in_the_way,
    leaves,
    settle_garbage_collection,
)
from engine.repository.advice import advice_on_repositories
from engine.server.machine import Machine
from engine.server.running import RunningServer, ServerFailed
from engine.server.sockets import AddressInUse
from engine.server.tree import open_server
from engine.settings.settings import Settings, SettingsError

Beside = Callable[[RunningServer, Log], Awaitable[None]]
"""What a composition root runs beside the server, from when its tree is up until it is told to end."""


async def _nothing(running: RunningServer, log: Log) -> None:
    del running, log


def run(settings: Settings, *, beside: Beside = _nothing, machine: Machine | None = None) -> int:
    """Serve until a signal, or until the tree gives up; return the process's exit status.

    The server runs on `machine`, by default this one. What `beside` raises ends the server: it is no part of the tree, so no supervisor restarts it.
    """
    try:
        sink = open_sink(settings.log)
    except SettingsError as error:
        complain(error, json=settings.log.format == "json")
        return 1
    configure_logging(settings.log, sink)
    logs = RunningLogs(settings.log, partial(configure_logging, sink=sink), EventLog())
    announcer = Announcer(logs, sink, EventLog())
    hear_python(EventLog())
    allow_many_files()
    try:
        status = trio.run(_serve, settings, logs, announcer, sink, beside, machine)
    except* (AddressInUse, ServerFailed) as group:
        for failure in leaves(group):
            announcer.failed(str(failure), hint=failure.hint)
        status = 1
    except* Exception as group:  # noqa: BLE001
        # The process ends because of it, and its last line has to be a line of the log.
        for bug in leaves(group):
            announcer.failed(f"{type(bug).__name__}: {bug}", bug)
        status = 1
    finally:
        sink.close()
    end_where_threads_are_stuck(status)
    return status


def complain(error: SettingsError, *, json: bool) -> None:
    """Say why a server with these settings does not start: a line of the JSON log, or text for people."""
    if json:
        keys = {"hint": error.hint} if error.hint else {}
        sys.stdout.write(json_line("error", Event.SERVER_FAILED, error=error.message, **keys) + "\n")
    else:
        sys.stderr.write(f"error: {error.message}\n" + (f"{error.hint}\n" if error.hint else ""))


async def _serve(
    settings: Settings,
    logs: RunningLogs,
    announcer: Announcer,
    sink: LogSink,
    beside: Beside,
    machine: Machine | None,
) -> int:
    """Return the exit status."""
    log: Log = EventLog()
    for warning in (
        *settings.warnings,
        *in_the_way(),
        *advice_on_repositories(settings),
        *exposures(settings),
    ):
        log(Event.SERVER_STARTING, level="warning", warning=warning)
    kernel = this_kernel()
    tell_what_lacks(settings.sandbox, kernel, log)
    settings = replace(settings, sandbox=applicable(settings.sandbox, kernel))
    reload = Bell()
    display = announcer.display()
    with _hearing_reloads(reload, log), trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with (
            open_server(settings, machine=machine, reload=reload, logs=logs) as running,
            trio.open_nursery() as life,
        ):
            log = running.log
            log(Event.SERVER_OPENED, **openness(running.settled()))
            if os.getpid() == 1:
                life.start_soon(reap_orphans)
            if display is not None:
                life.start_soon(display.run, running.known, running.is_loading)
            told = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_listen_for_signals, signals, told, log)
                nursery.start_soon(_report_start, running, told, log, announcer, display, life)
                nursery.start_soon(_end_with_tree, running, told)
                nursery.start_soon(beside, running, log)
                await told.wait()
                nursery.cancel_scope.cancel()
            await _serve_on(running, signals, log)
            status = await _drain(running, signals, announcer, sink)
            life.cancel_scope.cancel()
    log(Event.SERVER_STOPPED)
    return status


async def _report_start(
    running: RunningServer,
    told: trio.Event,
    log: Log,
    announcer: Announcer,
    display: StartDisplay | None,
    life: trio.Nursery,
) -> None:
    await running.wait_loaded()
    loaded = await running.loaded(took=0.0 if display is None else display.took)
    if display is None:
        await in_thread(announcer.tables, loaded)
    else:
        display.sum_up(loaded)
    settle_garbage_collection()
    life.start_soon(collect_garbage)
    failure = await running.start_failure()
    if failure is None:
        log(Event.SERVER_READY, models=sum(entry.state == Status.READY.value for entry in loaded.entries))
        if display is not None:
            display.end_start()
        return
    announcer.failed(str(failure), hint=failure.hint)
    running.failures.append(str(failure))
    told.set()


async def _listen_for_signals(signals: AsyncIterator[int], told: trio.Event, log: Log) -> None:
    async for number in signals:
        log(Event.SERVER_DRAINING, signal=signal.Signals(number).name)
        told.set()


@contextmanager
def _hearing_reloads(reload: Bell, log: Log) -> Iterator[None]:
    """Ring `reload` at SIGHUP, which does not end the server, not even while it drains."""
    token = trio.lowlevel.current_trio_token()

    def tell() -> None:
        log(Event.SERVER_RELOADING, signal=signal.Signals.SIGHUP.name)
        reload.ring()

    def told(number: int, frame: FrameType | None) -> None:
        del number, frame
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(tell)

    before = signal.signal(signal.SIGHUP, told)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


async def _serve_on(running: RunningServer, signals: AsyncIterator[int], log: Log) -> None:
    """Be not ready, and serve for the drain delay; another signal, or the tree's end, cuts it short.

    If the end is a failure, or models still load, no load balancer sends anything.
    """
    delay = running.settings.drain_delay
    if not delay or running.failures or running.stopped.is_set() or not running.catalog.finished.is_set():
        return
    running.withdraw()
    log(Event.SERVER_DRAINING, delay_seconds=delay, ready=False)
    with trio.move_on_after(delay):
        async with trio.open_nursery() as nursery:

            async def cut_short() -> None:
                async for number in signals:
                    log(Event.SERVER_DRAINING, signal=signal.Signals(number).name, delay="cut short")
                    nursery.cancel_scope.cancel()

            nursery.start_soon(cut_short)
            await running.wait_stopped()
            nursery.cancel_scope.cancel()


async def _end_with_tree(running: RunningServer, told: trio.Event) -> None:
    await running.wait_stopped()
    told.set()


async def _drain(
    running: RunningServer, signals: AsyncIterator[int], announcer: Announcer, sink: LogSink
) -> int:
    """Answer what was accepted; a second signal, or the exit timeout, ends that at once."""
    outcome: list[bool] = []
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            async for _ in signals:
                nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        outcome.append(await running.drain())
        nursery.cancel_scope.cancel()
    if not outcome:
        await running.give_up("not answered before a second signal")
    if not outcome or not outcome[0]:
        announcer.last_words(
            "Exit timeout expired. Exiting immediately." if outcome else "Told twice. Exiting immediately."
        )
        sink.close()
        os._exit(1)  # workers are killed by the kernel as their parent goes
    return 1 if running.failures else 0
