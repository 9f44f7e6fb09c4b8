"""What the server answers models that load others: mode rules, start-up, circles."""

import itertools
from functools import partial

import pytest
import trio

from actors.calls.subjects import CallingWorker, Subjects
from actors.values.callers import Action
from actors.values.confinement import Confinement, Sandbox
from actors.values.errors import InvalidArgument, NotFound, PermissionDenied, Unavailable
from actors.wire.call_fields import Attached
from actors.wire.frames import FrameError
from engine.server.model_control import STARTING, ModelControl
from tests.engine.worker.conftest import make_spec
from tests.support.auditing import KeptAuditor
from tests.support.doubles import Double


class Models(Double):
    """A repository and its health, as far as the handlers ask for them."""

    def __init__(self):
        self.done = []
        self.begun = trio.Event()
        self.gate = trio.Event()
        self.gate.set()
        self.ready = {"there": True, "moody": False}

    async def load(self, name, parameters, *, permit):
        permit(name, "/models")
        self.begun.set()
        await self.gate.wait()
        self.done.append(("load", name, parameters))

    async def unload(self, name, *, unload_dependents=False, permit):
        permit(name, "/models")
        self.done.append(("unload", name, unload_dependents))

    async def model_ready(self, name, version=""):
        if name not in self.ready:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return self.ready[name] and version in ("", "1")


class World:
    """Model control over `Models`, in any state of start-up; `being_loaded` names the models that are."""

    def __init__(self):
        self.models = Models()
        self.started = True
        self.being_loaded: set[str] = set()
        self.levels: dict[str, Sandbox] = {}
        self.subjects = Subjects()
        self.forbidden: set[Action | tuple[Action, str]] = set()  # with the repository, if it depends on that
        self.auditor = KeptAuditor()
        ModelControl(
            self.models,
            self.models,
            started=lambda: self.started,
            loading=lambda caller: caller.spec.name in self.being_loaded,
            found=self.levels_of,
            serving=self.levels_of,
            permit=self.permit,
            auditor=self.auditor,
        ).answer(self.subjects)

    def permit(self, spec, action, model, namespace=None):
        if action in self.forbidden or (action, namespace) in self.forbidden:
            raise PermissionDenied(f"{spec.name} may not {action.value} {model}")

    async def levels_of(self, name):
        return self.levels

    async def ask(self, subject, body, *, caller="caller", sandbox=Sandbox.OFF, **attachments):
        spec = make_spec("doubling", name=caller, confinement=Confinement(sandbox=sandbox))
        return await self.subjects.ask(
            Attached(subject, body, attachments), CallingWorker(spec, f"{caller}_0_0")
        )


@pytest.fixture
def world():
    return World()


async def test_a_load_has_its_configuration_and_its_files(world):
    assert await world.ask("model.load", {"name": "m", "config": "{}"}, **{"file:1/a": b"x"}) == {}
    assert world.models.done == [("load", "m", {"config": "{}", "file:1/a": b"x"})]


async def test_what_a_model_may_not_ask_for_is_not_done(world):
    world.forbidden = {Action.UPLOAD}
    assert await world.ask("model.load", {"name": "m"}) == {}
    with pytest.raises(PermissionDenied, match="caller may not upload m"):
        await world.ask("model.load", {"name": "m"}, **{"file:1/a": b"x"})
    world.forbidden = {Action.MODEL_REPOSITORY}
    for subject in ("model.load", "model.unload"):
        with pytest.raises(PermissionDenied, match="caller may not model-repository m"):
            await world.ask(subject, {"name": "m"})
    assert world.models.done == [("load", "m", {})]


async def test_a_model_may_be_forbidden_what_lies_in_a_repository(world):
    world.forbidden = {(Action.UPLOAD, "/models")}
    assert await world.ask("model.load", {"name": "m"}) == {}
    with pytest.raises(PermissionDenied, match="caller may not upload m"):
        await world.ask("model.load", {"name": "m"}, **{"file:1/a": b"x"})
    world.forbidden = {(Action.MODEL_REPOSITORY, "/models")}
    for subject in ("model.load", "model.unload"):
        with pytest.raises(PermissionDenied, match="caller may not model-repository m"):
            await world.ask(subject, {"name": "m"})
    assert world.models.done == [("load", "m", {})]


async def test_what_a_model_asks_for_is_in_the_audit_log_in_its_name(world):
    await world.ask("model.load", {"name": "m", "config": "{}"}, **{"file:1/a": b"x"})
    world.being_loaded = {"caller"}
    await world.ask("model.load", {"name": "other"})
    world.being_loaded = set()
    await world.ask("model.unload", {"name": "m"})
    who = "model:caller"
    assert world.auditor.told == [
        *((outcome, "model_load", "m", who) for outcome in ("asked", "done")),
        *((outcome, "model_load", "other", who) for outcome in ("asked", "done")),
        *((outcome, "model_unload", "m", who) for outcome in ("asked", "done")),
    ]
    assert world.auditor.changes[0].files == {"config": "{}", "file:1/a": b"x"}


async def test_what_a_sandbox_keeps_a_model_from_is_in_the_audit_log(world):
    world.levels = {"m": Sandbox.OFF}
    for subject in ("model.load", "model.unload"):
        with pytest.raises(PermissionDenied):
            await world.ask(subject, {"name": "m"}, sandbox=Sandbox.STRICT)
    assert world.auditor.told == [
        ("denied", action, "m", "model:caller") for action in ("model_load", "model_unload")
    ]
    assert world.models.done == []


async def test_nothing_is_done_for_a_model_where_the_audit_log_can_not_be_written(world):
    world.auditor.unwritable = "the disk is full"
    for subject in ("model.load", "model.unload"):
        with pytest.raises(Unavailable, match="the disk is full"):
            await world.ask(subject, {"name": "m"})
    assert world.models.done == []


async def test_an_unload_says_whether_parts_go_too(world):
    await world.ask("model.unload", {"name": "m", "unload_dependents": True})
    await world.ask("model.unload", {"name": "m"})
    assert world.models.done == [("unload", "m", True), ("unload", "m", False)]


async def test_readiness_is_what_a_client_would_be_told(world):
    assert await world.ask("model.ready", {"name": "there", "version": ""}) == {"ready": True}
    assert await world.ask("model.ready", {"name": "moody", "version": ""}) == {"ready": False}
    with pytest.raises(NotFound, match="Request for unknown model: 'x' is not found"):
        await world.ask("model.ready", {"name": "x", "version": ""})


async def test_while_the_server_starts_no_model_loads_another(world):
    world.started = False
    for subject in ("model.load", "model.unload"):
        with pytest.raises(Unavailable, match=STARTING):
            await world.ask(subject, {"name": "m"})
    assert await world.ask("model.ready", {"name": "there", "version": "1"}) == {"ready": True}


async def test_a_model_that_is_being_loaded_may_load_others(world):
    world.being_loaded = {"caller"}
    await world.ask("model.load", {"name": "m"})
    assert [name for _, name, _ in world.models.done] == ["m"]


async def test_but_not_itself(world):
    world.being_loaded = {"caller"}
    with pytest.raises(InvalidArgument, match="caller -> caller"):
        await world.ask("model.load", {"name": "caller"})
    with pytest.raises(InvalidArgument, match="can't unload itself"):
        await world.ask("model.unload", {"name": "caller"})
    world.being_loaded = set()
    await world.ask("model.load", {"name": "caller"})


async def test_nor_what_waits_for_it(world):
    world.being_loaded = {"a", "b"}
    world.models.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: world.ask("model.load", {"name": "b"}, caller="a"))
        await world.models.begun.wait()
        with pytest.raises(InvalidArgument, match="b -> a -> b"):
            await world.ask("model.load", {"name": "a"}, caller="b")
        world.models.gate.set()
    world.models.gate.set()
    await world.ask("model.load", {"name": "a"}, caller="b")


@pytest.mark.parametrize("body", [{}, {"name": 1}, {"name": "m", "config": 1}])
async def test_what_no_worker_of_ours_asks_is_a_bad_frame(world, body):
    with pytest.raises(FrameError):
        await world.ask("model.load", body)


async def test_many_loads_that_wait_for_each_other_are_looked_through_at_once(world):
    """There are more paths along them than a search could follow one by one."""
    names = [f"m{number}" for number in range(12)]
    world.being_loaded = set(names)
    world.models.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        for caller, wanted in itertools.pairwise(names):
            for _ in range(20):
                nursery.start_soon(partial(world.ask, "model.load", {"name": wanted}, caller=caller))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(InvalidArgument, match=r"m11 -> m0 -> m1 -> .* -> m11"):
            await world.ask("model.load", {"name": "m0"}, caller="m11")
        world.models.gate.set()


@pytest.mark.parametrize("sandbox", [Sandbox.BASIC, Sandbox.STRICT])
async def test_a_confined_model_loads_and_unloads_what_is_confined_as_it_is(world, sandbox):
    world.levels = {"m": sandbox, "part": Sandbox.STRICT}
    await world.ask("model.load", {"name": "m"}, sandbox=sandbox)
    await world.ask("model.unload", {"name": "m"}, sandbox=sandbox)
    assert [what for what, *_ in world.models.done] == ["load", "unload"]


@pytest.mark.parametrize("subject", ["model.load", "model.unload"])
async def test_a_confined_model_reaches_none_that_is_less_confined(world, subject):
    world.levels = {"m": Sandbox.GUARD}
    with pytest.raises(PermissionDenied, match=r"--sandbox=basic$"):
        await world.ask(subject, {"name": "m"}, sandbox=Sandbox.BASIC)
    assert not world.models.done


async def test_a_confined_model_loads_no_ensemble_with_a_less_confined_part(world):
    world.levels = {"m": Sandbox.STRICT, "part": Sandbox.BASIC}
    with pytest.raises(PermissionDenied, match="'m', of which 'part' is a part"):
        await world.ask("model.load", {"name": "m"}, sandbox=Sandbox.STRICT)
    # Parts stay unless they are to go too.
    await world.ask("model.unload", {"name": "m"}, sandbox=Sandbox.STRICT)
    with pytest.raises(PermissionDenied, match="'part'"):
        await world.ask("model.unload", {"name": "m", "unload_dependents": True}, sandbox=Sandbox.STRICT)


@pytest.mark.parametrize("brought", [{"config": "{}"}, {"file:1/model.py": b""}])
async def test_a_confined_model_brings_neither_configuration_nor_files(world, brought):
    world.levels = {"m": Sandbox.STRICT}
    config = {key: text for key, text in brought.items() if key == "config"}
    files = {key: content for key, content in brought.items() if key != "config"}
    with pytest.raises(PermissionDenied, match="a configuration or files of its own"):
        await world.ask("model.load", {"name": "m", **config}, sandbox=Sandbox.BASIC, **files)
    assert not world.models.done


@pytest.mark.parametrize("sandbox", [Sandbox.OFF, Sandbox.GUARD])
async def test_other_models_load_what_they_like(world, sandbox):
    world.levels = {"m": Sandbox.OFF}
    await world.ask("model.load", {"name": "m", "config": "{}"}, sandbox=sandbox, **{"file:1/a": b""})
    await world.ask("model.unload", {"name": "m"}, sandbox=sandbox)
    assert len(world.models.done) == 2
