"""What is decided of a generation without a clock or a loop: faces, journals, joined pieces, sampling."""

import json
from array import array

import numpy as np
import pytest

from actors.generation.policy.beginning import Beginnings
from actors.generation.policy.faces import PiecesFace, TensorFace, face_of
from actors.generation.policy.journal import Journal, Prompt
from actors.generation.policy.merging import merged
from actors.generation.policy.parameters import sampling_of
from actors.generation.policy.resolving import (
    ADAPTER,
    MOST_TOLD,
    Limits,
    Telling,
    check_adapter,
    check_prompts,
    resolve,
)
from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, Unavailable
from actors.values.generation.adapters import Adapter
from actors.values.generation.asking import TEXT, Ask, GenerationRequest, Sampling
from actors.values.generation.facts import BadAsk, NoSuchAdapter
from actors.values.generation.pieces import (
    Begun,
    Embedding,
    TextPiece,
    TokenChance,
    TokenChances,
    TokenUsage,
    ToolDelta,
)
from actors.values.requests import InferRequest
from actors.values.tensors import Tensor
from tests.support.ports import NoPort


def texts(name, *values):
    return Tensor.from_numpy(name, np.array([each.encode() for each in values], object), DataType.BYTES)


def flag(name, *values):
    return Tensor.from_numpy(name, np.array(values or (True,), np.bool_))


def request(*inputs, parameters=None):
    return InferRequest(model_name="m", reply=NoPort(), accepted_at=0.0, inputs=inputs, parameters=parameters)


def face(*inputs, text="hi", **parameters):
    return TensorFace(request(texts("text_input", text), *inputs, parameters=parameters or None))


def told(part):
    return {tensor.name: tensor.as_numpy().tolist() for tensor in part[1]}


CHANCES = TokenChances(TokenChance(5, "a", -0.5, 1), [TokenChance(6, "b", -1.5, 2)])
ALL = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")


def test_without_a_stream_all_text_comes_at_once_behind_its_prompt():
    seen = face(*(flag(f"return_{name}") for name in ALL), logprobs=1)
    assert seen.begun(Begun(2)) is None
    assert seen.piece(TextPiece(0, text=" you", tokens=1, chances=[CHANCES])) is None
    assert seen.piece(TextPiece(0, text="!", tokens=1, finish="stop")) is None
    answer = told(seen.final((), TokenUsage(2, 2)))
    assert answer["text_output"] == [b"hi you!"]
    assert answer["finish_reason"] == [b"stop"]
    assert (answer["num_input_tokens"], answer["num_output_tokens"]) == ([2], [2])
    assert answer["cumulative_logprob"] == [-0.5]
    (logprobs,) = answer["logprobs"]
    assert json.loads(logprobs) == [
        {
            "5": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
            "6": {"logprob": -1.5, "rank": 2, "decoded_token": "b"},
        }
    ]


def test_a_stream_has_new_text_only_and_its_last_part_is_the_end():
    seen = face(flag("stream"), flag("return_finish_reason"), flag("return_num_output_tokens"))
    first = told(seen.piece(TextPiece(0, text="a", tokens=1)))
    assert first == {"text_output": [b"a"], "finish_reason": [b"None"], "num_output_tokens": [1]}
    assert seen.piece(TextPiece(0, text="b", tokens=2, finish="length")) is None
    last = told(seen.final((), None))
    assert last == {"text_output": [b"b"], "finish_reason": [b"length"], "num_output_tokens": [2]}


def test_each_output_has_an_element_for_each_sequence_but_the_prompts_length():
    seen = face(flag("stream"), *(flag(f"return_{name}") for name in ALL), n=2, logprobs=0)
    seen.begun(Begun(7))
    told(seen.piece(TextPiece(1, text="x", tokens=1, chances=[CHANCES])))
    part = told(seen.piece(TextPiece(1, text="y", tokens=1, chances=[CHANCES], finish="stop")))
    assert part["text_output"] == [b"", b"y"]
    assert part["finish_reason"] == [b"None", b"stop"]
    assert part["cumulative_logprob"] == [0.0, -1.0]
    assert [len(json.loads(each)) for each in part["logprobs"]] == [0, 1]
    assert (part["num_input_tokens"], part["num_output_tokens"]) == ([7], [0, 1])
    assert seen.piece(TextPiece(0, text="z", finish="length")) is None
    last = told(seen.final((), None))
    assert (last["text_output"], last["finish_reason"]) == ([b"z", b""], [b"length", b"stop"])
    whole = face(flag("return_finish_reason"), n=2)
    for choice in (1, 0):
        whole.piece(TextPiece(choice, text=str(choice), finish="stop"))
    assert told(whole.final((), None))["text_output"] == [b"hi0", b"hi1"]


def test_logprobs_are_null_where_sampling_asks_for_none():
    seen = face(flag("return_logprobs"), n=2)
    assert seen.ask.sampling.logprobs is None
    assert told(seen.final((), None))["logprobs"] == [b"null", b"null"]
    summed = face(flag("return_logprobs"), flag("return_cumulative_logprob"))
    assert summed.ask.sampling.logprobs == 0
    summed.piece(TextPiece(0, text="x", chances=[CHANCES], finish="stop"))
    answer = told(summed.final((), None))
    assert (answer["logprobs"], answer["cumulative_logprob"]) == ([b"null"], [-0.5])


def test_errors_are_in_the_backends_words():
    seen = face()
    for error in (InvalidArgument("why"), Internal("why"), BadAsk("why", reason="context_length_exceeded")):
        failed = seen.failed(error)
        assert (type(failed), failed.message) == (Internal, "Error generating stream: why")
    adapter = seen.failed(BadAsk("LoRA feature is not enabled.", reason=ADAPTER))
    assert (type(adapter), adapter.message) == (Internal, "LoRA feature is not enabled.")
    full = Unavailable("it is full")
    assert seen.failed(full) is full
    bad = BadAsk("why")
    assert PiecesFace(Ask(TEXT)).failed(bad) is bad


def test_the_prompt_can_be_left_out_and_embeddings_are_lists():
    seen = face(flag("exclude_input_in_output"))
    seen.piece(TextPiece(0, text="x", finish="stop"))
    assert told(seen.final((), None)) == {"text_output": [b"x"]}
    asked = TensorFace(
        request(texts("embedding_request", '{"input": ["a", "b"], "pooling_params": {"dimensions": [2]}}'))
    )
    assert (asked.ask.prompts, asked.ask.dimensions) == (["a", "b"], 2)
    assert told(asked.final([Embedding(0, [1.0, 2.0])], None)) == {"text_output": [b"[1.0, 2.0]"]}
    counted = TensorFace(
        request(
            texts("embedding_request", '{"input": "a"}'),
            flag("return_num_input_tokens"),
            flag("return_num_output_tokens"),
        )
    )
    answer = told(counted.final([Embedding(0, [1.0])], TokenUsage(3, 0)))
    assert (answer["num_input_tokens"], answer["num_output_tokens"]) == ([3], [0])
    one = TensorFace(request(texts("embedding_request", '{"input": [1, 2]}')))
    assert one.ask.prompts == [[1, 2]]


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ([], "'text_input' is missing"),
        ([texts("text_input", "a", "b")], "must have one element, got 2"),
        (
            [texts("text_input", "a"), flag("stream"), flag("exclude_input_in_output", False)],
            "When streaming",
        ),
        ([texts("text_input", "a"), flag("stream", True, True)], "must have one element, got 2"),
        ([texts("text_input", "a"), texts("sampling_parameters", "{")], "is no JSON"),
        ([texts("text_input", "a"), texts("sampling_parameters", "[]")], "must be a JSON object"),
        ([texts("embedding_request", "{}")], 'needs "input"'),
        ([texts("embedding_request", '{"input": "a", "pooling_params": {"dimensions": 0}}')], "above 0"),
        ([Tensor("text_input", DataType.BYTES, (1,), b"\1\0\0\0\xff")], "is not UTF-8"),
        ([texts("text_input", "a" * (4 * 2**20 + 1))], "4194305 bytes"),
        ([texts("text_input", "a"), texts("sampling_parameters", "[" * 300_000)], "300000 bytes"),
    ],
)
def test_tensors_that_ask_for_what_there_is_not(inputs, why):
    with pytest.raises(Internal, match="^Error generating stream: .*" + why.replace("(", r"\(")):
        TensorFace(request(*inputs))


def test_a_tensor_of_sampling_parameters_goes_before_the_requests_own():
    seen = face(texts("sampling_parameters", '{"n": 2, "lora_name": "a"}'), top_k=3)
    assert (seen.ask.sampling.n, seen.ask.adapter, seen.ask.sampling.top_k) == (2, "a", None)


def test_a_face_follows_from_the_request():
    asked = GenerationRequest(model_name="m", reply=NoPort(), accepted_at=0.0)
    asked.ask = Ask(TEXT, prompts=("x",))
    seen = face_of(asked)
    assert isinstance(seen, PiecesFace)
    assert seen.begun(Begun(1)) == ((Begun(1),), ())
    assert seen.piece(TextPiece(0)) == ((TextPiece(0),), ())
    assert seen.final((), TokenUsage(1, 1)) == ((TokenUsage(1, 1),), ())
    assert seen.final([Embedding(0, [])], None) == ((Embedding(0, []),), ())
    assert isinstance(face_of(request(texts("text_input", "a"))), TensorFace)


def test_sampling_is_read_as_values_or_as_text():
    sampling, _ = sampling_of(
        {
            "temperature": "0.5",
            "stop": "END",
            "stop_token_ids": ["1"],
            "ignore_eos": "false",
            "logit_bias": {"5": "1"},
            "structured_outputs": '{"regex": "a+", "json": null}',
            "seed": None,
        }
    )
    assert (sampling.temperature, sampling.stop, sampling.stop_token_ids) == (0.5, ["END"], [1])
    assert (sampling.ignore_eos, sampling.logit_bias, sampling.seed) == (False, {"5": 1.0}, None)
    assert sampling.grammar == {"regex": "a+"}
    assert sampling_of({"stop": ["a", 1], "ignore_eos": True})[0].stop == ["a", "1"]
    assert sampling_of({"id": "r1", "detokenize": "true"}) == (Sampling(), "")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"colour": 1}, "'colour' is not known"),
        ({"top_p": 2}, "from 0 to 1"),
        ({"n": "many"}, "can't be 'many'"),
        ({"stop": ["a"] * 65}, "65 stop texts"),
        ({"stop": "a" * 1025}, "more than 1024 characters"),
        ({"detokenize": False}, "'detokenize' is not known"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "one of json"),
    ],
)
def test_sampling_that_can_not_be_had(given, why):
    with pytest.raises(InvalidArgument, match=why):
        sampling_of(given)


def test_sampling_is_resolved_for_each_choice():
    ask = Ask(
        TEXT, prompts=("x",), sampling=Sampling(n=2, seed=2**63 - 1, stop=("a",)), adapter="l", cache_salt="s"
    )
    limits, tone = Limits(16, 4, {"top_k": 7}), Adapter("l", "l", "/l", "1f")
    first, second = resolve(ask, {"grammar": {"json": {}}}, prompt=10, limits=limits, adapter=tone)
    assert (first["seed"], second["seed"]) == (2**63 - 1, 0)
    assert (first["max_tokens"], first["top_k"], first["temperature"]) == (4, 7, 1.0)
    assert (first["adapter"], first["cache_salt"], first["grammar"]) == (tone.told, "s", {"json": {}})
    assert "stop" not in first
    plain = Ask(TEXT, prompts=("x",), sampling=Sampling(max_tokens=100))
    assert resolve(plain, {}, prompt=10, limits=Limits(16))[0]["max_tokens"] == 6
    assert Limits(16).told() == {"context": 16}
    with pytest.raises(BadAsk, match="context length is 16"):
        resolve(plain, {}, prompt=16, limits=Limits(16))


def test_long_prompts_of_ids_are_refused_before_they_travel():
    long = Ask(TEXT, prompts=(list(range(5)), "a text of any length"))
    check_prompts(long, Limits(5))
    with pytest.raises(BadAsk):
        check_prompts(long, Limits(4))
    check_prompts(long._replace(sampling=Sampling(truncate_prompt_tokens=2)), Limits(4))


def test_adapters_are_known_before_a_prompt_travels():
    ask = Ask(TEXT, prompts=("x",), adapter="tone")
    tone = Adapter("tone", "a/path", "/a/path", "1f")
    assert check_adapter(ask._replace(adapter=""), Limits(16)) is None
    assert check_adapter(ask, Limits(16, adapters={"tone": tone})) == tone
    with pytest.raises(BadAsk, match=r"^LoRA feature is not enabled\.$") as refused:
        check_adapter(ask, Limits(16))
    assert (refused.value.param, refused.value.reason) == ("lora_name", ADAPTER)
    with pytest.raises(NoSuchAdapter) as unknown:
        check_adapter(ask, Limits(16, adapters=dict.fromkeys("ab", tone)))
    assert unknown.value.message == "LoRA tone is not supported, we currently support ['a', 'b']"


def test_a_journal_says_where_another_worker_goes_on():
    prompts = [Prompt(array("i", [1, 2])), Prompt(array("i", [3]))]
    journal = Journal(id="r", created=7, prompts=prompts, samplings=[[{}, {}], [{}]], deadline=9.0)
    first, _, last = journal.choices
    assert (last.index, last.prompt) == (2, prompts[1])
    first.generated([5, 6], [[[5, -1.0, 1]], [[6, -1.0, 1]]], "")
    tool = ToolDelta(0, "c", "f", "{}")
    piece = TextPiece(0, text="ab", reasoning="c", tools=[tool], tokens=1, reasoning_tokens=1)
    first.tell(piece)
    assert first.restoring == (0, 2, 1, first.delivered.told, "", [[[6, -1.0, 1]]])
    assert first.delivered.characters == 5
    last.generated([], None, "stop")
    last.tell(TextPiece(2, finish="stop"))
    assert (last.closed, last.restoring) == (True, (2, 0, 0, [0, 0, 0, 0], "stop", None))
    assert journal.usage == TokenUsage(3, 1, 0, 1)
    assert journal.nbytes == 4 * 5


def whole(**fields):
    return TextPiece(0, **{"tools": [], "token_ids": [], "chances": [], **fields})


def test_pieces_are_joined_by_choice_and_kind():
    pieces = [
        TextPiece(0, reasoning="a", tokens=1, reasoning_tokens=1),
        TextPiece(0, reasoning="b", tokens=1, reasoning_tokens=1),
        TextPiece(1, text="x", tokens=1),
        TextPiece(0, text="c", tokens=1),
        TextPiece(0, text="d", tokens=1, token_ids=[4], chances=[CHANCES]),
        TextPiece(0, text="e", tools=[ToolDelta(0)]),
        TextPiece(0, tools=[ToolDelta(0, "i", "f"), ToolDelta(1, "j", "g")]),
        TextPiece(0, tools=[ToolDelta(0, arguments="{"), ToolDelta(0, arguments="}")]),
        TextPiece(0, finish="tool_calls"),
    ]
    joined = merged(pieces)
    assert joined == [
        whole(reasoning="ab", tokens=2, reasoning_tokens=2),
        whole(text="cd", tokens=2, token_ids=[4], chances=[CHANCES]),
        pieces[5],
        whole(tools=[ToolDelta(0, "i", "f", "{}"), ToolDelta(1, "j", "g")]),
        pieces[8],
        pieces[2],
    ]
    assert merged([]) == []


def test_choices_that_are_told_the_same_share_the_bytes():
    same, other = {"max_tokens": 3, "top_k": 0}, {"max_tokens": 3, "top_k": 0, "seed": 8}
    telling = Telling(same, 3)
    assert [json.loads(telling.of(each)) for each in (same, other)] == [same, other]
    assert telling.of(same) is telling.of({**same})
    for told in ({"embed": True}, {"seed": 7}, {}):
        assert json.loads(Telling(told, 1).of(told)) == told


def test_what_is_told_of_all_choices_together_is_bounded():
    told = {"grammar": {"regex": "x" * (MOST_TOLD // 8)}, "max_tokens": 1}
    assert len(Telling(told, 7).of(told)) > MOST_TOLD // 8
    with pytest.raises(BadAsk, match=r"8 choices, each with .* ask for fewer choices") as refused:
        Telling(told, 8)
    assert refused.value.param == "n"


def test_a_prompt_is_told_of_once_with_the_texts_of_its_tokens_if_those_are_asked_for():
    plain, chanced = Begun(3), Begun(4, prompt=1)
    beginnings = Beginnings([plain, chanced], n=2)
    assert beginnings.at_token(0) == plain
    assert beginnings.at_token(1) is beginnings.at_piece(0) is None
    assert beginnings.computed(0, ["late"]) is None
    assert beginnings.computed(2, ["chances"]) == 1
    assert beginnings.computed(3, ["of the other choice"]) is None
    assert beginnings.unnamed == {1: ["chances"]}
    assert beginnings.at_token(3) is None
    assert beginnings.named(1, [None]) == Begun(4, prompt=1, prompt_chances=[None])
    assert beginnings.named(1, [None]) is beginnings.at_piece(2) is None
    assert not beginnings.unnamed


def test_a_piece_does_not_wait_for_the_texts_of_its_prompt():
    beginnings = Beginnings([Begun(3)])
    assert beginnings.computed(0, ["chances"]) == 0
    assert beginnings.at_piece(0) == Begun(3)
    assert beginnings.named(0, [None]) is None


def test_sampling_that_nests_too_deeply_is_refused():
    deep = json.loads("[" * 70 + "]" * 70)
    with pytest.raises(InvalidArgument, match="nests more than 64 levels deep"):
        sampling_of({"structured_outputs": {"json": deep}})
    with pytest.raises(InvalidArgument, match="'structured_outputs' nests too deeply"):
        sampling_of({"structured_outputs": "[" * 100_000})
