"""Two real servers at one HTTP port: shared where both say so, an error where one does not."""

import json
import subprocess
import sys
import urllib.request

import pytest

from tests.support.operators import ROOT, clean_environ, serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]


def who_answers(address):
    """Ask by a connection of its own; return the name of the server that answers."""
    with urllib.request.urlopen(f"http://{address}/v2", timeout=30) as answer:
        return json.loads(answer.read())["name"]


def test_two_servers_share_a_port_and_a_third_that_does_not_say_so_has_none(tmp_path):
    write_model(tmp_path / "models")
    shared = (f"--model-repository={tmp_path / 'models'}", "--reuse-http-port", "True", "--reuse-grpc-port=1")
    with serving(tmp_path / "a", *shared, "--id=a") as first:
        first.wait_ready()
        ports = [
            first.address(service).rpartition(":")[2] for service in ("HTTPService", "GRPCInferenceService")
        ]
        taken = (f"--http-port={ports[0]}", f"--grpc-port={ports[1]}")
        with serving(tmp_path / "b", *shared, *taken, "--id=b") as second:
            second.wait_ready()
            assert second.address() == first.address()
            # The kernel deals connections out by their addresses.
            seen = set()
            for _ in range(200):
                seen.add(who_answers(first.address()))
                if len(seen) == 2:
                    break
            assert seen == {"a", "b"}
            third = subprocess.run(
                [sys.executable, "-m", "engine", "serve", shared[0], "--http-address=127.0.0.1", taken[0]],
                cwd=ROOT,
                env=clean_environ(),
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert third.returncode == 1
            assert f"Socket '127.0.0.1:{ports[0]}' already in use " in third.stdout + third.stderr
            first.signal()
            assert first.wait() == 0
            assert {who_answers(second.address()) for _ in range(20)} == {"b"}
