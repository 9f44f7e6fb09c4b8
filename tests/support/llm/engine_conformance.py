"""What every engine of language models does, over the tiny model.

A module of tests has the fixtures `driver` (a `Driver` over the engine) and `tokenizer`, and takes these
tests in by `from tests.support.llm.engine_conformance import *`.
"""

import json
import math
import re
from collections import Counter
from typing import Any

import pytest

from actors.values.errors import InvalidArgument
from tests.support.llm import tiny

__all__ = [
    "idle",
    "prompts",
    "test_a_bad_request_is_refused_and_the_others_go_on",
    "test_a_grammar_is_kept_to",
    "test_a_grammar_that_can_t_be_read_is_refused_with_the_reason",
    "test_a_named_stop_ends_a_stream_and_is_told",
    "test_a_share_of_nothing_is_the_most_probable_token",
    "test_aborts_in_the_middle_give_their_blocks_back",
    "test_bias_lists_and_minimum_are_kept_to",
    "test_each_line_is_gone_on_with_to_the_end",
    "test_logprobs_are_the_model_s_own",
    "test_many_streams_at_once_say_what_each_says_alone",
    "test_prefixes_are_shared_within_one_salt_only",
    "test_prefixes_that_were_seen_are_found",
]

END = 2


@pytest.fixture
def prompts(tokenizer):
    """The ids of each line of the page."""
    return [tokenizer.encode(line, add_special_tokens=False) for line in tiny.lines()]


@pytest.fixture(autouse=True)
def idle(driver):
    """Every test leaves the engine as it was: no stream, and nothing held of the cache."""
    yield
    assert not driver.engine.busy
    gauges = driver.engine.gauges()
    assert (gauges.running, gauges.waiting, gauges.cache_used) == (0, 0, 0.0)


def _after(tokenizer, line):
    return [*tokenizer.encode(tiny.after(line), add_special_tokens=False), END]


def test_each_line_is_gone_on_with_to_the_end(driver, prompts, tokenizer):
    """All at once, greedily: the page that follows, and the end."""
    stories = [driver.add(ids, temperature=0, max_tokens=600) for ids in prompts]
    driver.run()
    for line, story in enumerate(stories):
        assert story.ids == _after(tokenizer, line)
        assert (story.finish, story.reason, story.error) == ("stop", None, "")


SAMPLINGS = (
    {"temperature": 0.0},
    {"temperature": 1.5, "seed": 1},
    {"temperature": 2.0, "seed": 2, "top_k": 5},
    {"temperature": 1.8, "seed": 3, "top_p": 0.8},
    {"temperature": 2.0, "seed": 4, "min_p": 0.05},
    {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.4, "presence_penalty": 0.5},
    {"temperature": 0.0, "frequency_penalty": 1.0, "logit_bias": {"65": 5.0}},
    {"temperature": 2.0, "seed": 6, "ignore_eos": True, "min_tokens": 30},
)


def test_many_streams_at_once_say_what_each_says_alone(driver, prompts):
    """32 streams of different sampling, seeded: none depends on its company."""
    asked = [
        (prompts[number % len(prompts)], {**SAMPLINGS[number % len(SAMPLINGS)], "max_tokens": 40})
        for number in range(32)
    ]
    together = [driver.add(ids, **sampling) for ids, sampling in asked]
    driver.run()
    for (ids, sampling), story in zip(asked, together, strict=True):
        alone = driver.one(ids, **sampling)
        assert story.ids == alone.ids, sampling
        assert story.finish == alone.finish != ""
    # Another seed says something else; or this test would see nothing.
    first = driver.one(prompts[0], temperature=2.0, seed=1, max_tokens=40)
    assert first.ids != driver.one(prompts[0], temperature=2.0, seed=2, max_tokens=40).ids


def test_aborts_in_the_middle_give_their_blocks_back(driver, prompts, tokenizer):
    """At once, and the streams beside them do not notice."""
    long = {"temperature": 0, "max_tokens": 300, "ignore_eos": True}
    gone = [driver.add(ids, **long) for ids in prompts[:6]]
    kept = driver.add(prompts[6], temperature=0, max_tokens=600)
    for _ in range(20):
        driver.step()
    assert driver.engine.gauges().running == 7
    held = driver.engine.gauges().cache_used
    lengths = [len(story.ids) for story in gone]
    assert min(lengths) > 0
    driver.abort(*gone)
    after = driver.engine.gauges()
    assert after.running == 1
    assert 0 < after.cache_used < held / 2
    late = driver.add(prompts[0], **long)
    driver.abort(late)
    assert driver.engine.gauges().waiting == 0
    driver.run()
    assert kept.ids == _after(tokenizer, 6)
    assert [len(story.ids) for story in gone] == lengths
    assert late.ids == []


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Ålesund", "Bergen"]}, "small": {"type": "boolean"}},
    "required": ["city", "small"],
    "additionalProperties": False,
}


def test_a_grammar_is_kept_to(driver, prompts, tokenizer):
    """Each kind, greedily and drawn, beside a stream that keeps to none."""
    free = driver.add(prompts[0], temperature=0, max_tokens=600)
    asked = [
        ({"json": SCHEMA}, lambda text: json.loads(text)["city"] in ("Ålesund", "Bergen")),
        ({"json": json.dumps(SCHEMA)}, lambda text: isinstance(json.loads(text)["small"], bool)),
        ({"regex": "[a-c]{3}-[0-9]x"}, lambda text: re.fullmatch("[a-c]{3}-[0-9]x", text)),
        ({"choice": ["yes", 'no "q"']}, lambda text: text in ("yes", 'no "q"')),
        ({"grammar": 'root ::= "a" [0-9] "z"'}, lambda text: re.fullmatch("a[0-9]z", text)),
    ]
    stories = [
        (driver.add(prompts[1], grammar=grammar, temperature=heat, seed=7, max_tokens=80), keeps)
        for grammar, keeps in asked
        for heat in (0.0, 1.5)
    ]
    driver.run()
    for story, keeps in stories:
        text = tokenizer.decode(story.ids, skip_special_tokens=True)
        assert (story.finish, story.error) == ("stop", ""), text
        assert keeps(text), text
    assert free.ids == _after(tokenizer, 0)


def test_logprobs_are_the_model_s_own(driver, prompts):
    """Before temperature and penalties: those of all tokens sum to 1, and ranks are in order."""
    story = driver.one(prompts[0], temperature=0, max_tokens=5, logprobs=20)
    hot = driver.one(prompts[0], temperature=2.0, seed=3, top_k=1, max_tokens=5, logprobs=20)
    assert hot.ids == story.ids
    for cool_told, hot_told, token in zip(story.chances, hot.chances, story.ids, strict=True):
        assert cool_told[0][0] == token
        assert cool_told[0][2] == 1
        assert [each[2] for each in cool_told[1:]] == list(range(1, 21))
        assert 0.95 < sum(math.exp(each[1]) for each in cool_told[1:]) < 1.0001
        for ours, theirs in zip(cool_told, hot_told, strict=True):
            assert ours[0] == theirs[0]
            assert ours[1] == pytest.approx(theirs[1], abs=1e-3)
    assert driver.one(prompts[0], temperature=0, max_tokens=3).chances == []
    chosen_only = driver.one(prompts[0], temperature=0, max_tokens=3, logprobs=0)
    assert [len(each) for each in chosen_only.chances] == [1, 1, 1]


def test_a_named_stop_ends_a_stream_and_is_told(driver, prompts, tokenizer):
    """Its id is the last, and the reason; a minimum holds it off."""
    said = _after(tokenizer, 0)
    stop = said[7]
    first = said.index(stop)
    story = driver.one(prompts[0], temperature=0, max_tokens=50, stop_token_ids=[stop])
    assert (story.ids, story.finish, story.reason) == (said[: first + 1], "stop", stop)
    later = driver.one(prompts[0], temperature=0, max_tokens=50, stop_token_ids=[stop], min_tokens=first + 3)
    assert len(later.ids) > first + 3
    ended = driver.one(prompts[0], temperature=0, max_tokens=3)
    assert (ended.ids, ended.finish) == (said[:3], "length")


def test_bias_lists_and_minimum_are_kept_to(driver, prompts):
    """What is forbidden never comes, drawn as hot as can be."""
    hot = {"temperature": 2.0, "seed": 11, "max_tokens": 60, "ignore_eos": True}
    allowed = [65, 66, 67, 68]
    listed = driver.one(prompts[0], allowed_token_ids=allowed, **hot)
    assert set(listed.ids) <= set(allowed)
    assert len(set(listed.ids)) > 1
    said = driver.one(prompts[0], temperature=0, max_tokens=30)
    often, _ = Counter(said.ids).most_common(1)[0]
    biased = driver.one(prompts[0], temperature=0, max_tokens=30, logit_bias={str(often): -100})
    assert often not in biased.ids
    bad = driver.one(prompts[0], temperature=0, max_tokens=30, bad_words_ids=[[said.ids[3]]])
    assert said.ids[3] not in bad.ids


def test_a_share_of_nothing_is_the_most_probable_token(driver, prompts):
    """OpenAI's `top_p` begins at 0."""
    greedy = driver.add(prompts[0], temperature=0, max_tokens=20)
    drawn = driver.add(prompts[0], temperature=2.0, top_p=0, max_tokens=20)
    driver.run()
    assert drawn.ids == greedy.ids


def test_prefixes_that_were_seen_are_found(driver, tokenizer):
    """The second time a long prompt comes, the first fact told is how much of it was there."""
    ids = tokenizer.encode(tiny.PAGE, add_special_tokens=False)[:200]
    driver.one(ids, temperature=0, max_tokens=2)
    before = driver.engine.gauges().prefix_hits
    again = driver.one(ids, temperature=0, max_tokens=2)
    assert 100 <= again.facts["cached"] < 200
    assert driver.engine.gauges().prefix_hits - before == again.facts["cached"]


def test_prefixes_are_shared_within_one_salt_only(driver, tokenizer):
    """How long a first token takes tells no other client what a client has asked."""
    ids = tokenizer.encode(tiny.PAGE, add_special_tokens=False)[20:220]

    def asked(**salt):
        story = driver.one(ids, temperature=0, max_tokens=40, **salt)
        return story.facts["cached"], story.ids

    first, said = asked(cache_salt="one")
    again = asked(cache_salt="one")
    assert first == 0
    assert again[0] >= 100
    assert [asked(cache_salt="two")[0], asked()[0]] == [0, 0]
    assert again[1] == said == asked()[1] == asked(cache_salt="two")[1]


BAD: Any = (
    ([], {}, "the prompt is empty"),
    ([511, 512], {}, "token id 512 is out of vocabulary"),
    ([5] * 3000, {}, "maximum context length"),
    ([5], {"max_tokens": 99999}, "are more than"),
    ([5], {"temperature": -1}, "'temperature'"),
    ([5], {"logit_bias": {"512": 1}}, "'logit_bias'"),
    ([5], {"grammar": {"regex": "a", "json": {}}}, "a grammar has one of"),
    ([5], {"grammar": {"riddle": "a"}}, "a grammar has one of"),
    ([5], {"grammar": {"choice": []}}, "'choice' must be a list"),
    ([5], {"grammar": {"regex": "a" * 300_000}}, "the most is"),
)


def test_a_bad_request_is_refused_and_the_others_go_on(driver, prompts, tokenizer):
    """Before the loop has heard of it."""
    story = driver.add(prompts[0], temperature=0, max_tokens=600)
    for ids, sampling, text in BAD:
        driver.step()
        with pytest.raises(InvalidArgument, match=text):
            driver.add(ids, **sampling)
    driver.run()
    assert story.ids == _after(tokenizer, 0)


@pytest.mark.parametrize(
    "grammar",
    [{"regex": "(a"}, {"json": {"type": "nonsense"}}, {"json": '{"type":'}, {"grammar": "nonsense"}],
    ids=["regex", "schema", "text", "grammar"],
)
def test_a_grammar_that_can_t_be_read_is_refused_with_the_reason(driver, prompts, grammar):
    """Whatever library the engine asks says why."""
    with pytest.raises(InvalidArgument) as refused:
        driver.add(prompts[0], grammar=grammar, max_tokens=9)
    assert len(refused.value.message) > 20
