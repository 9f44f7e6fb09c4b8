"""The parts of the question-answering example, without its weights: graph, corpus and configurations."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from examples.rag import minilm, passages
from tests.support.encoders import Encoder, random_weights

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "examples" / "rag" / "models"


def session(weights):
    model = minilm.onnx_model(weights).SerializeToString()
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def embed(model, ids, mask=None):
    inputs = {"INPUT_IDS": ids, "ATTENTION_MASK": np.ones_like(ids) if mask is None else mask}
    return model.run(["EMBEDDING"], inputs)[0]


@pytest.fixture(scope="module")
def weights():
    return random_weights(hidden=48, layers=2, vocabulary=40, positions=24)


def test_the_graph_computes_what_torchs_encoder_computes(weights):
    ids = np.random.default_rng(3).integers(0, 40, (5, 17))
    found = embed(session(weights), ids)
    np.testing.assert_allclose(found, Encoder(weights).embed(ids), rtol=0, atol=1e-5)


def test_padding_changes_no_embedding(weights):
    model = session(weights)
    ids = np.random.default_rng(4).integers(0, 40, (1, 9))
    padded = np.concatenate([ids, np.full((1, 15), 7)], axis=1)
    mask = (np.arange(24) < 9).astype(np.int64)[None]
    np.testing.assert_allclose(embed(model, padded, mask), embed(model, ids), rtol=0, atol=1e-6)


def test_safetensors_are_read(tmp_path):
    values = np.arange(6, dtype="<f4")
    header = b'{"__metadata__": {"format": "pt"}, "a.b": {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]}, '
    header += b'"ids": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}'
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8) + values.tobytes())
    [(name, array)] = minilm.read_safetensors(file).items()
    assert (name, array.tolist()) == ("a.b", [[0, 1, 2], [3, 4, 5]])


PAGE = """# Cats

Cats *sleep* a lot, and [eat](food.md)
**less**.

They purr.

```
# no heading
```

## How to feed `them`

- Open a tin.
- Stand
  back.

| food | how much | notes |
|---|---|---|
| fish | one | – |
| `a\\|b` | two | never |

That is all.
"""


def cut(markdown):
    return [(each.source, each.title, each.text) for each in passages.passages("cats.md", markdown)]


def test_pages_are_cut_into_paragraphs_items_and_rows():
    below = ("cats.md#how-to-feed-them", "Cats › How to feed `them`")
    assert cut(PAGE) == [
        ("cats.md", "Cats", "Cats sleep a lot, and eat less. They purr."),
        (*below, "Open a tin. Stand back."),
        (*below, "fish; how much: one"),
        (*below, "`a\\|b`; how much: two; notes: never"),
        (*below, "That is all."),
    ]


def test_long_paragraphs_are_cut_between_sentences():
    sentence = "A sentence of eight words is not long. "
    texts = [text for _, _, text in cut("# Page\n\n" + sentence * 30)]
    assert all(len(text.split()) <= passages.LONGEST for text in texts)
    assert " ".join(texts) == (sentence * 30).strip()
    assert all(text.endswith("long.") for text in texts)


def test_the_configurations_fit_each_other_and_the_model(tmp_path):
    shutil.copytree(MODELS, tmp_path / "models", ignore=shutil.ignore_patterns("model.onnx", "corpus.npz"))
    model = minilm.onnx_model(random_weights(hidden=384, layers=1, vocabulary=40, positions=24))
    onnx.save(model, tmp_path / "models" / "embedding" / "1" / "model.onnx")
    done = subprocess.run(
        [sys.executable, "-m", "engine", "check", tmp_path / "models"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("rag", "tokenizer", "embedding", "retrieval", "assemble"):
        assert f"✓ {name}" in done.stdout
