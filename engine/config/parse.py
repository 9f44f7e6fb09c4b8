"""`config.pbtxt`: from text format to ModelConfig, with every mistake told at its place.

Contract: model_config.md section 1.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf import text_format

from actors.values.errors import ErrorCode
from engine.config.outline import outline
from engine.config.spans import Fault, Outline, Place, respelt, without_spoilt
from engine.config.unfilled import clear_unfilled
from engine.models.problems import Problem, Severity
from protocols.kserve.proto.model_config_pb2 import DataType, ModelConfig

# A configuration takes a few kilobytes. A larger file is a model by mistake.
LARGEST_FILE: Final = 16 * 1024 * 1024

# What a file begins with that is no UTF-8 as Triton reads it.
_MARKS: Final = {
    codecs.BOM_UTF8: "it begins with a byte order mark (BOM)",
    codecs.BOM_UTF16_LE: "it is UTF-16",
    codecs.BOM_UTF16_BE: "it is UTF-16",
}
_JSON: Final = re.compile(r'\s*\{\s*["}]')
_POSITION: Final = re.compile(r"^\d+:\d+ : ")
_INPUT_MAP: Final = re.compile(
    r'ensemble_scheduling\.step\[(?P<step>\d+)\]\.input_map\["(?P<input>.*)"\]\Z', re.DOTALL
)
# A ValueError is what protobuf raises for an enum's number that no int32 holds.
_REFUSED: Final = (text_format.ParseError, RecursionError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A configuration as written; `config` is None if it can't be read. `text` serves to find positions.

    If only some fields can't be read, `partial` is the configuration without them: its rules can be checked
    as well (see `engine.config.refusals`). `blanked` is then the text with those fields blanked, every
    position unmoved. `spoilt` are the keys of the fields that were left out, or that their authors may have
    meant.
    """

    config: ModelConfig | None
    problems: tuple[Problem, ...] = ()
    text: str = ""
    partial: ModelConfig | None = None
    blanked: str = ""
    spoilt: frozenset[str] = frozenset()

    def rename(self, name: str) -> None:
        """Have the model be called `name`, unless that is empty, whatever is written."""
        for config in (self.config, self.partial):
            if config is not None and name:
                config.name = name


def config_path(model_directory: Path, config_name: str = "") -> Path:
    """Return the file to read: `configs/<config_name>.pbtxt` if there is one, else `config.pbtxt`."""
    if config_name:
        configs = model_directory / "configs"
        chosen = configs / f"{config_name}.pbtxt"
        if chosen.is_relative_to(configs) and ".." not in chosen.parts and _is_there(chosen):
            return chosen
    return model_directory / "config.pbtxt"


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # The code that reads it says why that can't be done.
        return True


def read(path: Path) -> Parsed:
    """Read and parse the file `path`."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            return Parsed(config=None, problems=(unreadable(path, "it is no regular file"),))
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
        if len(raw) > LARGEST_FILE:
            return Parsed(
                config=None, problems=(unreadable(path, f"it is larger than {LARGEST_FILE} bytes"),)
            )
        foreign = next((name for mark, name in _MARKS.items() if raw.startswith(mark)), "")
        if foreign:
            return Parsed(
                config=None, problems=(unreadable(path, foreign, hint="save it as UTF-8 without BOM"),)
            )
        text = raw.decode()
    except OSError as error:
        return Parsed(config=None, problems=(unreadable(path, error.strerror or str(error)),))
    except UnicodeDecodeError as error:
        return Parsed(config=None, problems=(unreadable(path, f"it is not UTF-8 at byte {error.start}"),))
    return parse(text, path)


def parse(text: str, path: Path) -> Parsed:
    """Parse `text`, the content of `path`. Everything that the schema has no place for is told at once."""
    if _JSON.match(text):
        return Parsed(config=None, problems=(_json(text, path),), text=text)
    found = outline(text)
    clean = respelt(text, found.bytes_for_string, str(DataType.TYPE_STRING))
    warnings = [bytes_warning(spelling.key, path, spelling.place) for spelling in found.bytes_for_string]
    try:
        config = text_format.Parse(clean, ModelConfig())
    except _REFUSED as error:
        return _refused(text, clean, found, error, warnings, path)
    warnings += clear_unfilled(config)
    problems = (*warnings, *_repeated_entries(found, config, path))
    return Parsed(config=config, problems=problems, text=text)


def _json(text: str, path: Path) -> Problem:
    before = text[: text.index("{")]
    return unreadable(
        path,
        "it is JSON, and text format is wanted",
        line=before.count("\n") + 1,
        column=len(before) - before.rfind("\n"),
        hint='without the outer braces, and with bare names: name: "…" max_batch_size: 8',
    )


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


def _refused(
    text: str, clean: str, found: Outline, error: Exception, warnings: list[Problem], path: Path
) -> Parsed:
    """Return all that can be told about a text that protobuf refused with `error`, in the file's order."""
    problems = [_fault(fault, path) for fault in found.faults]
    partial, blanked = None, ""
    if not problems:
        problems = [_refusal(error, clean, found, path)]
    elif not found.lost:
        # Leave out what is known to be wrong, to learn whether the rest keeps the rules.
        blanked = without_spoilt(clean, found.spoilt)
        with contextlib.suppress(*_REFUSED):
            partial = text_format.Parse(blanked, ModelConfig())
    if partial is not None:
        warnings = [*warnings, *clear_unfilled(partial)]
    return Parsed(
        config=None,
        problems=(*problems, *warnings),
        text=text,
        partial=partial,
        blanked=blanked,
        spoilt=frozenset(
            key
            for key in (*(span.key for span in found.spoilt), *(fault.meant for fault in found.faults))
            if key
        ),
    )


def _fault(fault: Fault, path: Path) -> Problem:
    return unreadable(
        path, fault.message, line=fault.line, column=fault.column, key=fault.key, hint=fault.hint
    )


def _refusal(error: Exception, text: str, found: Outline, path: Path) -> Problem:
    """Return protobuf's own complaint."""
    if isinstance(error, RecursionError):
        return unreadable(path, "it is nested too deeply")
    if not isinstance(error, text_format.ParseError):  # a ValueError, which doesn't know where
        return unreadable(path, str(error))
    line, column = error.GetLine() or 0, error.GetColumn() or 0
    detail = _POSITION.sub("", str(error))
    if line:
        lines = text.split("\n")
        quoted = lines[line - 1] if line <= len(lines) else ""
        detail = detail.removeprefix(f"'{quoted}': ")
    return unreadable(path, detail, line=line, column=column, key=found.key_at(line, column))


def _repeated_entries(found: Outline, config: ModelConfig, path: Path) -> list[Problem]:
    """Return what is to be said of map entries whose key was there before: protobuf keeps the last."""
    problems: list[Problem] = []
    for key, (line, column) in found.repeated_entries:
        mapped = _INPUT_MAP.match(key)
        if mapped:
            number = int(mapped["step"])
            model = config.ensemble_scheduling.step[number].model_name
            message = (
                f"input '{mapped['input']}' in model '{model}' is mapped to multiple ensemble tensors"
                f" for ensemble '{config.name or path.parent.name}' step {number}"
            )
            severity, hint = Severity.ERROR, "keep one of the entries"
        else:
            message = f"'{key}' is given more than once, and the last one counts"
            severity, hint = Severity.WARNING, "keep one of the entries"
        problems.append(
            Problem(
                severity=severity, message=message, path=path, line=line, column=column, key=key, hint=hint
            )
        )
    return problems


def bytes_warning(key: str, path: Path, place: Place = (0, 0)) -> Problem:
    """Return what is said of each TYPE_BYTES."""
    return Problem(
        severity=Severity.WARNING,
        message="'TYPE_BYTES' is read as TYPE_STRING",
        path=path,
        line=place[0],
        column=place[1],
        key=key,
        hint="BYTES is the protocol's name for it; Triton itself refuses TYPE_BYTES",
    )
