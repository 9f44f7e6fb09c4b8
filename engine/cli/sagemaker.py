"""`tritium sagemaker`: serve as Amazon SageMaker has its containers serve."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.cli.serve import serve
from engine.settings.cloud.entry import SINGLE_MODEL, EntryRefused, ModelFolder, entry_of, has_many

_HELP: Final = f"""\
usage: tritium sagemaker [--model-directory=DIR] [FLAG...]

Serve as Amazon SageMaker has its containers serve: what the platform and the endpoint's author say in
environment variables, SAGEMAKER_*, becomes flags of `tritium serve`, and FLAGs follow them. In an image for
SageMaker it is the program `serve`.

  --model-directory=DIR  where the models of an endpoint with one lie, {SINGLE_MODEL} on the platform

Where SAGEMAKER_MULTI_MODEL is true, --sagemaker-models-directory=DIR names the folder of the models.

examples:
  tritium sagemaker
  SAGEMAKER_MULTI_MODEL=true tritium sagemaker --sagemaker-models-directory=./endpoint
  tritium sagemaker --model-directory=./models --http-address=127.0.0.1
"""
_DIRECTORY: Final = "--model-directory="


def sagemaker(argv: Sequence[str]) -> int:
    """Serve until told to stop; return the process's exit status."""
    from engine.processes.gpus.nvml import find_gpus

    if any(word in {"--help", "-h"} for word in argv):
        sys.stdout.write(_HELP)
        return 0
    many = has_many(os.environ)
    path = SINGLE_MODEL
    flags: list[str] = []
    for word in argv:
        if not word.startswith(_DIRECTORY):
            flags.append(word)
            continue
        path = word.removeprefix(_DIRECTORY)
        if many:
            sys.stdout.write(
                f"ERROR: {word} is for an endpoint with one model, and SAGEMAKER_MULTI_MODEL is true\n"
                f"       Name the folder of many by --sagemaker-models-directory={path}\n"
            )
            return 1
    model = ModelFolder() if many else _look(path)
    try:
        entry = entry_of(os.environ, model, gpus=len(find_gpus(os.environ)))
    except EntryRefused as error:
        sys.stdout.write(f"{error}\n")
        return 1
    for line in entry.said:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    if entry.directory:
        Path(entry.directory).mkdir(parents=True, exist_ok=True)
    os.environ.update(entry.environ)
    return serve([*entry.flags, *flags])


def _look(path: str) -> ModelFolder:
    try:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in os.scandir(path)]
    except OSError:
        return ModelFolder(path=path)
    return ModelFolder(
        path=path,
        folders=tuple(name for name, folder in entries if folder),
        configured=any(name == "config.pbtxt" for name, _ in entries),
    )
