"""What ModelMesh's adapter for Triton asks of a server, over grpcio.

It waits for the server, unloads what is there, and learns the version. For each model it makes a folder in a
repository of its own, with links to the files that its puller brought and a configuration without a name.
"""

import grpc
import numpy as np
import pytest

from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.support.kserve_runtime import MANIFESTS, document
from tests.support.operators import DOUBLE, DOUBLE_CONFIG, serving

pytestmark = [pytest.mark.slow, pytest.mark.system]

SERVICE = "/inference.GRPCInferenceService/"


class Adapter:
    """Its calls."""

    def __init__(self, channel, folder):
        self._channel = channel
        self._pulled = folder / "models"
        self._repository = folder / "_triton_models"

    def call(self, method, request, answer):
        made = self._channel.unary_unary(
            SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return made(request, timeout=30)

    def ready_models(self):
        index = self.call(
            "RepositoryIndex", pb.RepositoryIndexRequest(ready=True), pb.RepositoryIndexResponse
        )
        return [model.name for model in index.models]

    def begin(self):
        """Return the server's version once it has no models."""
        assert self.call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse).ready
        for name in self.ready_models():
            self.unload(name)
        return self.call("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse).version

    def lay_out(self, name, code):
        """Put a model where the puller does, and links to it where the server looks."""
        version = self._pulled / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(code)
        folder = self._repository / name
        folder.mkdir()
        (folder / "config.pbtxt").write_text(DOUBLE_CONFIG)
        (folder / "1").symlink_to(version)

    def load(self, name):
        self.call(
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(model_name=name),
            pb.RepositoryModelLoadResponse,
        )

    def unload(self, name):
        self.call(
            "RepositoryModelUnload",
            pb.RepositoryModelUnloadRequest(model_name=name),
            pb.RepositoryModelUnloadResponse,
        )

    def doubled(self, name):
        request = pb.ModelInferRequest(model_name=name)
        request.inputs.add(name="X", datatype="FP32", shape=[2])
        request.raw_input_contents.append(np.array([1, 2], np.float32).tobytes())
        answer = self.call("ModelInfer", request, pb.ModelInferResponse)
        return np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()


def flags(folder):
    """Return the flags of the runtime, for a repository in another place."""
    [container] = document(MANIFESTS / "modelmesh-serving-runtime.yaml")["spec"]["containers"]
    words = container["args"][1].split("exec tritonserver")[1].split()
    repository = "--model-repository=/models/_triton_models"
    assert repository in words
    kept = [word for word in words if word != repository]
    return [f"--model-repository={folder / '_triton_models'}", *kept, "--grpc-port=0", "--http-port=0"]


@pytest.fixture
def adapter(tmp_path):
    (tmp_path / "_triton_models").mkdir()
    with serving(tmp_path / "server", *flags(tmp_path)) as server:
        server.wait_ready()
        with grpc.insecure_channel(server.address("GRPCInferenceService")) as channel:
            yield Adapter(channel, tmp_path)


def test_models_come_and_go(adapter):
    assert adapter.begin()
    # It gives models names of its own, with the schema's hash in it.
    name = "double__isvc-5c1d9a0f3e"
    adapter.lay_out(name, DOUBLE)
    adapter.load(name)
    assert adapter.ready_models() == [name]
    assert adapter.doubled(name) == [2.0, 4.0]
    adapter.unload(name)
    assert adapter.ready_models() == []


def test_a_restarted_adapter_begins_with_an_empty_server(adapter):
    adapter.begin()
    for name in ("one", "two"):
        adapter.lay_out(name, DOUBLE)
        adapter.load(name)
    assert sorted(adapter.ready_models()) == ["one", "two"]
    adapter.begin()
    assert adapter.ready_models() == []


def test_a_failed_load_is_told_and_the_server_stays_ready(adapter):
    adapter.begin()
    adapter.lay_out("broken", "raise RuntimeError('no weights')\n")
    with pytest.raises(grpc.RpcError, match="no weights"):
        adapter.load("broken")
    assert adapter.begin()


def test_an_unload_of_what_is_not_there_is_ok(adapter):
    """As in Triton. The adapter takes NOT_FOUND for done, too."""
    adapter.begin()
    adapter.unload("unknown")
    assert adapter.ready_models() == []


def test_a_load_of_what_is_not_there_is_told(adapter):
    adapter.begin()
    with pytest.raises(grpc.RpcError, match="unknown"):
        adapter.load("unknown")
