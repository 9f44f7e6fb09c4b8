"""Which of the server's environment variables its workers get (docs/worker_life.md). Pure.

By default a worker has the server's environment, as a model's process has on Triton. It does not get what
only the server may know: the server's own settings, which may hold keys, and the credentials that the server
itself uses. With a minimal environment the worker has what programs need to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from engine.settings.cache import PASSWORD_VARIABLE, USERNAME_VARIABLE
from engine.settings.settings import Settings, WorkerEnvironment
from engine.settings.uris import CREDENTIAL_FILE, Scheme, is_remote

ALWAYS: Final = {"PYTHONUNBUFFERED": "1"}
"""What every worker has besides: its output is the server's log, line by line."""

INHERITED: Final = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TMPDIR",
        "TZ",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
    }
    | {"PYTHONPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "XDG_CACHE_HOME"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
)
"""Variables that even a worker with a minimal environment gets from the server."""

INHERITED_PREFIXES: Final = (
    "LC_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "KMP_",
    "ORT_",
    "TORCH",
    "PYTORCH_",
    "HF_",
    "ROCR_",
)

SECRET_SUFFIXES: Final = ("_KEY", "_PASSWORD", "_SECRET", "_TOKEN")
"""What a variable with such a prefix is called if it is a secret after all, such as `HF_TOKEN`."""

_SETTINGS: Final = "TRITIUM_"
"""How the server's own settings begin.

Their values may be keys and passwords, and none of them is for a model.
"""

_FOR_ONE_PROCESS: Final = frozenset(
    {"LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}
    | {"PYTHONINSPECT", "PYTHONSAFEPATH"}
)
"""What a service manager gives to the server's process alone.

The PYTHON variables would keep a worker from starting or ending.
"""

_CACHE: Final = frozenset({USERNAME_VARIABLE, PASSWORD_VARIABLE})

_STORAGES: Final[Mapping[Scheme, frozenset[str]]] = {
    Scheme.S3: frozenset(
        {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE"}
        | {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"}
        | {"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"}
    ),
    Scheme.GCS: frozenset({"GOOGLE_APPLICATION_CREDENTIALS"}),
    Scheme.AZURE: frozenset(
        {"AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN"}
        | {"AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_FEDERATED_TOKEN_FILE"}
    ),
}
"""Credentials, by the storage for which the server uses them."""


def for_workers(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what workers get of the server's environment by the operator's settings."""
    return inherited(environ, mode=settings.worker_environment, repositories=settings.model_repositories)


def inherited(
    environ: Mapping[str, str], *, mode: WorkerEnvironment = "inherit", repositories: Sequence[str] = ()
) -> dict[str, str]:
    """Return what of the server's environment is for its workers.

    A storage's credentials are the server's own if one of its `repositories` (paths and URIs) lies in that
    storage. Elsewhere they can only be meant for models.
    """
    if mode == "minimal":
        return scrubbed(environ)
    remote = [uri for uri in repositories if is_remote(uri)]
    withheld = _FOR_ONE_PROCESS | _CACHE
    if remote:
        withheld |= {CREDENTIAL_FILE}
    for scheme, names in _STORAGES.items():
        if any(uri.startswith(f"{scheme.value}://") for uri in remote):
            withheld |= names
    return {
        name: value
        for name, value in environ.items()
        if name not in withheld and not name.startswith(_SETTINGS)
    } | ALWAYS


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a minimal environment: what programs and frameworks need, and nothing that looks secret."""
    return {
        name: value
        for name, value in environ.items()
        if name in INHERITED or (name.startswith(INHERITED_PREFIXES) and not name.endswith(SECRET_SUFFIXES))
    } | ALWAYS
