"""Models on their own interpreters: side by side, restarted without a network, and during a build."""

import os
import signal

import pytest
import trio
import tritonclient.grpc as grpcclient

from tests.engine.environments.sources import make_environment, make_wheel, offline, pack

TELLING = """
import os, sys
import numpy as np
import tiny
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_output({"name": f"V{tiny.VERSION[0]}", "data_type": "TYPE_STRING", "dims": [3]})
        return config

    def execute(self, requests):
        facts = [tiny.VERSION, sys.prefix, os.environ.get("COLOUR", "")]
        output = pb_utils.Tensor(f"V{tiny.VERSION[0]}", np.array(facts, object))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
"""


@pytest.fixture
def wheels(tmp_path):
    """A directory with the only available packages: two versions of one."""
    for version in ("1.0", "2.0"):
        make_wheel(tmp_path / "wheels", "tiny", version)
    return tmp_path / "wheels"


@pytest.fixture
def environ(wheels, tmp_path):
    return {**offline(wheels), "TRITIUM_ENVIRONMENT_CACHE": str(tmp_path / "environments")}


@pytest.fixture
def add_model(repository):
    """Write a Python model that tells what it runs with."""

    def add(name, requirements="", config=""):
        directory = repository.path / name
        (directory / "1").mkdir(parents=True)
        (directory / "config.pbtxt").write_text(f'backend: "python"\n{config}')
        (directory / "1" / "model.py").write_text(TELLING)
        if requirements:
            (directory / "requirements.txt").write_text(requirements)
        return directory

    return add


async def told(server, model):
    """What a model says it runs with: the version of `tiny`, the Python's prefix, COLOUR."""

    def infer():
        with grpcclient.InferenceServerClient(server.grpc_url) as client:
            (output,) = client.get_model_metadata(model, as_json=True)["outputs"]
            values = client.infer(model, []).as_numpy(output["name"])
            return [output["name"], *(value.decode() for value in values)]

    return await trio.to_thread.run_sync(infer)


async def test_models_with_conflicting_requirements_serve_beside_each_other(
    tritium_server, add_model, environ, tmp_path
):
    add_model("first", "tiny==1.0")
    add_model("second", "tiny==2.0")
    async with tritium_server(environ=environ) as server:
        one, other = await told(server, "first"), await told(server, "second")
        assert (one[:2], other[:2]) == (["V1", "1.0"], ["V2", "2.0"])
        assert one[2] != other[2]
        assert len(server.logged("environment_built")) == 2

    # The packages are gone, so nothing can be installed any more: a second start needs none of it.
    offline_environ = {**environ, "PIP_FIND_LINKS": str(tmp_path / "nowhere")}
    async with tritium_server(environ=offline_environ) as server:
        assert await told(server, "first") == one
        assert await told(server, "second") == other
        assert not server.logged("environment_building")
        (pid,) = await server.workers("first")
        os.kill(pid, signal.SIGKILL)
        await server.wait_serving("first", but_not=(pid,))
        assert await told(server, "first") == one


async def test_a_packed_environment_and_the_servers_own_serve_beside_each_other(
    tritium_server, add_model, repository, environ, tmp_path
):
    source = make_environment(tmp_path / "env", activate="export COLOUR=blue\n")
    (source / "site").mkdir()
    make_wheel(tmp_path / "w", "tiny", "7.0")
    (source / "site" / "tiny.py").write_text("VERSION = '7.0'\n")
    script = source / "bin" / "python3"
    script.write_text(
        script.read_text().replace("exec", 'export PYTHONPATH="$(dirname "$0")/../site"\nexec', 1)
    )
    directory = add_model(
        "packed",
        config='parameters { key: "EXECUTION_ENV_PATH"'
        ' value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }',
    )
    pack(source, directory / "env.tar.gz")
    repository.python_add_sub()
    async with tritium_server(environ=environ) as server:
        name, version, _, colour = await told(server, "packed")
        assert (name, version, colour) == ("V7", "7.0", "blue")
        assert (await server.get("/v2/models/python_add_sub/ready")).status == 200
