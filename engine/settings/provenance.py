"""What the operator decided about where models come from: signatures, and code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.settings.forms import SWITCH, SettingsError
from engine.settings.option import Given, Group, combined


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
