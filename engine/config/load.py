"""From a model directory to what runs, or to all that keeps it from running.

It is the one call of the server and of `tritium check`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from actors.values.confinement import Sandbox
from actors.values.generation.adapters import Adapter
from actors.values.specs import LanguageServing, ModelSpec, Runtime, Scheduling
from engine.config import parse
from engine.config.agents import keep_own, own_agents, verify_agents
from engine.config.complete import Completed, complete
from engine.config.files import Files, inside, read_files
from engine.config.inspection.finding import FoundBackend, backend_digest, find_backend
from engine.config.inspection.model import Inspection, leads_out
from engine.config.inspection.verify import verify
from engine.config.language_files import read_adapters, read_folder
from engine.config.loaded import LoadedConfig, VersionConfig
from engine.config.outline import outline
from engine.config.override import parse_override
from engine.config.provenance import Source
from engine.config.refusals import certain, ignored_hints, is_ensemble, refusals
from engine.config.rules.padding import padding
from engine.config.runtimes import Chosen, choose, not_built_yet
from engine.config.settings import NO_FLOOR, read_settings
from engine.config.translate import artifact, translate
from engine.config.unfilled import set_parameters
from engine.config.validate import validate
from engine.environments.cache import Environments
from engine.models.layout import VersionDirectory, select_versions, version_directories
from engine.models.links import Links, targets
from engine.models.problems import Problem, Severity
from engine.processes.agents.declared import KnownAgents
from engine.processes.backends import BackendTraits
from engine.provenance.restrictions import NONE, Restrictions
from engine.settings.parameters import TritiumSettings
from engine.settings.sandbox import SandboxSettings
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelVersionPolicy

# Backends that must know what goes in and out. Others may have models that take and give nothing.
_NEED_TENSORS = frozenset(("onnxruntime", "openvino", "pytorch", "tensorflow"))


def load_model_config(
    model_directory: Path,
    *,
    backends: Mapping[str, BackendTraits],
    gpus: int = 0,
    environ: Mapping[str, str] | None = None,
    backend_settings: Mapping[str, Mapping[str, str]] | None = None,
    config_name: str = "",
    auto_complete: bool = True,
    override: str | None = None,
    only: Sequence[int] = (),
    namespace: str = "",
    content: Mapping[int, str] | None = None,
    without_adapters: Mapping[int, str] | None = None,
    model_name: str = "",
    renamed: bool = False,
    run_model_code: bool = True,
    verify_files: bool = False,
    environments: Environments | None = None,
    execution_timeout: float = 0.0,
    floor: SandboxSettings = NO_FLOOR,
    restrictions: Restrictions = NONE,
    links: Links = Links.INSIDE,
    agents: KnownAgents | None = None,
    agents_ran: bool = False,
) -> LoadedConfig:
    """Read, complete, validate and translate the configuration of the model in `model_directory`.

    `gpus` is how many GPUs there are. `environ` is what processes that run model code inherit, by default as
    in `engine.processes.inheritance`. `backend_settings` holds the command line's settings by backend, those for every
    backend under "". `config_name` chooses `configs/<name>.pbtxt`. `override`, the JSON configuration of a
    load request, stands in the file's place. `only` are the versions that a load request asks for, in the
    place of what the version policy says. `namespace` and `content`, a digest by version, are passed on to
    the specifications; for an engine that takes up LoRA adapters while it serves, the digests are those
    `without_adapters`. `execution_timeout`, in seconds, is that of a model whose parameters don't say.
    `floor` is the sandbox in which its code runs at least.
    `model_name` is the model's name if its directory is called otherwise, as a copy of a remote one may be.
    If it is `renamed`, it has that name whatever its configuration says.

    `environments` are those that exist. If a Python model asks for one that has to be built first, that is
    returned as `unbuilt`; if no model code is to be run, there is a warning instead. Without `environments`,
    what models ask for is not considered.

    `agents` are the repository agents that exist. `agents_ran`: those of the model have made this directory,
    or have found it right.

    What `restrictions` forbid is refused before anything of the model is run. `links` says how far the
    symbolic links of the model are followed.

    Each version is completed from its own file. Python models are run for that, each in a process of its own,
    unless `run_model_code` is false. With `verify_files` the model files are compared with it as well (see
    `engine.config.inspection.verify`), which a server leaves to the backends.

    Never raises for a mistake of the model's owner. It reads files and may wait for processes, so do not call
    it on the event loop. Several threads may call it at once.
    """
    model_directory = model_directory.absolute()  # specifications outlive the working directory
    name = model_name or model_directory.name
    path = parse.config_path(model_directory, config_name)
    available, problems = version_directories(model_directory, links)
    numbers = [directory.number for directory in available]
    parsed, source = _parsed(path, model_directory, override, links, auto_complete=auto_complete)
    _serve_only(only, parsed)
    parsed.rename(name if renamed else "")
    file = path if os.path.lexists(path) else model_directory
    # Where problems without a place of their own are.
    named = Path("override") if override is not None else file
    if parsed.config is None:
        also = _wrong_besides(
            parsed,
            model_directory,
            name,
            path,
            links,
            backends=backends,
            gpus=gpus,
            auto_complete=auto_complete,
            agents=agents,
        )
        versions = select_versions(ModelVersionPolicy(), numbers)
        return LoadedConfig(
            name=name,
            path=path,
            versions=versions,
            problems=_arranged([*parsed.problems, *also], named, parsed.blanked, versions),
            readable=False,
        )
    written = parsed.config

    def completed(fill: Inspection | None = None) -> Completed:
        return complete(
            written,
            model_directory,
            backends=backends,
            gpus=gpus,
            auto_complete=auto_complete,
            name=name,
            source=source,
            fill=fill,
        )

    base = completed()
    versions = select_versions(base.config.version_policy, numbers)
    chosen = [directory for directory in available if directory.number in versions]
    folders = [directory.path for directory in chosen]
    backend = find_backend(base.config, written, folders, model_directory, backends, links)
    backends = backend.backends
    base = _run_by(backend, base, completed)
    traits = backends.get(base.config.backend, BackendTraits(name=base.config.backend))
    said = backend_settings or {}
    # Its own go before those for all.
    settings = {**said.get("", {}), **said.get(base.config.backend, {}), **backend.settings}
    drafts = [base] * len(chosen)
    objections = [] if agents_ran else verify_agents(base.config, model_directory, links, agents)
    tritium, mistakes = _settings(base.config, traits, execution_timeout, floor)
    is_strict = tritium.confinement.sandbox is Sandbox.STRICT
    linked = (*backend.linked, *(targets(model_directory) if links is Links.ANYWHERE and is_strict else ()))
    install = tritium.requirements == "install"
    forbidden = _absent(only, numbers, model_directory) or restrictions.forbidden(
        base.config, traits, model_directory, install=install
    )
    if forbidden:
        return LoadedConfig(
            name=name,
            path=path,
            versions=versions,
            configs=(VersionConfig(version=max(versions, default=0), completed=base),),
            problems=_arranged(forbidden, named, source.text, versions),
        )
    chosen_runtimes = Chosen()
    if environments is not None and not is_ensemble(base.config):
        parameters = set_parameters(base.config)
        chosen_runtimes = choose(parameters, traits, tritium, chosen, model_directory, environments, links)
        if chosen_runtimes.unbuilt and run_model_code and not objections:
            return LoadedConfig(name=name, path=path, versions=versions, unbuilt=chosen_runtimes.unbuilt)
    runtimes = chosen_runtimes.runtimes
    # Of files that are vouched for, only the right ones are read.
    if auto_complete and not base.problems and not objections:
        inspections = [
            Inspection(
                model_directory=model_directory,
                version=directory,
                backends=backends,
                settings=settings,
                gpus=gpus,
                environ=environ,
                run_model_code=run_model_code,
                runtime=runtimes.get(directory.number, Runtime()),
                floor=floor,
                links=links,
                linked=linked,
            )
            for directory in chosen
            if not chosen_runtimes.fails(directory.number)
        ]
        asked = {each.version.number: each for each in inspections if each.applies(base.config)}
        drafts = [
            completed(asked[directory.number]) if directory.number in asked else base for directory in chosen
        ]
    found = [*problems, *parsed.problems, *chosen_runtimes.problems, *not_built_yet(chosen_runtimes)]
    files: dict[bytes, Files] = {}
    distinct = _distinct(drafts or [base], versions)
    for draft, alike in distinct:
        files[_identity(draft)] = read_files(draft.config, model_directory, links)
        own = check(draft, name, path, backends=backends, gpus=gpus, auto_complete=auto_complete)
        own += [*files[_identity(draft)].problems, *padding(draft.config, tritium)]
        found += _blamed(own, alike)
    found += mistakes
    adapters, mistaken = read_adapters(chosen if traits.adapters else [], model_directory.parent, links)
    found += mistaken
    found += _versions(base.config, chosen, traits, model_directory, links)
    unserved = [
        problem for draft, alike in distinct for problem in _blamed(refusals(draft.config, found), alike)
    ]
    found += [*objections, *unserved]
    if verify_files and not objections and not is_ensemble(base.config):
        for directory, draft in zip(chosen, drafts, strict=True):
            if not any(problem.is_error for problem in draft.problems):  # else what is wrong is told already
                wrong = verify(draft.config, directory, model_directory.parent, traits, links)
                found += _blamed(wrong, (directory.number,))
    specs: tuple[ModelSpec, ...] = ()
    if not any(problem.is_error for problem in found):
        specs = _specs(
            list(zip(chosen, drafts, strict=True)), files, model_directory, traits, tritium, settings
        )
    digests = (without_adapters if traits.adapters else content) or {}
    code = backend_digest(traits)
    return LoadedConfig(
        name=name,
        path=path,
        versions=versions,
        specs=tuple(
            dataclasses.replace(
                spec,
                namespace=namespace,
                content=_content(digests.get(spec.version, ""), code),
                scheduling=_of_files(spec, adapters.get(spec.version, ())),
                runtime=runtimes.get(spec.version, spec.runtime),
                linked=linked,
            )
            for spec in specs
        ),
        configs=tuple(
            VersionConfig(version=version, completed=draft)
            for version, draft in zip([*versions] or [0], drafts or [base], strict=True)
        ),
        problems=_arranged(found, named, source.text, versions),
        unserved=_arranged(unserved, named, source.text, versions),
    )


def _run_by(backend: FoundBackend, base: Completed, completed: Callable[[], Completed]) -> Completed:
    """Return the completed configuration of a model whose backend has been found."""
    if backend.replaced:
        base = completed()
    return dataclasses.replace(base, problems=(*base.problems, *backend.problems))


def _of_files(spec: ModelSpec, adapters: tuple[Adapter, ...]) -> Scheduling:
    """Return the scheduling of a version, with what a language model's files say."""
    if not isinstance(spec.scheduling, LanguageServing):
        return spec.scheduling
    weights = read_folder(spec.version_directory)
    return dataclasses.replace(spec.scheduling, adapters=adapters, weights=weights)


def _content(files: str, code: str) -> str:
    """Return a version's digest, which is another one if the code that the backend brings is."""
    return f"{files} {code}" if files and code else files


def _distinct(drafts: list[Completed], versions: Sequence[int]) -> list[tuple[Completed, tuple[int, ...]]]:
    """Return one draft of each configuration, with its versions: most often, all have the same."""
    distinct: dict[bytes, tuple[Completed, tuple[int, ...]]] = {}
    for draft, version in zip_longest(drafts, versions):
        first, alike = distinct.get(_identity(draft), (draft, ()))
        distinct[_identity(draft)] = (first, alike if version is None else (*alike, version))
    return list(distinct.values())


def _blamed(problems: Iterable[Problem], versions: tuple[int, ...]) -> Iterator[Problem]:
    return (dataclasses.replace(problem, versions=versions) for problem in problems)


def _shared(problems: Iterable[Problem], versions: Sequence[int]) -> Iterator[Problem]:
    """Yield each problem once, with the versions that have it; none are named if all do."""
    having: dict[Problem, set[int]] = {}
    for problem in problems:
        alike = dataclasses.replace(problem, versions=())
        having.setdefault(alike, set()).update(problem.versions or versions)
    for problem, those in having.items():
        some = those < set(versions)
        yield dataclasses.replace(problem, versions=tuple(sorted(those)) if some else ())


def _identity(draft: Completed) -> bytes:
    """Return what tells one completed configuration from another."""
    return repr(draft.problems).encode() + draft.config.SerializeToString(deterministic=True)


def _settings(
    config: ModelConfig,
    traits: BackendTraits,
    execution_timeout: float = 0.0,
    floor: SandboxSettings = NO_FLOOR,
) -> tuple[TritiumSettings, tuple[Problem, ...]]:
    parameters = set_parameters(config)
    settings, problems = read_settings(parameters, traits, config.version_policy, config, floor=floor)
    if execution_timeout and "tritium.execution_timeout" not in parameters and not is_ensemble(config):
        settings = dataclasses.replace(settings, execution_timeout=execution_timeout)
    return settings, problems


def _wrong_besides(
    parsed: parse.Parsed,
    model_directory: Path,
    name: str,
    path: Path,
    links: Links,
    *,
    backends: Mapping[str, BackendTraits],
    gpus: int,
    auto_complete: bool,
    agents: KnownAgents | None,
) -> list[Problem]:
    """Return the rules that the readable part of a configuration breaks, whatever the rest might be."""
    if parsed.partial is None:
        return []
    partial = complete(
        parsed.partial, model_directory, backends=backends, gpus=gpus, auto_complete=auto_complete, name=name
    )
    config = partial.config
    found = check(partial, name, path, backends=backends, gpus=gpus, auto_complete=auto_complete)
    found += read_files(config, model_directory, links).problems
    found += _settings(config, backends.get(config.backend, BackendTraits(name=config.backend)))[1]
    found += verify_agents(config, model_directory, links, agents)
    return certain([*found, *refusals(config, found)], parsed.spoilt)


def check(
    completed: Completed,
    name: str,
    path: Path,
    *,
    backends: Mapping[str, BackendTraits],
    gpus: int = 0,
    auto_complete: bool = True,
) -> list[Problem]:
    """Return everything that is wrong with a completed configuration.

    Versions and `tritium.*` settings are left out. `name` is what the model must be called. `refusals` tells
    of what is valid, and only not served by this version.
    """
    config = completed.config
    problems = _name(config, name)
    undetermined = not config.backend and bool(completed.problems)
    no_engine = any(problem.key == "backend" for problem in completed.problems)
    problems += completed.problems
    for problem in validate(config, backends=backends, gpus=gpus):
        if (undetermined and problem.key == "platform") or (no_engine and problem.key == "backend"):
            continue  # the same mistake in other words
        problems.append(problem)
    if not auto_complete and not is_ensemble(config):
        problems += _missing_tensors(config, path)
    problems += ignored_hints(config)
    return problems


def _parsed(
    path: Path, model_directory: Path, override: str | None, links: Links, *, auto_complete: bool
) -> tuple[parse.Parsed, Source]:
    if override is not None:
        parsed = parse_override(override, model_directory)
        for config in (parsed.config, parsed.partial):
            if config is not None:
                keep_own(config, own_agents(path))
        return parsed, Source(name="override")
    parsed = _read(path, model_directory.parent, links, auto_complete=auto_complete)
    return parsed, Source(name=str(path.relative_to(model_directory)), text=parsed.text)


def _read(path: Path, repository: Path, links: Links, *, auto_complete: bool) -> parse.Parsed:
    try:
        path.lstat()
        present = True
    except (FileNotFoundError, NotADirectoryError):
        present = False
    except OSError as error:
        # For example, the server has no permission to look into the directory.
        return parse.Parsed(config=None, problems=(parse.unreadable(path, error.strerror or str(error)),))
    if present:
        if links is Links.INSIDE and inside(repository, str(path)) is None:
            leads_out = parse.unreadable(path, "it is a link out of the model repository")
            return parse.Parsed(config=None, problems=(leads_out,))
        return parse.read(path)
    if auto_complete:
        return parse.Parsed(config=ModelConfig())
    missing = parse.unreadable(path, "there is no such file", hint="auto-completion is off")
    return parse.Parsed(config=None, problems=(dataclasses.replace(missing, path=path.parent),))


def _serve_only(versions: Sequence[int], parsed: parse.Parsed) -> None:
    if versions and parsed.config is not None:
        parsed.config.version_policy.specific.versions[:] = versions


def _absent(wanted: Sequence[int], present: Sequence[int], path: Path) -> list[Problem]:
    """Return what is said of versions that a load asks for, and that are not there."""
    absent = sorted(set(wanted) - set(present))
    if not absent:
        return []
    there = f"it has {_numbered(present)}" if present else "it has none"
    message = f"the load asks for {_numbered(absent)}, which the repository lacks: {there}"
    return [Problem(message=message, path=path)]


def _numbered(versions: Sequence[int]) -> str:
    return f"version{'s' if len(versions) > 1 else ''} {', '.join(map(str, versions))}"


def _name(config: ModelConfig, name: str) -> list[Problem]:
    if not config.name or config.name == name:
        return []
    return [
        Problem(
            message=(
                f"unexpected directory name '{name}' for model '{config.name}',"
                " directory name must equal model name"
            ),
            key="name",
            hint=f"leave 'name' out, or write name: \"{name}\"",
        )
    ]


def _missing_tensors(config: ModelConfig, path: Path) -> list[Problem]:
    """Tell what stays empty because auto-completion is off.

    If it is on, it has told why it could not complete.
    """
    if config.backend not in _NEED_TENSORS:
        return []
    given = {"input": config.input or config.batch_input, "output": config.output}
    return [
        Problem(
            message=f"model '{config.name}' has no '{side}' in {path}, and auto-completion is off",
            hint=f'add: {side} [ {{ name: "…" data_type: TYPE_FP32 dims: [ … ] }} ]',
        )
        for side, tensors in given.items()
        if not tensors
    ]


def _versions(
    config: ModelConfig,
    chosen: list[VersionDirectory],
    traits: BackendTraits,
    model_directory: Path,
    links: Links,
) -> list[Problem]:
    if not chosen:
        return [
            Problem(
                message=(
                    "at least one version must be available under the version policy of model"
                    f" '{config.name or model_directory.name}'"
                ),
                key="version_policy",
                hint=(
                    "an ensemble needs a numbered directory too, such as 1/, which may be empty"
                    if is_ensemble(config)
                    else "put the model file into a numbered directory, such as 1/"
                ),
            )
        ]
    if is_ensemble(config):  # it has no file
        return []
    if traits.implementation:  # which is the backend's
        return list(_closed(chosen))
    named = {"default_model_filename": artifact(config, traits)}
    named |= {f'cc_model_filenames["{at}"]': name for at, name in sorted(config.cc_model_filenames.items())}
    return [*_closed(chosen), *_led_out(config, chosen, named, model_directory, links)]


def _closed(chosen: list[VersionDirectory]) -> Iterator[Problem]:
    """Warn of directories that can't be listed, so that no model file is found.

    A model file that is named may load all the same.
    """
    for directory in chosen:
        try:
            os.listdir(directory.path)
        except OSError as error:
            yield Problem(
                severity=Severity.WARNING,
                message=f"version directory can't be listed: {error.strerror or error}",
                path=directory.path,
                versions=(directory.number,),
            )


def _led_out(
    config: ModelConfig,
    chosen: list[VersionDirectory],
    named: Mapping[str, str],
    model_directory: Path,
    links: Links,
) -> list[Problem]:
    return [
        Problem(
            message=(
                f"model file '{file_name}' of model '{config.name}', version {directory.number},"
                " is outside the model repository"
            ),
            key=key,
            versions=(directory.number,),
        )
        for directory in chosen
        for key, file_name in named.items()
        if leads_out(directory.path, file_name, model_directory.parent, links)
    ]


def _specs(
    drafts: list[tuple[VersionDirectory, Completed]],
    files: Mapping[bytes, Files],
    model_directory: Path,
    traits: BackendTraits,
    tritium: TritiumSettings,
    settings: Mapping[str, str],
) -> tuple[ModelSpec, ...]:
    return tuple(
        translate(
            completed.config,
            version=directory.number,
            version_directory=directory.path,
            model_directory=model_directory,
            traits=traits,
            tritium=tritium,
            uncounted=completed.uncounted,
            settings=settings,
            labels=files[_identity(completed)].labels,
            warmup=files[_identity(completed)].warmup,
            states=files[_identity(completed)].states,
        )
        for directory, completed in drafts
    )


def _arranged(problems: list[Problem], path: Path, text: str, versions: Sequence[int]) -> tuple[Problem, ...]:
    """Return errors before warnings, each with the file and, if its field is written there, the place."""
    if not problems:
        return ()
    found = outline(text)
    placed = []
    for problem in _shared(problems, versions):
        if problem.path is None and problem.key:
            line, column = found.find(problem.key) or (0, 0)
            placed.append(dataclasses.replace(problem, path=path, line=line, column=column))
        else:
            placed.append(problem if problem.path else dataclasses.replace(problem, path=path))
    return tuple(sorted(placed, key=lambda problem: not problem.is_error))
