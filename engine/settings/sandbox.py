"""The operator's floor of confinement: what no model's configuration may lower (docs/sandbox.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from actors.values.confinement import Sandbox
from engine.settings.forms import Form, SettingsError, one_of
from engine.settings.option import Given, Group, combined


def _paths(word: str, name: str) -> tuple[str, ...]:
    paths = tuple(word.split(":")) if word else ()
    if not all(path.startswith("/") for path in paths):
        raise SettingsError(
            f"Invalid option value. Got {word}", hint=f"--{name} takes absolute paths, with ':' between them"
        )
    return paths


_LEVELS: Final[Form[Sandbox]] = one_of("LEVEL", *(level.value for level in Sandbox)).into(Sandbox)
_PATHS: Final = Form("PATH[:PATH...]", _paths, _paths)


def _of_strict(paths: tuple[str, ...], given: Given, name: str) -> tuple[str, ...]:
    if paths and given.word("sandbox", "guard").lower() != Sandbox.STRICT.value:
        raise SettingsError(
            f"--{name} is given without --sandbox=strict",
            hint="without it, a model's own configuration names what its strict sandbox may read and write",
        )
    return paths


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """How far every worker is shut in at least, and which files models may ask for beyond their own.

    A level that the operator has not `asked` for is no floor: a model that says nothing gets it, and one that
    asks for less, or for a thread of the server, gets that.
    """

    uploaded: bool = False  # the floor is that of uploaded models, by --uploads=strict
    asked: bool = combined(lambda given: given.has("sandbox"))
    level: Sandbox = Group.INSTANCES.option("--sandbox=guard", _LEVELS).means(
        "Tritium's own: shut every model's workers in at least so far, whatever its 'tritium.sandbox' says"
        " (docs/sandbox.md). off: as each model's configuration says. guard: no new privileges, mounts,"
        " kernel modules, or limits of other processes. basic: also no network. strict: also no files but"
        " its own, and no system calls that models don't need. A model on a thread of the server"
        " ('tritium.isolation') is then refused. Where the flag is not given, 'guard' is what a model gets"
        " that does not say, and is no floor."
    )
    read: tuple[str, ...] = Group.INSTANCES.option(
        "--sandbox-read", _PATHS, lambda paths, given: _of_strict(paths, given, "sandbox-read")
    ).means(
        "Tritium's own, with --sandbox=strict: what models may name in 'tritium.sandbox_read', with all that"
        " lies below."
    )
    write: tuple[str, ...] = Group.INSTANCES.option(
        "--sandbox-write", _PATHS, lambda paths, given: _of_strict(paths, given, "sandbox-write")
    ).means(
        "Tritium's own, with --sandbox=strict: what models may name in 'tritium.sandbox_write' and"
        " 'tritium.sandbox_read', with all that lies below."
    )

    @property
    def floor(self) -> Sandbox:
        """The level that no model's configuration lowers."""
        return self.level if self.asked else Sandbox.OFF

    @property
    def flag(self) -> str:
        """The flag that sets this floor, with its value."""
        return "--uploads=strict" if self.uploaded else f"--sandbox={self.level.value}"

    def for_uploads(self) -> SandboxSettings:
        """Return the floor of uploaded models where these are shut in strictly."""
        if self.level is Sandbox.STRICT:
            return self
        return SandboxSettings(uploaded=True, asked=True, level=Sandbox.STRICT, read=(), write=())
