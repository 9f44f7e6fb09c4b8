"""What `tritium init` says: a table of what was found, what is left to do, and which commands come next."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from textwrap import wrap
from typing import Final

from actors.values.datatypes import BY_NUMBER
from engine.cli.init.configuring import CONFIG, Configured
from engine.observability.starting.hints import made_up
from engine.observability.text import aligned, printable
from engine.repository.bare.finding import MOST_ENTRIES, BareModel, Found
from engine.repository.bare.policy.formats import Engine
from protocols.kserve.proto.model_config_pb2 import ModelInput

_WIDTH: Final = 108
_OTHERS_SHOWN: Final = 5
_MOST_VALUES: Final = 64  # of a request to paste
_READY, _TODO, _NEEDS, _NOT = "ready", "to do", "backend missing", "not written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one model.

    Without `done` it was not laid out: because of what it is, or as `refused` says. `errors` are what
    keeps it from loading besides, and `missing` what its backend lacks here.
    """

    model: BareModel
    engine: Engine | None = None
    done: Configured | None = None
    errors: tuple[str, ...] = ()
    missing: str = ""
    refused: str = ""

    @property
    def ok(self) -> bool:
        """Whether a server here would load the model, and clients could ask it."""
        return self.done is not None and self.done.ok and not self.missing

    @property
    def state(self) -> str:
        """One or two words for the table."""
        if self.done is None:
            return _NOT
        if self.missing:
            return _NEEDS
        return _READY if self.ok else _TODO

    def left(self) -> Iterator[str]:
        """Yield what is left to do, in sentences."""
        if self.refused or self.model.problem:
            yield self.refused or self.model.problem
        elif self.done is None:
            yield self.model.form.advice or "its archive can't be read"
        if self.missing:
            yield self.missing
            if self.model.form.advice:
                yield self.model.form.advice
        if self.done is not None:
            yield from self.done.todo
            yield from (error for error in self.errors if not self.missing or error.find(self.missing) < 0)


def report(
    source: Path,
    repository: Path,
    found: Found,
    outcomes: Sequence[Outcome],
    *,
    dry: bool,
    symbolic: bool,
    at_home: bool,
) -> Iterator[str]:
    """Yield the lines about the files in `source`, which are in the repository already if `at_home`."""
    yield from _served(source, found)
    if outcomes:
        yield from aligned(_table(source, outcomes)).splitlines()
    elif not found.served:
        yield f"no model was recognised in '{printable(str(source))}'"
    yield from _other_files(source, found)
    yield from _left(source, repository, outcomes)
    written = [outcome for outcome in outcomes if outcome.done is not None]
    if at_home and written:
        yield ""
        yield "Would be written, and nothing else:" if dry else "Written, and nothing else:"
        yield f"  {printable(str(repository / written[0].model.name / CONFIG))}"
    elif dry and written:
        yield from _plan(source, repository, written)
    if written and not dry:
        yield from _next(repository, written, symbolic=symbolic)


def _served(source: Path, found: Found) -> Iterator[str]:
    if not found.served:
        return
    where = printable(str(source))
    only = found.served[0].resolve()
    if len(found.served) == 1 and source.resolve().is_relative_to(only):
        what = "is the directory of" if source.resolve() == only else "belongs to"
        yield f"'{where}' {what} a model already: tritium serve --model-repository={quote(str(only.parent))}"
        if (only / CONFIG).exists():
            yield f"Its configuration, which is left as it is: {printable(str(only / CONFIG))}"
        return
    names = ", ".join(printable(each.name) for each in found.served[:_OTHERS_SHOWN])
    more = ", …" if len(found.served) > _OTHERS_SHOWN else ""
    repositories = sorted({str(each.parent) for each in found.served})
    flags = " ".join(f"--model-repository={quote(each)}" for each in repositories[:_OTHERS_SHOWN])
    yield f"models of a repository already, and left as they are: {names}{more}"
    yield f"  tritium serve {flags}"
    yield ""


def _table(source: Path, outcomes: Sequence[Outcome]) -> Sequence[Sequence[str]]:
    rows = [("FILE", "FORMAT", "BACKEND", "MODEL", "STATE")]
    for outcome in outcomes:
        backend = outcome.engine.backend if outcome.engine is not None else "-"
        name = outcome.model.name if outcome.done is not None else "-"
        rows.append(
            (_shown(source, outcome.model.source), outcome.model.form.name, backend, name, outcome.state)
        )
    return rows


def _shown(source: Path, path: Path) -> str:
    base = source.absolute()
    inner = path.relative_to(base) if path.is_relative_to(base) else Path(path.name)
    name = str(inner) if inner.parts else path.name
    return f"{name}/" if path.is_dir() else name


def _other_files(source: Path, found: Found) -> Iterator[str]:
    if found.others:
        names = ", ".join(printable(_shown(source, each)) for each in found.others[:_OTHERS_SHOWN])
        more = ", …" if len(found.others) > _OTHERS_SHOWN else ""
        yield f"no models: {names}{more}"
    if found.cut:
        yield f"only the first {MOST_ENTRIES} files and folders were looked at: name a folder further down"


def _left(source: Path, repository: Path, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield what is left to do: files with the same words are named together."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for outcome in outcomes:
        where = _shown(source, outcome.model.source)
        if outcome.done is not None and outcome.done.todo:
            where = str(repository / outcome.model.name / CONFIG)
        alike.setdefault(tuple(outcome.left()), []).append(printable(where))
    alike.pop((), None)
    if alike:
        yield ""
        yield "Left to do:"
    for sentences, places in alike.items():
        yield from _wrapped(", ".join(places), "  ")
        for line in (line for sentence in sentences for line in sentence.splitlines()):
            yield from _wrapped(printable(line), "    ")


def _wrapped(text: str, indent: str) -> list[str]:
    return wrap(
        text,
        width=_WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plan(source: Path, repository: Path, written: Sequence[Outcome]) -> Iterator[str]:
    yield ""
    yield "Would be written:"
    rows = []
    for outcome in written:
        assert outcome.engine is not None
        directory = repository / outcome.model.name
        rows.append((f"  {directory / CONFIG}", ""))
        for version in outcome.model.versions:
            for piece in version.pieces:
                target = directory / str(version.number) / (piece.target or outcome.engine.file)
                rows.append((f"  {target}", f"from {_shown(source, piece.source)}"))
    yield from aligned(rows).splitlines()


def _next(repository: Path, written: Sequence[Outcome], *, symbolic: bool) -> Iterator[str]:
    where = quote(str(repository))
    yield ""
    yield "Next:"
    yield f"  tritium check {where}"
    yield f"  tritium serve --model-repository={where}"
    ready = [outcome for outcome in written if outcome.ok]
    if ready:
        yield from _question(ready[0])
    if symbolic:
        yield "Some files are symbolic links: such a repository is not for --model-repository-links=inside."


def _question(outcome: Outcome) -> Iterator[str]:
    """Yield a command that asks a model, or that asks about it where values can't be made up."""
    url = f"http://127.0.0.1:8000/v2/models/{outcome.model.name}"
    assert outcome.done is not None
    config = outcome.done.answering
    inputs = [_values(each, batches=config.max_batch_size > 0) for each in config.input]
    if not inputs or None in inputs:
        yield f"  curl {url}"
        return
    yield f"  curl {url}/infer \\"
    yield f"    -d {quote(json.dumps({'inputs': inputs}, separators=(',', ':')))}"


def _values(tensor: ModelInput, *, batches: bool) -> dict[str, object] | None:
    """Return an input of zeros, or None if it would be too long to paste."""
    datatype = BY_NUMBER.get(tensor.data_type)
    if datatype is None:
        return None
    return made_up(tensor.name, datatype, tensor.dims, batches=batches, most=_MOST_VALUES)
