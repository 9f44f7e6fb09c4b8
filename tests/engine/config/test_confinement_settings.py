import json
from pathlib import Path

import pytest

from actors.values.specs import Confinement, Sandbox
from engine.config.settings import read_settings
from engine.processes.backends import BackendTraits, discover
from engine.processes.confining import confining_environ
from engine.worker.limits import VARIABLE

TRAITS = BackendTraits(name="python", target="module:Class")
MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("given", "confinement"),
    [
        ({}, Confinement()),
        ({"memory_limit_mb": "512"}, Confinement(memory=512 * MEBIBYTE)),
        ({"max_processes": "1"}, Confinement(processes=1)),
        ({"sandbox": "off"}, Confinement()),
        ({"sandbox": "basic"}, Confinement(sandbox=Sandbox.BASIC)),
        (
            {"sandbox": "strict", "sandbox_read": "/data:/srv/a", "sandbox_write": "/tmp"},
            Confinement(sandbox=Sandbox.STRICT, read=("/data", "/srv/a"), write=("/tmp",)),
        ),
    ],
)
def test_limits_are_read(given, confinement):
    settings, problems = read_settings({f"tritium.{key}": text for key, text in given.items()}, TRAITS)
    assert problems == ()
    assert settings.confinement == confinement


@pytest.mark.parametrize(
    ("key", "text", "hint"),
    [
        ("memory_limit_mb", "0", "use a whole number, at least 1"),
        ("memory_limit_mb", "1.5", "use a whole number, at least 1"),
        ("max_processes", "-1", "use a whole number, at least 1"),
        ("sandbox", "loose", "use 'off' or 'basic' or 'strict'"),
        ("sandbox_read", "data", "use absolute paths, with ':' between them"),
        ("sandbox_write", "/a:", "use absolute paths, with ':' between them"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(key, text, hint):
    _, problems = read_settings(
        {f"tritium.{key}": text, "tritium.sandbox": "strict"} | {f"tritium.{key}": text}, TRAITS
    )
    assert [problem.hint for problem in problems] == [hint]


@pytest.mark.parametrize(
    "given", [{"memory_limit_mb": "5"}, {"max_processes": "5"}, {"sandbox": "basic"}], ids=str
)
def test_a_model_in_the_servers_process_can_t_be_limited(given):
    settings = {f"tritium.{key}": text for key, text in given.items()}
    _, (problem,) = read_settings({**settings, "tritium.isolation": "thread"}, TRAITS)
    assert problem.hint == "use isolation 'process'"
    assert read_settings({"tritium.sandbox": "off", "tritium.isolation": "thread"}, TRAITS)[1] == ()


@pytest.mark.parametrize("level", ["off", "basic"])
def test_files_are_named_for_a_strict_sandbox_only(level):
    _, (problem,) = read_settings({"tritium.sandbox": level, "tritium.sandbox_write": "/tmp"}, TRAITS)
    assert problem.key == 'parameters["tritium.sandbox_write"]'
    assert problem.hint == "set 'tritium.sandbox' to 'strict', or leave it out"


def told(confinement, **options):
    environ = confining_environ(confinement, [Path("/models"), Path("/models/1")], **options)
    return json.loads(environ[VARIABLE]) if environ else None


def test_a_worker_is_told_what_to_impose_on_itself():
    assert told(Confinement()) is None
    assert told(Confinement(processes=1)) == {
        "sandbox": "off",
        "watched": True,
        "childless": True,
        "ceiling": 0,
    }
    assert told(Confinement(memory=100))["ceiling"] == 200 + 1024 * MEBIBYTE
    strict = told(Confinement(sandbox=Sandbox.STRICT, read=("/data",), write=("/tmp",)))
    assert strict["read"] == ["/models", "/models/1", "/data"]
    assert strict["write"] == ["/tmp"]
    assert not strict["watched"]


def test_a_device_driver_may_ask_for_more_memory_than_anybody_uses():
    assert told(Confinement(memory=100), kind="GPU")["ceiling"] == 0


@pytest.fixture
def backends():
    return discover()


COMPLETING = """
import socket
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        try:
            socket.socket().close()
        except PermissionError:
            config.set_max_batch_size(3)
        config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "B", "data_type": "TYPE_FP32", "dims": [1]})
        return config
"""


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(("level", "batch"), [("off", 0), ("basic", 3), ("strict", 3)])
def test_a_model_that_completes_its_configuration_does_so_in_its_sandbox(load, level, batch):
    setting = f'parameters {{ key: "tritium.sandbox" value {{ string_value: "{level}" }} }}'
    loaded = load(f'backend: "python"\n{setting}', files={"1/model.py": COMPLETING})
    assert loaded.ok, loaded.problems
    assert loaded.specs[0].inputs
    assert loaded.specs[0].max_batch_size == batch


def test_a_model_whose_sandbox_is_misspelt_is_not_run(load, tmp_path):
    seen = tmp_path / "seen"
    setting = 'parameters { key: "tritium.sandbox" value { string_value: "strickt" } }'
    code = f"open({str(seen)!r}, 'w').close()\n{COMPLETING}"
    loaded = load(f'backend: "python"\n{setting}', files={"1/model.py": code})
    assert not loaded.ok
    assert any("strickt" in problem.message for problem in loaded.problems)
    assert not seen.exists()
