"""The page of the OpenAI API's fields: each, what becomes of it, and the test that says so."""

from __future__ import annotations

import json
from typing import Final

from protocols.openai.asking import Kind
from tests.house.graph import ROOT
from tests.protocols.openai.cases import CASES, TABLES, Case

PAGE: Final = ROOT / "docs" / "openai_fields.md"

_INTRODUCTION: Final = """\
# Fields of the OpenAI API

This page is written by `python -m tests.house.reference` from `protocols/openai/fields.py` and from the
tests' cases in `tests/protocols/openai/cases.py`. [openai.md](openai.md) tells of the API.

- **read**: it does what it says.
- **taken**: it changes nothing in an answer, here as elsewhere.
- **refused**: it would change the answer, and is not supported: status 400, with `param` and the code
  `unsupported_field`. `null`, and the values that are named, are taken.

Any other field is ignored, and the answer's header `X-Tritium-Ignored-Fields` names it. The last columns
name the case of `tests/protocols/openai/test_openai_reading.py` that proves a field, and how many
values it has refused.
"""
_PATHS: Final = {
    Kind.CHAT: "/v1/chat/completions",
    Kind.COMPLETIONS: "/v1/completions",
    Kind.EMBEDDINGS: "/v1/embeddings",
    Kind.TOKENIZE: "/tokenize",
    Kind.DETOKENIZE: "/detokenize",
}


def page() -> str:
    """Return the page."""
    return _INTRODUCTION + "".join(map(_table, Kind))


def _table(kind: Kind) -> str:
    cases = {case.field: case for case in CASES[kind]}
    rows = [
        f"| `{name}` | {field.use.name.lower()} | {_about(name, kind)} | {_test(kind, cases[name])} |\n"
        for name, field in sorted(TABLES[kind].items(), key=lambda each: (each[1].use.name, each[0]))
    ]
    return (
        f"\n## {_PATHS[kind]}\n\n| field | | meaning, or what to use | test | bad values"
        " |\n|---|---|---|---|---|\n" + "".join(rows)
    )


def _about(name: str, kind: Kind) -> str:
    field = TABLES[kind][name]
    harmless = ", ".join(f"`{json.dumps(value)}`" for value in field.harmless)
    return field.about + (f"; taken: {harmless}" if harmless else "")


def _test(kind: Kind, case: Case) -> str:
    return f"`{kind.value}-{case.field}` | {len(case.bad)}"
