"""Backends that are C libraries, behind a real server, for Triton's own clients.

With TRITIUM_TESTS_TRITON_BACKENDS naming a folder of Triton's identity, repeat and square (each
`<name>/libtriton_<name>.so`, built from their sources as they are), those are served too: marked `long`.
"""

import os
import queue
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.support.flavours import process
from tests.support.native.compiling import cache_home, library, shim
from tests.support.triton_inputs import inputs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.grpc as grpc_client
    from tritonclient.utils import InferenceServerException

pytestmark = [
    pytest.mark.system,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
PORTS = """
input [ { name: "IN" data_type: %(kind)s dims: [ %(dims)s ] } ]
output [ { name: "OUT" data_type: %(kind)s dims: [ %(dims)s ] } ]
"""
FLOATS = PORTS % {"kind": "TYPE_FP32", "dims": -1}
DOUBLE = 'parameters { key: "does" value { string_value: "double" } }\n'
POISON = 666
VARIABLE = "TRITIUM_TESTS_TRITON_BACKENDS"
BAD = {
    "crashing": "signal 11",
    "python_library": "the library of Triton's python backend, which is not loaded here",
    "on_gpu": "gets its tensors in host memory, and no instances on a GPU",
    "damaged": "is no library of a backend",
}


def write(repository, name, config, *files):
    """Write a model; `files` are libraries: (where, source)."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    for where, source in files:
        shutil.copy(source, repository / name / where)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    shim()
    folder = tmp_path_factory.mktemp("c_libraries")
    repository, backends = folder / "models", folder / "backends"
    repository.mkdir()
    (backends / "doing").mkdir(parents=True)
    shutil.copy(library(), backends / "doing")
    batching = (
        "max_batch_size: 8\n"
        "dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: [ 4 ] }\n"
    )
    write(repository, "batching", f'backend: "doing"\n{batching}{FLOATS}{DOUBLE}')
    two = "instance_group [ { count: 2 kind: KIND_CPU } ]\n"
    write(repository, "poisonable", f'backend: "doing"\nmax_batch_size: 8\n{FLOATS}{DOUBLE}{two}')
    own = ("1/libtriton_mine.so", library())
    write(repository, "in_version", f'backend: "mine"\nmax_batch_size: 8\n{FLOATS}{DOUBLE}', own)
    beside = ("another.so", library())
    named = f'backend: "mine"\nruntime: "another.so"\nmax_batch_size: 8\n{FLOATS}{DOUBLE}'
    write(repository, "in_model", named, beside)
    write(repository, "completed", f'backend: "doing"\n{DOUBLE}')
    write(
        repository,
        "stream",
        'backend: "doing"\nmodel_transaction_policy { decoupled: true }\n'
        + PORTS % {"kind": "TYPE_INT32", "dims": 1}
        + DOUBLE.replace("double", "stream"),
    )
    write(
        repository,
        "tell",
        'backend: "doing"\nmax_batch_size: 8\ninput [ { name: "IN" data_type: TYPE_STRING dims: [ 2 ] } ]\n'
        'output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]\n' + DOUBLE.replace("double", "tell"),
    )
    write(
        repository,
        "crashing",
        f'backend: "doing"\nmax_batch_size: 8\n{FLOATS}' + DOUBLE.replace("double", "crash_at_load"),
    )
    python = ("libtriton_python.so", library())
    write(repository, "python_library", f'backend: "mine"\nruntime: "libtriton_python.so"\n{FLOATS}', python)
    write(
        repository, "on_gpu", f'backend: "doing"\n{FLOATS}{DOUBLE}instance_group [ {{ kind: KIND_GPU }} ]\n'
    )
    write(repository, "damaged", f'backend: "doing"\n{FLOATS}{DOUBLE}')
    (repository / "damaged" / "1" / "libtriton_doing.so").write_bytes(library().read_bytes()[:3000])
    flavour = process(
        "engine",
        "serve",
        TRITIUM_BACKEND_DIRECTORY=str(backends),
        TRITIUM_MODEL_CONTROL_MODE="explicit",
        TRITIUM_LOAD_MODEL=";".join(
            sorted(path.name for path in repository.iterdir() if path.name not in BAD)
        ),
        XDG_CACHE_HOME=str(cache_home()),
    )
    with flavour(repository) as addresses:
        yield addresses


@pytest.fixture(scope="module")
def client(served):
    with grpc_client.InferenceServerClient(served.grpc) as client:
        yield client


def ask(client, model, x):
    return client.infer(model, inputs(grpc_client, IN=x), client_timeout=30).as_numpy("OUT")


@pytest.mark.parametrize("model", ["in_version", "in_model", "batching", "poisonable"])
def test_a_library_is_found_beside_the_model_and_in_the_backend_directory(client, model):
    x = np.arange(6, dtype="f4").reshape(2, 3)
    np.testing.assert_array_equal(ask(client, model, x), 2 * x)


def test_an_array_of_megabytes_comes_back(client):
    x = np.random.default_rng(1).normal(size=(8, 300_000)).astype("f4")
    for _ in range(3):
        np.testing.assert_array_equal(ask(client, "in_version", x), 2 * x)


def test_requests_share_a_batch_and_a_bad_one_costs_only_itself(client):
    answers: queue.Queue = queue.Queue()
    arrays = [np.full((1, 2), value, "f4") for value in (1, -1, 3, 4)]
    before = client.get_inference_statistics("batching", as_json=True)["model_stats"][0]
    for index, x in enumerate(arrays):
        client.async_infer(
            "batching",
            inputs(grpc_client, IN=x),
            callback=lambda result, error, index=index: answers.put((index, result, error)),
        )
    got = {index: (result, error) for index, result, error in (answers.get(timeout=30) for _ in arrays)}
    for index, (result, error) in got.items():
        if index == 1:
            assert "the first element is negative" in str(error)
        else:
            np.testing.assert_array_equal(result.as_numpy("OUT"), 2 * arrays[index])
    after = client.get_inference_statistics("batching", as_json=True)["model_stats"][0]
    assert int(after["execution_count"]) - int(before.get("execution_count", 0)) < len(arrays)


def test_a_crash_of_the_library_is_a_workers_death_like_any_other(client):
    assert client.is_server_live()
    with pytest.raises(InferenceServerException):
        ask(client, "poisonable", np.full((1, 2), POISON, "f4"))
    x = np.ones((1, 2), "f4")
    for _ in range(20):
        np.testing.assert_array_equal(ask(client, "poisonable", x), 2 * x)
        np.testing.assert_array_equal(ask(client, "in_version", x), 2 * x)


def test_a_configuration_is_completed_by_the_library(client):
    config = client.get_model_config("completed", as_json=True)["config"]
    assert config["max_batch_size"] == 4
    assert [tensor["name"] for tensor in config["input"] + config["output"]] == ["IN", "OUT"]
    x = np.ones((3, 2), "f4")
    np.testing.assert_array_equal(ask(client, "completed", x), 2 * x)


def test_strings_and_what_a_request_carries_reach_the_library(client):
    words = np.array([[b"a\0b", b""], [b"\xff", b"long" * 1000]], object)
    result = client.infer(
        "tell",
        inputs(grpc_client, IN=words),
        request_id="seven",
        parameters={"colour": "blue", "count": 3, "on": True},
        sequence_id=0,
    )
    told = result.as_numpy("TOLD").ravel()[0].decode().splitlines()
    for line in (
        "id 'seven'",
        "parameter colour 'blue'",
        "parameter count 3",
        "parameter on true",
        "wanted TOLD",
        f"input IN type 13 bytes {4 * 4 + 3 + 1 + 4000} buffers 1 shape 2 2",
    ):
        assert line in told


def responses(client, model, x, count, **options):
    """Stream one request; return `count` of its answers: (result, error)."""
    got: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: got.put((result, error)))
    try:
        client.async_stream_infer(model, x, enable_empty_final_response=True, **options)
        return [got.get(timeout=30) for _ in range(count)]
    finally:
        client.stop_stream()


def test_a_decoupled_library_answers_from_its_own_thread(served):
    with grpc_client.InferenceServerClient(served.grpc) as client:
        got = responses(client, "stream", inputs(grpc_client, IN=np.array([3], "i4")), 4)
    assert [error for _, error in got] == [None] * 4
    assert [result.as_numpy("OUT").tolist() for result, _ in got[:3]] == [[0], [1], [2]]
    assert got[3][0].get_response().parameters["triton_final_response"].bool_param


def test_many_responses_at_once_keep_their_order(served):
    with grpc_client.InferenceServerClient(served.grpc) as client:
        got = responses(client, "stream", inputs(grpc_client, IN=np.array([2000], "i4")), 2001)
    assert [int(result.as_numpy("OUT")[0]) for result, _ in got[:-1]] == list(range(2000))


def test_a_cancelled_stream_is_seen_by_the_library(served):
    # It sends until it is told: the next one is answered only once the thread before has ended or goes on.
    with grpc_client.InferenceServerClient(served.grpc) as client:
        got: queue.Queue = queue.Queue()
        client.start_stream(lambda result, error: got.put((result, error)))
        client.async_stream_infer("stream", inputs(grpc_client, IN=np.array([-2], "i4")))
        assert got.get(timeout=30)[1] is None
        client.stop_stream(cancel_requests=True)
        x = inputs(grpc_client, IN=np.array([1], "i4"))
        assert responses(client, "stream", x, 2)[0][1] is None


@pytest.mark.parametrize(("model", "said"), BAD.items(), ids=list(BAD))
def test_what_can_not_be_served_says_why(client, model, said):
    with pytest.raises(InferenceServerException, match=re.escape(said)):
        client.load_model(model)
    assert client.is_server_live()
    assert not client.is_model_ready(model)


# -- Triton's own backends, from their sources as they are


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    given = os.environ.get(VARIABLE, "")
    if not given:
        pytest.skip(f"{VARIABLE} names no folder of Triton's identity, repeat and square backends")
    shim()
    folder = tmp_path_factory.mktemp("upstream")
    repository = folder / "models"
    ports = (
        'input [ { name: "INPUT0" data_type: TYPE_%(kind)s dims: [ -1 ] } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_%(kind)s dims: [ -1 ] } ]\n'
    )
    for kind in ("FP32", "STRING", "INT8", "FP16", "BOOL", "UINT64"):
        config = f'backend: "identity"\nmax_batch_size: 8\n{ports % {"kind": kind}}'
        write(repository, f"identity_{kind}", config)
    decoupled = "model_transaction_policy { decoupled: true }\n"
    write(
        repository,
        "repeat",
        f'backend: "repeat"\n{decoupled}'
        'input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32'
        ' dims: [ -1 ] }, { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]\n'
        'output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32'
        " dims: [ 1 ] } ]\n",
    )
    write(repository, "square", f'backend: "square"\n{decoupled}{PORTS % {"kind": "TYPE_INT32", "dims": 1}}')
    flavour = process("engine", "serve", TRITIUM_BACKEND_DIRECTORY=given, XDG_CACHE_HOME=str(cache_home()))
    with flavour(repository) as addresses, grpc_client.InferenceServerClient(addresses.grpc) as client:
        yield client


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "x"),
    [
        ("FP32", np.random.default_rng(0).normal(size=(3, 50_000)).astype("f4")),
        ("STRING", np.array([[b"a", b"", b"\0\xff", b"long" * 500]], object)),
        ("INT8", np.arange(-4, 4, dtype="i1").reshape(2, 4)),
        ("FP16", np.ones((1, 3), "f2")),
        ("BOOL", np.array([[True, False]])),
        ("UINT64", np.array([[2**64 - 1, 0]], "u8")),
    ],
)
def test_tritons_identity(upstream, kind, x):
    result = upstream.infer(f"identity_{kind}", inputs(grpc_client, INPUT0=x))
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), x)
    parameters = result.get_response().parameters
    assert parameters["param0"].string_param == "an example string parameter"
    assert (parameters["param1"].int64_param, parameters["param2"].bool_param) == (42, False)


@pytest.mark.long
def test_tritons_repeat(upstream):
    x = inputs(grpc_client, IN=np.array([4, 2, 0], "i4"), DELAY=np.full(3, 5, "u4"), WAIT=np.array([1], "u4"))
    got = responses(upstream, "repeat", x, 4)
    assert [error for _, error in got] == [None] * 4
    assert [int(result.as_numpy("OUT")[0]) for result, _ in got[:3]] == [4, 2, 0]
    assert [int(result.as_numpy("IDX")[0]) for result, _ in got[:3]] == [0, 1, 2]


@pytest.mark.long
def test_tritons_square(upstream):
    got = responses(upstream, "square", inputs(grpc_client, IN=np.array([5], "i4")), 6)
    assert [int(result.as_numpy("OUT")[0]) for result, _ in got[:-1]] == [5] * 5
    assert Path(os.environ[VARIABLE]).is_dir()
