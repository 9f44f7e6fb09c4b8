"""Browsers as clients of the native listener and a foreign server: refusals, preflights, CORS on answers."""

import http.client
import json
import socket
from contextlib import ExitStack

import pytest

from actors.values.callers import Action
from protocols.http.app import V2App
from protocols.http.browsers import use_of
from protocols.http.options import V2Options
from protocols.http.origins import OriginPolicy, Use
from protocols.http.routes import Endpoint
from tests.protocols.fakes import FakeServer
from tests.support.flavours import listeners_alone

APP, EVIL = "https://app.example", "https://evil.example"
INFER, GENERATE = "/v2/models/add/infer", "/v2/models/strings/generate"
EXPOSED = "Inference-Header-Content-Length, Retry-After, Server-Timing, Tritium-Replica, WWW-Authenticate"


def infer_body():
    rows = [{"name": name, "datatype": "FP32", "shape": [1, 16], "data": [1] * 16} for name in "AB"]
    return json.dumps({"inputs": rows})


@pytest.fixture(scope="module")
def ask():
    """Ask a listener by bare HTTP: status, fields, body. `policy` chooses one: strict, named or open."""
    policies = {
        "strict": OriginPolicy(),
        "named": OriginPolicy(trusted_hosts=frozenset({"models.example"}), origins=frozenset({APP})),
        "open": OriginPolicy(origins=frozenset({"*"})),
    }
    with ExitStack() as stack:
        addresses = {}
        for name, policy in policies.items():
            server = FakeServer()
            server.repository.explicit = True
            restricted = {Action.STATISTICS: ("key", "s3cret")}
            options = V2Options(pages=policy, restricted=restricted, server_timing=True)
            addresses[name] = stack.enter_context(listeners_alone(server, options)).http

        def ask(policy, method, path, body=None, **fields):
            connection = http.client.HTTPConnection(addresses[policy], timeout=10)
            with ExitStack() as each:
                each.callback(connection.close)
                connection.request(method, path, body, {k.replace("_", "-"): v for k, v in fields.items()})
                answer = connection.getresponse()
                return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()

        ask.addresses = addresses  # type: ignore[attr-defined]
        yield ask


def cors(fields):
    return {k: v for k, v in fields.items() if k.startswith("access-control") or k == "vary"}


def test_every_endpoint_has_a_use_and_what_only_reads_is_no_change():
    changes = {
        Endpoint.MODEL_LOAD,
        Endpoint.MODEL_UNLOAD,
        Endpoint.TRAFFIC,
        Endpoint.FLEET,
        Endpoint.LOGGING,
        Endpoint.TRACE,
        Endpoint.SYSTEM_MEMORY_CHANGE,
        Endpoint.CUDA_MEMORY_CHANGE,
    }
    for endpoint in Endpoint:
        for method in endpoint.methods:
            use = use_of(endpoint, method)
            assert (use is Use.CHANGE) == (method == "POST" and endpoint in changes), endpoint
    assert use_of(Endpoint.INFER, "POST") is use_of(Endpoint.GENERATE_STREAM, "POST") is Use.INFERENCE
    assert use_of(Endpoint.REPOSITORY_INDEX, "POST") is Use.READ
    assert use_of(Endpoint.SERVER_READY, "GET") is Use.HEALTH


# What is refused


CHANGES = [
    "/v2/repository/models/add/load",
    "/v2/repository/models/add/unload",
    "/v2/tritium/models/add/traffic",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/cudasharedmemory/unregister",
]


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("policy", ["strict", "named", "open"])
def test_no_page_of_another_site_changes_anything_whatever_its_content_type(ask, path, policy):
    for fields in ({"Content-Type": "text/plain"}, {"Content-Type": "application/json"}, {}):
        for origin in (
            {"Origin": EVIL},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": APP},
        ):
            status, _, body = ask(policy, "POST", path, "{}", **fields, **origin)
            assert status == 403, (fields, origin)
            assert "a web page of another site sent this" in json.loads(body)["error"]


@pytest.mark.parametrize("path", CHANGES)
def test_a_long_body_of_such_a_page_is_refused_by_its_head(ask, path):
    assert ask("strict", "POST", path, "x" * 200_000, Origin=EVIL)[0] == 403


@pytest.mark.parametrize("path", [INFER, GENERATE, GENERATE + "_stream"])
def test_pages_of_another_site_infer_only_where_their_origin_is_named(ask, path):
    status, fields, body = ask("strict", "POST", path, "{", Origin=EVIL)
    assert status == 403
    assert "--cors-allowed-origins" in json.loads(body)["error"]
    assert cors(fields) == {}
    assert ask("named", "POST", path, "{", Origin=EVIL)[0] == 403
    assert ask("named", "POST", path, "{", Origin=APP)[0] == 500
    assert ask("open", "POST", path, "{", Origin=EVIL)[0] == 500


def test_a_name_rebound_to_this_server_gets_nothing(ask):
    rebound = {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}
    for method, path in (
        ("POST", INFER),
        ("GET", "/v2"),
        ("POST", CHANGES[0]),
        ("POST", "/v2/repository/index"),
    ):
        status, _, body = ask("strict", method, path, "{}" if method == "POST" else None, **rebound)
        assert status == 403, path
        assert "--trusted-hosts" in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"Host": "192.168.1.5:8000", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "LOCALHOST:8000", "Origin": "http://localhost:8000"}, 200),
        ({"Host": "localhost.:8000", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "[::1]:8000", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "[fe80::1%25eth0]:8000", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "models.example", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "MODELS.example.:80", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "typed.example", "Sec-Fetch-Site": "none"}, 200),
        ({"Host": "evil.example", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Host": "127.0.0.1:8000:evil", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Host": "localhost:80000000", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Host": "", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Host": "evil.localhost", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Host": "2130706433", "Sec-Fetch-Site": "same-origin"}, 403),
        # A user in front of the host is no host, whatever client sends it.
        ({"Host": "localhost@evil.example", "Sec-Fetch-Site": "same-origin"}, 400),
        # Clients that are no browsers may ask for any name.
        ({"Host": "tritium.default.svc.cluster.local:8000"}, 200),
        ({"Host": "evil.example", "User-Agent": "kube-probe/1.32"}, 200),
        ({"Host": "evil.example", "User-Agent": "Prometheus/3.0", "Accept": "text/plain"}, 200),
    ],
    ids=str,
)
def test_a_browser_asks_for_an_address_localhost_or_a_trusted_name(ask, fields, status):
    assert ask("named", "GET", "/v2", **fields)[0] == status
    assert ask("named", "POST", INFER, infer_body(), **fields)[0] == status


def test_health_is_told_to_all(ask):
    for fields in ({"Origin": EVIL}, {"Host": "evil.example", "Sec-Fetch-Site": "same-origin"}):
        assert ask("strict", "GET", "/v2/health/ready", **fields)[0] == 200
        assert ask("strict", "GET", "/v2/models/add/ready", **fields)[0] == 200


def test_http_1_0_without_a_host_is_refused_of_pages_only(ask):
    def status(head):
        host, port = ask.addresses["strict"].split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(head + b"\r\n")
            return int(client.recv(1000).split()[1])

    assert status(b"GET /v2 HTTP/1.0\r\n") == 200
    assert status(b"GET /v2 HTTP/1.0\r\nOrigin: http://127.0.0.1\r\n") == 403
    assert status(b"GET /v2 HTTP/1.0\r\nSec-Fetch-Site: same-origin\r\n") == 403
    # Of a repeated field, all values count.
    load = b"POST /v2/repository/models/add/load HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n"
    assert status(load + b"Sec-Fetch-Site: same-origin\r\nSec-Fetch-Site: cross-site\r\n\r\n{}") == 403


# CORS


def preflight(ask, policy, path, method="POST", origin=APP, **fields):
    return ask(policy, "OPTIONS", path, Origin=origin, Access_Control_Request_Method=method, **fields)


def test_a_preflight_of_a_named_origin_is_told_methods_and_headers(ask):
    asked = {"Access-Control-Request-Headers": "authorization,x-user"}
    status, fields, body = preflight(ask, "named", INFER, **asked)
    assert (status, body) == (204, b"")
    assert cors(fields) == {
        "access-control-allow-origin": APP,
        "access-control-allow-methods": "POST",
        "access-control-allow-headers": "Authorization, Content-Encoding, Content-Type,"
        " Inference-Header-Content-Length, Tritium-Replica, authorization,x-user",
        "access-control-max-age": "600",
        "access-control-expose-headers": EXPOSED,
        "vary": "Origin",
    }
    assert "content-length" not in fields


def test_where_all_origins_are_allowed_none_is_named_and_no_credentials_are(ask):
    status, fields, _ = preflight(ask, "open", "/v2/logging", method="GET")
    assert (status, fields["access-control-allow-origin"]) == (204, "*")
    assert fields["access-control-allow-methods"] == "GET, POST"
    assert "access-control-allow-credentials" not in fields
    assert "vary" not in fields
    assert ask("open", "GET", "/v2", Origin=EVIL)[1]["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("headers", ["x" * 2000, "a b", "a,,b", ""])
def test_a_preflight_repeats_no_header_names_that_are_none(ask, headers):
    _, fields, _ = preflight(ask, "named", INFER, **{"Access-Control-Request-Headers": headers})
    assert fields["access-control-allow-headers"].endswith("Tritium-Replica")


@pytest.mark.parametrize(
    ("policy", "path", "method", "origin", "status"),
    [
        ("named", INFER, "POST", EVIL, 403),
        ("named", "/v2", "GET", EVIL, 403),
        ("named", CHANGES[0], "POST", APP, 403),
        ("open", CHANGES[0], "POST", APP, 403),
        ("named", "/v2/tritium/models/add/traffic", "GET", APP, 204),
        ("named", "/nowhere", "GET", APP, 404),
        ("strict", INFER, "POST", APP, 403),
        ("strict", "/v2", "GET", APP, 405),
    ],
)
def test_other_preflights_are_refused_or_as_without_cors(ask, policy, path, method, origin, status):
    answer, fields, _ = preflight(ask, policy, path, method, origin)
    assert answer == status
    if origin == EVIL or policy == "strict":
        assert "access-control-allow-origin" not in fields


def test_options_that_are_no_preflight_are_no_method_of_the_endpoints(ask):
    assert ask("named", "OPTIONS", INFER)[0] == 405
    assert ask("named", "OPTIONS", "/v2", Origin=APP)[0] == 405


def test_a_preflight_needs_no_secret_header_but_the_request_does(ask):
    assert preflight(ask, "named", "/v2/models/stats", method="GET")[0] == 204
    status, fields, _ = ask("named", "GET", "/v2/models/stats", Origin=APP)
    assert (status, fields["access-control-allow-origin"]) == (403, APP)
    assert ask("named", "GET", "/v2/models/stats", Origin=APP, key="s3cret")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v2", None, 200),
        ("POST", INFER, infer_body(), 200),
        ("POST", INFER, "{", 500),
        ("POST", "/v2/models/nope/infer", "x" * 200_000, 404),
        ("POST", "/v2/repository/index", "x" * 200_000, 413),
        ("GET", "/nowhere", None, 404),
        ("PUT", "/v2", None, 405),
        ("POST", GENERATE, json.dumps({"X": "hello"}), 200),
        ("POST", GENERATE + "_stream", json.dumps({"X": "hello"}), 200),
    ],
)
def test_answers_errors_and_streams_can_be_read_by_pages_of_named_origins(ask, method, path, body, status):
    answer, fields, _ = ask("named", method, path, body, Origin=APP)
    assert answer == status
    assert cors(fields) == {
        "access-control-allow-origin": APP,
        "access-control-expose-headers": EXPOSED,
        "vary": "Origin",
    }
    answer, fields, _ = ask("named", method, path, body)
    assert (answer, cors(fields)) == (status, {})


def test_answers_to_other_origins_only_say_that_they_depend_on_it(ask):
    assert cors(ask("named", "GET", "/v2", Origin=EVIL)[1]) == {"vary": "Origin"}
    assert cors(ask("strict", "GET", "/v2", Origin=APP)[1]) == {}


async def test_under_a_foreign_server_it_is_the_same():
    app = V2App(FakeServer().server, options=V2Options(pages=OriginPolicy(origins=frozenset({APP}))))

    async def answered(method, path, **headers):
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "method": method,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), *fields],
        }
        await app(scope, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"]).get(b"access-control-allow-origin")

    assert await answered("GET", "/v2") == (200, None)
    assert await answered("GET", "/v2", origin=APP) == (200, APP.encode())
    assert await answered("POST", INFER, origin=EVIL) == (403, None)
    assert await answered("POST", "/v2/models/nope/infer", origin=APP) == (404, APP.encode())
    assert await answered("POST", "/v2/repository/models/add/load", origin=APP) == (403, APP.encode())
    assert await answered("OPTIONS", INFER, origin=APP, access_control_request_method="POST") == (
        204,
        APP.encode(),
    )
