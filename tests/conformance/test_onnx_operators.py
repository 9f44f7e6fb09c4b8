"""The operator tests of the `onnx` package, through a server, on every backend that reads ONNX.

An answer must be that of the framework by itself, and the reference within its tolerance unless the framework
misses it as well. A model that the framework refuses must be refused, with a reason, and the server lives on.
"""

import os
import re
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.flavours import process
from tests.support.onnx_cases import (
    Case,
    agree,
    bare,
    bare_outputs,
    configuration,
    generated,
    save,
    stored,
    text_as_bytes,
    why_not,
)
from tests.support.triton_inputs import inputs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.http as http_client
    from tritonclient.utils import InferenceServerException

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
BACKENDS = ["onnxruntime", "openvino"]
SAMPLE = ["test_Conv2d_groups", "test_Embedding", "test_LogSoftmax", "test_operator_chunk", "test_sign_model"]
EVERY = int(os.environ.get("TRITIUM_TESTS_ONNX_EVERY", "4"))
"""Of the generated cases, the long tier takes one in so many; 1 takes all, which is most of an hour."""

SERVE = process("engine", "serve", "--model-control-mode=explicit")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("operators")


@pytest.fixture(scope="module")
def client(repository):
    with (
        SERVE(repository) as addresses,
        http_client.InferenceServerClient(addresses.http, network_timeout=120) as client,
    ):
        yield client


class Run:
    """One backend's cases, and what came of each."""

    def __init__(self, client, repository: Path, backend: str, alone: Path) -> None:
        self.client, self.repository, self.backend, self.alone = client, repository, backend, alone
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def __call__(self, cases: list[Case], *, completed: bool = False) -> None:
        chosen = []
        for case in cases:
            reason = why_not(case, self.backend)
            if reason:
                self.counts[f"left out: {reason}"] += len(case.data) or 1
            else:
                chosen.append(case)
                save(case, self.alone / case.name)
        bare(self.backend, self.alone)
        for at, case in enumerate(chosen):
            self.serve(case, completed=completed)
            if at % 50 == 49:
                print(f"{self.backend}: {at + 1} of {len(chosen)} models, {dict(self.counts)}", flush=True)

    def serve(self, case: Case, *, completed: bool) -> None:
        name = f"{self.backend}_{case.name}"
        version = self.repository / name / "1"
        version.mkdir(parents=True)
        onnx.save(case.model, version / "model.onnx")
        config = configuration(case, self.backend)
        lines = config.split("\n")
        bare_config = "\n".join(line for line in lines if not line.startswith(("input", "output")))
        path = version.parent / "config.pbtxt"
        path.write_text(bare_config if completed else config)
        try:
            self.load(name, path, bare_config)
        except InferenceServerException as error:
            refused = bare_outputs(self.alone / case.name, 0)
            # A configuration can't name what clashes: the framework is the judge of what is a model.
            self.note(
                case, 0, "refused by both" if isinstance(refused, str) and error.message() else f"{error}"
            )
            return
        for at in range(len(case.data)):
            self.note(case, at, self.compared(case, name, at))
        self.client.unload_model(name)

    def load(self, name: str, path: Path, bare_config: str) -> None:
        """Load a model; by what the backend says of its ports where the file's own words are wrong."""
        try:
            self.client.load_model(name)
        except InferenceServerException as error:
            if not re.search("the model expects|the configuration makes", f"{error}"):
                raise
            path.write_text(bare_config)
            self.client.load_model(name)

    def compared(self, case: Case, name: str, at: int) -> str:
        """Return what came of one set of inputs."""
        given = {key: text_as_bytes(array) for key, array in case.inputs(at).items()}
        expected = bare_outputs(self.alone / case.name, at)
        try:
            result = self.client.infer(name, inputs(http_client, **given))
        except InferenceServerException as error:
            return "refused by both" if isinstance(expected, str) else f"{error}"
        if isinstance(expected, str):
            return f"answered what the framework refuses: {expected}"
        ours = {port.name: result.as_numpy(port.name) for port in case.model.graph.output}
        if _random(case):
            return "random: of the right shape" if _same_shapes(ours, expected) else "of another shape"
        # A framework may have more names for one output.
        expected = {port: expected[port] for port in ours}
        if not agree(ours, expected, rtol=1e-5, atol=1e-6):
            return f"not what the framework gives: {ours} {expected}"
        reference = agree(ours, case.outputs(at), rtol=case.rtol, atol=case.atol)
        return "equal to the reference" if reference else "equal to the framework, which misses the reference"

    def note(self, case: Case, at: int, what: str) -> None:
        known = what.startswith(("equal", "refused by both", "random"))
        self.counts[what if known else "wrong"] += 1
        if not known:
            self.wrong.append(f"{case.name}[{at}]: {what[:600]}")
            print("wrong", self.backend, self.wrong[-1], flush=True)


def _random(case: Case) -> bool:
    return any(
        node.op_type in ("Dropout", "Bernoulli", "RandomUniformLike") for node in case.model.graph.node
    )


def _same_shapes(ours, theirs) -> bool:
    return {name: np.shape(text_as_bytes(each)) for name, each in ours.items()} == {
        name: np.shape(text_as_bytes(each)) for name, each in theirs.items()
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sample_of_models_agrees_with_framework_and_reference(client, repository, tmp_path, backend):
    run = Run(client, repository, backend, tmp_path)
    run([case for case in stored() if case.name in SAMPLE], completed=True)
    assert run.wrong == []
    assert run.counts == {"equal to the reference": len(SAMPLE)}


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_models_agree_with_framework_and_reference(client, repository, tmp_path, backend):
    cases = [*stored(), *generated()[::EVERY]]
    run = Run(client, repository, backend, tmp_path)
    run(cases)
    print(f"\n{backend}: {len(cases)} models")
    for what, count in sorted(run.counts.items()):
        print(f"  {count:5} {what}")
    assert run.wrong == []
    assert run.counts["equal to the reference"] >= len(cases) / 2
    assert client.is_server_live()
