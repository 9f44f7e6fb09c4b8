"""Writes models of TensorFlow, on an interpreter that has it: `python tensorflow_models.py REPOSITORY`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Write `scores` (batches), `text` (bytes), `running` (a sequence's sum) and `graph` (a GraphDef)."""
    import tensorflow

    tf: Any = tensorflow
    repository = Path(sys.argv[1])

    def save(name: str, function: Any, *specs: Any) -> None:
        held = tf.Module()
        held.run = tf.function(function, input_signature=specs)
        folder = str(repository / name / "1/model.savedmodel")
        tf.saved_model.save(held, folder, signatures={"serving_default": held.run})

    rows = tf.TensorSpec((None, 4), tf.float32, name="features")
    save("scores", lambda features: {"scores": features * 2 + 1}, rows)
    words = tf.TensorSpec((None, None), tf.string, name="words")
    save("text", lambda words: {"joined": tf.strings.reduce_join(words, 1, keepdims=True)}, words)
    one = tf.TensorSpec((None, 1), tf.float32)
    save(
        "running",
        lambda x, start, before: {"sum": (1 - start) * before + x, "after": (1 - start) * before + x},
        *(tf.TensorSpec(one.shape, one.dtype, name=name) for name in ("x", "start", "before")),
    )
    graph = tf.Graph()
    with graph.as_default():
        tf.nn.relu(tf.compat.v1.placeholder(tf.float32, [None, 4], name="x"), name="y")
    version = repository / "graph/1"
    version.mkdir(parents=True)
    (version / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())


if __name__ == "__main__":
    main()
