"""Model files of every format that are damaged, of another format, or hostile, through the load API.

Each is refused with a reason that names the model, or it loads, where the damage is none. Whatever becomes of
a worker, the server lives on, and a model beside it answers.
"""

import dataclasses
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.support.environments import TENSORFLOW
from tests.support.flavours import process
from tests.support.served_kits import KITS, Case
from tests.support.triton_inputs import inputs

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
# Seconds, in which TensorFlow is imported too.
LIMIT = 'parameters { key: "tritium.load_timeout" value { string_value: "60" } }\n'


@dataclasses.dataclass(frozen=True)
class Format:
    """A file that a backend reads: of which model, and its name.

    `raw` files are numbers and nothing else: what is long enough may be one.
    """

    kit: str
    file: str
    case: str = "network"
    raw: bool = False

    def __str__(self) -> str:
        return f"{self.kit}-{self.file}"


SAVED_MODEL = ("saved_model.pb", "variables/variables.index")
QUICK = [Format("onnxruntime", "model.onnx"), Format("fil", "xgboost.ubj")]
FORMATS = [
    *QUICK,
    Format("openvino", "model.xml"),
    Format("modules", "model.pt"),
    Format("openvino", "model.bin", raw=True),
    Format("torchscript", "model.pt"),
    Format("exported", "model.pt2"),
    Format("fil", "xgboost.json", "json_file"),
    Format("fil", "model.txt", "add_sub"),
    Format("fil", "checkpoint.tl", "batch"),
    *(Format("tensorflow", f"model.savedmodel/{file}") for file in SAVED_MODEL if TENSORFLOW.named),
]
each_format = pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=() if form in QUICK else pytest.mark.long) for form in FORMATS],
    ids=str,
)


class Hostile:
    """What a pickle can do to those who load it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


class Server:
    """A server that loads what it is told to, with a model that has to go on answering."""

    def __init__(self, client: http_client.InferenceServerClient, repository: Path, marker: Path) -> None:
        self.client, self.repository, self.marker = client, repository, marker
        self._cases: dict[Format, Case] = {}
        self._made = 0

    def case(self, form: Format) -> Case:
        if form not in self._cases:
            [kit] = [kit for kit in KITS if kit.name == form.kit]
            if not kit.is_here:
                pytest.skip(f"there is no {kit.package} here")
            [self._cases[form]] = [case for case in kit.cases() if case.name == form.case]
        return self._cases[form]

    def told(self, form: Format, harm: Callable[[Path], object]) -> str:
        """Return what a load of a harmed file says; empty if it works."""
        case = self.case(form)
        self._made += 1
        name = f"harmed_{self._made}"
        version = self.repository / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(case.config + LIMIT)
        case.save(version)
        harm(version / form.file)
        try:
            self.client.load_model(name)
        except InferenceServerException as error:
            said = error.message()
            assert name in said, said
        else:
            said = ""
            self.client.unload_model(name)
        assert self.client.is_server_live()
        assert not self.marker.exists()
        answer = self.client.infer("good", inputs(http_client, ROW=np.ones((1, 4), "f4")))
        assert answer.as_numpy("SCORE").shape == (1, 3)
        return said


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    [python] = [kit for kit in KITS if kit.name == "python"]
    [good] = [case for case in python.cases() if case.name == "network"]
    (folder / "models" / "good" / "1").mkdir(parents=True)
    (folder / "models" / "good" / "config.pbtxt").write_text(good.config)
    good.save(folder / "models" / "good" / "1")
    serve = process("engine", "serve", "--model-control-mode=explicit", "--load-model=good")
    with (
        serve(folder / "models") as addresses,
        http_client.InferenceServerClient(addresses.http, network_timeout=120) as client,
    ):
        yield Server(client, folder / "models", folder / "loaded")


def cut(share: float) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        raw = path.read_bytes()
        path.write_bytes(raw[: int(len(raw) * share)])

    return harm


def of(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def not_a_file(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        path.unlink()
        make(path)

    return harm


@each_format
def test_a_file_that_is_cut_short_or_another_is_refused(server, form):
    for harm in (cut(0.5), of(b"")):
        assert server.told(form, harm)
    assert server.told(form, of(b"a letter, and no model\n" * 20)) or form.raw


@each_format
def test_a_pickle_is_refused_and_does_not_run(server, form):
    """A bare one, and one in an archive as `torch.save` makes it."""
    code = pickle.dumps(Hostile(server.marker))

    def archive(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("archive/data.pkl", code)
            file.writestr("archive/version", "3\n")
            file.writestr("archive/byteorder", "little")

    assert server.told(form, of(code)) or form.raw
    assert server.told(form, archive) or form.raw


@each_format
def test_what_is_no_file_is_refused_and_holds_nothing_up(server, form):
    """A pipe would hold its reader up for ever."""
    for make in (
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to(path.name),
        lambda path: path.symlink_to("/dev/zero"),
    ):
        assert server.told(form, not_a_file(make))


@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_no_damage_harms_the_server(server, form):
    """Bytes are changed, inserted and lost; and each format is given the files of all others."""
    rng = np.random.default_rng(5)
    refused = 0

    def change(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        for at in rng.integers(0, len(raw), 4):
            raw[at : at + rng.integers(0, 3)] = rng.bytes(int(rng.integers(0, 9)))
        path.write_bytes(raw if rng.random() < 0.7 else raw[: rng.integers(len(raw))])

    for _ in range(25):
        refused += bool(server.told(form, change))
    for other in FORMATS:
        if other.file != form.file:
            refused += bool(server.told(form, foreign(server, other)))
    assert refused >= 8 or form.raw


def foreign(server: Server, other: Format) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        made = path.parent / "of_another"
        made.mkdir(exist_ok=True)
        server.case(other).save(made)
        path.write_bytes((made / other.file).read_bytes())

    return harm
