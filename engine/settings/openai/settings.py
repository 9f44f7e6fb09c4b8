"""What the operator decided about the OpenAI API (contract, http.md section 14, and llm.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from engine.settings.forms import PORT, SettingsError, integer, number, text
from engine.settings.listening import RestrictedHeader, host_port
from engine.settings.option import Given, Group, combined

AREAS: Final = ("inference", "model-repository", "metrics", "health")
_PORT: Final = "openai-port"
_RESTRICTED: Final = "openai-restricted-api"


def _restricted(given: Given, name: str) -> Mapping[str, RestrictedHeader]:
    """Return the header that opens each area. Triton's three words may be one, with spaces."""
    restricted: dict[str, RestrictedHeader] = {}
    for group in given.all(name):
        words = group.split(" ")
        if len(words) != 3:
            areas, _, header = group.partition(":")
            key, equals, value = header.partition("=")
            words = [areas, key, value] if equals else []
        if len(words) != 3 or not all(words):
            raise SettingsError(
                f"--{name} needs the areas, the header's name and its value",
                hint='such as --openai-restricted-api="inference,metrics x-key secret"',
            )
        areas, key, value = words
        for area in areas.split(","):
            if area not in AREAS:
                raise SettingsError(f"--{name}: unknown API", hint=f"APIs are {', '.join(AREAS)}")
            if area in restricted:
                raise SettingsError(f"--{name}: API '{area}' is given twice", hint="give it one header")
            restricted[area] = RestrictedHeader(key, value)
    return MappingProxyType(restricted)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiSettings:
    """How the OpenAI API is served: on a port of its own, and only if that is given."""

    allow: bool = combined(
        lambda given: given.has(_PORT),
    )
    port: int = Group.LANGUAGE.option("--openai-port=0", PORT).means(
        "Serve the OpenAI API on this port; 0 lets the kernel choose. Triton's own front end has 9000."
        " [default:"
        " it is not served]"
    )
    address: str = Group.LANGUAGE.option("--openai-address", text("ADDRESS")).means(
        "Tritium's own: at which address. [default: that of --http-address]"
    )
    restricted: Mapping[str, RestrictedHeader] = Group.LANGUAGE.collected(
        f"--{_RESTRICTED}", '"API[,API...] KEY VALUE"', _restricted, secret=bool
    ).means(
        "Answer these APIs of the OpenAI front end only where the header KEY has the value VALUE: inference,"
        " model-repository, metrics, health. Repeatable."
    )
    separator: str = Group.LANGUAGE.option("--lora-separator", text("TEXT")).means(
        "What stands between a model's name and that of its LoRA adapter, where clients name both as the"
        " model."
        " [default: none, and adapters have names of their own]"
    )
    max_tokens: int = Group.LANGUAGE.option("--default-max-tokens=0", integer("TOKENS")).means(
        "How long an answer is where the client does not say; 0: as long as the context has room for."
        " Triton's"
        " front end has 16."
    )
    keep_alive: float = Group.LANGUAGE.option("--openai-keep-alive-secs=10", number()).means(
        "Tritium's own: after how many quiet seconds a stream is sent a comment, so that nothing on the way"
        " takes"
        " it for dead."
    )

    def listeners(self, address: str) -> Iterator[tuple[str, str, int]]:
        """Yield what the listener is for, and where it is."""
        if self.allow:
            yield "OpenAI requests", self.address or address, self.port

    def options(self, address: str) -> Iterator[tuple[str, str]]:
        """Yield (name, value) of what an operator wants to see at start-up."""
        if self.allow:
            yield "openai", host_port(self.address or address, self.port)
