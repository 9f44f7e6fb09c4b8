"""Ensembles and their models as they are loaded, unloaded and reloaded, through Triton's client."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from onnx import TensorProto
from tritonclient.utils import InferenceServerException

from tests.conformance.test_ensembles_served import TWO, ensemble
from tests.support.flavours import process, write_onnx_model
from tests.support.triton_inputs import inputs

STEP = "add A=A, B=B -> S=S, D=D"


def add(folder: Path, name: str = "add", *, width: int = 16, labels: str = "") -> None:
    write_onnx_model(
        folder,
        name,
        nodes=[("Add", ["A", "B"], "S"), ("Sub", ["A", "B"], "D")],
        inputs=[("A", TensorProto.FLOAT, [width]), ("B", TensorProto.FLOAT, [width])],
        outputs=[("S", TensorProto.FLOAT, [width]), ("D", TensorProto.FLOAT, [width])],
        labels=labels,
    )


def changed(folder: Path, **options: Any) -> None:
    """Put another model in the place of `add`."""
    for path in sorted((folder / "add").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (folder / "add").rmdir()
    add(folder, **options)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    add(folder)
    ensemble(folder, "whole", TWO, STEP)
    ensemble(folder, "outer", TWO, "whole A=A, B=B -> S=S, D=D")
    ensemble(folder, "lost", TWO, "nowhere A=A, B=B -> S=S, D=D")
    ensemble(folder, "future", TWO, "add:7 A=A, B=B -> S=S, D=D")
    ensemble(folder, "misfit", TWO, "add A=A, C=B -> S=S, D=D")
    ensemble(folder, "greedy", TWO, STEP, batch=64)
    ensemble(folder, "ring_a", TWO, "ring_b A=A, B=B -> S=S, D=D")
    ensemble(folder, "ring_b", TWO, "ring_a A=A, B=B -> S=S, D=D")
    return folder


@pytest.fixture
def client(repository: Path) -> Iterator[triton.InferenceServerClient]:
    serve = process("engine", "serve", "--model-control-mode=explicit")
    with serve(repository) as addresses:
        opened = triton.InferenceServerClient(addresses.http, network_timeout=60)
        yield opened
        opened.close()


def states(client) -> dict[str, tuple[str, str]]:
    """Return state and reason of the models that were ever loaded."""
    return {
        each["name"]: (each["state"], each.get("reason", ""))
        for each in client.get_model_repository_index()
        if "state" in each
    }


def failure(call, *arguments, **options) -> str:
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **options)
    return caught.value.message()


def infer(client, model: str, width: int = 16):
    array = np.arange(width, dtype=np.float32).reshape(1, -1)
    answer = client.infer(model, inputs(triton, A=array, B=array))
    np.testing.assert_array_equal(answer.as_numpy("S"), 2 * array)


def test_loading_an_ensemble_loads_what_it_is_made_of_and_unloading_may_unload_that(client):
    client.load_model("outer")
    assert states(client) == dict.fromkeys(("add", "outer", "whole"), ("READY", ""))
    infer(client, "outer")
    client.unload_model("outer")
    assert states(client)["whole"] == ("READY", "")
    client.load_model("outer")
    client.unload_model("outer", unload_dependents=True)
    _wait(lambda: set(states(client).values()) == {("UNAVAILABLE", "unloaded")})
    assert client.is_server_ready()


def test_an_ensemble_goes_with_its_model_and_comes_back_with_it(client):
    client.load_model("outer")
    client.unload_model("add")
    _wait(lambda: set(states(client).values()) == {("UNAVAILABLE", "unloaded")})
    assert "outer" in failure(infer, client, "outer")
    client.load_model("add")
    _wait(lambda: set(states(client).values()) == {("READY", "")})
    infer(client, "outer")


@pytest.mark.long
def test_an_ensemble_follows_a_reload_of_its_model_as_long_as_that_fits(client, repository):
    client.load_model("whole")
    changed(repository, labels="zero\none\n")
    client.load_model("add")
    infer(client, "whole")
    changed(repository, width=4)
    client.load_model("add")
    _wait(lambda: states(client)["whole"] == ("UNAVAILABLE", "unloaded"))
    assert failure(client.load_model, "whole") == (
        "load failed for model 'whole': in ensemble whole, ensemble tensor A: inconsistent shape: [-1,16] is inferred from"
        " model whole while [-1,4] is inferred from model add;\n"
    )
    changed(repository)
    client.load_model("add")
    _wait(lambda: states(client)["whole"] == ("READY", ""))
    infer(client, "whole")


REFUSED = [
    ("lost", "ensemble lost contains models that are not available or ambiguous: nowhere"),
    ("future", "ensemble 'future' depends on 'add' whose required version 7 is not loaded."),
    ("misfit", "in ensemble misfit, ensemble tensor B is mapping to non-existing input C in model add"),
    (
        "greedy",
        "ensemble greedy allows maximum batch size 64, but it contains model add which only allows maximum batch size"
        " to be 8",
    ),
    ("ring_a", "circular dependency between ensembles: ring_a -> ... -> ring_b -> ring_a"),
]


def test_what_does_not_fit_together_is_refused_with_tritons_text(client):
    for name, why in REFUSED:
        assert failure(client.load_model, name) == f"load failed for model '{name}': {why};\n"
        assert states(client)[name] == ("UNAVAILABLE", f"Invalid argument: {why}")
    assert not client.is_server_ready()


def _wait(condition) -> None:
    """Wait for what the server does after it has answered."""
    for _ in range(200):
        if condition():
            return
        threading.Event().wait(0.05)
    assert condition()
