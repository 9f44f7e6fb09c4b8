"""The locks of deploy/, for machines and Pythons other than this one: is there a wheel for each package?

Needs uv, and an index of packages, which tells of wheels; none is downloaded.
"""

import os
import shutil
import subprocess

import pytest

from tests.support.environments import IMAGES
from tests.support.operators import ROOT

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.system]

PATH = f"{IMAGES.named}/bin:{os.environ['PATH']}"
MANYLINUX = "manylinux_2_34"
"""The oldest C library that every variant runs on; that of Debian 12 is 2.36, of Ubuntu 22.04 2.35."""
LOCKS = ("requirements.lock", *(f"locks/{name}.lock" for name in ("onnx-gpu", "torch", "llm", "build")))


def found(lock, folder, *, machine, manylinux=MANYLINUX, python="3.13"):
    """Look for the wheels of a lock, by its hashes; return what was said if one is missing."""
    uv = shutil.which("uv", path=PATH)
    if uv is None:
        pytest.skip(f"needs uv ({IMAGES.variable})")
    done = subprocess.run(
        [
            *(uv, "pip", "install", "--dry-run", "--quiet", "--no-deps", "--require-hashes"),
            *(
                "--only-binary=:all:",
                f"--python-platform={machine}-{manylinux}",
                f"--python-version={python}",
            ),
            *("--target", str(folder), "-r", str(ROOT / "deploy" / lock)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr or "no word"


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_every_package_of_a_lock_has_a_wheel(lock, machine, python, tmp_path):
    assert found(lock, tmp_path, machine=machine, python=python) == ""


def test_a_wheel_that_is_not_there_is_missed(tmp_path):
    said = found("requirements.lock", tmp_path, machine="aarch64", manylinux="manylinux_2_17")
    assert "has no" in said
