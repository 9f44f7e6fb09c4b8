"""`config.pbtxt`: text format → ModelConfig, with every mistake told at its place (contract, model_config.md section 1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf import text_format

from actors.messages.errors import ErrorCode
from engine.config.outline import Fault, Outline, blank, outline
from engine.config.problems import Problem, Severity
from protocols.kserve.proto.model_config_pb2 import ModelConfig

LARGEST_FILE: Final = (
    16 * 1024 * 1024
)  # a configuration takes a few kilobytes; this one is a model by mistake

_POSITION: Final = re.compile(r"^\d+:\d+ : ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A configuration as written; `config` is None where `problems` has an error. `text` serves to find positions."""

    config: ModelConfig | None
    problems: tuple[Problem, ...] = ()
    text: str = ""


def config_path(model_directory: Path, config_name: str = "") -> Path:
    """Return the file to read: `configs/<config_name>.pbtxt` where there is one, else `config.pbtxt`."""
    if config_name:
        chosen = model_directory / "configs" / f"{config_name}.pbtxt"
        if chosen.is_file():
            return chosen
    return model_directory / "config.pbtxt"


def read(path: Path) -> Parsed:
    """Read and parse the file `path`."""
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        return Parsed(config=None, problems=(unreadable(path, "it is no regular file"),))
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
        if len(raw) > LARGEST_FILE:
            return Parsed(
                config=None, problems=(unreadable(path, f"it is larger than {LARGEST_FILE} bytes"),)
            )
        text = raw.decode()
    except OSError as error:
        return Parsed(config=None, problems=(unreadable(path, error.strerror or str(error)),))
    except UnicodeDecodeError as error:
        return Parsed(config=None, problems=(unreadable(path, f"it is not UTF-8 at byte {error.start}"),))
    return parse(text, path)


def parse(text: str, path: Path) -> Parsed:
    """Parse `text`, the content of `path`. All unknown fields and enum values are told at once."""
    warnings: list[Problem] = []
    clean = text
    if "TYPE_BYTES" in text:
        spelt = [fault for fault in outline(text).faults if fault.token == "TYPE_BYTES" and fault.is_value]
        clean = blank(text, spelt, "13")
        warnings = [_bytes_warning(fault, path) for fault in spelt]
    try:
        config = text_format.Parse(clean, ModelConfig())
    except (text_format.ParseError, RecursionError) as error:
        problems = (*_mistakes(clean, error, path), *warnings)
        return Parsed(config=None, problems=problems, text=text)
    return Parsed(config=config, problems=tuple(warnings), text=text)


def unreadable(
    path: Path, detail: str, *, line: int = 0, column: int = 0, key: str = "", hint: str = ""
) -> Problem:
    """Return the problem of a file that can't be parsed; the contract's text comes first."""
    return Problem(
        message=f"failed to read text proto from {path}: {detail}",
        path=path,
        line=line,
        column=column,
        key=key,
        hint=hint,
        code=ErrorCode.INTERNAL,
    )


def _mistakes(text: str, error: Exception, path: Path) -> list[Problem]:
    """Return all that can be told about a text that protobuf refused with `error`, in the order of the file."""
    found = outline(text)
    problems = [_fault(fault, path) for fault in found.faults]
    remaining: Exception | None = error
    if problems:  # put right what is known to be wrong, to learn whether something else is
        text = blank(text, [fault for fault in found.faults if fault.is_value], "0")
        remaining = _second_opinion(text)
    if remaining is not None:
        problems.append(_refusal(remaining, text, found, path))
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def _second_opinion(text: str) -> Exception | None:
    try:
        text_format.Parse(text, ModelConfig(), allow_unknown_field=True)
    except text_format.ParseError as error:
        return error
    except RecursionError:  # inside a field that is told of already
        return None
    return None


def _fault(fault: Fault, path: Path) -> Problem:
    return unreadable(
        path, fault.message, line=fault.line, column=fault.column, key=fault.key, hint=fault.hint
    )


def _refusal(error: Exception, text: str, found: Outline, path: Path) -> Problem:
    """Return protobuf's own complaint."""
    if not isinstance(error, text_format.ParseError):
        return unreadable(path, "it is nested too deeply")
    line, column = error.GetLine() or 0, error.GetColumn() or 0
    detail = _POSITION.sub("", str(error))
    if line:
        lines = text.split("\n")
        quoted = lines[line - 1] if line <= len(lines) else ""
        detail = detail.removeprefix(f"'{quoted}': ")
    return unreadable(path, detail, line=line, column=column, key=found.key_at(line, column))


def _bytes_warning(fault: Fault, path: Path) -> Problem:
    return Problem(
        severity=Severity.WARNING,
        message="'TYPE_BYTES' is read as TYPE_STRING",
        path=path,
        line=fault.line,
        column=fault.column,
        key=fault.key,
        hint="BYTES is the protocol's name for it; Triton itself refuses TYPE_BYTES",
    )
