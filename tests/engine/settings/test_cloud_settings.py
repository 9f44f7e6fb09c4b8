"""Flags and variables of SageMaker and Vertex AI become settings, or an error in Triton's words."""

import pytest

from engine.settings.cloud.platforms import UNSPECIFIED
from engine.settings.forms import SettingsError
from engine.settings.settings import Settings

REPOSITORY = "--model-repository=/models"
ROUTES = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
PREDICTION = {"AIP_MODE": "PREDICTION", **ROUTES}


def read(*flags, environ=None):
    return Settings.from_argv([REPOSITORY, *flags], environ or {})


def refusal(*flags, environ=None):
    with pytest.raises(SettingsError) as caught:
        read(*flags, environ=environ)
    return caught.value


# -- SageMaker


def test_without_flags_no_platform_is_served():
    cloud = read().cloud
    assert (cloud.sagemaker.allow, cloud.sagemaker.port, cloud.sagemaker.safe_ports) == (False, 8080, None)
    assert (cloud.vertex.allow, cloud.vertex.port, cloud.vertex.default_model) == (False, 8080, "")
    assert cloud.sagemaker.models == "/opt/ml/models"


def test_sagemaker_s_variables_say_what_is_asked_for():
    environ = {
        "SAGEMAKER_TRITON_PING_MODE": "live",
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "resnet",
        "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate_stream",
    }
    sagemaker = read("--allow-sagemaker=true", "--sagemaker-port=9090", environ=environ).cloud.sagemaker
    assert (sagemaker.allow, sagemaker.port) == (True, 9090)
    assert (sagemaker.ping, sagemaker.default_model, sagemaker.inference) == (
        "live",
        "resnet",
        "generate_stream",
    )
    sagemaker = read("--allow-sagemaker=true").cloud.sagemaker
    assert (sagemaker.ping, sagemaker.default_model, sagemaker.inference) == ("ready", UNSPECIFIED, "infer")


def test_any_other_mode_of_the_ping_is_ready():
    assert read(environ={"SAGEMAKER_TRITON_PING_MODE": "alive"}).cloud.sagemaker.ping == "ready"


def test_an_unknown_type_of_inference_ends_the_start_only_where_sagemaker_is_served():
    environ = {"SAGEMAKER_TRITON_INFERENCE_TYPE": "stream"}
    assert read(environ=environ).cloud.sagemaker.inference == "infer"
    assert refusal("--allow-sagemaker=1", environ=environ).message == (
        "Server has invalid inference type 'stream'. Must be one of: infer, generate, generate_stream."
    )


@pytest.mark.parametrize(
    ("flags", "what", "port"),
    [
        ((), "HTTP requests", 8000),
        (("--allow-http=false",), "GRPC requests", 8001),
        (("--http-port=8081", "--grpc-port=9000"), "metrics requests", 8002),
        (("--http-port=8081", "--grpc-port=9000", "--metrics-port=9001"), "metrics requests", 9001),
    ],
)
def test_other_listeners_have_safe_ports_only(flags, what, port):
    error = refusal("--allow-sagemaker=true", "--sagemaker-safe-port-range=8081-9000", *flags)
    assert error.message == (
        f"The server cannot listen to {what} at port {port}, allowed port range is [8081, 9000]"
    )


def test_the_range_of_safe_ports_includes_both_ends_and_not_sagemaker_s_own():
    flags = ("--http-port=8081", "--grpc-port=9000", "--metrics-port=8500")
    settings = read("--allow-sagemaker=true", "--sagemaker-safe-port-range", "8081-9000", *flags)
    assert settings.cloud.sagemaker.safe_ports == (8081, 9000)
    assert settings.cloud.sagemaker.port == 8080
    # Without SageMaker it says nothing.
    assert read("--sagemaker-safe-port-range=8081-9000").http_port == 8000


def test_a_range_that_is_none_ends_the_start():
    assert refusal("--sagemaker-safe-port-range=8081").message == (
        "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires format"
        " <first>-<second>. Found: 8081"
    )
    assert refusal("--sagemaker-safe-port-range=a-b").message == "Invalid option value. Got a"


def test_a_range_given_as_an_empty_word_is_any_port():
    assert read("--sagemaker-safe-port-range=").cloud.sagemaker.safe_ports is None


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--allow-sagemaker=true", "--http-port=8080"), "HTTP requests and SageMaker requests"),
        (("--allow-vertex-ai=true", "--grpc-port=8080"), "GRPC requests and Vertex AI requests"),
        (("--allow-vertex-ai=1", "--allow-sagemaker=1"), "SageMaker requests and Vertex AI requests"),
    ],
)
def test_platforms_have_ports_of_their_own(flags, text):
    assert refusal(*flags, environ=ROUTES).message == (
        f"The server cannot listen to {text} at the same address and port 0.0.0.0:8080"
    )


# -- Vertex AI


def test_on_vertex_ai_only_its_own_port_and_metrics_are_open():
    settings = read(environ=PREDICTION)
    assert (settings.cloud.vertex.allow, settings.allow_http, settings.allow_grpc) == (True, False, False)
    assert settings.allow_metrics
    assert settings.metrics_address == "0.0.0.0"
    assert (settings.cloud.vertex.predict_route, settings.cloud.vertex.health_route) == (
        "/predict",
        "/health",
    )


def test_on_vertex_ai_flags_and_variables_open_the_others():
    settings = read("--allow-grpc=true", environ={**PREDICTION, "TRITIUM_ALLOW_HTTP": "true"})
    assert (settings.allow_http, settings.allow_grpc) == (True, True)
    settings = read("--allow-vertex-ai=false", environ=PREDICTION)
    assert (settings.cloud.vertex.allow, settings.allow_http) == (False, False)
    settings = read("--allow-http=true", "--http-address=127.0.0.1", environ=PREDICTION)
    assert settings.metrics_address == "127.0.0.1"


def test_another_mode_is_none():
    settings = read(environ={**PREDICTION, "AIP_MODE": "TRAINING"})
    assert (settings.cloud.vertex.allow, settings.allow_http, settings.allow_grpc) == (False, True, True)


@pytest.mark.parametrize(
    ("flags", "environ", "port"),
    [
        ((), {}, 8080),
        ((), {"AIP_HTTP_PORT": "5234"}, 5234),
        (("--vertex-ai-port=99",), {"AIP_HTTP_PORT": "5234"}, 99),
    ],
)
def test_a_flag_goes_before_the_platform_s_variable_and_that_before_the_default(flags, environ, port):
    assert read(*flags, environ={**PREDICTION, **environ}).cloud.vertex.port == port


def test_a_port_that_is_none_ends_the_start_only_on_vertex_ai():
    assert read(environ={"AIP_HTTP_PORT": "none"}).cloud.vertex.port == 8080
    error = refusal(environ={**PREDICTION, "AIP_HTTP_PORT": "none"})
    assert error.message == "Invalid option value. Got none"


@pytest.mark.parametrize(
    ("missing", "said"),
    [("AIP_PREDICT_ROUTE", "API_PREDICT_ROUTE"), ("AIP_HEALTH_ROUTE", "AIP_HEALTH_ROUTE")],
)
def test_a_missing_route_ends_the_start(missing, said):
    environ = {name: route for name, route in ROUTES.items() if name != missing}
    error = refusal("--allow-vertex-ai=true", environ=environ)
    assert error.message == (
        f"failed to start Vertex AI service: Invalid argument - {said} is not defined for Vertex AI endpoint"
    )
    assert missing in error.hint


def test_a_route_is_a_regular_expression_as_re2_writes_it():
    route = "/v1/endpoints/[[:digit:]]+:predict"
    settings = read(environ={**PREDICTION, "AIP_PREDICT_ROUTE": route})
    assert settings.cloud.vertex.predict_route == route
    error = refusal(environ={**PREDICTION, "AIP_PREDICT_ROUTE": "/("})
    assert "AIP_PREDICT_ROUTE is not a regular expression. Got /(" in error.message


def test_the_platform_s_storage_is_the_repository_where_no_flag_names_one():
    environ = {"AIP_STORAGE_URI": "gs://bucket/models"}
    assert Settings.from_argv([], environ).model_repositories == ("gs://bucket/models",)
    assert read(environ=environ).model_repositories == ("/models",)


def test_threads_of_platforms_earn_one_warning_each():
    settings = read("--sagemaker-thread-count=4", "--vertex-ai-thread-count=4")
    assert settings.warnings == (
        "--sagemaker-thread-count has no effect: one event loop serves all its connections",
        "--vertex-ai-thread-count has no effect: one event loop serves all its connections",
    )


def test_platforms_are_among_the_options_that_are_shown():
    shown = dict(read("--allow-sagemaker=1", "--vertex-ai-port=8085", environ=PREDICTION).options())
    assert (shown["sagemaker"], shown["vertex_ai"]) == ("0.0.0.0:8080", "0.0.0.0:8085")
    assert {"sagemaker", "vertex_ai"}.isdisjoint(dict(read().options()))
