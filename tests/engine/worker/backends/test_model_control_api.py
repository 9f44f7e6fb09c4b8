"""`load_model`, `unload_model` and `is_model_ready` as a Python model calls them."""

import pytest

from actors.values.errors import InvalidArgument, NotFound
from engine.worker.backends.python import triton_python_backend_utils as pb_utils
from engine.worker.backends.python.host import Host, attach
from tests.support.calls_double import LocalCalls

WHERE = "Failed to process the request for model 'model_0_0', message: "


class Repository:
    """Answers as the server does, and remembers what it was asked."""

    def __init__(self):
        self.asked = []
        self.answer = {}

    def __call__(self, *question):
        self.asked.append(question)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def repository():
    """The repository that a model of this thread reaches."""
    made = Repository()
    calls = LocalCalls(subjects=dict.fromkeys(("model.load", "model.unload", "model.ready"), made))
    attach(Host(".", lambda level, message: None, instance_name="model_0_0", calls=calls))
    return made


def test_a_model_is_loaded_by_its_name(repository):
    assert pb_utils.load_model("other") is None
    assert repository.asked == [({"name": "other"}, {})]


def test_a_configuration_and_files_go_along(repository):
    files = {"file:1/model.onnx": b"\x00\xff", "file:labels.txt": bytearray(b"a")}
    pb_utils.load_model(model_name="other", config="{}", files=files)
    assert repository.asked == [
        ({"name": "other", "config": "{}"}, {"file:1/model.onnx": b"\x00\xff", "file:labels.txt": b"a"})
    ]


def test_files_must_be_a_dictionary(repository):
    with pytest.raises(pb_utils.TritonModelException) as caught:
        pb_utils.load_model("other", "{}", [b"content"])
    assert str(caught.value) == (
        "failed to load model 'other', files should be a dictionary of file paths and file contents"
    )
    assert not repository.asked


@pytest.mark.usefixtures("repository")
def test_of_paths_and_contents():
    with pytest.raises(pb_utils.TritonModelException, match="got str to str, which should be str to bytes"):
        pb_utils.load_model("other", "{}", {"file:1/model.py": "text"})


def test_a_failed_load_says_what_the_server_says(repository):
    repository.answer = InvalidArgument("no such platform")
    with pytest.raises(pb_utils.TritonModelException) as caught:
        pb_utils.load_model("other")
    assert str(caught.value) == f"Failed to load model: {WHERE}no such platform"


def test_a_model_is_unloaded_with_what_it_alone_is_made_of(repository):
    pb_utils.unload_model("other")
    pb_utils.unload_model("other", True)
    assert [body["unload_dependents"] for body, *_ in repository.asked] == [False, True]
    repository.answer = NotFound("gone")
    with pytest.raises(pb_utils.TritonModelException) as caught:
        pb_utils.unload_model("other")
    assert str(caught.value) == f"Failed to unload model: {WHERE}gone"


def test_readiness_is_a_boolean(repository):
    for ready in (True, False):
        repository.answer = {"ready": ready}
        assert pb_utils.is_model_ready("other", model_version="2") is ready
    assert repository.asked[0][0] == {"name": "other", "version": "2"}


def test_of_an_unknown_model_there_is_none(repository):
    repository.answer = NotFound("Request for unknown model: 'other' is not found")
    with pytest.raises(pb_utils.TritonModelException) as caught:
        pb_utils.is_model_ready("other")
    assert str(caught.value) == (
        f"Failed to check model readiness: {WHERE}Request for unknown model: 'other' is not found"
    )


@pytest.mark.parametrize("phase", ["auto_complete_config", "finalize"])
@pytest.mark.parametrize("function", ["load_model", "unload_model", "is_model_ready"])
def test_some_methods_cannot_reach_models(phase, function):
    attach(Host(".", lambda level, message: None, calls=LocalCalls(), phase=phase))
    with pytest.raises(pb_utils.TritonModelException, match=f"models can't be reached from {phase}"):
        getattr(pb_utils, function)("other")
