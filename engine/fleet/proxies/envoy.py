"""Writes a configuration of Envoy, 1.36 and later, as JSON.

One cluster a protocol has all servers. A server's endpoint says in its metadata which models it has, and a
route picks among those with the model (`subset`). A second cluster serves the sequences: the filter
`header_to_metadata` picks the one server that the request names. That cluster asks whether a server lives,
not whether it is ready, because a server that drains still has its sequences.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from engine.fleet.names import is_address
from engine.fleet.proxies.values import (
    MODEL,
    REPLICA,
    ProxyOptions,
    Upstream,
    checked,
    holders,
)

_TYPE: Final = "type.googleapis.com/envoy."
_LB: Final = "envoy.lb"  # where balancing looks for metadata
_MANY: Final = 1_000_000  # in place of limits of 1,024; the servers have limits of their own
_SAFE: Final = "connect-failure,refused-stream,reset-before-request"
_AGAIN: Final = f"{_SAFE},reset,gateway-error,unavailable"
_UNRESERVED: Final = "!$&'()*+,;=:@~"  # of a path's segment, what a client may leave as it is
_GONE: Final = f"the replica in {REPLICA} can't be reached: begin the sequence anew, without {REPLICA}"

_NOWHERE: Final = {
    "status": 404,
    "body": {"inline_string": "Request for unknown model: no server of the fleet has it"},
}

Json = Mapping[str, Any]


def envoy(upstreams: Iterable[Upstream], options: ProxyOptions) -> str:
    """Return the configuration. Raises Unwritable."""
    servers = checked(upstreams)
    sides = {"http": servers, "grpc": [each for each in servers if each.grpc_port is not None]}
    there = {side: each for side, each in sides.items() if each}
    listeners = [_listener(side, each, options) for side, each in there.items()]
    clusters = [_cluster(side, each, alone=alone) for side, each in there.items() for alone in (False, True)]
    whole = {"static_resources": {"listeners": listeners, "clusters": clusters}}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


# -- ports


def _listener(side: str, servers: Sequence[Upstream], options: ProxyOptions) -> Json:
    port = options.grpc_port if side == "grpc" else options.http_port
    return {
        "name": side,
        "address": _address(options.address, port),
        "per_connection_buffer_limit_bytes": options.retry_buffer,
        "filter_chains": [
            {"filters": [_typed("filters.network.http_connection_manager", _manager(side, servers, options))]}
        ],
    }


def _manager(side: str, servers: Sequence[Upstream], options: ProxyOptions) -> Json:
    kind = "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    return {
        "@type": _TYPE + kind,
        "stat_prefix": side,
        "codec_type": "HTTP2" if side == "grpc" else "AUTO",
        "use_remote_address": True,
        "generate_request_id": False,  # a fifth of what Envoy takes for a request (docs/proxies.md)
        "stream_idle_timeout": f"{options.timeout}s",
        "request_headers_timeout": "30s",
        "common_http_protocol_options": {"idle_timeout": "600s"},
        "http2_protocol_options": {"max_concurrent_streams": 1024},
        "route_config": {
            "name": side,
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": _routes(side, servers, options)},
            ],
        },
        "http_filters": [_by_header(), _typed("filters.http.router", _kind("filters.http.router.v3.Router"))],
        "local_reply_config": _own_answers(side),
    }


def _by_header() -> Json:
    """Return the filter that has the replica's name picked from the header."""
    told = {"metadata_namespace": _LB, "key": "replica", "type": "STRING"}
    return _typed(
        "filters.http.header_to_metadata",
        {
            **_kind("filters.http.header_to_metadata.v3.Config"),
            "request_rules": [{"header": REPLICA, "on_header_present": told}],
        },
    )


def _own_answers(side: str) -> Json:
    """Return what Envoy says where no server answers."""
    broken: Json = {"status_code_filter": {"comparison": {"op": "GE", "value": _runtime(502)}}}
    shown: Json = {"name": REPLICA, "present_match": True}
    sticks: Json = {"header_filter": {"header": shown}}
    gone: dict[str, Any] = {
        "filter": {"and_filter": {"filters": [broken, sticks]}},
        "body": {"inline_string": _GONE},
    }
    if side == "grpc":
        nowhere: dict[str, Any] = {
            "filter": {"status_code_filter": {"comparison": {"op": "EQ", "value": _runtime(404)}}}
        }
        return {"mappers": [gone | _grpc_status(9), nowhere | _grpc_status(5)]}
    gone["status_code"] = 412
    return {
        "mappers": [gone],
        "body_format": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}, "content_type": "application/json"},
    }


def _grpc_status(number: int) -> dict[str, Any]:
    header = {"key": "grpc-status", "value": str(number)}
    return {"headers_to_add": [{"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]}


def _runtime(value: int) -> Json:
    return {"default_value": value, "runtime_key": "tritium.none"}


# -- routes


def _routes(side: str, servers: Sequence[Upstream], options: ProxyOptions) -> Sequence[Json]:
    sticky = {"name": REPLICA, "present_match": True}
    routes: list[Json] = [
        {
            "match": {"prefix": "/", "headers": [sticky]},
            "route": {**_timed(options), "cluster": f"{side}_replicas", "retry_policy": _retries(_SAFE)},
        }
    ]
    balanced = {**_timed(options), "cluster": side, "retry_policy": _balanced_retries(options)}
    everywhere = {"route": balanced}
    sets = holders(servers)
    models = [model for each in sets.values() for model in each]
    picked = {
        model: {"route": {**balanced, "metadata_match": {"filter_metadata": {_LB: {"models": model}}}}}
        for model in models
    }
    others = {"direct_response": _NOWHERE} if all(each.models is not None for each in servers) else everywhere
    if sets and side == "http":  # a path says more than a header
        routes.append({"match": {"path": "/v2/models/stats"}, **everywhere})
        routes += [{"match": each, **picked[model]} for model in models for each in _paths(model)]
        routes.append({"match": {"prefix": "/v2/models/"}, **others})
    if sets:
        shown: list[tuple[Json, Json]] = [
            ({"string_match": {"exact": model}}, picked[model]) for model in models
        ]
        shown.append(({"present_match": True}, others))
        routes += [
            {"match": {"prefix": "/", "headers": [{"name": MODEL, **how}]}, **where} for how, where in shown
        ]
    return [*routes, {"match": {"prefix": "/"}, **everywhere}]


def _paths(model: str) -> Sequence[Json]:
    """Return a model's path in each form in which clients write it."""
    forms = sorted({quote(model, safe=""), quote(model, safe=_UNRESERVED)})
    return [{"path_separated_prefix": f"/v2/models/{form}"} for form in forms]


def _timed(options: ProxyOptions) -> Json:
    return {"timeout": "0s", "idle_timeout": f"{options.timeout}s"}


def _retries(on: str) -> Json:
    return {
        "retry_on": on,
        "num_retries": 3,
        "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
    }


def _balanced_retries(options: ProxyOptions) -> Json:
    """Return a policy that turns to a server that was not asked before."""
    previous = _typed(
        "retry_host_predicates.previous_hosts", _kind("retry.host.previous_hosts.v3.PreviousHostsPredicate")
    )
    return {
        **_retries(_AGAIN if options.idempotent else _SAFE),
        "retry_host_predicate": [previous],
        "host_selection_retry_max_attempts": 5,
    }


# -- servers


def _cluster(side: str, servers: Sequence[Upstream], *, alone: bool) -> Json:
    """Return the servers of a protocol, for balancing or, `alone`, each for its own sequences."""
    protocol = (
        {"http2_protocol_options": {"max_concurrent_streams": 1024}}
        if side == "grpc"
        else {"http_protocol_options": {}}
    )
    upstream = "extensions.upstreams.http.v3.HttpProtocolOptions"
    named = not all(is_address(each.host) for each in servers)
    known = [model for models in holders(servers).values() for model in models]
    return {
        "name": f"{side}_replicas" if alone else side,
        "type": "STRICT_DNS" if named else "STATIC",
        "connect_timeout": "1s",
        "load_balancing_policy": {"policies": [{"typed_extension_config": _subsets(alone=alone)}]},
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [_check(alone=alone)],
        "outlier_detection": _OUTLIERS,
        "circuit_breakers": {
            "thresholds": [
                dict.fromkeys(
                    ("max_connections", "max_pending_requests", "max_requests", "max_retries"), _MANY
                )
            ]
        },
        "typed_extension_protocol_options": {
            "envoy." + upstream: {
                "@type": _TYPE + upstream,
                "common_http_protocol_options": {"idle_timeout": "300s"},
                "explicit_http_config": protocol,
            }
        },
        "load_assignment": {
            "cluster_name": f"{side}_replicas" if alone else side,
            "endpoints": [{"lb_endpoints": [_endpoint(side, each, known, alone=alone) for each in servers]}],
        },
    }


def _endpoint(side: str, server: Upstream, known: Sequence[str], *, alone: bool) -> Json:
    port = server.grpc_port if side == "grpc" else server.http_port
    assert port is not None
    held: Json = (
        {"replica": server.name} if alone else {"models": [each for each in known if server.holds(each)]}
    )
    return {
        "endpoint": {
            "address": _address(server.host, port),
            "health_check_config": {"port_value": server.http_port},
        },
        "metadata": {"filter_metadata": {_LB: held}},
    }


def _subsets(*, alone: bool) -> Json:
    """Return a balancing by least requests, among the servers that a route's or request's metadata picks."""
    least = _kind("load_balancing_policies.least_request.v3.LeastRequest") | {"selection_method": "FULL_SCAN"}
    config = {
        **_kind("load_balancing_policies.subset.v3.Subset"),
        "fallback_policy": "NO_FALLBACK" if alone else "ANY_ENDPOINT",
        "subset_selectors": [{"keys": ["replica" if alone else "models"], "fallback_policy": "NO_FALLBACK"}],
        "list_as_any": True,
        "subset_lb_policy": {
            "policies": [{"typed_extension_config": _typed("load_balancing_policies.least_request", least)}]
        },
    }
    return _typed("load_balancing_policies.subset", config)


def _check(*, alone: bool) -> Json:
    every = ("interval", "no_traffic_interval", "no_traffic_healthy_interval", "unhealthy_interval")
    return {
        "timeout": "0.5s",
        **dict.fromkeys(every, "0.5s"),
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "http_health_check": {
            "path": "/v2/health/live" if alone else "/v2/health/ready",
            "codec_client_type": "HTTP1",
        },
    }


_OUTLIERS: Final[Json] = {
    # One connection that fails takes a server out, until a check finds it again.
    "split_external_local_origin_errors": True,
    "consecutive_local_origin_failure": 1,
    "enforcing_consecutive_local_origin_failure": 100,
    **dict.fromkeys(
        (
            "enforcing_consecutive_5xx",
            "enforcing_consecutive_gateway_failure",
            "enforcing_success_rate",
            "enforcing_local_origin_success_rate",
            "enforcing_failure_percentage",
            "enforcing_failure_percentage_local_origin",
        ),
        0,
    ),
    "interval": "0.5s",
    "base_ejection_time": "0.5s",
    "max_ejection_time": "1s",
    "max_ejection_percent": 100,
}


def _address(host: str, port: int) -> Json:
    return {"socket_address": {"address": host, "port_value": port}}


def _typed(name: str, config: Json) -> Json:
    return {"name": f"envoy.{name}", "typed_config": config}


def _kind(name: str) -> dict[str, Any]:
    return {"@type": f"{_TYPE}extensions.{name}"}
