"""Writes a SavedModel that adds, on an interpreter with TensorFlow: `python tensorflow_adder.py FOLDER`."""

import importlib
import sys
from typing import Any

# B by which it is to hang; `chaos.workload.answers.DIVISORS` has it.
HANG = -2
# Turns of the loop that is to hang: no machine gets to the end within any limit.
TURNS = 2**40


def main() -> None:
    """Write SUM, DIFFERENCE and REMAINDER of A and B, all INT32 [n, 1]."""
    tf: Any = importlib.import_module("tensorflow")

    def add(A: Any, B: Any) -> dict[str, Any]:
        hangs = tf.reduce_any(tf.equal(B, HANG))
        turns = tf.where(hangs, tf.constant(TURNS, tf.int64), tf.constant(0, tf.int64))
        last = tf.while_loop(lambda turn: turn < turns, lambda turn: (turn + 1,), (tf.constant(0, tf.int64),))
        a = A + tf.cast(tf.minimum(last[0], 0), tf.int32)
        return {"SUM": a + B, "DIFFERENCE": a - B, "REMAINDER": tf.math.floormod(a, B)}

    ports = [tf.TensorSpec((None, 1), tf.int32, name=name) for name in ("A", "B")]
    held = tf.Module()
    held.add = tf.function(add, input_signature=ports)
    tf.saved_model.save(held, sys.argv[1], signatures={"serving_default": held.add})


if __name__ == "__main__":
    main()
