"""Has environments built that are not there yet.

A program of its own does that (`engine.environments.building`). So it blocks no other work and ends with the
caller that waits for it. Neither an archive nor a package's installation script touches the server's own
process.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from actors.seams.threads import in_thread
from actors.values.events import Event, Log
from actors.values.specs import Runtime
from engine.environments.cache import EnvironmentCache
from engine.environments.declared import Environment, Kind
from engine.environments.layout import EnvironmentFailed, Facts
from engine.processes.family import Family
from engine.processes.inheritance import scrubbed
from engine.processes.mark import MARK

PROGRAM: Final = Path(__file__).parent / "building.py"

BUILDS_AT_ONCE: Final = 2
BUILD_SECONDS: Final = 3600.0  # for one; a framework over a slow line takes minutes

_BUILDERS: Final = frozenset(
    {"CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "PKG_CONFIG_PATH", "CARGO_HOME", "RUSTUP_HOME", "NETRC"}
    | {name for each in ("HTTP", "HTTPS", "ALL", "NO") for name in (f"{each}_PROXY", f"{each.lower()}_proxy")}
)
"""Variables that a build gets besides those of a worker, together with pip's own.

They say where packages come from.
"""

_LARGEST_LINE: Final = 1024 * 1024  # of what the program tells

Report = Callable[[str, Mapping[str, object]], None]
"""Told of a phase that a model is in, and of its details."""


class EnvironmentBuilder:
    """Builds environments into a cache, a few at once."""

    def __init__(
        self,
        cache: EnvironmentCache,
        *,
        environ: Mapping[str, str],
        log: Log,
        within: float = BUILD_SECONDS,
    ) -> None:
        """`environ` is the server's.

        pip's own variables and those about proxies and compilers are handed on to builds.

        A build may take `within` seconds.
        """
        self._within = within
        self.cache = cache
        self._environ = environ
        self._log = log
        self._builds = trio.CapacityLimiter(BUILDS_AT_ONCE)

    async def prepare(
        self, environments: Sequence[Environment], report: Report
    ) -> Mapping[Environment, Runtime | EnvironmentFailed]:
        """Build what is missing, one after the other; return the outcome of each.

        `report` is told of steps. Cancelled, a build leaves nothing that would be taken for an environment.
        """
        outcomes: dict[Environment, Runtime | EnvironmentFailed] = {}
        for environment in environments:
            try:
                outcomes[environment] = await self._prepare(environment, report)
            except EnvironmentFailed as error:
                outcomes[environment] = error
        return outcomes

    async def _prepare(self, environment: Environment, report: Report) -> Runtime:
        def tell(step: str) -> None:
            report("building its environment", {"environment": str(environment.source), "step": step})

        if environment.kind is Kind.DIRECTORY:  # it is there, and only looked at
            return self.cache.described(environment, await self._build(environment, tell))
        tell("waiting for other builds")
        async with self._builds:
            began = trio.current_time()
            self._log(
                Event.ENVIRONMENT_BUILDING,
                source=str(environment.source),
                path=str(self.cache.path(environment)),
            )
            facts = await self._build(environment, tell)
        self._log(
            Event.ENVIRONMENT_BUILT,
            source=str(environment.source),
            path=str(self.cache.path(environment)),
            python=facts.python,
            numpy=facts.numpy,
            seconds=round(trio.current_time() - began, 1),
        )
        return self.cache.described(environment, facts)

    async def _build(self, environment: Environment, tell: Callable[[str], None]) -> Facts:
        order = {
            "kind": environment.kind.value,
            "source": str(environment.source),
            "target": str(self.cache.path(environment)),
            "digest": environment.digest,
        }
        answer: dict[str, Any] = {}
        with trio.move_on_after(self._within) as limit:
            answer = await _run([sys.executable, str(PROGRAM), json.dumps(order)], self._variables(), tell)
        if limit.cancelled_caught:
            raise EnvironmentFailed(
                f"the environment of '{environment.source}' was not built within {self._within:g} s"
            )
        if "facts" in answer:
            return Facts(**answer["facts"])
        if "error" in answer:
            raise EnvironmentFailed(answer["error"], hint=answer.get("hint", ""))
        raise EnvironmentFailed(
            f"building the environment of '{environment.source}' ended without a result: {answer['broken']}"
        )

    def _variables(self) -> dict[str, str]:
        also = {
            name: value
            for name, value in self._environ.items()
            if name in _BUILDERS or name.startswith("PIP_")
        }
        return scrubbed(self._environ) | also


async def _run(command: list[str], environ: Mapping[str, str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Run the program; return its last word, or `broken` if it has none. All that it started ends with it."""
    mark = secrets.token_hex(16)
    try:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,  # the lifeline
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environ, MARK: mark},
            start_new_session=True,
        )
    except OSError as error:
        return {"broken": f"no process could be started for it: {error.strerror or error}"}
    assert process.stdin is not None
    assert process.stdout is not None
    heard = _Heard(tell)
    family = Family(process.pid, mark)
    try:
        async with process.stdin, process.stdout:
            async for piece in process.stdout:
                heard.add(piece)
            with contextlib.suppress(OSError):  # no descriptor left: it then ends by `kill`
                await _exited(process.pid)
    finally:
        # It is not reaped yet: no other process can have its number.
        family.kill()
        with trio.CancelScope(shield=True):
            await in_thread(family.end)
            await process.wait()
    return heard.answer or {"broken": f"exit status {process.returncode}: {heard.noise}"}


async def _exited(pid: int) -> None:
    """Wait until a child of ours has ended, and leave it to be reaped."""
    descriptor = os.pidfd_open(pid)
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


class _Heard:
    """What the program has told so far, a line of JSON at a time. Any other output is noise."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._rest = b""
        self.answer: dict[str, Any] = {}
        self.noise = ""

    def add(self, piece: bytes | bytearray) -> None:
        """Take in what was read."""
        *lines, rest = (self._rest + piece).split(b"\n")
        self._rest = rest[-_LARGEST_LINE:]
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            told = json.loads(line)
        except ValueError:
            self.noise = (self.noise + line.decode(errors="replace") + "\n")[-2000:]
            return
        if not isinstance(told, dict):
            return
        if "step" in told:
            self._tell(told["step"])
        else:
            self.answer = told
