"""The repository API as tritonclient drives it: contract repository.md, sections 2 to 6 and 13.

The tests check texts, states and outcomes.
"""

import json
import signal
from functools import partial
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import trio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.survival.changing import (
    Workshop,
    as_json,
    code,
    config,
    entries,
    identity,
    load,
    pids,
    policy,
    post,
    ready,
    refusal,
    replaced,
    states,
    triton,
    triton_refusal,
    unload,
    until_states,
    witnessed,
)
from tests.survival.repository import parameter
from tests.survival.server import eventually, until
from tests.survival.wire import inference

pytestmark = pytest.mark.slow

EXPLICIT = "--model-control-mode=explicit"
UNLOADED = {"state": "UNAVAILABLE", "reason": "unloaded"}
NOT_POLLED = "failed to load '{}', failed to poll from model repository"
BROKEN = 'raise RuntimeError("the weights are not there")'


@pytest.fixture
def workshop(repository):
    return Workshop(repository.path)


def entry(name, version=1, state="READY", **more):
    return {"name": name, "version": str(version), "state": state, **more}


async def infer_count(server, model):
    stats = (await server.get(f"/v2/models/{model}/stats")).json()
    return stats["model_stats"][0]["inference_stats"]["success"]["count"]


# -- index, load and unload


async def test_a_model_comes_and_goes_by_request(tritium_server, workshop):
    workshop.model("b")
    workshop.model("a")
    async with tritium_server(EXPLICIT) as server:
        assert await triton(server, "get_model_repository_index") == [{"name": "a"}, {"name": "b"}]
        assert await entries(server, ready=True) == []
        assert (await refusal(server, "a"))[0] in {400, 404}
        assert not await triton(server, "is_model_ready", "a")

        await triton(server, "load_model", "a")
        assert await triton(server, "get_model_repository_index") == [entry("a"), {"name": "b"}]
        assert await entries(server, ready=True) == [entry("a")]
        assert await triton(server, "is_model_ready", "a")
        assert await identity(server, "a") == (1, 1)
        (worker,) = await pids(server, "a")

        await triton(server, "unload_model", "a")
        assert not await triton(server, "is_model_ready", "a")
        status, message = await refusal(server, "a")
        assert (status, message) == (404, "Request for unknown model: 'a' has no available versions")
        await until_states(server, "a", {1: "UNAVAILABLE"})
        assert await entries(server) == [entry("a", **UNLOADED), {"name": "b"}]
        assert await entries(server, ready=True) == []
        await until(lambda: not psutil.pid_exists(worker))

        await triton(server, "load_model", "a")
        assert await identity(server, "a") == (1, 1)


async def test_loading_what_is_loaded_and_unchanged_does_nothing(tritium_server, workshop):
    directory = workshop.model("a")
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        before = await pids(server, "a")
        await triton(server, "load_model", "a")
        (directory / "1" / "model.py").touch()  # content decides, not modification times
        await triton(server, "load_model", "a")
        assert await pids(server, "a") == before


async def test_loading_what_has_changed_replaces_it(tritium_server, workshop):
    workshop.model("a")
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        before = await pids(server, "a")
        workshop.write("a/1/model.py", code(2))
        # No request has been sent yet.
        assert await identity(server, "a") == (1, 1)
        await triton(server, "load_model", "a")
        assert await identity(server, "a") == (1, 2)
        await replaced(server, "a", before)
        assert await states(server, "a") == {1: "READY"}


async def test_unloading_what_is_not_there_succeeds(tritium_server, workshop):
    workshop.model("a")
    async with tritium_server(EXPLICIT) as server:
        for name in ("a", "unknown"):
            await triton(server, "unload_model", name)
            await triton(server, "unload_model", name, unload_dependents=True)
        assert await entries(server) == [{"name": "a"}]


async def test_what_was_accepted_before_an_unload_is_answered(tritium_server, repository, gates):
    repository.gated(gates.directory)
    async with tritium_server(EXPLICIT, "--load-model=gated") as server:
        async with await server.connect() as connection:
            await connection.send(inference("gated", {"TICKET": np.array([[7]], np.int32)}))
            await until(lambda: gates.began() == [7])
            assert (await unload(server, "gated")).status == 200
            assert await states(server, "gated") == {1: "UNLOADING"}
            gates.open(7)
            response = await connection.receive()
            assert response.status == 200
            assert response.tensors()["SERVED"].tolist() == [[7]]
        await until_states(server, "gated", {1: "UNAVAILABLE"})


async def test_a_model_that_left_the_disk_is_listed_for_as_long_as_it_serves(tritium_server, workshop):
    for name in ("a", "b", "c"):
        workshop.model(name)
    async with tritium_server(EXPLICIT, "--load-model=a", "--load-model=b") as server:
        await triton(server, "unload_model", "b")
        for name in ("a", "b", "c"):
            workshop.remove(name)
        workshop.model("d")

        async def rescanned():
            return await entries(server) == [entry("a"), {"name": "d"}]

        await eventually(rescanned)
        assert await identity(server, "a") == (1, 1)
        await triton(server, "unload_model", "a")

        async def gone():
            return await entries(server) == [{"name": "d"}]

        await eventually(gone)


# -- what a load can put in place of the files


async def test_a_configuration_in_the_request_counts_until_the_files_change_or_an_unload(
    tritium_server, workshop
):
    workshop.model("a")
    async with tritium_server(EXPLICIT, "--load-model=a") as server:

        async def greeting():
            document = (await server.get("/v2/models/a/config")).json()
            return document.get("parameters", {}).get("greeting", {}).get("string_value")

        assert await greeting() is None
        override = as_json(parameters={"greeting": {"string_value": "hello"}})
        before = await pids(server, "a")
        await triton(server, "load_model", "a", config=override)
        assert await greeting() == "hello"
        overridden = await replaced(server, "a", before)
        await triton(server, "load_model", "a", config=override)  # always reloads
        overridden = await replaced(server, "a", overridden)
        await triton(server, "load_model", "a")  # the files are what they were
        assert await greeting() == "hello"
        assert await pids(server, "a") == overridden
        workshop.write("a/1/model.py", code(2))
        await triton(server, "load_model", "a")
        assert await greeting() is None
        assert await identity(server, "a") == (1, 2)
        await triton(server, "load_model", "a", config=override)
        await triton(server, "unload_model", "a")
        await triton(server, "load_model", "a")
        assert await greeting() is None


async def test_an_override_of_the_number_of_instances_is_met_in_place(tritium_server, workshop):
    workshop.model("a")
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        first = await pids(server, "a")
        assert await identity(server, "a") == (1, 1)
        counted = await infer_count(server, "a")
        groups = [{"kind": "KIND_CPU", "count": 3}]
        await triton(server, "load_model", "a", config=as_json(instance_group=groups))
        three = await pids(server, "a")
        assert len(three) == 3
        assert first < three
        assert await infer_count(server, "a") == counted > 0
        await triton(server, "load_model", "a")
        assert await pids(server, "a") == three


async def test_files_in_the_request_are_the_whole_model_until_the_next_plain_load(tritium_server, workshop):
    workshop.model("a", versions=(1, 3))
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        assert await identity(server, "a") == (3, 3)
        files = {"file:1/model.py": code(77, parts=1).encode(), "file:1/part-0": b"\x00\xff"}
        await triton(server, "load_model", "a", config=as_json(), files=files)
        assert await identity(server, "a") == (1, 77)
        await until_states(server, "a", {1: "READY", 3: "UNAVAILABLE"})
        await triton(server, "load_model", "a")
        assert await identity(server, "a") == (3, 3)
        await until_states(server, "a", {1: "UNAVAILABLE", 3: "READY"})


async def test_files_of_a_request_that_serve_to_the_end_leave_nothing_behind(tritium_server, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    async with tritium_server(EXPLICIT, environ={"TMPDIR": str(temporary)}) as server:
        files = {"file:1/model.py": code(77).encode()}
        await triton(server, "load_model", "made_up", config=as_json(), files=files)
        assert await identity(server, "made_up") == (1, 77)
        assert [path.name[:15] for path in temporary.iterdir()] == ["tritium-upload-"]
    assert list(temporary.iterdir()) == []


async def test_a_file_may_be_named_with_a_slash_in_front(tritium_server, workshop):
    workshop.model("a")
    async with tritium_server(EXPLICIT) as server:
        files = {"file:/1/model.py": code(78).encode(), "file:///2/model.py": code(79).encode()}
        await triton(server, "load_model", "a", config=as_json(version_policy={"all": {}}), files=files)
        assert await identity(server, "a", version=1) == (1, 78)
        assert await identity(server, "a", version=2) == (2, 79)


async def test_a_model_can_be_made_of_nothing_but_a_request(tritium_server, workshop):
    workshop.model("other")
    async with tritium_server(EXPLICIT) as server:
        await triton(
            server, "load_model", "made_up", config=as_json(), files={"file:2/model.py": code(5).encode()}
        )
        assert await identity(server, "made_up") == (2, 5)


BAD_OVERRIDES: list[tuple[dict[str, Any], int, str]] = [
    ({"config": "{"}, 500, NOT_POLLED.format("a")),
    ({"config": '{"max_batch_sise": 8}'}, 500, NOT_POLLED.format("a")),
    ({"config": "[]"}, 500, NOT_POLLED.format("a")),
    (
        {"file:1/model.py": "aGVsbG8="},
        400,
        "Load parameter 'config' must be specified for model file override",
    ),
    ({"config": as_json(), "file:../../escaped": "aGVsbG8="}, 400, "must stay within model directory."),
    ({"config": as_json(), "file:/../escaped": "aGVsbG8="}, 400, "must stay within model directory."),
    ({"config": as_json(), "file:/": "aGVsbG8="}, 400, "must stay within model directory."),
    (
        {"config": as_json(), "file:1": "aGVsbG8=", "file:1/model.py": "aGVsbG8="},
        400,
        "directory has been created as a file",
    ),
    ({"config": 8}, 500, "Unable to parse 'config': attempt to access JSON non-string as string"),
    ({"config": {"max_batch_size": 8}}, 500, "Unable to parse 'config'"),
    ({"config": as_json(), "file:1/model.py": 3}, 500, "Unable to parse 'file:1/model.py'"),
    ({"colour": "red"}, 500, "unexpected error on creating Triton parameter"),
]


async def test_an_override_that_makes_no_sense_is_refused_and_changes_nothing(
    tritium_server, workshop, tmp_path
):
    workshop.model("a")
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        before = await pids(server, "a")
        for parameters, status, message in BAD_OVERRIDES:
            response = await load(server, "a", **parameters)
            assert response.status == status, (parameters, response.body)
            assert message in response.error, (parameters, response.error)
        assert await pids(server, "a") == before
        (told,) = await entries(server)
        assert told.pop("reason").startswith("reload failed: ")
        assert told == entry("a")
        assert await ready(server)
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize(
    ("path", "document", "status", "message"),
    [
        ("index", {"ready": 1}, 400, "Invalid value for 'ready': expected a boolean"),
        (
            "models/a/unload",
            {"parameters": {"unload_dependents": "yes"}},
            500,
            "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean",
        ),
        ("mine/models/a/load", None, 501, "'repository_name' specification is not supported"),
        ("mine/models/a/unload", None, 501, "'repository_name' specification is not supported"),
        ("models/nowhere/load", None, 500, NOT_POLLED.format("nowhere") + ": it is in no model repository"),
        (
            "models/%2e%2e/load",
            None,
            400,
            "invalid model name '..', model name must not contain path traversal characters",
        ),
        ("models/%20/load", None, 400, "Model name cannot be empty. Please enter a valid name to deploy."),
        (
            "models/%2e%2e%2fx/load",
            None,
            400,
            "invalid model name '../x', model name must not contain path traversal characters",
        ),
        (
            "models/a%2f1/load",
            None,
            400,
            "invalid model name 'a/1', model name must not contain path traversal characters",
        ),
    ],
)
async def test_requests_that_make_no_sense_say_so(tritium_server, workshop, path, document, status, message):
    workshop.model("a")
    async with tritium_server(EXPLICIT) as server:
        response = await post(server, f"/v2/repository/{path}", document)
        assert (response.status, response.error) == (status, message)


async def test_a_link_out_of_the_repository_is_no_model(tritium_server, workshop, tmp_path):
    workshop.model("a")
    outside = tmp_path / "outside"
    workshop.model("b").rename(outside)
    (workshop.repository / "b").symlink_to(outside)
    (workshop.repository / "alias").symlink_to("a")
    async with tritium_server(EXPLICIT) as server:
        status, message = await triton_refusal(server, "load_model", "b")
        assert (status, message.startswith(NOT_POLLED.format("b") + ": ")) == ("500", True)
        await triton(server, "load_model", "alias")
        assert await identity(server, "alias") == (1, 1)


# -- loads that fail


async def test_a_load_that_fails_says_why_and_makes_the_server_unready_until_it_is_mended(
    tritium_server, workshop
):
    workshop.model("a")
    workshop.model("broken", initialize=BROKEN)
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        status, message = await triton_refusal(server, "load_model", "broken")
        assert status == "400"
        begin = "load failed for model 'broken': version 1 is at UNAVAILABLE state: Internal: "
        assert message.startswith(begin)
        assert "the weights are not there" in message
        assert message.endswith(";\n")
        (shown,) = await entries(server, "broken")
        assert (shown["version"], shown["state"]) == ("1", "UNAVAILABLE")
        assert begin.endswith("Internal: ")
        assert shown["reason"] == message.removeprefix(begin.removesuffix("Internal: ")).removesuffix(";\n")
        assert await entries(server, ready=True) == [entry("a")]
        assert not await ready(server)
        assert (await server.get("/v2/health/live")).status == 200
        assert await identity(server, "a") == (1, 1)

        await triton(server, "unload_model", "broken")
        assert await ready(server)
        assert await entries(server, "broken") == [entry("broken", **UNLOADED)]

        workshop.write("broken/1/model.py", code(2))
        await triton(server, "load_model", "broken")
        assert await ready(server)
        assert await identity(server, "broken") == (1, 2)


async def test_a_reload_that_fails_leaves_what_serves(tritium_server, workshop):
    workshop.model("a")
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        before = await pids(server, "a")
        for bad in (code(2, initialize=BROKEN), "import nothing_of_that_name", "this is no Python"):
            workshop.write("a/1/model.py", bad)
            status, message = await triton_refusal(server, "load_model", "a")
            assert status == "400"
            assert message.startswith("load failed for model 'a': version 1 is at UNAVAILABLE state: ")
        workshop.write("a/config.pbtxt", 'backend: "python" max_batch_sise: 8')
        status, message = await triton_refusal(server, "load_model", "a")
        assert (status, message.startswith(NOT_POLLED.format("a") + ": ")) == ("500", True)
        assert await identity(server, "a") == (1, 1)
        assert await pids(server, "a") == before
        why = message.removeprefix(NOT_POLLED.format("a") + ": ")
        assert "max_batch_sise" in why
        assert await entries(server) == [entry("a", reason=f"reload failed: {why}")]
        grpc_index = await trio.to_thread.run_sync(grpc_indexed, server)
        assert grpc_index == [("a", "READY", f"reload failed: {why}")]
        (part,) = (await server.get("/v2/health/ready?deep=1")).json()["parts"]
        assert (part["ready"], part["reload_failed"]) == (True, why)
        assert (await server.node("repository/lanes/a"))["info"]["reload_failed"] == why
        assert await server.metric("tritium_model_reload_failed", model="a", version="1") == 1
        assert await server.metric("tritium_model_load_failures_total", model="a") == 4
        assert await ready(server)

        workshop.write("a/config.pbtxt", config())
        workshop.write("a/1/model.py", code(3))
        await triton(server, "load_model", "a")
        assert await entries(server) == [entry("a")]
        assert await server.metric("tritium_model_reload_failed", model="a", version="1") == 0

        async def told_no_more():
            # Callers that ask at about the same time share a report, so that the next may be an old one.
            (part,) = (await server.get("/v2/health/ready?deep=1")).json()["parts"]
            return "reload_failed" not in part

        await eventually(told_no_more)


def grpc_indexed(server):
    """The repository index over gRPC: names, states and reasons."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), timeout=20)
    return [(each.name, each.state, each.reason) for each in answer.models]


async def test_of_a_set_of_versions_all_are_loaded_or_none(tritium_server, workshop):
    workshop.model("a", extra=policy("all { }"), versions=(1,))
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        workshop.version("a", 2)
        workshop.version("a", 3, initialize=BROKEN)
        status, message = await triton_refusal(server, "load_model", "a")
        assert status == "400"
        assert message.startswith("load failed for model 'a': version 3 is at UNAVAILABLE state: Internal: ")
        now = await states(server, "a")
        assert (now[1], now.get(2)) == ("READY", "UNAVAILABLE")
        assert await identity(server, "a") == (1, 1)
        workshop.remove("a/3")
        await triton(server, "load_model", "a")
        assert await identity(server, "a") == (2, 2)
        assert await identity(server, "a", version=1) == (1, 1)


async def test_a_policy_that_chooses_no_version_is_an_error(tritium_server, workshop):
    workshop.model("a", extra=policy("specific { versions: [ 9 ] }"))
    async with tritium_server(EXPLICIT) as server:
        status, message = await triton_refusal(server, "load_model", "a")
        assert status == "500"
        assert message.startswith(
            "failed to load 'a', no version is available: Invalid argument: at least one "
        )


async def test_retries_are_told_in_the_index_while_they_last(tritium_server, workshop, tmp_path):
    attempts = tmp_path / "attempts"
    count = (
        f'open({str(attempts)!r}, "a").write("x"); time.sleep(0.3); '
        f"assert os.path.getsize({str(attempts)!r}) > 2, 'not yet'"
    )
    workshop.model("fickle", initialize=count)
    async with tritium_server(EXPLICIT, "--model-load-retry-count=4") as server:
        seen = []
        async with trio.open_nursery() as nursery:

            async def watch():
                while True:
                    (shown,) = await entries(server, "fickle")
                    seen.append(shown)
                    await trio.sleep(0.02)

            nursery.start_soon(watch)
            assert (await load(server, "fickle")).status == 200
            nursery.cancel_scope.cancel()
        assert attempts.read_text() == "xxx"
        told = [each["progress"] for each in seen if each.get("progress")]
        assert {each["attempt"] for each in told} == {1, 2, 3}
        assert "loading" in {each["phase"] for each in told}
        assert all(each["seconds"] >= 0 for each in told)
        assert await entries(server) == [entry("fickle")]


# -- who may load, and what is loaded first


@pytest.mark.parametrize("mode", ["none", "poll"])
async def test_in_other_modes_loads_and_unloads_are_refused(tritium_server, workshop, mode):
    workshop.model("a")
    async with tritium_server(f"--model-control-mode={mode}") as server:
        text = "explicit model load / unload is not allowed if polling is enabled"
        assert await triton_refusal(server, "load_model", "a") == ("503", text)
        assert await triton_refusal(server, "unload_model", "a") == ("503", text)
        assert await triton_refusal(server, "unload_model", "nowhere") == ("503", text)
        assert await entries(server) == [entry("a")]


async def test_only_the_named_models_are_loaded_at_the_start(tritium_server, workshop):
    for name in ("a", "b", "c"):
        workshop.model(name)
    async with tritium_server(EXPLICIT, "--load-model=a", "--load-model", "c") as server:
        await server.wait_loaded()
        assert await entries(server) == [entry("a"), {"name": "b"}, entry("c")]
        (loaded,) = server.logged("server_loaded")
        assert loaded["not_loaded"] == 1


async def test_the_star_loads_every_model_at_the_start(tritium_server, workshop):
    for name in ("a", "b"):
        workshop.model(name)
    async with tritium_server(EXPLICIT, "--load-model=*") as server:
        assert await entries(server) == [entry("a"), entry("b")]
        await triton(server, "unload_model", "a")


async def test_a_server_that_is_to_load_nothing_is_ready(tritium_server, workshop):
    workshop.model("a", initialize=BROKEN)
    async with tritium_server(EXPLICIT) as server:
        await server.wait_loaded()
        assert server.logged("server_ready")[0]["models"] == 0
        server.signal(signal.SIGTERM)
        assert await server.wait_ended() == 0


@pytest.mark.parametrize("culprit", ["nowhere", "broken", "unreadable"])
async def test_a_named_model_that_can_not_be_loaded_ends_the_start(tritium_server, workshop, culprit):
    workshop.model("a")
    workshop.model("broken", initialize=BROKEN)
    workshop.model("unreadable")
    workshop.write("unreadable/config.pbtxt", "{{{")
    flags = (EXPLICIT, "--load-model=a", f"--load-model={culprit}")
    async with tritium_server(*flags, ready=False, exit_status=1) as server:
        assert await server.wait_ended() == 1
        assert server.failures == ["creating server: Internal - failed to load all models"]


@pytest.mark.parametrize("culprit", ["nowhere", "broken"])
async def test_told_not_to_mind_the_server_serves_the_other_named_models(tritium_server, workshop, culprit):
    workshop.model("a")
    workshop.model("broken", initialize=BROKEN)
    flags = (EXPLICIT, "--load-model=a", f"--load-model={culprit}", "--exit-on-error=false")
    async with tritium_server(*flags, ready=False) as server:
        await server.wait_loaded()
        assert await identity(server, "a") == (1, 1)
        assert (await server.get("/v2/health/live")).status == 200
        if culprit == "broken":
            assert not await ready(server)
            await triton(server, "unload_model", "broken")
            assert await ready(server)


# -- several repositories


@pytest.fixture
def second(tmp_path):
    path = tmp_path / "second"
    path.mkdir()
    return Workshop(path)


def also(workshop):
    return f"--model-repository={workshop.repository}"


async def test_several_repositories_are_one(tritium_server, workshop, second):
    workshop.model("a")
    second.model("b", generation=5)
    async with tritium_server(EXPLICIT, also(second)) as server:
        assert await entries(server) == [{"name": "a"}, {"name": "b"}]
        for name in ("a", "b"):
            await triton(server, "load_model", name)
        assert (await identity(server, "a"), await identity(server, "b")) == ((1, 1), (1, 5))


async def test_a_model_of_two_repositories_is_served_from_neither(tritium_server, workshop, second):
    workshop.model("a")
    workshop.model("twice")
    second.model("twice")
    flags = ("--exit-on-error=false", also(second))
    async with tritium_server(*flags, ready=False) as server:
        await server.wait_loaded()
        assert await ready(server)  # neither is in the lifecycle of models
        duplicate = {
            "name": "twice",
            "state": "UNAVAILABLE",
            "reason": "model appears in two or more repositories",
        }
        found = await entries(server)
        assert found[0] == entry("a")
        assert {key: found[1].get(key) for key in duplicate} == duplicate
        assert "version" not in found[1]
        assert [each["name"] for each in await entries(server, ready=True)] == ["a", "twice"]
        assert (await refusal(server, "twice"))[0] in {400, 404}
        assert any(
            "not unique across all model repositories" in str(line)
            for line in (server.stdout + server.stderr).splitlines()
        )


async def test_a_duplicate_can_not_be_loaded(tritium_server, workshop, second):
    workshop.model("twice")
    second.model("twice")
    async with tritium_server(EXPLICIT, also(second)) as server:
        status, message = await triton_refusal(server, "load_model", "twice")
        assert (status, message.startswith(NOT_POLLED.format("twice") + ": ")) == ("500", True)
        second.remove("twice")
        await triton(server, "load_model", "twice")
        assert await identity(server, "twice") == (1, 1)


async def test_with_namespaces_models_of_one_name_live_side_by_side(tritium_server, workshop, second):
    workshop.model("twice")
    second.model("twice", generation=5)
    second.model("once", generation=6)
    async with tritium_server("--model-namespacing=true", also(second)) as server:
        shown = await entries(server)
        assert [(each["name"], each["state"]) for each in shown] == [
            ("once", "READY"),
            ("twice", "READY"),
            ("twice", "READY"),
        ]
        assert await identity(server, "once") == (1, 6)
        status, message = await refusal(server, "twice")
        assert status == 400
        assert message == (
            "There are 2 identifiers of model 'twice' in global map, model namespace must be provided to"
            " resolve ambiguity."
        )


# -- versions and instances


@pytest.mark.parametrize(
    ("choice", "served"),
    [
        ("", [3]),
        ("latest { num_versions: 2 }", [2, 3]),
        ("all { }", [1, 2, 3]),
        ("specific { versions: [ 1, 3 ] }", [1, 3]),
    ],
)
async def test_the_policy_says_which_versions_are_served(tritium_server, workshop, choice, served):
    workshop.model("a", extra=policy(choice) if choice else "", versions=(1, 2, 3))
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        assert await entries(server) == [entry("a", version) for version in served]
        assert await identity(server, "a") == (served[-1], served[-1])
        for version in (1, 2, 3):
            if version in served:
                assert await identity(server, "a", version=version) == (version, version)
            else:
                assert (await refusal(server, "a", version=version))[0] in {400, 404}


async def test_a_new_policy_loads_and_retires_and_leaves_the_rest_alone(tritium_server, workshop):
    workshop.model("a", extra=policy("specific { versions: [ 1, 2 ] }"), versions=(1, 2, 3))
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        second = await pids(server, "a", 2)
        workshop.write("a/config.pbtxt", config(policy("specific { versions: [ 2, 3 ] }")))
        await triton(server, "load_model", "a")
        assert await identity(server, "a") == (3, 3)
        assert await pids(server, "a", 2) == second
        await until_states(server, "a", {1: "UNAVAILABLE", 2: "READY", 3: "READY"})
        assert (await refusal(server, "a", version=1))[0] in {400, 404, 503}


async def test_a_new_count_of_instances_is_met_in_place(tritium_server, workshop):
    workshop.model("a")
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        async with witnessed(server, "a", clients=4) as witness:
            first = await pids(server, "a")
            await witness.heard_more()
            counted = await infer_count(server, "a")
            workshop.write("a/config.pbtxt", config(workers=3))
            await triton(server, "load_model", "a")
            three = await pids(server, "a")
            assert len(three) == 3
            assert first < three
            assert await infer_count(server, "a") >= counted > 0
            await witness.heard_more()
            workshop.write("a/config.pbtxt", config(workers=2))
            await triton(server, "load_model", "a")
            two = await pids(server, "a")
            assert len(two) == 2
            assert two < three
            await witness.heard_more()
        assert await infer_count(server, "a") == witness.answered
        assert server.logged("model_scaled")


async def test_other_changes_of_a_configuration_reload(tritium_server, workshop):
    workshop.model("a")
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        before = await pids(server, "a")
        workshop.write("a/config.pbtxt", config(parameter("greeting", "hello"), workers=2))
        await triton(server, "load_model", "a")
        assert len(await replaced(server, "a", before)) == 2


# -- at once


async def test_concurrent_loads_and_unloads_of_one_model_each_get_their_true_outcome(
    tritium_server, workshop
):
    workshop.model("a")
    async with tritium_server(EXPLICIT) as server:
        outcomes = []

        async def ask(ask_for):
            response = await ask_for(server, "a")
            outcomes.append((ask_for.__name__, response.status, response.error))

        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for ask_for in (load, load, unload, load):
                    nursery.start_soon(ask, ask_for)
        for name, status, message in outcomes:
            # A load that an unload overtook says so; it does not claim to have loaded anything.
            outdated = "Newer operation has been applied to the model lifecycle" in message
            assert status == 200 or (name == "load" and outdated), (name, status, message)
        assert (await load(server, "a")).status == 200
        assert await identity(server, "a") == (1, 1)
        assert (await unload(server, "a")).status == 200
        assert (await refusal(server, "a"))[0] == 404
        await until_states(server, "a", {1: "UNAVAILABLE"})


async def test_of_two_loads_at_once_each_is_told_what_it_asked_for(tritium_server, workshop):
    workshop.model("a")
    async with tritium_server(EXPLICIT) as server:
        answers = {}

        async def ask(label, **parameters):
            answers[label] = await load(server, "a", **parameters)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(ask, "good"))
            nursery.start_soon(partial(ask, "bad", config="{"))
            nursery.start_soon(partial(ask, "good too"))
        statuses = {label: answer.status for label, answer in answers.items()}
        assert statuses == {"good": 200, "bad": 500, "good too": 200}
        assert await identity(server, "a") == (1, 1)


async def test_a_model_that_is_being_loaded_says_so_and_when_to_come_back(tritium_server, workshop, tmp_path):
    go = tmp_path / "go"
    workshop.model(
        "slow",
        initialize=f"import os, time\n        while not os.path.exists({str(go)!r}): time.sleep(0.01)",
    )
    async with tritium_server(ready=False) as server:
        await server.wait_ports()

        async def begun():
            return b"(phase '" in (await server.get("/v2/models/slow/ready")).body

        await eventually(begun)
        for path in ("ready", "config", "versions/1/ready"):
            answer = await server.get(f"/v2/models/slow/{path}")
            assert answer.status == 503
            assert int(answer.fields["retry-after"]) >= 1
            what = "version 1 is not at ready state" if "versions" in path else "has no available versions"
            assert answer.error.startswith(f"Request for unknown model: 'slow' {what}: it is being loaded (")
        async with await server.connect() as connection:
            await connection.send(inference("slow", {"TICKET": np.array([1], np.int32)}))
            answer = await connection.receive()
        assert (answer.status, int(answer.fields["retry-after"]) >= 1) == (503, True)
        error = await trio.to_thread.run_sync(grpc_failure, server, "slow")
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "it is being loaded (" in error.details()
        trailers = dict(error.trailing_metadata())
        assert int(trailers["grpc-retry-pushback-ms"]) == 1000 * int(trailers["retry-after"]) > 0
        assert (await server.get("/v2/models/nowhere/ready")).status == 404
        go.touch()
        await server.wait_loaded()
        assert await identity(server, "slow") == (1, 1)


def grpc_failure(server, model):
    """Return the error of a gRPC client that asks for a model's metadata."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=model), timeout=20)
    return caught.value


async def test_an_unload_takes_the_place_of_a_load_that_has_not_ended(tritium_server, workshop):
    workshop.model("slow", initialize="time.sleep(60)")
    async with tritium_server(EXPLICIT) as server:
        outcomes = []
        async with trio.open_nursery() as nursery:

            async def ask():
                outcomes.append(await load(server, "slow"))

            nursery.start_soon(ask)
            await until_states(server, "slow", {1: "LOADING"})
            with trio.fail_after(30):
                assert (await unload(server, "slow")).status == 200
        (outcome,) = outcomes
        assert outcome.status == 400
        assert "Newer operation has been applied to the model lifecycle" in outcome.error
        await until_states(server, "slow", {1: "UNAVAILABLE"})
        assert await ready(server)


async def test_a_slow_load_holds_up_nobody_else(tritium_server, workshop, tmp_path):
    gate = tmp_path / "gate"
    wait = f"[time.sleep(0.01) for _ in iter(lambda: os.path.exists({str(gate)!r}), True)]"
    workshop.model("slow", initialize=wait)
    workshop.model("a")
    workshop.model("b")
    async with tritium_server(EXPLICIT, "--load-model=a") as server:
        done = trio.Event()
        async with trio.open_nursery() as nursery:

            async def ask():
                assert (await load(server, "slow")).status == 200
                done.set()

            nursery.start_soon(ask)
            await until_states(server, "slow", {1: "LOADING"})
            with trio.fail_after(30):
                assert await identity(server, "a") == (1, 1)
                assert (await load(server, "b")).status == 200
                assert await identity(server, "b") == (1, 1)
                workshop.write("a/1/model.py", code(2))
                assert (await load(server, "a")).status == 200
                assert await identity(server, "a") == (1, 2)
                assert (await unload(server, "b")).status == 200
            assert await ready(server)  # loading one model never makes the server unready
            assert not done.is_set()
            (shown,) = await entries(server, "slow")
            assert shown["state"] == "LOADING"
            assert shown["progress"]["phase"] == "loading"
            assert not await ready(server, "slow")
            gate.touch()
        assert await identity(server, "slow") == (1, 1)


async def test_what_models_print_about_progress_is_in_the_tree_too(tritium_server, workshop):
    workshop.model("slow", initialize="time.sleep(60)")
    async with tritium_server(EXPLICIT) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, server, "slow")
            await until_states(server, "slow", {1: "LOADING"})

            async def told():
                return "loading" in json.dumps(await server.tree())

            await eventually(told)
            await unload(server, "slow")
