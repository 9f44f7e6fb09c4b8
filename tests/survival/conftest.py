"""Real servers, real workers, real clients: what survives, and what it costs.

The storms last two seconds as part of the suite, or TRITIUM_SURVIVAL_SECONDS if that is set. With `-m long`
they last a minute.
"""

import itertools
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.survival.repository import Gates, Repository
from tests.survival.server import ServerProcess, served

Serve = Callable[..., AbstractAsyncContextManager[ServerProcess]]


@pytest.fixture(params=["short", pytest.param("full", marks=pytest.mark.long)])
def storm(request: pytest.FixtureRequest) -> dict[str, float]:
    """How long a storm lasts and how often it strikes, in seconds."""
    if request.param == "full":
        return {"lasts": 60.0, "strikes_every": 1.0}
    return {"lasts": float(os.environ.get("TRITIUM_SURVIVAL_SECONDS", "2")), "strikes_every": 0.7}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """An empty model repository, to be filled by the test."""
    return Repository(tmp_path / "models")


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    """What steers the gated models of the repository."""
    return Gates(tmp_path / "gates")


@pytest.fixture
def own_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start servers in new interpreters, whose memory is their own from the start.

    In a forked server, pages that it only touches turn from shared into its own, and are no leak.
    """
    monkeypatch.setenv("TRITIUM_TESTS_FRESH", "1")


@pytest.fixture
def tritium_server(tmp_path: Path, repository: Repository) -> Serve:
    """Open a server over the test's repository: see `tests.survival.server.served`."""
    numbers = itertools.count(1)

    def opened(*flags: str, environ: dict[str, str] | None = None, **options: Any) -> Any:
        files = tmp_path / f"server-{next(numbers)}"
        return served(repository.path, *flags, files=files, environ=environ or {}, **options)

    return opened
