"""Writer: the tiny language model of `examples/llm`, which knows one page by heart."""

NEEDS = {"transformers": "pip install -e '.[llm]'", "torch": "pip install -e '.[llm]'"}


def make(repository, say):
    """Train it."""
    say("training, some 20 s of one core …")
    from examples.llm import tiny_model

    tiny_model.make(repository / "writer" / "1")
    return "a language model of 0.13 million weights; it knows its page by heart"
