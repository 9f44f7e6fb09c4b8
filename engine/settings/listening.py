"""What the operator decided about who may reach the server, and how.

This is the part of the settings that listeners use.

Contract: grpc.md sections 1 and 3, http.md section 2.1, repository.md section 10.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, cast

from engine.settings.re2 import compiled
from engine.settings.words import Given, SettingsError, read_size
from protocols.transport.room import AddressLimit, Network

CompressionLevel = Literal["none", "low", "medium", "high"]

RESTRICTABLE_APIS: Final = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)

LEAST_CONNECTION_BYTES: Final = 128 * 1024
"""Two first windows of HTTP/2 (65,535 bytes): one call that arrives, and another's answer that leaves."""

_FOR_EVER: Final = 2**31 - 1  # gRPC's INT_MAX, in milliseconds: never
_UNIX_PATH_MAX: Final = 107  # bytes of `sun_path`, less its end (unix(7))


@dataclass(frozen=True, slots=True)
class RestrictedHeader:
    """The header that a restricted API asks for, and the value it must have."""

    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of a listener that speaks TLS.

    With `client_roots`, clients must show a certificate that these vouch for.
    """

    certificate: str
    key: str
    client_roots: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveSettings:
    """How gRPC connections are kept and ended. Durations are seconds; `math.inf` is never.

    A value of 0 for `max_pings_without_data` or `max_ping_strikes` is no limit, as with gRPC's channel
    arguments of these names.
    """

    time: float = 7200.0
    timeout: float = 20.0
    permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_ping_interval_without_data: float = 300.0
    max_ping_strikes: int = 2
    max_connection_age: float = math.inf
    max_connection_age_grace: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """Where gRPC listens and what it does there.

    Port 0 lets the kernel choose; an empty `unix_socket` is none.
    """

    address: str = "0.0.0.0"  # Triton's default, as for HTTP
    port: int = 8001
    reuse_port: bool = False
    unix_socket: str = ""
    tls: TlsFiles | None = None  # on the port; the Unix socket speaks without
    connection_bytes: int = 64 * 1024 * 1024
    header_forward_pattern: str = ""
    restricted_protocol: Mapping[str, RestrictedHeader] = field(default_factory=dict)  # API → metadata
    compression: CompressionLevel = "none"
    keepalive: KeepaliveSettings = field(default_factory=KeepaliveSettings)

    def options(self) -> Iterator[tuple[str, str]]:
        """Yield (name, value) of what an operator wants to see at start-up."""
        secured = ""
        if self.tls is not None:
            secured = " (TLS, clients with certificates)" if self.tls.client_roots else " (TLS)"
        yield "grpc", f"{host_port(self.address, self.port)}{secured}"
        if self.unix_socket:
            yield "grpc_unix_socket", self.unix_socket


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How many connections each port has, and how long one may be idle (seconds, `math.inf` for ever)."""

    most: int = 8192
    idle_timeout: float = 600.0
    per_address: int = 0  # any number
    trusted: tuple[Network, ...] = ()

    @property
    def address_limit(self) -> AddressLimit | None:
        """What one address may have; None for any number."""
        return AddressLimit(self.per_address, self.trusted) if self.per_address else None


def read_connections(given: Given) -> ConnectionSettings:
    """Read the flags about connections. Raises SettingsError."""
    per_address = given.integer("max-connections-per-address", 0)
    trusted = tuple(_network(text) for group in given.all("trusted-proxies") for text in group.split(","))
    if trusted and not per_address:
        given.warnings.append(
            "--trusted-proxies has no effect: only --max-connections-per-address counts by address"
        )
    return ConnectionSettings(
        most=given.integer("max-connections", 8192, least=1),
        idle_timeout=given.number("connection-idle-timeout-secs", 600.0) or math.inf,
        per_address=per_address,
        trusted=trusted,
    )


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise SettingsError(
            f"--trusted-proxies takes addresses and networks. Got {text}: {error}",
            hint="for example --trusted-proxies=10.0.0.0/8,192.0.2.7,2001:db8::/64",
        ) from None


def read_grpc(given: Given) -> GrpcSettings:
    """Read the flags that begin with `grpc`. Raises SettingsError."""
    if not given.boolean("allow-grpc", True):
        _warn_of_idle(
            given, ("grpc-unix-socket",), "--allow-grpc=false switches off the socket with the port"
        )
    level = given.text("grpc-infer-response-compression-level", "none")
    return GrpcSettings(
        address=given.text("grpc-address", "0.0.0.0"),
        port=given.integer("grpc-port", 8001, most=65535),
        reuse_port=given.boolean("reuse-grpc-port", False),
        unix_socket=_unix_socket(given.text("grpc-unix-socket", "")),
        tls=_tls(given),
        connection_bytes=_connection_bytes(given.text("grpc-connection-bytes", "64MiB")),
        header_forward_pattern=read_pattern(given, "grpc-header-forward-pattern"),
        restricted_protocol=read_restrictions(given, "grpc-restricted-protocol", kind="protocol"),
        compression=cast(CompressionLevel, level),
        keepalive=_keepalive(given),
    )


def _keepalive(given: Given) -> KeepaliveSettings:
    return KeepaliveSettings(
        time=_seconds(given, "grpc-keepalive-time", 7_200_000, least=1),
        timeout=_seconds(given, "grpc-keepalive-timeout", 20_000, least=1),
        permit_without_calls=given.boolean("grpc-keepalive-permit-without-calls", False),
        max_pings_without_data=given.integer("grpc-http2-max-pings-without-data", 2),
        min_ping_interval_without_data=_seconds(
            given, "grpc-http2-min-recv-ping-interval-without-data", 300_000
        ),
        max_ping_strikes=given.integer("grpc-http2-max-ping-strikes", 2),
        # As in Triton, 0 is as good as unset.
        max_connection_age=_seconds(given, "grpc-max-connection-age", 0) or math.inf,
        max_connection_age_grace=_seconds(given, "grpc-max-connection-age-grace", 0) or math.inf,
    )


def _seconds(given: Given, name: str, default: int, *, least: int = 0) -> float:
    """Return a flag of milliseconds in seconds."""
    milliseconds = given.integer(name, default, least=least)
    return math.inf if milliseconds == _FOR_EVER else milliseconds / 1000


def _connection_bytes(text: str) -> int:
    count = read_size("grpc-connection-bytes", text)
    if count < LEAST_CONNECTION_BYTES:
        raise SettingsError(
            f"Provided option value is out of bound. Got {text}",
            hint="--grpc-connection-bytes takes 128KiB or more: a connection must hold a call that arrives and an answer"
            " that leaves",
        )
    return count


def _unix_socket(path: str) -> str:
    length = len(os.fsencode(path))
    if length > _UNIX_PATH_MAX:
        raise SettingsError(
            f"--grpc-unix-socket is too long for a socket's path: {length} bytes. Got {path}",
            hint=f"such a path has {_UNIX_PATH_MAX} bytes at most",
        )
    if "\0" in path:
        raise SettingsError("--grpc-unix-socket must not contain a NUL character")
    return path


def _tls(given: Given) -> TlsFiles | None:
    mutual = given.boolean("grpc-use-ssl-mutual", False)
    switch = "grpc-use-ssl-mutual" if mutual else "grpc-use-ssl"
    if not mutual and not given.boolean("grpc-use-ssl", False):
        _warn_of_idle(
            given,
            ("grpc-server-cert", "grpc-server-key", "grpc-root-cert"),
            "gRPC speaks TLS only with --grpc-use-ssl=true or --grpc-use-ssl-mutual=true",
        )
        return None
    if not mutual:
        _warn_of_idle(
            given, ("grpc-root-cert",), "only --grpc-use-ssl-mutual=true asks clients for certificates"
        )
    return TlsFiles(
        certificate=_file(given, "grpc-server-cert", switch, "the server's certificate"),
        key=_file(given, "grpc-server-key", switch, "the key of the server's certificate"),
        client_roots=_file(given, "grpc-root-cert", switch, "certificates that vouch for clients")
        if mutual
        else "",
    )


def _warn_of_idle(given: Given, names: Sequence[str], why: str) -> None:
    for name in names:
        if given.text(name, ""):
            given.warnings.append(f"--{name} has no effect: {why}")


def _file(given: Given, name: str, switch: str, what: str) -> str:
    path = given.text(name, "")
    if not path:
        raise SettingsError(
            f"--{switch} requires --{name}", hint=f"--{name}=FILE names the PEM file with {what}"
        )
    return path


# -- shared with HTTP


def host_port(address: str, port: int) -> str:
    """Return `address:port` as clients take it: an IPv6 address in brackets (RFC 3986, section 3.2.2)."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def read_pattern(given: Given, name: str) -> str:
    """Return a flag's regular expression as it was given. Raises SettingsError for what is none."""
    pattern = given.text(name, "")
    try:
        compiled(pattern)
    except re.error as error:
        raise SettingsError(f"--{name} is not a regular expression. Got {pattern}: {error}") from None
    return pattern


def read_restrictions(given: Given, name: str, *, kind: str) -> Mapping[str, RestrictedHeader]:
    """Return what each restricted API asks for. Raises SettingsError.

    `kind` is Triton's word for APIs in texts.
    """
    restricted: dict[str, RestrictedHeader] = {}
    for group in given.all(name):
        apis, colon, header = group.partition(":")
        key, equals, value = header.partition("=")
        if not colon or not equals or not key:
            form = f"<{_FORMS[kind]}>[,<{_FORMS[kind]}>...]:<key>=<value>"
            raise SettingsError(f"--{name} option format is '{form}'. Got {group}")
        for api in apis.split(","):
            if api not in RESTRICTABLE_APIS:
                raise SettingsError(
                    f"unknown restricted {kind} '{api}'", hint="APIs are " + ", ".join(RESTRICTABLE_APIS)
                )
            if api in restricted:
                raise SettingsError(
                    f"restricted {kind} '{api}' can not be specified in multiple config groups"
                )
            restricted[api] = RestrictedHeader(key, value)
    return MappingProxyType(restricted)


_FORMS: Final = MappingProxyType({"api": "API", "protocol": "protocol"})


def refuse_clashes(listeners: Sequence[tuple[str, str, int]]) -> None:
    """Raise SettingsError where two of (what it listens to, address, port) are in the same place."""
    for index, (what, address, port) in enumerate(listeners):
        for other, other_address, other_port in listeners[index + 1 :]:
            if port and (address, port) == (other_address, other_port):
                raise SettingsError(
                    f"The server cannot listen to {what} and {other} at the same address and port {address}:{port}"
                )
