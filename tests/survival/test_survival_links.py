"""Models whose files are links to other places: polled, in the strict sandbox, and where that is refused."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from tests.support.bare_models import onnx_model
from tests.survival.changing import Workshop, code, identity, load
from tests.survival.server import eventually

pytestmark = [pytest.mark.slow, pytest.mark.system]

STRICT = 'parameters { key: "tritium.sandbox" value { string_value: "strict" } }\n'
READING = """
from helper import LABEL

assert (HERE / "weights" / "deep" / "data").read_text() == "weights"
assert LABEL == "helped"
try:
    (HERE / "weights" / ".." / "secret").resolve().read_text()
except OSError:
    pass
else:
    raise RuntimeError("it can read what is beside its weights")
"""


@pytest.fixture
def workshop(repository):
    return Workshop(repository.path)


@pytest.fixture
def elsewhere(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


def moved_out(model, elsewhere):
    """Move the versions of a model elsewhere, and link them."""
    for version in [path for path in model.iterdir() if path.is_dir()]:
        target = elsewhere / f"{model.name}-{version.name}"
        version.rename(target)
        version.symlink_to(target)
    return model


async def test_polling_sees_what_changes_where_links_lead(tritium_server, workshop, elsewhere):
    moved_out(workshop.model("telling"), elsewhere)
    async with tritium_server("--model-control-mode=poll", "--repository-poll-secs=0.1") as server:
        assert await identity(server, "telling") == (1, 1)
        workshop.write(str(elsewhere / "telling-1/model.py"), code(2))

        async def changed():
            return await identity(server, "telling") == (1, 2)

        await eventually(changed)


async def test_a_strict_sandbox_lets_a_model_read_what_it_links_to(tritium_server, workshop, elsewhere):
    (elsewhere / "weights/deep").mkdir(parents=True)
    (elsewhere / "weights/deep/data").write_text("weights")
    (elsewhere / "secret").write_text("secret")
    (elsewhere / "helper").write_text("LABEL = 'helped'\n")
    model = workshop.model("telling", extra=STRICT)
    text = (model / "1/model.py").read_text()
    (elsewhere / "code").write_text(text.replace("\n\nclass ", f"\n{READING}\n\nclass ", 1))
    (model / "1/model.py").unlink()
    for name, target in (("model.py", "code"), ("helper.py", "helper"), ("weights", "weights")):
        (model / "1" / name).symlink_to(elsewhere / target)
    async with tritium_server() as server:
        assert await identity(server, "telling") == (1, 1)


async def test_where_links_stay_inside_a_model_elsewhere_is_refused_by_name(
    tritium_server, workshop, elsewhere
):
    workshop.model("telling")
    moved_out(workshop.model("elsewhere"), elsewhere)
    inside = ("--model-repository-links=inside", "--model-control-mode=explicit")
    async with tritium_server(*inside) as server:
        refused = await load(server, "elsewhere")
        assert (refused.status, "'1' is a link out of the model repository" in refused.error) == (500, True)
        assert (await load(server, "telling")).status == 200
        assert await identity(server, "telling") == (1, 1)


CONTAINER = """
mount -t tmpfs none "$1" && mkdir "$1/models" && cp -r "$2/." "$1/models" && echo mounted || exit
exec sleep infinity
"""
"""Mounts files where no other process sees them, as a container's are."""


def _mounts():
    command = ["unshare", "-rm", "true"]
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(command, check=False, capture_output=True).returncode
    )


@pytest.fixture
def modelcar(repository, tmp_path):
    """Move a repository into another container, and leave a link to it, as KServe's modelcars do."""
    inside, processes = tmp_path / "inside", []
    inside.mkdir()

    def moved():
        command = ["unshare", "-rm", "sh", "-c", CONTAINER, "sh", str(inside), str(repository.path)]
        container = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(container)
        assert container.stdout is not None
        assert container.stdout.readline() == "mounted\n"
        repository.path.rename(tmp_path / "original")
        repository.path.symlink_to(f"/proc/{container.pid}/root{inside}/models")
        return container

    yield moved
    for process in processes:
        process.kill()
        process.communicate()


needs_mounts = pytest.mark.skipif(not _mounts(), reason="no mounts of one's own: that needs user namespaces")


@needs_mounts
@pytest.mark.parametrize("sandbox", ["", STRICT])
async def test_a_repository_in_another_container_is_served_in_a_sandbox(
    tritium_server, workshop, modelcar, sandbox
):
    workshop.model("telling", versions=(1, 2), extra=f"version_policy {{ all {{ }} }}\n{sandbox}")
    modelcar()
    async with tritium_server("--model-control-mode=poll") as server:
        assert await identity(server, "telling") == (2, 2)
        assert await identity(server, "telling", version=1) == (1, 1)


@needs_mounts
@pytest.mark.parametrize("sandbox", ["", STRICT])
async def test_weights_beside_an_onnx_model_in_another_container_are_found(
    tritium_server, repository, modelcar, sandbox
):
    version = repository.path / "scores" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(sandbox)
    onnx_model(version / "model.onnx", external="model.onnx.data")
    assert sorted(os.listdir(version)) == ["model.onnx", "model.onnx.data"]
    modelcar()
    asked = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    async with tritium_server() as server, await server.connect() as connection:
        answer = await connection.request("POST", "/v2/models/scores/infer", json.dumps(asked).encode())
        assert answer.status == 200, answer.body
        assert json.loads(answer.body)["outputs"][0]["data"] == [10] * 4


@needs_mounts
async def test_a_repository_outlives_the_container_that_it_lies_in(tritium_server, workshop, modelcar):
    workshop.model("telling")
    container = modelcar()
    async with tritium_server("--model-control-mode=explicit", "--load-model=telling") as server:
        [pid] = await server.wait_serving("telling")
        container.kill()
        container.wait()
        # A new worker reads the files once more.
        os.kill(pid, signal.SIGKILL)
        await server.wait_serving("telling", but_not=(pid,))
        assert await identity(server, "telling") == (1, 1)
