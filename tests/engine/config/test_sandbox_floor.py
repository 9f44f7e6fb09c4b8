"""The operator's floor (`--sandbox`): what no model's configuration lowers, and what its owner is told."""

import pytest

from actors.values.confinement import Confinement, Sandbox
from engine.config.load import load_model_config
from engine.config.settings import read_settings
from engine.models.problems import Severity
from engine.processes.backends import discover
from engine.settings.sandbox import SandboxSettings
from engine.settings.settings import Settings, SettingsError
from protocols.kserve.proto.model_config_pb2 import ModelConfig
from tests.engine.config.test_tritium_settings import COMPLETING

PYTHON = discover()["python"]
OFF, GUARD, BASIC, STRICT = Sandbox


def under(floor, config=None, **given):
    parameters = {f"tritium.{name}": text for name, text in given.items()}
    floor = floor if isinstance(floor, SandboxSettings) else SandboxSettings(asked=True, level=floor)
    return read_settings(parameters, PYTHON, None, config, floor=floor)


@pytest.mark.parametrize("floor", Sandbox)
@pytest.mark.parametrize("asked", Sandbox)
def test_a_model_gets_the_stricter_of_its_own_sandbox_and_the_floor(floor, asked):
    settings, problems = under(floor, sandbox=asked.value)
    assert settings.confinement.sandbox is (asked if asked.holds(floor) else floor)
    assert settings.confinement.imposed == (floor is not OFF and floor.holds(asked))
    assert [problem.severity for problem in problems] == [Severity.WARNING] * (not asked.holds(floor))


def test_levels_are_in_the_order_of_what_they_take_away():
    assert [level.value for level in Sandbox] == ["off", "guard", "basic", "strict"]
    assert [[one.holds(other) for other in Sandbox] for one in Sandbox] == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
        [True, True, True, True],
    ]


def test_a_model_that_says_nothing_has_the_floor_and_hears_nothing():
    settings, problems = under(GUARD)
    assert settings.confinement == Confinement(sandbox=GUARD, imposed=True)
    assert not problems


def test_a_model_that_asks_for_less_is_told_what_it_gets():
    _, (problem,) = under(BASIC, sandbox="off")
    assert problem.key == 'parameters["tritium.sandbox"]'
    assert "'off'" in problem.message
    assert "served in sandbox 'basic' nevertheless" in problem.message
    assert "--sandbox=basic" in problem.message


def test_a_model_on_a_thread_of_the_server_is_refused_under_a_floor():
    _, (problem,) = under(GUARD, isolation="thread")
    assert problem.is_error
    assert "--sandbox=guard" in problem.message
    assert problem.hint == "use isolation 'process'"
    assert not under(OFF, isolation="thread")[1]


@pytest.mark.parametrize(
    ("given", "confinement"),
    [
        ({}, Confinement(sandbox=GUARD, by_default=True)),
        ({"sandbox": "off"}, Confinement()),
        ({"sandbox": "guard"}, Confinement(sandbox=GUARD)),
        ({"sandbox": "basic"}, Confinement(sandbox=BASIC)),
        ({"sandbox": "strict", "sandbox_read": "/data"}, Confinement(sandbox=STRICT, read=("/data",))),
        ({"memory_limit_mb": "1"}, Confinement(sandbox=GUARD, memory=1 << 20, by_default=True)),
        ({"isolation": "thread"}, Confinement()),
    ],
    ids=str,
)
def test_where_the_operator_asks_for_nothing_a_model_has_what_it_says_and_else_the_guard(given, confinement):
    settings, problems = under(SandboxSettings(), **given)
    assert settings.confinement == confinement
    assert not problems


def test_an_ensemble_has_no_process_to_be_confined():
    ensemble = ModelConfig()
    ensemble.ensemble_scheduling.SetInParent()
    settings, problems = under(STRICT, ensemble)
    assert settings.confinement == Confinement()
    assert not problems


@pytest.fixture
def paths(tmp_path):
    """Two directories, of which the operator gives `given`, with a link in it to the other."""
    for name in ("given", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "given" / "link").symlink_to(tmp_path / "other")
    return tmp_path


@pytest.mark.parametrize(
    ("key", "read", "write", "asked", "allowed"),
    [
        ("sandbox_read", "given", "", "given", True),
        ("sandbox_read", "given", "", "given/below", True),
        ("sandbox_read", "", "given", "given", True),
        ("sandbox_write", "", "given", "given/below", True),
        ("sandbox_write", "given", "", "given", False),
        ("sandbox_read", "given", "", "other", False),
        ("sandbox_read", "given", "", "given/../other", False),
        ("sandbox_read", "given", "", "given/link", False),
        ("sandbox_read", "given", "", "given-elsewhere", False),
        ("sandbox_read", "", "", "given", False),
    ],
)
def test_under_a_strict_floor_a_model_has_only_files_that_the_operator_gives(
    paths, key, read, write, asked, allowed
):
    floor = SandboxSettings(
        asked=True,
        level=STRICT,
        read=(str(paths / read),) if read else (),
        write=(str(paths / write),) if write else (),
    )
    settings, problems = under(floor, **{key: str(paths / asked)})
    if allowed:
        assert not problems
        assert getattr(settings.confinement, key.removeprefix("sandbox_")) == (str(paths / asked),)
    else:
        (problem,) = problems
        assert problem.is_error
        assert f"--{key.replace('_', '-')}=" in problem.hint


def test_a_model_that_is_strict_by_itself_names_its_own_files_under_a_laxer_floor():
    settings, problems = under(BASIC, sandbox="strict", sandbox_read="/data")
    assert settings.confinement == Confinement(sandbox=STRICT, read=("/data",))
    assert not problems


def test_the_root_directory_may_be_given_whole():
    settings, problems = under(
        SandboxSettings(asked=True, level=STRICT, read=("/",)), sandbox_read="/usr/share"
    )
    assert settings.confinement.read == ("/usr/share",)
    assert not problems


# -- the flags


def settings_of(*flags):
    return Settings.from_argv(["--model-repository=/models", *flags])


def test_without_the_flag_there_is_no_floor_and_the_level_is_named_at_start():
    assert settings_of().sandbox == SandboxSettings()
    assert settings_of().sandbox.floor is OFF
    assert dict(settings_of().options())["sandbox"] == "guard"
    assert dict(settings_of("--sandbox=off").options())["sandbox"] == "off"


@pytest.mark.parametrize("level", Sandbox)
def test_the_flag_is_a_floor_whichever_level_it_names(level):
    settings = settings_of(f"--sandbox={level.value}").sandbox
    assert (settings.asked, settings.level, settings.floor) == (True, level, level)
    assert settings.for_uploads().floor is STRICT
    assert settings_of().sandbox.for_uploads().floor is STRICT


def test_the_flags_of_the_floor_are_read():
    flags = ("--sandbox=Strict", "--sandbox-read=/data:/srv", "--sandbox-write=/scratch")
    assert settings_of(*flags).sandbox == SandboxSettings(
        asked=True, level=STRICT, read=("/data", "/srv"), write=("/scratch",)
    )


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--sandbox=tight"], "off, guard, basic or strict"),
        (["--sandbox=strict", "--sandbox-read=data"], "absolute paths"),
        (["--sandbox=basic", "--sandbox-write=/scratch"], "a model's own configuration"),
    ],
)
def test_a_floor_that_makes_no_sense_is_refused(flags, told):
    with pytest.raises(SettingsError) as refused:
        settings_of(*flags)
    assert told in refused.value.hint


# -- where model code runs before there is a worker


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(("level", "batch"), [(OFF, 0), (BASIC, 3)])
def test_a_model_completes_its_configuration_under_the_floor(write_model, level, batch):
    directory = write_model("m", 'backend: "python"', {"1/model.py": COMPLETING})
    loaded = load_model_config(directory, backends=discover(), floor=SandboxSettings(asked=True, level=level))
    assert loaded.ok, loaded.problems
    assert loaded.specs[0].max_batch_size == batch
    assert loaded.specs[0].confinement.sandbox is level
