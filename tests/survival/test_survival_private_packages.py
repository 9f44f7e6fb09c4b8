"""Strict models on a server of root whose packages are for root alone."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import trio

from chaos.subject.server import Server
from tests.support.interpreters import shared_interpreter, with_these_packages
from tests.survival.server import ServerProcess, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root gives user ids to workers"),
]

MODEL = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        told = pb_utils.Tensor("UID", np.array([os.getuid()], np.int32))
        return [pb_utils.InferenceResponse([told]) for _ in requests]
"""
CONFIGURATION = """
backend: "python"
max_batch_size: 0
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "UID" data_type: TYPE_INT32 dims: [ 1 ] } ]
parameters { key: "tritium.sandbox" value { string_value: "strict" } }
"""


@pytest.fixture
def place():
    folder = Path(tempfile.mkdtemp(prefix="tritium-test-"))
    folder.chmod(0o755)
    (folder / "models/asks/1").mkdir(parents=True)
    (folder / "models/asks/1/model.py").write_text(MODEL)
    (folder / "models/asks/config.pbtxt").write_text(CONFIGURATION)
    # It is imported from here: Python takes the first of its path.
    (folder / "private").mkdir(mode=0o700)
    (folder / "private/numpy").symlink_to(Path(np.__file__).parent)
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def serving(place, *flags):
    """Run a server that imports numpy from the private folder."""
    python = shared_interpreter()

    class WithPrivatePackages(ServerProcess):
        @staticmethod
        def launch(command, environ, stdout, stderr):
            environ = with_these_packages(environ)
            environ["PYTHONPATH"] = f"{place / 'private'}:{environ['PYTHONPATH']}"
            return Server.launch([python, *command[1:]], environ, stdout, stderr)

    server = WithPrivatePackages.start(place / "models", place / "log", "--spare-workers=0", *flags)
    try:
        yield server
    finally:
        print(server.last_words())
        server.kill_all()


def test_a_model_that_asked_for_it_keeps_the_servers_user_and_log_and_tree_say_so(place):
    with serving(place) as server:
        trio.run(server.wait_ready)
        (pid,) = trio.run(server.wait_serving, "asks")
        assert os.stat(f"/proc/{pid}").st_uid == 0
        (node,) = trio.run(server.instances, "asks")
        said = f"a user of its own: '{place / 'private'}' (mode 0700, owner 0) keeps another user from"
        assert any(text.startswith(said) for text in node["info"]["unconfined"])
        trio.run(until, lambda: bool(server.logged("worker_unconfined")))
        (line,) = server.logged("worker_unconfined")
        assert said in str(line)
        told = subprocess.run(
            [shared_interpreter(), "-m", "engine", "tree", "--url", server.url],
            capture_output=True,
            text=True,
            env=with_these_packages(os.environ),
            check=True,
        )
        assert said in told.stdout


def test_where_the_operator_requires_it_the_model_is_not_served_and_the_error_says_what_to_change(place):
    with serving(place, "--sandbox=strict", "--exit-on-error=false") as server:
        trio.run(server.wait_ports)
        trio.run(server.wait_loaded)
        (entry,) = trio.run(server.index).values()
        assert f"chmod o+x '{place / 'private'}'" in entry["reason"]


@pytest.mark.long
def test_what_a_model_links_to_has_to_be_readable_as_well_and_the_error_names_it(place):
    (place / "private/weights").write_text("1 2 3")
    (place / "models/asks/1/weights").symlink_to(place / "private/weights")
    with serving(place, "--sandbox=strict", "--exit-on-error=false") as server:
        trio.run(server.wait_ports)
        trio.run(server.wait_loaded)
        (entry,) = trio.run(server.index).values()
        assert f"keeps another user from '{place / 'private/weights'}'" in entry["reason"]
        assert f"chmod o+x '{place / 'private'}'" in entry["reason"]
