"""`--trace-config`, and the flags that Triton had before it (contract, observability.md section 3.1)."""

import pytest

from actors.values.tracing.settings import OPENTELEMETRY, TENSORS, TIMESTAMPS, TraceSetting
from engine.settings.forms import SettingsError
from engine.settings.settings import Settings

FILE = "--trace-config=triton,file=t.json"


def read(*flags, **environ):
    return Settings.from_argv(["--model-repository=/m", *flags], environ)


@pytest.mark.parametrize(
    ("flags", "setting"),
    [
        ([], {}),
        (["--trace-config=level=OFF"], {}),
        (["--trace-config=mode=triton"], {}),
        ([FILE, "--trace-config=level=TIMESTAMPS"], {"file": "t.json", "levels": (TIMESTAMPS,)}),
        (
            [FILE, "--trace-config=level=tensors", "--trace-config=level=TIMESTAMPS"],
            {"file": "t.json", "levels": (TIMESTAMPS, TENSORS)},
        ),
        ([FILE, "--trace-config=level=TENSORS", "--trace-config=level=OFF"], {"file": "t.json"}),
        ([FILE, "--trace-config=level=MAX"], {"file": "t.json", "levels": (TIMESTAMPS,)}),
        (
            ["--trace-config", "rate=5", "--trace-config", "rate=7", "--trace-config=count=3"],
            {"rate": 7, "count": 3},
        ),
        (["--trace-config=Triton,log-frequency=2"], {"log_frequency": 2}),
        (
            [
                "--trace-config=mode=OpenTelemetry",
                "--trace-config=level=TIMESTAMPS",
                "--trace-config=rate=0",
                "--trace-config=opentelemetry,resource=a=1",
                "--trace-config=opentelemetry,url=http://c:4318/v1/traces",
                "--trace-config=opentelemetry,resource=service.name=x",
                "--trace-config=opentelemetry,bsp_schedule_delay=10",
            ],
            {
                "mode": OPENTELEMETRY,
                "levels": (TIMESTAMPS,),
                "rate": 0,
                "options": (
                    ("url", "http://c:4318/v1/traces"),
                    ("resource", "a=1"),
                    ("resource", "service.name=x"),
                    ("bsp_schedule_delay", "10"),
                ),
            },
        ),
        (
            ["--trace-file=t.json", "--trace-level=TIMESTAMPS", "--trace-level=TENSORS", "--trace-rate=2"],
            {"file": "t.json", "levels": (TIMESTAMPS, TENSORS), "rate": 2},
        ),
        (["--trace-count=4", "--trace-log-frequency=5"], {"count": 4, "log_frequency": 5}),
        (["--trace-level=OFF"], {}),
    ],
)
def test_flags_are_a_setting(flags, setting):
    settings = read(*flags)
    assert settings.trace == TraceSetting(**setting)
    assert settings.warnings == ()


def test_a_variable_has_settings_with_semicolons_between():
    settings = read(TRITIUM_TRACE_CONFIG="level=TIMESTAMPS;triton,file=t.json;rate=3")
    assert settings.trace == TraceSetting(levels=(TIMESTAMPS,), file="t.json", rate=3)


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("rate", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got rate"),
        ("=1", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got =1"),
        (",rate=1", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got ,rate=1"),
        ("rate=", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got rate="),
        (
            "mode=zipkin",
            'invalid value for trace mode option: zipkin. Available options are "triton" and "opentelemetry"',
        ),
        (
            "zipkin,url=x",
            'invalid value for trace mode option: zipkin. Available options are "triton" and "opentelemetry"',
        ),
        ("level=LOUD", "invalid value for trace level option: LOUD"),
        ("rate=x", "Invalid option value. Got x"),
        ("rate=-1", "Provided option value is out of bound. Got -1"),
        ("rate=4294967296", "Provided option value is out of bound. Got 4294967296"),
        ("count=-2", "Provided option value is out of bound. Got -2"),
        ("speed=1", "unknown --trace-config setting 'speed'"),
        ("triton,url=x", "unknown --trace-config setting 'url' of mode 'triton'"),
    ],
)
def test_a_word_that_makes_no_sense_is_refused(flag, text):
    with pytest.raises(SettingsError) as caught:
        read(f"--trace-config={flag}")
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        (
            ["--trace-config=level=TIMESTAMPS"],
            "nothing is traced, since the trace file name is not given: --trace-config=triton,file=FILE",
        ),
        (
            [FILE, "--trace-config=level=TIMESTAMPS", "--trace-config=rate=0"],
            "nothing is traced with --trace-config=rate=0: every rate-th request is sampled",
        ),
        (
            ["--trace-config=mode=opentelemetry", "--trace-config=level=TENSORS"],
            "the trace level TENSORS has no effect in the mode opentelemetry",
        ),
        (
            ["--trace-rate=5", "--trace-config=rate=6"],
            "--trace-rate has no effect: --trace-config=rate is given as well",
        ),
        (
            ["--trace-file=a", FILE],
            "--trace-file has no effect: --trace-config=triton,file is given as well",
        ),
    ],
)
def test_what_may_not_be_meant_is_a_warning(flags, warning):
    assert read(*flags).warnings == (warning,)


def test_the_new_flag_wins_over_the_old_one():
    assert read("--trace-rate=5", "--trace-config=rate=6").trace.rate == 6
