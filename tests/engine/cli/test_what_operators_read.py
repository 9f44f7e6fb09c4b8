"""What `tritium serve` prints at its start, failure and end, in each format.

The output is read as an operator and as a log collector.
"""

import http.client
import json
import shutil
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from tests.support.operators import ROOT, clean_environ, serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]

DIGITS = ROOT / "examples" / "models" / "digits_onnx" / "1" / "model.onnx"
BROKEN = """
import warnings

class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no weights here")

    def execute(self, requests):
        return []
"""


def lines_of(server):
    """Everything that left the process, each line of which must be JSON."""
    assert server.err == ""
    return [json.loads(line) for line in server.out.splitlines()]


def events(server, name):
    return [line for line in lines_of(server) if line["event"] == name]


def test_a_json_log_is_json_from_the_first_line_to_the_last(tmp_path):
    write_model(tmp_path / "models")
    repository = f"--model-repository={tmp_path / 'models'}"
    environ = clean_environ(TRITIUM_HTTP_PROT="1")  # which is a warning
    with serving(tmp_path, repository, "--log-format=json", environ=environ) as server:
        server.wait_said('"server_ready"')
        server.signal()
        assert server.wait() == 0
        [loaded] = events(server, "server_loaded")
        assert loaded["models"] == [{"model": "double", "version": 1, "state": "READY"}]
        assert loaded["not_loaded"] == 0
        [configured] = events(server, "server_configured")
        assert configured["options"]["model_repository_path"] == str(tmp_path / "models")
        [warning] = events(server, "server_starting")
        assert "TRITIUM_HTTP_PROT" in warning["warning"]


def test_a_json_log_tells_of_a_failed_start_and_of_being_told_twice_as_json(tmp_path):
    write_model(tmp_path / "models", code=BROKEN)
    with serving(tmp_path / "a", f"{tmp_path / 'models'}", "--log-format=json") as server:
        assert server.wait() == 1
        [failed] = events(server, "server_failed")
        assert failed["error"] == "creating server: Internal - failed to load all models"
        assert failed["hint"] == "--exit-on-error=false serves the models that do load"
    slow = (
        "import time\nclass TritonPythonModel:\n    def execute(self, requests):\n        time.sleep(600)\n"
    )
    write_model(tmp_path / "slow", code=slow)
    with serving(tmp_path / "b", f"{tmp_path / 'slow'}", "--log-format=json") as server:
        server.wait_said('"server_ready"')
        address = server.wait_said(r'"HTTPService", "address": "([0-9.:]+)"')[1]
        body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]})
        with closing(http.client.HTTPConnection(address)) as held:
            held.request("POST", "/v2/models/double/infer", body)
            with closing(http.client.HTTPConnection(address)) as connection:
                connection.request("GET", "/v2/health/live")
                assert connection.getresponse().read() == b""
            server.signal()
            server.wait_said("listener_closed")
            server.signal(signal.SIGINT)
            assert server.wait() == 1
        [failed] = events(server, "server_failed")
        assert failed["error"] == "Told twice. Exiting immediately."


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--modle-control-mode=poll"], "unrecognized option '--modle-control-mode'"),
        (["--log-file=/nowhere/at/all/server.log"], "Failed to open log file: No such file or directory"),
        (["/nowhere/models"], "repository path is not a valid directory: '/nowhere/models'"),
        (["/nowhere/models"], "there is no directory '/nowhere/models'"),
        ([str(DIGITS)], f"it is a file of a model in the repository '{DIGITS.parents[2]}'"),
    ],
)
@pytest.mark.parametrize("form", ["--log-format=json", "--log-format=default"])
def test_a_start_that_makes_no_sense_is_told_in_the_form_that_was_asked_for(tmp_path, flags, words, form):
    write_model(tmp_path / "models")
    with serving(tmp_path / "said", str(tmp_path / "models"), *flags, form) as server:
        assert server.wait() == 1
        if form == "--log-format=json":
            [line] = [line for line in lines_of(server) if line["event"] == "server_failed"]
            said = line["error"] + line.get("hint", "")
        else:
            said = server.err
            assert server.out == ""
        assert words in said
        assert "Traceback" not in said


def test_a_model_s_file_in_place_of_a_repository_is_named_with_what_makes_one(tmp_path):
    shutil.copy(DIGITS, tmp_path / "digits.bin")
    with serving(tmp_path / "said", str(tmp_path / "digits.bin")) as server:
        assert server.wait() == 1
        assert f"it is ONNX, of which `tritium init {tmp_path / 'digits.bin'}` makes" in server.err


def test_the_log_file_that_cannot_be_opened_and_the_directory_that_is_missing_are_named(tmp_path):
    (tmp_path / "models").mkdir()
    path = tmp_path / "no" / "where" / "server.log"
    with serving(tmp_path / "said", str(tmp_path / "models"), f"--log-file={path}") as server:
        assert server.wait() == 1
        assert f"--log-file was given '{path}'" in server.err
        assert f"there is no directory '{path.parent}'" in server.err


def test_the_log_and_its_tables_are_one_stream_in_their_order(tmp_path):
    write_model(tmp_path / "models")
    environ = clean_environ(TRITIUM_HTTP_PROT="1")
    with serving(tmp_path, str(tmp_path / "models"), environ=environ) as server:
        server.wait_ready()
        assert server.err == ""
        said = server.out
        assert said.index("no setting of Tritium") < said.index("successfully loaded 'double'")
        assert said.index("successfully loaded 'double'") < said.index("Model   Version  Status")
        assert said.index("Option  ") < said.index("server_ready")


def test_warnings_and_errors_have_a_stream_of_their_own_where_that_is_asked_for(tmp_path):
    write_model(tmp_path / "models")
    environ = clean_environ(TRITIUM_HTTP_PROT="1")
    with serving(tmp_path, str(tmp_path / "models"), "--log-split-streams=true", environ=environ) as server:
        server.wait_ready()
        assert "no setting of Tritium" in server.err
        assert "no setting of Tritium" not in server.out


def test_what_python_warns_of_and_cannot_tell_anybody_is_in_the_log(tmp_path):
    code = """
import gc, sys, threading, warnings
from actors.values.events import Event
from engine.observability.announcing import hear_python
from engine.observability.logs import configure_logging, open_sink
from engine.settings.reporting import LogSettings
from engine.observability.events import EventLog

settings = LogSettings(format="json")
sink = open_sink(settings)
configure_logging(settings, sink)
hear_python(EventLog())
warnings.warn("this is old", DeprecationWarning, stacklevel=1)

class Careless:
    def __del__(self):
        raise ValueError("nobody hears this")

Careless()

def die():
    raise KeyError("thread")

thread = threading.Thread(target=die, name="worker-7")
thread.start()
thread.join()
sink.close()
"""
    ran = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stderr == ""
    warned, ignored, died = (json.loads(line) for line in ran.stdout.splitlines())
    assert (warned["warning"], warned["category"]) == ("this is old", "DeprecationWarning")
    assert "nobody hears this" in ignored["exception"]
    assert died["error"] == "thread worker-7 died"
