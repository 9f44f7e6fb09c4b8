"""What the operator decided about who may reach the server, and how: the options that listeners use.

Contract: grpc.md sections 1 and 3, http.md section 2.1, repository.md section 10.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from actors.values.callers import RESTRICTABLE
from engine.settings.forms import (
    BOOL,
    MEMORY,
    PORT,
    Form,
    SettingsError,
    integer,
    misshapen,
    number,
    one_of,
    out_of_bound,
    text,
    to_size,
)
from engine.settings.option import Given, Group, section
from engine.settings.re2 import compiled
from engine.settings.secrets import HIDDEN, concealed
from engine.settings.tls import TlsFiles, TlsFlags, security_of
from protocols.transport.proxies import TrustedProxies
from protocols.transport.room import AddressLimit, Network

CompressionLevel = Literal["none", "low", "medium", "high"]
_COMPRESSION: Final[Form[CompressionLevel]] = one_of(
    "LEVEL",
    "none",
    "low",
    "medium",
    "high",
    complaint="invalid argument for --grpc_infer_response_compression_level",
)

RESTRICTABLE_APIS: Final = tuple(action.value for action in RESTRICTABLE)

LEAST_CONNECTION_BYTES: Final = 128 * 1024
"""Two first windows of HTTP/2 (65,535 bytes): one call that arrives, and another's answer that leaves."""

_FOR_EVER: Final = 2**31 - 1  # gRPC's INT_MAX, in milliseconds: never
_UNIX_PATH_MAX: Final = 107  # bytes of `sun_path`, less its end (unix(7))


def _milliseconds(*, least: int = 0) -> Form[float]:
    """Return the form of milliseconds that become seconds."""
    return integer("MS", least=least).into(lambda ms: math.inf if ms == _FOR_EVER else ms / 1000)


_AGE: Final = Form(
    # As in Triton, 0 is as good as unset.
    "MS",
    lambda word, name: _milliseconds().read(word or "0", name) or math.inf,
    _milliseconds().check,
)


# -- connections of HTTP and gRPC alike


SERVICES: Final = ("http", "grpc", "metrics", "management")
"""The ports that `--proxy-protocol` names."""


def _networks(given: Given, name: str) -> tuple[Network, ...]:
    return tuple(_network(word) for group in given.all(name) for word in group.split(","))


def _network(word: str) -> Network:
    try:
        return ipaddress.ip_network(word.strip())
    except ValueError as error:
        raise SettingsError(
            f"--trusted-proxies takes addresses and networks. Got {word}: {error}",
            hint="for example --trusted-proxies=10.0.0.0/8,192.0.2.7,2001:db8::/64",
        ) from None


def _services(word: str, name: str) -> frozenset[str]:
    services = frozenset(each.strip() for each in word.split(",")) if word else frozenset()
    for service in sorted(services.difference(SERVICES)):
        raise SettingsError(
            f"--{name} takes ports of this server. Got {service}",
            hint=f"ports are {', '.join(SERVICES)}: --{name}=http,grpc",
        )
    return services


def _introduced(services: frozenset[str], given: Given) -> frozenset[str]:
    if services and not given.all("trusted-proxies"):
        raise SettingsError(
            "--proxy-protocol needs --trusted-proxies: no others may say whose connection it is",
            hint="--trusted-proxies=10.0.0.0/8 --proxy-protocol=http,grpc",
        )
    return services


def _optional_size(word: str, name: str) -> float:
    return math.inf if word == "0" else to_size(word, name, or_such_as="0 for any number")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemorySettings:
    """Whether clients on this machine may have tensors in shared memory, and how much of it."""

    allowed: bool = Group.SERVER.option("--allow-client-shm=false", BOOL).means(
        "Let clients on this machine register shared memory, and have the server read and write their tensors"
        " there. A client can name any object in /dev/shm that the server may open."
    )
    regions: int = Group.SERVER.option("--client-shm-regions=1024", integer("N", least=1)).means(
        "Tritium's own: how many regions may be registered at once; each keeps a file open."
    )
    nbytes: str = Group.SERVER.option("--client-shm-bytes=100%", MEMORY).means(
        "Tritium's own: how many bytes all registered regions may have together: bytes, a size such as 8GiB,"
        " or a share of the memory that the server may use."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How many connections each port has, and what one address may ask for.

    Times are seconds, `math.inf` for ever; limits of an address are `math.inf` for any number.
    """

    most: int = Group.SERVER.option("--max-connections=8192", integer("N", least=1)).means(
        "Tritium's own: how many connections each port has at once. Beyond them, those that are idle or slow make"
        " room for others, the longest idle first."
    )
    idle_timeout: float = Group.SERVER.option(
        "--connection-idle-timeout-secs=600", number().into(lambda seconds: seconds or math.inf)
    ).means("Tritium's own: how long a connection of HTTP or gRPC is kept without a request; 0: for ever.")
    max_http_age: float = Group.HTTP.option("--http-max-connection-age", _AGE).means(
        "Tritium's own: end a connection with the first answer after so long, give or take a tenth, so that"
        " its client connects anew, perhaps to another server. [default: never]"
    )
    per_address: int = Group.SERVER.option(  # 0: any number
        "--max-connections-per-address=0", integer("N")
    ).means(
        "Tritium's own: how many connections one address may have at each port, an IPv6 network of 64 bits counting as"
        " one address; 0: any number. Balancers and NAT give many clients one address: name them by --trusted-proxies."
    )
    trusted: tuple[Network, ...] = Group.SERVER.collected(
        "--trusted-proxies", "NETWORK[,NETWORK...]", _networks
    ).means(
        "Tritium's own: addresses and networks of proxies, such as 10.0.0.0/8. They are believed when they"
        " name a client in Forwarded or X-Forwarded-For, and --max-connections-per-address does not count them."
        " Repeatable."
    )
    proxy_protocol: frozenset[str] = Group.SERVER.option(
        "--proxy-protocol", Form("PORT[,PORT...]", _services, _services), _introduced
    ).means(
        "Tritium's own: ports where connections of --trusted-proxies begin with a header of the PROXY"
        " protocol, version 1 or 2: http, grpc, metrics, management."
    )
    requests_per_address: float = Group.SERVER.option(
        "--max-requests-per-second-per-address=0", number("N").into(lambda rate: rate or math.inf)
    ).means(
        "Tritium's own: how many requests and messages a second one address may make, over all ports, health"
        " checks left out; beyond them it gets 429 or RESOURCE_EXHAUSTED; 0: any number."
    )
    bytes_per_address: float = Group.SERVER.option(
        "--max-bytes-per-second-per-address=0", Form("SIZE", _optional_size, _optional_size)
    ).means("Tritium's own: how many bytes a second these may bring, such as 10MiB; 0: any number.")
    concurrent_per_address: float = Group.SERVER.option(
        "--max-concurrent-per-address=0", integer("N").into(lambda most: float(most) or math.inf)
    ).means("Tritium's own: how many inferences one address may have under way; 0: any number.")

    receive_memory: str = Group.SERVER.option("--receive-memory=20%", MEMORY).means(
        "Tritium's own: the memory that requests of more than 64 KiB may hold together, over HTTP and gRPC, until they"
        " are answered: bytes, a size such as 2GiB, or a share of what the server may use. Others wait, their sockets"
        " unread, and get 503 or UNAVAILABLE after 10 seconds. A request that is larger comes alone."
    )

    @property
    def address_limit(self) -> AddressLimit | None:
        """What one address may have; None for any number."""
        return AddressLimit(self.per_address, TrustedProxies(self.trusted)) if self.per_address else None

    @property
    def proxies(self) -> TrustedProxies | None:
        """Those who are believed when they name a client; None where there are none."""
        return TrustedProxies(self.trusted) if self.trusted else None


# -- what HTTP and gRPC have in common


_TOKEN: Final = re.compile(
    r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,253}"
)  # RFC 9110, section 5.6.2; a host's name fits


def _replica_name(word: str, name: str) -> str:
    if word and not _TOKEN.fullmatch(word):
        raise SettingsError(
            f"--{name} takes letters, digits and !#$%&'*+-.^_`|~, at most 253 of them. Got {word}",
            hint=f"the name of a pod or a host fits, such as --{name}=tritium-0",
        )
    return word


REPLICA_NAME: Final = Form("NAME", _replica_name, _replica_name)
"""What a header may have as it is; empty for none."""


@dataclass(frozen=True, slots=True)
class RestrictedHeader:
    """The header that a restricted API asks for, and the value it must have."""

    key: str
    value: str = field(repr=False)


def restrictions(kind: str, form: str) -> Callable[[Given, str], Mapping[str, RestrictedHeader]]:
    """Return a reader of what each restricted API asks for. `kind` is Triton's word for APIs in texts."""

    def read(given: Given, name: str) -> Mapping[str, RestrictedHeader]:
        restricted: dict[str, RestrictedHeader] = {}
        for group in given.all(name):
            apis, colon, header = group.partition(":")
            key, equals, value = header.partition("=")
            if not colon or not equals or not key:
                raise misshapen(name, f"<{form}>[,<{form}>...]:<key>=<value>", concealed(group))
            for api in apis.split(","):
                if api not in RESTRICTABLE_APIS:
                    api = HIDDEN if "=" in api else api  # a header's value, in the wrong place
                    raise SettingsError(
                        f"unknown restricted {kind} '{api}'",
                        hint="APIs are " + ", ".join(RESTRICTABLE_APIS),
                    )
                if api in restricted:
                    raise SettingsError(
                        f"restricted {kind} '{api}' can not be specified in multiple config groups"
                    )
                restricted[api] = RestrictedHeader(key, value)
        return MappingProxyType(restricted)

    return read


def _pattern(pattern: str, name: str) -> str:
    try:
        compiled(pattern)
    except re.error as error:
        raise SettingsError(f"--{name} is not a regular expression. Got {pattern}: {error}") from None
    return pattern


PATTERN: Final = Form("REGEX", _pattern)
"""A regular expression, kept as it was given."""


def host_port(address: str, port: int) -> str:
    """Return `address:port` as clients take it: an IPv6 address in brackets (RFC 3986, section 3.2.2)."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def refuse_clashes(listeners: Sequence[tuple[str, str, int]]) -> None:
    """Raise SettingsError where two of (what it listens to, address, port) are in the same place."""
    for index, (what, address, port) in enumerate(listeners):
        for other, other_address, other_port in listeners[index + 1 :]:
            if port and (address, port) == (other_address, other_port):
                raise SettingsError(
                    f"The server cannot listen to {what} and {other} at the same address and port {address}:{port}"
                )


# -- gRPC


def _connection_bytes(word: str, name: str) -> int:
    count = to_size(word, name)
    if count < LEAST_CONNECTION_BYTES:
        raise out_of_bound(
            word,
            f"--{name} takes 128KiB or more: a connection must hold a call that arrives and an answer that leaves",
        )
    return count


def _unix_socket(path: str, name: str) -> str:
    length = len(os.fsencode(path))
    if length > _UNIX_PATH_MAX:
        raise SettingsError(
            f"--{name} is too long for a socket's path: {length} bytes. Got {path}",
            hint=f"such a path has {_UNIX_PATH_MAX} bytes at most",
        )
    if "\0" in path:
        raise SettingsError(f"--{name} must not contain a NUL character")
    return path


def _if_served(path: str, given: Given) -> str:
    if not given.on("allow-grpc") and given.word("grpc-unix-socket"):
        given.warn_of("grpc-unix-socket", "--allow-grpc=false switches off the socket with the port")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveSettings:
    """How gRPC connections are kept and ended. Durations are seconds; `math.inf` is never.

    A value of 0 for `max_pings_without_data` or `max_ping_strikes` is no limit, as with gRPC's channel
    arguments of these names.
    """

    time: float = Group.GRPC.option("--grpc-keepalive-time=7200000", _milliseconds(least=1)).means(
        "Ping a connection on which nothing has come for so long; 2147483647: never."
    )
    timeout: float = Group.GRPC.option("--grpc-keepalive-timeout=20000", _milliseconds(least=1)).means(
        "Close a connection whose ping is not answered for so long."
    )
    permit_without_calls: bool = Group.GRPC.option("--grpc-keepalive-permit-without-calls=false", BOOL).means(
        "Send, and allow, such pings while no call is under way."
    )
    max_pings_without_data: int = Group.GRPC.option(
        "--grpc-http2-max-pings-without-data=2", integer("N")
    ).means("How many pings are sent without data between them; 0: any number.")
    min_ping_interval_without_data: float = Group.GRPC.option(
        "--grpc-http2-min-recv-ping-interval-without-data=300000", _milliseconds()
    ).means("A client that pings more often than this, without data between its pings, earns a strike.")
    max_ping_strikes: int = Group.GRPC.option("--grpc-http2-max-ping-strikes=2", integer("N")).means(
        "How many strikes are borne before the connection is closed; 0: any number."
    )
    max_connection_age: float = Group.GRPC.option("--grpc-max-connection-age", _AGE).means(
        "Have clients connect anew after so long. [default: never]"
    )
    max_connection_age_grace: float = Group.GRPC.option("--grpc-max-connection-age-grace", _AGE).means(
        "How long calls may then take before they are cut off. [default: for ever]"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """Where gRPC listens and what it does there.

    Port 0 lets the kernel choose; an empty `unix_socket` is none.
    """

    address: str = Group.GRPC.option("--grpc-address=0.0.0.0", text("ADDRESS")).means("Where gRPC listens.")
    port: int = Group.GRPC.option("--grpc-port=8001", PORT).means("On which port; 0 lets the kernel choose.")
    reuse_port: bool = Group.GRPC.option("--reuse-grpc-port=false", BOOL).means(
        "Let several servers listen on that port; the kernel deals connections out among them."
    )
    unix_socket: str = Group.GRPC.option("--grpc-unix-socket", Form("PATH", _unix_socket), _if_served).means(
        "Tritium's own: listen on a Unix socket at PATH too, without TLS; clients name it unix:PATH."
    )
    # On the port; the Unix socket speaks without.
    tls: TlsFiles | None = TlsFlags(group=Group.GRPC, listener="grpc", title="gRPC", tritons=True).declared()
    connection_bytes: int = Group.GRPC.option(
        "--grpc-connection-bytes=64MiB", Form("SIZE", _connection_bytes)
    ).means(
        "Tritium's own: what one connection may have under way in requests and in answers, each: bytes, or"
        " a size such as 8MiB, 128KiB at least. One request, or one answer, that is larger goes alone."
    )
    compression: CompressionLevel = Group.GRPC.option(
        "--grpc-infer-response-compression-level=none", _COMPRESSION
    ).means("Compress answers of the inference calls for clients that accept it: none, low, medium, high.")
    header_forward_pattern: str = Group.GRPC.option("--grpc-header-forward-pattern", PATTERN).means(
        "Request metadata whose key matches (anywhere, in any case) become request parameters."
    )
    restricted_protocol: Mapping[str, RestrictedHeader] = Group.GRPC.collected(
        "--grpc-restricted-protocol",
        "API[,API...]:KEY=VALUE",
        restrictions("protocol", "protocol"),
        secret=bool,
    ).means(
        "Answer these APIs, those of --http-restricted-api, only where the metadata"
        " triton-grpc-protocol-KEY has the value VALUE. Repeatable."
    )
    keepalive: KeepaliveSettings = section(KeepaliveSettings)

    def options(self) -> Iterator[tuple[str, str]]:
        """Yield (name, value) of what an operator wants to see at start-up."""
        yield "grpc", f"{host_port(self.address, self.port)}{security_of(self.tls)}"
        if self.unix_socket:
            yield "grpc_unix_socket", self.unix_socket
