"""The flags of a listener that speaks TLS, the same for each: `--<listener>-use-ssl` and its PEM files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from engine.settings.forms import BOOL, AnyForm, Form, SettingsError, text, truth
from engine.settings.option import Flag, Given, Group, combined

Mutual = Literal["no", "optional", "yes"]

_CERTIFICATE: Final = "server-cert"
_KEY: Final = "server-key"
_ROOTS: Final = "root-cert"
_FILES: Final = {
    _CERTIFICATE: "the server's certificate",
    _KEY: "the key of the server's certificate",
    _ROOTS: "certificates that vouch for clients",
}


@dataclass(frozen=True, slots=True)
class PemFile:
    """A file, and the flag that named it, for texts."""

    path: str
    flag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of a listener that speaks TLS.

    With `client_roots`, clients must show a certificate that these vouch for. If that is `optional`, they may
    show none instead.
    """

    certificate: PemFile
    key: PemFile
    client_roots: PemFile | None = None
    optional: bool = False

    @property
    def paths(self) -> Sequence[str]:
        """The paths of all files."""
        files = (self.certificate, self.key, self.client_roots)
        return [each.path for each in files if each is not None]


def security_of(files: TlsFiles | None) -> str:
    """Return what an operator wants to see of TLS behind a listener's address."""
    if files is None:
        return ""
    if files.client_roots is None:
        return " (TLS)"
    return f" (TLS, clients with{' or without' if files.optional else ''} certificates)"


def _mutual(word: str, name: str) -> Mutual:
    value = "optional" if word.lower() == "optional" else truth(word)
    if value is None:
        raise SettingsError(
            f"invalid argument for --{name}",
            hint=f"--{name} was given '{word}'; it takes true, on or 1; false, off or 0; or optional",
        )
    return "optional" if value == "optional" else "yes" if value else "no"


_MUTUAL: Final = Form("BOOL|optional", _mutual, _mutual)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFlags:
    """The flags of one listener, which are named after it. `title` stands for it in texts.

    A listener uses the files of the one that `borrows` names where it is given none of its own; `lends` names
    the listener that may so use its files.
    """

    group: Group
    listener: str
    title: str
    tritons: bool = False  # the flags are Triton's, which knows no optional certificates
    borrows: str = ""
    lends: str = ""

    def declared(self) -> TlsFiles | None:
        """Declare the field that the flags decide; None for a listener without TLS."""
        return combined(self._read, *self._table())

    def _name(self, what: str) -> str:
        return f"{self.listener}-{what}"

    def _table(self) -> Sequence[Flag]:
        certificate, key, roots = (self._name(what) for what in _FILES)
        mutual = f"Speak TLS, and only to clients whose certificate --{roots} vouches for."
        if not self.tritons:
            mutual += " optional: also to clients without one."
        use, use_mutual = self._name("use-ssl"), self._name("use-ssl-mutual")
        return (
            self._flag(use, BOOL, f"Speak TLS on the port; needs --{certificate} and --{key}.", "false"),
            self._flag(use_mutual, BOOL if self.tritons else _MUTUAL, mutual, "false"),
            self._file(_CERTIFICATE, "The server's certificate and those between it and its root, PEM."),
            self._file(_KEY, "Its key, PEM, not encrypted."),
            self._file(_ROOTS, "The certificates that vouch for clients, PEM."),
        )

    def _flag(self, name: str, form: AnyForm, about: str, default: str = "") -> Flag:
        if not self.tritons:
            about = f"Tritium's own: {about[0].lower()}{about[1:]}"
        return self.group.flag(f"--{name}={default}", form, about)

    def _file(self, what: str, about: str) -> Flag:
        default = f" [default: --{self.borrows}-{what}]" if self.borrows else ""
        return self._flag(self._name(what), text("FILE"), about + default)

    def _read(self, given: Given) -> TlsFiles | None:
        mutual = _mutual_of(given, self.listener)
        switch = self._name("use-ssl" if mutual == "no" else "use-ssl-mutual")
        if not _speaks_tls(given, self.listener):
            self._warn_of_idle(
                given,
                f"{self.title} speaks TLS only with --{switch}=true or --{self._name('use-ssl-mutual')}=true",
                *_FILES,
            )
            return None
        if mutual == "no":
            self._warn_of_idle(
                given, f"only --{self._name('use-ssl-mutual')}=true asks clients for certificates", _ROOTS
            )
        return TlsFiles(
            certificate=self._found(given, switch, _CERTIFICATE),
            key=self._found(given, switch, _KEY),
            client_roots=None if mutual == "no" else self._found(given, switch, _ROOTS),
            optional=mutual == "optional",
        )

    def _found(self, given: Given, switch: str, what: str) -> PemFile:
        for listener in (self.listener, self.borrows):
            flag = f"{listener}-{what}"
            if listener and given.word(flag):
                return PemFile(given.word(flag), flag)
        name = self._name(what)
        raise SettingsError(
            f"--{switch} requires --{name}", hint=f"--{name}=FILE names the PEM file with {_FILES[what]}"
        )

    def _warn_of_idle(self, given: Given, why: str, *files: str) -> None:
        for what in files:
            if given.word(self._name(what)) and not self._is_lent(given, what):
                given.warn_of(self._name(what), why)

    def _is_lent(self, given: Given, what: str) -> bool:
        """Whether another listener uses the file."""
        return bool(self.lends) and _speaks_tls(given, self.lends) and not given.word(f"{self.lends}-{what}")


def _mutual_of(given: Given, listener: str) -> Mutual:
    name = f"{listener}-use-ssl-mutual"
    return _mutual(given.word(name, "false"), name)


def _speaks_tls(given: Given, listener: str) -> bool:
    return given.on(f"{listener}-use-ssl") or _mutual_of(given, listener) != "no"
