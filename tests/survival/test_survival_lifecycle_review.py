"""A server whose repository branch is killed: models serve, retiring ones end, new requests are answered."""

import psutil
import pytest
import structlog
import trio

from actors.serving.probing import probe, probe_request
from actors.values.errors import TritiumError
from actors.values.specs import ModelKey
from engine.server.tree import open_server
from engine.settings.settings import Settings
from tests.support.ports import Port
from tests.survival.changing import Workshop, code
from tests.survival.server import until

pytestmark = pytest.mark.slow

HANGS = "time.sleep(3600)"


@pytest.fixture
def workshop(repository):
    return Workshop(repository.path)


def settings(repository, **changes):
    return Settings(
        model_repositories=(str(repository.path),),
        control_mode="explicit",
        load_models=("a",),
        allow_grpc=False,
        allow_metrics=False,
        **changes,
    )


async def ask(running, name="a"):
    """Have a model answer a probe; return its state and the answer."""
    state = running.router.resolve(name)
    return state, await probe(state, within=30.0)


def workers_of(state):
    return [instance.pid for instance in state.instances]


async def test_what_serves_outlives_the_repository_branch(repository, workshop):
    workshop.model("a", extra='parameters { key: "tritium.probe" value { string_value: "off" } }\n')
    workshop.model("hangs", initialize=HANGS)
    async with open_server(settings(repository), http=False) as running:
        await running.wait_loaded()
        serving, outcome = await ask(running)
        assert outcome.answered
        errors = []

        async def load():
            try:
                await running.catalog.load("hangs", {})
            except TritiumError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            await until(lambda: bool(running.router.roster.background(ModelKey("hangs"))))
            (loading,) = running.router.roster.background(ModelKey("hangs"))
            await until(lambda: loading.instances[0].pid is not None)
            (worker,) = workers_of(loading)
            running.root.kill("repository")
        assert len(errors) == 1
        await until(lambda: not psutil.pid_exists(worker))
        still, outcome = await ask(running)
        assert still is serving
        assert outcome.answered
        workshop.write("a/1/model.py", code(2))
        await running.catalog.load("a", {})
        reloaded, outcome = await ask(running)
        assert reloaded is not serving
        assert outcome.answered
        await serving.standing.ended.wait()
        await running.catalog.unload("hangs")


async def test_a_server_stops_while_models_load_and_retire_without_complaint(repository, workshop):
    workshop.model("a", execute_seconds=1.0)
    workshop.model("hangs", initialize=HANGS)
    with structlog.testing.capture_logs() as logs:
        async with open_server(settings(repository), http=False) as running:
            await running.wait_loaded()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(running.catalog.load, "hangs", {})
                await until(lambda: bool(running.router.roster.background(ModelKey("hangs"))))
                (loading,) = running.router.roster.background(ModelKey("hangs"))
                await until(lambda: loading.instances[0].pid is not None)
                state = running.router.resolve("a")
                port = Port()
                await submit(state, port)
                await running.catalog.unload("a")
                pids = [*workers_of(state), *workers_of(loading)]
                with trio.fail_after(20):
                    assert await running.drain()
                assert port.answered
                nursery.cancel_scope.cancel()
            with trio.fail_after(20):
                running.root.stop()
                await running.wait_stopped()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    complaints = [line for line in logs if line["log_level"] in {"warning", "error"}]
    assert {str(line["event"]) for line in complaints} <= {"readiness_changed"}


async def submit(state, port):
    await state.submit(probe_request(state.spec, reply=port, now=trio.current_time()))
