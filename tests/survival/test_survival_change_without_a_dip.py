"""Sixteen clients use a model that changes again and again: no request fails, and none is answered stale.

Each change has a generation of its own, which every answer tells. A generation counts as retired once the
server has said so, or once any client has heard a later one. No request sent after that may be answered by
it.
"""

import sys

import pytest

from tests.survival.changing import (
    Workshop,
    code,
    load,
    states,
    witnessed,
)

# Seconds that a request takes, so that at any change some wait and one runs.
WORK = 0.005


@pytest.fixture
def workshop(repository):
    return Workshop(repository.path)


@pytest.fixture(params=[3, pytest.param(200, marks=pytest.mark.long)])
def changes(request):
    """How many there are."""
    return request.param


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
        print(f"\n{witness.answered} answers of {len(witness.seen)} generations", file=sys.stderr)
        assert set(witness.seen) == set(range(1, changes + 2))
        assert len(server.logged("model_swapped")) == changes
        assert await states(server, "telling") == {1: "READY"}
        assert not server.logged("worker_output")
        assert not [line for line in server.logged("child_exited") if line["level"] == "error"]
