"""The fake language model: a true tokenizer agrees with it, and an engine goes on behind any of its ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.errors import InvalidArgument
from chaos.languages import page
from chaos.languages.page import END, STOPS, TEXT, Asked, text_of
from chaos.languages.telling import DIES_AT, Telling
from engine.worker.text.loading import load

ASKED = st.builds(Asked, st.integers(1, 150), st.integers(0, 200), st.just(False))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    page.write_folder(folder)
    return load(str(folder))


@given(asked=ASKED, most=st.none() | st.integers(1, 160))
def test_the_tokenizer_makes_the_same_text_of_the_ids(loaded, asked, most):
    assert loaded.tokenizer.decode(asked.ids(most)) == asked.text(most)
    assert loaded.vocabulary.eos == {END}


def test_a_prompt_is_read_back_from_its_ids(loaded):
    for asked in (Asked(40, 3), Asked(1, 0, dies=True)):
        assert text_of(loaded.tokenizer.encode(asked.prompt).ids) == asked.prompt
        assert Asked.of(f"{asked.prompt}\n") == asked
    assert Asked.of("hello") is None


def test_tokens_begin_and_end_within_characters():
    ids = Asked(60, 0).ids()[:-1]
    broken = [each for each in ids if "\ufffd" in text_of([each])]
    assert len(broken) > 5


def test_a_stop_cuts_the_text_and_each_of_them_comes():
    whole = Asked(200, 0)
    for stop in STOPS:
        assert stop in TEXT
        assert whole.text(stops=(stop,)) == whole.text().partition(stop)[0]
    assert whole.text(stops=STOPS) == whole.text().partition("slept by")[0]


def said_by(engine, prompt, sampling):
    engine.add(1, engine.prepare(prompt, sampling))
    outputs = []
    while engine.busy:
        outputs += engine.step()
    ids = [token for each in outputs for token in each.ids]
    return ids, outputs[-1].finish


@given(asked=ASKED, most=st.integers(1, 160), cut=st.integers(0, 159))
def test_another_engine_goes_on_behind_what_the_first_has_said(loaded, asked, most, cut):
    prompt = loaded.tokenizer.encode(asked.prompt).ids
    whole, finish = said_by(Telling(), prompt, {"max_tokens": most})
    assert whole == asked.ids(most)
    assert finish == ("stop" if asked.tokens < most else "length")
    cut %= len(whole)
    sampling = {"max_tokens": most - cut, "generated": cut}
    assert said_by(Telling(), [*prompt, *whole[:cut]], sampling) == (whole[cut:], finish)


def test_what_it_would_not_have_said_is_refused(loaded):
    prompt = loaded.tokenizer.encode(Asked(40, 3).prompt).ids
    with pytest.raises(InvalidArgument, match="something else"):
        Telling().prepare([*prompt, END], {"max_tokens": 9, "generated": 1})
    with pytest.raises(InvalidArgument, match="understands"):
        Telling().prepare(prompt[:4], {"max_tokens": 9})


def test_streams_wait_for_room_and_end_at_once_when_they_are_called_off(loaded):
    engine = Telling(room=1)
    prompt = loaded.tokenizer.encode(Asked(40, 3).prompt).ids
    for stream in (1, 2, 3):
        engine.add(stream, engine.prepare(prompt, {"max_tokens": 9}))
    assert [each.stream for each in engine.step()] == [1]
    assert engine.gauges()[:2] == (1, 2)
    engine.abort([1, 2])
    assert [each.stream for each in engine.step()] == [3]
    engine.abort([3])
    assert not engine.busy


def test_a_prompt_may_kill_it(loaded):
    class Died(Exception):
        pass

    def died():
        raise Died

    engine = Telling(die=died)
    prompt = loaded.tokenizer.encode(Asked(40, 3, dies=True).prompt).ids
    engine.add(1, engine.prepare(prompt, {"max_tokens": 9}))
    for _ in range(DIES_AT):
        engine.step()
    with pytest.raises(Died):
        engine.step()
