"""A server that is started in a terminal, and the page that watches it from another one."""

import re
import signal
import sys

import pytest

from tests.support.operators import LOOPBACK, clean_environ, write_model
from tests.support.terminals import on_terminal

pytestmark = [pytest.mark.slow, pytest.mark.system]

FAILING = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no weights here")

    def execute(self, requests):
        return []
"""


def test_loads_a_summary_and_the_live_page(tmp_path):
    write_model(tmp_path / "models")
    write_model(tmp_path / "models", "broken", code=FAILING)
    environ = clean_environ(TERM="xterm-256color", PYTHONIOENCODING="utf-8")
    command = [sys.executable, "-m", "engine", "serve", str(tmp_path / "models"), *LOOPBACK]
    with on_terminal([*command, "--exit-on-error=false"], environ=environ) as server:
        server.wait_for("tritium man")
        text = server.text
        assert "Loading:" in text
        summary = text[text.index("MODEL ") :]
        assert re.search(r"double/1 +READY +\d", summary)
        assert re.search(r"broken/1 +UNAVAILABLE", summary)
        assert summary.count("no weights here") == 1
        assert "1 of 2 models are ready" in summary
        assert "] " not in re.sub(r"readiness\.py.*", "", summary)  # no line of the log about a load
        found = re.search(r"curl (http://\S+)/v2/health/ready", summary)
        assert found
        watch = [sys.executable, "-m", "engine", "tree", "--url", found[1], "--watch", "0.1"]
        with on_terminal(watch, environ=environ) as page:
            page.wait_for("double/1")
            assert "no weights here" in page.text
            server.process.send_signal(signal.SIGTERM)
            page.wait_for("waiting for it to come back")
            assert server.wait_ended() == 0
            page.press(b"q")
            assert page.wait_ended() == 0


def test_a_terminal_with_ascii_alone_gets_no_escapes_of_marks(tmp_path):
    write_model(tmp_path / "models")
    environ = clean_environ(TERM="xterm", PYTHONIOENCODING="ascii", NO_COLOR="1")
    command = [sys.executable, "-m", "engine", "serve", str(tmp_path / "models"), *LOOPBACK]
    with on_terminal(command, environ=environ) as server:
        server.wait_for("tritium man")
        assert server.seen.isascii()
        assert "\\u" not in server.text
        assert b"\x1b[3" not in server.seen
        server.process.send_signal(signal.SIGINT)
        assert server.wait_ended() == 0
