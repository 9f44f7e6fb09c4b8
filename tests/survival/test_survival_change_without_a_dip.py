"""Sixteen clients use a model that changes again and again: no request fails, and none is answered stale.

Each change has a generation of its own, which every answer tells. A generation counts as retired once the
server has said so, or once any client has heard a later one. No request sent after that may be answered by
it.
"""

import json
import sys
import time
from collections import Counter
from functools import partial
from typing import Any

import pytest
import trio

from tests.survival.changing import (
    Workshop,
    code,
    index_of,
    load,
    pids,
    policy,
    ready,
    states,
    until_states,
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


async def has_taken_over(server, version):
    """Whether the index says that this version serves, and no other."""
    found = await states(server, "telling")
    return found.pop(version, "") == "READY" and "READY" not in found.values()


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


async def test_reloads_that_fail_are_not_noticed_either(tritium_server, workshop, changes):
    workshop.model("telling", execute_seconds=WORK)
    broken = 'raise RuntimeError("the weights are not there")'
    async with tritium_server("--model-control-mode=explicit", "--load-model=telling") as server:
        before = await pids(server, "telling")
        async with witnessed(server, "telling") as witness:
            for generation in range(2, min(changes, 20) + 2):
                workshop.write("telling/1/model.py", code(generation, initialize=broken))
                response = await load(server, "telling")
                assert response.status == 400
                assert "the weights are not there" in response.error
                assert await ready(server)
                await witness.heard_more()
        assert set(witness.seen) == {1}
        assert await pids(server, "telling") == before


# -- copies that take their time


def copy_slowly(directory, files, step):
    """Write a directory file by file, `step` seconds apart; return the longest pause.

    The machine may have caused that pause. Run this on a thread, so that it continues while the loop is busy.
    """
    directory.mkdir()
    last, worst = time.monotonic(), 0.0
    for number, (name, content) in enumerate(files.items()):
        if number:
            time.sleep(step / 2)
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        with open(path, "wb") as file:  # in two steps, so that files are seen half written
            file.write(content[: len(content) // 2])
            file.flush()
            time.sleep(step / 2)
            file.write(content[len(content) // 2 :])
        now = time.monotonic()
        last, worst = now, max(worst, now - last)
    return worst


async def copied(server, model, directory, files, step):
    """Copy; return the longest pause, and how often the index showed each version in each state meanwhile."""
    seen: Counter[Any] = Counter()
    async with await server.connect() as connection, trio.open_nursery() as nursery:

        async def watch():
            while True:
                for entry in await index_of(connection, model):
                    seen[entry.get("version", "-"), entry.get("state", "-")] += 1
                await trio.sleep(0.02)

        nursery.start_soon(watch)
        worst = await trio.to_thread.run_sync(copy_slowly, directory, files, step)
        nursery.cancel_scope.cancel()
    return worst, seen


POLL_SECONDS = 0.4


def version_files(generation, *, parts):
    files = {"model.py": code(generation, parts=parts, execute_seconds=WORK).encode()}
    files.update(
        {f"part-{number}": f"part {number} of {generation} ".encode() * 50 for number in range(parts)}
    )
    return files


@pytest.fixture(params=[6, pytest.param(200, marks=pytest.mark.long)])
def polls(request):
    """How many looks of the server fall into the copying."""
    return request.param


async def test_a_version_that_is_being_copied_is_left_alone_until_it_has_come_to_rest(
    tritium_server, workshop, polls
):
    workshop.model("telling", execute_seconds=WORK)
    flags = ("--model-control-mode=poll", f"--repository-poll-secs={POLL_SECONDS}")
    each = min(polls, 20)  # of the looks, while one version is copied
    step = POLL_SECONDS / 10
    worst = 0.0
    async with tritium_server(*flags) as server:
        workshop.model("first")
        # Once `first` is READY, the server's looks at every model after its start are over.
        await until_states(server, "first", {1: "READY"})
        async with witnessed(server, "telling") as witness:
            for version in range(2, polls // each + 2):
                witness.version_of[version] = version
                files = version_files(version, parts=each * 10)
                directory = workshop.repository / "telling" / str(version)
                pause, seen = await copied(server, "telling", directory, files, step)
                worst = max(worst, pause)
                if pause < POLL_SECONDS:  # otherwise it did look finished, on a machine that stood still
                    assert {state for number, state in seen if number == str(version)} <= {"LOADING"}
                await eventually(partial(has_taken_over, server, version))
                witness.reported(version)
                await witness.heard_more()
        tell("polls of a version being copied", witness, polls=polls, longest_pause=round(worst, 3))
        assert set(witness.seen) == set(range(1, polls // each + 2))
        if worst < POLL_SECONDS:
            assert not server.logged("model_load_failed")


async def test_a_model_with_a_manifest_is_loaded_once_it_is_whole_however_long_the_copy_pauses(
    tritium_server, workshop, polls
):
    workshop.model("telling", execute_seconds=WORK)
    whole = workshop.model("fresh", parts=6)
    for number in range(6):
        (whole / "1" / f"part-{number}").write_bytes(b"weights" * 100)
    paths = [
        str(path.relative_to(whole)) for path in sorted(whole.rglob("*"), reverse=True) if path.is_file()
    ]
    manifest = await trio.run_process(["sha256sum", *paths], cwd=whole, capture_stdout=True)
    files = {"SHA256SUMS": manifest.stdout, **{path: (whole / path).read_bytes() for path in paths}}
    workshop.remove("fresh")
    async with tritium_server(*POLLING) as server:
        async with witnessed(server, "telling") as witness:
            step = max(0.5, polls * 0.1 / len(files))  # long enough to look finished, each time
            _, seen = await copied(server, "fresh", workshop.repository / "fresh", files, step)
            assert "UNAVAILABLE" not in {state for _, state in seen}
            await until_states(server, "fresh", {1: "READY"})
            await witness.heard_more()
        tell("a model with a manifest", witness, seen=[*map(str, seen)])
        assert len([line for line in server.logged("model_loading") if line["model"] == "fresh"]) == 1
        assert await states(server, "telling") == {1: "READY"}


async def test_files_that_are_replaced_under_a_serving_version_are_loaded_when_they_have_come_to_rest(
    tritium_server, workshop, changes
):
    workshop.model("telling", execute_seconds=WORK)
    async with tritium_server(*POLLING) as server:
        async with witnessed(server, "telling") as witness:
            await witness.heard_more()
            for generation in range(2, changes + 2):
                workshop.write("telling/1/model.py", code(generation, execute_seconds=WORK))

                async def heard(generation=generation):
                    return witness.seen[generation] > 0

                await eventually(heard)
                await witness.heard_more()
        tell("reloads by polling", witness)
        assert set(witness.seen) == set(range(1, changes + 2))
        check_server(server)


async def test_touching_and_rewriting_the_same_content_changes_nothing(tritium_server, workshop):
    directory = workshop.model("telling", execute_seconds=WORK)
    async with tritium_server(*POLLING) as server:
        before = await pids(server, "telling")
        async with witnessed(server, "telling") as witness:
            for _ in range(5):
                (directory / "1" / "model.py").touch()
                workshop.write("telling/1/model.py", code(1, execute_seconds=WORK))
                workshop.write("telling/config.pbtxt", (directory / "config.pbtxt").read_text())
                await trio.sleep(0.3)
        assert await pids(server, "telling") == before
        assert set(witness.seen) == {1}
        assert len(server.logged("model_loading")) == 1


async def test_models_come_and_go_with_their_directories(tritium_server, workshop):
    workshop.model("telling", execute_seconds=WORK)
    async with tritium_server(*POLLING) as server:
        async with witnessed(server, "telling") as witness:
            workshop.model("guest")
            await until_states(server, "guest", {1: "READY"})
            assert await ready(server, "guest")
            workshop.remove("guest")
            await until_states(server, "guest", {})
            assert not await ready(server, "guest")
            assert await ready(server)
        assert set(witness.seen) == {1}
