"""What becomes of an ask before the engine has it."""

import json
from array import array

import pytest

from actors.values.generation.asking import CHAT, DETOKENIZE, EMBED, TEXT, TOKENIZE, Ask, Sampling
from engine.worker.text.loading import Loaded
from engine.worker.text.preparing import Choices, Preparer
from engine.worker.text.refusing import Refused
from engine.worker.text.thinking import MAYBE, OPEN
from engine.worker.text.tools.formats import HERMES, JSON, LLAMA3, NAMED
from tests.support.llm import spelt

FUNCTION = {"name": "read_tide", "parameters": {"type": "object", "properties": {"tide": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "ring"}}]
CALL = {
    "type": "object",
    "properties": {"name": {"type": "string", "enum": ["read_tide"]}, "parameters": FUNCTION["parameters"]},
    "required": ["name", "parameters"],
    "additionalProperties": False,
}


@pytest.fixture
def prepare(tmp_path):
    def prepared(ask, *, template=spelt.TEMPLATE, context=0, **choices):
        tokenizer = spelt.byte_level()
        folder = str(spelt.write(tmp_path, tokenizer, template=template))
        loaded = Loaded(tokenizer, json.loads(tokenizer.to_str()), folder)
        return Preparer(loaded, Choices(**choices), rendering=lambda render: render()).prepare(
            ask, {"context": context}
        )

    return prepared


def chat(content="hi", **more):
    return Ask(CHAT, messages=[{"role": "user", "content": content}], **more)


def test_a_chat_is_rendered_and_its_template_writes_the_special_tokens(prepare):
    (ids,) = prepare(chat("the")).prompts

    assert ids[:2] == [spelt.BEGIN, spelt.USER]
    assert ids[-1] == spelt.ASSISTANT
    assert ids.count(spelt.BEGIN) == 1
    (ids,) = prepare(chat("the", add_special_tokens=True, add_generation_prompt=False)).prompts
    assert ids[:3] == [spelt.BEGIN, spelt.BEGIN, spelt.USER]
    assert ids[-1] != spelt.ASSISTANT


def test_texts_and_ids_are_prompts(prepare):
    prepared = prepare(Ask(TEXT, prompts=["x", [7, 8]]))

    assert [ids[0] for ids in prepared.prompts] == [spelt.BEGIN, 7]
    assert prepared.prompts[1] == [7, 8]
    assert prepared.plan.beginnings == [False, False]
    assert prepare(Ask(TEXT, prompts=["x"], add_special_tokens=False)).prompts[0][0] != spelt.BEGIN
    assert prepare(Ask(TEXT, prompts=[[spelt.BEGIN]])).plan.beginnings == [True]
    unfit: list[list[object]] = [[[]], ["x", []], [[99_999]]]
    for prompts in unfit:
        with pytest.raises(Refused) as refused:
            prepare(Ask(TEXT, prompts=prompts))
        assert refused.value.param == "prompt"


def test_a_prompt_leaves_room_for_one_token(prepare):
    ask = Ask(TEXT, prompts=[[7] * 10])

    assert len(prepare(ask, context=11).prompts[0]) == 10
    with pytest.raises(Refused, match="maximum context length is 10 tokens"):
        prepare(ask, context=10)
    assert len(prepare(ask._replace(kind=EMBED), context=10).prompts[0]) == 10
    cut = ask._replace(sampling=Sampling(truncate_prompt_tokens=-1))
    assert len(prepare(cut, context=10).prompts[0]) == 9
    assert len(prepare(cut).prompts[0]) == 10


def test_an_echo_is_the_text_of_the_prompt(prepare):
    the = spelt.byte_level().encode("the", add_special_tokens=False).ids

    assert prepare(Ask(TEXT, prompts=["the"], echo=True)).more == {"text": "the"}
    assert prepare(Ask(TEXT, prompts=["a", [spelt.USER, *the]], echo=True)).more == {"text": ["a", "the"]}
    shown = Sampling(skip_special_tokens=False)
    assert prepare(Ask(TEXT, prompts=[[spelt.USER, *the]], echo=True, sampling=shown)).more == {
        "text": "<|user|>the"
    }
    cut = Sampling(truncate_prompt_tokens=1)
    assert prepare(Ask(TEXT, prompts=["x the"], echo=True, sampling=cut)).more == {"text": " the"}
    assert prepare(Ask(TEXT, prompts=["the"])).more == {}


def test_texts_are_made_into_tokens_and_back(prepare):
    prepared = prepare(Ask(TOKENIZE, prompts=["the"], return_token_strs=True), context=9)

    (ids,) = prepared.prompts
    assert prepared.more["tokens"]["strings"] == ["<|begin|>", "the"]
    assert prepared.more["tokens"]["longest"] == 65_536
    assert prepare(Ask(TOKENIZE, messages=[{"role": "user", "content": ""}])).more["tokens"]["strings"] == []
    assert prepare(Ask(TOKENIZE, prompts=["x"]), context=1_000_000).more["tokens"]["longest"] == 262_144
    for given in (ids, array("i", ids)):
        assert prepare(Ask(DETOKENIZE, prompts=[given])).more == {"detokenized": "<|begin|>the"}
    for prompts in (["x"], [], [[1], [2]], [[-1]]):
        with pytest.raises(Refused) as refused:
            prepare(Ask(DETOKENIZE, prompts=prompts))
        assert refused.value.param == "tokens"


def test_the_format_of_calls_is_chosen_or_guessed(prepare):
    ask = chat(tools=TOOLS, tool_choice="auto")

    assert prepare(ask).plan.tools == ""
    assert prepare(ask, template="{{ '<tool_call>' }}").plan.tools == HERMES
    assert prepare(ask, tools=LLAMA3).plan.tools == LLAMA3
    assert prepare(ask, tools=LLAMA3).plan.names == ["read_tide", "ring"]
    assert prepare(chat(tools=TOOLS), tools=LLAMA3).plan.tools == ""
    template = "{{ (tools or []) | length }}"
    prompts = [
        prepare(chat(tools=TOOLS, tool_choice=choice), template=template).prompts
        for choice in ("auto", "none")
    ]
    assert prompts[0] != prompts[1]


def test_a_tool_that_must_be_called_is_enforced_by_a_grammar(prepare):
    required = prepare(chat(tools=TOOLS, tool_choice="required"))
    assert required.plan.tools == JSON
    ring = {
        **CALL,
        "properties": {"name": {"type": "string", "enum": ["ring"]}, "parameters": {"type": "object"}},
    }
    schema = {"type": "array", "minItems": 1, "items": {"anyOf": [CALL, ring]}}
    assert required.sampling == {"grammar": {"json": schema}}
    single = prepare(chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False))
    assert single.sampling["grammar"]["json"]["maxItems"] == 1

    named = prepare(chat(tools=TOOLS, tool_choice={"name": "read_tide"}))
    assert named.plan.tools == NAMED
    assert named.plan.names == ["read_tide"]
    assert named.sampling == {"grammar": {"json": FUNCTION["parameters"]}}
    unbound = prepare(chat(tools=TOOLS, tool_choice={"name": "ring"}))
    assert unbound.sampling == {"grammar": {"json": {"type": "object"}}}
    for tools, choice in ((TOOLS, {"name": "sink"}), ([], "required")):
        with pytest.raises(Refused) as refused:
            prepare(chat(tools=tools, tool_choice=choice))
        assert refused.value.param == "tool_choice"


def test_schemas_of_tools_that_no_engine_takes_are_refused(prepare):
    parameters = {"type": "object", "properties": {"p": {"const": "x" * 262_144}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert prepare(chat(tools=tools)).sampling == {}
    for choice in ("required", {"name": "f"}):
        with pytest.raises(Refused, match="there may be 262144") as refused:
            prepare(chat(tools=tools, tool_choice=choice))
        assert refused.value.param == "tools"


def test_definitions_of_tools_stand_where_references_begin(prepare):
    def tool(name, schema):
        parameters = {"type": "object", "$defs": {"T": schema}, "properties": {"t": {"$ref": "#/$defs/T"}}}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    text, number = {"type": "string"}, {"type": "number"}
    prepared = prepare(chat(tools=[tool("f", text), tool("g", text)], tool_choice="required"))

    schema = prepared.sampling["grammar"]["json"]
    assert schema["$defs"] == {"T": text}
    assert all("$defs" not in call["properties"]["parameters"] for call in schema["items"]["anyOf"])
    with pytest.raises(Refused, match="define 'T' differently"):
        prepare(chat(tools=[tool("f", text), tool("g", number)], tool_choice="required"))


def test_reasoning_is_looked_for_where_the_template_has_it(prepare):
    assert prepare(chat()).plan.thinking == ""
    assert prepare(chat(), template="x{# <think> #}").plan.thinking == MAYBE
    assert prepare(chat(), template="x<think>\n").plan.thinking == OPEN
    assert prepare(chat(), template="x<think>", reasoning="none").plan.thinking == ""
    assert prepare(chat(), reasoning="think").plan.thinking == MAYBE
    assert prepare(chat(tools=TOOLS, tool_choice="required"), reasoning="think").plan.thinking == ""
    assert prepare(Ask(TEXT, prompts=["x<think>"]), reasoning="think").plan.thinking == ""
    assert prepare(chat(continue_final_message=True), reasoning="think").plan.thinking == ""


def test_bad_words_are_tokens_for_the_engine(prepare):
    encode = spelt.byte_level().encode
    prepared = prepare(Ask(TEXT, prompts=["x"], sampling=Sampling(bad_words=["the", " the", ""])))

    expected = [encode(text, add_special_tokens=False).ids for text in ("the", " the", " ")]
    assert prepared.sampling == {"bad_words_ids": expected}
