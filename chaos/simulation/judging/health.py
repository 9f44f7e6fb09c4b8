"""What has to be true of a server once all faults are over and all its requests are answered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from actors.serving.model import ModelState
from actors.supervision.lifecycle import ChildState
from actors.values.specs import ModelKey
from chaos.simulation.judging.control import Control, Standing
from chaos.simulation.outcomes import LOST, Outcome
from chaos.simulation.world.disk import Disk
from chaos.simulation.world.models import MODELS
from chaos.wires.http import ask
from engine.server.running import RunningServer

_INSTANCE: Final = re.compile(r"models/[^/]+/[^/]+/instances/[^/]+")


def trouble(  # noqa: C901  a list of checks
    running: RunningServer,
    models: Sequence[str],
    disk: Disk,
    states: Iterable[ModelState],
) -> Iterator[str]:
    """Yield what is wrong with a server that should serve all `models`.

    `states` are all versions that there ever were.
    """
    if not running.root.is_running:
        yield f"the tree has ended: {running.failures}"
        return
    known = {f"models/{state.subtree}/instances/{each.key}" for state in states for each in state.instances}
    for node in running.root.tree().walk():
        if _INSTANCE.fullmatch(node.path) and node.path not in known:
            yield f"{node.path} is still there, and was replaced"
        if node.state is not ChildState.RUNNING:
            yield f"{node.path} is {node.state.value}, since it has ended by {node.last_exit}"
    if not running.readiness.is_ready:
        yield "the server is not ready"
    held = 0  # models with files
    for name in models:
        ready = running.router.roster.ready(ModelKey(name))
        if not ready:
            yield f"model '{name}' does not serve"
        beside = running.router.roster.background(ModelKey(name))
        if beside:
            yield f"{len(beside)} versions of model '{name}' still load or retire"
        held += bool(ready) and MODELS[name].kind != "ensemble"
        for state in ready.values():
            yield from _trouble_of(state)
    # One directory for the configuration as it is, and one for the version that serves, which may be older.
    if not held <= disk.fetched - disk.released <= 2 * len(models):
        yield f"{disk.fetched - disk.released} directories are held by {held} models that serve"
    limiter = next(
        (state.dispatcher.limiter for state in states if state.dispatcher.limiter is not None), None
    )
    if limiter is not None:
        statistics = limiter.statistics()
        if statistics.line or any(pool.used for pool in statistics.pools.values()):
            yield f"the rate limiter is not at rest: {statistics.pools}"


async def disagreement(addresses: Mapping[str, bytes], models: Sequence[str], control: Control) -> list[str]:
    """Return where the repository's index, readiness and the orders that were carried out disagree."""
    found: list[str] = []
    index = await ask(addresses["http"], "POST", "/v2/repository/index")
    entries = [each for each in index.json() if each["name"] in models]
    fine = all(each.get("state", "READY") == "READY" or each.get("reason") == "unloaded" for each in entries)
    status = (await ask(addresses["http"], "GET", "/v2/health/ready")).status
    if fine is not (status == 200):
        found.append(f"readiness is told by {status}, and the index says {entries}")
    for name in models:
        own = [each for each in entries if each["name"] == name]
        standing = _standing(own)
        expected = control.standings(name)
        if standing not in expected:
            found.append(
                f"'{name}' is in the index as {own}, and may be {sorted(each.value for each in expected)}"
            )
        status = (await ask(addresses["http"], "GET", f"/v2/models/{name}/ready")).status
        if (standing is Standing.SERVES) is not (status == 200):
            found.append(f"readiness of '{name}' is told by {status}, and the index says {own}")
    return found


def _standing(entries: Sequence[Mapping[str, str]]) -> Standing | None:
    """Return what the index says of a model; None if something is still going on."""
    states = {each.get("state", "") for each in entries}
    if not entries or states & {"LOADING", "UNLOADING", "UNKNOWN"}:
        return None
    if "READY" in states:
        return Standing.SERVES
    gone = all(not each.get("state") or each.get("reason") == "unloaded" for each in entries)
    return Standing.UNLOADED if gone else Standing.FAILED


def miscounts(
    states: Iterable[ModelState], models: Sequence[str], outcomes: Sequence[Outcome]
) -> Iterator[str]:
    """Yield where the statistics of all versions that there ever were contradict what clients have got."""
    for state in states:
        name = f"{state.spec.name}/{state.spec.version}"
        if state.statistics.reply_violations:
            yield f"'{name}' was answered {state.statistics.reply_violations} times too often"
    answered = sum(outcome.ok for outcome in outcomes)
    counted = sum(
        state.statistics.success_count
        for state in states
        if not any(state.spec.name in MODELS[name].steps for name in models)
    )
    # Those may have been counted before their clients, or their deadlines, called them off, or their
    # connection was lost.
    left = sum(
        not outcome.ok
        and (outcome.code == LOST or bool(outcome.request.patience or outcome.request.deadline))
        for outcome in outcomes
    )
    direct = sum(
        outcome.ok and not any(outcome.request.model in MODELS[name].steps for name in models)
        for outcome in outcomes
    )
    if not direct <= counted <= direct + left:
        yield f"{direct} of {answered} good answers were counted as {counted}"


def _trouble_of(state: ModelState) -> Iterator[str]:
    name = f"{state.spec.name}/{state.spec.version}"
    if state.in_flight:
        yield f"{name} has {len(state.in_flight)} requests"
    if len(state.queue):
        yield f"{name} has {len(state.queue)} requests in its queue"
    waiting = sum(stage.waiting for stage in state.stages)
    if waiting:
        yield f"{name} has {waiting} requests that wait in the cache"
    for instance in state.instances:
        if instance.worker is None:
            yield f"instance {instance.key} of {name} has no worker: {instance.last_reason}"
        elif not (instance.worker.idle and instance.worker.has_room):
            yield f"instance {instance.key} of {name} is not idle"
        elif instance.worker.memory.in_use:
            yield f"{instance.worker.memory.in_use} slots of instance {instance.key} of {name} are leased, and nobody has them"
        if len(instance.suspects) or instance.suspects.running:
            yield f"instance {instance.key} of {name} has suspects"
