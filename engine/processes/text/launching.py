"""The text workers of a model's version: which folder has the tokenizer, and where what they print goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from actors.generation.texts import TextWorker, TextWorkers
from actors.seams.threads import in_thread
from actors.values.events import Event, Log
from actors.values.specs import LanguageServing, ModelSpec
from engine.processes.text.process import TextLauncher

ENGINE_FILE: Final = "model.json"
"""The arguments of an engine, in a version's directory (contract, llm.md section 3)."""


class VersionTexts(TextWorkers):
    """Launches the text workers of one version."""

    def __init__(self, spec: ModelSpec, *, environ: Mapping[str, str], log: Log) -> None:
        """`environ` is what workers inherit (`engine.processes.inheritance`)."""
        self._spec = spec
        self._environ = environ
        self._log = log

    async def launch(self) -> TextWorker:
        """See `TextWorkers`."""
        spec = self._spec
        assert isinstance(spec.scheduling, LanguageServing), "other models have no text"
        launcher = TextLauncher(
            await in_thread(tokenizer_folder, spec),
            model=f"{spec.name}/{spec.version}",
            environ=self._environ,
            report=self._report,
            tools=spec.scheduling.tools,
            reasoning=spec.scheduling.reasoning,
        )
        return await launcher.launch()

    def _report(self, lines: list[str], dropped: int) -> None:
        actor = f"models/{self._spec.name}/{self._spec.version}/texts"
        for line in lines:
            self._log(Event.WORKER_OUTPUT, actor=actor, line=line)
        if dropped:
            self._log(Event.WORKER_OUTPUT, level="warning", actor=actor, dropped_lines=dropped)


def tokenizer_folder(spec: ModelSpec) -> str:
    """Return the folder, or the name at a hub, of a version's tokenizer.

    That is what `tritium.tokenizer` names, else what the engine is told to load, else the version's
    directory. Reads a file. What can't be read is the engine's to complain of.
    """
    assert isinstance(spec.scheduling, LanguageServing), "other models have no tokenizer"
    named = spec.scheduling.tokenizer
    if named:
        return _within(spec.model_directory, named)
    try:
        arguments = json.loads((spec.version_directory / ENGINE_FILE).read_text())
        named = arguments.get("tokenizer") or arguments.get("model") or ""
    except (OSError, ValueError, AttributeError):
        named = ""
    return _within(spec.version_directory, str(named))


def _within(directory: Path, named: str) -> str:
    """Return a folder that is given relative to `directory`; a name that is no folder there stays one."""
    folder = directory / named
    return str(folder) if folder.is_dir() else named
