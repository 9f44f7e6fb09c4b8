"""The tiny language model of `examples/llm/tiny_model.py`, by the names that tests use."""

from examples.llm.tiny_model import (
    ANSWER,
    CALL,
    CONTEXT,
    PAGE,
    QUESTION,
    RESULT,
    SPECIAL,
    TOOLS,
    after,
    lines,
    make,
)

__all__ = [
    "ANSWER",
    "CALL",
    "CONTEXT",
    "PAGE",
    "QUESTION",
    "RESULT",
    "SPECIAL",
    "TOOLS",
    "after",
    "lines",
    "make",
]
