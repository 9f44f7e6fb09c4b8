"""Writes the models of `tests.support.kits`, with TensorFlow: `tensorflow_kit.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

NUMBERS = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
           "half", "float32", "float64")  # fmt: skip


def main() -> None:
    """Write `network`, `add_sub`, `select`, and `identity_<type>` for each type and rank."""
    import tensorflow

    tf: Any = tensorflow
    folder = Path(sys.argv[1])

    def save(name: str, function: Any, /, **ports: tuple[Any, ...]) -> None:
        held = tf.Module()
        held.weights = tf.Variable(
            [[(row * 3 + at) * 7 % 5 - 2 for at in range(3)] for row in range(4)], dtype=tf.float32
        )
        specs = [tf.TensorSpec(shape, kind, name=port) for port, (kind, *shape) in ports.items()]
        held.run = tf.function(lambda *given: function(held, *given), input_signature=specs)
        tf.saved_model.save(
            held, str(folder / name / "model.savedmodel"), signatures={"serving_default": held.run}
        )

    row = (tf.float32, None, 3)
    save("network", lambda held, x: {"SCORE": tf.nn.relu(x @ (held.weights / 4))}, ROW=(tf.float32, None, 4))
    save("add_sub", lambda _, a, b: {"SUM": a + b, "DIFFERENCE": a - b}, A=row, B=row)
    save("select", lambda _, a, i: {"Y": tf.gather(a, i, batch_dims=1)}, A=row, I=(tf.int64, None, 1))
    for kind in NUMBERS:
        save(
            f"identity_{kind}_3", lambda _, x: {"Y": tf.identity(x)}, X=(getattr(tf, kind), None, None, None)
        )
    save("identity_string_2", lambda _, x: {"Y": tf.identity(x)}, X=(tf.string, None, None))


if __name__ == "__main__":
    main()
