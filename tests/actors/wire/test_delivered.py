"""What a client was given, in four numbers: they follow from the text alone."""

from hypothesis import given
from hypothesis import strategies as st

from actors.values.generation.pieces import ToolDelta
from actors.wire.delivered import Delivered

pieces = st.tuples(
    st.sampled_from(["text", "reasoning", "arguments"]), st.text(st.sampled_from("ab\0é🕯\ud800"), max_size=9)
)


def delivered(told):
    made = Delivered()
    for kind, text in told:
        if kind == "arguments":
            made.take("", "", [ToolDelta(0, arguments=text)])
        else:
            made.take(*((text, "", ()) if kind == "text" else ("", text, ())))
    return made


def texts(told):
    return {kind: "".join(text for each, text in told if each == kind) for kind, _ in told}


@given(st.lists(pieces, max_size=200))
def test_it_does_not_matter_in_what_pieces_a_text_comes(told):
    made = delivered(told)
    whole = delivered(texts(told).items())
    assert made.told == whole.told
    assert made.characters == sum(len(text) for _, text in told)


def test_it_matters_what_is_text_and_what_reasoning_and_which_letters_come():
    kinds = ("text", "reasoning", "arguments")
    told = [delivered([(kind, text)]).told for kind in kinds for text in ("ab", "ba", "a", "")]
    assert len({tuple(each) for each in told}) == 3 * 3 + 1


def test_names_of_tools_count_and_ids_of_calls_do_not():
    def called(*deltas):
        made = Delivered()
        made.take("", "", deltas)
        return made.told

    assert called(ToolDelta(0, "one", "read", "{}")) == called(
        ToolDelta(0, "two", "read"), ToolDelta(0, arguments="{"), ToolDelta(0, arguments="}")
    )
    assert called(ToolDelta(0, "one", "read", "{}")) != called(ToolDelta(0, "one", "write", "{}"))
    assert called(ToolDelta(0, "one", "a", "b")) != called(ToolDelta(0, "one", "", "ab"))


def test_a_long_text_is_counted_on_its_way():
    made = delivered([("text", "ab")] * 200)
    assert made.told == delivered([("text", "ab" * 200)]).told
