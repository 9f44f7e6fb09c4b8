"""What `benchmarks.tails` sends and serves is what its tables say."""

import json

from actors.values.tensors import pack_bytes
from benchmarks.tails import messages, texts, write_repository
from protocols.kserve.proto import grpc_service_pb2 as pb


def test_the_same_strings_come_in_each_way():
    elements, asked = texts(1000), messages(1000)
    assert {len(element) for element in elements} >= set(range(2, 8))
    packed = pack_bytes(elements)
    for name in ("HTTP, JSON", "HTTP, JSON with spaces"):
        (entry,) = json.loads(asked[name].body())["inputs"]
        assert entry["data"] == [element.decode() for element in elements]
    binary = asked["HTTP, binary"]
    ((_, size),) = binary.headers
    assert binary.body()[int(size) :] == packed
    raw = pb.ModelInferRequest.FromString(asked["gRPC, raw"].body())
    assert list(raw.raw_input_contents) == [packed]
    typed = pb.ModelInferRequest.FromString(asked["gRPC, typed contents"].body())
    assert list(typed.inputs[0].contents.bytes_contents) == elements


def test_a_repository_has_the_model_that_is_asked_and_as_many_others(tmp_path):
    write_repository(tmp_path, loaded=2, dormant=3)
    configs = {path.parent.name: path.read_text() for path in tmp_path.glob("*/config.pbtxt")}
    assert sorted(configs) == ["dormant_0", "dormant_1", "dormant_2", "loaded_0", "loaded_1", "onnx_add_sub"]
    assert all(("on_demand" in text) == name.startswith("dormant") for name, text in configs.items())
    assert all(("thread" in text) == name.startswith("loaded") for name, text in configs.items())
