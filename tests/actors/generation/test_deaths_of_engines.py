"""Who is to blame for an engine's death, and what becomes of a choice. Without a loop."""

from array import array

import pytest

from actors.generation.policy.journal import Choice, Prompt
from actors.generation.policy.resuming import Fate, Resumes, end_of, fate_of, obstacle, onward
from actors.generation.policy.suspects import FIRST_STEPS, MOST_DEATHS, look_into
from actors.values.generation.asking import TEXT, Ask
from actors.values.generation.pieces import TextPiece


def choice(steps=0, *, index=0, **sampling):
    """Return a choice for which the present engine has given so many tokens."""
    made = Choice(index, Prompt(array("i", [1, 2, 3])), {"max_tokens": 100, **sampling})
    made.generated([5] * steps, None, "")
    return made


@pytest.mark.parametrize(
    ("sampling", "able", "why"),
    [
        ({}, (), ""),
        ({"repetition_penalty": 1.2, "logit_bias": {"1": 2.0}, "top_p": 0.5}, (), ""),
        ({"seed": 4, "temperature": 0.0}, (), ""),
        ({"seed": 4, "temperature": 0.1}, (), "its seed"),
        ({"seed": 4, "temperature": 0.1}, ("seeds",), ""),
        ({"grammar": {"json": "{}"}}, (), "its grammar"),
        ({"grammar": {"json": "{}"}}, ("grammars",), ""),
        ({"presence_penalty": 0.5}, (), "for its presence_penalty"),
        ({"bad_words_ids": [[1]]}, (), "for its bad_words_ids"),
        ({"frequency_penalty": 0.5}, ("penalties",), ""),
        ({"prompt_logprobs": 0}, ("seeds", "penalties", "grammars"), "probabilities of its prompt"),
    ],
)
def test_what_keeps_an_answer_from_going_on(sampling, able, why):
    found = obstacle(Ask(TEXT), sampling, choices=1, engine=Resumes.of(list(able)))
    assert (why in found) if why else not found


def test_what_becomes_of_a_choice():
    ask, able = Ask(TEXT), Resumes.of(None)
    seeded = choice(3, seed=1, temperature=1.0)
    assert fate_of(ask, seeded, choices=9, sent=False, engine=able) == (Fate.AGAIN, "")
    assert fate_of(ask, seeded, choices=1, sent=True, engine=able)[0] is Fate.LOST
    assert fate_of(ask, choice(3), choices=1, sent=True, engine=able) == (Fate.ONWARD, "")
    assert "2 choices" in fate_of(ask, choice(3), choices=2, sent=True, engine=able)[1]
    assert "tritium.resume" in fate_of(ask, choice(3), choices=1, sent=False, engine=None)[1]
    echoed = Ask(TEXT, echo=True)
    assert fate_of(echoed, choice(1, logprobs=0), choices=1, sent=True, engine=able)[0] is Fate.LOST


def test_what_becomes_of_a_choice_whose_engine_leaves():
    ask, able = Ask(TEXT), Resumes.of(None)
    seeded, plain = choice(3, seed=1, temperature=1.0), choice(3)

    def fate(choice, *, sent, engine=able):
        return fate_of(ask, choice, choices=1, sent=sent, engine=engine, dead=False)[0]

    assert [fate(plain, sent=sent) for sent in (False, True)] == [Fate.ONWARD, Fate.ONWARD]
    assert [fate(seeded, sent=sent) for sent in (False, True)] == [Fate.AGAIN, Fate.LOST]
    assert fate(choice(0), sent=False) is Fate.AGAIN
    assert fate(plain, sent=False, engine=None) is Fate.LOST


def test_how_far_a_choice_has_come():
    made = choice(stop_token_ids=[7])
    assert end_of(made, stops=[0], context=100) == ""
    for last, ignore, finish in ((7, False, "stop"), (0, False, "stop"), (0, True, ""), (5, False, "")):
        made = choice(stop_token_ids=[7], ignore_eos=ignore)
        made.generated([1, last], None, "")
        assert end_of(made, stops=[0], context=100) == finish
    assert end_of(made, stops=[0], context=5) == "length"
    assert onward({"max_tokens": 9, "min_tokens": 5}, 2) == {"max_tokens": 7, "min_tokens": 3, "generated": 2}
    assert onward({"max_tokens": 9}, 2) == {"max_tokens": 7, "generated": 2}


def test_those_in_their_first_steps_are_the_suspects_and_the_others_innocent():
    old, young, new = choice(40), choice(1), choice(0)
    found = look_into([old, new, young], blamed=True)
    assert (found.innocent, found.suspect) == ([old], [young, new]), "those in their first steps last"
    assert (found.poisoned, found.unlucky) == ([], [])


def test_where_none_is_in_its_first_steps_all_are_suspect():
    runs = [choice(5), choice(9)]
    assert look_into(runs, blamed=True).suspect == [runs[1], runs[0]]


def test_the_second_death_in_a_row_under_a_suspect_is_its_own():
    killer = choice()
    look_into([killer], blamed=True)
    assert look_into([killer, choice(30)], blamed=True).poisoned == [killer]


def test_first_steps_acquit_but_not_for_ever():
    killer = choice()
    for _ in range(MOST_DEATHS - 1):
        assert look_into([killer], blamed=True).suspect == [killer]
        killer.go_on()
        killer.generated([5] * FIRST_STEPS, None, "")
    assert look_into([killer], blamed=True).unlucky == [killer]


def test_a_death_from_outside_makes_no_suspects_at_first():
    run = choice()
    found = [look_into([run], blamed=False) for _ in range(6)]
    assert [bool(each.innocent) for each in found] == [True, True, False, False, False, False]
    assert [bool(each.suspect) for each in found] == [False, False, True, True, True, False]
    assert found[-1].unlucky == [run]


def test_a_choice_begins_again_with_nothing_or_goes_on_with_all():
    made = choice(3)
    made.tell(TextPiece(0, text="abc", tokens=2, reasoning_tokens=1))
    made.go_on()
    assert (made.attempts, made.steps, len(made.ids), made.told, made.delivered.characters) == (2, 0, 3, 2, 3)
    made.begin_again()
    assert (made.attempts, made.steps, len(made.ids), made.told, made.delivered.characters) == (3, 0, 0, 0, 0)
    assert (made.reasoning, made.finish, made.chances) == (0, "", None)
