"""One table of models, through every backend, over every way that Triton's clients send tensors.

A quick run takes two models of each backend: a small network, and one that fails for one request of a batch.
The long tier takes all of `tests.support.served_kits`.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.support.flavours import process
from tests.support.native.compiling import cache_home
from tests.support.served_kits import KITS, SAMPLE, Case, ServedKit
from tests.support.wires import WIRES, HttpJson, Wire

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
HERE = [kit for kit in KITS if kit.is_here]
QUICK = {"onnxruntime", "torchscript", "python", "library"}  # what remains has other tests that serve it


class Served:
    """A server of all backends' models, which are loaded one at a time."""

    def __init__(
        self, repository: Path, client: http_client.InferenceServerClient, wires: list[Wire]
    ) -> None:
        self.repository, self.client, self.wires = repository, client, wires

    def check(self, kit: ServedKit, case: Case) -> int:
        """Ask all that a case asks over all wires; return how many answers were right."""
        model = f"{kit.name}_{case.name}"
        version = self.repository / model / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(case.config)
        case.save(version)
        self.client.load_model(model)
        right = sum(
            self.right(model, case, wire) for wire in self.wires if case.in_json or wire.name != HttpJson.name
        )
        self.client.unload_model(model)
        return right

    def right(self, model: str, case: Case, wire: Wire) -> int:
        for asks in case.asks:
            for ask, answer in zip(asks, wire.ask(model, asks, case.datatypes), strict=True):
                where = f"{model} over {wire.name}"
                if ask.expected is None:
                    assert isinstance(answer, InferenceServerException), (where, answer)
                    assert answer.message(), where
                    continue
                assert isinstance(answer, dict), (where, answer)
                assert answer.keys() == ask.expected.keys(), where
                for name, expected in ask.expected.items():
                    self.compare(answer[name], expected, close=case.close, where=(where, name))
        return case.count()

    def compare(self, answer, expected, *, close: bool, where) -> None:
        assert answer.dtype == expected.dtype, where
        assert answer.shape == expected.shape, where
        if close:
            np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-6, err_msg=f"{where}")
        else:
            np.testing.assert_array_equal(answer, expected, err_msg=f"{where}")


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("every_backend")
    (folder / "models").mkdir()
    for kit in HERE:
        kit.install(folder / "backends")
    serve = process(
        "engine",
        "serve",
        TRITIUM_BACKEND_DIRECTORY=str(folder / "backends"),
        TRITIUM_MODEL_CONTROL_MODE="explicit",
        TRITIUM_ALLOW_CLIENT_SHM="true",
        XDG_CACHE_HOME=str(cache_home()),
    )
    with serve(folder / "models") as addresses, ExitStack() as stack:
        client = stack.enter_context(http_client.InferenceServerClient(addresses.http, network_timeout=120))
        wires = [stack.enter_context(each(addresses)) for each in WIRES]
        yield Served(folder / "models", client, wires)


@pytest.mark.parametrize(
    "kit",
    [pytest.param(kit, marks=() if kit.name in QUICK else pytest.mark.long) for kit in HERE],
    ids=lambda kit: kit.name,
)
def test_a_network_and_a_fault_in_a_batch(served, kit):
    cases = [case for case in kit.cases() if case.name in SAMPLE]
    assert len(cases) == len(SAMPLE)
    for case in cases:
        assert served.check(kit, case) == len(WIRES) * case.count()


@pytest.mark.long
@pytest.mark.parametrize("kit", HERE, ids=lambda kit: kit.name)
def test_all_models(served, kit):
    right = sum(served.check(kit, case) for case in kit.cases() if case.name not in SAMPLE)
    print(f"\n{kit.name}: {right} answers")
    assert right >= 40
