"""Forests through a real server: what their own libraries predict, and what is said of other files."""

import dataclasses
import json
import pickle
import warnings

import numpy as np
import pytest

from tests.support.flavours import process
from tests.support.forests import CASES, COLUMNS, INPUTS, asked, rows, trained, write, xgb
from tests.support.triton_inputs import inputs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.grpc as grpc_client
    from tritonclient.utils import InferenceServerException

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SAMPLE = ["xgb_binary", "lgb_categories_multiclass", "skl_forest_of_three"]

BARE = """
backend: "fil"
parameters { key: "model_type" value { string_value: "treelite_checkpoint" } }
parameters { key: "is_classifier" value { string_value: "true" } }
parameters { key: "predict_proba" value { string_value: "true" } }
parameters { key: "tritium.fil.compile" value { string_value: "off" } }
"""


def answered(client, name, x, output="output__0"):
    result = client.infer(name, inputs(grpc_client, input__0=x))
    return result.as_numpy(output)


def check(client, name, made, about):
    for x, expected in asked(made, about):
        answer = answered(client, name, x)
        assert answer.dtype == np.float32
        assert answer.shape == ((len(x),) if made.classes == 1 else (len(x), made.classes))
        np.testing.assert_allclose(answer, expected.reshape(answer.shape), rtol=1e-5, atol=1e-6)


# -- a sample of the forests, and one of each that is told of


@pytest.fixture(scope="module")
def forests():
    return {name: trained(name) for name in SAMPLE}


@pytest.fixture(scope="module")
def place(tmp_path_factory, forests):
    """A repository of the sample, of files that can't be served, and where machine code goes."""
    place = tmp_path_factory.mktemp("forests")
    repository = place / "models"
    for name, made in forests.items():
        write(repository, name, made, compiling="on" if name == "xgb_binary" else "off")
    boosted = forests["xgb_binary"]
    write(repository, "explained", boosted, shap=True)
    version = write(repository, "bare", forests["skl_forest_of_three"])
    (version.parent / "config.pbtxt").write_text(BARE)
    broken = {
        "truncated": (boosted, lambda raw: raw[: len(raw) // 2]),
        "foreign": (boosted, lambda raw: b"\x08\x08\x12\x04onnx" + raw),
        "empty": (boosted, lambda raw: b""),
        "pickled": (forests["skl_forest_of_three"], lambda raw: hostile_pickle(place)),
        "forged": (forests["skl_forest_of_three"], lambda raw: raw[:14] + b"\xff" * 7 + b"\x00" + raw[22:]),
    }
    write(repository, "deadly", deadly())
    for name, (made, spoil) in broken.items():
        path = write(repository, name, made) / made.file_name
        path.write_bytes(spoil(path.read_bytes()))
    return place


def deadly():
    """XGBoost JSON whose categories lie far behind their list: treelite's reader reads there."""
    made = xgb("reg:squarederror", kind="xgboost_json", categories=True, max_cat_to_onehot=1)

    def save(path):
        made.save(path)
        document = json.loads(path.read_bytes())
        for tree in document["learner"]["gradient_booster"]["model"]["trees"]:
            tree["categories_segments"] = [1 << 30 for _ in tree["categories_segments"]]
        path.write_text(json.dumps(document))

    return dataclasses.replace(made, save=save)


class Hostile:
    """What a pickle can do to those who load it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def hostile_pickle(place):
    return pickle.dumps(Hostile(str(place / "loaded")))


@pytest.fixture(scope="module")
def server(place):
    flags = ["--exit-on-error=false", "--strict-readiness=false"]
    serve = process("engine", "serve", *flags, XDG_CACHE_HOME=str(place / "cache"))
    with serve(place / "models") as addresses:
        yield addresses


@pytest.fixture(scope="module")
def client(server):
    with grpc_client.InferenceServerClient(server.grpc) as client:
        yield client


@pytest.mark.parametrize("about", INPUTS)
@pytest.mark.parametrize("name", SAMPLE)
def test_answers_are_those_of_the_library_that_trained_the_forest(client, forests, name, about):
    check(client, name, forests[name], about)


def test_machine_code_is_kept_and_serves(place, client):
    [library] = (place / "cache" / "tritium" / "forests").glob("*.so")
    assert library.stat().st_mode & 0o022 == 0


def test_contributions_are_the_librarys(client, forests):
    x = rows(9, seed=4)
    result = client.infer("explained", inputs(grpc_client, input__0=x))
    shares = result.as_numpy("treeshap_output")
    assert shares.shape == (9, COLUMNS + 1)
    np.testing.assert_allclose(shares, forests["xgb_binary"].contributions(x), rtol=1e-5, atol=1e-6)


def test_a_request_that_contributions_fail_for_costs_only_itself(client):
    wrong, right = rows(2, seed=6), rows(2, seed=7)
    wrong[0, 0] = np.inf  # which XGBoost refuses
    with pytest.raises(InferenceServerException, match="XGBoostError"):
        client.infer("explained", inputs(grpc_client, input__0=wrong))
    assert answered(client, "explained", right).shape == (2,)
    assert answered(client, "xgb_binary", wrong).shape == (2,)


def test_rows_of_another_width_are_refused(client):
    with pytest.raises(InferenceServerException, match=r"unexpected shape for input 'input__0'"):
        answered(client, "xgb_binary", np.ones((1, COLUMNS + 1), "f4"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("truncated", "can't be read as XGBoost UBJ"),
        ("foreign", "it is an ONNX model, which backend 'onnxruntime' serves"),
        ("empty", "it is empty"),
        ("pickled", "A server loads no pickles"),
        ("forged", "can't be read as a treelite checkpoint: it is cut short"),
        ("deadly", "the worker of instance 'deadly_0' died of signal 11 (SIGSEGV) while it loaded the model"),
    ],
)
def test_a_file_that_can_not_be_served_is_told_why(client, place, name, reason):
    states = {each["name"]: each for each in client.get_model_repository_index(as_json=True)["models"]}
    assert states[name]["state"] == "UNAVAILABLE"
    assert reason in states[name]["reason"]
    assert not (place / "loaded").exists()
    assert client.is_server_live()


def test_a_configuration_is_completed_from_the_forest(client, forests):
    config = client.get_model_config("bare", as_json=True)["config"]
    assert config["max_batch_size"] == 4
    assert [each["dims"] for each in (*config["input"], *config["output"])] == [["6"], ["3"]]
    check(client, "bare", forests["skl_forest_of_three"], "one")


# -- all of them


@pytest.fixture(scope="module")
def all_forests(tmp_path_factory):
    """A server that loads what it is told to, its client, and its repository."""
    repository = tmp_path_factory.mktemp("all")
    cache = str(tmp_path_factory.mktemp("cache"))
    serve = process("engine", "serve", "--model-control-mode=explicit", XDG_CACHE_HOME=cache)
    with serve(repository) as addresses, grpc_client.InferenceServerClient(addresses.grpc) as client:
        yield client, repository


@pytest.mark.long
@pytest.mark.parametrize("compiling", ["off", "on"])
@pytest.mark.parametrize("case", CASES)
def test_every_forest_answers_as_its_library_does(all_forests, case, compiling):
    client, repository = all_forests
    made, name = trained(case), f"{case}_{compiling}"
    write(repository, name, made, compiling=compiling)
    client.load_model(name)
    for about in INPUTS:
        check(client, name, made, about)
    client.unload_model(name)


@pytest.mark.long
@pytest.mark.parametrize("case", ["xgb_squared", "xgb_squared_json", "lgb_categories", "skl_forest"])
def test_no_damage_to_a_file_harms_the_server(all_forests, case):
    client, repository = all_forests
    made, name = trained(case), f"damaged_{case}"
    limit = 'parameters { key: "tritium.load_timeout" value { string_value: "20" } }'
    path = write(repository, name, made, extra=limit) / made.file_name
    raw, rng = path.read_bytes(), np.random.default_rng(11)
    for _ in range(40):
        damaged = bytearray(raw[: rng.integers(len(raw))] if rng.random() < 0.3 else raw)
        for at in rng.integers(0, max(1, len(damaged)), 4):
            damaged[at : at + 1] = rng.bytes(1)
        path.write_bytes(damaged)
        try:
            client.load_model(name)
        except InferenceServerException as error:
            assert "model" in str(error)  # noqa: PT017  # any that names it
        else:
            answered(client, name, rows(4, seed=8))
        assert client.is_server_live()
    path.write_bytes(raw)
    client.load_model(name)
    check(client, name, made, "one")
