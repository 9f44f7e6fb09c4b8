"""Where spans go, as `--trace-config opentelemetry,…` and the environment say it."""

import pytest

from engine.observability.spans.options import BadSpanOption, read_options


def test_the_defaults_are_the_contracts():
    options = read_options([], {})
    assert (options.max_queue_size, options.schedule_delay_ms, options.max_export_batch_size) == (
        2048,
        5000,
        512,
    )
    assert (options.url, dict(options.resource)) == ("", {})
    assert options.service_name == "triton-inference-server"


def test_a_setting_counts_before_the_environment():
    """OTEL_BSP_* says what a setting does not."""
    environ = {
        "OTEL_BSP_MAX_QUEUE_SIZE": "700",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": " ",
    }
    options = read_options([("bsp_schedule_delay", "30")], environ)
    assert (options.max_queue_size, options.schedule_delay_ms, options.max_export_batch_size) == (
        700,
        30,
        512,
    )


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:4318/v1/traces", "http://localhost:4318/v1/traces"),
        ("https://collector/v1/traces", "https://collector/v1/traces"),
        ("", ""),
    ],
)
def test_a_url_may_lack_its_scheme(given, url):
    """As in most of Triton's own examples."""
    assert read_options([("url", given)], {}).url == url


def test_resources_add_up():
    options = read_options([("resource", "service.name=mine"), ("resource", "a=b=c")], {})
    assert dict(options.resource) == {"service.name": "mine", "a": "b=c"}


@pytest.mark.parametrize(
    ("given", "environ", "said"),
    [
        ([("resource", "key")], {}, "expected resource=<key>=<value>"),
        ([("resource", "=v")], {}, "expected resource=<key>=<value>"),
        (
            [("bsp_schedule_delay", "0")],
            {},
            "opentelemetry,bsp_schedule_delay=0: expected a whole number from 1",
        ),
        ([("bsp_max_queue_size", "ten")], {}, "opentelemetry,bsp_max_queue_size=ten"),
        ([("bsp_max_queue_size", "9" * 5000)], {}, "expected a whole number"),
        ([], {"OTEL_BSP_SCHEDULE_DELAY": "-1"}, "OTEL_BSP_SCHEDULE_DELAY=-1: expected a whole number"),
        (
            [("bsp_max_queue_size", "100")],
            {},
            "bsp_max_export_batch_size=512: at most bsp_max_queue_size, which is 100",
        ),
        ([("colour", "red")], {}, "there is no such setting; there are url, resource, bsp_max_queue_size"),
    ],
)
def test_what_makes_no_sense_is_refused(given, environ, said):
    with pytest.raises(BadSpanOption, match=said.replace("(", r"\(")):
        read_options(given, environ)
