"""The refusal of a prompt that is too long, which server, text worker and engines may each find out.

It is part of the workers' import closure, so it runs on Python 3.9.
"""

from __future__ import annotations

from typing import Final

CONTEXT_TEXT: Final = "maximum context length is"
"""Part of the text of `too_long`, and of no other."""


def too_long(context: int, prompt: str) -> str:
    """Return vLLM's refusal of a prompt (contract, llm.md section 2.1).

    `context`: how many tokens prompt and answer may have; `prompt`: how many this one has.
    """
    return (
        f"This model's {CONTEXT_TEXT} {context} tokens. However, your prompt contains {prompt} input tokens,"
        " which exceeds this limit even without any output tokens. Please reduce the length of the input"
        " prompt."
    )
