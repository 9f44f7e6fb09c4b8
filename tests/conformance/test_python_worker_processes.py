"""What a Python model finds in its process: arguments and environment variables, in a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc

from tests.conformance.test_python_bls import CODE, python_model
from tests.support.flavours import process

pytestmark = pytest.mark.slow

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

ENVIRON = {
    "MY_ENV": "mine",
    "HF_TOKEN": "token",
    "TRITIUM_HTTP_RESTRICTED_API": "statistics:key=secret",
    "TRITONCACHE_REDIS_PASSWORD": "secret",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a model in the open and one in a strict sandbox."""
    folder = tmp_path_factory.mktemp("repository")
    python_model(folder, "open", SHOWING, CODE)
    strict = 'parameters { key: "tritium.sandbox" value { string_value: "strict" } }'
    python_model(folder, "strict", SHOWING, CODE, more=strict)
    with process("engine", "serve", **ENVIRON)(folder) as opened:
        yield opened.grpc


def shown(address: str, model: str) -> dict:
    tensor = tritonclient.grpc.InferInput("CODE", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b""], dtype=object))
    with tritonclient.grpc.InferenceServerClient(address) as client:
        return json.loads(client.infer(model, [tensor]).as_numpy("RESULT")[0])


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
    assert "secret" not in "".join(environ.values())


def test_a_strict_sandbox_has_a_minimal_environment(address):
    environ = shown(address, "strict")["environ"]
    assert not ENVIRON.keys() & environ.keys()
    assert "PATH" in environ
