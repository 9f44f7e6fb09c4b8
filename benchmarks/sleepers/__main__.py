"""`python -m benchmarks.sleepers`: what a turn costs where two language models share room for one."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import httpx
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.subjects import CHECKOUT, NotStarted, Subject, server, tree
from benchmarks.terminal import Terminal
from chaos.subject.ports import free_ports
from examples.llm.tiny_model import make

_DESCRIPTION: Final = """\
Serve two language models of random weights by transformers, and ask them by turns over the OpenAI API.
Measured is how long each answer of 8 tokens takes: with room for both, and with room for one and a sleeper,
where the other one is evicted or put to sleep. Every text has to be that of the model's first answer."""

_MODELS: Final = ("first", "second")
_WAYS: Final = {"room for both": 0, "evicted": 0, "asleep, level 1": 1, "asleep, level 2": 2}
_MIB: Final = 1 << 20
_AMPLE: Final = 64 << 30
_SHARE: Final = 1.65
"""Of one model's memory: the room for both, where they take turns."""


class WrongText(Exception):
    """A model that was away did not say what it had said before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Seconds of each answer behind each model's first one, and the most bytes that a model took."""

    seconds: tuple[float, ...]
    resident: int


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sleepers", description=_DESCRIPTION)
    parser.add_argument("--width", type=int, default=768, help="of the hidden state, × 64 (default: 768)")
    parser.add_argument("--layers", type=int, default=8, help="(default: 8)")
    parser.add_argument("--turns", type=int, default=5, help="of each model (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there")
    return parser


def _make(folder: Path, tiny: Path, *, width: int, layers: int, seed: int) -> None:
    """Write a model of random weights, in float32, with the tiny model's tokenizer."""
    torch.manual_seed(seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny)
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_repository(models: Path, weights: Path, level: int) -> None:
    for name in _MODELS:
        version = models / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(
            'backend: "transformers"\n'
            'parameters { key: "tritium.residency" value { string_value: "on_demand" } }\n'
            f'parameters {{ key: "tritium.sleep" value {{ string_value: "{level}" }} }}\n'
        )
        told = {"model": str(weights / name), "num_blocks": 256, "block_size": 32, "dtype": "float32"}
        (version / "model.json").write_text(json.dumps(told))


def _ask(port: int, model: str) -> str:
    body = {
        "model": model,
        "prompt": "In January the sea froze",
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
    }
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=300)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


def _largest(subject: Subject) -> int:
    """The most bytes that a model takes now."""
    (services,) = (each for each in tree(subject)["children"] if each["name"] == "services")
    (residency,) = (each for each in services["children"] if each["name"] == "residency")
    return max(residency["info"]["models"].values())


def _take_turns(models: Path, weights: Path, *, limit: int, turns: int) -> Turns:
    (openai,) = free_ports(1)
    options = [f"--openai-port={openai}", f"--resident-memory-limit={limit}"]
    options += [f"--backend-config=transformers,folders={weights}"]
    with server("server", CHECKOUT, models, models.parent, options) as subject:
        texts = {name: _ask(openai, name) for name in _MODELS}
        seconds = []
        for name in _MODELS * turns:
            began = time.monotonic()
            text = _ask(openai, name)
            seconds.append(time.monotonic() - began)
            if text != texts[name]:
                raise WrongText(f"{name}: {text!r} in place of {texts[name]!r}")
        return Turns(seconds=tuple(seconds), resident=_largest(subject))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; return the exit code."""
    given = _parser().parse_args(argv)
    found: dict[str, Turns] = {}
    limit = _AMPLE
    try:
        with Terminal() as terminal, tempfile.TemporaryDirectory(prefix="tritium-benchmarks-") as directory:
            scratch = Path(directory)
            weights = scratch / "weights"
            terminal.step("making the models")
            tiny = make(scratch / "tiny")
            for seed, name in enumerate(_MODELS):
                _make(weights / name, tiny, width=given.width, layers=given.layers, seed=seed)
            for label, level in _WAYS.items():
                terminal.step(label)
                models = scratch / f"models-{len(found)}"
                _write_repository(models, weights, level)
                found[label] = _take_turns(models, weights, limit=limit, turns=given.turns)
                limit = int(next(iter(found.values())).resident * _SHARE)
    except (NotStarted, WrongText, httpx.HTTPError, OSError, ValueError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    print(
        f"a model takes {next(iter(found.values())).resident / _MIB:.0f} MiB, and both get {limit / _MIB:.0f}"
    )
    print(f"{'the other one':20}{'median, s':>12}{'longest, s':>12}")
    for label, told in found.items():
        print(f"{label:20}{median(told.seconds):12.2f}{max(told.seconds):12.2f}")
    if given.json is not None:
        given.json.write_text(json.dumps({label: asdict(told) for label, told in found.items()}) + os.linesep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
