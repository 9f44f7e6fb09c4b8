"""How large an ask is, and what it is told from others by."""

from array import array

import pytest

from actors.values.generation.asking import CHAT, TEXT, Ask
from actors.values.generation.likeness import pieces_asked, sample_asked, size_asked

MESSAGE = {"role": "user", "content": [{"type": "text", "text": "hello"}]}


@pytest.mark.parametrize(
    ("ask", "size"),
    [
        (Ask(TEXT, prompts=("hello",)), 5),
        (Ask(TEXT, prompts=(array("i", [1, 2, 3]),)), 24),
        (Ask(CHAT, messages=[MESSAGE]), len("usertexthello")),
        (Ask(CHAT, messages=[MESSAGE], tools=[{"name": "add", "strict": True}]), len("usertexthelloadd") + 8),
    ],
)
def test_a_size_is_about_that_of_all_texts_and_ids(ask, size):
    assert size_asked(ask) == size


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Ask(TEXT, prompts=("ab", "c")), Ask(TEXT, prompts=("a", "bc"))),
        (Ask(TEXT, prompts=([1, 2],)), Ask(TEXT, prompts=([1], [2]))),
        (Ask(TEXT, prompts=("a",)), Ask(TEXT, prompts=("a",), adapter="tone")),
        (Ask(CHAT, messages=[MESSAGE]), Ask(CHAT, messages=[{**MESSAGE, "role": "system"}])),
    ],
)
def test_different_asks_are_told_apart(one, other):
    assert b"".join(pieces_asked(one)) != b"".join(pieces_asked(other))


def test_how_a_client_is_told_does_not_count():
    one, other = Ask(TEXT, prompts=("a",), stream=True), Ask(TEXT, prompts=("a",))
    assert b"".join(pieces_asked(one)) == b"".join(pieces_asked(other))
    assert sample_asked(one) == sample_asked(other)
