"""Faults of the repository, as the watcher meets them: the server has to poll, with the flags `POLLED`.

Faults by the repository API are in `chaos.faults.control`. These faults hit the models of `PLAIN`: a new
version of `counter` ends the sequences of the one before by design, and an ensemble has no files to be hurt.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from actors.values.events import Event
from chaos.faults.base import Fault, Injection, NoTarget, Stage, Trouble
from chaos.faults.network.asking import Question, ask_grpc, ask_http, together
from chaos.faults.network.attacks import Attack
from chaos.faults.setbacks import until_mended, until_told
from chaos.faults.shelves import GONE, READY, Shelf, gone, serving_alone, states, until_states
from chaos.record.outcome import now
from chaos.record.records import Excuse, LogExpected
from chaos.wires.http import Connection
from chaos.workload.repository import write_model

POLL_SECONDS: Final = 0.25
POLLED: Final[Sequence[str]] = ("--model-control-mode=poll", f"--repository-poll-secs={POLL_SECONDS}")
"""The flags of a server to which these faults apply."""

PLAIN: Final[Sequence[str]] = ("echo", "add_sub", "slow", "batching")

# Seconds until the log tells of a change: three looks, and the load of a worker.
_SEEN_WITHIN: Final = 3.0


def choose(stage: Stage, target: random.Random, models: Sequence[str] = PLAIN) -> Shelf:
    """Choose a model to hit. Raises NoTarget if another fault is changing it."""
    shelf = Shelf(stage, target.choice(models))
    if not shelf.path.exists() or shelf.versions != [1]:
        raise NoTarget(f"the repository of '{shelf.model}' is being changed already")
    return shelf


async def answering(stage: Stage, model: str) -> None:
    """Ask a model itself, by both protocols. Raises Trouble."""
    draw = random.Random(model)
    troubles = await together(
        partial(ask, stage.server, Question.draw(model, draw)) for ask in (ask_http, ask_grpc)
    )
    if troubles:
        raise Trouble("; ".join(troubles))


async def back(stage: Stage, shelf: Shelf) -> None:
    """Wait until version 1 alone serves as before. Raises Trouble."""
    await until_states(stage.server, shelf.model, serving_alone(1), "version 1 should serve again, and alone")
    await answering(stage, shelf.model)


# -- half a copy


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfCopied(Fault):
    """A new version arrives bit by bit while the watcher looks, then serves, and is taken away.

    Without a `manifest` something is written between any two looks. With one, SHA256SUMS is there first, and
    the copy pauses for longer than many looks. Only the manifest can tell that pause from the copy's end.
    """

    manifest: bool

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Begin with an empty directory; `heal` copies, waits and cleans up."""
        shelf = choose(stage, target)
        whole = shelf.copy_of(1)
        t = now()
        if self.manifest:
            shelf.put("SHA256SUMS", manifest(shelf, whole))
        (shelf.path / "2").mkdir()
        return Injection(
            t=t,
            models=(),
            detail=f"version 2 of '{shelf.model}' is copied slowly{', after its checksums' if self.manifest else ''}",
            expects=[
                LogExpected(
                    event=Event.REPOSITORY_CHANGED.value,
                    keys={"model": shelf.model, "change": "unfinished"},
                    within=_SEEN_WITHIN,
                )
            ],
            undo=partial(self._copied, stage, shelf, whole),
        )

    async def _copied(self, stage: Stage, shelf: Shelf, whole: Path) -> None:
        nearly = threading.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    partial(copy_slowly, whole, shelf.path / "2", with_pause=self.manifest, nearly=nearly)
                )
                early = await _not_before(stage, shelf, nearly)
            await until_states(
                stage.server, shelf.model, serving_alone(2), "version 2 is whole, and should serve alone"
            )
            await answering(stage, shelf.model)
        finally:
            shelf.remove("SHA256SUMS")
            shelf.remove("2")
        await back(stage, shelf)
        if early:
            raise Trouble(early)


async def _not_before(stage: Stage, shelf: Shelf, nearly: threading.Event) -> str:
    """Watch that version 2 is not even tried until the copy is all but done.

    Returns what was seen otherwise.
    """
    while True:
        seen = await states(stage.server, shelf.model)
        if nearly.is_set():
            return ""
        if seen.get(2, GONE) != GONE:  # which an earlier version 2 may be
            return f"version 2 of '{shelf.model}' is {seen[2]} before it was whole"
        await trio.sleep(0.1)


async def copy_slowly(
    source: Path, into: Path, *, with_pause: bool, nearly: threading.Event | None = None
) -> None:
    """Copy a version's files into a directory, bit by bit or with one long pause.

    `nearly` is set ahead of the last bit. The copy runs on a thread, which nothing in the harness's loop can
    hold up.
    """
    copy = _copy_with_a_pause if with_pause else _copy_bit_by_bit
    await trio.to_thread.run_sync(copy, source, into, nearly or threading.Event())


_PIECES: Final = 40
_PIECE_SECONDS: Final = 0.05  # a fifth of the time between two looks


def _copy_bit_by_bit(source: Path, into: Path, nearly: threading.Event) -> None:
    """Copy for two seconds."""
    content = {file: file.read_bytes() for file in _files(source)}
    size = sum(map(len, content.values())) // _PIECES + 1
    bits = [
        (into / file.name, whole[at : at + size])
        for file, whole in content.items()
        for at in range(0, len(whole), size)
    ]
    for number, (path, bit) in enumerate(bits, 1):
        if number == len(bits):
            nearly.set()
        with path.open("ab") as file:
            file.write(bit)
        threading.Event().wait(_PIECE_SECONDS)


def _copy_with_a_pause(source: Path, into: Path, nearly: threading.Event) -> None:
    """Copy all files but the model's, half of the model's, and after a pause of six looks the other half."""
    *others, model = _files(source)
    for file in others:
        (into / file.name).write_bytes(file.read_bytes())
    whole = model.read_bytes()
    with (into / model.name).open("wb") as copy:
        copy.write(whole[: len(whole) // 2])
        copy.flush()
        threading.Event().wait(6 * POLL_SECONDS)
        nearly.set()
        copy.write(whole[len(whole) // 2 :])


def _files(version: Path) -> list[Path]:
    """A version's files, the model's own last, so that an incomplete copy can't be loaded."""
    return sorted(version.iterdir(), key=lambda file: (file.stem == "model", file.name))


def manifest(shelf: Shelf, whole: Path) -> bytes:
    """Return SHA256SUMS of a model's present files and of its version 2, which is to come."""
    listed = {"config.pbtxt": shelf.path / "config.pbtxt"}
    listed |= {f"1/{file.name}": file for file in _files(shelf.path / "1") if file.is_file()}
    listed |= {f"2/{file.name}": file for file in _files(whole)}
    lines = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {name}\n" for name, file in listed.items())
    return "".join(lines).encode()


# -- something broken in the place of something good


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrupted(Fault):
    """A file of a model that serves is replaced by nonsense, and put back."""

    configuration: bool  # else the file of the model itself

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Replace the file. Raises NoTarget."""
        shelf = choose(stage, target)
        inside = "config.pbtxt" if self.configuration else f"1/{_files(shelf.path / '1')[-1].name}"
        right = (shelf.path / inside).read_bytes()
        wrong = right[: target.randrange(1, len(right) // 2)] + b"\0(" + target.randbytes(200)
        t = now()
        shelf.put(inside, wrong)
        return Injection(
            t=t,
            models=(),
            detail=f"{inside} of '{shelf.model}' is nonsense",
            expects=[
                LogExpected(
                    event=Event.MODEL_LOAD_FAILED.value, keys={"model": shelf.model}, within=_SEEN_WITHIN
                )
            ],
            undo=partial(self._mended, stage, shelf, inside, right),
        )

    async def _mended(self, stage: Stage, shelf: Shelf, inside: str, right: bytes) -> None:
        try:
            await answering(stage, shelf.model)
            await until_told(stage.server, shelf.model)
        finally:
            shelf.put(inside, right)
        await back(stage, shelf)
        await until_mended(stage.server, shelf.model)


# -- directories that go


@dataclass(frozen=True, slots=True, kw_only=True)
class Blinked(Fault):
    """A model's directory is gone for a moment, as while a deployment renames it.

    The moment is shorter than the time between two looks.
    """

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Take the directory away. Raises NoTarget."""
        shelf = choose(stage, target)
        t = now()
        taken = shelf.take()
        return Injection(
            t=t,
            models=(),
            detail=f"the directory of '{shelf.model}' is gone for a moment",
            undo=partial(self._returned, stage, shelf, taken),
        )

    async def _returned(self, stage: Stage, shelf: Shelf, taken: Path) -> None:
        shelf.give_back(taken)
        await back(stage, shelf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted(Fault):
    """A model's directory is deleted, and comes back.

    This is the one fault of the family that must be felt, by its own model.
    """

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Take the directory away. Raises NoTarget."""
        shelf = choose(stage, target, ("batching",))  # of which no other is composed
        t = now()
        taken = shelf.take()
        return Injection(
            t=t,
            models=[shelf.model],
            detail=f"the directory of '{shelf.model}' is deleted",
            excuses=[Excuse(models=[shelf.model], codes=("NOT_FOUND", "UNAVAILABLE"), after=1.0)],
            expects=[
                LogExpected(
                    event=Event.REPOSITORY_CHANGED.value,
                    keys={"model": shelf.model, "change": "removed"},
                    within=_SEEN_WITHIN,
                )
            ],
            undo=partial(self._returned, stage, shelf, taken),
        )

    async def _returned(self, stage: Stage, shelf: Shelf, taken: Path) -> None:
        seen = await states(stage.server, shelf.model)
        shelf.give_back(taken)
        await back(stage, shelf)
        if READY in seen.values():
            raise Trouble(f"'{shelf.model}' is still {seen} {self.lasts} s after its directory was deleted")


# -- models that come and go


_GUESTS: Final = ("echo-guest", "slow-guest")
# Seconds; the first is over before a model is ready, or just then.
_STAYS: Final = (0.6, 0.9)
_AWAY: Final = 0.6


async def _come_and_go(stage: Stage, target: random.Random) -> list[str]:
    """Put the fault's own models in and take them out, faster than they load, and ask them throughout."""
    troubles: list[str] = []

    async def ask(model: str) -> None:
        while True:
            troubles.extend(await together([partial(ask_guest, stage, model, target)]))
            await trio.sleep(0.02)

    async with trio.open_nursery() as asking:
        async with trio.open_nursery() as visits:
            for guest in _GUESTS:
                asking.start_soon(ask, guest)
                visits.start_soon(_visit, stage, guest, troubles)
        asking.cancel_scope.cancel()
    for guest in _GUESTS:
        await until_states(stage.server, guest, gone, "it should be gone with its directory")
    return troubles


async def _visit(stage: Stage, guest: str, troubles: list[str]) -> None:
    shelf = Shelf(stage, guest)
    try:
        for stay in _STAYS:
            write_model(shelf.beside(), guest, run=stage.folder).rename(shelf.path)
            await trio.sleep(stay)
            if stay == _STAYS[-1]:
                await until_states(stage.server, guest, serving_alone(1), "it is there, and should serve")
            shelf.remove()
            await trio.sleep(_AWAY)
    except Trouble as trouble:
        troubles.append(str(trouble))
    finally:
        shelf.remove()


async def ask_guest(stage: Stage, model: str, target: random.Random) -> str:
    """Ask a model that may not be there.

    It must give the right answer, or say that it is not there, and nothing else.
    """
    question = Question.draw(model, target)
    async with await Connection.open(stage.server.http_port) as connection:
        await connection.send(question.http)
        answer = await connection.answer()
    if answer.status in (404, 503):
        return ""
    return question.judge_http(answer)


_UNHARMED: Final = "; the version that serves goes on, and no request fails."
_TOLD: Final = "the log says why, and until it is mended so do the index, the tree and a metric"

FAULTS: Final[Sequence[Fault]] = (
    HalfCopied(
        name="half_copied",
        expected="A version that is being copied is left alone until its copy has come to rest, then it takes over"
        + _UNHARMED,
        manifest=False,
    ),
    HalfCopied(
        name="half_copied_with_checksums",
        expected="A version whose checksums are there first is left alone until every file is right, however long the copy pauses, then it "
        "takes over" + _UNHARMED,
        manifest=True,
    ),
    Corrupted(
        name="corrupted_model",
        expected="A model file that can't be loaded is not: " + _TOLD + _UNHARMED,
        configuration=False,
        lasts=1.5,
    ),
    Corrupted(
        name="corrupted_config",
        expected="A configuration that can't be read changes nothing: " + _TOLD + _UNHARMED,
        configuration=True,
        lasts=1.5,
    ),
    Blinked(
        name="directory_blinks",
        expected="Nobody notices: a model has gone only when two looks in a row have missed it.",
        lasts=0.15,
    ),
    Deleted(
        name="directory_deleted",
        expected="The model answers what it had accepted, then requests to it are NOT_FOUND or UNAVAILABLE until its directory is back and it "
        "is loaded; no other model notices.",
        weight=0.5,
        lasts=2.0,
    ),
    Attack(
        name="models_come_and_go",
        expected="Models that are put in and taken out faster than they load answer rightly, or are NOT_FOUND or UNAVAILABLE, and are all gone "
        "in the end; no other model notices.",
        attack=_come_and_go,
        detail="models of the fault's own are put into the repository and taken out",
    ),
)
"""The family's faults, for a server that polls."""
