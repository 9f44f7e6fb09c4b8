"""The auth file: TOML text to plain values, or what is wrong with it and where. See docs/identity.md.

It has four kinds of tables, each any number of times: `[[key]]`, `[[issuer]]` and `[[certificate]]` say how
identities are proved, `[[rule]]` what they may do, `[[limit]]` how much.
"""

from __future__ import annotations

import math
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, Final, TypeVar

from actors.values.callers import ANONYMOUS, Action
from engine.identity.keys import DIGEST, ID
from engine.identity.limits import Limits
from engine.identity.rules import EVERYONE, GROUP, KNOWN, MODEL, Identity, Rule
from engine.models.problems import did_you_mean
from engine.settings.forms import SettingsError, to_size

T = TypeVar("T")

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}")
"""The form of an identity's or a group's name, so that logs and metrics can print it."""

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""Signatures of JWTs that are taken (RFC 7518, section 3.1; RFC 8037). None of them has a shared secret."""

MOST_KEYS: Final = 100_000
MOST_RULES: Final = 10_000

_LARGEST: Final = sys.float_info.max


class AuthFileError(Exception):
    """The auth file makes no sense.

    The message names the file, the line, the key, and what would have worked.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """An API key. `expires` is in seconds of the epoch, inf for never."""

    id: str
    digest: str
    identity: Identity
    expires: float = math.inf
    revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """A party whose JWTs are taken, as its keys in the JWKS file `jwks` prove them.

    Each identity is named by `prefix`, a colon, and the claim `name`. The claim `groups`, if one is named,
    has its groups. `skew` is in seconds.
    """

    issuer: str
    audience: tuple[str, ...]
    jwks: str
    algorithms: tuple[str, ...]
    skew: float = 60.0
    prefix: str = "jwt"
    name: str = "sub"
    groups: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A client certificate that proves an identity, by one of its names (`Peer.names`)."""

    subject: str
    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Limits of the identities that one of `subjects` means.

    If `by_address`, they hold for an identity at each address by itself, else for all addresses together.
    """

    subjects: frozenset[str]
    limits: Limits
    by_address: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthFile:
    """All that an auth file says."""

    keys: Mapping[str, ApiKey]  # by id
    issuers: Mapping[str, Issuer]  # by the `iss` of their tokens
    certificates: Mapping[str, Certificate]  # by name
    rules: Sequence[Rule]
    limits: Sequence[Limit]
    anonymous: Identity = Identity(name=ANONYMOUS)  # noqa: RUF009  # a frozen value

    def identities(self) -> Mapping[str, Identity]:
        """Return those that the file itself names, by name."""
        found = {key.identity.name: key.identity for key in self.keys.values()}
        found |= {each.identity.name: each.identity for each in self.certificates.values()}
        return {**found, ANONYMOUS: self.anonymous}


def read_auth_file(text: str, name: str) -> AuthFile:
    """Return the content of the auth file `name`. Raises AuthFileError."""
    return read_document(read_toml(text, name), text, name)


def read_toml(text: str, name: str) -> dict[str, Any]:
    """Return the document of the TOML file `name`. Raises AuthFileError."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for thousands of digits, and arrays in arrays
        raise AuthFileError(f"{name}: not TOML: {error}") from None


def read_document(document: Mapping[str, Any], text: str, name: str) -> AuthFile:
    """Return the content of an auth file whose `text` is this TOML `document`. Raises AuthFileError."""
    tables = _Tables(document, text, name)
    tables.refuse_others("key", "issuer", "certificate", "rule", "limit")
    keys = tables.each("key", _key, most=MOST_KEYS)
    issuers = tables.each("issuer", _issuer)
    certificates = tables.each("certificate", _certificate)
    found = AuthFile(
        keys=tables.unique("key", "id", keys, [key.id for key in keys]),
        issuers=tables.unique("issuer", "issuer", issuers, [each.issuer for each in issuers]),
        certificates=tables.unique(
            "certificate", "subject", certificates, [each.subject for each in certificates]
        ),
        rules=tables.each("rule", _rule, most=MOST_RULES),
        limits=tables.each("limit", _limit, most=MOST_RULES),
    )
    tables.unique("issuer", "prefix", issuers, [each.prefix for each in issuers])
    _check_subjects(tables, found)
    return found


def _key(table: _Table) -> ApiKey:
    id_ = table.text("id")
    if not ID.fullmatch(id_):
        raise table.wrong("id", f"'{id_[:80]}' is no id: it takes letters, digits, - and _, 64 at most")
    digest = table.text("digest")
    if not DIGEST.fullmatch(digest):
        raise table.wrong("digest", "is not 64 hexadecimal digits; `tritium key new` makes keys")
    revoked = table.optional("revoked", False)
    key = ApiKey(
        id=id_,
        digest=digest,
        identity=table.identity(default=id_),
        expires=table.moment("expires"),
        revoked=revoked is not False,
    )
    if not isinstance(revoked, bool | datetime | date):
        raise table.wrong("revoked", "takes true, false, or the time of the revocation")
    return table.done(key)


def _issuer(table: _Table) -> Issuer:
    algorithms = table.texts("algorithms")
    for algorithm in algorithms:
        if algorithm not in ALGORITHMS:
            raise table.wrong(
                "algorithms", f"'{algorithm[:40]}' is not taken; those that are: {', '.join(ALGORITHMS)}"
            )
    audience = table.optional("audience", None)
    if isinstance(audience, str):
        audience = [audience]
    return table.done(
        Issuer(
            issuer=table.text("issuer"),
            audience=table.checked_texts("audience", audience),
            jwks=table.text("jwks"),
            algorithms=algorithms,
            skew=table.number("clock_skew", 60.0, most=3600.0),
            prefix=table.name("prefix", "jwt"),
            name=table.text("name", "sub"),
            groups=table.text("groups", ""),
            line=table.line,
        )
    )


def _certificate(table: _Table) -> Certificate:
    subject = table.text("subject")
    return table.done(Certificate(subject=subject, identity=table.identity()))


def _rule(table: _Table) -> Rule:
    allow, deny = table.optional("allow", None), table.optional("deny", None)
    if (allow is None) == (deny is None):
        raise table.wrong("allow", "a rule has either 'allow' or 'deny', with actions such as \"inference\"")
    key, listed = ("allow", allow) if deny is None else ("deny", deny)
    return table.done(
        Rule(
            number=table.number_in_file,
            line=table.line,
            subjects=frozenset(table.texts("for")),
            allows=deny is None,
            actions=_actions(table, key, table.checked_texts(key, listed)),
            models=table.texts("models", ("*",)),
            namespaces=table.texts("namespaces", ("*",)),
        )
    )


def _actions(table: _Table, key: str, words: Sequence[str]) -> frozenset[Action] | None:
    if "*" in words:
        return None
    every = {action.value: action for action in Action}
    for word in words:
        if word not in every:
            hint = did_you_mean(word, every) or f'actions are {", ".join(every)}, and "*"'
            raise table.wrong(key, f"'{word[:40]}' is no action ({hint})")
    return frozenset(every[word] for word in words)


def _limit(table: _Table) -> Limit:
    concurrent = table.number("concurrent", math.inf, least=1)
    limits = Limits(
        requests=table.number("requests_per_second", math.inf, least=0.001),
        bytes=table.size("bytes_per_second"),
        concurrent=concurrent,
        burst=table.number("burst_seconds", 1.0, least=0.001, most=3600.0),
    )
    if limits.none:
        raise table.wrong(
            "requests_per_second",
            "a limit limits something: requests_per_second, bytes_per_second or concurrent",
        )
    per = table.text("per", "identity")
    if per not in {"identity", "address"}:
        raise table.wrong("per", f'\'{per[:40]}\' is not known; a limit is per "identity" or per "address"')
    return table.done(
        Limit(subjects=frozenset(table.texts("for")), limits=limits, by_address=per == "address")
    )


def _check_subjects(tables: _Tables, found: AuthFile) -> None:
    """Refuse subjects that no identity of the file can ever have: a rule with a slip protects nothing."""
    # One name may have other groups by another key.
    proofs: Sequence[ApiKey | Certificate] = (*found.keys.values(), *found.certificates.values())
    groups = {group for each in proofs for group in each.identity.groups}
    with_groups = any(issuer.groups for issuer in found.issuers.values())
    prefixes = tuple(issuer.prefix + ":" for issuer in found.issuers.values())
    names = {*found.identities(), EVERYONE, KNOWN}
    groups_known = {GROUP + group for group in groups}
    told: Sequence[tuple[str, Sequence[Rule | Limit]]] = (("rule", found.rules), ("limit", found.limits))
    for kind, every in told:
        for number, each in enumerate(every, 1):
            for subject in each.subjects:
                if subject in names or subject in groups_known or subject.startswith((MODEL, *prefixes)):
                    continue
                if subject.startswith(GROUP) and with_groups:
                    continue
                hint = did_you_mean(subject, names | groups_known)
                meant = hint or f'subjects are identities, "group:NAME", "{KNOWN}", "{ANONYMOUS}" and "*"'
                raise tables.table(kind, number).wrong(
                    "for", f"no key, certificate or issuer of this file is '{subject[:80]}' ({meant})"
                )


class _Tables:
    """The arrays of tables in a document, and where each table begins in its text."""

    def __init__(self, document: Mapping[str, Any], text: str, name: str) -> None:
        self._document = document
        self._name = name
        self._lines: dict[str, list[int]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            found = re.match(r"\s*\[\[\s*([A-Za-z]+)\s*\]\]", line)
            if found is not None:
                self._lines.setdefault(found[1], []).append(number)

    def refuse_others(self, *kinds: str) -> None:
        """Raise AuthFileError for what is at the top of the file and has no meaning."""
        for key, value in self._document.items():
            if key not in kinds:
                hint = did_you_mean(key, kinds) or f"tables are {', '.join(f'[[{kind}]]' for kind in kinds)}"
                raise AuthFileError(f"{self._name}: '{key}' is not known ({hint})")
            if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
                raise AuthFileError(f"{self._name}: '{key}' is an array of tables: write [[{key}]]")

    def table(self, kind: str, number: int) -> _Table:
        """Return the table of this kind and number, from 1."""
        lines = self._lines.get(kind, [])
        line = lines[number - 1] if number <= len(lines) else 0
        return _Table(self._document[kind][number - 1], kind, number, line, self._name)

    def each(self, kind: str, read: Callable[[_Table], T], *, most: int = 1000) -> list[T]:
        """Return what `read` makes of each table of this kind."""
        count = len(self._document.get(kind, ()))
        if count > most:
            raise AuthFileError(f"{self._name}: {count} tables [[{kind}]], and there may be {most} at most")
        return [read(self.table(kind, number)) for number in range(1, count + 1)]

    def unique(self, kind: str, key: str, values: Sequence[T], names: Sequence[str]) -> dict[str, T]:
        """Return the values by name. Raises AuthFileError where two have the same."""
        found: dict[str, T] = {}
        for number, (name, value) in enumerate(zip(names, values, strict=True), 1):
            if name in found:
                raise self.table(kind, number).wrong(key, f"'{name[:80]}' is there already")
            found[name] = value
        return found


class _Table:
    """One table, read key by key. `done` refuses keys that were not read."""

    def __init__(self, content: Mapping[str, Any], kind: str, number: int, line: int, name: str) -> None:
        self.number_in_file = number
        self.line = line
        self._content = content
        self._kind = kind
        self._file = name
        self._read: set[str] = set()

    def wrong(self, key: str, complaint: str) -> AuthFileError:
        """Return the error that names the place."""
        place = f"{self._file}, line {self.line}" if self.line else self._file
        return AuthFileError(f"{place}: [[{self._kind}]] number {self.number_in_file}, '{key}': {complaint}")

    def optional(self, key: str, default: Any) -> Any:
        """Return a value of any type."""
        self._read.add(key)
        return self._content.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text; without a `default` there must be one that is not empty."""
        value = self.optional(key, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self.wrong(
                key, "takes a text in quotation marks" + ("" if value is not None else "; it is missing")
            )
        return value

    def name(self, key: str, default: str) -> str:
        """Return a text that can be printed anywhere."""
        value = self.text(key, default)
        if not NAME.fullmatch(value):
            raise self.wrong(
                key, f"'{value[:80]}' is no name: it takes letters, digits and . _ @ / -, 128 at most"
            )
        if value in {ANONYMOUS, KNOWN}:
            raise self.wrong(key, f"'{value}' has a meaning of its own; choose another name")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return an array of texts, one at least."""
        value = self.optional(key, None)
        return default if value is None and default is not None else self.checked_texts(key, value)

    def checked_texts(self, key: str, value: object) -> tuple[str, ...]:
        """Return `value` if it is an array of texts, one at least."""
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(each, str) and each for each in value)
        ):
            raise self.wrong(
                key,
                'takes an array of texts, such as ["a", "b"]'
                + ("" if value is not None else "; it is missing"),
            )
        return tuple(value)

    def identity(self, default: str = "") -> Identity:
        """Return the identity that `name` and `groups` tell."""
        name = self.name("name", default)
        groups = self.texts("groups", ()) if self._content.get("groups") != [] else ()
        self._read.add("groups")
        for group in groups:
            if not NAME.fullmatch(group):
                raise self.wrong(
                    "groups", f"'{group[:80]}' is no name: it takes letters, digits and . _ @ / -"
                )
        return Identity(name=name, groups=frozenset(groups))

    def number(self, key: str, default: float, *, least: float = 0.0, most: float = math.inf) -> float:
        """Return a number from `least` to `most`."""
        value = self.optional(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            upto = "" if math.isinf(most) else f" and at most {most:g}"
            raise self.wrong(key, f"takes a number, at least {least:g}{upto}")
        try:
            return float(value)
        except OverflowError:
            raise self.wrong(key, f"takes a number that is less than {_LARGEST:g}") from None

    def size(self, key: str) -> float:
        """Return a number of bytes, which may be a text such as "10MiB"; inf where there is none."""
        value = self.optional(key, None)
        if isinstance(value, str):
            try:
                return float(to_size(value, key))
            except SettingsError as error:
                raise self.wrong(key, 'takes a number of bytes, or a size such as "10MiB"') from error
        return math.inf if value is None else self.number(key, 0.0, least=1.0)

    def moment(self, key: str) -> float:
        """Return a time in seconds of the epoch; inf where there is none."""
        value = self.optional(key, None)
        if value is None:
            return math.inf
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime.combine(value, time(), UTC)
        if not isinstance(value, datetime):
            raise self.wrong(key, "takes a time such as 2030-01-31T12:00:00Z")
        try:
            return (value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)).timestamp()
        except OverflowError:
            raise self.wrong(key, "is before the first year, or after the last one, of UTC") from None

    def done(self, value: T) -> T:
        """Return `value`, unless there is a key that nothing has read."""
        for key in self._content:
            if key not in self._read:
                hint = did_you_mean(key, self._read) or f"keys are {', '.join(sorted(self._read))}"
                raise self.wrong(key, f"is not known ({hint})")
        return value
