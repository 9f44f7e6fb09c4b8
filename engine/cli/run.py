"""`tritium run`: serve one Python file, or one folder of a language model, without a repository."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.cli.llm.command import FLAG, run_llm
from engine.cli.serve import started
from engine.settings.settings import Settings, SettingsError
from engine.worker.authoring.folder import NotAModelFile, config_beside, write_repository

_HELP: Final = """\
usage: tritium run FILE [--FLAG=VALUE | --FLAG VALUE]...
       tritium run --llm FOLDER [--FLAG=VALUE | --FLAG VALUE]...

Serve the model in one Python file, until SIGTERM or SIGINT: a function under the decorator `tritium.model`, or a class
TritonPythonModel. The file is run where it lies, and may import the modules beside it. The model is called as the file is,
or as its folder where that is model.py; its configuration is completed from it, over the config.pbtxt beside the file if
there is one.

The flags are those of `tritium serve`, save for --model-control-mode: the model is loaded once, and edits show when it is run again.
Repositories given by --model-repository are served as well.

With --llm, serve the language model in a folder; `tritium run --llm --help` tells more.

examples:
  tritium run my_model.py
  tritium run my_model.py --http-port=9000 --grpc-port=9001 --metrics-port=9002
  tritium run ensemble_step.py --model-repository=./models
  tritium run --llm ./Qwen3-0.6B
"""


def run(argv: Sequence[str]) -> int:
    """Serve one file until told to stop; return the process's exit status."""
    if any(word == FLAG or word.startswith(f"{FLAG}=") for word in argv):
        return run_llm(argv)
    if not argv or any(word in {"--help", "-h"} for word in argv):
        sys.stdout.write(_HELP)
        return 0 if argv else 1
    name, *flags = argv
    if name.startswith("-"):
        return _complain(
            f"'{name}' stands where the file should be", "tritium run my_model.py --http-port=9000"
        )
    with tempfile.TemporaryDirectory(prefix="tritium-run-") as folder:
        try:
            write_repository(Path(name), Path(folder), config_beside(Path(name)))
            settings = Settings.from_argv([f"--model-repository={folder}", *flags], os.environ)
        except NotAModelFile as error:
            return _complain(str(error))
        except SettingsError as error:
            return _complain(error.message, error.hint)
        if settings.control_mode != "none":
            return _complain(
                f"--model-control-mode={settings.control_mode} is for repositories",
                "`tritium run` loads its file once: leave the flag out, or use `tritium serve`",
            )
        return started(settings)


def _complain(message: str, hint: str = "") -> int:
    sys.stderr.write(f"{message}\n" + (f"{hint}\n" if hint else "") + "`tritium run --help` tells more.\n")
    return 1
