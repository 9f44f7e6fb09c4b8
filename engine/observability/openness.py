"""What a server is open for, from its settings alone: the line at its start, and what to be warned of.

Each key of the line is a field of the event `server_opened`. A feature that closes something adds its key in
`openness`; the sentence of the text formats (`engine.observability.logs`) names those that it knows, and the
others follow it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from engine.settings.listening import host_port
from engine.settings.management import Uploads
from engine.settings.settings import Settings

_REPOSITORY = "model-repository"


_ELSEWHERE = "HTTP of the ASGI server"


def openness(settings: Settings, *, http: bool = True) -> Mapping[str, str]:
    """Return who can reach what, and what holds them back.

    `http` is false where another server, such as hypercorn, accepts HTTP connections.
    """
    places = [] if http else [_ELSEWHERE]
    places += [host_port(address, port) for _, address, port in _inference(settings, http)]
    if settings.allow_grpc and settings.grpc.unix_socket:
        places.append(f"unix:{settings.grpc.unix_socket}")
    platforms = [
        host_port(address, port) for _, address, port in settings.cloud.listeners(settings.http_address)
    ]
    managed = [host_port(address, port) for _, address, port in _management(settings, http)]
    return {
        "inference": _listed(places),
        "management": _listed(managed if settings.management.address else places),
        "metrics": host_port(settings.metrics_address, settings.metrics_port)
        if settings.allow_metrics
        else "none",
        **({"platforms": _listed(platforms)} if platforms else {}),
        "credentials": _credentials(settings),
        **({"audit_log": settings.audit.file} if settings.audit.file else {}),
        "uploads": settings.uploads.value if settings.control_mode == "explicit" else "off",
        "sandbox": _sandbox(settings),
        "tls": _listed([name for name, secured in _tls(settings, http) if secured]),
    }


def exposures(settings: Settings, *, http: bool = True) -> Iterator[str]:
    """Yield a warning for what any client may do that reaches the server from elsewhere.

    Also where a header opens a part of the API over one protocol, and the other needs none. Nothing is known
    of the addresses of another server; for `http` see `openness`.
    """
    yield from _half_restricted(settings)
    if settings.control_mode != "explicit" or settings.uploads is not Uploads.ON or settings.auth_file:
        return
    places = [
        host_port(address, port)
        for protocol, address, port in _management(settings, http)
        if not _is_loopback(address) and not _restricted(settings, protocol)
    ]
    if places:
        yield (
            f"any client that reaches {_listed(places)} may load a model that it brings along, and its code"
            " runs here: --management-address=127.0.0.1 keeps loads to this machine, --auth-file asks for"
            " credentials, --uploads=off or strict takes no such model, or shuts it in"
        )


def _half_restricted(settings: Settings) -> Iterator[str]:
    """Yield a warning for parts of the API that are restricted over one protocol and open over the other."""
    if settings.auth_file or not (settings.allow_http and settings.allow_grpc):
        return
    http, grpc = settings.http_restricted_api.keys(), settings.grpc.restricted_protocol.keys()
    for closed, opened, flag in (
        (http - grpc, "gRPC", "--grpc-restricted-protocol"),
        (grpc - http, "HTTP", "--http-restricted-api"),
    ):
        if closed:
            verb, these = ("is", "it") if len(closed) == 1 else ("are", "them")
            yield (
                f"{_listed(sorted(closed))} {verb} restricted over one protocol only, and open over {opened}:"
                f" {flag} restricts {these} there too"
            )


def _inference(settings: Settings, http: bool) -> Iterator[tuple[str, str, int]]:
    if settings.allow_http and http:
        yield "http", settings.http_address, settings.http_port
    if settings.allow_grpc:
        yield "grpc", settings.grpc.address, settings.grpc.port


def _management(settings: Settings, http: bool) -> Iterator[tuple[str, str, int]]:
    apart = settings.management
    if not apart.address:
        yield from _inference(settings, http)
        return
    yield "http", apart.address, apart.http_port
    if settings.allow_grpc:
        yield "grpc", apart.address, apart.grpc_port


def _restricted(settings: Settings, protocol: str) -> bool:
    """Whether loads over a protocol ask for a secret header."""
    by_protocol = {"http": settings.http_restricted_api, "grpc": settings.grpc.restricted_protocol}
    return _REPOSITORY in by_protocol[protocol]


def _credentials(settings: Settings) -> str:
    if settings.auth_file:
        return "auth file"
    protocols = {protocol for protocol, _, _ in _management(settings, True)}
    if protocols and all(_restricted(settings, protocol) for protocol in protocols):
        return "a header for loads"
    return "none"


def _sandbox(settings: Settings) -> str:
    """Return the floor, or what a model gets that does not say."""
    return settings.sandbox.level.value + ("" if settings.sandbox.asked else " by default")


def _tls(settings: Settings, http: bool) -> Iterator[tuple[str, bool]]:
    yield "HTTP", settings.http_tls is not None and (http or bool(settings.management.address))
    yield "gRPC", settings.allow_grpc and settings.grpc.tls is not None
    yield "metrics", settings.allow_metrics and settings.metrics_tls is not None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "none"
