"""From a command line, or from variables of the environment, to words by flag.

For each Service of a namespace, Kubernetes gives every container variables that begin with the Service's name
in capitals. So a Service named `tritium`, or `tritium-` and anything, makes variables that look like
settings: `TRITIUM_SERVICE_HOST`, `TRITIUM_PORT=tcp://10.0.0.7:8000`, and for `tritium-metrics` even
`TRITIUM_METRICS_PORT=tcp://10.0.0.8:8002`, the name of a flag's variable. The last one is told from a setting
by its value: a port is a number.

Reference: "Discovering services, environment variables" in Kubernetes' documentation of Services.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from engine.core.choosing import COMPILE, PURE
from engine.settings.forms import SWITCH, SettingsError, to_bool
from engine.settings.option import Flag
from engine.settings.secrets import concealed
from engine.settings.uris import is_remote

PREFIX: Final = "TRITIUM_"

CLIENT_KEY: Final = "TRITIUM_API_KEY"
"""The variable with the key that commands such as `tritium tree` show to a server. It is no setting."""

_NO_SETTINGS: Final = frozenset({CLIENT_KEY, PURE, COMPILE})

_OF_A_SERVICE: Final = re.compile(
    r"TRITIUM_(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT|SERVICE_PORT_[A-Z0-9_]+|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_PORT_OF_A_SERVICE: Final = re.compile(r"TRITIUM_(?:[A-Z0-9_]+_)?PORT")
_ADDRESS: Final = re.compile(r"(?:tcp|udp|sctp)://.*", re.IGNORECASE)
_URI_END: Final = re.compile(r":(?=/(?!/)|(?:s3|gs|as)://)")


def scan_argv(
    argv: Sequence[str], table: Mapping[str, Flag], warnings: list[str] | None = None
) -> dict[str, list[str]]:
    """Return the words given for each flag, by its own name, in order. Raises SettingsError.

    `table` holds flags by name and alias. A word without dashes is a model repository. Names that are cut
    short get one of the `warnings` each.
    """
    warnings = [] if warnings is None else warnings
    given: dict[str, list[str]] = {}
    words = iter(argv)
    for word in words:
        if word and not word.startswith("-"):
            given.setdefault("model-repository", []).append(_repository(word, table))
            continue
        if not word.startswith("--") or word == "--":
            raise SettingsError(f"Unexpected argument: {_shown(word, table)}")
        name, equals, value = word[2:].partition("=")
        flag = table.get(name) or _cut_short(name, table, warnings)
        if flag is None:
            raise SettingsError(f"unrecognized option '--{name}'", hint=_nearest(name, table, "--"))
        if flag.form is SWITCH:
            if equals:
                raise SettingsError(f"option '--{name}' doesn't allow an argument")
            value = "true"
        elif not equals:
            following = next(words, None)
            if following is None:
                raise SettingsError(f"option '--{name}' requires an argument")
            value = following
        given.setdefault(flag.name, []).append(value)
    return given


def _cut_short(name: str, table: Mapping[str, Flag], warnings: list[str]) -> Flag | None:
    """Return the only flag of Triton's whose name begins so: `getopt_long` takes such names."""
    found = {flag.name: flag for key, flag in table.items() if key.startswith(name) and not flag.own}
    if len(found) != 1:
        return None
    (flag,) = found.values()
    warnings.append(f"--{name} is taken for --{flag.name}: write its name in full")
    return flag


def _repository(word: str, table: Mapping[str, Flag]) -> str:
    name, equals, _ = word.partition("=")
    if equals and name in table:
        shown = _shown(word, table)
        raise SettingsError(f"Unexpected argument: {shown}", hint=f"did you mean --{shown}?")
    return word


def _shown(word: str, table: Mapping[str, Flag]) -> str:
    """Return a word without its value if that belongs to a flag that may hold a secret."""
    flag = table.get(word.partition("=")[0].lstrip("-"))
    return concealed(word) if flag is not None and flag.secret is not None else word


def scan_environ(environ: Mapping[str, str], table: Mapping[str, Flag]) -> dict[str, list[str]]:
    """Return the words given for each flag; an empty variable counts as unset, as does an unknown one.

    `table` holds flags by variable.
    """
    given: dict[str, list[str]] = {}
    for variable, value in settings_among(environ).items():
        flag = table.get(variable)
        if flag is None or not value:
            continue
        if flag.form is SWITCH and not to_bool(value, flag.name):
            continue
        given[flag.name] = _split(flag, value)
    return given


def warn_of_environ(environ: Mapping[str, str], table: Mapping[str, Flag]) -> list[str]:
    """Return a warning for each variable that looks like a setting and is none, with the nearest name."""
    warnings = []
    for name in settings_among(environ):
        if name not in table:
            nearest = _nearest(name, table, "")
            hint = f": {nearest}" if nearest else ""
            warnings.append(
                f"the environment variable {name} is no setting of Tritium and has no effect{hint}"
            )
    return warnings


def settings_among(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may be settings: those that begin with `TRITIUM_`, without Kubernetes'."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(PREFIX) and name not in _NO_SETTINGS and not _is_kubernetes(name, value)
    }


def _is_kubernetes(name: str, value: str) -> bool:
    if _OF_A_SERVICE.fullmatch(name):
        return True
    return bool(_PORT_OF_A_SERVICE.fullmatch(name) and _ADDRESS.fullmatch(value))


def _split(flag: Flag, value: str) -> list[str]:
    if not flag.repeatable:
        return [value]
    parts = _split_repositories(value) if flag.separator == ":" else value.split(flag.separator)
    return [part for part in parts if part]


def _split_repositories(value: str) -> Iterator[str]:
    """Split at colons, except those inside a URI, which ends only before an absolute path or another URI."""
    while value:
        end = _URI_END.search(value, value.index("://") + 3) if is_remote(value) else re.search(":", value)
        yield value[: end.start()] if end else value
        value = value[end.end() :] if end else ""


def _nearest(name: str, known: Mapping[str, Flag], prefix: str) -> str:
    from difflib import get_close_matches  # only a mistake pays for it

    matches = get_close_matches(name, known, n=1)
    return f"did you mean {prefix}{matches[0]}?" if matches else ""
