"""A server on a machine whose GPUs are the stand-in of `fake_gpu`, as tests of whole servers start it."""

import os
from contextlib import contextmanager
from pathlib import Path

import trio

from tests.support.forked import start_module
from tests.survival.server import ServerProcess, until

ROOT = Path(__file__).parents[2]
PACKAGES = "FAKE_PACKAGES"


class ServerWithGpus(ServerProcess):
    @staticmethod
    def launch(command, environ, stdout, stderr):
        # What stands in for a framework, in a folder that a test has named.
        packages = filter(None, [environ.get(PACKAGES)])
        path = os.pathsep.join([str(ROOT), *packages])
        return start_module(
            "tests.support.serving_with_gpus",
            command[4:],
            env={**environ, "PYTHONPATH": path},
            stdout=stdout,
            stderr=stderr,
        )


@contextmanager
def serving(repository, folder, *flags, environ, of=ServerWithGpus):
    """Serve a repository; at the end, see that the server stops well, and that no process of it is left."""
    server = of.start(repository, folder, *flags, environ=environ)
    try:
        trio.run(server.wait_ready)
        yield server
        started = server.descendants()
        assert trio.run(server.stop) == 0
        trio.run(until, lambda: not any(each.is_running() for each in started))
    finally:
        server.kill_all()


def serving_as_it_is(repository, folder, *flags, environ):
    """Serve a repository on the GPUs that this machine has."""
    return serving(repository, folder, *flags, environ=environ, of=ServerProcess)
