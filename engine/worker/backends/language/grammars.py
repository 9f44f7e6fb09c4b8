"""Grammars that an engine's tokens keep to, by llguidance.

A grammar is compiled where a request is checked, on another thread than the engine's, and kept for requests
that want the same. llguidance bounds what compiling and each step may take; `_LONGEST` bounds the text.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from actors.values.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_LONGEST = 256 * 1024  # characters of a grammar
_KEPT = 64  # compiled grammars

_MOST_REPEATS = 10_000
"""Of a counted repeat. All streams wait for the first step of a grammar; `a{1000000000}` took 0.4 s."""

_REPEATS = re.compile(r"(?<!\\)\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")

KINDS = ("json", "json_object", "regex", "choice", "grammar")


class Grammars:
    """Compiles grammars for one tokenizer."""

    def __init__(
        self, tokenizer: Any, vocabulary: int, eos: Iterable[int], *, free_whitespace: bool = False
    ) -> None:
        """`tokenizer` is a fast one of transformers; `eos` are the ids that end a text.

        Raises ValueError if it is none, and ImportError without llguidance. With `free_whitespace` JSON may
        have any blanks between its parts; small models then say nothing else.
        """
        import llguidance.hf

        self._matcher = llguidance.LLMatcher
        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer, n_vocab=vocabulary, eos_token=sorted(eos))
        self._options = {"whitespace_flexible": free_whitespace}
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def matcher(self, grammar: Mapping[str, Any]) -> Any:
        """Return a new `LLMatcher` at its beginning. Raises InvalidArgument with llguidance's text."""
        kind, value = check_grammar(grammar)
        key = json.dumps(grammar, sort_keys=True)
        with self._lock:
            known = self._compiled.get(key)
            if known is not None:
                self._compiled.move_to_end(key)
                return known.deep_copy()
        made = self._made(kind, value)
        with self._lock:
            self._compiled[key] = made
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return made.deep_copy()

    def _made(self, kind: str, value: Any) -> Any:
        try:
            text = self._text(kind, value)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidArgument(f"the grammar ({kind}) can't be read: {error}") from error
        matcher = self._matcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise InvalidArgument(f"the grammar ({kind}) is refused: {_cut(matcher.get_error())}")
        return matcher

    def _text(self, kind: str, value: Any) -> str:
        if kind == "json_object":
            value = {"type": "object"}
        if kind in ("json", "json_object"):
            schema = value if isinstance(value, str) else json.dumps(value)
            return str(self._matcher.grammar_from_json_schema(schema, defaults=self._options))
        if kind == "regex":
            return str(self._matcher.grammar_from_regex(value))
        if kind == "choice":
            return str(self._matcher.grammar_from_lark("start: " + " | ".join(map(_quoted, value))))
        return _of_grammar(self._matcher, value)


def check_grammar(grammar: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the kind of a grammar, and what it says. Raises InvalidArgument; nothing is compiled."""
    length = len(json.dumps(grammar))
    if length > _LONGEST:
        raise InvalidArgument(f"the grammar has {length} characters; the most is {_LONGEST}")
    kinds = [kind for kind in KINDS if grammar.get(kind) not in (None, False)]
    if len(kinds) != 1 or len(grammar) != 1:
        raise InvalidArgument(f"a grammar has one of {', '.join(KINDS)}, got {', '.join(grammar) or 'none'}")
    kind, value = kinds[0], grammar[kinds[0]]
    if kind in ("regex", "grammar") and not isinstance(value, str):
        raise InvalidArgument(f"the grammar's '{kind}' must be a text")
    if kind == "choice" and not _are_texts(value):
        raise InvalidArgument("the grammar's 'choice' must be a list of texts, none of them empty")
    for text in _expressions(kind, value):
        _check_repeats(text)
    return kind, value


def _expressions(kind: str, value: Any) -> Iterator[str]:
    """Yield the texts of a grammar that have regular expressions."""
    if kind in ("regex", "grammar"):
        yield value
    elif kind == "json" and isinstance(value, (dict, list)):
        waiting: list[Any] = [value]
        while waiting:
            found = waiting.pop()
            if isinstance(found, dict):
                waiting += found.values()
                patterns = [found.get("pattern"), *(found.get("patternProperties") or ())]
                yield from (each for each in patterns if isinstance(each, str))
            elif isinstance(found, list):
                waiting += found


def _check_repeats(text: str) -> None:
    for found in _REPEATS.finditer(text):
        if any(count and (len(count) > 6 or int(count) > _MOST_REPEATS) for count in found.groups()):
            raise InvalidArgument(
                f"the grammar repeats something {found[0][:40]} times; counted repeats may be of"
                f" {_MOST_REPEATS}"
            )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) and each for each in value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _of_grammar(matcher: Any, text: str) -> str:
    """Take Lark, and the form of llama.cpp (`root ::= …`)."""
    if "::=" in text:
        from llguidance.gbnf_to_lark import gbnf_to_lark

        text = gbnf_to_lark(text)
    return str(matcher.grammar_from_lark(text))


def _cut(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines)[:500]
