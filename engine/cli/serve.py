"""`tritium serve`: read the settings, then hand over to the tree."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from engine.cli.manual.filling import columns, filled
from engine.settings.option import Flag, Group
from engine.settings.settings import FLAGS, Settings, SettingsError

_USAGE: Final = "usage: tritium serve REPOSITORY... [--FLAG=VALUE | --FLAG VALUE]...\n"

_EXAMPLES: Final = """\
examples:
  tritium serve ./models
  tritium serve --model-repository=./models --http-port=9000 --grpc-port=9001 --metrics-port=9002
  tritium serve --model-repository=./models --grpc-use-ssl=true --grpc-server-cert=s.pem --grpc-server-key=s.key
  tritium serve --model-repository=./models --model-control-mode=poll --repository-poll-secs=5
  tritium serve --model-repository=./models --model-control-mode=explicit --load-model=resnet --load-model=bert
  tritium serve --model-repository=s3://bucket/models --model-cache-size=100GiB
  tritium serve --model-repository=./models --log-format=json --log-requests=true
  tritium serve --model-repository=./models --backend-config=onnxruntime,intra_op_thread_count=2
  TRITIUM_MODEL_REPOSITORY=./models TRITIUM_HTTP_PORT=9000 tritium serve
"""

_ENVIRONMENT: Final = (
    "Each flag can be set by an environment variable too: TRITIUM_ and its name in capitals, with _ for -. A"
    " flag on the command line wins. TRITIUM_MODEL_REPOSITORY takes several directories separated by ':', other"
    " repeatable ones separate by ';'. Bool values are true, on, 1 and false, off, 0."
)

ALL: Final = "--help=all"
_FOLDED_GROUPS: Final = frozenset({Group.COMPATIBLE, Group.CLOUD})
_FOLDED_NAMES: Final = (
    "grpc-keepalive",
    "grpc-http2",
    "grpc-max-connection",
    "trace-file",
    "trace-level",
    "trace-rate",
    "trace-count",
    "trace-log",
)


def serve(argv: Sequence[str]) -> int:
    """Serve until told to stop; return the process's exit status."""
    if any(word in {"--help", "-h", ALL} for word in argv):
        sys.stdout.write(help_text(everything=ALL in argv))
        return 0
    try:
        settings = Settings.from_argv(argv, os.environ)
    except SettingsError as error:
        if _wants_json(argv, os.environ):
            sys.stdout.write(_as_json(error))
        else:
            sys.stderr.write(complaint(error))
        return 1
    return started(settings)


def started(settings: Settings) -> int:
    """Import the server and serve until told to stop; return the process's exit status."""
    # What is imported stays. The collector would look through all of it several times, for a sixth of the
    # time that a start takes.
    gc.disable()
    from engine.server.run import run

    gc.freeze()  # until the models are loaded: see `settle_garbage_collection`
    gc.enable()
    return run(settings)


def complaint(error: SettingsError) -> str:
    """Return what to print about settings that make no sense: the message, what would work, and the usage."""
    hint = f"{error.hint}\n" if error.hint else ""
    return f"{error.message}\n{hint}\n{_USAGE}`tritium serve --help` lists the flags.\n"


def _wants_json(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the log was to be JSON, of settings that could not be read."""
    name = "--log-format"
    given = [word.removeprefix(f"{name}=") for word in argv if word.startswith(f"{name}=")]
    given += [value for word, value in pairwise(argv) if word == name]
    return (given or [environ.get("TRITIUM_LOG_FORMAT", "")])[-1].lower() == "json"


def _as_json(error: SettingsError) -> str:
    # Not by the log's own module, which imports half the server: this is the quick way out.
    import json
    from datetime import UTC, datetime

    line = {
        "timestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
        "level": "error",
        "event": "server_failed",
        "error": error.message,
    }
    return json.dumps(line | ({"hint": error.hint} if error.hint else {})) + "\n"


def help_text(width: int | None = None, *, everything: bool = False) -> str:
    """Return the help: flags in their groups, with their defaults.

    Explanations are whole, and flags that few need are there, only with `everything`.
    """
    wide = columns(width)
    parts = [_USAGE, "\nServe the models of the repositories, until SIGTERM or SIGINT.\n\n", _EXAMPLES]
    shown = [flag for flag in FLAGS if everything or not _folded(flag)]
    for group in Group:
        described = [
            line for flag in shown if flag.group is group for line in _described(flag, wide, everything)
        ]
        if described:
            parts += [f"\n{group.value}:\n", *described]
    parts += ["\n", filled(_ENVIRONMENT, wide)]
    if not everything:
        more = (
            f"`tritium serve {ALL}` explains more, and has {len(FLAGS) - len(shown)} more flags: gRPC's"
            " keepalive, SageMaker and Vertex AI, files of secrets, what is deprecated, and those of Triton's that"
            " have no effect here."
        )
        parts += ["\n", filled(more, wide)]
    return "".join(parts)


def _folded(flag: Flag) -> bool:
    """Whether few need to know the flag."""
    return (
        flag.group in _FOLDED_GROUPS
        or flag.name.startswith(_FOLDED_NAMES)
        or flag.help.startswith("Deprecated")
        or (
            flag.name.removesuffix("-file") in {each.name for each in FLAGS if each.secret is not None}
            and flag.name.endswith("-file")
        )
    )


def _described(flag: Flag, wide: int, whole: bool) -> Iterator[str]:
    word = "|".join(flag.form.choices) or flag.form.metavar
    head = f"--{flag.name}={word}" if word else f"--{flag.name}"
    explanation = flag.help or f"No effect: {flag.no_effect}."
    if not whole:
        explanation = _in_short(explanation, flag.form.choices)
    if flag.default:
        explanation += f" [default:\N{NO-BREAK SPACE}{flag.default}]"
    yield f"  {head}\n"
    yield filled(explanation, wide, "      ")


def _in_short(explanation: str, choices: Sequence[str]) -> str:
    """Return the first sentence, if it is about the whole flag and not about one of its choices."""
    first = explanation.partition(". ")[0].removesuffix(".") + "."
    about_one = first == "Tritium's own." or first.partition(":")[0] in choices
    return explanation if about_one else first
