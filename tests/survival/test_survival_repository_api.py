"""The repository API as tritonclient drives it: contract repository.md, sections 2 to 6 and 13.

The tests check texts, states and outcomes, most of them on one server, each with models of its own. What the
catalog decides is tested in virtual time: `tests/actors/catalog`.
"""

import json
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
from tests.survival.server import eventually, standing, until
from tests.survival.wire import inference

pytestmark = pytest.mark.slow

EXPLICIT = "--model-control-mode=explicit"
UNLOADED = {"state": "UNAVAILABLE", "reason": "unloaded"}
NOT_POLLED = "failed to load '{}', failed to poll from model repository"
BROKEN = 'raise RuntimeError("the weights are not there")'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("repository-api")


@pytest.fixture(scope="module")
def shop(folder):
    """The repository of the server that most tests share."""
    (folder / "models").mkdir()
    return Workshop(folder / "models")


@pytest.fixture(scope="module")
def server(folder, shop):
    """One server, which loads nothing by itself and leaves no uploaded file behind."""
    temporary = folder / "temporary"
    temporary.mkdir()
    with standing(shop.repository, EXPLICIT, files=folder / "server", TMPDIR=str(temporary)) as server:
        yield server
    assert list(temporary.iterdir()) == []


@pytest.fixture
def workshop(repository):
    """The repository of a test that needs a server of its own."""
    return Workshop(repository.path)


def entry(name, version=1, state="READY", **more):
    return {"name": name, "version": str(version), "state": state, **more}


async def infer_count(server, model):
    stats = (await server.get(f"/v2/models/{model}/stats")).json()
    return stats["model_stats"][0]["inference_stats"]["success"]["count"]


# -- index, load and unload


async def test_a_model_comes_and_goes_by_request(server, shop):
    shop.model("guest")
    assert await entries(server, "guest") == [{"name": "guest"}]
    assert {"name": "guest"} not in await entries(server, ready=True)
    assert (await refusal(server, "guest"))[0] in {400, 404}
    assert not await triton(server, "is_model_ready", "guest")

    await triton(server, "load_model", "guest")
    assert entry("guest") in await triton(server, "get_model_repository_index")
    assert entry("guest") in await entries(server, ready=True)
    assert await triton(server, "is_model_ready", "guest")
    assert await identity(server, "guest") == (1, 1)
    (worker,) = await pids(server, "guest")

    await triton(server, "unload_model", "guest")
    assert not await triton(server, "is_model_ready", "guest")
    status, message = await refusal(server, "guest")
    assert (status, message) == (404, "Request for unknown model: 'guest' has no available versions")
    await until_states(server, "guest", {1: "UNAVAILABLE"})
    assert await entries(server, "guest") == [entry("guest", **UNLOADED)]
    await until(lambda: not psutil.pid_exists(worker))
    await triton(server, "unload_model", "guest", unload_dependents=True)
    await triton(server, "unload_model", "unknown")

    await triton(server, "load_model", "guest")
    assert await identity(server, "guest") == (1, 1)


async def test_a_load_replaces_what_has_changed_and_nothing_else(server, shop):
    directory = shop.model("changing")
    await triton(server, "load_model", "changing")
    before = await pids(server, "changing")
    (directory / "1" / "model.py").touch()  # content decides, not modification times
    await triton(server, "load_model", "changing")
    assert await pids(server, "changing") == before
    shop.write("changing/1/model.py", code(2))
    # No request has been sent yet.
    assert await identity(server, "changing") == (1, 1)
    await triton(server, "load_model", "changing")
    assert await identity(server, "changing") == (1, 2)
    await replaced(server, "changing", before)
    assert await states(server, "changing") == {1: "READY"}


async def test_a_model_that_left_the_disk_is_listed_for_as_long_as_it_serves(server, shop):
    for name in ("leaving", "left"):
        shop.model(name)
    await triton(server, "load_model", "leaving")
    for name in ("leaving", "left"):
        shop.remove(name)

    async def shows(name, *expected):
        return await entries(server, name) == [*expected]

    await eventually(partial(shows, "left"))
    assert await shows("leaving", entry("leaving"))
    assert await identity(server, "leaving") == (1, 1)
    await triton(server, "unload_model", "leaving")
    await eventually(partial(shows, "leaving"))


# -- what a load can put in place of the files


async def test_a_configuration_in_the_request_counts_until_the_files_change(server, shop):
    shop.model("greeting")

    async def greeting():
        document = (await server.get("/v2/models/greeting/config")).json()
        return document.get("parameters", {}).get("greeting", {}).get("string_value")

    override = as_json(parameters={"greeting": {"string_value": "hello"}})
    await triton(server, "load_model", "greeting", config=override)
    assert await greeting() == "hello"
    overridden = await pids(server, "greeting")
    await triton(server, "load_model", "greeting")  # the files are what they were
    assert (await greeting(), await pids(server, "greeting")) == ("hello", overridden)
    shop.write("greeting/1/model.py", code(2))
    await triton(server, "load_model", "greeting")
    assert await greeting() is None
    assert await identity(server, "greeting") == (1, 2)


async def test_files_in_the_request_are_the_whole_model_until_the_next_plain_load(server, shop):
    shop.model("filed", versions=(1, 3))
    await triton(server, "load_model", "filed")
    assert await identity(server, "filed") == (3, 3)
    files = {"file:1/model.py": code(77, parts=1).encode(), "file:1/part-0": b"\x00\xff"}
    await triton(server, "load_model", "filed", config=as_json(), files=files)
    assert await identity(server, "filed") == (1, 77)
    await until_states(server, "filed", {1: "READY", 3: "UNAVAILABLE"})
    await triton(server, "load_model", "filed")
    assert await identity(server, "filed") == (3, 3)
    await until_states(server, "filed", {1: "UNAVAILABLE", 3: "READY"})


async def test_a_model_can_be_made_of_nothing_but_a_request(server):
    files = {"file:/1/model.py": code(78).encode(), "file:///2/model.py": code(79).encode()}
    await triton(server, "load_model", "made_up", config=as_json(version_policy={"all": {}}), files=files)
    assert await identity(server, "made_up", version=1) == (1, 78)
    assert await identity(server, "made_up", version=2) == (2, 79)


BAD_OVERRIDES: list[tuple[dict[str, Any], int, str]] = [
    ({"config": "{"}, 500, NOT_POLLED.format("kept")),
    ({"config": '{"max_batch_sise": 8}'}, 500, NOT_POLLED.format("kept")),
    ({"config": "[]"}, 500, NOT_POLLED.format("kept")),
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


async def test_an_override_that_makes_no_sense_is_refused_and_changes_nothing(server, shop, folder):
    shop.model("kept")
    await triton(server, "load_model", "kept")
    before = await pids(server, "kept")
    for parameters, status, message in BAD_OVERRIDES:
        response = await load(server, "kept", **parameters)
        assert response.status == status, (parameters, response.body)
        assert message in response.error, (parameters, response.error)
    assert await pids(server, "kept") == before
    (told,) = await entries(server, "kept")
    assert told.pop("reason").startswith("reload failed: ")
    assert told == entry("kept")
    assert await ready(server)
    assert not list(folder.rglob("escaped"))


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
async def test_requests_that_make_no_sense_say_so(server, path, document, status, message):
    response = await post(server, f"/v2/repository/{path}", document)
    assert (response.status, response.error) == (status, message)


async def test_links_are_followed_into_and_out_of_the_repository(server, shop, tmp_path):
    shop.model("within")
    shop.model("outside").rename(tmp_path / "outside")
    (shop.repository / "outside").symlink_to(tmp_path / "outside")
    (shop.repository / "alias").symlink_to("within")
    for name in ("outside", "alias"):
        await triton(server, "load_model", name)
        assert await identity(server, name) == (1, 1)


async def test_a_link_to_everything_is_no_model_and_holds_nothing_up(server, shop):
    shop.model("beside")
    (shop.repository / "everything").symlink_to("/")
    status, message = await triton_refusal(server, "load_model", "everything")
    assert (status, message.startswith(NOT_POLLED.format("everything") + ": ")) == ("500", True)
    assert message.endswith("'everything' is a link to a directory that the repository lies in")
    (shop.repository / "everything").unlink()
    await triton(server, "unload_model", "everything")
    assert await ready(server)
    await triton(server, "load_model", "beside")
    assert await identity(server, "beside") == (1, 1)


# -- loads that fail


async def test_a_load_that_fails_says_why_and_makes_the_server_unready_until_it_is_mended(server, shop):
    shop.model("broken", initialize=BROKEN)
    status, message = await triton_refusal(server, "load_model", "broken")
    assert status == "400"
    begin = "load failed for model 'broken': version 1 is at UNAVAILABLE state: "
    assert message.startswith(f"{begin}Internal: ")
    assert "the weights are not there" in message
    assert message.endswith(";\n")
    reason = message.removeprefix(begin).removesuffix(";\n")
    assert await entries(server, "broken") == [entry("broken", state="UNAVAILABLE", reason=reason)]
    assert not await ready(server)
    assert (await server.get("/v2/health/live")).status == 200

    await triton(server, "unload_model", "broken")
    assert await ready(server)
    assert await entries(server, "broken") == [entry("broken", **UNLOADED)]

    shop.write("broken/1/model.py", code(2))
    await triton(server, "load_model", "broken")
    assert await ready(server)
    assert await identity(server, "broken") == (1, 2)


async def test_a_reload_that_fails_leaves_what_serves(server, shop):
    shop.model("a")
    await triton(server, "load_model", "a")
    before = await pids(server, "a")
    for bad in (code(2, initialize=BROKEN), "import nothing_of_that_name", "this is no Python"):
        shop.write("a/1/model.py", bad)
        status, message = await triton_refusal(server, "load_model", "a")
        assert status == "400"
        assert message.startswith("load failed for model 'a': version 1 is at UNAVAILABLE state: ")
    shop.write("a/config.pbtxt", 'backend: "python" max_batch_sise: 8')
    status, message = await triton_refusal(server, "load_model", "a")
    assert (status, message.startswith(NOT_POLLED.format("a") + ": ")) == ("500", True)
    assert await identity(server, "a") == (1, 1)
    assert await pids(server, "a") == before
    why = message.removeprefix(NOT_POLLED.format("a") + ": ")
    assert "max_batch_sise" in why
    assert await entries(server, "a") == [entry("a", reason=f"reload failed: {why}")]
    assert ("a", "READY", f"reload failed: {why}") in await trio.to_thread.run_sync(grpc_indexed, server)
    part = await deep_part(server, "a")
    assert (part["ready"], part["reload_failed"]) == (True, why)
    assert (await server.node("repository/lanes/a"))["info"]["reload_failed"] == why
    assert await server.metric("tritium_model_reload_failed", model="a", version="1") == 1
    assert await server.metric("tritium_model_load_failures_total", model="a") == 4
    assert await ready(server)

    shop.write("a/config.pbtxt", config())
    shop.write("a/1/model.py", code(3))
    await triton(server, "load_model", "a")
    assert await entries(server, "a") == [entry("a")]
    assert await server.metric("tritium_model_reload_failed", model="a", version="1") == 0

    async def mended():
        return "reload_failed" not in await deep_part(server, "a")

    # Probes that come one soon after the other share a report.
    await eventually(mended)


async def deep_part(server, model):
    parts = (await server.get("/v2/health/ready?deep=1")).json()["parts"]
    (part,) = (each for each in parts if each["part"] == f"model {model} version 1")
    return part


def grpc_indexed(server):
    """The repository index over gRPC: names, states and reasons."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), timeout=20)
    return [(each.name, each.state, each.reason) for each in answer.models]


async def test_a_model_that_is_being_loaded_says_so_and_when_to_come_back(server, shop, tmp_path):
    go = tmp_path / "go"
    shop.model(
        "slow",
        initialize=f"import os, time\n        while not os.path.exists({str(go)!r}): time.sleep(0.01)",
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load, server, "slow")

        async def begun():
            return b"(phase '" in (await server.get("/v2/models/slow/ready")).body

        async def shown():
            return "loading" in json.dumps(await server.tree())

        await eventually(begun)
        await eventually(shown)
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
        assert await ready(server)  # loading one model never makes the server unready
        go.touch()
    assert await identity(server, "slow") == (1, 1)


def grpc_failure(server, model):
    """Return the error of a gRPC client that asks for a model's metadata."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=model), timeout=20)
    return caught.value


async def test_an_unload_takes_the_place_of_a_load_that_has_not_ended(server, shop):
    shop.model("hanging", initialize="time.sleep(60)")
    outcomes = []
    async with trio.open_nursery() as nursery:

        async def ask():
            outcomes.append(await load(server, "hanging"))

        nursery.start_soon(ask)
        await until_states(server, "hanging", {1: "LOADING"})
        with trio.fail_after(30):
            assert (await unload(server, "hanging")).status == 200
    (outcome,) = outcomes
    assert outcome.status == 400
    assert "Newer operation has been applied to the model lifecycle" in outcome.error
    await until_states(server, "hanging", {1: "UNAVAILABLE"})
    assert await ready(server)


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
async def test_the_policy_says_which_versions_are_served(server, shop, choice, served):
    name = f"of_{len(choice)}"
    shop.model(name, extra=policy(choice) if choice else "", versions=(1, 2, 3))
    await triton(server, "load_model", name)
    assert await entries(server, name) == [entry(name, version) for version in served]
    assert await identity(server, name) == (served[-1], served[-1])
    for version in {1, 2, 3} - {*served}:
        assert (await refusal(server, name, version=version))[0] in {400, 404}
    await triton(server, "unload_model", name)


async def test_a_new_count_of_instances_is_met_in_place(server, shop):
    shop.model("scaled")
    await triton(server, "load_model", "scaled")
    async with witnessed(server, "scaled", clients=4) as witness:
        first = await pids(server, "scaled")
        await witness.heard_more()
        counted = await infer_count(server, "scaled")
        shop.write("scaled/config.pbtxt", config(workers=3))
        await triton(server, "load_model", "scaled")
        three = await pids(server, "scaled")
        assert len(three) == 3
        assert first < three
        assert await infer_count(server, "scaled") >= counted > 0
        await witness.heard_more()
        shop.write("scaled/config.pbtxt", config(workers=2))
        await triton(server, "load_model", "scaled")
        two = await pids(server, "scaled")
        assert len(two) == 2
        assert two < three
        await witness.heard_more()
    assert await infer_count(server, "scaled") == witness.answered
    assert server.logged("model_scaled")


# -- starts


async def test_a_named_model_that_is_nowhere_ends_the_start(tritium_server, workshop):
    workshop.model("a")
    flags = (EXPLICIT, "--load-model=a", "--load-model=nowhere")
    async with tritium_server(*flags, ready=False, exit_status=1) as server:
        assert await server.wait_ended() == 1
        assert server.failures == ["creating server: Internal - failed to load all models"]


async def test_told_not_to_mind_the_server_serves_the_other_named_models(tritium_server, workshop):
    workshop.model("a")
    flags = (EXPLICIT, "--load-model=a", "--load-model=nowhere", "--exit-on-error=false")
    async with tritium_server(*flags, ready=False) as server:
        await server.wait_loaded()
        assert await identity(server, "a") == (1, 1)
        assert (await server.get("/v2/health/live")).status == 200


@pytest.fixture
def second(tmp_path):
    path = tmp_path / "second"
    path.mkdir()
    return Workshop(path)


async def test_a_model_of_two_repositories_is_served_from_neither(tritium_server, workshop, second):
    workshop.model("a")
    second.model("b", generation=5)
    workshop.model("twice")
    second.model("twice")
    flags = ("--exit-on-error=false", f"--model-repository={second.repository}")
    async with tritium_server(*flags, ready=False) as server:
        await server.wait_loaded()
        assert await ready(server)  # neither is in the lifecycle of models
        found = await entries(server)
        assert found[:2] == [entry("a"), entry("b")]
        assert (await identity(server, "a"), await identity(server, "b")) == ((1, 1), (1, 5))
        reason = "model appears in two or more repositories"
        assert {"name": "twice", "state": "UNAVAILABLE", "reason": reason}.items() <= found[2].items()
        assert "version" not in found[2]
        assert [each["name"] for each in await entries(server, ready=True)] == ["a", "b", "twice"]
        assert (await refusal(server, "twice"))[0] in {400, 404}
        assert "not unique across all model repositories" in server.stdout + server.stderr


async def test_with_namespaces_models_of_one_name_live_side_by_side(tritium_server, workshop, second):
    workshop.model("twice")
    second.model("twice", generation=5)
    second.model("once", generation=6)
    flags = ("--model-namespacing=true", f"--model-repository={second.repository}")
    async with tritium_server(*flags) as server:
        shown = await entries(server)
        assert [(each["name"], each["state"]) for each in shown] == [
            ("once", "READY"),
            ("twice", "READY"),
            ("twice", "READY"),
        ]
        assert await identity(server, "once") == (1, 6)
        assert await refusal(server, "twice") == (
            400,
            "There are 2 identifiers of model 'twice' in global map, model namespace must be provided to"
            " resolve ambiguity.",
        )
