"""The small decisions of the OpenAI API: errors, names of models, and streams that have been quiet."""

import json
import math
from dataclasses import replace

import pytest

from actors.values.errors import (
    ErrorCode,
    Internal,
    InvalidArgument,
    Overloaded,
    TooManyRequests,
    TritiumError,
    Unavailable,
    Unsupported,
)
from actors.values.generation.facts import BadAsk, LanguageFacts, TextDiffers
from actors.values.specs import Direct, LanguageServing
from protocols.openai.asking import level_of
from protocols.openai.faults import (
    WORDS,
    NoLanguageModel,
    UnknownModel,
    event,
    retry_fields,
    status_of,
    told,
)
from protocols.openai.naming import adapters, find, no_language_model, only_one, unknown
from protocols.openai.quiet import QuietStreams
from tests.protocols.fakes import make_spec
from tests.protocols.openai.scripted import FACTS, FakeLanguages

LANGUAGES = FakeLanguages({"tiny": FACTS, "plain": LanguageFacts(8)})


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_has_a_type_and_a_code(code):
    error = json.loads(told(TritiumError.of(code, "a")))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == WORDS[code]


@pytest.mark.parametrize(
    ("error", "param", "code"),
    [
        (BadAsk("a", param="n", reason="r"), "n", "r"),
        (BadAsk("a"), None, "invalid_value"),
        (UnknownModel("a"), "model", "model_not_found"),
        (NoLanguageModel("a"), "model", "model_not_supported"),
        (TextDiffers("a"), None, "text_differs"),
        (InvalidArgument("a"), None, "invalid_value"),
        # What an engine refuses comes from its worker as a text, which begins with the field.
        (InvalidArgument("'logit_bias' has '9'"), "logit_bias", "invalid_value"),
        (Unsupported("'prompt_logprobs' can't be had"), "prompt_logprobs", "unsupported"),
        (InvalidArgument("'tide' is no field"), None, "invalid_value"),
        (Internal("'seed' is lost"), None, "internal_error"),
    ],
)
def test_errors_name_what_is_at_fault(error, param, code):
    found = json.loads(told(error))["error"]
    assert (found["param"], found["code"]) == (param, code)


def test_a_load_of_others_is_too_many_requests():
    assert (status_of(Overloaded("a")), status_of(Unavailable("a"))) == (429, 503)


LEVELS = LanguageServing(priority_levels=3, default_priority_level=2)


def _spec(scheduling):
    return replace(make_spec("m", inputs=[], outputs=[]), scheduling=scheduling)


@pytest.mark.parametrize(
    ("scheduling", "priority", "level"), [(LEVELS, 0, 0), (LEVELS, -1, 1), (LEVELS, 1, 3), (Direct(), 0, 0)]
)
def test_a_priority_counts_from_the_default_level(scheduling, priority, level):
    assert level_of(priority, _spec(scheduling)) == level


@pytest.mark.parametrize(
    ("scheduling", "priority", "why"),
    [
        (LEVELS, 2, "a whole number from -1 to 1"),
        (LEVELS, -2, "a whole number from -1 to 1"),
        (LanguageServing(), 1, "the queue of 'm' has one level: use 0"),
        (Direct(), -1, "the queue of 'm' has one level: use 0"),
    ],
)
def test_a_priority_without_a_level_is_refused(scheduling, priority, why):
    with pytest.raises(BadAsk, match=why):
        level_of(priority, _spec(scheduling))


def test_an_error_may_have_a_name_that_is_not_utf_8():
    assert json.loads(told(Internal("no \udce9")))["error"]["message"] == "no ?"
    first, done, end = event(Internal("a")).split(b"\n\n")
    assert json.loads(first.removeprefix(b"data: "))["error"]["message"] == "a"
    assert (done, end) == (b"data: [DONE]", b"")


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (Unavailable("a"), {b"retry-after": b"1", b"x-should-retry": b"true"}),
        (TooManyRequests("a", retry_after=2.5), {b"retry-after": b"3", b"x-should-retry": b"true"}),
        (Unavailable("a", retry_after=math.inf), {b"x-should-retry": b"false"}),
        (TritiumError.of(ErrorCode.UNSUPPORTED, "a"), {b"x-should-retry": b"false"}),
        (TritiumError.of(ErrorCode.DEADLINE_EXCEEDED, "a"), {b"x-should-retry": b"false"}),
        (Internal("a"), {}),
        (InvalidArgument("a"), {}),
    ],
)
def test_whether_to_try_again(error, fields):
    assert dict(retry_fields(error)) == fields


@pytest.mark.parametrize(
    ("name", "separator", "meant"),
    [
        ("tiny", "", ("tiny", "")),
        ("tiny", "/", ("tiny", "")),
        ("french", "", ("tiny", "french")),
        ("french", "/", None),
        ("tiny/french", "/", ("tiny", "french")),
        ("other/french", "/", None),
        ("nope", "", None),
    ],
)
def test_what_a_name_means(name, separator, meant):
    found = find(name, LANGUAGES, separator)
    assert (None if found is None else (found.model, found.adapter)) == meant


def test_names_that_mean_nothing():
    with pytest.raises(UnknownModel, match="Unknown LoRA: x; for model: tiny"):
        find("tiny/x", LANGUAGES, "/")
    assert unknown("x" * 200).message == "Unknown model: " + "x" * 100
    assert "/v2/models/add/infer" in no_language_model("add").message
    assert only_one(FakeLanguages({"tiny": FACTS})).model == "tiny"
    with pytest.raises(InvalidArgument, match="there are tiny, plain"):
        only_one(LANGUAGES)
    with pytest.raises(InvalidArgument, match="there are no language models"):
        only_one(FakeLanguages({}))


def test_adapters_are_listed_by_the_names_that_clients_use():
    assert list(adapters("tiny", FACTS, "")) == [("french", "/adapters/french")]
    assert list(adapters("tiny", FACTS, ":")) == [("tiny:french", "/adapters/french")]


class Gone(FakeLanguages):
    """Lists a model that is not READY any more."""

    def facts(self, model):
        return None


def test_a_model_may_leave_while_it_is_looked_for():
    assert find("french", Gone({"tiny": FACTS}), "") is None


def test_quiet_streams_are_due_in_order():
    streams: QuietStreams[str] = QuietStreams(10.0)
    assert (streams.next_due(), len(streams), streams.due(99)) == (math.inf, 0, [])
    for at, name in enumerate("abc"):
        streams.wrote(name, float(at))
    streams.wrote("a", 3.0)
    streams.over("c")
    streams.over("never seen")
    assert (len(streams), streams.next_due()) == (2, 11.0)
    assert streams.due(10.9) == []
    assert streams.due(11.0) == ["b"]
    assert streams.next_due() == 13.0
    assert streams.due(21.0) == ["a", "b"]
