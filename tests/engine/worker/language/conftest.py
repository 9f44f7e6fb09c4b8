"""The tiny model, made once."""

import pytest

from tests.support.llm.engines import tiny_folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The folder of a model that knows one page by heart."""
    pytest.importorskip("transformers", reason="needs the package 'transformers' (extra llm)")
    return tiny_folder(tmp_path_factory)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """As in a worker with one thread; more of them only wait for each other on a machine that is busy."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokenizer(tiny_model):
    """Its tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)
