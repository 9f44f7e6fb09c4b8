"""Writes a configuration of HAProxy, 2.6 and later.

A backend balances a set of servers for one protocol: all of them, or those that have the same models. Another
has one server alone, for the sequences that live there. It asks that server whether it lives, not whether it
is ready, because a server that drains still has its sequences. It has no other server to turn to.

Texts of others stand between single quotes, in which HAProxy reads nothing but the end of the quotes
(https://docs.haproxy.org/2.6/configuration.html, section 2.2). A line may have 64 words, so that each name
of a model has a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from engine.fleet.names import is_address
from engine.fleet.proxies.values import (
    MODEL,
    REPLICA,
    ProxyOptions,
    Upstream,
    checked,
    holders,
)

_PLAIN: Final = re.compile(r"[0-9A-Za-z._-]+")  # of a token's characters, those that a name here may have
_SAFE: Final = "conn-failure"
_AGAIN: Final = "conn-failure empty-response response-timeout 0rtt-rejected 502 503 504"
_REWRITE: Final = 1024  # bytes of a buffer that HAProxy keeps for headers that it adds
_JSON: Final = "content-type application/json"
_STRANGER: Final = f"no replica has the name in {REPLICA}: begin the sequence anew, without {REPLICA}"


def haproxy(upstreams: Iterable[Upstream], options: ProxyOptions) -> str:
    """Return the configuration. Raises Unwritable."""
    servers = checked(upstreams)
    lines = [*_head(options, named=not all(is_address(each.host) for each in servers))]
    lines += _side("http", servers, options)
    callable_ = [each for each in servers if each.grpc_port is not None]
    if callable_:
        lines += _side("grpc", callable_, options)
    return "\n".join(lines) + "\n"


def _head(options: ProxyOptions, *, named: bool) -> Iterator[str]:
    retries = _AGAIN if options.idempotent else _SAFE
    yield from (
        "# Written by `tritium fleet proxy-config haproxy`.",
        "global",
        f"    tune.bufsize {options.retry_buffer + _REWRITE}",
        "    tune.h2.max-concurrent-streams 1024",
        "",
    )
    if named:
        yield from ("resolvers system", "    parse-resolv-conf", "    hold valid 5s", "")
    yield from (
        "defaults",
        "    mode http",
        "    balance leastconn",
        "    option forwardfor",
        "    option http-no-delay",
        "    option redispatch 1",
        "    retries 3",
    )
    if options.idempotent:
        yield "    # A request can run twice: a server may have run it before it broke off."
    yield f"    retry-on {retries}"
    if options.idempotent:
        yield "    http-reuse always"
    yield from (
        "    timeout connect 1s",
        "    timeout queue 5s",
        "    timeout http-request 30s",
        "    timeout http-keep-alive 600s",
        f"    timeout client {options.timeout}s",
        f"    timeout server {options.timeout}s",
        "    default-server inter 500ms fastinter 500ms downinter 500ms fall 2 rise 1"
        " observe layer4 error-limit 1 on-error mark-down",
    )
    if named:
        yield "    default-server init-addr last,libc,none resolvers system"


def _side(side: str, servers: Sequence[Upstream], options: ProxyOptions) -> Iterator[str]:
    """Write the frontend of a protocol, and its backends."""
    sets = holders(servers)
    yield from _frontend(side, servers, sets, options)
    yield from _backend(side, f"{side}_all", servers)
    for number, names in enumerate(sets, start=1):
        yield from _backend(side, f"{side}_models_{number}", [each for each in servers if each.name in names])
    for number, each in enumerate(servers, start=1):
        yield from _backend(side, f"{side}_replica_{number}", [each], alone=True)


def _frontend(
    side: str,
    servers: Sequence[Upstream],
    sets: Mapping[tuple[str, ...], Sequence[str]],
    options: ProxyOptions,
) -> Iterator[str]:
    """Write a protocol's port: which requests get an answer here, then where the others go."""
    port, h2 = (options.grpc_port, " proto h2") if side == "grpc" else (options.http_port, "")
    yield from ("", f"frontend {side}", f"    bind {_bracketed(options.address)}:{port}{h2}")
    yield from _names(servers, sets)
    if sets:
        yield f"    http-request set-var(txn.model) req.hdr({MODEL}) if {{ req.hdr({MODEL}) -m found }}"
    if sets and side == "http":
        path = "{ path_beg /v2/models/ } !{ path /v2/models/stats }"
        yield f"    http-request set-var(txn.model) path,field(4,/),url_dec if {path}"
    if side == "grpc":
        untyped = "!{ res.hdr(content-type) -m found }"
        yield f"    http-after-response set-header content-type application/grpc if {untyped}"
    yield f"    http-request return {_answer(side, 412, 9, _STRANGER)} if sticks !known_replica"
    for number, each in enumerate(servers, start=1):
        down = f"{{ nbsrv({side}_replica_{number}) eq 0 }}"
        yield f"    http-request return {_answer(side, 412, 9, _gone(each))} if replica_{number} {down}"
    if sets and all(each.models is not None for each in servers):
        nowhere = "{ var(txn.model) -m found } !known_model !sticks"
        yield f"    http-request return {_unknown_model(side)} if {nowhere}"
    for number in range(1, len(servers) + 1):
        yield f"    use_backend {side}_replica_{number} if replica_{number}"
    for number in range(1, len(sets) + 1):
        yield f"    use_backend {side}_models_{number} if models_{number}"
    yield f"    default_backend {side}_all"


def _names(servers: Sequence[Upstream], sets: Mapping[tuple[str, ...], Sequence[str]]) -> Iterator[str]:
    """Write the conditions that a port's rules go by."""
    yield f"    acl sticks req.hdr({REPLICA}) -m found"
    for number, each in enumerate(servers, start=1):
        for name in (f"replica_{number}", "known_replica"):
            yield f"    acl {name} req.hdr({REPLICA}) -m str -- {_quoted(each.name)}"
    for number, models in enumerate(sets.values(), start=1):
        for model in models:
            for name in (f"models_{number}", "known_model"):
                yield f"    acl {name} var(txn.model) -m str -- {_quoted(model)}"


def _backend(side: str, name: str, servers: Sequence[Upstream], *, alone: bool = False) -> Iterator[str]:
    yield from ("", f"backend {name}", "    option httpchk")
    yield f"    http-check send meth GET uri /v2/health/{'live' if alone else 'ready'}"
    yield "    http-check expect status 200"
    if alone:
        # No other server has the sequence, and a request of it must not run twice.
        yield from ("    no option redispatch", f"    retry-on {_SAFE}")
    for status in (502, 503, 504):
        told = (9, _gone(servers[0])) if alone else (14, "no server can be reached")
        yield f"    http-error {_answer(side, status, *told, error=True)}"
    for number, each in enumerate(servers, start=1):
        label = each.name if _PLAIN.fullmatch(each.name) else f"replica:{number}"
        host = _bracketed(each.host)
        if side == "grpc":
            over = f"{host}:{each.grpc_port} proto h2 check check-proto h1 port {each.http_port}"
        else:
            over = f"{host}:{each.http_port} check"
        yield f"    server {label} {over}"


def _gone(replica: Upstream) -> str:
    return f"the replica '{replica.name}' can't be reached: begin the sequence anew, without {REPLICA}"


def _answer(side: str, status: int, grpc: int, text: str, *, error: bool = False) -> str:
    """Return the words that have HAProxy answer by itself: Triton's JSON, or a status of gRPC.

    `error`: it stands in place of an error of HAProxy's own, whose status it keeps.
    """
    if side == "http":
        return f"status {status} {_JSON} string {_quoted(json.dumps({'error': text}))}"
    # A header's text is an expression, and gRPC's message escapes by percent signs as well.
    message = _quoted(text.replace("%", "%25").replace("%", "%%"))
    named = f"hdr grpc-status {grpc} hdr grpc-message {message}"
    return f"status {status if error else 200} {named}"


def _unknown_model(side: str) -> str:
    """Return the words for a model that no server has. Its name is the client's, and is escaped for JSON."""
    if side == "grpc":
        return _answer(side, 404, 5, f"no server has the model that {MODEL} names")
    name = "%[var(txn.model),json(utf8s)]"
    shown = json.dumps({"error": f"Request for unknown model: '{name}' is not found"})
    return f"status 404 {_JSON} lf-string {_quoted(shown)}"


def _quoted(text: str) -> str:
    """Return `text` as one word of HAProxy's: a single quote stands outside of the quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
