"""What comes of a generation as answers and as events, which the `openai` package's own types take."""

import json
import math
from base64 import b64decode
from struct import unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from actors.seams.steps import at_once
from actors.values.errors import Internal
from actors.values.generation.facts import LanguageFacts
from actors.values.generation.pieces import (
    Begun,
    Embedding,
    Text,
    TextPiece,
    TokenChance,
    TokenChances,
    Tokens,
    TokenUsage,
    ToolDelta,
)
from protocols.openai.asking import Defaults, Kind, read
from protocols.openai.chunks import chunks
from protocols.openai.envelope import Envelope, ending, fingerprint, is_long
from protocols.openai.listing import TokenAnswer, VectorAnswer, model_list
from protocols.openai.logprobs import LOWEST, chat_tokens
from protocols.openai.whole import WholeAnswer
from tests.protocols.openai.cases import PLAIN

ENVELOPE = Envelope("chatcmpl-1", 1_700_000_000, "tiny", "fp_1")
A = TokenChance(1, "A", -0.5, 1)
B = TokenChance(2, "é", -1.5, 2, "é".encode()[:1])
NONE = TokenChance(3, "c", -math.inf, 900)
USAGE = TokenUsage(7, 4, cached=3, reasoning=1)


def asked(kind, **fields):
    return at_once(read(kind, {**PLAIN[kind], **fields}, Defaults()))


def whole(wanted, *items):
    answer = WholeAnswer(wanted, ENVELOPE)
    at_once(answer.take(items))
    document = json.loads(b"".join(at_once(answer.texts())))
    (ChatCompletion if wanted.kind is Kind.CHAT else Completion).model_validate(_typed(document, wanted))
    return document


def events(wanted, *parts):
    """Return the events' values, each part's items taken together."""
    maker = chunks(wanted, ENVELOPE)
    texts: list[bytes] = []
    for items in parts:
        if not maker.take(items, texts):
            at_once(maker.take_long(items, texts))
    body = b"".join(texts) + maker.end()
    assert body.endswith(b"data: [DONE]\n\n")
    values = [json.loads(each.removeprefix("data: ")) for each in body.decode().split("\n\n")[:-2]]
    shape = ChatCompletionChunk if wanted.kind is Kind.CHAT else Completion
    for each in values:
        shape.model_validate(_typed(each, wanted))
    return values


def _typed(document, wanted):
    """Return it without the nulls that OpenAI's own answers have and the types of its package lack."""
    if wanted.kind is Kind.CHAT:
        return document
    typed = json.loads(json.dumps(document))
    for choice in typed["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        if choice["logprobs"] is not None:
            for name, instead in (("token_logprobs", 0.0), ("top_logprobs", {})):
                choice["logprobs"][name] = [
                    instead if one is None else one for one in choice["logprobs"][name]
                ]
    return typed


def test_a_chat():
    answer = whole(
        asked(Kind.CHAT),
        Begun(7),
        TextPiece(0, "Hel", tokens=1),
        TextPiece(0, "lo", tokens=2),
        TextPiece(0, finish="stop"),
        USAGE,
    )
    assert answer == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "system_fingerprint": "fp_1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 4,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
    }


def test_a_chat_in_events():
    told = events(
        asked(Kind.CHAT, stream=True, stream_options={"include_usage": True}),
        [Begun(7)],
        [TextPiece(0, "Hel", tokens=1)],
        [TextPiece(0, "lo", tokens=2)],
        [TextPiece(0), TextPiece(0, finish="length", reason="deadline"), USAGE],
    )
    deltas = [each["choices"][0]["delta"] for each in told[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}, {}]
    assert [each["choices"][0]["finish_reason"] for each in told[:-1]] == [None, None, None, "length"]
    assert told[-2]["choices"][0]["tritium"] == {"reason": "deadline"}
    assert [each["usage"] for each in told[:-1]] == [None] * 4
    assert told[-1]["choices"] == []
    assert told[-1]["usage"]["total_tokens"] == 11
    assert {each["id"] for each in told} == {"chatcmpl-1"}


def test_without_wanted_usage_no_event_has_it():
    told = events(asked(Kind.CHAT, stream=True), [TextPiece(0, "a", finish="stop"), USAGE])
    assert [sorted(each) for each in told] == [
        ["choices", "created", "id", "model", "object", "system_fingerprint"]
    ] * 2


def test_usage_in_every_event():
    options = {"include_usage": True, "continuous_usage_stats": True}
    told = events(
        asked(Kind.CHAT, stream=True, stream_options=options),
        [Begun(7)],
        [TextPiece(0, "a", tokens=1)],
        [TextPiece(0, "b", tokens=2)],
        [TextPiece(0, finish="stop")],
        [],
    )
    assert [each["usage"]["completion_tokens"] for each in told] == [0, 1, 3, 3, 3]
    assert {each["usage"]["prompt_tokens"] for each in told} == {7}


def test_the_first_event_waits_for_the_first_piece():
    maker = chunks(asked(Kind.CHAT, stream=True), ENVELOPE)
    told: list[bytes] = []
    assert maker.take([Begun(7)], told)
    assert told == []


def test_choices_interleave():
    wanted = asked(Kind.CHAT, stream=True, n=2)
    told = events(
        wanted,
        [TextPiece(1, "b")],
        [TextPiece(0, "a")],
        [TextPiece(1, finish="stop")],
        [TextPiece(0, finish="stop")],
    )
    assert [each["choices"][0]["index"] for each in told] == [0, 1, 1, 0, 1, 0]
    answer = whole(
        asked(Kind.CHAT, n=2), TextPiece(1, "b", finish="stop"), TextPiece(0, "a", finish="length")
    )
    assert [each["message"]["content"] for each in answer["choices"]] == ["a", "b"]


def test_calls_of_tools():
    pieces = [
        TextPiece(0, tools=[ToolDelta(0, "call_1", "add", '{"a"')]),
        TextPiece(0, tools=[ToolDelta(0, arguments=":1}"), ToolDelta(1, "call_2", "mul")]),
        TextPiece(0, finish="tool_calls"),
    ]
    (choice,) = whole(asked(Kind.CHAT), *pieces)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
        {"id": "call_2", "type": "function", "function": {"name": "mul", "arguments": ""}},
    ]
    told = events(asked(Kind.CHAT, stream=True), *[[piece] for piece in pieces])
    assert [each["choices"][0]["delta"].get("tool_calls") for each in told] == [
        None,
        [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a"'}}],
        [
            {"index": 0, "function": {"arguments": ":1}"}},
            {"index": 1, "id": "call_2", "type": "function", "function": {"name": "mul", "arguments": ""}},
        ],
        None,
    ]


@pytest.mark.parametrize("shown", [True, False])
def test_reasoning(shown):
    pieces = [TextPiece(0, reasoning="hm"), TextPiece(0, "4", reasoning="."), TextPiece(0, finish="stop")]
    (choice,) = whole(asked(Kind.CHAT, include_reasoning=shown), *pieces)["choices"]
    assert choice["message"].get("reasoning_content") == ("hm." if shown else None)
    told = events(asked(Kind.CHAT, stream=True, include_reasoning=shown), *[[each] for each in pieces])
    reasoning = [each["choices"][0]["delta"].get("reasoning_content") for each in told]
    assert [each for each in reasoning if each] == (["hm", "."] if shown else [])


CHANCES = [TokenChances(A, (A, B)), TokenChances(NONE, (A, B))]


def test_probabilities_of_a_chat():
    wanted = {"logprobs": True, "top_logprobs": 1}
    pieces = [TextPiece(0, "Ac", chances=CHANCES), TextPiece(0, finish="stop")]
    (choice,) = whole(asked(Kind.CHAT, **wanted), *pieces)["choices"]
    first, second = choice["logprobs"]["content"]
    assert first == {
        "token": "A",
        "logprob": -0.5,
        "bytes": [65],
        "top_logprobs": [{"token": "A", "logprob": -0.5, "bytes": [65]}],
    }
    assert (second["token"], second["logprob"]) == ("c", LOWEST)
    told = events(asked(Kind.CHAT, stream=True, **wanted), *[[each] for each in pieces])
    assert told[1]["choices"][0]["logprobs"]["content"] == [first, second]
    assert told[2]["choices"][0]["logprobs"] is None
    assert json.loads(chat_tokens([TokenChances(B, ())], 0, ids=True)) == {
        "token": "token_id:2",
        "logprob": -1.5,
        "bytes": [0xC3],
        "top_logprobs": [],
    }


def test_probabilities_of_a_completion():
    pieces = [
        TextPiece(0, "A", chances=CHANCES[:1]),
        TextPiece(0, "c", chances=CHANCES[1:]),
        TextPiece(0, finish="stop"),
    ]
    (choice,) = whole(asked(Kind.COMPLETIONS, logprobs=1), *pieces)["choices"]
    assert choice["logprobs"] == {
        "tokens": ["A", "c"],
        "token_logprobs": [-0.5, LOWEST],
        "top_logprobs": [{"A": -0.5}, {"A": -0.5, "c": LOWEST}],
        "text_offset": [0, 1],
    }
    told = events(asked(Kind.COMPLETIONS, logprobs=1, stream=True), *[[each] for each in pieces])
    assert [
        each["choices"][0]["logprobs"] and each["choices"][0]["logprobs"]["text_offset"] for each in told
    ] == [
        [0],
        [1],
        None,
    ]
    assert [each["choices"][0]["text"] for each in told] == ["A", "c", ""]


def test_many_probabilities_are_encoded_in_steps():
    piece = TextPiece(0, "A" * 300, chances=CHANCES[:1] * 300, finish="stop")
    assert is_long([piece])
    assert not is_long([TextPiece(0, "a"), USAGE, Embedding(0, [1.0])])
    each: list[tuple[Kind, dict[str, int]]] = [
        (Kind.CHAT, {"logprobs": True}),
        (Kind.COMPLETIONS, {"logprobs": 0}),
    ]
    for kind, wanted in each:
        maker = chunks(asked(kind, stream=True, **wanted), ENVELOPE)
        told: list[bytes] = []
        assert not maker.take([piece], told)
        assert told == []
        assert sum(1 for _ in maker.take_long([piece], told)) >= 4
        answer = WholeAnswer(asked(kind, **wanted), ENVELOPE)
        assert sum(1 for _ in answer.take([piece])) >= 4
    assert (
        whole(asked(Kind.COMPLETIONS, logprobs=0), piece)["choices"][0]["logprobs"]["text_offset"][-1] == 299
    )


PROMPT = Begun(2, "xA", (5, 1), (None, CHANCES[0]))


def test_an_echoed_prompt_with_its_probabilities():
    wanted = {"echo": True, "logprobs": 0, "return_tokens_as_token_ids": True}
    pieces = [TextPiece(0, "c", chances=CHANCES[1:]), TextPiece(0, finish="stop")]
    (choice,) = whole(asked(Kind.COMPLETIONS, **wanted), PROMPT, *pieces)["choices"]
    logprobs = {
        "tokens": ["x", "token_id:1", "token_id:3"],
        "token_logprobs": [None, -0.5, LOWEST],
        "top_logprobs": [None, {"token_id:1": -0.5}, {"token_id:3": LOWEST}],
        "text_offset": [0, 1, 2],
    }
    assert (choice["text"], choice["logprobs"]) == ("xAc", logprobs)
    told = events(asked(Kind.COMPLETIONS, stream=True, **wanted), [PROMPT], *[[each] for each in pieces])
    assert "".join(each["choices"][0]["text"] for each in told) == "xAc"
    streamed = [each["choices"][0]["logprobs"] for each in told if each["choices"][0]["logprobs"]]
    assert {name: [one for each in streamed for one in each[name]] for name in logprobs} == logprobs


def test_a_long_prompt_is_echoed_in_steps():
    begun = Begun(100, "A" * 100, prompt_chances=CHANCES[:1] * 100)
    maker = chunks(asked(Kind.COMPLETIONS, stream=True, echo=True, logprobs=0), ENVELOPE)
    told: list[bytes] = []
    assert not maker.take([begun], told)
    assert sum(1 for _ in maker.take_long([begun], told)) == 1


def test_an_echo_without_probabilities():
    told = events(
        asked(Kind.COMPLETIONS, stream=True, echo=True, prompt=["a", "b"]),
        [Begun(1, "a", prompt=0), Begun(1, "b", prompt=1)],
        [TextPiece(1, "2", finish="stop")],
        [TextPiece(0, "1", finish="stop")],
    )
    assert [(each["choices"][0]["index"], each["choices"][0]["text"]) for each in told] == [
        (1, "b"),
        (1, "2"),
        (0, "a"),
        (0, "1"),
    ]
    answer = whole(asked(Kind.COMPLETIONS, echo=True), Begun(1, "hi"), TextPiece(0, "!", finish="stop"))
    assert answer["choices"][0]["text"] == "hi!"
    assert (
        whole(asked(Kind.COMPLETIONS, echo=True), TextPiece(0, "!", finish="stop"))["choices"][0]["text"]
        == "!"
    )


def test_ids_of_tokens():
    begun = Begun(2, prompt_ids=(5, 6))
    pieces = [TextPiece(0, "a", token_ids=(1,)), TextPiece(0, "b", token_ids=(2,), finish="stop")]
    answer = whole(asked(Kind.CHAT, return_token_ids=True), begun, *pieces)
    assert (answer["prompt_token_ids"], answer["choices"][0]["token_ids"]) == ([5, 6], [1, 2])
    answer = whole(asked(Kind.COMPLETIONS, return_token_ids=True), begun, *pieces)
    assert (answer["choices"][0]["prompt_token_ids"], answer["choices"][0]["token_ids"]) == ([5, 6], [1, 2])
    for kind in (Kind.CHAT, Kind.COMPLETIONS):
        told = events(asked(kind, stream=True, return_token_ids=True), [begun], *[[each] for each in pieces])
        assert told[0]["choices"][0]["prompt_token_ids"] == [5, 6]
        assert [each["choices"][0].get("token_ids") for each in told] == [None, [1], [2]]
        # An engine that tells no ids of the prompt is none to fail of.
        assert events(asked(kind, stream=True, return_token_ids=True), [pieces[1]])


def test_probabilities_of_a_prompt():
    wanted = asked(Kind.CHAT, prompt_logprobs=1)
    begun = Begun(101, prompt_chances=(None, *CHANCES * 50))
    told = whole(wanted, begun, TextPiece(0, "a", finish="stop"))["prompt_logprobs"]
    assert len(told) == 101
    assert told[:2] == [
        None,
        {
            "1": {"logprob": -0.5, "rank": 1, "decoded_token": "A"},
            "2": {"logprob": -1.5, "rank": 2, "decoded_token": "é"},
        },
    ]
    assert is_long([begun])
    without = whole(asked(Kind.COMPLETIONS, prompt_logprobs=1), TextPiece(0, "a", finish="stop"))
    assert without["choices"][0]["prompt_logprobs"] is None


@pytest.mark.parametrize(
    ("finish", "reason", "chat", "told"),
    [
        ("stop", "", True, {"finish_reason": "stop"}),
        ("stop", "END", True, {"finish_reason": "stop", "stop_reason": "END"}),
        ("length", "", True, {"finish_reason": "length"}),
        ("length", "deadline", True, {"finish_reason": "length", "tritium": {"reason": "deadline"}}),
        ("tool_calls", "", True, {"finish_reason": "tool_calls"}),
        ("tool_calls", "", False, {"finish_reason": "stop"}),
        ("abort", "x", True, {"finish_reason": "stop", "tritium": {"reason": "abort"}}),
    ],
)
def test_reasons_stay_within_those_that_clients_know(finish, reason, chat, told):
    assert json.loads(b"{%b}" % ending(TextPiece(0, finish=finish, reason=reason), chat=chat)) == told


def test_the_last_piece_says_how_many_engines_it_took():
    pieces = [
        Begun(7),
        TextPiece(0, "a", tokens=1),
        TextPiece(0, finish="length", reason="deadline", attempts=2),
    ]
    told = {"reason": "deadline", "attempts": 2}
    assert whole(asked(Kind.CHAT), *pieces)["choices"][0]["tritium"] == told
    assert events(asked(Kind.COMPLETIONS, stream=True), pieces)[-1]["choices"][0]["tritium"] == told


def test_usage_is_counted_where_none_is_told():
    pieces = [Begun(7), TextPiece(0, "a", tokens=2, token_ids=(1, 2), finish="stop")]
    assert whole(asked(Kind.CHAT), *pieces)["usage"]["total_tokens"] == 9
    wanted = asked(Kind.CHAT, stream=True, stream_options={"include_usage": True})
    assert events(wanted, pieces)[-1]["usage"]["total_tokens"] == 9


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETIONS])
def test_an_answer_that_is_not_complete_is_an_error(kind):
    for wanted in (asked(kind, n=2), asked(kind, n=2, stream=True)):
        with pytest.raises(Internal, match="before choice 1 was complete"):
            (events(wanted, [TextPiece(0, "a", finish="stop")]) if wanted.streaming.wanted else whole(
                wanted, TextPiece(0, "a", finish="stop")
            ))  # fmt: skip
        for odd in (TextPiece(2, "a"), Embedding(0, [1.0])):
            with pytest.raises(Internal, match=r"choice 2 of 2|with Embedding"):
                events(wanted, [odd]) if wanted.streaming.wanted else whole(wanted, odd)


def test_vectors():
    wanted = asked(Kind.EMBEDDINGS, input=["a", "b"])
    answer = VectorAnswer(wanted, ENVELOPE)
    at_once(answer.take([Begun(1), Begun(2), Embedding(1, (0.5,)), Embedding(0, [1, 2.0])]))
    document = json.loads(b"".join(at_once(answer.texts())))
    CreateEmbeddingResponse.model_validate(document)
    assert [each["embedding"] for each in document["data"]] == [[1, 2.0], [0.5]]
    assert document["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    answer = VectorAnswer(asked(Kind.EMBEDDINGS, encoding_format="base64"), ENVELOPE)
    at_once(answer.take([Embedding(0, [1, 2.5]), TokenUsage(9, 0)]))
    document = json.loads(b"".join(at_once(answer.texts())))
    assert unpack("<2f", b64decode(document["data"][0]["embedding"])) == (1, 2.5)
    assert document["usage"]["prompt_tokens"] == 9
    with pytest.raises(Internal, match="no vector for input 0 of 1"):
        at_once(VectorAnswer(asked(Kind.EMBEDDINGS), ENVELOPE).texts())
    with pytest.raises(Internal, match="with TextPiece"):
        at_once(answer.take([TextPiece(0)]))


@pytest.mark.parametrize(
    ("fields", "items", "told"),
    [
        ({}, [Begun(1), Tokens((5, 6), ("a", "b"), 99), USAGE],
         {"count": 2, "max_model_len": 99, "tokens": [5, 6], "token_strs": None}),
        ({"return_token_strs": True}, [Tokens((5,), ("a",), 9)],
         {"count": 1, "max_model_len": 9, "tokens": [5], "token_strs": ["a"]}),
        ({}, [Text("héllo")], {"prompt": "héllo"}),
    ],
)  # fmt: skip
def test_tokens(fields, items, told):
    answer = TokenAnswer(asked(Kind.TOKENIZE, **fields))
    at_once(answer.take(items))
    assert json.loads(b"".join(at_once(answer.texts()))) == told


def test_a_request_for_tokens_gets_tokens():
    answer = TokenAnswer(asked(Kind.TOKENIZE))
    with pytest.raises(Internal, match="no tokens"):
        at_once(answer.texts())
    with pytest.raises(Internal, match="with TextPiece"):
        at_once(answer.take([TextPiece(0)]))


def test_models_are_listed_with_their_adapters():
    facts = LanguageFacts(0, 5, "", {"fr": "/a/fr"})
    base, adapter = model_list([("m", facts, [("fr", "/a/fr")])])
    for each in (base, adapter):
        Model.model_validate(each)
    assert (base["root"], base["parent"], base["max_model_len"]) == ("m", None, None)
    assert (adapter["id"], adapter["root"], adapter["parent"]) == ("fr", "/a/fr", "m")


def test_fingerprints_tell_versions_apart():
    assert fingerprint("1", "m", 1) == fingerprint("1", "m", 1)
    assert len({fingerprint("1", "m", 1), fingerprint("1", "m", 2), fingerprint("2", "m", 1)}) == 3


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
CHANCE = st.builds(
    TokenChance, st.integers(0, 9), TEXTS, st.floats(max_value=0.0), st.integers(1, 9), st.binary(max_size=3)
)
PIECES = st.builds(
    TextPiece,
    choice=st.integers(0, 1),
    text=TEXTS,
    reasoning=TEXTS,
    tools=st.lists(st.builds(ToolDelta, st.integers(0, 2), TEXTS, TEXTS, TEXTS), max_size=2),
    tokens=st.integers(0, 3),
    chances=st.lists(st.builds(TokenChances, CHANCE, st.lists(CHANCE, max_size=2)), max_size=2),
    token_ids=st.lists(st.integers(0, 9), max_size=2),
)
ENDS = st.builds(
    TextPiece, st.just(0), finish=st.sampled_from(["stop", "length", "tool_calls", "abort"]), reason=TEXTS
)


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETIONS])
@given(st.data())
def test_events_say_what_the_whole_answer_says(kind, data):
    fields = {
        "n": 2,
        "logprobs": data.draw(st.booleans()) if kind is Kind.CHAT else data.draw(st.sampled_from([None, 1])),
        "return_token_ids": data.draw(st.booleans()),
    }
    options = {"include_usage": True, "continuous_usage_stats": data.draw(st.booleans())}
    items = [Begun(3, "p", (1, 2), (None,)), *data.draw(st.lists(PIECES, max_size=8))]
    items += [end._replace(choice=at) for at, end in enumerate(data.draw(st.tuples(ENDS, ENDS)))]
    items.append(USAGE)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(items)), max_size=4)))
    parts = [items[a:b] for a, b in zip([0, *cuts], [*cuts, len(items)], strict=True)]
    answer = whole(asked(kind, **fields), *items)
    told = events(asked(kind, **fields, stream=True, stream_options=options), *parts)
    assert told[-1]["usage"] == answer["usage"]
    for at, choice in enumerate(answer["choices"]):
        mine = [each["choices"][0] for each in told[:-1] if each["choices"][0]["index"] == at]
        assert [each["finish_reason"] for each in mine if each["finish_reason"]] == [choice["finish_reason"]]
        if kind is Kind.CHAT:
            text = "".join(each["delta"].get("content") or "" for each in mine)
            assert text == (choice["message"]["content"] or "")
            reasoning = "".join(each["delta"].get("reasoning_content") or "" for each in mine)
            assert reasoning == choice["message"].get("reasoning_content", "")
            told_of = [one for each in mine if each["logprobs"] for one in each["logprobs"]["content"]]
            assert told_of == ((choice["logprobs"] or {}).get("content") or [])
        else:
            assert "".join(each["text"] for each in mine) == choice["text"]
            told_of = [one for each in mine if each["logprobs"] for one in each["logprobs"]["tokens"]]
            assert told_of == ((choice["logprobs"] or {}).get("tokens") or [])
