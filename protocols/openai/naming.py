"""What a client means by the name of a model: a language model, or an adapter of one.

An adapter goes by its own name, as in vLLM, or by `<model><separator><adapter>`, as in Triton's frontend with
`--lora-separator`. A model's name goes before an adapter's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from actors.values.errors import InvalidArgument
from actors.values.generation.facts import LanguageFacts, Languages
from protocols.openai.faults import NoLanguageModel, UnknownModel

_SHOWN = 100


class Meant(NamedTuple):
    """The language model that is meant, and perhaps one of its adapters."""

    model: str
    facts: LanguageFacts
    adapter: str = ""


def unknown(name: str) -> UnknownModel:
    """Return the error for a name that nothing has."""
    return UnknownModel(f"Unknown model: {name[:_SHOWN]}")


def no_language_model(name: str) -> NoLanguageModel:
    """Return the error for a model that makes no text."""
    shown = name[:_SHOWN]
    return NoLanguageModel(
        f"Model '{shown}' is no language model: ask for it over the v2 API, at /v2/models/{shown}/infer"
    )


def find(name: str, languages: Languages, separator: str) -> Meant | None:
    """Return what `name` means; None where it is neither a language model nor an adapter.

    Raises UnknownModel for an adapter that its model does not have.
    """
    facts = languages.facts(name)
    if facts is not None:
        return Meant(name, facts)
    if separator:
        model, found, adapter = name.partition(separator)
        facts = languages.facts(model) if found else None
        if facts is None:
            return None
        if adapter not in facts.adapters:
            raise UnknownModel(f"Unknown LoRA: {adapter[:_SHOWN]}; for model: {model[:_SHOWN]}")
        return Meant(model, facts, adapter)
    for model in languages.names():
        facts = languages.facts(model)
        if facts is not None and name in facts.adapters:
            return Meant(model, facts, name)
    return None


def only_one(languages: Languages) -> Meant:
    """Return the language model that is meant without a name.

    Raises InvalidArgument if it is not the only one.
    """
    names = languages.names()
    facts = languages.facts(names[0]) if len(names) == 1 else None
    if facts is None:
        raise InvalidArgument(f"'model' is missing: there are {', '.join(names) or 'no language models'}")
    return Meant(names[0], facts)


def adapters(model: str, facts: LanguageFacts, separator: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a model's adapters as clients ask for them, and what each was loaded from."""
    for name, root in facts.adapters.items():
        yield f"{model}{separator}{name}" if separator else name, root
