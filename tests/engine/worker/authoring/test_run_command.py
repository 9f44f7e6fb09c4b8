"""`tritium run`, and authored files in repositories: in servers of their own, asked by a client."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.http as triton_http

from engine.__main__ import main
from engine.worker.authoring.folder import (
    NotAModelFile,
    check_file,
    config_beside,
    model_name,
    write_repository,
)
from tests.support.operators import clean_environ
from tritium.testing import open_model

pytestmark = pytest.mark.system

SOURCE = """
    import neighbour

    @tritium.model(max_batch_size=4)
    def double(x: FP32[Array, -1]) -> FP32[Array, -1]:
        return x * np.float32(neighbour.FACTOR)
"""


class Server:
    """A `tritium` command in a process of its own; `url` is set when its models are ready."""

    def __init__(self, *words, log):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"127.0.0.1:{port}"
        self.log = log
        flags = [
            "--http-address=127.0.0.1",
            f"--http-port={port}",
            "--allow-grpc=false",
            "--allow-metrics=false",
        ]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "engine", *words, *flags],
                stdout=output,
                stderr=output,
                env=clean_environ(),
            )

    def wait_ready(self):
        """Wait until the server answers that it is ready.

        Raises AssertionError with the server's log if it ends before.
        """
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            try:
                with urllib.request.urlopen(f"http://{self.url}/v2/health/ready", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def infer(self, model, **inputs):
        with triton_http.InferenceServerClient(self.url) as client:
            given = []
            for name, array in inputs.items():
                given.append(triton_http.InferInput(name, list(array.shape), "FP32"))
                given[-1].set_data_from_numpy(array)
            return client.infer(model, given).as_numpy("output")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture
def command(tmp_path):
    """Start `tritium` with some words; every one is ended afterwards."""
    started = []

    def start(*words):
        started.append(Server(*words, log=tmp_path / "log"))
        started[-1].wait_ready()
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()


@pytest.mark.slow
def test_a_file_is_served_with_the_modules_beside_it_and_leaves_nothing_behind(
    command, model_file, tmp_path, monkeypatch
):
    file = model_file(SOURCE, "code/doubling.py")
    file.with_name("neighbour.py").write_text("FACTOR = 2")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    server = command("run", str(file))
    assert server.infer("doubling", x=np.ones((2, 3), np.float32)).tolist() == [[2, 2, 2]] * 2
    assert os.listdir(scratch)
    assert server.stop() == 0
    assert os.listdir(scratch) == []


TOLD = """\
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

from . import neighbour


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        assert os.path.exists(os.path.join(pb_utils.get_model_dir(), "weights.json"))
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "output", "data_type": "TYPE_FP32", "dims": [1]})
        return config

    def initialize(self, args):
        with open(os.path.join(args["model_repository"], args["model_version"], "weights.json")) as file:
            self.weight = np.float32(json.load(file) * neighbour.FACTOR)
        assert os.path.exists(os.path.join(pb_utils.get_model_dir(), "weights.json"))

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("output", request.inputs()[0].as_numpy() * self.weight)])
            for request in requests
        ]
"""


@pytest.mark.slow
def test_a_model_of_tritons_kind_finds_what_lies_beside_it(command, tmp_path):
    version = tmp_path / "scale" / "3"
    version.mkdir(parents=True)
    (version / "model.py").write_text(TOLD)
    (version / "neighbour.py").write_text("FACTOR = 2")
    (version / "weights.json").write_text("5")
    server = command("run", str(version / "model.py"))
    assert server.infer("scale", x=np.ones(1, np.float32)).tolist() == [10]
    with open_model(version / "model.py") as model:
        assert model.infer({"x": [1]})["output"].tolist() == [10]


@pytest.mark.slow
def test_the_same_file_works_as_a_model_of_a_repository(command, model_file, tmp_path):
    file = model_file(SOURCE, "repository/doubling/1/model.py")
    file.with_name("neighbour.py").write_text("FACTOR = 3")
    (file.parent.parent / "config.pbtxt").write_text(
        'backend: "python" instance_group [ { count: 2 kind: KIND_CPU } ]'
    )
    server = command("serve", f"--model-repository={tmp_path / 'repository'}")
    assert server.infer("doubling", x=np.ones((1, 3), np.float32)).tolist() == [[3, 3, 3]]
    with urllib.request.urlopen(f"http://{server.url}/v2/models/doubling/config", timeout=5) as reply:
        config = json.load(reply)
    assert config["max_batch_size"] == 4
    assert [(port["name"], port["data_type"], port["dims"]) for port in config["input"]] == [
        ("x", "TYPE_FP32", [-1])
    ]


@pytest.mark.slow
def test_an_async_generator_streams_to_its_client(command, model_file):
    file = model_file("""
        @tritium.model
        async def countdown(start: INT32[Array, 1], request: tritium.Request) -> AsyncIterator[INT32[Array, 1]]:
            for number in range(int(start[0]), 0, -1):
                yield np.array([number], np.int32)
                await asyncio.sleep(0)
    """)
    server = command("run", str(file))
    asked = urllib.request.Request(
        f"http://{server.url}/v2/models/my_model/generate_stream", data=json.dumps({"start": 3}).encode()
    )
    with urllib.request.urlopen(asked, timeout=10) as reply:
        events = [json.loads(line[6:]) for line in reply.read().split(b"\n") if line.startswith(b"data: ")]
    assert [event["output"] for event in events if "output" in event] == [3, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param(
            "raise RuntimeError('no weights')",
            "ImportError: {file}({line}): RuntimeError: no weights",
            id="it raises",
        ),
        pytest.param(
            "import sys; sys.path.append({packages!r}); import wanting",
            "ImportError: {file}({line}): OSError: no driver",
            id="what it imports from an environment beside it raises",
        ),
        pytest.param(
            "number = 1",
            "{file}: AttributeError: module 'broken' has no attribute 'TritonPythonModel', and nothing that is"
            " declared with tritium.model",
            id="it has no model",
        ),
    ],
)
def test_a_file_that_does_not_load_says_where_it_fails(model_file, tmp_path, source, reason):
    packages = tmp_path / ".venv" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "wanting.py").write_text("raise OSError('no driver')")
    written = source.format(packages=str(packages))
    file = model_file(written, "broken.py")
    server = Server("run", str(file), log=tmp_path / "log")
    assert server.process.wait(30) == 1
    line = file.read_text().splitlines().index(written) + 1
    assert reason.format(file=file, line=line) in server.log.read_text().replace("\\'", "'")


# -- mistakes


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["missing.py"], "missing.py: there is no such file"),
        (["--http-port=1"], "'--http-port=1' stands where the file should be"),
        (["."], ". is a directory: name the model's file, or serve repositories"),
        (["model.py", "--htp-port=1"], "did you mean --http-port?"),
        (["model.py", "--model-control-mode=poll"], "--model-control-mode=poll is for repositories"),
        (["notes.txt"], "notes.txt is no Python file: its name must end with '.py'"),
    ],
)
def test_a_command_line_that_makes_no_sense_says_what_would(words, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert main(["run", *words]) == 1
    complaint = capsys.readouterr().err
    assert text in complaint
    assert complaint.endswith("`tritium run --help` tells more.\n")


def test_help_is_there(capsys):
    assert main(["run", "--help"]) == 0
    assert "tritium run my_model.py" in capsys.readouterr().out
    assert main(["run"]) == 1


# -- the repository that is made


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("adder.py", "adder"),
        ("adder/model.py", "adder"),
        ("adder/3/model.py", "adder"),
        ("my adder!.py", "my_adder_"),
    ],
)
def test_a_model_is_called_as_its_file_or_as_its_folder(path, name, tmp_path):
    assert model_name(tmp_path / path) == name


def test_the_configuration_beside_the_file_goes_along(tmp_path):
    file = tmp_path / "adder" / "3" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert config_beside(file) is None
    config = tmp_path / "adder" / "config.pbtxt"
    config.write_text("max_batch_size: 4")
    assert config_beside(file) == config
    made = write_repository(file, tmp_path / "made", config)
    assert sorted(os.listdir(made)) == ["3", "config.pbtxt"]
    with pytest.raises(NotAModelFile, match="is a directory"):
        check_file(tmp_path)
