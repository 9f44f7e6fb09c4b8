"""Sixteen clients use a model that changes again and again: no request fails, and none is answered stale.

Each change has a generation of its own, which every answer tells. A generation counts as retired once the
server has said so, or once any client has heard a later one. No request sent after that may be answered by
it.
"""

import json
import sys

import pytest

from tests.survival.changing import (
    Workshop,
    code,
    load,
    pids,
    policy,
    states,
    witnessed,
)
from tests.survival.server import eventually

pytestmark = pytest.mark.slow

POLLING = ("--model-control-mode=poll", "--repository-poll-secs=0.1")
# Seconds that a request takes, so that at any change some wait and one runs.
WORK = 0.005


@pytest.fixture
def workshop(repository):
    return Workshop(repository.path)


@pytest.fixture(params=[3, pytest.param(200, marks=pytest.mark.long)])
def changes(request):
    """How many there are."""
    return request.param


def tell(what, witness, **figures):
    report = {"answers": witness.answered, "generations heard": len(witness.seen), **figures}
    print(f"\n{what}: {json.dumps(report)}", file=sys.stderr)


def check_server(server):
    assert not server.logged("worker_output")
    assert not [line for line in server.logged("child_exited") if line["level"] == "error"]


async def test_versions_are_swapped_without_a_dip(tritium_server, workshop, changes):
    workshop.model("telling", extra=policy("latest { num_versions: 1 }"), execute_seconds=WORK)
    async with tritium_server(*POLLING) as server:
        async with witnessed(server, "telling") as witness:
            await witness.heard_more()
            for version in range(2, changes + 2):
                witness.version_of[version] = version
                workshop.version("telling", version, execute_seconds=WORK)
                wanted = dict.fromkeys(range(1, version), "UNAVAILABLE") | {version: "READY"}

                async def swapped(wanted=wanted, version=version):
                    found = await states(server, "telling")
                    return found.pop(version, "") == "READY" and "READY" not in found.values()

                await eventually(swapped)
                witness.reported(version)
                await witness.heard_more()

                async def over(version=version):
                    found = await states(server, "telling")
                    return found.get(version - 1, "UNAVAILABLE") == "UNAVAILABLE"

                await eventually(over)
                before = await pids(server, "telling", version)
                # The server has retired this version, so its removal reloads nothing.
                workshop.remove(f"telling/{version - 1}")
                assert before
            assert await pids(server, "telling", changes + 1) == before
        tell("version swaps", witness, swaps=len(server.logged("model_swapped")))
        assert set(witness.seen) == set(range(1, changes + 2))
        assert len(server.logged("model_swapped")) == changes
        check_server(server)


@pytest.mark.long
async def test_reloads_on_request_are_not_noticed(tritium_server, workshop, changes):
    workshop.model("telling", execute_seconds=WORK)
    async with tritium_server("--model-control-mode=explicit", "--load-model=telling") as server:
        async with witnessed(server, "telling") as witness:
            await witness.heard_more()
            for generation in range(2, changes + 2):
                workshop.write("telling/1/model.py", code(generation, execute_seconds=WORK))
                assert (await load(server, "telling")).status == 200
                witness.reported(generation)
                await witness.heard_more()
        tell("explicit reloads", witness, swaps=len(server.logged("model_swapped")))
        assert set(witness.seen) == set(range(1, changes + 2))
        assert len(server.logged("model_swapped")) == changes
        assert await states(server, "telling") == {1: "READY"}
        check_server(server)


# -- copies that take their time
