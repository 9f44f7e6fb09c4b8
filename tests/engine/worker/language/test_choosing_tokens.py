"""Tokens are chosen as a slow reference in numpy chooses them, whatever else is in the batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from actors.values.errors import InvalidArgument
from engine.worker.backends.language.choosing import Bounds, Choosing, check_prompt, read_choosing
from engine.worker.backends.language.sampling import Row, choose

VOCABULARY = 24
BOUNDS = Bounds(VOCABULARY, context=100, eos=frozenset({2}))
IDS = st.integers(0, VOCABULARY - 1)


class Words:
    """A grammar that allows some ids at each step, in the manner of llguidance."""

    def __init__(self, allowed):
        self.allowed = set(allowed)
        self.consumed = []

    def unsafe_compute_mask_ptr(self, pointer, nbytes):
        import ctypes

        bits = np.zeros(nbytes * 8, np.uint8)
        bits[sorted(self.allowed)] = 1
        ctypes.memmove(pointer, np.packbits(bits, bitorder="little").tobytes(), nbytes)

    def is_error(self):
        return False

    def get_error(self):
        return ""

    def consume_token(self, token):
        self.consumed.append(token)
        return token in self.allowed


@st.composite
def samplings(draw):
    """Fields of `sampling`, as JSON has them."""
    few = st.lists(IDS, max_size=4, unique=True)
    fields = {
        "temperature": draw(st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0])),
        "top_k": draw(st.sampled_from([0, 0, 1, 3, 10])),
        "top_p": draw(st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.05, 0.0])),
        "min_p": draw(st.sampled_from([0.0, 0.0, 0.1, 0.9])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.0, 1.5, -1.0])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.0, 0.7, -0.3])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 1.3, 0.7])),
        "logit_bias": {str(each): draw(st.sampled_from([-100.0, -2.0, 3.0, 100.0])) for each in draw(few)},
        "stop_token_ids": draw(few),
        "min_tokens": draw(st.integers(0, 3)),
        "ignore_eos": draw(st.booleans()),
        "max_tokens": 20,
        "logprobs": draw(st.sampled_from([None, None, 0, 3])),
        "seed": draw(st.integers(0, 2**63 - 1)),
    }
    if draw(st.booleans()):
        fields["allowed_token_ids"] = draw(st.lists(IDS, min_size=8, max_size=20, unique=True))
    return fields


def reference_logits(row, sampling, prompt, said, allowed):
    """Return what is drawn from, before temperature: one number after the other."""
    logits = [float(each) for each in row]
    for token, bias in sampling["logit_bias"].items():
        logits[int(token)] += bias
    stops = set(sampling["stop_token_ids"]) | (set() if sampling["ignore_eos"] else {2})
    for token in range(VOCABULARY):
        if token in prompt or token in said:
            penalty = sampling["repetition_penalty"]
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        logits[token] -= sampling["frequency_penalty"] * said.count(token)
        logits[token] -= sampling["presence_penalty"] * (token in said)
        forbidden = (
            ("allowed_token_ids" in sampling and token not in sampling["allowed_token_ids"])
            or (len(said) < sampling["min_tokens"] and token in stops)
            or (allowed is not None and token not in allowed)
        )
        if forbidden:
            logits[token] = -math.inf
    return np.array(logits)


def reference_chances(logits, sampling):
    """Return the probabilities that are drawn from."""
    logits = logits / sampling["temperature"]
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    chances[chances < sampling["min_p"] * chances.max() * (1 - 1e-6)] = 0.0
    order = np.argsort(-chances, kind="stable")
    ranked = chances[order][: sampling["top_k"] or VOCABULARY]
    ranked /= ranked.sum()
    if sampling["top_p"] < 1.0:
        before = np.cumsum(ranked) - ranked
        ranked = ranked[(before < sampling["top_p"]) | (np.arange(len(ranked)) == 0)]
    chances[chances < chances[order[len(ranked) - 1]]] = 0.0
    return chances / chances.sum()


@given(
    rows=st.lists(
        st.tuples(
            samplings(),
            st.lists(IDS, min_size=1, max_size=6),
            st.lists(IDS, max_size=6),
            st.none() | st.lists(IDS, min_size=10, unique=True),
        ),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_row_s_token_is_one_that_the_reference_may_choose(rows, seed):
    """The most probable one at temperature 0, else one that the cuts leave, alone as in company."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (len(rows), VOCABULARY)).astype(np.float32)

    def made(number):
        sampling, prompt, said, allowed = rows[number]
        choosing = read_choosing(sampling, len(prompt), BOUNDS)
        row = Row(choosing, prompt, VOCABULARY, "cpu", matcher=None if allowed is None else Words(allowed))
        for token in said:
            row.take(token)
        return row

    together = choose(torch.from_numpy(logits.copy()), [made(number) for number in range(len(rows))])
    for number, (sampling, prompt, said, allowed) in enumerate(rows):
        wanted = reference_logits(logits[number], sampling, prompt, said, allowed)
        if not np.isfinite(wanted).any():
            assert "no token is left" in together.failures[number]
            continue
        assert number not in together.failures
        token = together.tokens[number]
        if sampling["temperature"] == 0:
            assert wanted[token] == pytest.approx(wanted.max(), rel=1e-4, abs=1e-4)
        else:
            assert reference_chances(wanted, sampling)[token] > 0
        alone = choose(torch.from_numpy(logits[number : number + 1].copy()), [made(number)])
        assert alone.tokens == [token]
        told = together.chances[number]
        if sampling["logprobs"] is None:
            assert told is None
            continue
        assert told is not None
        truth = logits[number].astype(np.float64)
        truth -= truth.max() + np.log(np.exp(truth - truth.max()).sum())
        order = np.argsort(-truth, kind="stable")
        assert told[0][0] == token
        assert told[0][1] == pytest.approx(truth[token], abs=1e-4)
        assert order[told[0][2] - 1] == token
        assert [each[0] for each in told[1:]] == order[: sampling["logprobs"]].tolist()
        assert [each[2] for each in told[1:]] == list(range(1, sampling["logprobs"] + 1))


@pytest.mark.parametrize(
    "cut", [{}, {"top_k": 4}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 5, "top_p": 0.8, "temperature": 1.7}]
)
def test_tokens_come_as_often_as_their_probabilities_say(cut):
    """20,000 draws at once; each count lies within five standard deviations."""
    draws = 20_000
    sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 5, **cut}
    row = np.random.default_rng(5).normal(0, 1.5, VOCABULARY).astype(np.float32)
    choosing = read_choosing(sampling, 1, BOUNDS)
    torch.manual_seed(1)
    logits = torch.from_numpy(row).repeat(draws, 1)
    tokens = choose(logits, [Row(choosing, [1], VOCABULARY, "cpu") for _ in range(draws)]).tokens
    chances = reference_chances(row.astype(np.float64), sampling)
    counts = np.bincount(tokens, minlength=VOCABULARY)
    spread = np.sqrt(draws * chances * (1 - chances))
    assert (np.abs(counts - draws * chances) <= 5 * spread).all()


@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.3}, {"top_k": 9, "top_p": 0.3}, {"top_p": 0}])
def test_equally_probable_tokens_are_kept_together_in_any_company(cut):
    """As models of 16 bits have them: which of them a sort puts first depends on the rest of the batch."""
    logits = torch.tensor([2.0, *[1.0] * 400, 0.0]).repeat(2, 1)
    company = read_choosing({"temperature": 1.0, "top_p": 0.9, "max_tokens": 5}, 1, BOUNDS)

    def drawn(seed, *, alone):
        own = read_choosing({"temperature": 2.0, "seed": seed, "max_tokens": 5, **cut}, 1, BOUNDS)
        rows = [Row(each, [1], 402, "cpu") for each in ((own,) if alone else (own, company))]
        return choose(logits[: len(rows)].clone(), rows).tokens[0]

    alone = [drawn(seed, alone=True) for seed in range(40)]
    assert alone == [drawn(seed, alone=False) for seed in range(40)]
    if cut == {"top_p": 0}:
        assert set(alone) == {0}  # nothing is as probable as the first
    else:
        assert max(alone) > 40
    assert 401 not in alone


def test_a_bad_word_is_forbidden_only_behind_its_beginning():
    """A word of one id is never said; one of several may begin."""
    logits = torch.tensor([[0.0, 5.0, 4.0, 3.0]])
    row = Row(Choosing(9, temperature=0.0, bad_words_ids=[[1], [3, 2]]), [0], 4, "cpu")
    assert choose(logits.clone(), [row]).tokens == [2]
    row = Row(Choosing(9, temperature=0.0, bad_words_ids=[[1], [3, 2]]), [0], 4, "cpu", said=[3])
    assert choose(logits.clone(), [row]).tokens == [3]


def test_what_is_no_number_fails_its_own_row_alone():
    """A model that overflows for one stream leaves the others be."""
    logits = torch.tensor([[math.nan, 1.0], [0.0, 1.0]])
    chosen = choose(logits, [Row(Choosing(9, temperature=0.0), [0], 2, "cpu") for _ in range(2)])
    assert list(chosen.failures) == [0]
    assert chosen.tokens[1] == 1


def test_a_token_that_the_grammar_does_not_know_fails_its_row():
    """As if llguidance refused what its own mask allows."""

    class Refusing(Words):
        def consume_token(self, token):
            return False

    row = Row(Choosing(9, temperature=0.0), [0], VOCABULARY, "cpu", matcher=Refusing({3}))
    chosen = choose(torch.zeros(1, VOCABULARY), [row])
    assert chosen.failures == {0: "token 3 is none that the grammar allows"}


@pytest.mark.parametrize(
    ("sampling", "said", "finish"),
    [
        ({"max_tokens": 5}, [7, 2], "stop"),
        ({"max_tokens": 5, "ignore_eos": True}, [7, 2], ""),
        ({"max_tokens": 2}, [7, 7], "length"),
        ({"max_tokens": 5, "stop_token_ids": [7]}, [7], "stop"),
        ({"max_tokens": 1}, [2], "stop"),
    ],
)
def test_a_stream_ends_by_its_stops_or_its_length(sampling, said, finish):
    """The id that ends it is among what it has said."""
    row = Row(read_choosing(sampling, 1, BOUNDS), [1], VOCABULARY, "cpu", said=[2, 7, 7])
    for token in said:
        row.take(token)
    assert row.finish == finish


@pytest.mark.parametrize(
    ("sampling", "text"),
    [
        ({"temperature": -1}, "'temperature' must be from 0.0 to 100.0"),
        ({"temperature": "hot"}, "'temperature' must be a number"),
        ({"temperature": math.inf}, "'temperature' must be a number"),
        ({"top_p": -0.1}, "'top_p' must be from 0.0 to 1.0"),
        ({"top_k": -2}, "'top_k' must be -1 or more"),
        ({"top_k": 1.5}, "'top_k' must be a whole number"),
        ({"repetition_penalty": 0}, "'repetition_penalty' must be above 0"),
        ({"max_tokens": 0}, "'max_tokens' must be 1 or more"),
        ({"max_tokens": 99}, "are more than the 100"),
        ({"min_tokens": 9, "max_tokens": 3}, "'min_tokens' must be from 0 to 3"),
        ({"logprobs": -2}, "'logprobs' must be 0 or more"),
        ({"logit_bias": {"24": 1}}, "this model's token ids are 0 to 23"),
        ({"logit_bias": {"x": 1}}, "'logit_bias' has 'x'"),
        ({"logit_bias": {"3": 101}}, "must be from -100 to 100"),
        ({"logit_bias": [1]}, "'logit_bias' must be an object"),
        ({"stop_token_ids": [24]}, "'stop_token_ids' has 24"),
        ({"stop_token_ids": 3}, "'stop_token_ids' must be a list"),
        ({"allowed_token_ids": []}, "'allowed_token_ids' is empty"),
        ({"bad_words_ids": [[]]}, "none of them empty"),
        ({"bad_words_ids": "word"}, "must be a list"),
        ({"bad_words_ids": [[24]]}, "has 24; this model's token ids are 0 to 23"),
        ({"seed": 1.5}, "'seed' must be a whole number"),
        ({"grammar": "a"}, "'grammar' must be an object"),
    ],
)
def test_what_can_t_be_done_is_refused_by_name(sampling, text):
    """Before the engine has heard of it."""
    with pytest.raises(InvalidArgument, match=text):
        read_choosing(sampling, 3, BOUNDS)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], "the prompt is empty"),
        ([24], "token id 24 is out of vocabulary"),
        ([-1], "token id -1 is out of vocabulary"),
        ([1] * 100, "maximum context length is 100 tokens"),
    ],
)
def test_a_prompt_that_no_engine_takes_is_refused(ids, text):
    """With what would have worked."""
    with pytest.raises(InvalidArgument, match=text):
        check_prompt(ids, BOUNDS)


def test_what_is_not_said_is_filled_in():
    """As vLLM has it."""
    choosing = read_choosing({}, 40, BOUNDS)
    assert choosing == Choosing(max_tokens=60, stops=frozenset({2}))
    told = read_choosing({"logprobs": -1, "top_k": -1, "seed": -1, "grammar": {}}, 40, BOUNDS)
    assert (told.logprobs, told.top_k, told.seed, told.grammar) == (VOCABULARY, 0, 2**63 - 1, None)
    # A text that keeps to a grammar ends with it.
    ruled = read_choosing({"ignore_eos": True, "grammar": {"regex": "a"}}, 40, BOUNDS)
    assert ruled.stops == frozenset({2})


def test_an_engine_that_takes_over_draws_as_the_first_would_have():
    """Seeds and penalties: whatever was said by another engine, the next tokens are the same."""
    rng = np.random.default_rng(5)
    logits = [torch.from_numpy(rng.normal(0, 3, (1, VOCABULARY)).astype(np.float32)) for _ in range(12)]
    sampling = {"temperature": 1.5, "seed": 9, "presence_penalty": 1.0, "max_tokens": 50}
    choosing = read_choosing(sampling, 1, BOUNDS)
    whole = Row(choosing, [1], VOCABULARY, "cpu")
    said = [choose(each.clone(), [whole]).tokens[0] for each in logits]
    for cut in (1, 7, 11):
        second = Row(choosing, [1], VOCABULARY, "cpu", said=said[:cut])
        assert [choose(each.clone(), [second]).tokens[0] for each in logits[cut:]] == said[cut:]


def test_a_grammar_is_led_over_what_another_engine_has_said():
    row = Row(Choosing(9, temperature=0.0), [0], VOCABULARY, "cpu", matcher=Words({3, 4}), said=[3])
    assert row.failure == ""
    row = Row(Choosing(9, temperature=0.0), [0], VOCABULARY, "cpu", matcher=Words({3, 4}), said=[5])
    assert "none that the grammar allows" in row.failure
