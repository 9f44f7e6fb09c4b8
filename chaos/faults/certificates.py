"""The certificate of a listener is replaced while its clients ask without a rest: by another, or by nonsense.

A run's server speaks TLS at the port of its metrics, which the harness scrapes all the time.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from actors.values.events import Event
from chaos.faults.base import Fault, Injection, NoTarget, Stage, Trouble, until
from chaos.faults.network.asking import together
from chaos.faults.network.crowds import EVERYTHING
from chaos.record.outcome import now
from chaos.record.records import LogExpected
from chaos.subject.server import LogLines, Server
from chaos.wires.http import Connection, request
from engine.settings.extras import how_to_install, is_missing

if TYPE_CHECKING:
    from chaos.subject.certificates import ServedFiles


def served_files(folder: Path) -> ServedFiles | None:
    """Make the files of a server's metrics listener in a new folder.

    Returns None where no certificates can be made: then the listener speaks in the clear.
    """
    if is_missing("cryptography"):
        return None
    from chaos.subject.certificates import ServedFiles

    return ServedFiles(folder)


LISTENER: Final = "tls-metrics"
"""What the log calls the files."""

_SEEN_WITHIN: Final = 15.0  # seconds until the log tells: a look or two, if the server is not told
_PAUSE: Final = 0.02  # seconds between two requests of one client
_MORE: Final = 3  # answers that each client must have had after each step
_KEPT: Final = 1  # clients that keep their connection
_NEW: Final = 2  # clients that make one for each request


@dataclass
class _Client:
    """What one client has seen: the names that it was shown, one for each answer."""

    shown: list[str] = field(default_factory=list)


class Scrapers:
    """Clients of one server that ask for its metrics over TLS until told to stop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = False
        self.kept = [_Client() for _ in range(_KEPT)]
        self.new = [_Client() for _ in range(_NEW)]
        self.troubles: list[str] = []

    async def run(self) -> None:
        """Ask. What goes wrong ends the client that saw it, and is in `troubles`."""
        acts = [partial(self._keep, each) for each in self.kept]
        self.troubles += await together(
            [*acts, *(partial(self._renew, each) for each in self.new)], patience=120.0
        )

    def stop(self) -> None:
        """Have each client end after the answer that it waits for."""
        self._over = True

    async def until_more(self) -> None:
        """Wait until each client has had some more answers. Raises Trouble if they don't come."""
        clients = [*self.kept, *self.new]
        owed = [len(each.shown) + _MORE for each in clients]

        async def missing() -> list[int]:
            return [least - len(each.shown) for each, least in zip(clients, owed, strict=True)]

        await until(
            missing,
            lambda seen: max(seen) <= 0 or bool(self.troubles),
            lambda seen: f"clients of TLS wait for {seen} more answers, and they don't come",
        )

    async def _keep(self, client: _Client) -> str:
        async with await self._server.scraper() as connection:
            while not self._over:
                if trouble := await _scrape(connection, client):
                    return trouble
        return ""

    async def _renew(self, client: _Client) -> str:
        while not self._over:
            async with await self._server.scraper() as connection:
                if trouble := await _scrape(connection, client):
                    return trouble
        return ""


async def _scrape(connection: Connection, client: _Client) -> str:
    reply = await connection.ask(request("GET", "/metrics"))
    if reply.status != 200 or not reply.body.endswith(b"\n"):
        return f"GET /metrics over TLS: {reply.status}, {len(reply.body)} bytes"
    client.shown.append(connection.shown)
    await trio.sleep(_PAUSE)
    return ""


def turned_back(shown: Sequence[str], names: Sequence[str]) -> str:
    """Return what is wrong with what a client was shown: only `names`, each from some time on."""
    order = {name: place for place, name in enumerate(names)}
    places = [order.get(each, -1) for each in shown]
    if -1 in places or places != sorted(places):
        return f"a client was shown {list(dict.fromkeys(shown))}, and {list(names)} were put there in turn"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateChange(Fault):
    """The files of the metrics' listener change, well or badly, and are mended."""

    well: bool

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Decide how; `heal` does it. Raises NoTarget where no certificates can be made."""
        files = stage.certificates
        if files is None:
            raise NoTarget(f"certificates can't be made without 'cryptography': {how_to_install('auth')}")
        told = target.random() < 0.5
        event = Event.FILES_RELOADED if self.well else Event.RELOAD_FAILED
        how = "the server is told" if told else "the server has to see it"
        return Injection(
            t=now(),
            models=EVERYTHING,
            detail=f"the certificate of the metrics is {'replaced' if self.well else 'broken'}, and {how}",
            expects=[LogExpected(event=event.value, keys={"what": LISTENER}, within=_SEEN_WITHIN)],
            undo=partial(self._change, stage, files, told),
        )

    async def _change(self, stage: Stage, files: ServedFiles, told: bool) -> None:
        act = _replace if self.well else _break
        scrapers = Scrapers(stage.server)
        names = [files.name]
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scrapers.run)
                try:
                    await scrapers.until_more()
                    await act(stage.server, files, scrapers, partial(_tell, stage.server, told))
                    names.append(files.name)
                    await scrapers.until_more()
                finally:
                    scrapers.stop()
        except* Trouble as group:
            scrapers.troubles += map(str, group.exceptions)
        troubles = scrapers.troubles
        troubles += [wrong for each in scrapers.new if (wrong := turned_back(each.shown, names))]
        troubles += [wrong for each in scrapers.kept if (wrong := turned_back(each.shown, names[:1]))]
        if troubles:
            raise Trouble("; ".join(troubles))


def _tell(server: Server, told: bool) -> None:
    if told:
        server.signal(signal.SIGHUP)


Telling = Callable[[], None]


async def _replace(server: Server, files: ServedFiles, scrapers: Scrapers, tell: Telling) -> None:
    """Put another pair in place. Raises Trouble if it is not shown in the end."""
    name = files.exchange()
    tell()

    async def shown() -> str:
        async with await server.scraper() as connection:
            return connection.shown

    await until(
        shown,
        lambda seen: seen == name,
        lambda seen: f"'{name}' is the certificate now, and new connections are shown '{seen}'",
    )


async def _break(server: Server, files: ServedFiles, scrapers: Scrapers, tell: Telling) -> None:
    """Put a key there that is not the certificate's, and then another pair. Raises Trouble."""
    lines = [LogLines(path, fresh=True) for path in (server.out, server.err)]
    found: list[str] = []
    files.break_pair()
    tell()
    await until(
        _told(lines, found),
        lambda seen: bool(seen),
        lambda _: "a key was put there that is not the certificate's, and the log does not tell of it",
    )
    await scrapers.until_more()  # by the certificate before, as `turned_back` sees
    await _replace(server, files, scrapers, tell)


def _told(lines: Sequence[LogLines], found: list[str]) -> Callable[[], Awaitable[list[str]]]:
    async def look() -> list[str]:
        found.extend(
            str(line.get("error"))
            for each in lines
            for line in each.fresh()
            if line.get("event") == Event.RELOAD_FAILED.value and line.get("what") == LISTENER
        )
        return found

    return look


FAULTS: Final[Sequence[Fault]] = (
    CertificateChange(
        name="certificate_replaced",
        expected="Clients of TLS that ask without a rest are all answered: new connections are shown the"
        " new certificate from some time on,"
        " and those that stand live on.",
        well=True,
    ),
    CertificateChange(
        name="certificate_broken",
        expected="A key that is not the certificate's is refused, and the log says so; clients of TLS are"
        " all answered, and shown the"
        " certificate before until a pair is whole again.",
        well=False,
    ),
)
"""The family's faults."""
