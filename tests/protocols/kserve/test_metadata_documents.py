import json

from actors.values.datatypes import DataType
from actors.values.interfaces import IndexEntry, ServerIdentity
from protocols.kserve import metadata
from tests.protocols.fakes import make_spec


def test_server_metadata_has_name_version_and_extensions():
    identity = ServerIdentity(name="triton", version="1.2", extensions=("a", "b"))
    assert json.loads(metadata.server_metadata(identity)) == {
        "name": "triton",
        "version": "1.2",
        "extensions": ["a", "b"],
    }


def test_model_metadata_shows_the_batch_dimension():
    spec = make_spec("add", inputs=[("A", DataType.FP32, (16,))], outputs=[("S", DataType.BYTES, (-1, 2))])
    assert json.loads(metadata.model_metadata(spec, [1, 3])) == {
        "name": "add",
        "versions": ["1", "3"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "A", "datatype": "FP32", "shape": [-1, 16]}],
        "outputs": [{"name": "S", "datatype": "BYTES", "shape": [-1, -1, 2]}],
    }


def test_a_model_that_does_not_batch_shows_its_dims_alone():
    spec = make_spec("add", inputs=[("A", DataType.BF16, ())], outputs=[], max_batch_size=0)
    document = json.loads(metadata.model_metadata(spec, []))
    assert document["inputs"] == [{"name": "A", "datatype": "BF16", "shape": []}]
    assert document["versions"] == []


def test_the_index_leaves_out_what_is_not_known():
    entries = [
        IndexEntry(name="a", version=1, state="READY"),
        IndexEntry(name="b", version=2, state="UNAVAILABLE", reason="why"),
        IndexEntry(name="c"),
    ]
    assert json.loads(metadata.repository_index(entries)) == [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "b", "version": "2", "state": "UNAVAILABLE", "reason": "why"},
        {"name": "c"},
    ]


def test_the_index_tells_how_far_a_load_has_come():
    progress = {"phase": "loading", "seconds": 1.5, "attempt": 2}
    entries = [IndexEntry(name="a", version=1, state="LOADING", progress=progress, essential=False)]
    assert json.loads(metadata.repository_index(entries)) == [
        {"name": "a", "version": "1", "state": "LOADING", "progress": progress}
    ]


def test_statistics_stand_in_one_list():
    assert json.loads(metadata.statistics([{"name": "a"}, {"name": "b"}])) == {
        "model_stats": [{"name": "a"}, {"name": "b"}]
    }


def test_errors_are_a_message_and_nothing_else():
    assert metadata.error('a "b" \udcff') == b'{"error":"a \\"b\\" \xff"}'
