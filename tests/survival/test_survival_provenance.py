"""Servers that load signed models only, or none that carry code: every way in which a model is loaded."""

import base64
import json
import os
import signal

import pytest

from tests.support.signing import new_key, sign_model, trusted
from tests.survival.changing import Workshop, as_json, code, entries, identity, load, pids, until_states
from tests.survival.server import eventually, standing, until

pytestmark = pytest.mark.slow

KEY = new_key()
EXPLICIT = "--model-control-mode=explicit"
ENSEMBLE = """
platform: "ensemble"
input [ { name: "TICKET" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "IDENTITY" data_type: TYPE_INT32 dims: [ 3 ] } ]
ensemble_scheduling { step [ {
  model_name: "@PART@" model_version: -1
  input_map { key: "TICKET" value: "TICKET" } output_map { key: "IDENTITY" value: "IDENTITY" }
} ] }
"""
LOADING = """
import triton_python_backend_utils as pb_utils
import numpy as np


class TritonPythonModel:
    def execute(self, requests):
        try:
            pb_utils.load_model(model_name="unsigned")
            told = "loaded"
        except Exception as error:
            told = str(error)
        tensor = pb_utils.Tensor("TOLD", np.array([told.encode()], object))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("provenance")


@pytest.fixture(scope="module")
def shop(folder):
    (folder / "models").mkdir()
    return Workshop(folder / "models")


def flags(folder):
    trusted(folder, KEY)
    keys, cache = folder / "trusted.keys", folder / "cache"
    return ("--require-signed", f"--trusted-keys={keys}", f"--model-cache-directory={cache}")


@pytest.fixture(scope="module")
def server(folder, shop):
    """One server, which loads nothing by itself, and leaves no copy of a model behind."""
    with standing(shop.repository, EXPLICIT, *flags(folder), files=folder / "server") as server:
        yield server
    assert [path for path in (folder / "cache" / "tritium-signed").rglob("*") if path.is_file()] == []


@pytest.fixture
def workshop(repository):
    return Workshop(repository.path)


async def refusal(server, model, **parameters):
    """What a load is answered that fails."""
    answer = await load(server, model, **parameters)
    assert answer.status in {400, 500}, answer.body
    return answer.json()["error"]


def ensemble(shop, name, part):
    folder = shop.repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / ".keep").touch()
    (folder / "config.pbtxt").write_text(ENSEMBLE.replace("@PART@", part))
    return folder


async def test_a_signed_model_serves_and_comes_back_from_what_was_checked(server, shop):
    model = sign_model(shop.model("plain"), KEY)
    assert (await load(server, "plain")).status == 200
    assert await identity(server, "plain") == (1, 1)
    shop.write("plain/1/model.py", code(666))
    (pid,) = await pids(server, "plain")
    os.kill(pid, signal.SIGKILL)

    async def back():
        return set(await pids(server, "plain")) - {pid}

    await eventually(back)
    assert await identity(server, "plain") == (1, 1)
    assert "'1/model.py' does not match SHA256SUMS" in await refusal(server, "plain")
    assert await identity(server, "plain") == (1, 1)
    sign_model(model, KEY)
    assert (await load(server, "plain")).status == 200
    assert await identity(server, "plain") == (1, 666)


async def test_a_model_that_is_not_signed_is_refused_with_what_is_missing(server, shop):
    shop.model("unsigned")
    told = await refusal(server, "unsigned")
    assert "model 'unsigned' is refused by --require-signed: it is not signed: there is no SHA256SUMS" in told
    [entry] = await entries(server, "unsigned")
    assert entry["state"] == "UNAVAILABLE"
    assert "there is no SHA256SUMS" in entry["reason"]


async def test_files_and_configurations_of_requests_are_refused(server, shop):
    sign_model(shop.model("overridden"), KEY)
    files = {"file:1/model.py": base64.b64encode(code(2).encode()).decode()}
    for parameters in ({"config": as_json()}, {"config": as_json(), **files}):
        told = await refusal(server, "overridden", **parameters)
        assert "no signature covers them, and --require-signed forbids that" in told
    assert (await load(server, "overridden")).status == 200
    assert "no signature covers them" in await refusal(server, "overridden", config=as_json())
    assert await identity(server, "overridden") == (1, 1)


async def test_an_ensemble_is_signed_and_so_are_its_models(server, shop):
    shop.model("part")
    sign_model(ensemble(shop, "whole", "part"), KEY)
    assert "depends on 'part'" in await refusal(server, "whole")
    sign_model(shop.repository / "part", KEY)
    assert (await load(server, "whole")).status == 200
    assert await identity(server, "whole") == (1, 1)
    assert "there is no SHA256SUMS" in await refusal(server, ensemble(shop, "unsigned_whole", "part").name)


async def test_a_model_loads_no_other_that_is_not_signed(server, shop):
    model = shop.repository / "loader"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(LOADING)
    (model / "config.pbtxt").write_text(
        'backend: "python"\noutput [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        'input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
    )
    sign_model(model, KEY)
    if not (shop.repository / "unsigned").exists():
        shop.model("unsigned")
    assert (await load(server, "loader")).status == 200
    async with await server.connect() as connection:
        body = {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [1]}]}
        answer = await connection.request("POST", "/v2/models/loader/infer", json.dumps(body).encode())
    assert "is refused by --require-signed" in answer.json()["outputs"][0]["data"][0]


@pytest.mark.parametrize(
    ("name", "extra", "told"),
    [
        (
            "environment_elsewhere",
            'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/opt/env.tar.gz" } }',
            "'/opt/env.tar.gz', outside the model's folder",
        ),
        (
            "environment_beside",
            'parameters { key: "EXECUTION_ENV_PATH"'
            ' value { string_value: "$$TRITON_MODEL_DIRECTORY/../other/env.tar.gz" } }',
            "outside the model's folder",
        ),
        ("installing", "", "'requirements.txt' installs packages that no signature covers"),
    ],
)
async def test_an_environment_lies_in_the_signed_folder(server, shop, name, extra, told):
    model = shop.model(name, extra=extra)
    if not extra:
        (model / "requirements.txt").write_text("six\n")
    sign_model(model, KEY)
    assert told in await refusal(server, name)


async def test_a_key_that_is_revoked_counts_at_the_next_load(server, shop, folder):
    sign_model(shop.model("rotated"), KEY)
    assert (await load(server, "rotated")).status == 200
    second = new_key("second")
    try:
        trusted(folder, KEY, second, revoked=KEY.public.name)
        assert f"the key {KEY.public.name}, which" in await refusal(server, "rotated")
        assert await identity(server, "rotated") == (1, 1)
        sign_model(shop.repository / "rotated", second)
        assert (await load(server, "rotated")).status == 200
    finally:
        trusted(folder, KEY)


async def test_polling_loads_what_is_signed_and_keeps_what_was(tritium_server, workshop, tmp_path):
    model = sign_model(workshop.model("m"), KEY)
    polling = ("--model-control-mode=poll", "--repository-poll-secs=0.1")
    async with tritium_server(*polling, *flags(tmp_path)) as server:
        assert await identity(server, "m") == (1, 1)
        workshop.version("m", 2)
        await until(lambda: any("does not list" in str(line) for line in server.logged("model_load_failed")))
        assert await identity(server, "m") == (1, 1)
        sign_model(model, KEY)
        await until_states(server, "m", {1: "UNAVAILABLE", 2: "READY"})
        assert await identity(server, "m") == (2, 2)


async def test_a_server_does_not_start_with_a_model_that_is_not_signed(tritium_server, workshop, tmp_path):
    workshop.model("m")
    async with tritium_server(*flags(tmp_path), ready=False, exit_status=1) as server:
        assert await server.wait_ended() == 1
        (line,) = server.logged("model_unavailable")
        assert "there is no SHA256SUMS in it (tritium sign --key FILE MODEL_DIR)" in line["reason"]


async def test_a_server_does_not_start_with_keys_that_can_not_be_read(tritium_server, workshop, tmp_path):
    arguments = flags(tmp_path)
    (tmp_path / "trusted.keys").write_text("nonsense\n")
    async with tritium_server(*arguments, ready=False, exit_status=1) as server:
        assert await server.wait_ended() == 1
        (told,) = server.failures
        assert "--require-signed" in told
        assert "trusted.keys:1: 'nonsense'… is no public key" in told


async def test_without_code_python_and_torch_are_refused_and_onnx_serves(tritium_server, repository):
    repository.onnx_add_sub()
    repository.python_add_sub()
    repository.torch_doubling()
    async with tritium_server("--no-code-models", "--exit-on-error=false", ready=False) as server:
        await server.wait_loaded()
        index = await server.index()
        assert index["onnx_add_sub"]["state"] == "READY"
        for model, backend in (("python_add_sub", "python"), ("torch_doubling", "pytorch")):
            assert index[model]["state"] == "UNAVAILABLE"
            assert f"backend '{backend}' may run code that a model brings" in index[model]["reason"]
        assert not [line for line in server.logged("worker_started") if line.get("model") != "onnx_add_sub"]


async def test_without_code_no_request_brings_any(tritium_server, workshop, tmp_path):
    (workshop.repository / "m").mkdir()
    async with tritium_server("--no-code-models", EXPLICIT) as server:
        files = {"file:1/model.py": base64.b64encode(code(2).encode()).decode()}
        assert "--no-code-models forbids" in await refusal(server, "m", config=as_json(), **files)
