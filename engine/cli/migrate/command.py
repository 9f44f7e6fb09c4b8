"""`tritium migrate`: what a tritonserver command line, and its repository, would be here."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from shlex import quote
from typing import Any, Final

from engine.cli.manual.filling import columns, filled
from engine.cli.migrate.fate import Fate, Judged, Judgement, Verdict, hidden, judge, verdict
from engine.cli.migrate.manifests import in_manifest, is_manifest
from engine.cli.migrate.scripts import PROGRAM, Found, in_script

_DESCRIPTION: Final = """\
Say what becomes of a server of Triton here: which of its flags work as they are, which
differ, which have no effect, and what has to be changed. FILE is a shell script, a
Dockerfile, a Compose file, a Kubernetes manifest, or a chart's template or values. Where
the repository can be reached, its models are checked too. Nothing is started.
"""
_EPILOG: Final = """\
exit status: 0 where everything works, differences or not; 1 where something has to be
changed; 2 where there is no command line of tritonserver, or this one makes no sense.

examples:
  tritium migrate -- tritonserver --model-repository=./models --http-thread-count=8
  tritium migrate docker-compose.yaml --repository ./models
  helm template ./chart | tritium migrate -
"""
_HEAD: Final = 11
_LARGEST: Final = 4 * 1024 * 1024


class _Failed(Exception):
    """The command can't be carried out. The message is for its user."""


def migrate_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = argparse.ArgumentParser(
        prog="tritium migrate",
        usage="tritium migrate [--repository DIR] [--json] (FILE... | - | -- tritonserver FLAG...)",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="*", help="a file with a command line; -: standard input"
    )
    parser.add_argument(
        "--repository",
        metavar="DIR",
        action="append",
        default=[],
        type=Path,
        help="where the models lie on this machine, if elsewhere than the command line says; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def migrate(argv: Sequence[str]) -> int:
    """Judge command lines; return the process's exit status."""
    own, words = _apart(argv)
    parser = migrate_parser()
    options = parser.parse_args(own)
    if bool(options.files) == bool(words):
        parser.error("name a FILE, or write `-- tritonserver` and its flags")
    try:
        found = [("", each) for each in _given(words)] if words else [*_read(options.files)]
        report = [(place, each, _with_models(judge(each), options.repository)) for place, each in found]
    except _Failed as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if options.json:
        sys.stdout.write(json.dumps([_document(*each) for each in report], indent=2) + "\n")
    else:
        sys.stdout.write("\n".join("".join(_lines(*each, columns())) for each in report))
    failed = any(verdict(judged.judgements) is Verdict.CHANGE for _, _, judged in report)
    return 1 if failed else 0


def _apart(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the command's own words, and those behind `--`."""
    words = [*argv]
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _given(words: Sequence[str]) -> Iterator[Found]:
    if words[0].startswith("--"):
        words = [PROGRAM, *words]
    if PurePath(words[0]).name == PROGRAM:
        yield Found(words=tuple(words[1:]))
        return
    found = [*in_script(" ".join(map(quote, words)))]
    if not found:
        raise _Failed(f"there is no `{PROGRAM}` with flags in: {' '.join(words)}")
    yield from found


def _read(paths: Sequence[str]) -> Iterator[tuple[str, Found]]:
    for path in paths:
        try:
            if path == "-":
                text = sys.stdin.read(_LARGEST)
            else:
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read(_LARGEST)
        except OSError as error:
            raise _Failed(f"{path} can't be read: {error.strerror or error}") from error
        found = [*(in_manifest(text) if is_manifest(text) else in_script(text))]
        if not found:
            raise _Failed(f"there is no command line of {PROGRAM} in {path}")
        yield from ((path, each) for each in found)


# -- models


def _with_models(judged: Judged, elsewhere: Sequence[Path]) -> Judged:
    """Add what becomes of the models, if their repository can be reached."""
    paths = [*elsewhere] or [Path(path) for path in judged.repositories if os.path.isdir(path)]
    missing = [path for path in paths if not path.is_dir()]
    if missing:
        raise _Failed(f"{missing[0]}: not a directory")
    if not paths:
        return judged
    return replace(judged, judgements=(*judged.judgements, *_models(paths, judged.flags)))


def _models(paths: Sequence[Path], flags: Sequence[str]) -> Iterator[Judgement]:
    from engine.cli.check import inspect
    from engine.processes.gpus.nvml import find_gpus
    from engine.settings.settings import Settings, SettingsError

    wanted = (
        "--backend-config=",
        "--model-config-name=",
        "--disable-auto-complete-config",
        "--strict-model-config=",
    )
    try:
        settings = Settings.from_argv(
            ["--model-repository=.", *(flag for flag in flags if flag.startswith(wanted))]
        )
    except SettingsError:
        settings = Settings.from_argv(["--model-repository=."])
    report = inspect(paths, settings, gpus=len(find_gpus(os.environ)), run_model_code=False)
    for problem in report.problems:
        yield Judgement(fate=Fate.REFUSED, what="repository", why=str(problem))
    for finding in report.findings:
        name = f"model {finding.name}"
        if finding.ok:
            yield Judgement(fate=Fate.SAME, what=name)
            continue
        config = finding.config
        reason = finding.reason if config is None else next((str(e) for e in config.errors), config.reason)
        yield Judgement(fate=Fate.REFUSED, what=name, why=reason)


# -- the report


def _lines(place: str, found: Found, judged: Judged, width: int) -> Iterator[str]:
    where = f"{place}:{found.line}: " if place else ""
    yield filled(f"{where}{PROGRAM} {' '.join(hidden(found.words))}", width, "  ", "")
    same = [each.what for each in judged.judgements if each.fate is Fate.SAME and not each.why]
    if same:
        yield _entry(Fate.SAME, ", ".join(same), width)
    for each in judged.judgements:
        if each.why:
            yield _entry(each.fate, f"{each.what}: {each.why}", width)
    if judged.flags:
        yield filled(f"here: tritium serve {' '.join(map(quote, hidden(judged.flags)))}", width, "  ", "")
    yield f"verdict: {_verdict(judged)}\n"


def _entry(fate: Fate, text: str, width: int) -> str:
    return filled(text, width, " " * (_HEAD + 2), f"  {fate.value:<{_HEAD}}")


def _verdict(judged: Judged) -> str:
    whole = verdict(judged.judgements)
    if whole is Verdict.CHANGE:
        count = sum(each.fate is Fate.REFUSED for each in judged.judgements)
        return f"{Verdict.CHANGE.value}: {count} {'thing has' if count == 1 else 'things have'} to be changed"
    return str(whole.value)


def _document(place: str, found: Found, judged: Judged) -> Mapping[str, Any]:
    return {
        "file": place or None,
        "line": found.line or None,
        "command": [PROGRAM, *hidden(found.words)],
        "image": found.image or None,
        "verdict": verdict(judged.judgements).name.lower(),
        "serve": ["tritium", "serve", *hidden(judged.flags)],
        "judgements": [
            {"fate": each.fate.name.lower(), "what": each.what, "why": each.why or None}
            for each in judged.judgements
        ],
    }
