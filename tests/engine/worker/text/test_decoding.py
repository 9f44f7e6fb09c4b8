"""Text of token ids as they come, against the text of all of them."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.worker.text.decoding import MOST_HELD, ByteDecoder, WindowDecoder
from engine.worker.text.loading import Loaded
from engine.worker.text.spelling import BYTE_LEVEL, OTHER, SPACED, Spelling, bytes_of, spelling_of
from tests.support.llm import spelt


def loaded(tokenizer, folder="/nowhere"):
    return Loaded(tokenizer, json.loads(tokenizer.to_str()), folder)


BYTES = loaded(spelt.byte_level())
SPACES = loaded(spelt.spaced())
PIECES = loaded(spelt.word_pieces())
ALL = (BYTES, SPACES, PIECES)


def fed(decoder, parts):
    return [decoder.feed(part) for part in parts] + [decoder.end()]


def parts_of(ids, cuts):
    places = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[start:end] for start, end in itertools.pairwise(places)]


cuts = st.lists(st.integers(0, 1000), max_size=8)


@given(st.lists(st.integers(0, BYTES.vocabulary.size - 1), max_size=40), cuts)
def test_any_ids_of_a_byte_level_tokenizer_give_the_text_that_they_give_at_once(ids, cuts):
    whole = BYTES.tokenizer.decode(ids, skip_special_tokens=True)

    told = fed(BYTES.vocabulary.decoder(skipped=BYTES.vocabulary.special), parts_of(ids, cuts))

    assert "".join(told) == whole


@given(st.text(max_size=30), cuts)
def test_any_text_comes_back_from_its_ids_whatever_the_tokenizer(text, cuts):
    for each in (BYTES, SPACES):
        ids = each.tokenizer.encode(text, add_special_tokens=False).ids
        whole = each.tokenizer.decode(ids, skip_special_tokens=False)

        told = fed(each.vocabulary.decoder(beginning=True), parts_of(ids, cuts))

        assert "".join(told) == whole
        assert not any("�" in part for part in told) or "�" in text


@given(st.lists(st.integers(0, PIECES.vocabulary.size - 1), max_size=20), cuts)
def test_a_decoder_of_another_kind_is_shown_a_window_of_ids(ids, cuts):
    decoder = PIECES.vocabulary.decoder()

    assert isinstance(decoder, WindowDecoder)
    assert "".join(fed(decoder, parts_of(ids, cuts))) == PIECES.tokenizer.decode(ids)


def test_a_character_of_several_tokens_comes_with_its_last_one():
    ids = BYTES.tokenizer.encode("🕯️👩‍🚀", add_special_tokens=False).ids
    decoder = BYTES.vocabulary.decoder()

    told = [decoder.feed([token]) for token in ids]

    assert [part for part in told if part] == list("🕯️👩‍🚀")
    assert decoder.end() == ""


def test_bytes_that_no_character_follows_are_told_at_the_end():
    first = BYTES.tokenizer.encode("🕯", add_special_tokens=False).ids[0]
    decoder = BYTES.vocabulary.decoder()

    assert decoder.feed([first]) == ""
    assert decoder.end() == "�"


def test_a_window_does_not_wait_for_ever_for_a_character():
    decoder = WindowDecoder(lambda ids: "�" * len(ids))

    told = [decoder.feed([token]) for token in range(MOST_HELD + 1)]

    assert told == [*[""] * (MOST_HELD - 1), "�" * MOST_HELD, ""]
    assert decoder.end() == "�"
    assert WindowDecoder(lambda ids: "", skipped={1}).feed([1]) == ""


def test_ids_without_a_token_have_no_text():
    decoder = ByteDecoder([b"a"])

    assert decoder.feed([0, 5, -1]) == "a"
    assert decoder.feed([7]) == ""
    assert BYTES.vocabulary.data(99_999) == b""


def test_a_text_that_begins_has_no_space_in_front_but_one_that_goes_on_has():
    ids = SPACES.tokenizer.encode("the the", add_special_tokens=False).ids

    assert SPACES.vocabulary.text(ids) == "the the"
    assert SPACES.vocabulary.decoder().feed(ids) == " the the"


def test_spaces_are_dropped_over_several_tokens():
    decoder = ByteDecoder([b" ", b" a", b""], dropped=2)
    assert decoder.feed([2, 0, 1, 1]) == "a a"
    assert ByteDecoder([b"  a"], dropped=-1).feed([0]) == "a"
    assert ByteDecoder([b" ", b"a "], dropped=2).feed([0, 1, 0]) == "a  "


@pytest.mark.parametrize(
    ("decoder", "found"),
    [
        (None, Spelling()),
        ({"type": "ByteLevel"}, Spelling(BYTE_LEVEL)),
        ({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "CTC"}]}, Spelling()),
        ({"type": "WordPiece"}, Spelling()),
        ({"type": "Fuse"}, Spelling()),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, Spelling(SPACED, False, -1)),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}, Spelling(SPACED)),
        ({"type": "Metaspace", "replacement": "_"}, Spelling()),
        ({"type": "Replace", "pattern": {"String": "_"}, "content": " "}, Spelling()),
        ({"type": "Strip", "content": " ", "start": 1, "stop": 0}, Spelling()),
    ],
)
def test_the_spelling_of_tokens_is_told_by_the_decoder(decoder, found):
    assert spelling_of(decoder) == found
    assert Spelling().kind == OTHER


def test_tokens_stand_for_bytes():
    assert bytes_of("Ġhé", Spelling(BYTE_LEVEL)) == b" h\xe9"
    assert bytes_of("｜x y｜", Spelling(BYTE_LEVEL)) == "｜x y｜".encode()
    assert bytes_of("<0xE3>", Spelling(SPACED, True)) == b"\xe3"
    assert bytes_of("<0xE3>", Spelling(SPACED, False)) == b"<0xE3>"
    assert bytes_of("<abcd>", Spelling(SPACED, True)) == b"<abcd>"
    assert bytes_of("▁a▁", Spelling(SPACED)) == b" a "
