"""What the operator decided about web pages: names of this server, and whose pages may read its answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from engine.settings.forms import SettingsError
from engine.settings.option import Given, Group

_HOST: Final = re.compile(r"(?:\*\.)?[a-z0-9_~-]+(?:\.[a-z0-9_~-]+)*")
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://([^/\s?#@,]+)")
_PORTS: Final = {"http": ":80", "https": ":443"}


def _each(read: Callable[[str, str], str]) -> Callable[[Given, str], frozenset[str]]:
    def words(given: Given, name: str) -> Iterator[str]:
        for group in given.all(name):
            for word in group.split(","):
                yield "*" if word.strip() == "*" else read(word.strip().lower(), name)

    return lambda given, name: frozenset(words(given, name))


def _host(word: str, name: str) -> str:
    host = word.removesuffix(".")
    if not _HOST.fullmatch(host):
        raise SettingsError(
            f"--{name} takes host names without a port. Got {word}",
            hint=f"for example --{name}=models.example,*.models.example; addresses and localhost need no"
            " naming",
        )
    return host


def _origin(word: str, name: str) -> str:
    found = _ORIGIN.fullmatch(word)
    if found is None:
        hint = f"for example --{name}=https://app.example,http://localhost:3000"
        if word == "null":
            hint = "any page can make itself one of the origin 'null': serve it from a server, or use *"
        raise SettingsError(f"--{name} takes origins as browsers send them, or *. Got {word}", hint=hint)
    scheme, place = found.groups()
    return f"{scheme}://{place.removesuffix(_PORTS.get(scheme, ''))}" if scheme in _PORTS else word


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """Names and origins in lower case; `*` stands for all."""

    trusted_hosts: frozenset[str] = Group.HTTP.collected(
        "--trusted-hosts", "HOST[,HOST...]", _each(_host)
    ).means(
        "Tritium's own: names of this server that browsers may ask for, such as models.example or"
        " *.models.example. A request with an Origin or Sec-Fetch-Site header for any other host is refused,"
        " unless the host is an address or localhost. Clients that are no browsers send neither. *: any host."
        " Repeatable."
    )
    cors_allowed_origins: frozenset[str] = Group.HTTP.collected(
        "--cors-allowed-origins", "ORIGIN[,ORIGIN...]", _each(_origin)
    ).means(
        "Tritium's own: origins whose pages may ask for inferences and read answers, such as"
        " https://app.example. *: pages of any origin. Loads, unloads and other changes stay refused to pages"
        " of other sites. Repeatable."
    )
