"""`tritium check`: validate models without starting anything, and show their completed configurations."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Final

from actors.values.events import Event
from actors.values.interfaces import DUPLICATE_REASON
from actors.values.specs import Ensemble, ModelSpec, Runtime
from engine.cli.auth_check import (
    AuthReport,
    auth_as_json,
    auth_as_lines,
    auth_in_a_line,
    inspect_auth_file,
)
from engine.cli.findings import Finding, Report, as_json, as_lines, drawn, in_short, one_line_each, plain
from engine.config.load import load_model_config
from engine.config.loaded import LoadedConfig
from engine.config.outline import outline
from engine.config.rules.composition import (
    Dependency,
    circular_dependency,
    composing_model,
    composition_problems,
    dependency_problems,
)
from engine.environments.cache import EnvironmentCache, Standing
from engine.environments.declared import Environment, Kind
from engine.environments.layout import EnvironmentFailed
from engine.models.layout import ModelDirectory, scan
from engine.models.problems import Problem, did_you_mean
from engine.processes.agents.declared import KnownAgents
from engine.processes.backends import discover
from engine.processes.gpus.nvml import find_gpus
from engine.processes.inheritance import for_workers
from engine.processes.placement import DEVICES
from engine.provenance.keys import TrustedFiles
from engine.provenance.restrictions import Restrictions
from engine.repository.advice import bare, bare_models, is_model, no_models
from engine.repository.bare.finding import home_of
from engine.repository.signed import Refused, verify
from engine.settings.models import default_environment_cache
from engine.settings.settings import Settings, SettingsError
from protocols.kserve.proto.model_config_pb2 import ModelConfig

_DESCRIPTION: Final = """\
Read models as a server would, and say what would become of them: what is wrong, where it
stands and what would have worked. With --verbose, or of one model alone, also the
configuration that a model would run with, everything filled in. Nothing is started, no port
is opened and no framework is loaded, so that it works on a laptop and in CI. A PATH is a
repository, or the directory of one model. With --auth-file, say what an auth file allows,
and what in it looks like a mistake.
"""

_EPILOG: Final = """\
Beside each value of a configuration stands where it came from (--verbose):
  config.pbtxt:3:5                  line and column of the file that was read
  directory name, file 1/model.onnx, follows from 'backend'
                                    what gave the name or the backend away
  model file (onnx), model file (pt2)
                                    the model's own inputs and outputs
  model.py auto_complete_config     the Python model, which was run for it in a process of
                                    its own (not with --no-model-code)
  --backend-config default-max-batch-size
                                    a flag
  default                           nobody said anything else
Each configuration that is printed is a valid config.pbtxt, comments and all.

What is valid, but not served by this version of Tritium is told apart from mistakes.

Ensembles are held against the models that they are made of, where those are checked too.

Model files are read as far as that can be done without their frameworks: they must be there and
be readable, ONNX files must agree with the configuration, and model.py must compile. What only
running a model would show is not seen: modules that model.py imports and that are missing, its
initialize, operators that ONNX Runtime does not know, an ONNX file's external data, weights,
memory and drivers, and whatever other backends than onnxruntime, pytorch and python read.

exit status: 0 where every model would load and the auth file can be used; 1 where one would
not, for whatever reason; 2 for a command line that makes no sense.

examples:
  tritium check ./models
  tritium check ./models/resnet
  tritium check ./models --model resnet --model bert --json
  tritium check --auth-file auth.toml
  tritium check ./models --no-model-code --backend-config=onnxruntime,default-max-batch-size=16
"""

_SWITCHES: Final = ("disable-auto-complete-config", "require-signed", "no-code-models")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def check(argv: Sequence[str], *, devices: Path = DEVICES) -> int:
    """Validate and report; return the process's exit status: 1 if anything would not load.

    `devices` is where the kernel shows what GPUs there are.
    """
    parser = check_parser()
    options = parser.parse_args(argv)
    if options.build_environments and options.no_model_code:
        parser.error("--build-environments runs code of models' packages, which --no-model-code forbids")
    if not options.paths and not options.auth_file:
        parser.error("say what to check: a PATH, --auth-file FILE, or both")
    missing = [path for path in options.paths if not os.path.isdir(path)]
    if missing:
        sys.stderr.write("".join(f"{_no_directory(path)}\n" for path in missing))
        return 1
    auth = inspect_auth_file(options.auth_file, datetime.now(UTC).timestamp()) if options.auth_file else None
    try:
        report = _models(options, devices) if options.paths else None
    except SettingsError as error:
        sys.stderr.write(f"{error.message}\n" + (f"{error.hint}\n" if error.hint else ""))
        return 1
    except NoSuchModel as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for path in options.paths:
        if not is_model(path) and (said := no_models(path) or bare_models(path)):
            sys.stderr.write(f"{said}\n")
    _tell(report, auth, options)
    return 0 if (report is None or report.ok) and (auth is None or auth.ok) else 1


def _no_directory(path: Path) -> str:
    if not path.exists():
        return f"{path}: there is no such directory"
    home = home_of(path)
    if home is not None:
        return f"{path}: not a directory: it belongs to a model, so check {quote(str(home))}"
    what = bare(path)
    return f"{path}: not a directory: {what}" if what else f"{path}: not a directory"


def _models(options: argparse.Namespace, devices: Path) -> Report:
    """Return what is known about the models. Raises SettingsError and NoSuchModel."""
    return inspect(
        options.paths,
        _settings(options),
        gpus=len(find_gpus(os.environ, devices)),
        only=options.model,
        run_model_code=not options.no_model_code,
        build=options.build_environments,
    )


def _tell(report: Report | None, auth: AuthReport | None, options: argparse.Namespace) -> None:
    """Write what was found in the form that the options or the place it goes to ask for."""
    if options.json:
        document = {} if report is None else as_json(report)
        document = document if auth is None else {**document, "auth_file": auth_as_json(auth)}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    if options.quiet:
        lines = [] if report is None else list(one_line_each(report))
        lines += [] if auth is None else [auth_in_a_line(auth)]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        return
    whole = options.verbose or (report is not None and len(report.findings) == 1)
    styled = [] if report is None else list(as_lines(report) if whole else in_short(report))
    if auth is not None:
        styled += [*([[]] if styled else []), *auth_as_lines(auth)]
    if sys.stdout.isatty():
        drawn(styled)
    else:
        sys.stdout.write(plain(styled))


def check_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = argparse.ArgumentParser(
        prog="tritium check",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", type=_path, help="a repository, or one model")
    parser.add_argument(
        "--auth-file",
        metavar="FILE",
        help="explain this auth file too, or alone: its identities, rules and limits, and what looks like a "
        "mistake",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="MODEL",
        help="check only this model of the repositories; repeatable",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the report as JSON")
    form.add_argument(
        "--verbose",
        action="store_true",
        help="print all that is known of each model, with its whole configuration, as of one model alone",
    )
    form.add_argument(
        "--quiet", action="store_true", help="print one line for each model, and no configurations"
    )
    parser.add_argument(
        "--no-model-code",
        action="store_true",
        help="do not run models' auto_complete_config; what was skipped is told",
    )
    parser.add_argument(
        "--build-environments",
        action="store_true",
        help="build the environments of Python models that are not there yet, as the server would; not with "
        "--no-model-code",
    )
    shared = parser.add_argument_group("as for tritium serve")
    shared.add_argument(
        "--default-execution-timeout",
        metavar="SECONDS",
        help="how long one execution may take of a model that has no limit of its own",
    )
    shared.add_argument(
        "--sandbox",
        metavar="LEVEL",
        help="shut every model's code in at least so far: off, guard, basic or strict",
    )
    for flag, what in (("--sandbox-read", "read"), ("--sandbox-write", "write")):
        shared.add_argument(
            flag, metavar="PATHS", help=f"what models in --sandbox=strict may ask to {what} beyond their own"
        )
    shared.add_argument(
        "--model-repository-links",
        metavar="WHERE",
        help="how far symbolic links are followed: anywhere, or inside the repository",
    )
    shared.add_argument(
        "--model-config-name",
        metavar="NAME",
        help="prefer configs/NAME.pbtxt of each model to its config.pbtxt",
    )
    shared.add_argument(
        "--disable-auto-complete-config",
        action="store_true",
        help="take configurations as they are written; do not ask the models",
    )
    shared.add_argument(
        "--strict-model-config", metavar="BOOL", help="true is --disable-auto-complete-config"
    )
    shared.add_argument(
        "--environment-cache",
        metavar="DIR",
        help="where the server keeps environments of Python models; one that is not there is not built",
    )
    shared.add_argument(
        "--backend-config",
        action="append",
        default=[],
        metavar="[BACKEND,]SETTING=VALUE",
        help="a setting for one backend, or for all of them; repeatable",
    )
    shared.add_argument(
        "--backend-directory",
        metavar="DIR",
        help="where backends are, each a folder with libtriton_NAME.so or a model.py",
    )
    shared.add_argument(
        "--repoagent-directory",
        metavar="DIR",
        help="where repository agents are besides installed packages; they are looked for, and not run",
    )
    shared.add_argument(
        "--require-signed", action="store_true", help="refuse models that no trusted key has signed"
    )
    shared.add_argument(
        "--trusted-keys",
        action="append",
        default=[],
        metavar="FILE",
        help="public keys that --require-signed trusts; repeatable",
    )
    shared.add_argument("--no-code-models", action="store_true", help="refuse models that carry code")
    return parser


def _path(text: str) -> Path:
    if _URI.match(text):
        raise argparse.ArgumentTypeError(
            f"{text} is no directory of this machine, and check reads local directories only: copy the "
            "models, or give the"
            " path of a mounted copy"
        )
    return Path(text)


def _settings(options: argparse.Namespace) -> Settings:
    """Return what a server would make of the flags that are its own. Raises SettingsError."""
    given = (
        ("model-config-name", options.model_config_name),
        ("strict-model-config", options.strict_model_config),
        ("model-repository-links", options.model_repository_links),
        *(("backend-config", pair) for pair in options.backend_config),
        ("backend-directory", options.backend_directory),
        ("repoagent-directory", options.repoagent_directory),
        ("default-execution-timeout", options.default_execution_timeout),
        ("sandbox", options.sandbox),
        ("sandbox-read", options.sandbox_read),
        ("sandbox-write", options.sandbox_write),
        *(("trusted-keys", path) for path in options.trusted_keys),
    )
    words = ["--model-repository=.", *(f"--{flag}={word}" for flag, word in given if word is not None)]
    words += [f"--{switch}" for switch in _SWITCHES if getattr(options, switch.replace("-", "_"))]
    cache = options.environment_cache or default_environment_cache(os.environ)
    return dataclasses.replace(Settings.from_argv(words), environment_cache=cache)


class NoSuchModel(Exception):
    """A model was asked for by name, and is not there."""


def inspect(
    paths: Sequence[Path],
    settings: Settings,
    *,
    gpus: int,
    only: Sequence[str] = (),
    run_model_code: bool = True,
    build: bool = False,
) -> Report:
    """Read the models as a server on a machine with so many GPUs would at its start. Raises NoSuchModel.

    With `build`, environments that Python models ask for are made if they are not there.
    """
    alone = [path for path in paths if is_model(path)]
    found = scan([path for path in paths if path not in alone], settings.links)
    models = dict(found.models)
    for path in alone:
        whole = path.resolve()
        models[whole.name] = ModelDirectory(name=whole.name, path=whole, repository=whole.parent)
    for name in only:
        if name not in models and name not in found.duplicates:
            hint = did_you_mean(name, [*models, *found.duplicates])
            raise NoSuchModel(f"there is no model '{name}'{f': {hint}' if hint else ''}")
    wanted = frozenset(only or [*models, *found.duplicates])
    backends = discover(settings.backend_directory)
    keys = TrustedFiles(settings.provenance.trusted_keys) if settings.provenance.require_signed else None
    cache = EnvironmentCache(Path(settings.environment_cache), environ=os.environ)
    findings = [Finding(name=name, reason=DUPLICATE_REASON) for name in found.duplicates if name in wanted]
    for name, directory in models.items():
        if name in wanted:
            read = partial(
                load_model_config,
                directory.path,
                backends=backends,
                gpus=gpus,
                environ=for_workers(settings, os.environ),
                backend_settings=settings.backend_settings,
                config_name=settings.model_config_name,
                auto_complete=not settings.disable_auto_complete_config,
                execution_timeout=settings.default_execution_timeout,
                floor=settings.sandbox,
                verify_files=True,
                agents=KnownAgents(settings.agents.directory),
                links=settings.links,
                restrictions=Restrictions(
                    no_code=settings.provenance.no_code, signed=settings.provenance.require_signed
                ),
            )
            unsigned = None if keys is None else _unsigned(directory, keys)
            config = unsigned or _in_environments(read, cache, run_model_code=run_model_code, build=build)
            findings.append(Finding(name=name, config=config))
    findings = held_against_models(findings, complete=not (only or alone))
    return Report(
        findings=tuple(sorted(findings, key=lambda finding: finding.name)),
        problems=() if only else tuple(found.problems),
    )


def _unsigned(directory: ModelDirectory, keys: TrustedFiles) -> LoadedConfig | None:
    """Return what a server that requires signatures would say of a model that it refuses."""
    try:
        verify(directory.path, keys)
    except Refused as error:
        message = f"--require-signed refuses it: {error}"
        problem = Problem(message=message, path=directory.path, hint=error.hint)
    except OSError as error:
        problem = Problem(message=f"it can't be read: {error.strerror or error}", path=directory.path)
    else:
        return None
    return LoadedConfig(name=directory.name, path=directory.path, problems=(problem,), readable=False)


def _in_environments(
    read: Callable[..., LoadedConfig], cache: EnvironmentCache, *, run_model_code: bool, build: bool
) -> LoadedConfig:
    """Read a configuration whose model code runs in the environments that it asks for, if these are there.

    Building takes minutes and a network, and is for the server to do unless `build`. An environment that is
    unpacked is only looked at.
    """
    config = read(run_model_code=run_model_code, environments=cache)
    if not config.unbuilt:
        return config
    made = [each for each in config.unbuilt if build or each.kind is Kind.DIRECTORY]
    standing = Standing(cache, _prepared(cache, made) if made else {})
    config = read(run_model_code=True, environments=standing)
    return read(run_model_code=False, environments=standing) if config.unbuilt else config


def _prepared(
    cache: EnvironmentCache, environments: Sequence[Environment]
) -> Mapping[Environment, Runtime | EnvironmentFailed]:
    """Build environments as the server would, and return the outcome of each.

    This command has no loop of its own and no log: the steps are told on standard error.
    """
    import trio  # a check that needs none of this is quicker without

    from engine.environments.builder import EnvironmentBuilder

    def report(phase: str, details: Mapping[str, object]) -> None:
        del phase
        sys.stderr.write(f"{details['environment']}: {details['step']}\n")

    def log(event: Event, *, level: str = "info", **keys: object) -> None:
        del event, level, keys  # the steps tell as much

    builder = EnvironmentBuilder(cache, environ=os.environ, log=log)
    return trio.run(builder.prepare, environments, report)


# -- ensembles among what `tritium check` has found, held against the models that they are made of


def held_against_models(findings: Sequence[Finding], *, complete: bool) -> list[Finding]:
    """Return the findings with what keeps ensembles from being made up of their models.

    `complete` says that a model which is not among them is nowhere. Otherwise ensembles that need other
    models are left as they are.
    """
    by_name = {finding.name: finding for finding in findings}
    parts = {
        name: spec.depends_on for name, finding in by_name.items() if (spec := _ensemble(finding)) is not None
    }
    return [_held(finding, by_name, parts, complete=complete) for finding in findings]


def _ensemble(finding: Finding) -> ModelSpec | None:
    specs = () if finding.config is None else finding.config.specs
    return next((spec for spec in specs if isinstance(spec.scheduling, Ensemble)), None)


def _held(
    finding: Finding,
    by_name: Mapping[str, Finding],
    parts: Mapping[str, Sequence[str]],
    *,
    complete: bool,
) -> Finding:
    config = finding.config
    if config is None or finding.name not in parts:
        return finding
    if not complete and any(part not in by_name for part in parts[finding.name]):
        return finding
    problems = [*_placed(_problems(config.configs[-1].config, by_name, parts), config)]
    if not problems:
        return finding
    held = dataclasses.replace(config, specs=(), problems=(*problems, *config.problems))
    return dataclasses.replace(finding, config=held)


def _problems(
    config: ModelConfig, by_name: Mapping[str, Finding], parts: Mapping[str, Sequence[str]]
) -> list[Problem]:
    circle = circular_dependency(config.name, parts)
    if circle is not None:
        return [circle]
    found = {name: _dependency(by_name.get(name)) for name in parts[config.name]}
    problems = list(dependency_problems(config, found))
    if problems:
        return problems
    models = [
        composing_model(_version(by_name[step.model_name], step.model_version))
        for step in config.ensemble_scheduling.step
    ]
    return composition_problems(config, models)


def _dependency(finding: Finding | None) -> Dependency | None:
    if finding is None or finding.config is None:  # it is nowhere, or in two places
        return None
    if not finding.config.ok:
        return Dependency(invalid=finding.config.reason)
    return Dependency(versions=frozenset(finding.config.versions))


def _version(finding: Finding, number: int) -> ModelSpec:
    assert finding.config is not None
    specs = finding.config.specs
    return next((spec for spec in specs if spec.version == number), specs[-1])


def _placed(problems: Sequence[Problem], config: LoadedConfig) -> Iterator[Problem]:
    """Yield the problems with their places in the configuration's file."""
    try:
        found = outline(config.path.read_text())
    except (OSError, UnicodeError):  # it was there a moment ago
        yield from problems
        return
    for problem in problems:
        line, column = found.find(problem.key) or (0, 0)
        yield dataclasses.replace(problem, path=config.path, line=line, column=column)
