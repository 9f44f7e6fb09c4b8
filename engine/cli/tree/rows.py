"""The live page's rows, from what a server told: models first, then the other parts of the tree. Pure.

A row keeps its key from reading to reading, so that what a viewer selected and opened stays so. Models that
need attention come before the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.cli.tree.facts import STYLES, Node, facts, in_bytes, now_of, restarts, words_of
from engine.cli.tree.reading import Rate, Reading, Version, rates
from engine.observability.loads import load_seconds, load_text
from engine.observability.text import duration
from engine.settings.forms import size_text

RECENT: Final = 300.0
"""Seconds for which a restart is news."""

_UNLOADED: Final = "unloaded"
_SAID: Final = frozenset({"model", "version"})
_SERVING: Final = frozenset({"serving", "passive"})
_ERROR: Final = re.compile(r"""crashed: \w+\((["'])(.+)\1\)""")
_WORST: Final = ("exhausted", "backing_off", "stopping", "starting")
_FINE: Final = "green"
_BUSY: Final = "yellow"
_BAD: Final = "bold red"
_REST: Final = "dim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing, with what is told of it: in columns, or as words that fill the line.

    `notes` are (words, style) of lines below it. `opens`: it has rows or lines
    below it; `is_open`: they follow.
    """

    key: str
    name: str
    state: str
    style: str
    depth: int = 0
    cells: Mapping[str, str] | None = None
    words: str = ""
    notes: Sequence[tuple[str, str]] = ()
    opens: bool = False
    is_open: bool = False


def head(before: Reading | None, reading: Reading) -> list[tuple[str, str]]:
    """Return the server in a few (words, style), the most important first."""
    now, tree = now_of(reading.tree), reading.tree
    ready = _info(_find(tree, "telemetry", "readiness")).get("ready")
    words: list[tuple[str, str]] = []
    if isinstance(ready, bool):
        words.append(("ready", _FINE) if ready else ("not ready", _BAD))
    if now is not None and isinstance(tree.get("since"), int | float):
        words.append((f"up {duration(now - tree['since'])}", ""))
    found = rates(before, reading)
    if found:
        words.append((f"{sum(each.requests for each in found.values()):.1f} requests/s", ""))
        if failures := sum(each.failures for each in found.values()):
            words.append((f"{failures:.1f} failures/s", _BAD))
    residency = _info(_find(tree, "services", "residency"))
    resident, budget = residency.get("resident"), residency.get("budget")
    if isinstance(resident, int) and isinstance(budget, int) and resident:
        words.append((f"{mib(resident)} of {size_text(budget)}", ""))
    return words


def mib(nbytes: int) -> str:
    """Return bytes in MiB."""
    return f"{nbytes / (1 << 20):.1f} MiB"


def rows(before: Reading | None, reading: Reading, opened: frozenset[str]) -> list[Row]:
    """Return all rows, those below the ones that are `opened` included."""
    return [*_models(before, reading, opened), *_parts(reading, opened)]


# -- models


def _models(before: Reading | None, reading: Reading, opened: frozenset[str]) -> Iterator[Row]:
    now = now_of(reading.tree)
    rated = rates(before, reading)
    told = {(str(each.get("name")), str(each.get("version", ""))): each for each in reading.index}
    subtrees: dict[Version, list[Node]] = {}
    for child in _children(_find(reading.tree, "models")):
        name, _, number = str(child.get("name", "?")).rpartition("/")
        info = _info(child)
        key = (str(info.get("model", name)), str(info.get("version", number)))
        subtrees.setdefault(key, []).append(child)
    residency = _info(_find(reading.tree, "services", "residency"))
    lazy = residency.get("on_demand") or ()
    sizes = residency.get("models") or {}
    made = []
    for key in sorted({*told, *subtrees}):
        # A version that was replaced may be in its last moments beside the one that serves.
        for node in subtrees.get(key, [None]):
            model = _Model(key=key, entry=told.get(key, {}), node=node, now=now, on_demand=key[0] in lazy)
            made.append((model, node, key))
    made.sort(key=lambda each: each[0].is_calm)
    for model, node, key in made:
        yield model.row(rated.get(key), sizes.get(key[0]), opened)
        if node is not None and model.key in opened:
            yield from _below(node, now, depth=1)


class _Model:
    """One version of one model: its subtree, its line of the index, or both."""

    def __init__(
        self, *, key: Version, entry: Mapping[str, Any], node: Node | None, now: float | None, on_demand: bool
    ) -> None:
        self._name, self._version = key
        self._entry = entry
        self._node = node
        self._now = now
        self._progress: Mapping[str, Any] = entry.get("progress") or {}
        self._instances = [] if node is None else _children(_find(node, "instances"))
        self.state, self._style = self._standing(on_demand)
        self.key = str(node.get("path")) if node is not None else f"models/{self._name}/{self._version}"

    @property
    def is_calm(self) -> bool:
        """Whether it needs no attention."""
        return self._style in (_FINE, _REST) and self._last is None and not self._reload_failed

    @property
    def _reload_failed(self) -> str:
        reason = str(self._entry.get("reason", ""))
        return reason if self._entry.get("state") == "READY" else ""

    @property
    def _last(self) -> Node | None:
        """The part of it that ended a short while ago, or is down."""
        ended = (
            [each for each in _walk(self._node) if each.get("last_exit")] if self._node is not None else []
        )
        fresh = [each for each in ended if each.get("state") != "running" or _age(each, self._now) < RECENT]
        return min(fresh, key=lambda each: _age(each, self._now), default=None)

    def _standing(self, on_demand: bool) -> tuple[str, str]:
        """Return its state in words, and how that looks."""
        state, reason = str(self._entry.get("state", "")), str(self._entry.get("reason", ""))
        if self._node is None:
            return self._absent(state, reason, on_demand)
        worst = _worst_of(self._node)
        serving = sum(_serves(each) for each in self._instances)
        if worst in ("exhausted", "backing_off"):
            words = "restarting" if worst == "backing_off" else "gave up"
            return (f"{serving}/{len(self._instances)} ready" if serving else words), _BAD
        if self._progress or state in ("LOADING", "UNLOADING"):
            return (state or "LOADING").lower() if state != "READY" else "reloading", _BUSY
        if self._instances and serving < len(self._instances):
            return (f"{serving}/{len(self._instances)} ready" if serving else "loading"), _BUSY
        if worst:
            return worst, _BUSY
        return "ready", _FINE

    def _absent(self, state: str, reason: str, on_demand: bool) -> tuple[str, str]:
        if self._progress or state == "LOADING":
            return "loading", _BUSY
        if state and reason != _UNLOADED:
            return "unavailable", _BAD
        if on_demand:
            return "on demand", _REST
        return ("unloaded" if state else "not loaded"), _REST

    def row(self, rate: Rate | None, size: object, opened: frozenset[str]) -> Row:
        """Return its row."""
        nodes = [] if self._node is None else list(_walk(self._node))
        count = sum(int(each.get("restarts") or 0) for each in nodes)
        cells = {"RESTARTS": str(count) if self._node is not None else ""}
        if isinstance(size, int):
            cells["MEMORY"] = mib(size)
        if self._instances:
            cells["WORKERS"] = str(len(self._instances))
        if rate is not None:
            cells |= {
                "REQ/S": f"{rate.requests:.1f}",
                "FAIL/S": f"{rate.failures:.1f}",
                "QUEUE": _time(rate.queue),
                "INFER": _time(rate.infer),
            }
        is_open = self.key in opened
        return Row(
            key=self.key,
            name=f"{self._name}/{self._version}" if self._version else self._name,
            state=self.state,
            style=self._style,
            cells=cells,
            notes=list(self._notes(whole=is_open)),
            opens=self._node is not None or bool(self._entry.get("reason")),
            is_open=is_open,
        )

    def _notes(self, *, whole: bool) -> Iterator[tuple[str, str]]:
        if self._progress:
            seconds = load_seconds(self._progress)
            after = "" if seconds is None else f", for {duration(seconds)}"
            yield f"{load_text(self._progress)}{after}", _BUSY
        elif self.state == "loading":
            phases = [_info(each).get("phase") for each in self._instances if not _serves(each)]
            if phases and phases[0]:
                yield load_text({"phase": phases[0]}), _BUSY
        reason = str(self._entry.get("reason", "")).strip()
        if reason and reason != _UNLOADED:
            lines = [line for line in reason.splitlines() if line.strip()]
            yield from ((line, "red") for line in (lines if whole else lines[:1]))
        last = self._last
        if last is not None and not whole:  # its own row tells it
            yield _ended(last, self._now), "red"


def _ended(node: Node, now: float | None) -> str:
    age = _age(node, now)
    ago = f" {duration(age)} ago" if age < float("inf") and node.get("state") == "running" else ""
    what = str(node.get("name", "?"))
    whose = f"instance {what}" if what.isdecimal() else what
    return f"{whose} {f'was restarted{ago}' if ago else 'ended'}: {_reason(str(node['last_exit']))}"


def _reason(last_exit: str) -> str:
    """Return why something ended: of an error, its message."""
    error = _ERROR.fullmatch(last_exit)
    return last_exit if error is None else error[2]


def _serves(instance: Node) -> bool:
    return instance.get("state") == "running" and _info(instance).get("phase", "serving") in _SERVING


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


# -- the other parts


def _parts(reading: Reading, opened: frozenset[str]) -> Iterator[Row]:
    now = now_of(reading.tree)
    for branch in _children(reading.tree):
        if branch.get("name") != "models":
            yield _part(branch, opened)
            if _key(branch) in opened:
                yield from _below(branch, now, depth=1)
            else:
                yield from (
                    _node(each, now, depth=1)
                    for each in _walk(branch)
                    if each is not branch and _is_news(each, now)
                )


def _part(branch: Node, opened: frozenset[str]) -> Row:
    inside = list(_walk(branch))
    worst = _worst_of(branch)
    count = sum(int(each.get("restarts") or 0) for each in inside)
    words = f"{len(inside) - 1} parts" + (f", {restarts(count)}" if count else "")
    return Row(
        key=_key(branch),
        name=str(branch.get("name", "?")),
        state=(worst or str(branch.get("state", "?"))).replace("_", " "),
        style=STYLES.get(worst or str(branch.get("state")), ""),
        words=words,
        opens=bool(_children(branch)),
        is_open=_key(branch) in opened,
    )


def _below(node: Node, now: float | None, *, depth: int) -> Iterator[Row]:
    """Yield what is below an open row; connections are only counted."""
    for child in _children(node):
        yield _node(child, now, depth=depth)
        if child.get("name") != "connections":
            yield from _below(child, now, depth=depth + 1)


def _node(node: Node, now: float | None, *, depth: int) -> Row:
    state = str(node.get("state", "?"))
    told = [words for kind, words in facts({**node, "info": {}}, now) if kind in ("since", "restarts")]
    children = _children(node)
    if node.get("name") == "connections" and children:
        told.append(f"{len(children)} open")
    told += _told(node)
    ended = node.get("last_exit")
    return Row(
        key=_key(node),
        name=str(node.get("name", "?")),
        state=state.replace("_", " "),
        style=STYLES.get(state, ""),
        depth=depth,
        words=", ".join(told),
        notes=[(f"last ended: {_reason(str(ended))}", "red")] if ended else [],
    )


def _told(node: Node) -> Iterator[str]:
    for key, value in _info(node).items():
        if key not in _SAID and value is not None and value not in ([], {}, ""):
            yield f"{key.replace('_', ' ')} {words_of(value, nbytes=in_bytes(key, value))}"


def _is_news(node: Node, now: float | None) -> bool:
    return node.get("state") != "running" or (bool(node.get("last_exit")) and _age(node, now) < RECENT)


def _key(node: Node) -> str:
    return str(node.get("path") or node.get("name", "?"))


# -- of nodes


def _info(node: Node | None) -> Mapping[str, Any]:
    return {} if node is None else node.get("info") or {}


def _children(node: Node | None) -> Sequence[Node]:
    return () if node is None else node.get("children") or ()


def _find(node: Node, *path: str) -> Node | None:
    found: Node | None = node
    for name in path:
        found = next((each for each in _children(found) if each.get("name") == name), None)
    return found


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in _children(node):
        yield from _walk(child)


def _worst_of(node: Node) -> str:
    """Return the state below `node` that needs most attention; empty if all of it runs."""
    states = {str(each.get("state")) for each in _walk(node)}
    return next((state for state in _WORST if state in states), "")


def _age(node: Node, now: float | None) -> float:
    since = node.get("since")
    return now - since if now is not None and isinstance(since, int | float) else float("inf")
