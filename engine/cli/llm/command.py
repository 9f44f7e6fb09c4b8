"""`tritium run --llm`: serve one folder of a language model over the OpenAI API."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from engine.cli.llm.folder import BACKENDS, NotServable, check_servable, name_of, write_repository
from engine.cli.serve import started
from engine.settings.listening import host_port
from engine.settings.settings import Settings, SettingsError
from engine.worker.backends.language.model_folder import FOLDERS

FLAG: Final = "--llm"
_PORT: Final = 9000
_ADDRESS: Final = "127.0.0.1"
_NAME: Final = re.compile(r"[\w.-]+")
_EVERYWHERE: Final = ("0.0.0.0", "::")  # compared, not bound

HELP: Final = """\
usage: tritium run --llm FOLDER [--backend transformers|vllm] [--name NAME] [--environment PATH]
                   [--FLAG=VALUE | --FLAG VALUE]...

Serve the language model in one folder, until SIGTERM or SIGINT. The folder is as transformers writes it:
config.json, *.safetensors, and the tokenizer's files. It is read where it lies; nothing is downloaded, and no
code from it is run.

  --backend      the engine: transformers, the default, or vllm
  --name         what clients call the model; by default as the folder
  --environment  a Python environment for the engine, where its packages don't go with the server's: an
                 archive or a folder (docs/environments.md)

The OpenAI API is served at 127.0.0.1:9000, unless --openai-address or --openai-port say otherwise. The model
is served over the v2 API, too. The other flags are those of `tritium serve`, save for --model-control-mode.

examples:
  tritium run --llm ./Qwen3-0.6B
  tritium run --llm ./Qwen3-0.6B --name qwen --openai-port=8080 --openai-address=0.0.0.0
  tritium run --llm ./Qwen3-0.6B --backend vllm --environment ./vllm-env.tar.gz
"""

_SAID: Final = """\
Model '{name}' is served by {backend} once it is loaded. Ask it with curl:

  curl {url}/chat/completions -H 'Content-Type: application/json' -d '{{
    "model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

or with the package openai:

  from openai import OpenAI

  client = OpenAI(base_url="{url}", api_key="none")
  asked = [{{"role": "user", "content": "Hello"}}]
  for chunk in client.chat.completions.create(model="{name}", messages=asked, stream=True):
      print(chunk.choices[0].delta.content or "", end="", flush=True)

"""


class _Wrong(Exception):
    """The command line makes no sense."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Wrong(message)


def run_llm(argv: Sequence[str]) -> int:
    """Serve one folder until told to stop; return the process's exit status."""
    if any(word in {"--help", "-h"} for word in argv):
        sys.stdout.write(HELP)
        return 0
    try:
        options, flags = run_parser().parse_known_args(argv)
        folder = check_servable(Path(options.llm), options.backend, options.environment)
        name = _name(options.name, folder)
        with tempfile.TemporaryDirectory(prefix="tritium-run-") as temporary:
            environment = str(Path(options.environment).absolute()) if options.environment else ""
            write_repository(
                folder, Path(temporary), name=name, backend=options.backend, environment=environment
            )
            own = [f"--model-repository={temporary}"]
            if options.backend == "transformers":
                own.append(f"--backend-config=transformers,{FOLDERS}={folder}")
            settings = _settings([*own, *flags], os.environ)
            sys.stdout.write(how_to_ask(name, options.backend, settings))
            sys.stdout.flush()
            return started(settings)
    except _Wrong as error:
        return _complain(str(error))
    except NotServable as error:
        return _complain(str(error), error.hint)
    except SettingsError as error:
        return _complain(error.message, error.hint)


def run_parser() -> argparse.ArgumentParser:
    """Return the parser of what stands beside the flags of `tritium serve`."""
    parser = _Parser(prog="tritium run", add_help=False, allow_abbrev=False)
    parser.add_argument(FLAG, required=True)
    parser.add_argument("--backend", default=BACKENDS[0])
    parser.add_argument("--name", default="")
    parser.add_argument("--environment", default="")
    return parser


def _name(given: str, folder: Path) -> str:
    if given and not _NAME.fullmatch(given):
        raise NotServable(
            f"--name is '{given}', which no model can be called",
            "letters, digits, '_', '-' and '.' make a name",
        )
    return given or name_of(folder)


def _settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings, with the OpenAI API where no flag says where. Raises SettingsError."""
    settings = Settings.from_argv(argv, environ)
    if settings.control_mode != "none":
        raise SettingsError(
            f"--model-control-mode={settings.control_mode} is for repositories",
            hint="`tritium run` loads its folder once: leave the flag out, or use `tritium serve`",
        )
    more = [] if settings.openai.allow else [f"--openai-port={_PORT}"]
    more += [] if settings.openai.address else [f"--openai-address={_ADDRESS}"]
    return Settings.from_argv([*argv, *more], environ) if more else settings


def how_to_ask(name: str, backend: str, settings: Settings) -> str:
    """Return what clients do to ask the model: two texts to paste."""
    address, port = settings.openai.address, settings.openai.port
    if not port:
        return f"Model '{name}' is served by {backend} once it is loaded; the log tells the port.\n"
    reachable = _ADDRESS if address in _EVERYWHERE else address
    return _SAID.format(name=name, backend=backend, url=f"http://{host_port(reachable, port)}/v1")


def _complain(message: str, hint: str = "") -> int:
    sys.stderr.write(
        f"{message}\n" + (f"{hint}\n" if hint else "") + "`tritium run --llm --help` tells more.\n"
    )
    return 1
