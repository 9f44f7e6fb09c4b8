"""Cached answers in a real server, as Triton's clients and operators see them; and a killed Redis server."""

from functools import partial

import numpy as np
import pytest
import trio
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto

from tests.support.flavours import write_onnx_model
from tests.support.redis_double import RedisDouble
from tests.support.triton_inputs import inputs
from tests.survival.repository import WIDTH, Gates, Repository, instances
from tests.survival.server import eventually, standing, until

CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}
CACHED = "response_cache { enable: true }\n"
LOCAL = "--cache-config=local,size=67108864"


class Client:
    """tritonclient, in a thread."""

    def __init__(self, server, protocol):
        self.library = CLIENTS[protocol]
        self.client = self.library.InferenceServerClient(
            server.url if protocol == "http" else server.grpc_url
        )

    async def infer(self, model, *, outputs=None, classes=0, request_id="", **arrays):
        """Send float inputs by name; return the result."""
        tensors = inputs(self.library, **arrays)
        wanted = None
        if outputs is not None:
            wanted = [self.library.InferRequestedOutput(name, class_count=classes) for name in outputs]
        send = partial(self.client.infer, model, tensors, outputs=wanted, request_id=request_id)
        return await trio.to_thread.run_sync(send)

    async def identified(self, model, request_id, **arrays):
        """Return the id that an answer has."""
        answer = (await self.infer(model, request_id=request_id, **arrays)).get_response()
        return answer["id"] if isinstance(answer, dict) else answer.id


async def statistics(server, model):
    answer = (await server.get(f"/v2/models/{model}/stats")).json()["model_stats"][0]
    counts = {name: each["count"] for name, each in answer["inference_stats"].items()}
    return {**counts, "inferences": answer["inference_count"], "executions": answer["execution_count"]}


def rows(value, count=1):
    return np.full((count, WIDTH), value, np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def server(folder):
    """One server for most of the tests; each has a model, or inputs, of its own."""
    repository = Repository(folder / "models")
    for name in ("kept_http", "kept_grpc", "shaped"):
        repository.onnx_add_sub(name, config=instances(1) + CACHED)
    repository.onnx_add_sub("computed", config=instances(1))
    repository.onnx_identity("large", config=instances(1) + CACHED)
    repository.python_add_sub("changing", config=instances(1) + CACHED)
    repository.onnx_add_sub("step", config=instances(1) + CACHED)
    repository.gated(folder / "gates", config=CACHED)
    write_scores(repository)
    repository.onnx_add_sub("inner", config=instances(1))
    write_ensemble(repository, "outer", "inner", CACHED)
    write_ensemble(repository, "through", "step", "")
    flags = (LOCAL, "--model-control-mode=explicit", "--load-model=*")
    with standing(repository.path, *flags, files=folder / "server") as server:
        yield server


@pytest.fixture(scope="module")
def gates(folder):
    return Gates(folder / "gates")


def write_scores(repository):
    write_onnx_model(
        repository.path,
        "scores",
        nodes=[("Identity", ["X"], "Y")],
        inputs=[("X", TensorProto.FLOAT, [-1])],
        outputs=[("Y", TensorProto.FLOAT, [-1])],
        labels="cat\ndog\n",
    )
    with (repository.path / "scores" / "config.pbtxt").open("a") as config:
        config.write(CACHED)


def write_ensemble(repository, name, inner, config):
    """TOTAL = (LEFT + RIGHT) + RIGHT."""
    directory = repository.path / name
    (directory / "1").mkdir(parents=True)
    tensor = f"data_type: TYPE_FP32 dims: [ {WIDTH} ]"
    (directory / "config.pbtxt").write_text(
        f"""
        name: "{name}"
        platform: "ensemble"
        max_batch_size: 8
        input [ {{ name: "LEFT" {tensor} }}, {{ name: "RIGHT" {tensor} }} ]
        output [ {{ name: "TOTAL" {tensor} }} ]
        ensemble_scheduling {{ step [ {{
            model_name: "{inner}" model_version: -1
            input_map {{ key: "A" value: "LEFT" }}
            input_map {{ key: "B" value: "RIGHT" }}
            output_map {{ key: "SUM" value: "BETWEEN" }}
        }}, {{
            model_name: "{inner}" model_version: -1
            input_map {{ key: "A" value: "BETWEEN" }}
            input_map {{ key: "B" value: "RIGHT" }}
            output_map {{ key: "SUM" value: "TOTAL" }}
        }} ] }}
        {config}
        """
    )


@pytest.mark.parametrize("protocol", CLIENTS)
async def test_hits_are_told_by_statistics_metrics_and_ids(server, protocol):
    client, model = Client(server, protocol), f"kept_{protocol}"
    before = {name: await server.metric(f"nv_cache_num_{name}") for name in ("hits", "misses", "entries")}
    for _ in range(3):
        answer = await client.infer(model, A=rows(3, 2), B=rows(1, 2))
        assert (answer.as_numpy("SUM") == 4).all()
    assert [await client.identified(model, each, A=rows(3, 2), B=rows(1, 2)) for each in "ab"] == ["a", "b"]
    told = await statistics(server, model)
    assert (told["success"], told["cache_hit"], told["cache_miss"]) == (5, 4, 1)
    assert (told["queue"], told["compute_infer"]) == (5, 1)
    assert (told["inferences"], told["executions"]) == (2, 1)
    for name, value in (
        ("nv_cache_num_hits_per_model", 4),
        ("nv_cache_num_misses_per_model", 1),
        ("nv_inference_request_success", 5),
        ("nv_inference_count", 2),
    ):
        assert await server.metric(name, model=model) == value
    after = {name: await server.metric(f"nv_cache_num_{name}") for name in before}
    assert {name: after[name] - before[name] for name in before} == {"hits": 4, "misses": 1, "entries": 1}
    assert 0 < await server.metric("nv_cache_util") < 1


@pytest.mark.parametrize("protocol", CLIENTS)
async def test_what_was_asked_for_is_what_is_given(server, protocol):
    client = Client(server, protocol)
    for _ in range(2):
        one = await client.infer("shaped", outputs=["SUM"], A=rows(3), B=rows(1))
        both = await client.infer("shaped", A=rows(3), B=rows(1))
        assert one.as_numpy("DIFFERENCE") is None
        assert (both.as_numpy("DIFFERENCE") == 2).all()
    scores = np.array([[0.25, 0.5]], np.float32)
    for _ in range(2):
        best = await client.infer("scores", outputs=["Y"], classes=1, X=scores)
        assert best.as_numpy("Y").ravel().tolist() == [b"0.500000:1:dog"]
    plain = await client.infer("scores", outputs=["Y"], X=scores)
    assert plain.as_numpy("Y").tolist() == scores.tolist()
    # The same bytes in another shape are another request.
    wide, high = np.zeros((1, 4), np.float32), np.zeros((4, 1), np.float32)
    assert (await client.infer("scores", X=wide)).as_numpy("Y").shape == (1, 4)
    assert (await client.infer("scores", X=high)).as_numpy("Y").shape == (4, 1)
    assert (await statistics(server, "scores"))["executions"] == 3


async def test_an_ensemble_is_answered_without_its_models(server):
    client = Client(server, "grpc")
    for _ in range(3):
        answer = await client.infer("outer", LEFT=rows(3), RIGHT=rows(4))
        assert (answer.as_numpy("TOTAL") == 11).all()
    told = await statistics(server, "outer")
    assert (told["success"], told["cache_hit"], told["cache_miss"]) == (3, 2, 1)
    assert (await statistics(server, "inner"))["executions"] == 2


async def test_the_steps_of_an_ensemble_are_answered_from_the_cache(server):
    client = Client(server, "http")
    for _ in range(3):
        answer = await client.infer("through", LEFT=rows(3), RIGHT=rows(4))
        assert (answer.as_numpy("TOTAL") == 11).all()
    told = await statistics(server, "step")
    assert (told["executions"], told["cache_hit"], told["cache_miss"]) == (2, 4, 2)


async def test_a_reloaded_model_does_not_answer_for_its_predecessor(server, folder):
    code = folder / "models" / "changing" / "1" / "model.py"
    client = Client(server, "http")
    first = await client.infer("changing", A=rows(3), B=rows(1))
    code.write_text(code.read_text().replace("a + b", "a * 100"))
    assert (await server.get("/v2/repository/models/changing/load", method="POST")).status == 200
    second = await client.infer("changing", A=rows(3), B=rows(1))
    assert (first.as_numpy("SUM")[0, 0], second.as_numpy("SUM")[0, 0]) == (4, 300)


@pytest.mark.long
async def test_two_servers_share_a_redis_server_and_outlive_it(tritium_server, repository):
    repository.onnx_add_sub("kept", config=instances(1) + CACHED)
    with RedisDouble() as redis:
        flags = ["--cache-config=redis,host=127.0.0.1", f"--cache-config=redis,port={redis.port}"]

        async def asked(server):
            async def available():
                return await server.metric("tritium_cache_available") == 1

            await eventually(available)
            return Client(server, "http")

        async with tritium_server(*flags) as server:
            client = await asked(server)
            await client.infer("kept", A=rows(3), B=rows(1))
            await until(lambda: bool(redis.values))
            await client.infer("kept", A=rows(3), B=rows(1))
            assert (await statistics(server, "kept"))["cache_hit"] == 1

        async with tritium_server(*flags) as server:
            client = await asked(server)
            await client.infer("kept", A=rows(3), B=rows(1))
            assert (await statistics(server, "kept"))["executions"] == 0
            redis.stop()
            for value in range(8):
                answer = await client.infer("kept", A=rows(3), B=rows(value))
                assert (answer.as_numpy("SUM") == 3 + value).all()
            assert (await statistics(server, "kept"))["fail"] == 0
            await until(lambda: bool(server.logged("cache_unavailable")))
            redis.start()
            client = await asked(server)
            hits = (await statistics(server, "kept"))["cache_hit"]
            await client.infer("kept", A=rows(3), B=rows(1))
            assert (await statistics(server, "kept"))["cache_hit"] == hits + 1
