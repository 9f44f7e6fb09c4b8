"""From the ids of a choice to its pieces, and the streams of many requests."""

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.wire.delivered import Delivered
from actors.wire.text_frames import pack_ids
from engine.worker.text.loading import Loaded
from engine.worker.text.speaking import Manner, Plan, Speaker, named_all
from engine.worker.text.streams import REPLAYED, Differs, Failed, Streams
from engine.worker.text.thinking import MAYBE
from engine.worker.text.tools.formats import HERMES, JSON, LLAMA3, MISTRAL, NAMED
from tests.support.llm import spelt

TOKENIZER = spelt.byte_level()
VOCABULARY = Loaded(TOKENIZER, json.loads(TOKENIZER.to_str()), str(spelt.Path("/nowhere"))).vocabulary
CALL = '<tool_call>{"name": "read_tide", "arguments": {"tide": "low"}}</tool_call>'


def ids_of(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def speaker(**plan):
    return Speaker(Manner(Plan(**plan), VOCABULARY))


def told(speaker, ids, finish="", chances=None, size=1):
    pieces = []
    for at in range(0, len(ids), size):
        last = at + size >= len(ids)
        part = chances[at : at + size] if chances else None
        pieces.append(speaker.feed(ids[at : at + size], finish if last else "", part))
    return [piece for piece in pieces if piece is not None]


def joined(pieces, name="text"):
    return "".join(piece.get(name, "") for piece in pieces)


def count(pieces, name="tokens"):
    return sum(piece.get(name, 0) for piece in pieces)


def arguments(pieces):
    return "".join(delta.arguments for piece in pieces for delta in piece.get("tools", ()))


def test_each_id_is_told_with_its_text_and_the_last_with_the_engines_reason():
    ids = ids_of("the lamp 🕯")

    pieces = told(speaker(token_ids=True), ids, "length")

    assert joined(pieces) == "the lamp 🕯"
    assert [token for piece in pieces for token in piece["token_ids"]] == ids
    assert count(pieces) == len(ids)
    assert [piece.get("finish", "") for piece in pieces] == [*[""] * (len(pieces) - 1), "length"]


def test_tokens_of_a_prompt_have_their_texts_and_bytes_and_the_first_has_no_chance():
    first, *_ = ids = ids_of("é")
    (letter,) = ids_of("a")
    chances = [None, [[first, -0.5, 2], [letter, -0.25, 1], [first, -0.5, 2]]]
    own = [first, "é" if len(ids) == 1 else "\ufffd", -0.5, 2, list("é".encode())[: 2 // len(ids)]]
    assert named_all(chances, VOCABULARY) == [None, [own, [[letter, "a", -0.25, 1, [97]], own]]]


def test_an_id_without_text_is_counted_with_a_later_piece():
    ids = ids_of("🕯")

    pieces = told(speaker(), ids)

    assert len(ids) > 1
    assert pieces == [{"tokens": len(ids), "text": "🕯"}]


def test_the_id_that_ended_the_generation_is_no_text_but_is_counted():
    plan = {"skip_special": False, "stop_ids": ids_of("x")}
    ids = [*ids_of("lit"), *ids_of("x")]

    assert joined(told(speaker(**plan), ids, "stop")) == "lit"
    assert count(told(speaker(**plan), ids, "stop", size=9)) == len(ids)
    assert joined(told(speaker(**plan, include_stop=True), ids, "stop")) == "litx"
    assert joined(told(speaker(**plan), ids, "length")) == "litx"
    assert joined(told(speaker(**plan, stop=["zz"]), ids, "stop")) == "lit"


def test_special_tokens_are_left_out_unless_they_are_asked_for():
    ids = [spelt.USER, *ids_of("lit")]

    assert joined(told(speaker(), ids, "length")) == "lit"
    assert joined(told(speaker(skip_special=False), ids, "length")) == "<|user|>lit"


def test_a_stop_text_ends_the_choice_with_the_ids_up_to_it():
    ids = ids_of("the lamp was lit")
    one = speaker(stop=["was"], token_ids=True)

    pieces = told(one, ids, size=len(ids))

    assert joined(pieces) == "the lamp "
    assert pieces[-1]["finish"] == "stop"
    assert pieces[-1]["reason"] == "was"
    assert TOKENIZER.decode(pieces[-1]["token_ids"]).startswith("the lamp was")
    assert count(pieces) == len(pieces[-1]["token_ids"]) < len(ids)
    assert one.ended
    assert one.feed(ids) is None
    assert joined(told(speaker(stop=["was"], include_stop=True), ids)) == "the lamp was"


def test_what_may_begin_a_stop_text_is_told_at_the_end():
    assert joined(told(speaker(stop=["litmus"]), ids_of("the lit"), "length")) == "the lit"


def test_stop_texts_do_not_count_among_the_first_tokens():
    ids = ids_of("lit lit lit")

    pieces = told(speaker(stop=["lit"], min_tokens=len(ids_of("lit lit"))), ids, "length")

    assert joined(pieces) == "lit lit "
    assert pieces[-1]["reason"] == "lit"


def test_reasoning_is_told_apart_and_counted():
    first, second = ids_of("<think>the lamp</think>"), ids_of("lit")

    pieces = told(speaker(thinking=MAYBE), [*first, *second], "stop")

    assert joined(pieces, "reasoning") == "the lamp"
    assert joined(pieces) == "lit"
    assert len(first) - 1 <= count(pieces, "reasoning_tokens") <= len(first) + 1
    assert joined(told(speaker(thinking=MAYBE), ids_of("<thi"), "length")) == "<thi"


def test_a_call_ends_the_choice_as_one_that_calls_tools():
    pieces = told(speaker(tools=HERMES, names=["read_tide"]), ids_of(f"So {CALL}"), "stop")

    assert joined(pieces) == "So"
    assert arguments(pieces) == '{"tide": "low"}'
    assert next(delta.name for piece in pieces for delta in piece.get("tools", ())) == "read_tide"
    assert pieces[-1]["finish"] == "tool_calls"
    assert told(speaker(tools=HERMES), ids_of("So"), "stop")[-1]["finish"] == "stop"
    assert told(speaker(tools=HERMES), ids_of(CALL), "length")[-1]["finish"] == "length"


def test_a_named_tool_ends_as_openai_says():
    pieces = told(speaker(tools=NAMED, names=["read_tide"]), ids_of('{"tide": "low"}'), "stop")

    assert arguments(pieces) == '{"tide": "low"}'
    assert pieces[-1]["finish"] == "stop"


def test_deltas_of_one_piece_are_joined():
    for plan in ({}, {"stop": ["zz"]}):
        (piece,) = told(speaker(tools=HERMES, **plan), ids_of(f"{CALL}{CALL}"), size=999)

        assert [(delta.call, delta.arguments) for delta in piece["tools"]] == [
            (0, '{"tide": "low"}'),
            (1, '{"tide": "low"}'),
        ]


def test_chances_have_texts_and_bytes_and_the_most_probable_first():
    first, second = ids_of("🕯")[:2]
    chances = [[[first, -0.5, 2], [second, -0.1, 1], [spelt.END, -3.0, 3]], [[second, -0.2, 1]]]

    (piece,) = told(speaker(logprobs=2), [first, second], chances=chances, size=2)

    (chosen, others), (_, alone) = piece["chances"]
    assert chosen == [first, "�", -0.5, 2, list(VOCABULARY.data(first))]
    assert [other[0] for other in others] == [second, first]
    assert [other[0] for other in alone] == [second]
    (piece,) = told(speaker(), [first], chances=chances[:1])
    assert piece["chances"] == [[chosen, []]]


OTHER_CALLS = (
    '{"name": "read_tide", "parameters": {"tide": "low"}}',
    "<|python_tag|>",
    '[TOOL_CALLS][{"name": "read_tide", "arguments": {"tide": "low"}}]',
    '[TOOL_CALLS]read_tide[ARGS]{"tide": "low"}',
)
texts = st.lists(
    st.sampled_from(
        [
            *(
                "the ",
                "🕯",
                "<think>",
                "</think>",
                CALL,
                CALL[:20],
                "<tool_call>",
                "stop",
                " \n",
                "st",
                " " * 200,
            ),
            *(*OTHER_CALLS, OTHER_CALLS[0][:15], "; ", ", ", "[", "]", '{"tide": "low"}'),
        ]
    ),
    max_size=6,
).map("".join)
plans = st.fixed_dictionaries(
    {
        "stop": st.sampled_from([(), ("stop",), ("op",)]),
        "thinking": st.sampled_from(["", MAYBE]),
        "names": st.just(["read_tide"]),
    },
    optional={
        "tools": st.sampled_from([HERMES, LLAMA3, MISTRAL, JSON, NAMED]),
        "parallel": st.booleans(),
        "token_ids": st.just(True),
    },
)


@given(texts, plans, st.integers(0, 40), st.integers(1, 5), st.integers(1, 99))
def test_a_worker_that_goes_on_for_another_tells_what_that_one_had_not_told(
    text, plan, until, size, replayed
):
    ids = ids_of(text)
    alone = told(speaker(**plan), ids, "stop", size=size)
    first, second = speaker(**plan), speaker(**plan)
    before = told(first, ids[:until])
    done = count(before)
    sent, again = Delivered(), Delivered()
    for piece in before:
        sent.take(piece.get("text", ""), piece.get("reasoning", ""), piece.get("tools", ()))

    for start in range(0, done, replayed):
        second.replay(ids[start : min(start + replayed, done)], again)
    if not first.ended:
        assert again.told == sent.told
    rest = [] if first.ended else told(second, ids[done:] or [], "stop", size=size)
    if not rest and not first.ended:
        rest = [second.feed([], "stop")]

    for name in ("text", "reasoning"):
        assert joined([*before, *rest], name) == joined(alone, name)
    assert arguments([*before, *rest]) == arguments(alone)
    assert count([*before, *rest]) == count(alone)


# -- streams


def streams(*numbers, **plan):
    made = Streams(VOCABULARY)
    for number in numbers:
        made.add(number)
        made.opened(number, Plan(**plan)._asdict())
    return made


def order(made, *entries):
    """Feed (stream, choice, text, finish)."""
    heads, ids = [], array("i")
    for number, choice, text, finish in entries:
        own = ids_of(text)
        heads.append([number, choice, len(own), finish, None])
        ids.extend(own)
    failed: list[Failed] = []
    return made.tokens(heads, ids, failed), failed


def test_pieces_of_all_streams_come_together():
    made = streams(1, 2, n=2, beginnings=(False, False))

    pieces, failed = order(made, (1, 0, "the", ""), (2, 3, "lamp", "stop"), (9, 0, "lit", ""))

    assert [(number, choice, piece["text"]) for number, choice, piece in pieces] == [
        (1, 0, "the"),
        (2, 3, "lamp"),
    ]
    assert failed == []
    assert len(made) == 2


def test_a_stream_that_fails_ends_no_other():
    made = streams(1, 2)

    pieces, failed = order(made, (1, 5, "the", ""), (2, 0, "lamp", ""))

    assert [number for number, _, _ in pieces] == [2]
    assert [number for number, _ in failed] == [1]
    assert 1 not in made


def test_ids_that_come_before_the_plan_wait_for_it():
    made = streams()
    made.add(1)
    made.opened(7, {})
    made.close(8)

    pieces, _ = order(made, (1, 0, "the lamp", "stop"))
    assert pieces == []
    made.restored(7, {}, [], b"")
    made.restored(1, Plan()._asdict(), [], b"")

    assert drained(made) == [
        (1, 0, {"tokens": len(ids_of("the lamp")), "text": "the lamp", "finish": "stop"})
    ]
    assert order(made, (1, 1, "x", ""))[1]  # there is one choice


NOTHING = Delivered().told


def delivered(text):
    """Return what a client has been given, as a restore order has it."""
    told = Delivered()
    told.take(text, "", ())
    return told.told


def test_a_restored_stream_whose_text_is_another_one_fails_alone():
    made = streams(2)
    made.add(1)
    ids = ids_of("the lamp")
    made.restored(
        1, Plan()._asdict(), [[0, len(ids), len(ids), delivered("the limp"), "", None]], pack_ids(ids)
    )

    assert made.replay() == ([], [])
    _, [(number, error)] = made.replay()

    assert number == 1
    assert isinstance(error, Differs)
    assert error.choice == 0
    assert 1 not in made
    assert order(made, (2, 0, "the", ""))[0]


def drained(made):
    pieces = []
    while made.replaying:
        more, failed = made.replay()
        assert not failed
        pieces += more
    return pieces


def test_a_restored_stream_goes_on_where_it_was():
    ids = ids_of("the lamp was lit. " * REPLAYED)
    later = ids_of("stay")
    made = streams()
    made.add(1)
    before = delivered(TOKENIZER.decode(ids[:-2]))
    entries = [[0, len(ids), len(ids) - 2, before, "", None], [1, len(later), 0, NOTHING, "stop", None]]
    plan = Plan(n=2)._asdict()

    made.restored(1, plan, entries, pack_ids([*ids, *later]))
    order(made, (1, 0, "now", "length"))
    pieces = drained(made)

    texts: dict[int, str] = {}
    for _, choice, piece in pieces:
        texts[choice] = texts.get(choice, "") + piece.get("text", "")
    assert texts == {0: TOKENIZER.decode(ids[-2:]) + "now", 1: "stay"}
    assert order(made, (1, 0, "x", ""))[0] == []


def test_a_restored_choice_of_which_all_was_told_waits_for_more():
    made = streams()
    made.add(1)
    ids = ids_of("the lamp")[:3]
    made.restored(1, Plan()._asdict(), [[0, 3, 3, delivered(TOKENIZER.decode(ids)), "", None]], pack_ids(ids))

    assert drained(made) == []
    assert order(made, (1, 0, " lamp", ""))[0] == [(1, 0, {"tokens": len(ids_of(" lamp")), "text": " lamp"})]


def test_a_stream_that_is_closed_while_it_is_restored_tells_nothing():
    made = streams()
    made.add(1)
    made.restored(1, Plan()._asdict(), [[0, 3, 0, NOTHING, "", None]], pack_ids(ids_of("the")))
    made.close(1)

    assert made.replay() == ([], [])
    assert not made.replaying


def test_a_stream_that_can_not_be_restored_fails_alone():
    made = streams(2)
    made.add(1)
    made.restored(1, Plan()._asdict(), [[4, 1, 0, NOTHING, "", None]], pack_ids([7]))

    _, failed = made.replay()

    assert [number for number, _ in failed] == [1]
    assert order(made, (2, 0, "the", ""))[0]


def test_a_plan_with_other_keys_is_refused():
    with pytest.raises(TypeError):
        streams(1).opened(1, {"nothing": 1})
