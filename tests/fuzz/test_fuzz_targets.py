import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.campaign import Finding, campaign, corpus_of, replay
from tests.fuzz.targets import TARGETS

SEED = 20_000
INPUTS = {"calls": 400}  # that take longer: each is a connection with tasks of its own

EACH = pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))


@EACH
def test_recorded_and_found_inputs_break_no_rule(target):
    corpus = corpus_of(target)
    assert corpus
    for octets in corpus:
        replay(target, octets)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, pytest.param(10.0, marks=pytest.mark.long)])
@EACH
def test_a_thousand_inputs_break_no_rule(target, share):
    inputs = int(INPUTS.get(target.name, 1_000) * share)
    tally = campaign(target, inputs=inputs, seed=SEED)
    assert tally.inputs == inputs
    assert len(tally.outcomes) > 2, "the inputs reach more than the first check"


@EACH
def test_a_seed_says_which_inputs_there_are(target):
    corpus = corpus_of(target)
    twice = [[target.generate(Random(f"{seed}"), corpus) for seed in range(20)] for _ in range(2)]
    assert twice[0] == twice[1]
    assert len(set(twice[0])) > 10


class Fussy:
    """A target that breaks its rule on some inputs."""

    name = "fussy"
    prefix = "connection"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        return chance.randbytes(8)

    def check(self, octets: bytes) -> str:
        assert octets[0] != 7
        return "fine"


def test_a_finding_brings_the_input_that_reproduces_it():
    target = Fussy()
    with pytest.raises(Finding) as caught:
        campaign(target, inputs=10_000, seed=1)
    octets = caught.value.octets
    assert octets[0] == 7
    with pytest.raises(Finding, match="8 bytes"):
        replay(target, octets)


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
def test_the_command_line_runs_a_campaign_and_replays_a_file(tmp_path: Path):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.fuzz", "--target", "messages", "--findings", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    ran = subprocess.run(
        [*command, "--inputs", "200", "--seed", "3"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "200 inputs" in ran.stdout
    assert "seed 3" in ran.stdout
    file = tmp_path / "some.bin"
    file.write_bytes(b"\x00\x00\x00\x00\x00\x02ok")
    again = subprocess.run(
        [*command, "--replay", str(file)],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert again.stdout == "messages: complete\n"
