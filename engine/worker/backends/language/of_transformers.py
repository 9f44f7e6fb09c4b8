"""Language models by transformers: any causal model folder, many streams at once, tokens chosen by ourselves.

The library computes: its paged cache shares prefixes, and its scheduler mixes prompts and answers in one step
(`engine.worker.backends.language.paged`). Which token comes next is ours (`sampling`, `grammars`), so that
each stream has its own temperature, seed, penalties and grammar. A request is checked before the loop sees
it. What still goes wrong with one stream is that stream's error. An exception in a step means that the engine
is dead: its streams begin again in another worker, which the library's own recovery, an error for all, would
prevent.

A folder without a causal model serves embeddings only.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from engine.worker.backends.language.backend import LanguageBackend, wait_asleep
from engine.worker.backends.language.model_folder import find_folder, identity_of, read_arguments

if TYPE_CHECKING:
    from engine.worker.backends.base import ModelInfo
    from engine.worker.backends.language.engine import StepEngine


class TransformersBackend(LanguageBackend):
    """See the module."""

    name = "transformers"
    limits_gpu_memory = True
    runs_model_code = False

    def __init__(self) -> None:
        """Import the engines: while a model is loaded, our modules can't be found by their names."""
        _quiet()
        name = "engine.worker.backends.language.transformers_engine"
        self._engines: Any = importlib.import_module(name)

    @classmethod
    def prepare(cls) -> None:
        """Import what takes long. See `Backend.prepare`."""
        _quiet()
        import torch
        import transformers.generation.continuous_batching  # noqa: F401

        torch.set_num_threads(1)

    def make_engine(self, model: ModelInfo) -> StepEngine:
        """Load the folder. See `LanguageBackend.make_engine`."""
        arguments = read_arguments(model)
        folder = find_folder(model, arguments)
        _quiet()
        if model.kind != "GPU":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the cache's size would be that of a GPU's free memory
        model.phase("reading weights")
        engine: StepEngine = self._engines.load_model(model, folder, arguments)
        engine.identity = identity_of([folder], repr(arguments))
        return engine


def _quiet() -> None:
    """Have the library ask nothing of the network, and its threads sleep while they wait."""
    wait_asleep()
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
