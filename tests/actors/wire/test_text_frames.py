"""Frames between the server and a text worker."""

import json
from array import array

import pytest

from actors.wire.frames import FrameError
from actors.wire.text_frames import (
    LARGEST,
    LENGTHS_BYTES,
    LONG,
    decode_head,
    encode,
    lengths,
    pack_ask,
    pack_ids,
    unpack_ask,
    unpack_ids,
)


def test_a_frame_is_a_head_and_a_body():
    sent = b"".join(map(bytes, encode(["tokens", [[1, "é"]]], b"body")))
    head, body = lengths(sent)
    assert decode_head(sent[LENGTHS_BYTES : LENGTHS_BYTES + head]) == ["tokens", [[1, "é"]]]
    assert sent[LENGTHS_BYTES + head :] == b"body"
    assert body == 4


@pytest.mark.parametrize("total", [3, LARGEST + 1])
def test_a_frame_of_impossible_length_is_refused(total):
    with pytest.raises(FrameError, match="a text frame of"):
        lengths(total.to_bytes(4, "little") + (0).to_bytes(4, "little"))


@pytest.mark.parametrize("head", [b"{", b"{}", b"[]", b"[1]"])
def test_a_head_is_a_list_that_begins_with_its_kind(head):
    with pytest.raises(FrameError, match="a text frame's head"):
        decode_head(head)


def test_long_texts_of_an_ask_lie_in_the_body():
    document = {
        "kind": "chat",
        "messages": [{"content": "x" * (LONG + 1)}, ["long", 3], ["list", 4], ["list", []], [1, None]],
        "more": ("é" * (LONG + 1), True),
        "prompts": [array("i", [1, 2**31 - 1]), "x", array("i", []), ["ids", 1]],
    }
    packed, body = pack_ask(document)
    through = json.loads(json.dumps(packed))
    found, at = unpack_ask(through, body + b"rest")
    assert found == {**document, "more": list(document["more"])}
    assert body[at:] == b""
    with pytest.raises(FrameError, match="at byte"):
        unpack_ask(through, body[:-1])
    with pytest.raises(FrameError, match="a text that ends at byte 5 of a body of 4"):
        unpack_ask({"text": ["long", 5]}, b"1234")


def test_ids_are_integers_of_four_bytes():
    assert unpack_ids(pack_ids([1, -1])) == array("i", [1, -1])
    with pytest.raises(FrameError, match="in 5 bytes"):
        unpack_ids(b"12345")
