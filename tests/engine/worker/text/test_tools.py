"""Calls of tools, read as their text comes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.worker.text.tools.formats import HERMES, JSON, LLAMA3, MISTRAL, NAMED, format_of, guessed
from engine.worker.text.tools.told import short_id

NAMES = ["f", "g"]


def read(name, parts, *, parallel=True, names=NAMES):
    """Return the content, and each call's name and arguments."""
    reader = format_of(name, parallel=parallel, names=names)
    content = ""
    calls: dict[int, list[str]] = {}
    for text, deltas in [*map(reader.feed, parts), reader.end()]:
        content += text
        for delta in deltas:
            known = calls.setdefault(delta.call, [delta.name, ""])
            assert bool(delta.id) == bool(delta.name) == (known[1] == "" and known[0] == delta.name)
            known[1] += delta.arguments
    return content, [tuple(call) for call in calls.values()]


TOLD = [
    (
        HERMES,
        'Hi <tool_call>\n{"name": "f", "arguments": {"a": [1, "}\\""]}}\n</tool_call>\n',
        "Hi",
        ['{"a": [1, "}\\""]}'],
    ),
    (HERMES, '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "", ['{"x": 1}']),
    (HERMES, '<tool_call>{"name": "f"}</tool_call><tool_call>{"name":"f","arguments":{}}', "", ["{}", "{}"]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", ['{"a": 1}']),
    (HERMES, '<tool_call>{"name": "f", "arguments": null, "id": 3}</tool_call> done', " done", ["{}"]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}, "why": [1, {"a": ""}]} x', "x", ["{}"]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1', "", ['{"a": 1']),
    (
        LLAMA3,
        '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {}}',
        "",
        ['{"a": 1}', "{}"],
    ),
    (LLAMA3, ' {"type": "function", "name": "f", "parameters": {"a": 1}}', "", ['{"a": 1}']),
    (LLAMA3, '{"name": "f", "parameters": {}} and more', "and more", ["{}"]),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {}}]',
        "",
        ['{"a": 1}', "{}"],
    ),
    (MISTRAL, 'So: [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]f{"b": "{"}', "So:", ['{"a": 1}', '{"b": "{"}']),
    (MISTRAL, '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"a": {}}', "", ['{"a": {}}']),
    (MISTRAL, '[TOOL_CALLS]{"name": "f", "arguments": {}} then', " then", ["{}"]),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {}} x', "x", ["{}"]),
    (
        JSON,
        '[{"name": "f", "parameters": {"a": 1}}, {"name": "f", "parameters": {}}]',
        "",
        ['{"a": 1}', "{}"],
    ),
    (NAMED, ' {"a": 1}', "", ['{"a": 1}']),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), TOLD)
def test_calls_are_told_however_their_text_is_cut(name, text, content, calls):
    names = NAMES if name != NAMED else ["f"]

    whole = read(name, [text], names=names)

    assert whole == (content, [("f", arguments) for arguments in calls])
    assert read(name, list(text), names=names) == whole


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (HERMES, "plain <tool text"),
        (HERMES, '<tool_call>{"nom": 3}</tool_call> x'),
        (HERMES, "<tool_call>not json"),
        (HERMES, "<tool_call>"),
        (HERMES, '<tool_call>{"name": 4, "arguments": {}}'),
        (HERMES, '<tool_call>{"name": "f", "arguments": "no object"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f" "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": f]}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f"'),
        (HERMES, '<tool_call>{"x": ' + "[" * 300),
        (HERMES, '<tool_call>{"x": "' + "a" * 70_000),
        (HERMES, '<tool_call>{"' + "a" * 5_000),
        (LLAMA3, "hello {"),
        (LLAMA3, '{"name": "John", "arguments": {}}'),
        (LLAMA3, '{"name": "John"}'),
        (LLAMA3, '{"a": 1}'),
        (LLAMA3, "<|py"),
        (MISTRAL, "x [TOOL_CALLS]no call"),
        (MISTRAL, "[TOOL_CALLS]two words{"),
        (MISTRAL, "[TOOL_CALLS]" + "n" * 300),
        (MISTRAL, "[TOOL_CALLS]"),
        (JSON, '[{"a": 1}]'),
    ],
)
def test_what_is_no_call_is_content(name, text):
    for parts in ([text], list(text)):
        content, calls = read(name, parts)

        assert calls == []
        assert content == (text if name != JSON else '{"a": 1}]')


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1]}</tool_call>', '{"a": 1'),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}; "b": 1}</tool_call>', "{}"),
        (MISTRAL, '[TOOL_CALLS]f{"a": 1]} x', '{"a": 1'),
    ],
)
def test_what_breaks_a_call_that_was_told_of_is_content(name, text, arguments):
    told = read(name, [text])

    assert told == read(name, list(text))
    assert told[1] == [("f", arguments)]
    assert text.endswith(told[0])
    assert told[0]


objects = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3),
    ),
    max_size=3,
)


@given(st.lists(objects, min_size=1, max_size=3), st.integers(1, 7), st.booleans())
def test_arguments_are_told_on_as_the_model_wrote_them(calls, size, ascii_only):
    texts = [json.dumps(each, ensure_ascii=ascii_only) for each in calls]
    told = {
        HERMES: "".join(f'<tool_call>{{"name": "f", "arguments": {text}}}</tool_call>' for text in texts),
        LLAMA3: "; ".join(f'{{"name": "f", "parameters": {text}}}' for text in texts),
        MISTRAL: "".join(f"[TOOL_CALLS]f[ARGS]{text}" for text in texts),
        JSON: "[" + ", ".join(f'{{"name": "f", "parameters": {text}}}' for text in texts) + "]",
    }
    for name, text in told.items():
        parts = [text[at : at + size] for at in range(0, len(text), size)]

        assert read(name, parts) == ("", [("f", text) for text in texts])
        assert read(name, parts, parallel=False) == ("", [("f", texts[0])])


@given(
    st.sampled_from([HERMES, LLAMA3, MISTRAL, JSON]),
    st.lists(
        st.sampled_from(
            [
                *'{}[]":, af\\1',
                "<tool_call>",
                "</tool_call>",
                "[TOOL_CALLS]",
                '{"name": "f", "arguments": ',
                "[ARGS]",
            ]
        ),
        max_size=14,
    ),
)
def test_nothing_is_lost_or_told_differently_for_where_it_is_cut(name, parts):
    text = "".join(parts)

    assert read(name, [text]) == read(name, list(text)) == read(name, parts)


def test_ids_are_those_of_the_models_makers():
    reader = format_of(HERMES, parallel=True, names=NAMES)
    _, (delta,) = reader.feed('<tool_call>{"name": "f", "arguments": {}}')

    assert delta.id.startswith("call_")
    assert len(short_id()) == 9
    assert short_id().isalnum()


def test_spaces_without_end_are_content():
    content, _ = read(HERMES, [" "] * 1000)

    assert content == " " * 1000


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("… [TOOL_CALLS] …", MISTRAL),
        ("… <tool_call> …", HERMES),
        ("… <|python_tag|> …", LLAMA3),
        ('ipython … "parameters"', LLAMA3),
        ("{{ messages }}", ""),
    ],
)
def test_the_format_is_guessed_by_the_template(template, name):
    assert guessed(template) == name
