"""The unit of systemd, as systemd's own tools judge it."""

import re
import shutil
import subprocess

import pytest

from tests.support.operators import ROOT

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"),
]
UNIT = ROOT / "deploy" / "tritium.service"
MOST = 4.0
"""Of 10, for how much of the machine a unit is open to; systemd calls up to 4 `OK`."""


def test_the_unit_is_well_formed(tmp_path):
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/tritium/bin/tritium", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, [])


def test_the_unit_gives_model_code_little():
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "offline" in done.stderr:
        pytest.skip("this systemd-analyze judges no files")
    found = re.search(r"exposure level for tritium\.service: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= MOST
