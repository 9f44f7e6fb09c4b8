"""SIGHUP does not end a server: it is told to read files again, at any moment of its life."""

import signal

import pytest

from tests.support.operators import serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]


def test_a_server_outlives_sighup_while_it_serves_and_while_it_drains(tmp_path):
    write_model(tmp_path / "models")
    flags = (f"--model-repository={tmp_path / 'models'}", "--drain-delay-secs=60")
    with serving(tmp_path / "server", *flags) as server:
        server.wait_ready()
        server.signal(signal.SIGHUP)
        server.wait_said("server_reloading")
        assert server.get("/v2/health/ready")[0] == 200
        server.signal(signal.SIGTERM)
        server.wait_said("delay_seconds")
        server.signal(signal.SIGHUP)
        server.wait_said("(?s)server_draining.*server_reloading")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
