"""The engine on transformers: what every engine does, and what is its own."""

import json
import math
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.values.errors import InvalidArgument
from engine.worker.backends.base import LoadError
from engine.worker.backends.language.model_folder import Arguments
from engine.worker.backends.language.of_transformers import TransformersBackend
from engine.worker.backends.language.transformers_engine import load_engine
from engine.worker.backends.testing import model_info
from tests.support.examples import examples
from tests.support.llm.engine_conformance import *  # noqa: F403
from tests.support.llm.engines import Driver

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def _engine(folder, **arguments):
    torch = pytest.importorskip("torch")
    return load_engine(str(folder), Arguments(**arguments), torch.device("cpu"))


@pytest.fixture(scope="module")
def loaded(tiny_model):
    """The engine that this module shares."""
    return _engine(tiny_model)


@pytest.fixture
def driver(loaded):
    """A driver of its own for each test."""
    return Driver(loaded)


def test_a_cache_too_small_for_all_computes_again_and_says_the_same(tiny_model, tokenizer, prompts):
    """Streams that lose their blocks begin again, seeded ones at the same place of their noise."""
    roomy, narrow = Driver(_engine(tiny_model)), Driver(_engine(tiny_model, num_blocks=16, max_num_seqs=16))
    assert narrow.engine.context < roomy.engine.context
    told = []
    for driver in (roomy, narrow):
        stories = [
            driver.add(
                ids,
                temperature=1.2,
                seed=number,
                max_tokens=120,
                ignore_eos=True,
                frequency_penalty=0.2,
                logprobs=0,
            )
            for number, ids in enumerate(prompts)
        ]
        driver.run()
        assert {story.finish for story in stories} == {"length"}
        told.append([story.ids for story in stories])
    assert told[0] == told[1]
    assert narrow.engine.gauges().cache_used == 0.0
    assert narrow.engine.gauges().preemptions > 0
    assert roomy.engine.gauges().preemptions == 0
    assert narrow.engine.facts() == {
        "cache": {"block_size": 32, "blocks": 16, "shared": True},
        "step_tokens": 512,
    }


def test_what_this_engine_can_t_do_is_refused_by_name(driver, prompts):
    """And not left out in silence."""
    for field in ({"adapter": "tone"}, {"prompt_logprobs": 1}):
        with pytest.raises(InvalidArgument, match=f"'{next(iter(field))}' can't be had"):
            driver.add(prompts[0], max_tokens=3, **field)


def test_what_rules_exclude_each_other_fails_its_stream_alone(driver, prompts):
    """A grammar of letters, and a list without any."""
    other = driver.add(prompts[0], temperature=0, max_tokens=20)
    story = driver.add(prompts[0], grammar={"regex": "[a-z]+"}, allowed_token_ids=[5], max_tokens=9)
    driver.run()
    assert "exclude each other" in story.error
    assert other.finish == "length"


@pytest.mark.parametrize(
    "grammar",
    [
        {"regex": "a{1000000000}"},
        {"regex": "(a|b){2,99999}"},
        {"grammar": 'start: "a"{10001}'},
        {"json": {"items": [{"type": "string", "pattern": "x{20000}"}]}},
    ],
)
def test_repeats_that_would_hold_up_other_streams_are_refused(driver, prompts, grammar):
    """Before the engine has them."""
    with pytest.raises(InvalidArgument, match="counted repeats may be of 10000"):
        driver.add(prompts[0], grammar=grammar, max_tokens=3)
    assert driver.one(prompts[0], grammar={"regex": r"a\{99999\}|a{2,9}"}, max_tokens=30, temperature=0).ids


events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9), st.integers(1, 60)),
        st.tuples(st.just("step"), st.integers(1, 5), st.none()),
        st.tuples(st.just("abort"), st.integers(0, 30), st.none()),
    ),
    max_size=40,
)


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(events=events)
def test_the_cache_is_free_again_whatever_is_added_stepped_and_aborted_in_any_order(
    narrow, prompts, right, events
):
    """Also where it is too small for all, so that streams lose their blocks and begin again."""
    driver = Driver(narrow)
    stories, gone = [], []
    for kind, number, most in events:
        if kind == "add":
            stories.append((number % len(prompts), most))
            story = driver.add(
                prompts[number % len(prompts)], temperature=0, max_tokens=most, ignore_eos=True
            )
            assert story.number == len(stories)
        elif kind == "step":
            for _ in range(number):
                driver.step()
        elif stories:
            story = driver.stories[number % len(stories) + 1]
            if not story.finish:
                driver.abort(story)
                gone.append(story.number)
    driver.run()
    for number, (prompt, most) in enumerate(stories, 1):
        ids = driver.stories[number].ids
        assert ids == right[prompt][: len(ids)]
        assert (len(ids) == most) or number in gone
    assert narrow.gauges().cache_used == 0.0
    assert (narrow.gauges().running, narrow.gauges().waiting) == (0, 0)


@pytest.fixture(scope="module")
def narrow(tiny_model):
    """An engine whose cache has room for few streams."""
    return _engine(tiny_model, num_blocks=16, max_num_seqs=16)


@pytest.fixture
def right(narrow, prompts):
    """What each prompt is gone on with, alone."""
    driver = Driver(narrow)
    return [driver.one(ids, temperature=0, max_tokens=60, ignore_eos=True).ids for ids in prompts]


def test_all_logprobs_sum_to_one(driver, prompts):
    """-1 asks for the whole vocabulary."""
    story = driver.one(prompts[2], temperature=0, max_tokens=3, logprobs=-1)
    for told in story.chances:
        assert len(told) == 1 + 512
        assert sum(math.exp(each[1]) for each in told[1:]) == pytest.approx(1.0, abs=1e-4)


def test_a_causal_model_gives_embeddings_beside_its_texts(driver, prompts):
    """Of length 1, the same in any company, and nearer to what is alike."""
    text = driver.add(prompts[0], temperature=0, max_tokens=10)
    together = [driver.add(ids, embed=True) for ids in prompts]
    driver.run()
    alone = driver.one(prompts[3], embed=True)
    assert alone.embedding == pytest.approx(together[3].embedding, abs=1e-5)
    assert sum(each * each for each in alone.embedding) == pytest.approx(1.0, abs=1e-5)
    assert len(text.ids) == 10


# -- folders ---------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path, tiny_model, monkeypatch):
    """A repository with one model, whose version has a model's folder; returns that.

    The backend hides GPUs from its process, which here is that of other tests, too.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    version = tmp_path / "repository" / "tide" / "1"
    shutil.copytree(tiny_model, version)
    return version


def _load(version, **options):
    backend = TransformersBackend()
    return backend.make_engine(model_info(version, inputs=[], outputs=[], name="tide", **options))


def test_the_version_s_directory_is_a_model_s_folder(repository):
    """config.json beside the weights; parameters say how it is served."""
    engine = _load(repository, parameters={"max_model_len": "100", "tritium.streams": "3"})
    assert engine.context == 100


def test_a_model_may_be_named_within_the_repository(repository):
    """By a path relative to the version's directory."""
    version = repository.parent / "2"
    version.mkdir()
    (version / "model.json").write_text(json.dumps({"model": "../1", "max_model_len": 64}))
    assert _load(version).context == 64


def test_a_model_outside_the_repository_is_the_operator_s_to_allow(repository, tiny_model):
    """By a setting of the backend, which names folders."""
    version = repository.parent / "2"
    version.mkdir()
    (version / "model.json").write_text(json.dumps({"model": str(tiny_model)}))
    with pytest.raises(LoadError, match="outside the model repository"):
        _load(version)
    assert _load(version, settings={"folders": f"/nowhere:{tiny_model.parent}"}).context == 2048


def _pickled(version):
    (version / "model.safetensors").unlink()
    (version / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def _with_code(version):
    config = json.loads((version / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "mine.Model"}
    (version / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_pickled, "only pytorch_model.bin, which can run code"),
        (_with_code, "code from a model folder is never run"),
        (
            lambda version: (version / "adapter_config.json").write_text(
                '{"base_model_name_or_path": "/elsewhere"}'
            ),
            "it is an adapter",
        ),
        (
            lambda version: (version / "model.json").write_text('{"attn_implementation": "someone/kernels"}'),
            "package of code",
        ),
        (lambda version: (version / "config.json").unlink(), "has no 'config.json'"),
        (lambda version: (version / "config.json").write_text("{"), "is no JSON"),
        (lambda version: (version / "config.json").write_text("{}"), "unable to load"),
        (lambda version: (version / "model.safetensors").write_bytes(b"ab"), "unable to load"),
        (lambda version: (version / "model.json").write_text("[]"), "must be a JSON object"),
        (lambda version: (version / "model.json").write_text('{"modell": 1}'), "has 'modell'"),
        (lambda version: (version / "model.json").write_text('{"dtype": "int3"}'), "'dtype' must be one of"),
        (lambda version: (version / "model.json").write_text('{"num_blocks": -1}'), "a whole number"),
        (
            lambda version: (version / "model.json").write_text('{"num_blocks": 1, "block_size": 8}'),
            "holds 8 tokens",
        ),
        (
            lambda version: (version / "model.json").write_text('{"num_blocks": 9999999}'),
            "cache can't be made",
        ),
        (
            lambda version: (version / "model.json").write_text('{"gpu_memory_utilization": 2}'),
            "above 0 and at most 1",
        ),
        (
            lambda version: (version / "model.json").write_text('{"enable_prefix_caching": 3}'),
            "true or false",
        ),
        (lambda version: (version / "model.json").write_text('{"model": "../../.."}'), "outside the model"),
    ],
)
def test_a_folder_that_can_t_be_served_says_why(repository, spoil, text):
    """And no code of it has run."""
    spoil(repository)
    with pytest.raises(LoadError, match=text):
        _load(repository)


def test_without_a_tokenizer_there_are_no_grammars_and_the_rest_is_served(repository, prompts):
    """Texts are not this engine's business."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (repository / name).unlink()
    driver = Driver(_load(repository))
    assert len(driver.one(prompts[0], temperature=0, max_tokens=4).ids) == 4
    with pytest.raises(InvalidArgument, match="can enforce no grammar"):
        driver.add(prompts[0], max_tokens=4, grammar={"regex": "a"})


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_that_has_slept_says_the_same(tiny_model, prompts, level):
    """Its cache is empty then, and its model where it was."""
    driver = Driver(_engine(tiny_model, block_size=4))
    before = driver.one(prompts[0], temperature=0, max_tokens=40)
    assert driver.one(prompts[0], temperature=0, max_tokens=1).facts["cached"] > 0
    facts, counted = driver.engine.facts(), driver.engine.gauges()
    driver.engine.sleep(level)
    assert not driver.engine.busy
    assert driver.engine.gauges() == counted._replace(cache_used=0.0)
    driver.engine.wake()
    assert driver.engine.facts() == facts
    after = driver.one(prompts[0], temperature=0, max_tokens=40)
    assert after.ids == before.ids
    assert after.facts["cached"] == 0


def test_weights_that_have_changed_meanwhile_are_not_taken_for_the_same(tiny_model, tmp_path):
    """The engine dies of it, and the next one loads them with all that the server knows of them."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    engine = _engine(folder)
    engine.sleep(2)
    (folder / "more.txt").write_text("new")
    with pytest.raises(RuntimeError, match="have changed since they were read"):
        engine.wake()
