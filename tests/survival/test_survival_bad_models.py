"""Models that fail for ever, load for ever, or vanish: the others serve on, and the index stays true."""

from itertools import dropwhile

import pytest
import trio

from tests.survival.changing import (
    Workshop,
    code,
    entries,
    index_of,
    ready,
    refusal,
    states,
    until_states,
    witnessed,
)
from tests.survival.server import eventually

pytestmark = pytest.mark.slow

POLLING = ("--model-control-mode=poll", "--repository-poll-secs=0.1")
BROKEN = 'raise RuntimeError("the weights are not there")'
WORK = 0.005


@pytest.fixture
def workshop(repository):
    made = Workshop(repository.path)
    made.model("telling", execute_seconds=WORK)
    return made


@pytest.fixture(params=[3.0, pytest.param(30.0, marks=pytest.mark.long)])
def slow_seconds(request):
    """How long the slow model takes to load."""
    return request.param


class Record:
    """What the index said of one model at each request, without repetitions."""

    def __init__(self):
        self.said = []

    def note(self, shown):
        summary = [(each.get("version"), each.get("state")) for each in shown]
        if not self.said or self.said[-1] != summary:
            self.said.append(summary)


async def record(server, records):
    """Ask the index again and again, until cancelled."""
    async with await server.connect() as connection:
        while True:
            shown = await index_of(connection)
            for name, kept in records.items():
                kept.note([each for each in shown if each["name"] == name])
            await trio.sleep(0.02)


async def test_models_that_fail_or_take_long_or_vanish_disturb_nobody(tritium_server, workshop, slow_seconds):
    workshop.model("vanishing")
    async with tritium_server(*POLLING, "--model-load-retry-count=2") as server:
        records = {name: Record() for name in ("telling", "failing", "slow", "vanishing", "late")}
        async with witnessed(server, "telling") as witness, trio.open_nursery() as nursery:
            nursery.start_soon(record, server, records)
            workshop.model("slow", initialize=f"time.sleep({slow_seconds})")
            await until_states(server, "slow", {1: "LOADING"})
            assert await ready(server)
            workshop.model("failing", initialize=BROKEN)
            workshop.remove("vanishing")
            workshop.model("late")

            await until_states(server, "late", {1: "READY"})
            await until_states(server, "vanishing", {})
            # Between two attempts the version is LOADING again, without a reason: state and reason count in
            # one answer.
            await eventually(lambda: told(server, "failing", "the weights are not there"), within=30)
            assert await states(server, "slow") == {1: "LOADING"}
            (shown,) = await entries(server, "slow")
            assert shown["progress"]["phase"] == "loading"
            assert shown["progress"]["seconds"] >= 0
            assert (await refusal(server, "slow"))[0] in {400, 404, 503}
            assert not await ready(server, "slow")
            assert not await ready(server)  # strict: a model of the repository does not serve
            assert (await server.get("/v2/health/live")).status == 200

            await until_states(server, "slow", {1: "READY"})
            assert await ready(server, "slow")
            workshop.write("failing/1/model.py", code(2))  # mended: a change is tried again
            await until_states(server, "failing", {1: "READY"})
            assert await ready(server)
            await witness.heard_more()
            nursery.cancel_scope.cancel()
        assert set(witness.seen) == {1}
        assert records["telling"].said == [[("1", "READY")]]
        assert follows(records["slow"], "LOADING", "READY"), records["slow"].said
        assert follows(records["late"], "LOADING", "READY"), records["late"].said
        assert follows(records["failing"], "LOADING", "UNAVAILABLE", "LOADING", "READY"), records[
            "failing"
        ].said
        assert follows(records["vanishing"], "READY", "UNLOADING", "UNAVAILABLE", ""), records[
            "vanishing"
        ].said
        attempts = [line for line in server.logged("model_loading") if line["model"] == "failing"]
        assert len(attempts) >= 3


async def told(server, model, reason):
    """Whether the index calls the model's only version unavailable, for that reason."""
    shown = await entries(server, model)
    return [(each.get("state"), reason in each.get("reason", "")) for each in shown] == [
        ("UNAVAILABLE", True)
    ]


def follows(record, *allowed):
    """Whether the states that were seen are among `allowed`, in that order, up to the last.

    Some may have been missed, and a retry may repeat the state before it. An empty state means that the index
    does not know the model. A new model has a name and no state until the server examines it.
    """
    seen = [said[0][1] if said else "" for said in record.said]
    seen = list(dropwhile(lambda state: not state, seen))
    place = 0
    for state in seen:
        later = [number for number in range(max(0, place - 1), len(allowed)) if allowed[number] == state]
        if not later:
            return False
        place = max(place, later[0])
    return bool(seen) and seen[-1] == allowed[-1]
