"""`TRITONSERVER_DELAY_SCHEDULER`, as batching tests set it, in a server of its own.

The contract is scheduling.md section 12.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from tests.support.flavours import process
from tests.support.triton_inputs import inputs

MODELS = Path(__file__).parents[2] / "examples" / "models"


@pytest.fixture
def address(tmp_path):
    for name in ("add_sub", "sequence_accumulate"):
        shutil.copytree(MODELS / name, tmp_path / name)
    with process("engine", "serve", TRITONSERVER_DELAY_SCHEDULER="4")(tmp_path) as addresses:
        yield addresses.http


def add(address: str, _: int) -> float:
    with triton.InferenceServerClient(address) as client:
        ones = np.ones((1, 16), np.float32)
        both = inputs(triton, INPUT0=ones, INPUT1=ones)
        return float(client.infer("add_sub", both).as_numpy("OUTPUT0")[0, 0])


def accumulate(address: str, sequence: int) -> float:
    with triton.InferenceServerClient(address) as client:
        value = inputs(triton, INPUT=np.full((1, 1), 2, np.float32))
        options = {"sequence_id": sequence + 1, "sequence_start": True, "sequence_end": True}
        return float(client.infer("sequence_accumulate", value, **options).as_numpy("OUTPUT")[0, 0])


@pytest.mark.parametrize(("ask", "model"), [(add, "add_sub"), (accumulate, "sequence_accumulate")])
def test_the_first_batch_has_as_many_requests_as_it_waits_for(address, ask, model):
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda number: ask(address, number), range(4)))
    assert answers == [2.0] * 4
    with triton.InferenceServerClient(address) as client:
        (found,) = client.get_inference_statistics(model)["model_stats"]
    assert found["execution_count"] == 1
    assert [each["batch_size"] for each in found["batch_stats"]] == [4]
