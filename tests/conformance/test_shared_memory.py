"""Tensors in clients' shared memory: Triton's client programs and every kind of model, over both protocols.

Errors of the contract are in `test_shared_memory_contract.py`, hostile clients in
`tests/survival/test_survival_shared_memory.py`.
"""

import threading
from collections.abc import Iterator
from queue import Queue

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import serialize_byte_tensor

from actors.regions.use import AT_ONCE
from tests.support.flavours import process, write_common_models
from tests.support.shared_memory import PAGE, Face, Given, Place, Serving, an_object, refusal
from tests.support.shared_memory import serving as serving_models
from tests.support.shared_models import write_kinds

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

MIB = 1024 * 1024
SIZES = [4, AT_ONCE, AT_ONCE + 4, 3 * MIB + 4]  # bytes: at the bound of what is read at once, and beyond


@pytest.fixture(scope="module")
def serving(tmp_path_factory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("models")
    gates = tmp_path_factory.mktemp("gates")
    with serving_models(folder, gates / "said", write_kinds(folder, gates)) as made:
        yield made


@pytest.fixture(params=["http", "grpc"])
def protocol(request):
    return request.param


@pytest.fixture
def face(serving, protocol) -> Iterator[Face]:
    face = Face(protocol, getattr(serving.addresses, protocol))
    yield face
    assert face.unregister() is None
    face.close()
    # Whatever a test did, nothing is held any more.
    assert serving.tree() == {"registered": 0}


def floats(model, shape, place, name="X"):
    return [Given(name=name, datatype="FP32", shape=shape, place=place)]


# The programs of Triton's client repository, written anew


def test_the_shared_memory_example_of_triton_s_clients(face):
    library, client = face.library, face.client
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    a, b = np.arange(16, dtype=np.float32)[None], np.ones((1, 16), np.float32)
    nbytes = a.nbytes
    taken = shm.create_shared_memory_region("output_data", "/output_simple", nbytes * 2)
    given = shm.create_shared_memory_region("input_data", "/input_simple", nbytes * 2)
    try:
        client.register_system_shared_memory("output_data", "/output_simple", nbytes * 2)
        client.register_system_shared_memory("input_data", "/input_simple", nbytes * 2)
        shm.set_shared_memory_region(given, [a])
        shm.set_shared_memory_region(given, [b], offset=nbytes)
        inputs = [library.InferInput("A", [1, 16], "FP32"), library.InferInput("B", [1, 16], "FP32")]
        inputs[0].set_shared_memory("input_data", nbytes)
        inputs[1].set_shared_memory("input_data", nbytes, offset=nbytes)
        outputs = [library.InferRequestedOutput("S"), library.InferRequestedOutput("D")]
        outputs[0].set_shared_memory("output_data", nbytes)
        outputs[1].set_shared_memory("output_data", nbytes, offset=nbytes)
        for _ in range(3):
            results = client.infer(model_name="add", inputs=inputs, outputs=outputs)
            total = shm.get_contents_as_numpy(taken, np.float32, [1, 16])
            difference = shm.get_contents_as_numpy(taken, np.float32, [1, 16], offset=nbytes)
            np.testing.assert_array_equal(total, a + b)
            np.testing.assert_array_equal(difference, a - b)
            assert face.output(results, "S") == {"name": "S", "datatype": "FP32", "shape": [1, 16]}
        assert {region["name"] for region in face.status()} == {"input_data", "output_data"}
        client.unregister_system_shared_memory("input_data")
        assert {region["name"] for region in face.status()} == {"output_data"}
        client.unregister_system_shared_memory()
        assert face.status() == []
    finally:
        shm.destroy_shared_memory_region(given)
        shm.destroy_shared_memory_region(taken)
    assert shm.mapped_shared_memory_regions() == []


def test_the_example_with_strings(face):
    library, client = face.library, face.client
    texts = np.array([[str(number).encode() for number in range(16)]], dtype=object)
    packed = serialize_byte_tensor(texts).item()
    given = shm.create_shared_memory_region("in", "in_strings", len(packed))
    taken = shm.create_shared_memory_region("out", "out_strings", 2 * len(packed))
    try:
        shm.set_shared_memory_region(given, [serialize_byte_tensor(texts)])
        client.register_system_shared_memory("in", "in_strings", len(packed))
        client.register_system_shared_memory("out", "out_strings", 2 * len(packed))
        asked = library.InferInput("X", [1, 16], "BYTES")
        asked.set_shared_memory("in", len(packed))
        wanted = library.InferRequestedOutput("Y")
        wanted.set_shared_memory("out", 2 * len(packed))
        results = client.infer(model_name="strings", inputs=[asked], outputs=[wanted])
        output = face.output(results, "Y")
        assert output == {"name": "Y", "datatype": "BYTES", "shape": [1, 16]}
        np.testing.assert_array_equal(shm.get_contents_as_numpy(taken, np.object_, output["shape"]), texts)
    finally:
        shm.destroy_shared_memory_region(given)
        shm.destroy_shared_memory_region(taken)


@pytest.mark.parametrize("nbytes", [64, 3 * MIB])
def test_regions_are_used_under_another_http_server(tmp_path, nbytes):
    write_common_models(tmp_path / "models")
    command = ("hypercorn", "-k", "trio", "-b", "127.0.0.1:0", "engine.asgi")
    serve = process(*command, http=r"Running on http://(\S+)", TRITIUM_ALLOW_CLIENT_SHM="true")
    values = np.arange(nbytes // 4, dtype=np.float32)
    with serve(tmp_path / "models") as addresses, an_object(2 * nbytes) as memory:
        memory.put(values.tobytes())
        for protocol in ("http", "grpc"):
            face = Face(protocol, getattr(addresses, protocol))
            assert face.register("R", memory.key, 2 * nbytes) is None
            memory.put(bytes(nbytes), nbytes)
            place = Place(region="R", nbytes=nbytes)
            taken = Place(region="R", nbytes=nbytes, offset=nbytes)
            result = face.infer("scores", floats("scores", [1, nbytes // 4], place), {"Y": taken})
            assert face.output(result, "Y")["shape"] == [1, nbytes // 4]
            np.testing.assert_array_equal(memory.array(np.float32, nbytes // 4, nbytes), values)
            assert face.unregister("R") is None
            assert face.status() == []
            face.close()


# Sizes and datatypes


@pytest.mark.parametrize("nbytes", [*SIZES, 16 * MIB])
def test_tensors_of_every_size_go_through_regions(face, nbytes):
    values = np.random.default_rng(nbytes).random(nbytes // 4, np.float32)
    with an_object(2 * nbytes + PAGE) as memory:
        memory.put(values.tobytes(), 8)
        mark = b"untouched"
        memory.put(mark, 8 + 2 * nbytes)
        assert face.register("R", memory.key, memory.size) is None
        for _ in range(2):
            result = face.infer(
                "scores",
                floats("scores", [1, nbytes // 4], Place(region="R", nbytes=nbytes, offset=8)),
                {"Y": Place(region="R", nbytes=nbytes + 16, offset=8 + nbytes)},
            )
            assert face.output(result, "Y") == {"name": "Y", "datatype": "FP32", "shape": [1, nbytes // 4]}
            assert face.raw_outputs(result) in ([], [b""])
            np.testing.assert_array_equal(memory.array(np.float32, nbytes // 4, 8 + nbytes), values)
            assert memory.get(len(mark), 8 + 2 * nbytes) == mark
            memory.put(bytes(nbytes), 8 + nbytes)


@pytest.mark.parametrize("count", [3, 140_000])
@pytest.mark.parametrize(("model", "datatype", "dtype"), [("halves", "FP16", "f2"), ("ints", "INT64", "i8")])
def test_other_datatypes_go_through_regions(face, model, datatype, dtype, count):
    values = (np.arange(count) % 1000).astype(dtype)
    with an_object(2 * values.nbytes) as memory:
        memory.put(values.tobytes())
        assert face.register("R", memory.key, memory.size) is None
        place = Place(region="R", nbytes=values.nbytes)
        taken = Place(region="R", nbytes=values.nbytes, offset=values.nbytes)
        result = face.infer(
            model, [Given(name="X", datatype=datatype, shape=[1, count], place=place)], {"Y": taken}
        )
        assert face.output(result, "Y")["datatype"] == datatype
        np.testing.assert_array_equal(memory.array(dtype, count, values.nbytes), values)


@pytest.mark.parametrize("count", [10, 20_000])
def test_long_strings_go_through_regions(face, count):
    packed = b"".join(
        len(text).to_bytes(4, "little") + text for text in (b"%d" % n * 9 for n in range(count))
    )
    with an_object(2 * len(packed) + 16) as memory:
        memory.put(packed)
        assert face.register("R", memory.key, memory.size) is None
        given = Given(
            name="X", datatype="BYTES", shape=[1, count], place=Place(region="R", nbytes=len(packed))
        )
        taken = Place(region="R", nbytes=len(packed) + 16, offset=len(packed))
        face.output(face.infer("strings", [given], {"Y": taken}), "Y")
        assert memory.get(len(packed), len(packed)) == packed


def test_nothing_is_written_for_an_output_without_elements(face, protocol):
    with an_object(PAGE) as memory:
        memory.put(b"as it was")
        assert face.register("R", memory.key, PAGE) is None
        result = face.infer(
            "scores",
            floats("scores", [1, 0], Place(region="R", nbytes=0)),
            {"Y": Place(region="R", nbytes=0)},
        )
        assert face.output(result, "Y")["shape"] == [1, 0]
        assert memory.get(9) == b"as it was"


# How tensors may be mixed


def test_one_request_may_have_tensors_in_regions_and_others(face):
    a, b = (np.full((1, 16), value, np.float32) for value in (5, 3))
    with an_object(PAGE) as memory:
        memory.put(b.tobytes(), 64)
        assert face.register("R", memory.key, PAGE) is None
        for _ in range(2):
            result = face.infer(
                "add",
                [
                    Given(name="A", datatype="FP32", shape=[1, 16], array=a),
                    Given(
                        name="B",
                        datatype="FP32",
                        shape=[1, 16],
                        place=Place(region="R", nbytes=64, offset=64),
                    ),
                ],
                {"D": None, "S": Place(region="R", nbytes=64)},
            )
            np.testing.assert_array_equal(result.as_numpy("D"), a - b)
            np.testing.assert_array_equal(memory.array(np.float32, 16), (a + b).ravel())


@pytest.mark.parametrize("nbytes", SIZES)
def test_an_answer_may_replace_its_input(face, nbytes):
    values = np.arange(nbytes // 4, dtype=np.float32)
    with an_object(nbytes) as memory:
        memory.put(values.tobytes())
        assert face.register("R", memory.key, nbytes) is None
        place = Place(region="R", nbytes=nbytes)
        for turn in range(1, 3):
            face.output(face.infer("plain", floats("plain", [nbytes // 4], place), {"Y": place}), "Y")
            np.testing.assert_array_equal(memory.array(np.float32, nbytes // 4), values + turn)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("model", ["plain", "chain", "counted", "cached", "asked"])
def test_an_output_that_does_not_fit_is_refused(face, protocol, model, nbytes):
    with an_object(2 * nbytes) as memory:
        assert face.register("R", memory.key, 2 * nbytes) is None
        told = face.infer(
            model,
            floats(model, [nbytes // 4], Place(region="R", nbytes=nbytes)),
            {"Y": Place(region="R", nbytes=nbytes - 1, offset=nbytes)},
        )
        text = (
            f"shared memory size specified with the request for output 'Y' ({nbytes - 1} bytes) should be at "
            f"least {nbytes} bytes to hold the results"
        )
        assert told == refusal(protocol, "INTERNAL", text)


# Every kind of model


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize(("model", "more"), [("plain", 1), ("chain", 2)])
def test_plain_models_and_ensembles_use_regions(face, model, more, nbytes):
    values = np.arange(nbytes // 4, dtype=np.float32)
    with an_object(2 * nbytes) as memory:
        memory.put(values.tobytes())
        assert face.register("R", memory.key, 2 * nbytes) is None
        result = face.infer(
            model,
            floats(model, [nbytes // 4], Place(region="R", nbytes=nbytes)),
            {"Y": Place(region="R", nbytes=nbytes, offset=nbytes)},
        )
        assert face.output(result, "Y")["shape"] == [nbytes // 4]
        np.testing.assert_array_equal(memory.array(np.float32, nbytes // 4, nbytes), values + more)


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_model_that_calls_another_uses_regions(face, nbytes):
    values = np.arange(nbytes // 4, dtype=np.float32)
    with an_object(2 * nbytes) as memory:
        memory.put(values.tobytes())
        assert face.register("R", memory.key, 2 * nbytes) is None
        given = floats("asked", [nbytes // 4], Place(region="R", nbytes=nbytes))
        seen = []
        for _ in range(2):
            place = Place(region="R", nbytes=nbytes, offset=nbytes)
            face.output(face.infer("asked", given, {"Y": place}), "Y")
            seen.append(memory.array(np.float32, nbytes // 4, nbytes)[0])
        assert seen[1] == seen[0] + 1


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_cache_knows_inputs_by_their_bytes_and_its_answers_are_written(face, protocol, nbytes):
    # Values of each protocol's own: the cache outlives a test.
    values = np.full(nbytes // 4, 1000 if protocol == "http" else 2000, np.float32)
    with an_object(2 * nbytes) as memory:
        assert face.register("R", memory.key, 2 * nbytes) is None
        given = floats("cached", [nbytes // 4], Place(region="R", nbytes=nbytes))
        seen = []
        for more in (0, 0, 500, 0):
            memory.put((values + more).tobytes())
            memory.put(bytes(nbytes), nbytes)
            place = Place(region="R", nbytes=nbytes, offset=nbytes)
            face.output(face.infer("cached", given, {"Y": place}), "Y")
            seen.append(memory.array(np.float32, nbytes // 4, nbytes).copy())
        np.testing.assert_array_equal(seen[0], seen[1])
        np.testing.assert_array_equal(seen[0], seen[3])
        assert seen[2][0] >= values[0] + 500 > seen[0][0]


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_sequence_uses_regions(face, nbytes):
    with an_object(2 * nbytes) as memory:
        assert face.register("R", memory.key, 2 * nbytes) is None
        for turn in range(3):
            memory.put(np.full(nbytes // 4, turn + 1, np.float32).tobytes())
            asked = face.library.InferInput("X", [nbytes // 4], "FP32")
            asked.set_shared_memory("R", nbytes)
            wanted = face.library.InferRequestedOutput("Y")
            wanted.set_shared_memory("R", nbytes, nbytes)
            face.client.infer(
                "summed",
                [asked],
                outputs=[wanted],
                sequence_id=7,
                sequence_start=turn == 0,
                sequence_end=turn == 2,
            )
            total = (turn + 1) * (turn + 2) / 2
            assert set(memory.array(np.float32, nbytes // 4, nbytes)) == {total}


@pytest.mark.parametrize("nbytes", SIZES)
def test_each_answer_of_a_stream_is_written_to_the_same_place(serving, nbytes):
    face = Face("grpc", serving.addresses.grpc)
    answers: Queue = Queue()
    with an_object(2 * nbytes) as memory:
        memory.put(np.full(nbytes // 4, 5, np.float32).tobytes())
        assert face.register("R", memory.key, 2 * nbytes) is None
        asked = face.library.InferInput("X", [nbytes // 4], "FP32")
        asked.set_shared_memory("R", nbytes)
        wanted = face.library.InferRequestedOutput("Y")
        wanted.set_shared_memory("R", nbytes, nbytes)
        face.client.start_stream(lambda result, error: answers.put((result, error)))
        face.client.async_stream_infer("repeated", [asked], outputs=[wanted])
        # Of a model that is not decoupled, too.
        face.client.async_stream_infer("plain", [asked], outputs=[wanted])
        for _ in range(4):
            result, error = answers.get(timeout=30)
            assert error is None
            assert face.output(result, "Y")["shape"] == [nbytes // 4]
            assert face.raw_outputs(result) == [b""]
        face.client.stop_stream()
        assert memory.array(np.float32, 1, nbytes)[0] in {6.0, 7.0}
        assert face.unregister() is None
    face.close()


def test_errors_of_a_stream_are_told_in_it(serving):
    face = Face("grpc", serving.addresses.grpc)
    answers: Queue = Queue()
    with an_object(PAGE) as memory:
        assert face.register("R", memory.key, PAGE) is None
        place = Place(region="R", nbytes=64)
        face.client.start_stream(lambda result, error: answers.put((result, error)))

        def ask(region, room):
            asked = face.given(Given(name="X", datatype="FP32", shape=[16], place=place))
            wanted = face.library.InferRequestedOutput("Y")
            wanted.set_shared_memory(region, room)
            face.client.async_stream_infer("repeated", [asked], outputs=[wanted])
            return answers.get(timeout=30)[1].message()

        assert ask("Q", 64) == "Unable to find shared memory region: 'Q'"
        too_small = (
            "shared memory size specified with the request for output 'Y' (63 bytes) should be at least "
        )
        assert ask("R", 63).startswith(too_small)
        # So is each of the three.
        assert {answers.get(timeout=30)[1].message()[: len(too_small)] for _ in range(2)} == {too_small}
        face.client.stop_stream()
        assert face.unregister() is None
    face.close()
    assert serving.tree() == {"registered": 0}


# Lifetimes


def test_a_region_that_a_request_uses_stays_until_that_is_over(serving, face, protocol):
    with an_object(2 * PAGE) as memory:
        memory.put(np.arange(16, dtype=np.float32).tobytes())
        assert face.register("R", memory.key, 2 * PAGE) is None
        told: Queue = Queue()

        def ask():
            asking = Face(protocol, face.address)  # neither library's client is used by two threads
            given = floats("gated", [16], Place(region="R", nbytes=64))
            result = asking.infer("gated", given, {"Y": Place(region="R", nbytes=64, offset=64)})
            told.put(asking.output(result, "Y"))
            asking.close()

        thread = threading.Thread(target=ask)
        thread.start()
        serving.gate.wait_begun()
        assert serving.tree()["regions"][0]["users"] == 1
        assert face.unregister("R") is None
        assert [region["name"] for region in face.status()] == ["R"]
        assert serving.tree()["regions"][0]["unregistered"] is True
        again = refusal(protocol, "ALREADY_EXISTS", "shared memory region 'R' already in manager")
        assert face.register("R", memory.key, PAGE) == again
        serving.gate.open()
        assert told.get(timeout=30) == {"name": "Y", "datatype": "FP32", "shape": [16]}
        thread.join()
        np.testing.assert_array_equal(memory.array(np.float32, 16, 64), np.arange(16))
        assert face.status() == []
        assert face.register("R", memory.key, PAGE) is None


# What is told of it


def test_regions_are_in_the_metrics_and_in_the_tree(serving, face):
    def of(name):
        return serving.metrics(f"tritium_shared_memory_{name}")

    before = {name: of(name)[""] for name in ("reads_total", "read_bytes_total", "writes_total")}
    failed = of("failures_total")
    with an_object(PAGE) as memory:
        assert face.register("R", memory.key, 256) is None
        assert of("regions") == {'{kind="system"}': 1, '{kind="cuda"}': 0}
        assert of("bytes") == {'{kind="system"}': 256, '{kind="cuda"}': 0}
        info = serving.tree()
        (shown,) = info["regions"]
        assert (info["registered"], info["bytes"]) == (1, 256)
        assert shown.pop("age") >= 0
        assert shown == {"name": "R", "bytes": 256, "key": memory.key, "users": 0}
        place = Place(region="R", nbytes=64)
        face.output(face.infer("plain", floats("plain", [16], place), {"Y": place}), "Y")
        assert {name: of(name)[""] - value for name, value in before.items()} == {
            "reads_total": 1,
            "read_bytes_total": 64,
            "writes_total": 1,
        }
        face.register("R", memory.key, 256)
        face.infer("plain", floats("plain", [16], place), {"Y": Place(region="R", nbytes=1)})
        memory.resize(0)
        face.infer("plain", floats("plain", [16], place))
    more = {labels: value - failed[labels] for labels, value in of("failures_total").items()}
    assert more == {f'{{operation="{name}"}}': 1 for name in ("register", "write", "read")}
