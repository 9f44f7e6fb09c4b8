"""`tritium serve` with a fake engine of language models: `python -m chaos.languages.serving FLAG…`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import engine.core.chosen  # noqa: F401  # before anything that it chooses  # isort: skip
from chaos.languages.page import write_folder
from chaos.languages.telling import TellingBackend
from engine.processes.backends import BackendTraits, traits_of
from engine.server.machine import ThisMachine

_CONFIG: Final = """backend: "telling"
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
parameters {{ key: "pace" value {{ string_value: "{pace}" }} }}
"""


class MachineThatTells(ThisMachine):
    """This machine, with one more backend."""

    def backends(self, directory: Path | None) -> Mapping[str, BackendTraits]:
        """See `ThisMachine`."""
        name = TellingBackend.name
        target = f"{TellingBackend.__module__}:{TellingBackend.__name__}"
        return {**super().backends(directory), name: traits_of(TellingBackend, name=name, target=target)}


def write_model(repository: Path, name: str, *, pace: float, instances: int = 1, config: str = "") -> Path:
    """Write a language model that has a token for each stream every `pace` seconds; return its folder."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(_CONFIG.format(pace=pace, instances=instances) + config)
    write_folder(version)
    return version.parent


def main(argv: Sequence[str]) -> int:
    """Serve as `tritium serve` does; return the process's exit status."""
    from engine.cli.serve import complaint
    from engine.server.run import run
    from engine.settings.settings import Settings, SettingsError

    try:
        settings = Settings.from_argv(argv, os.environ)
    except SettingsError as error:
        sys.stderr.write(complaint(error))
        return 1
    return run(settings, machine=MachineThatTells())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
