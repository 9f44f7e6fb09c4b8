"""Environments built by the real program: with pip and without a network, by several at once, interrupted."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import zipfile
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import trio

from actors.values.specs import Runtime
from engine.environments import virtual
from engine.environments.builder import PROGRAM, EnvironmentBuilder
from engine.environments.cache import EnvironmentCache, NotBuilt
from engine.environments.declared import declared
from engine.environments.layout import EnvironmentFailed
from engine.processes.runtime import interpreter, variables
from tests.engine.environments.sources import make_environment, make_wheel, offline, pack
from tests.support.logged import Logged
from tests.support.tiers import mostly_long

pytestmark = [pytest.mark.slow, pytest.mark.system]


class Builds:
    """A cache of environments, and a model that asks for some."""

    def __init__(self, path):
        self.path = path
        self.wheels = path / "wheels"
        self.cache_directory = path / "cache"
        self.model = path / "models" / "m"
        (self.model / "1").mkdir(parents=True)
        self.environ = {**os.environ, **offline(self.wheels)}
        self.steps = []
        self.log = Logged()

    def asks(self, requirements=None, **parameters):
        """What the model's version asks for."""
        if requirements is not None:
            (self.model / "requirements.txt").write_text(requirements)
        return declared(parameters, self.model / "1", self.model)

    @property
    def cache(self):
        return EnvironmentCache(self.cache_directory, environ=self.environ)

    async def build(self, environment, **options):
        builder = EnvironmentBuilder(self.cache, environ=self.environ, log=self.log, **options)
        outcomes = await builder.prepare([environment], lambda phase, details: self.steps.append(details))
        return outcomes[environment]


@pytest.fixture
def builds(tmp_path):
    return Builds(tmp_path)


@pytest.fixture
def packed(builds, tmp_path):
    """What a model with a packed environment asks for, whose Python is this one."""
    return builds.asks(
        EXECUTION_ENV_PATH=str(pack(make_environment(tmp_path / "env"), tmp_path / "env.tar.gz"))
    )


def run(runtime, code):
    """What `code` prints on a runtime."""
    done = subprocess.run(
        [interpreter(runtime), "-c", code],
        env=variables(os.environ, runtime),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


# -- from requirements


async def test_requirements_are_installed_beside_the_servers_numpy_and_nothing_else(builds):
    make_wheel(builds.wheels, "tiny", "1.0")
    make_wheel(builds.wheels, "small", "3.0", requires=["tiny==1.0"])
    environment = builds.asks("small")
    with pytest.raises(NotBuilt):
        builds.cache.runtime(environment)
    runtime = await builds.build(environment)
    assert isinstance(runtime, Runtime), runtime
    code = (
        "import small, tiny, numpy, sys; print(small.VERSION, tiny.VERSION, numpy.ones(2).sum(), sys.prefix)"
    )
    assert run(runtime, code) == f"3.0 1.0 2.0 {builds.cache.path(environment)}"
    assert run(runtime, "import importlib.util as u; print(u.find_spec('trio'))") == "None"
    assert any("tiny-1.0-py3-none-any.whl" in step["step"] for step in builds.steps)
    assert [name for name, *_ in builds.log] == ["environment_building", "environment_built"]


async def test_one_that_is_there_is_used_without_asking_pip(builds):
    make_wheel(builds.wheels, "tiny", "1.0")
    environment = builds.asks("tiny")
    built = await builds.build(environment)
    make_wheel(builds.wheels, "tiny", "2.0")
    builds.environ["PIP_FIND_LINKS"] = "/nowhere"
    assert builds.cache.runtime(builds.asks("tiny  # the same")) == built
    assert await builds.build(environment) == built
    assert run(built, "import tiny; print(tiny.VERSION)") == "1.0"


async def test_what_pip_complains_of_is_the_reason_and_nothing_is_left_to_be_used(builds):
    make_wheel(builds.wheels, "tiny", "1.0")
    environment = builds.asks("tiny==9.9")
    failure = await builds.build(environment)
    assert isinstance(failure, EnvironmentFailed)
    assert str(failure).startswith(
        f"installing '{builds.model}/requirements.txt' failed: ERROR: Could not find a"
    )
    assert "tiny==9.9 (from versions: 1.0)" in str(failure)
    assert not builds.cache.path(environment).exists()
    with pytest.raises(NotBuilt):
        builds.cache.runtime(environment)


@pytest.mark.long
async def test_several_servers_that_need_the_same_build_it_once(builds):
    make_wheel(builds.wheels, "tiny", "1.0")
    environment = builds.asks("tiny")
    outcomes = []

    async def build():
        outcomes.append(await builds.build(environment))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(build)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    steps = [step["step"] for step in builds.steps]
    assert steps.count("making a virtual environment") == 1
    assert steps.count("waiting for another process that builds it") == 2


async def test_what_an_interrupted_build_has_left_is_not_used(builds, packed):
    left = builds.cache.path(packed)
    (left / "bin").mkdir(parents=True)
    (left / "bin" / "python").symlink_to(sys.executable)
    with pytest.raises(NotBuilt):
        builds.cache.runtime(packed)
    assert run(await builds.build(packed), "print(1)") == "1"


@pytest.mark.long
async def test_one_whose_python_has_gone_is_built_again(builds, packed):
    runtime = await builds.build(packed)
    os.unlink(runtime.interpreter)
    with pytest.raises(NotBuilt):
        builds.cache.runtime(packed)
    assert await builds.build(packed) == runtime
    assert run(runtime, "print(1)") == "1"


async def test_a_build_that_nobody_waits_for_any_more_ends_with_all_it_has_started(builds, tmp_path):
    environment = builds.asks(EXECUTION_ENV_PATH=str(hanging(tmp_path)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(builds.build, environment)
        started = await processes_of(tmp_path)
        nursery.cancel_scope.cancel()
    await wait_ended(started)
    with pytest.raises(NotBuilt):
        builds.cache.runtime(environment)


async def build_process(builds, directory):
    """Start a build that hangs, as a server does; return its process and those that it has started."""
    environment = builds.asks(EXECUTION_ENV_PATH=str(hanging(directory)))
    order = {
        "kind": "archive",
        "source": str(environment.source),
        "target": str(builds.cache.path(environment)),
        "digest": environment.digest,
    }
    program = [sys.executable, str(PROGRAM), json.dumps(order)]
    process = await trio.lowlevel.open_process(program, stdin=subprocess.PIPE, start_new_session=True)
    return process, await processes_of(directory)


@pytest.mark.long
async def test_so_does_one_whose_server_is_killed(builds, tmp_path):
    process, started = await build_process(builds, tmp_path)
    await process.stdin.aclose()  # as the kernel does for a server that has died
    assert await process.wait() == -signal.SIGKILL
    await wait_ended(started)


@pytest.mark.long
async def test_a_build_that_notices_nothing_ends_with_its_server_all_the_same(builds, tmp_path):
    """It resembles a build in a long call into C: it is stopped here, and can do nothing at all."""
    process, started = await build_process(builds, tmp_path)
    builder = started[-1].parent()
    builder.suspend()
    try:
        await process.stdin.aclose()
        with trio.fail_after(20):
            assert await process.wait() == -signal.SIGKILL
        await wait_ended([*started, builder])
    finally:
        with suppress(psutil.NoSuchProcess):
            builder.kill()


async def test_a_build_that_takes_too_long_is_given_up(builds, tmp_path):
    environment = builds.asks(EXECUTION_ENV_PATH=str(hanging(tmp_path)))
    failure = await builds.build(environment, within=0.5)
    assert str(failure) == f"the environment of '{environment.source}' was not built within 0.5 s"


@pytest.mark.parametrize("away", mostly_long(["", "setsid "], "setsid "))
async def test_a_build_leaves_no_process_behind(builds, tmp_path, away):
    leave = f"{away}sh -c 'echo $$ > {tmp_path}/pids; exec sleep 600' </dev/null >/dev/null 2>&1 &\n"
    wait = f"while [ ! -s {tmp_path}/pids ]; do sleep 0.01; done\n"
    source = make_environment(tmp_path / "env", activate=leave + wait)
    runtime = await builds.build(builds.asks(EXECUTION_ENV_PATH=str(source)))
    assert isinstance(runtime, Runtime), runtime
    await wait_ended(await processes_of(tmp_path))


async def test_an_archive_that_is_changed_before_it_is_unpacked_is_not_kept_for_what_it_was(builds, tmp_path):
    source = make_environment(tmp_path / "env")
    archive = pack(source, tmp_path / "env.tar.gz")
    environment = builds.asks(EXECUTION_ENV_PATH=str(archive))
    (source / "more").write_text("more")
    pack(source, archive)
    failure = await builds.build(environment)
    assert str(failure) == f"'{archive}' was changed while its environment was built"
    assert not builds.cache.path(environment).exists()
    assert isinstance(await builds.build(builds.asks(EXECUTION_ENV_PATH=str(archive))), Runtime)


async def test_so_are_requirements(builds):
    make_wheel(builds.wheels, "tiny", "1.0")
    environment = builds.asks("tiny")
    builds.asks("tiny==1.0")
    failure = await builds.build(environment)
    assert str(failure) == f"'{environment.source}' was changed while its environment was built"


async def test_a_named_pipe_is_no_environment(builds, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EnvironmentFailed, match="is neither an archive nor a directory"):
        builds.asks(EXECUTION_ENV_PATH=str(tmp_path / "pipe"))


def hanging(directory):
    """Return an archive whose Python tells its process id and that of its child in `pids`, and hangs."""
    pids = directory / "pids"
    script = f"#!/bin/sh\nsleep 600 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait\n"
    return pack(make_environment(directory / "env", python=script), directory / "env.tar.gz")


async def processes_of(directory):
    """Wait until that Python runs; return those of its processes that still live."""
    with trio.fail_after(60):
        while not (directory / "pids").exists():  # noqa: ASYNC110  # another process makes it
            await trio.sleep(0.01)
    numbers = map(int, (directory / "pids").read_text().split())
    return [psutil.Process(number) for number in numbers if psutil.pid_exists(number)]


async def wait_ended(processes):
    """Wait until processes that are not our children have ended."""
    _, alive = await trio.to_thread.run_sync(lambda: psutil.wait_procs(processes, timeout=20))
    assert not alive


@pytest.mark.long
async def test_what_only_the_servers_python_path_has_is_installed_all_the_same(builds):
    make_wheel(builds.wheels, "tiny", "1.0")
    packages = builds.path / "packages"
    packages.mkdir()
    with zipfile.ZipFile(builds.wheels / "tiny-1.0-py3-none-any.whl") as wheel:
        wheel.extractall(packages)
    builds.environ["PYTHONPATH"] = str(packages)
    runtime = await builds.build(builds.asks("tiny"))
    assert run(runtime, "import tiny; print(tiny.__file__)").startswith(str(builds.cache_directory))


async def test_one_that_was_moved_is_not_taken_for_what_it_was(builds, packed):
    await builds.build(packed)
    builds.cache_directory.rename(builds.path / "elsewhere")
    builds.cache_directory = builds.path / "elsewhere"
    with pytest.raises(NotBuilt):
        builds.cache.runtime(packed)


@pytest.mark.long
def test_a_server_without_pip_has_the_environment_bring_its_own(tmp_path, monkeypatch):
    make_wheel(tmp_path / "wheels", "tiny", "1.0")
    (tmp_path / "requirements.txt").write_text("tiny")
    for name, value in offline(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else real(name))
    virtual.make(tmp_path / "env", tmp_path / "requirements.txt", lambda step: None)
    code = "import pip, tiny, numpy; print(tiny.VERSION)"
    assert run(Runtime(interpreter=str(tmp_path / "env/bin/python")), code) == "1.0"


# -- packed and unpacked


async def test_an_archive_is_unpacked_once_for_each_content(builds, tmp_path):
    source = make_environment(tmp_path / "env", activate="export COLOUR=blue PATH=/opt/tools:$PATH\n")
    archive = pack(source, builds.model / "env.tar.gz")
    environment = builds.asks(EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    assert environment.source == archive
    runtime = await builds.build(environment)
    assert isinstance(runtime, Runtime), runtime
    environ = variables(os.environ, runtime)
    root = builds.cache.path(environment)
    assert environ["COLOUR"] == "blue"
    assert environ["PATH"].startswith(f"{root}/bin:/opt/tools:")
    assert environ["PATH"].endswith(os.environ["PATH"])
    assert environ["LD_LIBRARY_PATH"].split(":")[0] == f"{root}/lib"
    assert builds.cache.runtime(builds.asks(EXECUTION_ENV_PATH=str(archive))) == runtime

    (source / "more").write_text("more")
    pack(source, archive)
    with pytest.raises(NotBuilt):
        builds.cache.runtime(builds.asks(EXECUTION_ENV_PATH=str(archive)))


async def test_an_unpacked_directory_is_used_where_it_is(builds, tmp_path):
    source = make_environment(tmp_path / "env", activate="export COLOUR=blue\n")
    runtime = await builds.build(builds.asks(EXECUTION_ENV_PATH=str(source)))
    assert (runtime.interpreter, runtime.digest) == (f"{source}/bin/python3", "")
    assert ("COLOUR", "blue") in runtime.environ
    assert not builds.cache_directory.exists()


async def test_what_conda_pack_brings_to_mend_its_prefixes_is_run_where_it_will_stay(builds, tmp_path):
    source = make_environment(tmp_path / "env")
    (source / "bin" / "python").symlink_to("python3")
    (source / "bin" / "conda-unpack").write_text(
        "import os, pathlib\npathlib.Path(__file__).parents[1].joinpath('prefix').write_text(__file__)\n"
    )
    environment = builds.asks(EXECUTION_ENV_PATH=str(pack(source, tmp_path / "env.tar.gz")))
    await builds.build(environment)
    root = builds.cache.path(environment)
    assert (root / "prefix").read_text() == f"{root}/bin/conda-unpack"


OLD = """#!/bin/sh
echo
printf '{"python": [3, 8, 18], "numpy": "1.24.4"}'
"""
BARE = """#!/bin/sh
echo
printf '{"python": [3, 12, 1], "problem": "ModuleNotFoundError: No module named numpy"}'
"""


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            partial(make_environment, python=OLD),
            "the Python of environment '{source}' is 3.8.18, and workers need 3.9 or newer",
        ),
        (
            partial(make_environment, python=BARE),
            "environment '{source}' has no numpy that its Python can import: ModuleNotFoundError: No module",
        ),
        (
            partial(make_environment, python="#!/bin/sh\necho broken >&2\nexit 3\n"),
            "the Python of environment '{source}' does not start: broken",
        ),
        (partial(make_environment, activate="echo no >&2; return 1"), "'{source}/bin/activate' fails: no"),
        (
            Path.mkdir,
            "Path {source}/bin/activate does not exist. The Python environment should contain an"
            " 'activate' script.",
        ),
    ],
    ids=["an old Python", "no numpy", "a broken Python", "a failing script", "no script"],
)
async def test_an_environment_that_no_worker_runs_on_is_told_of(builds, tmp_path, make, reason):
    source = tmp_path / "env"
    make(source)
    failure = await builds.build(builds.asks(EXECUTION_ENV_PATH=str(source)))
    assert isinstance(failure, EnvironmentFailed)
    assert reason.format(source=source) in str(failure)


async def test_an_archive_without_an_activation_script_is_no_environment(builds, tmp_path):
    source = make_environment(tmp_path / "nested" / "env")
    environment = builds.asks(EXECUTION_ENV_PATH=str(pack(source.parent, tmp_path / "env.tar.gz")))
    failure = await builds.build(environment)
    root = builds.cache.path(environment)
    assert str(failure).startswith(f"Path {root}/bin/activate does not exist. The Python environment should")
    assert not root.exists()


async def test_a_python_that_was_left_behind_is_told_of(builds, tmp_path):
    source = make_environment(tmp_path / "env")
    (source / "bin" / "python3").unlink()
    (source / "bin" / "python3").symlink_to("/gone/python3")
    failure = await builds.build(builds.asks(EXECUTION_ENV_PATH=str(source)))
    assert str(failure) == f"'{source}/bin/python3' is a link to '/gone/python3', which can't be run here"


def test_a_path_that_leads_nowhere_is_told_of(builds):
    with pytest.raises(EnvironmentFailed) as failed:
        builds.asks(EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/gone.tar.gz")
    assert str(failed.value) == f"Failed to get the canonical path for {builds.model}/gone.tar.gz."
    assert "No such file" in failed.value.hint


async def test_a_cache_that_can_not_be_written_is_told_of(builds):
    make_wheel(builds.wheels, "tiny", "1.0")
    builds.cache_directory.write_text("a file")
    failure = await builds.build(builds.asks("tiny"))
    assert str(failure).startswith(f"building the environment of '{builds.model}/requirements.txt' failed: ")
