"""Every model version that was ever asked to run: what serves, loads, retires or has failed. Passive.

The catalog edits it, and the other rooms read it. A model is known by its *key*: its name, or where models of
several repositories may share one, its name and its namespace.

The routes port. A feature may decide which model answers requests for a model: `set_fronting` chooses among
the versions that serve, for requests that name none, and `set_dormant` gives the stand-ins that answer while
none serves. Without either, the highest version answers. What was decided is kept in `fronts`, so a request
pays for a look-up alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from actors.serving.model import ModelState
from actors.serving.standing import Status
from actors.values.interfaces import DUPLICATE_REASON, UNLOADED, IndexEntry
from actors.values.requests import ServedModel
from actors.values.specs import ModelKey

RELOAD_FAILED = "reload failed: "
"""The reason beside READY begins with this where the serving version is older than its failed replacement."""

Fronting = Callable[[Mapping[int, ModelState]], ServedModel | None]
"""Chooses the model for requests that name no version, from the READY ones; None: the highest version."""

StandIns = Mapping[int, ServedModel]
"""What answers for each version while the model is not loaded."""


@dataclass(frozen=True, slots=True)
class LoadCounts:
    """How often a model could not be loaded, and which serving versions could not be replaced."""

    name: str
    namespace: str
    failures: int
    reload_failed: Mapping[int, bool]  # by version that serves


@dataclass(slots=True)
class KnownModel:
    """What is known of one model.

    A version is in at least one of the three maps; the index shows those in `serving`.
    """

    # The versions in it that are READY get the requests.
    serving: dict[int, ModelState] = field(default_factory=dict)
    loading: list[ModelState] = field(default_factory=list)  # not serving yet, though some may be READY
    retiring: list[ModelState] = field(default_factory=list)  # they have served
    past: dict[int, IndexEntry] = field(default_factory=dict)  # failed to load, or was unloaded
    # Why it can't be configured at all, if no version tells.
    broken: str = ""
    # Why the last reload beside the serving versions failed, by version; 0 stands for all of them.
    setbacks: Mapping[int, str] = field(default_factory=dict)
    failures: int = 0  # failed loads, since it is known
    # It is no longer in the repository. Its retiring versions are listed until they have ended.
    left: bool = False
    fronting: Fronting | None = None
    dormant: StandIns = field(default_factory=dict)  # they answer while it is not loaded

    @property
    def ready(self) -> dict[int, ModelState]:
        """The versions that serve, ascending."""
        return {
            number: self.serving[number]
            for number in sorted(self.serving)
            if self.serving[number].status is Status.READY
        }

    @property
    def front(self) -> ServedModel | None:
        """The model for requests that name no version; None where nothing answers."""
        ready = self.ready
        if ready:
            chosen = None if self.fronting is None else self.fronting(ready)
            return chosen or ready[max(ready)]
        return self.dormant[max(self.dormant)] if self.dormant else None

    @property
    def background(self) -> list[ModelState]:
        """The versions that are there without serving."""
        return [*self.loading, *self.retiring]

    @property
    def is_empty(self) -> bool:
        """Whether there is no information left about it."""
        return not (self.serving or self.background or self.past or self.broken or self.dormant)

    def setback(self, version: int) -> str:
        """Return why the last reload of a serving version failed; empty if it did not."""
        if not self.setbacks or version not in self.serving:
            return ""
        others = "; ".join(f"version {number}: {reason}" for number, reason in sorted(self.setbacks.items()))
        return self.setbacks.get(version) or self.setbacks.get(0) or others

    def entries(self, key: ModelKey) -> Iterator[IndexEntry]:
        """Yield every version as the index lists it."""
        if self.broken:
            yield _entry(key, 0, Status.UNAVAILABLE.value, self.broken)
        shown = dict(self.past)
        for state in (*self.background, *self.serving.values()):
            status = state.status
            if status is Status.READY and state in self.loading:
                # It gets no requests before the load of all versions has ended well.
                status = Status.LOADING
            setback = self.setback(state.spec.version) if status is Status.READY else ""
            shown[state.spec.version] = _entry(
                key,
                state.spec.version,
                status.value,
                f"{RELOAD_FAILED}{setback}" if setback else state.reason,
                essential=state.spec.essential,
            )
        for number in self.dormant:
            if number not in shown:
                shown[number] = _entry(key, number, Status.UNAVAILABLE.value, UNLOADED)
        for number in sorted(shown):
            yield shown[number]


class Roster:
    """Every model version that was ever asked to run, and those models that never could be."""

    def __init__(self) -> None:
        # By the name that requests use: the model for requests without a version.
        self.fronts: dict[str, ServedModel] = {}
        # For the router to read:
        self.known: dict[ModelKey, KnownModel] = {}
        self.named: dict[str, list[ModelKey]] = {}  # keys by the name that requests use
        self._observers: list[Callable[[ModelKey], None]] = []
        # How often which model answers may have changed: while this stays, a name leads to the same version.
        self.changes = 0

    # -- for the catalog -------------------------------------------------------------------------------------

    def on_change(self, observer: Callable[[ModelKey], None]) -> None:
        """Have `observer` called whenever a model changes. It must not raise."""
        self._observers.append(observer)

    def load_begun(self, key: ModelKey, state: ModelState) -> None:
        """A version is loading, beside the serving one if there is one."""
        known = self._record(key)
        known.broken, known.left = "", False
        known.past.pop(state.spec.version, None)
        known.loading.append(state)
        self._refresh(key)

    def load_ended(self, key: ModelKey, state: ModelState, reason: str) -> None:
        """That load failed. `reason` is shown if no other version of that number serves."""
        known = self._record(key)
        known.loading = [each for each in known.loading if each is not state]
        if state.spec.version not in known.serving:
            known.past[state.spec.version] = _ended(state, reason)
        self._refresh(key)

    def serve(self, key: ModelKey, states: Mapping[int, ModelState]) -> list[ModelState]:
        """Send requests to `states` from now on, and to no other version.

        Returns the replaced ones, to be retired.
        """
        known = self._record(key)
        replaced = [state for state in known.serving.values() if state not in states.values()]
        known.loading = [state for state in known.loading if state not in states.values()]
        known.retiring += replaced
        known.serving = dict(sorted(states.items()))
        known.broken, known.setbacks = "", {}
        # Earlier failures are made up for. A version that is no longer wanted stays listed as unloaded.
        if states:
            known.past = {
                number: each
                for number, each in known.past.items()
                if number not in states and each.reason == UNLOADED
            }
        self._refresh(key)
        return replaced

    def load_failed(self, key: ModelKey, reasons: Mapping[int, str]) -> None:
        """A load failed, for these reasons by version, 0 standing for all.

        The serving versions go on, and the reasons are shown beside them.
        """
        known = self._record(key)
        known.failures += 1
        known.setbacks = dict(reasons) if known.serving else {}
        self._refresh(key)

    def setback(self, key: ModelKey, version: int) -> str:
        """Return why the last reload of a serving version failed; empty if it did not."""
        known = self.known.get(key)
        return "" if known is None else known.setback(version)

    def loads(self) -> Iterator[LoadCounts]:
        """Yield the counts of the loads of each model, for metrics."""
        for key in sorted(self.known):
            known = self.known[key]
            failed = {number: bool(known.setbacks) for number in sorted(known.serving)}
            yield LoadCounts(key.name, key.namespace, failures=known.failures, reload_failed=failed)

    def retired(self, key: ModelKey, state: ModelState) -> None:
        """A replaced version has answered all its requests, and its subtree has ended."""
        known = self._record(key)
        known.loading = [each for each in known.loading if each is not state]
        known.retiring = [each for each in known.retiring if each is not state]
        if state.spec.version not in known.serving and not known.left:
            known.past.setdefault(state.spec.version, _ended(state, UNLOADED))  # unless there is newer news
        self._refresh(key)

    def mark_broken(
        self, key: ModelKey, versions: Sequence[int], reason: str, *, faults: Mapping[int, str] | None = None
    ) -> None:
        """A model can't be configured. Versions that serve go on; the others are listed with `reason`.

        With `faults`, by version, versions without a fault of their own failed only because of the others.
        """
        known = self._record(key)
        known.broken = "" if versions or known.serving else reason
        known.left = False
        for version in versions:
            if version not in known.serving:
                told = reason if faults is None else faults.get(version, UNLOADED)
                known.past[version] = _entry(key, version, Status.UNAVAILABLE.value, told)
        self._refresh(key)

    def unloaded(self, key: ModelKey) -> None:
        """The model was unloaded on purpose, whatever its state was before."""
        known = self._record(key)
        known.broken = ""
        for number in known.past:
            known.past[number] = _entry(key, number, Status.UNAVAILABLE.value, UNLOADED)
        self._refresh(key)

    def forget(self, key: ModelKey) -> None:
        """The model has left the repository: versions that have ended are no longer listed."""
        known = self._record(key)
        known.past.clear()
        known.broken, known.left = "", True
        self._refresh(key)

    def changed(self, state: ModelState) -> None:
        """A version's status is new: choose anew which one answers for the model."""
        self._refresh(state.spec.key)

    def set_fronting(self, key: ModelKey, fronting: Fronting | None) -> None:
        """Have `fronting` choose the model for requests that name no version."""
        self._record(key).fronting = fronting
        self._refresh(key)

    def set_dormant(self, key: ModelKey, models: StandIns | None) -> None:
        """Have `models`, by version, answer while the model is not loaded."""
        self._record(key).dormant = models or {}
        self._refresh(key)

    def _record(self, key: ModelKey) -> KnownModel:
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = KnownModel()
            self.named.setdefault(key.name, []).append(key)
        return known

    def _refresh(self, key: ModelKey) -> None:
        self.changes += 1
        known = self.known.get(key)
        if known is None:
            return
        if known.is_empty:
            del self.known[key]
            self.named[key.name].remove(key)
            if not self.named[key.name]:
                del self.named[key.name]
        keys = self.named.get(key.name, ())
        front = self.known[keys[0]].front if len(keys) == 1 else None
        if front is None:
            self.fronts.pop(key.name, None)
        else:
            self.fronts[key.name] = front
        for observer in self._observers:
            observer(key)

    # -- what there is ---------------------------------------------------------------------------------------

    def keys(self, name: str = "") -> Sequence[ModelKey]:
        """Return the keys of the models called `name`, or of all."""
        return sorted(self.named.get(name, ()) if name else self.known)

    def serving(self, key: ModelKey) -> Mapping[int, ModelState]:
        """Return the versions that requests are sent to while they are READY."""
        known = self.known.get(key)
        return {} if known is None else dict(known.serving)

    def ready(self, key: ModelKey) -> Mapping[int, ModelState]:
        """Return those of them that are READY, ascending."""
        known = self.known.get(key)
        return {} if known is None else known.ready

    def background(self, key: ModelKey) -> Sequence[ModelState]:
        """Return the versions that load or retire beside them."""
        known = self.known.get(key)
        return [] if known is None else known.background

    def states(self) -> Iterator[ModelState]:
        """Every version that requests are sent to, by name and version."""
        for key in sorted(self.known):
            for _, state in sorted(self.known[key].serving.items()):
                yield state

    def past(self, key: ModelKey) -> Mapping[int, str]:
        """Return why versions that do not serve failed to load, or that they were unloaded.

        0 stands for all of them.
        """
        known = self.known.get(key)
        if known is None:
            return {}
        reasons = {number: entry.reason for number, entry in known.past.items()}
        return {0: known.broken, **reasons} if known.broken else reasons

    def dormant(self, key: ModelKey) -> StandIns:
        """Return the stand-ins of a model that is loaded on demand, which answer while it is not loaded."""
        known = self.known.get(key)
        return {} if known is None else known.dormant

    def front(self, key: ModelKey) -> ServedModel | None:
        """Return the model for requests that name no version; None where nothing answers."""
        known = self.known.get(key)
        return None if known is None else known.front

    def index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        """Return every version with its state. Loads in progress are given by `background`."""
        entries = [entry for key in sorted(self.known) for entry in self.known[key].entries(key)]
        if ready_only:  # duplicates are listed all the same (contract, repository.md section 4)
            return [
                each
                for each in entries
                if each.state == Status.READY.value or each.reason == DUPLICATE_REASON
            ]
        return entries


def _entry(key: ModelKey, version: int, state: str, reason: str, *, essential: bool = True) -> IndexEntry:
    return IndexEntry(
        name=key.name,
        namespace=key.namespace,
        version=version,
        state=state,
        reason=reason,
        essential=essential,
    )


def _ended(state: ModelState, reason: str) -> IndexEntry:
    return _entry(
        state.spec.key,
        state.spec.version,
        Status.UNAVAILABLE.value,
        reason,
        essential=state.spec.essential,
    )
