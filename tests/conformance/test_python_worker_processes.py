"""What a Python model finds in its process: arguments and environment variables, in a real server."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from tests.conformance.test_python_bls import CODE, python_model
from tests.support.flavours import process
from tests.support.triton_inputs import inputs

SHOWING = """
import argparse, json, os, sys
import numpy as np
import triton_python_backend_utils as pb_utils

SEEN = {"argv": list(sys.argv), "environ": dict(os.environ), "parsed": vars(argparse.ArgumentParser().parse_args())}

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        assert sys.argv == [""], sys.argv
        if "strict" not in config.as_dict()["name"]:
            assert os.environ["MY_ENV"] == "mine"
        else:
            assert "MY_ENV" not in os.environ
        return config

    def execute(self, requests):
        told = np.array([json.dumps(SEEN).encode()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", told)]) for _ in requests]
"""

CHECKED = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

def meet(name):
    # Says that it is here, and waits where it is told to.
    path = os.path.join(FOLDER, name)
    open(path + ".here", "w").close()
    while os.path.exists(path + ".wait"):
        time.sleep(0.005)

class TritonPythonModel:
    def is_ready(self):
        meet("check")
        return True

    def execute(self, requests):
        meet("execute")
        told = np.array([b"{}"], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", told)]) for _ in requests]
"""

ENVIRON: dict[str, Any] = {
    "MY_ENV": "mine",
    "HF_TOKEN": "token",
    "TRITIUM_HTTP_RESTRICTED_API": "statistics:key=kept-from-models",
    "TRITONCACHE_REDIS_PASSWORD": "kept-from-models",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models lie."""
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def address(repository: Path) -> Iterator[str]:
    """A server with a model in the open and one in a strict sandbox."""
    folder = repository
    python_model(folder, "checked", CHECKED, CODE)
    python_model(folder, "open", SHOWING, CODE)
    strict = 'parameters { key: "tritium.sandbox" value { string_value: "strict" } }'
    python_model(folder, "strict", SHOWING, CODE, more=strict)
    with process("engine", "serve", **ENVIRON)(folder) as opened:
        yield opened.grpc


def shown(address: str, model: str) -> dict:
    code = inputs(tritonclient.grpc, CODE=np.array([b""], dtype=object))
    with tritonclient.grpc.InferenceServerClient(address) as client:
        return json.loads(client.infer(model, code).as_numpy("RESULT")[0])


def test_a_model_has_no_arguments_and_may_parse_them(address):
    seen = shown(address, "open")
    assert seen["argv"] == [""]
    assert seen["parsed"] == {}


def test_a_model_has_the_servers_environment_without_its_secrets(address):
    environ = shown(address, "open")["environ"]
    assert {name: environ.get(name) for name in ENVIRON} == {
        "MY_ENV": "mine",
        "HF_TOKEN": "token",
        "TRITIUM_HTTP_RESTRICTED_API": None,
        "TRITONCACHE_REDIS_PASSWORD": None,
    }
    assert "kept-from-models" not in "".join(environ.values())


def test_a_strict_sandbox_has_a_minimal_environment(address):
    environ = shown(address, "strict")["environ"]
    assert not ENVIRON.keys() & environ.keys()
    assert "PATH" in environ


class Meeting:
    """Where the model `checked` says that it is, and waits."""

    def __init__(self, folder: Path, name: str) -> None:
        self._here, self._wait = folder / f"{name}.here", folder / f"{name}.wait"

    def __enter__(self) -> None:
        self._here.unlink(missing_ok=True)
        self._wait.touch()

    def __exit__(self, *_: object) -> None:
        self._wait.unlink(missing_ok=True)

    def reached(self) -> None:
        deadline = time.monotonic() + 30
        while not self._here.exists():
            assert time.monotonic() < deadline, "it was not called"
            time.sleep(0.005)


def is_ready(address: str) -> bool:
    with tritonclient.grpc.InferenceServerClient(address) as client:
        return client.is_model_ready("checked")


def test_no_inference_waits_for_a_check(address, repository):
    check = Meeting(repository / "checked", "check")
    with ThreadPoolExecutor(1) as pool:
        with check:
            asked = pool.submit(is_ready, address)
            check.reached()
            assert shown(address, "checked") == {}
            assert not asked.done()
        assert asked.result(30)


@pytest.mark.long
def test_a_busy_model_is_asked(address, repository):
    execution = Meeting(repository / "checked", "execute")
    with ThreadPoolExecutor(1) as pool:
        with execution:
            running = pool.submit(shown, address, "checked")
            execution.reached()
            with Meeting(repository / "checked", "check"):
                assert not is_ready(address)  # after its 5 seconds
            assert is_ready(address)
            assert not running.done()
        assert running.result(30) == {}
