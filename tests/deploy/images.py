"""Images built by deploy/image, and containers of them, without a daemon, an index or a network.

The base is a Debian with its own Python, made as Debian's slim images are. It is kept in the user's cache.
Images of arm64 run where the kernel has an interpreter for such programs (qemu-user-static).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.environments import IMAGES
from tests.support.operators import ROOT, clean_environ

BASES = Path.home() / ".cache" / "tritium-tests"
UNREAD = ("doc", "groff", "info", "lintian", "linda", "locale", "man")
"""What Debian's slim images leave out of /usr/share."""
PYTHON = {"python_version": "3.11", "python_full_version": "3.11.2"}
"""Debian 12's."""
GLIBC = 36
"""Debian 12's is 2.36."""

READY = "curl --fail --silent http://127.0.0.1:8000/v2/health/ready"
PATH = f"{IMAGES.named}/bin:{os.environ['PATH']}" if IMAGES.named else os.environ["PATH"]


def run(*words, **environ):
    done = subprocess.run(
        words,
        env=clean_environ(PATH=PATH, **environ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@dataclass(frozen=True, kw_only=True)
class Machine:
    """For which machine an image is."""

    name: str
    debian: str
    foreign: bool = False
    """Whether its programs run only by an interpreter."""

    @property
    def tags(self):
        """What pip is told, so that it finds wheels for the machine."""
        if not self.foreign:
            return ["--python-version=3.11"]
        tags = ["--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none"]
        names = (*(f"manylinux_2_{each}" for each in range(GLIBC, 16, -1)), "manylinux2014")
        return [*tags, *(f"--platform={each}_{self.name}" for each in names)]


X86_64 = Machine(name="x86_64", debian="amd64")
ARM64 = Machine(name="aarch64", debian="arm64", foreign=True)


def downloaded(folder, lock, machine):
    """Download what a lock and that of the build name for the base's Python, checked by their hashes."""
    where = PYTHON | {"platform_machine": machine.name}
    for each in (lock, ROOT / "deploy/locks/build.lock"):
        wanted = []
        for entry in each.read_text().replace("\\\n", " ").splitlines():
            if entry.strip() and not entry.startswith("#"):
                name, _, hashes = entry.partition(" --hash")
                requirement = Requirement(name.strip())
                if requirement.marker is None or requirement.marker.evaluate(where):
                    wanted.append(f"{requirement.name}{requirement.specifier} --hash{hashes}")
        names = folder / f"{each.name}.txt"
        names.write_text("\n".join(wanted))
        flags = ("--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", *machine.tags)
        run(sys.executable, "-m", "pip", "download", *flags, "-r", str(names), "-d", str(folder / "wheels"))
    return folder / "wheels"


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image, its files, and its configuration."""

    folder: Path
    files: Path
    config: dict
    machine: Machine

    @property
    def size(self):
        """Bytes on disk."""
        return sum(path.lstat().st_blocks * 512 for path in self.files.rglob("*"))


class Store:
    """Images, and the base that they start from."""

    def __init__(self, folder, machine=X86_64):
        self.folder, self.machine = folder, machine
        self.buildah = (
            *("buildah", f"--root={folder}/store", f"--runroot={folder}/run"),
            "--storage-driver=vfs",
        )
        self._flags = ("--isolation=chroot", "--network=host", f"--arch={machine.debian}")
        base = BASES / f"bookworm-slim-{machine.debian}.tar"
        if not base.exists():
            self._make(base)
        context = folder / "context"
        context.mkdir()
        shutil.copy(base, context / "base.tar")
        (context / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        run(*self.buildah, "build", *self._flags, "-t", "localhost/base", str(context))

    def _make(self, base):
        base.parent.mkdir(parents=True, exist_ok=True)
        made = self.folder / "made.tar"
        run(
            *("mmdebstrap", "--quiet", "--variant=minbase", "--aptopt=APT::Install-Recommends false"),
            *(f"--arch={self.machine.debian}", "--skip=check/qemu"),
            # Or else a package comes that merges /usr in a system that is running, and Perl with it.
            *("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",),
            "--include=python3,python3-venv,curl,ca-certificates,usr-is-merged",
            *(f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in UNREAD),
            *("--dpkgopt=path-include=/usr/share/doc/*/copyright", "bookworm", str(made)),
        )
        shutil.move(made, base)

    def build(self, lock="requirements.lock", *, source=ROOT, sbom=None):
        """Build an image from a lock, by deploy/image of a source tree."""
        tag = f"localhost/{Path(lock).stem}"
        wheels = downloaded(self.folder, source / "deploy" / lock, self.machine)
        run(
            str(source / "deploy" / "image"),
            *(*self._flags, "--layers=false", f"--volume={wheels}:/wheels:ro"),
            *("--build-arg=PIP_NO_INDEX=1", "--build-arg=PIP_FIND_LINKS=/wheels", f"--build-arg=LOCK={lock}"),
            BASE="localhost/base",
            BUILDER=" ".join(self.buildah),
            TAG=tag,
            SBOM="" if sbom is None else str(sbom),
        )
        config = json.loads(run(*self.buildah, "inspect", "--type=image", tag))["OCIv1"]["config"]
        files = Path(
            run(
                *self.buildah,
                "mount",
                run(*self.buildah, "from", f"--arch={self.machine.debian}", tag).strip(),
            ).strip()
        )
        return Image(folder=self.folder, files=files, config=config, machine=self.machine)

    def remove(self):
        """Remove every image, the base too."""
        run(*self.buildah, "rm", "--all")
        run(*self.buildah, "rmi", "--all", "--force")


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
        if image.machine.foreign:
            # The processors that it tells of are not those that a foreign program sees.
            spec["mounts"] = [each for each in spec["mounts"] if not each["destination"].startswith("/sys")]
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
