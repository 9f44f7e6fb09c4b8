"""Poor surroundings: few files, another locale, nowhere to write.

The server works, or says at its start what will not work.
"""

import os
import shutil
import subprocess

import pytest

from tests.support.operators import clean_environ, serving, write_model
from tests.support.tiers import mostly_long

pytestmark = [pytest.mark.slow, pytest.mark.system]

ASCII = {"LANG": "C", "LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"}
NO_UTF8 = {**ASCII, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_with_few_files_it_warns_and_serves(tmp_path):
    write_model(tmp_path / "models")
    limited = ("bash", "-c", 'ulimit -n 64; exec "$@"', "serve")
    with serving(tmp_path, str(tmp_path / "models"), prefix=limited) as server:
        server.wait_ready()
        assert "only 64 files may be open at once" in server.said
        assert server.get("/v2/health/ready")[0] == 200


@pytest.mark.parametrize("form", mostly_long(["default", "ISO8601", "json", "console"], "console"))
def test_in_an_ascii_locale_every_format_can_be_written(tmp_path, form):
    write_model(tmp_path / "models", "modèle")
    environ = clean_environ(**ASCII)
    with serving(tmp_path, str(tmp_path / "models"), f"--log-format={form}", environ=environ) as server:
        server.wait_ready()
        server.signal()
        assert server.wait() == 0
        assert server.said.isascii()
        assert "mod\\xe8le" in server.said or "mod\\u00e8le" in server.said


def test_file_names_that_can_not_be_read_are_told_at_the_start(tmp_path):
    write_model(tmp_path / "models")
    with serving(tmp_path, str(tmp_path / "models"), environ=clean_environ(**NO_UTF8)) as server:
        server.wait_ready()
        assert "models whose names are not plain ASCII are not found" in server.said


def can_unshare():
    command = "mount --make-rprivate / && mount -o remount,ro,bind /tmp /tmp || mount --bind /tmp /tmp"
    return (
        shutil.which("unshare") is not None
        and subprocess.run(
            ["unshare", "-m", "bash", "-c", command], capture_output=True, check=False
        ).returncode
        == 0
    )


@pytest.mark.skipif(os.geteuid() != 0 or not can_unshare(), reason="needs a mount namespace")
def test_on_a_read_only_file_system_it_serves_and_says_what_will_not_work(tmp_path):
    write_model(tmp_path / "models")
    # Each of these places is mounted once more, over itself, read-only.
    script = (
        "mount --make-rprivate / || exit 99\n"
        'for place in / /tmp /var/tmp /dev/shm /usr/tmp "$HOME" "$PWD"; do\n'
        "  mount --bind $place $place 2>/dev/null; mount -o remount,ro,bind $place 2>/dev/null\n"
        "done\n"
        'exec "$@"'
    )
    readonly = ("unshare", "-m", "bash", "-c", script, "serve")
    environ = clean_environ()
    environ.pop("TMPDIR", None)
    with serving(tmp_path, str(tmp_path / "models"), prefix=readonly, environ=environ) as server:
        server.wait_ready()
        assert "no directory for temporary files can be written to" in server.said
        assert server.get("/v2/health/ready")[0] == 200
