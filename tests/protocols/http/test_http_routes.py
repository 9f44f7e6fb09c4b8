import pytest

from actors.values.callers import Action
from protocols.http.routes import Endpoint, Route, match

ROUTES = [
    ("/v2", Route(endpoint=Endpoint.SERVER_METADATA)),
    ("/v2/health/live", Route(endpoint=Endpoint.SERVER_LIVE)),
    ("/v2/health/ready", Route(endpoint=Endpoint.SERVER_READY)),
    ("/v2/models/stats", Route(endpoint=Endpoint.ALL_STATISTICS)),
    ("/v2/models/m", Route(endpoint=Endpoint.MODEL_METADATA, model="m")),
    ("/v2/models/m/versions/3", Route(endpoint=Endpoint.MODEL_METADATA, model="m", version="3")),
    ("/v2/models/m/ready", Route(endpoint=Endpoint.MODEL_READY, model="m")),
    ("/v2/models/m/versions/003/ready", Route(endpoint=Endpoint.MODEL_READY, model="m", version="003")),
    ("/v2/models/m/config", Route(endpoint=Endpoint.MODEL_CONFIG, model="m")),
    ("/v2/models/m/stats", Route(endpoint=Endpoint.MODEL_STATISTICS, model="m")),
    ("/v2/models/stats/stats", Route(endpoint=Endpoint.MODEL_STATISTICS, model="stats")),
    ("/v2/models/m/infer", Route(endpoint=Endpoint.INFER, model="m")),
    ("/v2/models/m/versions/2/infer", Route(endpoint=Endpoint.INFER, model="m", version="2")),
    ("/v2/models/a%20b/infer", Route(endpoint=Endpoint.INFER, model="a b")),
    ("/v2/models/m/generate", Route(endpoint=Endpoint.GENERATE, model="m")),
    (
        "/v2/models/m/versions/2/generate_stream",
        Route(endpoint=Endpoint.GENERATE_STREAM, model="m", version="2"),
    ),
    ("/v2/models/m/trace/setting", Route(endpoint=Endpoint.TRACE, model="m")),
    ("/v2/trace/setting", Route(endpoint=Endpoint.TRACE)),
    ("/v2/logging", Route(endpoint=Endpoint.LOGGING)),
    ("/v2/systemsharedmemory/status", Route(endpoint=Endpoint.SYSTEM_MEMORY_STATUS, action="status")),
    (
        "/v2/systemsharedmemory/region/r%20s/register",
        Route(endpoint=Endpoint.SYSTEM_MEMORY_CHANGE, region="r s", action="register"),
    ),
    ("/v2/systemsharedmemory/unregister", Route(endpoint=Endpoint.SYSTEM_MEMORY_CHANGE, action="unregister")),
    (
        "/v2/cudasharedmemory/region/r/status",
        Route(endpoint=Endpoint.CUDA_MEMORY_STATUS, region="r", action="status"),
    ),
    ("/v2/cudasharedmemory/unregister", Route(endpoint=Endpoint.CUDA_MEMORY_CHANGE, action="unregister")),
    ("/v2/repository/index", Route(endpoint=Endpoint.REPOSITORY_INDEX)),
    ("/v2/repository/r/index", Route(endpoint=Endpoint.REPOSITORY_INDEX)),
    ("/v2/repository/models/m/load", Route(endpoint=Endpoint.MODEL_LOAD, model="m")),
    ("/v2/repository/r/models/m/unload", Route(endpoint=Endpoint.MODEL_UNLOAD, model="m", repository="r")),
    ("/v2/tritium/tree", Route(endpoint=Endpoint.TREE)),
    ("/v2/tritium/events", Route(endpoint=Endpoint.EVENTS)),
    ("/v2/tritium/fleet", Route(endpoint=Endpoint.FLEET)),
    ("/v2/tritium/models/a%20b/traffic", Route(endpoint=Endpoint.TRAFFIC, model="a b")),
]


@pytest.mark.parametrize(("path", "route"), ROUTES)
def test_a_path_names_its_endpoint(path, route):
    assert match(path) == route


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/v2/",
        "/v3",
        "/V2",
        "/v2/health",
        "/v2/health/live/",
        "/v2/models",
        "/v2/models/",
        "/v2/models/m/",
        "/v2/models/m/versions/x",
        "/v2/models/m/versions/-1/infer",
        "/v2/models/m/versions/²",
        "/v2/models/a/b/infer",
        "/v2/models/m/versions/1/trace/setting",
        "/v2/models/m/infer2",
        "/v2/models/m/infer\n",
        "/v2/repository/a/b/index",
        "/v2/systemsharedmemory/region//register",
    ],
)
def test_nothing_lives_at_other_paths(path):
    assert match(path) is None


def test_every_endpoint_can_be_reached_and_has_methods_and_a_category():
    assert {route.endpoint for _, route in ROUTES} == set(Endpoint)
    for endpoint in Endpoint:
        assert endpoint.methods
        assert endpoint.category in Action


def test_names_are_decoded_only_after_the_path_was_split():
    assert match("/v2/models/a%2Fb/infer") == Route(endpoint=Endpoint.INFER, model="a/b")
