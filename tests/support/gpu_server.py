"""A server on a machine whose GPUs are the stand-in of `fake_gpu`, as tests of whole servers start it."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import trio

from tests.survival.server import ServerProcess, until

ROOT = Path(__file__).parents[2]
PACKAGES = "FAKE_PACKAGES"


class ServerWithGpus(ServerProcess):
    @staticmethod
    def launch(command, environ, stdout, stderr):
        # What stands in for a framework, in a folder that a test has named.
        packages = filter(None, [environ.get(PACKAGES)])
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.serving_with_gpus", *command[4:]],
            cwd=ROOT,
            env={**environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *packages])},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )


@contextmanager
def serving(repository, folder, *flags, environ):
    """Serve a repository; at the end, see that the server stops well, and that no process of it is left."""
    server = ServerWithGpus.start(repository, folder, *flags, environ=environ)
    try:
        trio.run(server.wait_ready)
        yield server
        started = server.descendants()
        assert trio.run(server.stop) == 0
        trio.run(until, lambda: not any(each.is_running() for each in started))
    finally:
        server.kill_all()
