"""Token ids of texts, within bounds."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.worker.text.encoding import PART, Encoder, TooLong
from engine.worker.text.loading import Loaded
from engine.worker.text.refusing import Refused
from tests.support.llm import spelt


def loaded(tokenizer):
    return Loaded(tokenizer, json.loads(tokenizer.to_str()), "/nowhere")


BYTES, SPACES, PIECES = map(loaded, (spelt.byte_level(), spelt.spaced(), spelt.word_pieces()))
WORDS = "The lamp was lit, and Brücke slept. It’s 217 “steps”!\n\n 鮭"


def encoder(of=BYTES, *, limit=0, context=0):
    return Encoder(of, limit=limit, param="prompt", context=context)


def test_special_tokens_are_put_around_a_text_that_asks_for_them():
    assert encoder().encode("the", special=True)[0] == spelt.BEGIN
    assert spelt.BEGIN not in encoder().encode("the", special=False)
    assert encoder().encode("<|user|>", special=False) == [spelt.USER]


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(st.text(max_size=12) | st.sampled_from(WORDS.split()), min_size=1, max_size=8))
def test_a_long_text_in_parts_has_the_ids_that_it_has_at_once(words):
    text = " ".join(words * (3 * PART // max(len(" ".join(words)), 1) + 1))
    text = f"{WORDS} {text}"
    assert BYTES.divisible

    ids = encoder().encode(text, special=True)

    assert ids == BYTES.tokenizer.encode(text, add_special_tokens=True).ids


def test_only_a_tokenizer_that_splits_at_spaces_has_texts_cut():
    assert not SPACES.divisible
    assert not PIECES.divisible


def test_a_text_that_can_not_fit_is_refused_by_its_characters():
    with pytest.raises(
        TooLong, match=r"maximum context length is 100 tokens.* at least \d+ input tokens"
    ) as refused:
        encoder(limit=99, context=100).encode("x" * 10_000_000, special=False)

    assert refused.value.status == 400
    assert refused.value.param == "prompt"


WORDY, ONE_WORD = "the lamp was lit " * 8_000, "x" * 600_000


@pytest.mark.parametrize(
    ("of", "text"), [(BYTES, WORDY), (SPACES, WORDY), (PIECES, WORDY), (BYTES, ONE_WORD), (SPACES, ONE_WORD)]
)
def test_a_text_of_too_many_tokens_is_refused_once_some_parts_have_too_many(of, text):
    with pytest.raises(TooLong, match="at least"):
        encoder(of, limit=20_000).encode(text, special=False)


def test_a_text_of_a_few_tokens_too_many_is_refused_by_their_number():
    with pytest.raises(TooLong, match="contains 6 input tokens"):
        encoder(limit=5).encode("xxxxxx", special=False)

    assert len(encoder(limit=6).encode("xxxxxx", special=False)) == 6


def test_a_text_of_many_characters_and_few_tokens_is_no_prompt_without_bounds():
    with pytest.raises(Refused, match="there may be 33554432"):
        encoder().encode("x" * (32 * 1024 * 1024 + 1), special=False)
    with pytest.raises(Refused, match="there may be 33554432"):
        encoder(PIECES, limit=8_000_000).encode("x" * (32 * 1024 * 1024 + 1), special=False)


def test_a_prompt_is_cut_to_its_last_tokens():
    ids = encoder().encode("the lamp was lit", special=False)

    assert encoder(limit=3).encode("the lamp was lit", special=False, truncate=2) == ids[-2:]
    assert encoder().encode("the lamp was lit", special=False, truncate=99) == ids
    assert encoder(limit=3).encode("x" * 10_000_000, special=False, truncate=2) == encoder().encode(
        "xx", special=False
    )
    assert encoder().given([1, 2, 3], truncate=1) == [3]


def test_ids_that_the_model_has_no_token_for_are_refused():
    assert encoder().checked([0, BYTES.size - 1]) == [0, BYTES.size - 1]
    for token in (BYTES.size, -1, True, "x", 1.5, None):
        with pytest.raises(Refused, match="out of vocabulary"):
            encoder().checked([0, token])


def test_a_text_that_is_no_unicode_is_refused():
    with pytest.raises(Refused, match="no Unicode"):
        encoder().encode("a\ud800", special=False)
