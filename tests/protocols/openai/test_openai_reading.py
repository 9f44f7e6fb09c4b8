"""Bodies of the OpenAI API as asks: every known field, combinations, and what no client should send."""

import json
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.seams.steps import at_once
from actors.values.generation.asking import Ask
from actors.values.generation.facts import BadAsk
from actors.wire.text_frames import pack_ask, unpack_ask
from protocols.openai.asking import AskedFor, Defaults, Kind, is_request_id, read
from protocols.openai.checking import Members
from protocols.openai.fields import Use
from protocols.openai.messages import read_tools
from protocols.openai.sampling import read_sampling
from tests.protocols.openai.cases import CASES, PLAIN, TABLES, TOOL


def asked(kind, **fields):
    return at_once(read(kind, {**PLAIN[kind], **fields}, Defaults()))


def refusal(kind, **fields):
    with pytest.raises(BadAsk) as error:
        asked(kind, **fields)
    assert error.value.message.isprintable()
    assert len(error.value.message) < 600
    return error.value


def every(wanted):
    return [
        pytest.param(kind, case, id=f"{kind.value}-{case.field}")
        for kind, cases in CASES.items()
        for case in cases
        if wanted(case)
    ]


@pytest.mark.parametrize("kind", Kind)
def test_every_known_field_has_a_case(kind):
    assert sorted(case.field for case in CASES[kind]) == sorted(TABLES[kind])


@pytest.mark.parametrize(("kind", "case"), every(lambda case: case.gives))
def test_a_field_is_read(kind, case):
    found = asked(kind, **{**case.beside, case.field: case.value})
    assert case.gives(found) == case.becomes
    assert found.ignored == ()
    # What goes to the text worker is JSON and bytes, and says the same there.
    packed, body = pack_ask(found.ask.document())
    told, _ = unpack_ask(json.loads(json.dumps(packed)), body)
    assert Ask.of(told).document().keys() == found.ask.document().keys()
    assert [*map(list, told["prompts"])] == [*map(list, found.ask.prompts)]


@pytest.mark.parametrize(("kind", "case"), every(lambda case: case.bad))
def test_a_bad_value_is_refused_by_name(kind, case):
    for value in case.bad:
        if value is not None:
            error = refusal(kind, **{**case.beside, case.field: value})
            assert error.param.partition("[")[0].partition(".")[0] == case.field, value
            assert error.reason


@pytest.mark.parametrize(("kind", "case"), every(lambda case: case.gives is None))
def test_a_field_that_would_change_the_answer_is_refused_unless_it_changes_nothing(kind, case):
    assert TABLES[kind][case.field].use is Use.REFUSED
    assert asked(kind, **{case.field: case.value}).ask == asked(kind).ask
    assert asked(kind, **{case.field: None}).ask == asked(kind).ask
    assert refusal(kind, **{case.field: case.bad[0]}).reason == "unsupported_field"


def test_null_is_as_good_as_nothing():
    for kind, table in TABLES.items():
        nothing = dict.fromkeys(name for name in table if name not in PLAIN[kind])
        assert asked(kind, **nothing) == asked(kind)


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETIONS, Kind.EMBEDDINGS])
def test_a_request_names_a_model_and_has_a_prompt(kind):
    for name in PLAIN[kind]:
        error = refusal(kind, **{name: None})
        assert error.param == name
    with pytest.raises(BadAsk, match="has to be a JSON object, not an array of 0"):
        at_once(read(kind, [], Defaults()))


def test_nothing_is_said_unless_it_is_said():
    plain = asked(Kind.CHAT)
    assert plain.ask.sampling.max_tokens is None
    assert (plain.choices, plain.deadline, plain.logprobs, plain.ask.tool_choice) == (1, 0, None, "none")
    given_default = at_once(read(Kind.CHAT, dict(PLAIN[Kind.CHAT]), Defaults(max_tokens=16)))
    assert given_default.ask.sampling.max_tokens == 16
    assert asked(Kind.COMPLETIONS, prompt=["a", "b"], n=3).choices == 6
    assert asked(Kind.CHAT, deadline=0).deadline == 0.001


def test_unknown_fields_are_ignored_and_named():
    found = asked(
        Kind.CHAT,
        foo=1,
        stream=True,
        stream_options={"bar": 1, "include_obfuscation": False},
        messages=[{"role": "user", "content": "x", "weight": 0}] * 2,
    )
    assert found.ignored == ("foo", "stream_options.bar", "messages.weight")
    assert asked(Kind.COMPLETIONS, stream=True, stream_options={"a": 1}).ignored == ("stream_options.a",)
    messages = [{"role": "user", "content": "x", "weight": 0}]
    assert asked(Kind.TOKENIZE, prompt=None, messages=messages, b=2).ignored == ("b", "messages.weight")


def test_continuous_usage_needs_usage():
    assert asked(Kind.CHAT, stream=True, stream_options={"continuous_usage_stats": True}).streaming == (
        True,
        False,
        False,
    )
    error = refusal(Kind.CHAT, stream_options={"include_usage": True})
    assert error.message == "`stream_options` can only be used when `stream` is True"


def test_tritons_texts():
    assert (
        refusal(Kind.CHAT, top_logprobs=2).message
        == "`top_logprobs` can only be used when `logprobs` is True"
    )
    assert refusal(Kind.CHAT, tool_choice="required").message == (
        '"required" tool choice requires CreateChatCompletionRequest.tools to be provided'
    )
    named = {"type": "function", "function": {"name": "mul"}}
    assert refusal(Kind.CHAT, tool_choice=named).message == (
        "Named tool choice requires CreateChatCompletionRequest.tools to be provided"
    )
    assert refusal(Kind.CHAT, tool_choice=named, tools=[TOOL]).message == (
        "Tool 'mul' has not been passed in `tools`."
    )
    assert refusal(Kind.COMPLETIONS, suffix="x").message == "suffix is not currently supported"
    assert refusal(Kind.COMPLETIONS, best_of=3).message == (
        "Received best_of=3, but only single choice (best_of=1) is currently supported"
    )
    assert refusal(Kind.COMPLETIONS, prompt="").message == "prompt must be non-empty"
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    assert refusal(Kind.CHAT, messages=image).message == "only text message is supported, but got image_url"


@pytest.mark.parametrize(
    ("given_choice", "tools", "choice"),
    [
        (None, [], "none"),
        (None, [TOOL], "auto"),
        ("auto", [], "none"),
        ("none", [TOOL], "none"),
        ("auto", [TOOL], "auto"),
        ("required", [TOOL], "required"),
    ],
)
def test_which_tools_may_be_called(given_choice, tools, choice):
    assert asked(Kind.CHAT, tools=tools, tool_choice=given_choice).ask.tool_choice == choice


def test_a_tool_that_has_to_be_called_excludes_a_format():
    wanted = {"tools": [TOOL], "response_format": {"type": "json_object"}}
    assert asked(Kind.CHAT, **wanted).ask.sampling.grammar == {"json_object": True}
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        assert refusal(Kind.CHAT, **wanted, tool_choice=choice).param == "tool_choice"


def test_tools_are_brought_into_one_form():
    function = {"name": "a-b.c", "description": "d", "parameters": {}, "strict": True, "other": 1}
    read_as = {"name": "a-b.c", "description": "d", "parameters": {}, "strict": True}
    plain = {"type": "function", "function": {"name": "plain"}}
    tools = read_tools(Members({"tools": [{"type": "function", "function": function}, plain]}))
    assert tools == [{"type": "function", "function": read_as}, plain]


@pytest.mark.parametrize(
    ("wanted", "grammar"),
    [
        ({"json": {"type": "object"}}, {"json": {"type": "object"}}),
        ({"json": True}, {"json": True}),
        ({"choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"grammar": "root ::= 'a'"}, {"grammar": "root ::= 'a'"}),
        ({"json_object": True, "regex": None}, {"json_object": True}),
        ({"json_object": False, "regex": "a"}, {"regex": "a"}),
    ],
)
def test_structured_outputs_become_a_grammar(wanted, grammar):
    assert asked(Kind.CHAT, structured_outputs=wanted).ask.sampling.grammar == grammar


def test_one_grammar_is_enough():
    assert asked(Kind.CHAT, response_format={"type": "text"}).ask.sampling.grammar is None
    both = {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}
    assert refusal(Kind.CHAT, **both).param == "structured_outputs"


def test_a_conversation_is_brought_into_one_form():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}", "x": 1}}
    messages = [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}],
            "name": "ann",
        },
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "content": [{"type": "text", "text": "3"}], "tool_call_id": "c1"},
        {"role": "assistant", "refusal": "no"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    cleaned = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    assert asked(Kind.CHAT, messages=messages).ask.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [cleaned], "reasoning_content": "hm"},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": "no"},
    ]


def test_long_lists_are_read_in_steps():
    steps = read(Kind.EMBEDDINGS, {"model": "m", "input": [7] * 100_000}, Defaults())
    assert sum(1 for _ in steps) > 10
    messages = [{"role": "user", "content": [{"type": "text", "text": "x"}] * 100}] * 100
    assert sum(1 for _ in read(Kind.CHAT, {"model": "m", "messages": messages}, Defaults())) > 100


def test_prompts_may_be_token_ids():
    assert asked(Kind.COMPLETIONS, prompt=[1, 2]).ask.prompts == [array("i", [1, 2])]
    assert asked(Kind.COMPLETIONS, prompt=[[1], [2]]).ask.prompts == [array("i", [1]), array("i", [2])]
    assert refusal(Kind.COMPLETIONS, prompt=[[1], [2, -3]]).param == "prompt[1][1]"


def test_probabilities_of_the_prompt_are_not_streamed():
    assert asked(Kind.COMPLETIONS, prompt_logprobs=0).prompt_logprobs
    assert refusal(Kind.COMPLETIONS, prompt_logprobs=0, stream=True).param == "prompt_logprobs"
    echoed = asked(Kind.COMPLETIONS, echo=True, logprobs=2, stream=True)
    assert (echoed.prompt_logprobs, echoed.ask.sampling.prompt_logprobs) == (False, 2)
    for asks in ({"echo": True, "logprobs": 2}, {"prompt_logprobs": 1}):
        assert refusal(Kind.COMPLETIONS, **asks, max_tokens=0).param == "max_tokens"
    both = asked(Kind.COMPLETIONS, echo=True, logprobs=2, prompt_logprobs=5)
    assert both.ask.sampling.prompt_logprobs == 5


def test_a_message_is_gone_on_with_or_a_new_one_begun():
    both = refusal(Kind.CHAT, continue_final_message=True, add_generation_prompt=True)
    assert both.param == "continue_final_message"


def test_tokenize_takes_a_prompt_or_messages():
    messages = PLAIN[Kind.CHAT]["messages"]
    assert refusal(Kind.TOKENIZE, messages=messages).param == "prompt"
    assert refusal(Kind.TOKENIZE, prompt=None).reason == "missing_field"
    assert asked(Kind.TOKENIZE, model=None).model == ""
    assert refusal(Kind.DETOKENIZE, tokens=None).reason == "missing_field"


def test_errors_show_the_value_and_what_would_have_worked():
    assert refusal(Kind.CHAT, temperature=3).message == (
        "Invalid value for 'temperature': expected a number from 0 to 2, got 3"
    )
    assert refusal(Kind.CHAT, stop=["a", "x" * 5000]).message == (
        f"Invalid value for 'stop[1]': expected a text of 1 to 1024 characters, got '{'x' * 60}'..."
    )
    assert refusal(Kind.CHAT, seed=True).message.endswith("got true")
    assert refusal(Kind.CHAT, messages=[[]]).message == (
        "Invalid value for 'messages[0]': expected an object, got an array of 0"
    )
    assert refusal(Kind.CHAT, n=2.0 + 0.5).param == "n"
    assert asked(Kind.CHAT, n=2.0).ask.sampling.n == 2


def test_sampling_can_be_read_by_itself():
    sampling = at_once(read_sampling(Members({}), default_max_tokens=3, logprobs=1))
    assert (sampling.max_tokens, sampling.logprobs) == (3, 1)


@pytest.mark.parametrize(
    ("text", "fits"), [("a", True), ("", False), ("a b", False), ("é", False), ("x" * 129, False)]
)
def test_ids_of_requests(text, fits):
    assert is_request_id(text) is fits


NUMBERS = st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | st.just(math.inf)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=8)
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
HINTS = ["role", "user", "assistant", "content", "type", "text", "function", "name", "tool_calls", "schema",
         "json_schema", "include_usage", "regex", "auto", "required"]  # fmt: skip
LIKELY = st.recursive(
    SCALARS | st.sampled_from(HINTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(HINTS), inner, max_size=5),
    max_leaves=12,
)


@pytest.mark.parametrize("kind", Kind)
@given(data=st.data())
def test_whatever_comes_is_an_ask_or_a_clear_error(kind, data):
    names = st.sampled_from(sorted(TABLES[kind]))
    document = data.draw(st.one_of(ANY, st.dictionaries(names, ANY | LIKELY, max_size=6)))
    if isinstance(document, dict):
        document = {**PLAIN[kind], **document}
    outcome: AskedFor | BadAsk
    try:
        outcome = at_once(read(kind, document, Defaults()))
    except BadAsk as error:
        outcome = error
    assert isinstance(outcome, AskedFor) or (outcome.message and outcome.reason)


def test_there_are_only_so_many_choices_of_all_prompts_together():
    assert asked(Kind.COMPLETIONS, prompt=["a"] * 16, n=128).choices == 2048
    error = refusal(Kind.COMPLETIONS, prompt=["a"] * 17, n=128)
    assert (error.param, "17 prompts with 128 choices" in error.message) == ("n", True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"json": {"const": "x" * 262_144}}}, "structured_outputs.json"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "s", "schema": {"const": "x" * 262_144}},
                }
            },
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_schema_that_no_engine_takes_is_refused_at_once(fields, param):
    error = refusal(Kind.CHAT, messages=[{"role": "user", "content": "x"}], **fields)
    assert (error.param, "there may be 262144" in error.message) == (param, True)
