"""Reasoning, told from the answer as text comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.worker.text.thinking import MAYBE, OPEN, Thinking, beginning_of

words = st.text("ab <>/think\n", max_size=12)


def read(beginning, parts):
    thinking = Thinking(beginning)
    reasoning = answer = ""
    for told in [*map(thinking.feed, parts), thinking.end()]:
        reasoning += told[0]
        answer += told[1]
    return reasoning, answer


@pytest.mark.parametrize(
    ("beginning", "text", "told"),
    [
        (MAYBE, "<think>hm\n</think>\n\nYes", ("hm\n", "\n\nYes")),
        (MAYBE, " \n<think>hm</think>Yes", ("hm", "Yes")),
        (MAYBE, "Yes <think>no</think>", ("", "Yes <think>no</think>")),
        (MAYBE, "<thin", ("", "<thin")),
        (MAYBE, " " * 100 + "a", ("", " " * 100 + "a")),
        (OPEN, "hm</think>Yes", ("hm", "Yes")),
        (OPEN, "hm</thi", ("hm</thi", "")),
        (MAYBE, "<think>never ends", ("never ends", "")),
    ],
)
def test_reasoning_is_what_stands_between_its_marks(beginning, text, told):
    assert read(beginning, [text]) == told
    assert read(beginning, list(text)) == told


@given(st.sampled_from([MAYBE, OPEN]), st.lists(words, max_size=5))
def test_nothing_depends_on_how_a_text_is_cut(beginning, parts):
    assert read(beginning, parts) == read(beginning, list("".join(parts)))


def test_a_template_may_have_begun_the_reasoning():
    assert beginning_of("<|assistant|><think>\n") == OPEN
    assert beginning_of("<|assistant|>") == MAYBE
