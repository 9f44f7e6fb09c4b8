"""What the options about repositories, models and backends mean."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from actors.serving.policy.holding import StartAfter
from engine.settings.forms import SettingsError, misshapen
from engine.settings.option import Given

EVERY_MODEL: Final = "*"
"""The name that stands for all of them in `Settings.load_models`; always the only one."""


def default_cache_directory(environ: Mapping[str, str]) -> str:
    """Return where remote models are kept by default (XDG Base Directory Specification)."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # unset, or one that the specification has us ignore
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return os.path.join(base, "tritium")


def default_environment_cache(environ: Mapping[str, str]) -> str:
    """Return where environments of Python models are kept unless the operator says otherwise."""
    return os.path.join(default_cache_directory(environ), "environments")


def read_repositories(given: Given) -> tuple[str, ...]:
    """Return where models are: directories, and URIs. Raises SettingsError."""
    paths = given.all("model-repository")
    if not paths:
        raise SettingsError("--model-repository must be specified", hint="--model-repository=DIR names it")
    if "" in paths:
        raise SettingsError("--model-repository must not be empty")
    return tuple(paths)


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
            raise misshapen(name, "<backend name>,<setting>=<value>", pair)
        settings.setdefault(backend, {})[setting] = value
    return {backend: MappingProxyType(values) for backend, values in settings.items()}


def read_backend_directory(path: str, name: str) -> Path | None:
    """Return a directory that can be listed. Raises SettingsError."""
    if not path:
        return None
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
