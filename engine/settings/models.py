"""What the options about repositories, models and backends mean."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from actors.serving.policy.holding import StartAfter
from engine.core.caches import cache_directory
from engine.models.links import Links
from engine.settings.forms import (
    SWITCH,
    Form,
    SettingsError,
    integer,
    misshapen,
    number,
    one_of,
    text,
)
from engine.settings.option import Given, Group, combined
from engine.settings.secrets import concealed, looks_secret

EVERY_MODEL: Final = "*"
"""The name that stands for all of them in `Settings.load_models`; always the only one."""


def default_environment_cache(environ: Mapping[str, str]) -> str:
    """Return where environments of Python models are kept unless the operator says otherwise."""
    return os.path.join(cache_directory(environ), "environments")


def default_shim_cache(environ: Mapping[str, str]) -> str:
    """Return where the library is kept that connects C libraries to a worker, once it has been compiled."""
    return os.path.join(cache_directory(environ), "shim")


def read_repositories(given: Given) -> tuple[str, ...]:
    """Return where models are: directories, and URIs. Raises SettingsError."""
    paths = given.all("model-repository") or _of_vertex(given.environ)
    if not paths:
        raise SettingsError("--model-repository must be specified", hint="--model-repository=DIR names it")
    if "" in paths:
        raise SettingsError("--model-repository must not be empty")
    return tuple(paths)


def _of_vertex(environ: Mapping[str, str]) -> Sequence[str]:
    """Return where Vertex AI has put the models, if it has (contract, http.md section 13)."""
    uri = environ.get("AIP_STORAGE_URI", "")
    return (uri,) if uri else ()


def poll_interval(interval: float, given: Given) -> float:
    """Return it, or 0 if nothing is polled (contract, repository.md section 10)."""
    if given.word("model-control-mode").lower() != "poll":
        if interval and given.has("repository-poll-secs"):
            given.warn_of("repository-poll-secs", "only --model-control-mode=poll looks for changes")
        return 0.0
    if not interval:
        raise SettingsError(
            "--repository-poll-secs must be greater than 0 in poll mode. Got 0",
            hint="--model-control-mode=none loads models once and never looks for changes",
        )
    return interval


def read_load_models(given: Given, name: str) -> tuple[str, ...]:
    """Return the models to load at start-up, each once. Raises SettingsError."""
    names = given.all(name)
    # Texts and order: contract, repository.md section 3.
    if names and given.word("model-control-mode").lower() != "explicit":
        raise SettingsError(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        )
    once = tuple(dict.fromkeys(names))
    if EVERY_MODEL in once and len(once) > 1:
        raise SettingsError(
            "error: creating server: Invalid argument - "
            "Wildcard model name '*' must be the ONLY startup model if specified at all."
        )
    if "" in once:
        raise SettingsError("--load-model must not be empty", hint="--load-model='*' loads every model")
    for model in once:
        # A name may have them, so it is for the repositories to say that there is no such model.
        if "," in model or ":" in model:
            given.warnings.append(
                f"--load-model names one model, and got '{model}': for several, repeat it, or separate them by ';' in"
                " TRITIUM_LOAD_MODEL"
            )
    return once


def config_name(config: str, given: Given) -> str:
    """Return `--model-config-name`. Raises SettingsError for an empty one, and for a path."""
    if not config and given.has("model-config-name"):
        raise SettingsError("Error: empty argument for --model-config-name")
    if "/" in config:
        raise SettingsError(
            f"--model-config-name must be a name, not a path. Got {config}",
            hint="--model-config-name=NAME reads configs/NAME.pbtxt of each model",
        )
    return config


def read_backend_settings(given: Given, name: str) -> Mapping[str, Mapping[str, str]]:
    """Return the settings of each backend, those for all under "". Raises SettingsError."""
    settings: dict[str, dict[str, str]] = {}
    for pair in given.all(name):
        head, equals, value = pair.partition("=")
        backend, comma, setting = head.rpartition(",")
        if not equals or not setting or (comma and not backend):
            raise misshapen(name, "<backend name>,<setting>=<value>", concealed(pair))
        settings.setdefault(backend, {})[setting] = value
    return {backend: MappingProxyType(values) for backend, values in settings.items()}


def backend_secret(pair: str) -> bool:
    """Whether a setting of a backend is likely to be a secret."""
    return looks_secret(pair.partition("=")[0].rpartition(",")[2])


def read_filed_backend_settings(given: Given) -> frozenset[tuple[str, str]]:
    """Return (backend, setting) of the settings that stand in a file, as secrets do."""
    heads = (pair.partition("=")[0] for pair in given.filed("backend-config"))
    return frozenset((head.rpartition(",")[0], head.rpartition(",")[2]) for head in heads)


def existing(directory: Path | None, given: Given) -> Path | None:
    """Return the directory of backends; none, with a warning, where there is no such directory.

    A model that needs a backend from there says so when it is loaded.
    """
    if directory is None or directory.exists():
        return directory
    given.warnings.append(
        f"--backend-directory '{directory}' does not exist, so no backend is taken from there"
    )
    return None


def read_backend_directory(path: str, name: str) -> Path | None:
    """Return a directory that can be listed, or that does not exist. Raises SettingsError."""
    if not path or not os.path.lexists(path):
        return Path(path) if path else None
    try:
        os.listdir(path)
    except OSError as error:
        raise SettingsError(
            f"--{name} '{path}' can't be listed: {error.strerror}",
            hint="it holds a folder with a model.py for each backend written in Python",
        ) from error
    return Path(path)


def read_start_after(given: Given) -> StartAfter:
    """Return how many requests a model's first batch waits for (contract, scheduling.md section 12)."""
    after = StartAfter(_count(given.environ, _QUEUED), _count(given.environ, _BACKLOGGED))
    if after.queued:
        requests = f"{after.queued} requests wait"
        if after.backlogged:
            requests += f", and for sequences {after.backlogged} more in the backlog"
        given.warnings.append(
            f"{_QUEUED} holds back the first batch of each model with dynamic or sequence batching until"
            f" {requests}. It is meant for tests; unset it otherwise"
        )
    elif after.backlogged:
        given.warnings.append(f"{_BACKLOGGED} has no effect without {_QUEUED}")
    return after


# What Triton's tests tell a server by environment variables.
_QUEUED: Final = "TRITONSERVER_DELAY_SCHEDULER"
_BACKLOGGED: Final = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise SettingsError(
            f"{name} is '{text}', which is no number of requests", hint="such as 12; 0 holds nothing back"
        )
    return int(text)


LINKS: Final[Form[Links]] = one_of("WHERE", *(each.value for each in Links)).into(Links)


def links_of(links: Links, given: Given) -> Links:
    """Return how far links are followed: what is signed must lie in the model's folder."""
    name = "model-repository-links"
    if not given.has("require-signed"):
        return links
    if given.has(name) and links is not Links.INSIDE:
        given.warn_of(name, "--require-signed takes what lies in the model's folder, and no link out of it")
    return Links.INSIDE


# -- where models come from: signatures, and code


def _trusted(given: Given, name: str) -> tuple[str, ...]:
    files = tuple(given.all(name))
    if "" in files:
        raise SettingsError(f"--{name} must not be empty")
    if files and not given.has("require-signed"):
        given.warn_of(name, "only --require-signed asks for signatures")
    if not files and given.has("require-signed"):
        raise SettingsError(
            f"--require-signed needs the keys that it trusts: --{name}=FILE",
            hint="`tritium sign --new-key FILE` makes a key, and FILE.pub is such a file",
        )
    return files


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenanceSettings:
    """Which models are loaded, by where they come from and what they bring."""

    require_signed: bool = combined(
        lambda given: given.has("require-signed"),
        Group.MODELS.flag(
            "--require-signed",
            SWITCH,
            "Tritium's own: load a model only if its SHA256SUMS lists every file in its folder, and is signed"
            " with a trusted key (`tritium sign`). What was checked is what is loaded, from a private copy in"
            " --model-cache-directory. Files and configurations of load requests are refused.",
        ),
    )
    trusted_keys: tuple[str, ...] = Group.MODELS.collected("--trusted-keys", "FILE", _trusted).means(
        "Tritium's own: the public keys that --require-signed trusts, one a line, and those it revokes; read"
        " again when they change. Repeatable."
    )
    no_code: bool = combined(
        lambda given: given.has("no-code-models"),
        Group.MODELS.flag(
            "--no-code-models",
            SWITCH,
            "Tritium's own: load no model that carries code: Python, TorchScript and exported programs,"
            " pickles, custom operators, environments.",
        ),
    )

    def options(self) -> Iterator[tuple[str, str]]:
        """Yield (name, value) of what an operator wants to see at start-up."""
        if self.require_signed:
            yield "require_signed", f"keys of {', '.join(self.trusted_keys)}"
        if self.no_code:
            yield "no_code_models", "1"


# -- repository agents (docs/agents.md)

_AGENTS: Final = "/opt/tritonserver/repoagents"
_MIB: Final = 1024 * 1024


def _positive(seconds: float, given: Given) -> float:
    del given
    if seconds <= 0:
        raise SettingsError("--repoagent-timeout must be greater than 0", hint="such as 300")
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Where repository agents are, and what each may take. `memory` is bytes, 0 without a limit."""

    directory: str = Group.MODELS.option(f"--repoagent-directory={_AGENTS}", text("DIR")).means(
        "Where repository agents are looked for besides installed packages: NAME/agent.py with a class Agent"
        " (docs/agents.md). Libraries of Triton's agents are not loaded. A directory that is not there has no"
        " agents."
    )
    timeout: float = Group.MODELS.option("--repoagent-timeout=300", number(), _positive).means(
        "Tritium's own: the longest that a repository agent may take before its model is loaded. Then the"
        " agent's process is ended, and the load fails."
    )
    memory: int = Group.MODELS.option(
        "--repoagent-memory-mb=4096", integer("MIB"), lambda mib, _given: mib * _MIB
    ).means("Tritium's own: address space that a repository agent's process may take; 0: without a limit.")
