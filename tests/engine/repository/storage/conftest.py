"""Emulators for the session, and sources that cannot see the machine's own credentials."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.repository.remote.source import RemoteSource, open_source
from engine.repository.remote.stores import Patience
from tests.engine.repository.storage.emulators import (
    Azurite,
    Emulator,
    MotoGcs,
    MotoS3,
    azurite_command,
    moto_command,
    started,
)
from tests.engine.repository.storage.wires import Recorder, Wire, recorder

# A failed request raises at once: the tests are about what follows.
HASTY = Patience(connect=2.0, silence=5.0, request=20.0, retries=0, retrying=1.0)

Opener = Callable[..., RemoteSource]


def _quiet() -> dict[str, str]:
    """Return the environment without anything that leads to a cloud, or to a proxy."""
    names = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "TRITON_", "STORAGE_", "NO_GCE")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(names) and not name.lower().endswith("_proxy")
    }
    return kept | {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true", "NO_PROXY": "127.0.0.1"}


@pytest.fixture(autouse=True)
def _no_cloud(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    quiet = _quiet()
    for name in set(os.environ) - set(quiet):
        monkeypatch.delenv(name)
    nothing = tmp_path_factory.getbasetemp() / "no-such-profile"
    for name, value in {
        **quiet,
        "AWS_SHARED_CREDENTIALS_FILE": str(nothing),
        "AWS_CONFIG_FILE": str(nothing),
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def moto() -> Iterator[int]:
    # Pages so small that every listing of more than a few objects has several.
    with started(moto_command(), _quiet() | {"MOTO_S3_DEFAULT_MAX_KEYS": "4"}) as port:
        yield port


@pytest.fixture(scope="session")
def s3(moto: int) -> MotoS3:
    return MotoS3(moto)


@pytest.fixture(scope="session")
def gcs(moto: int) -> MotoGcs:
    return MotoGcs(moto)


@pytest.fixture(scope="session")
def azure() -> Iterator[Azurite]:
    command = azurite_command()
    if command is None:
        pytest.skip(
            "Azurite is not installed: `npm install azurite`, and name its azurite-blob in AZURITE or PATH"
        )
    with started(command, _quiet()) as port:
        yield Azurite(port)


@pytest.fixture(params=["s3", "gcs", "azure"])
def emulator(request: pytest.FixtureRequest) -> Emulator:
    found: Emulator = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def open_remote(tmp_path: Path) -> Opener:
    """Open a source with a cache of the test's own, and the environment plus what is given."""

    def opened(uri: str, environ: dict[str, str], **settings: object) -> RemoteSource:
        given = {"cache_directory": tmp_path / "cache", "parallelism": 4, "patience": HASTY, **settings}
        return open_source(uri, {**os.environ, **environ}, **given)  # type: ignore[arg-type]

    return opened


@pytest.fixture
def listener() -> Iterator[Recorder]:
    with recorder() as found:
        yield found


@pytest.fixture
def wire_to() -> Iterator[Callable[[int], Wire]]:
    wires: list[Wire] = []

    def made(port: int) -> Wire:
        wires.append(Wire(port))
        return wires[-1]

    yield made
    for wire in wires:
        wire.close()
