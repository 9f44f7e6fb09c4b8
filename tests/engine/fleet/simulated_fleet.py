"""A fleet in virtual time: servers that load, fail, die and are cut off, and controllers that steer them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import trio
from trio.testing import MockClock

from engine.fleet.controller import Controller
from engine.fleet.policy.claims import Register
from engine.fleet.policy.values import NONE, Release, Rules, Seen, Served, Wish
from engine.fleet.ports import Look, Member, Refused, Superseded, Unreachable
from engine.fleet.wanted import Timing, Wanted

RULES = Rules(settle=3, min_requests=4, max_error_rate=0.2, load_timeout=20, return_timeout=15, retry=5)
TIMING = Timing(interval=1, takeover=10, request=2)
MODEL = "resnet"
GOOD, BETTER, BROKEN, ILL, FAULTY, ENDLESS = (Release((number,)) for number in range(1, 7))
BAD = {BROKEN, ILL, FAULTY, ENDLESS}
LOADING = 2.0


@dataclass
class SimulatedServer:
    """A server: what it serves, and what it keeps until it dies."""

    name: str
    member: Member
    models: dict[str, Release] = field(default_factory=dict)
    register: Register = field(default_factory=Register)
    boot: int = 0
    is_up: bool = True
    since: float = 0.0
    withdrawn: bool = False
    waiting: int = 0
    spoilt: set[str] = field(default_factory=set)  # models of which a load failed last
    plans: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    rolled_back: dict[int, str] = field(default_factory=dict)
    recent: dict[int, tuple[int, int]] = field(default_factory=dict)
    newest_load: int = 0
    ever: list[Release] = field(default_factory=list)
    changes: list[tuple[int, int, str]] = field(default_factory=list)

    def die(self):
        """It is started again without any model, as a server in explicit mode is."""
        self.is_up, self.boot = False, self.boot + 1
        self.models, self.plans, self.register = {}, {}, Register()
        self.spoilt, self.withdrawn = set(), False

    def become(self, model, release):
        self.models[model] = release
        self.since = trio.current_time()
        self.ever.append(release)

    def check(self, epoch):
        if epoch < self.register.epoch:
            raise Superseded(f"{self.name} knows epoch {self.register.epoch}, and was told {epoch}")
        self.register = replace(self.register, epoch=epoch)

    def served(self, model, plans, deep):
        release = self.models.get(model, NONE)
        answers = int((trio.current_time() - self.since) * 4) if release else 0
        return Served(
            ready=release,
            spoilt=model in self.spoilt,
            ill="no answer" if deep and release == ILL else "",
            answers=answers,
            errors=answers if release == FAULTY else 0,
            traffic=self.traffic(model) if model in plans else None,
        )

    def traffic(self, model):
        plan = self.plans.get(model)
        versions = [
            {
                "version": str(number),
                **(
                    {"rolled_back": {"reason": self.rolled_back[number]}}
                    if number in self.rolled_back
                    else {}
                ),
                "recent": dict(zip(("answers", "errors"), self.recent.get(number, (0, 0)), strict=True)),
            }
            for number in self.models.get(model, NONE).versions
        ]
        return {"plan": plan, "versions": versions if plan else []}


class Line:
    """What one controller has to one server. `cut` holds the pairs that don't reach each other."""

    def __init__(self, controller, server, cut):
        self.controller, self.server, self.cut = controller, server, cut

    def reach(self):
        if not self.server.is_up or (self.controller, self.server.name) in self.cut:
            raise Unreachable("no answer")
        return self.server

    async def look(self, models, *, plans, deep):
        await trio.sleep(0.01)
        server = self.reach()
        return Look(
            seen=Seen(
                name=server.name,
                boot=f"{server.name}:{server.boot}",
                withdrawn=server.withdrawn,
                waiting=server.waiting,
                models={
                    model: server.served(model, plans, deep)
                    for model in {*models, *server.models, *server.spoilt}
                },
            ),
            register=server.register,
        )

    async def write(self, epoch, sequence, document, *, withdrawn=None):
        await trio.sleep(0.01)
        server = self.reach()
        server.check(epoch)
        if document is not None:
            if (epoch, sequence) <= server.register.age and document != server.register.document:
                raise Superseded(f"{server.name} has sequence {server.register.sequence}")
            server.register = Register(epoch=epoch, written=epoch, sequence=sequence, document=document)
        if withdrawn is not None:
            server.withdrawn = withdrawn
        return server.register

    async def load(self, model, release, epoch):
        await trio.sleep(0.01)
        server = self.reach()
        server.check(epoch)
        server.changes.append((server.boot, epoch, f"load {release}"))
        server.newest_load += 1
        mine, boot = server.newest_load, server.boot
        if release == ENDLESS:
            await until(lambda: server.newest_load != mine or server.boot != boot)
            raise Refused("a newer operation has been applied")
        await trio.sleep(LOADING)
        if server.boot != boot:
            raise Unreachable("the connection broke")
        if server.newest_load != mine:
            raise Refused("a newer operation has been applied")
        if release == BROKEN:
            server.spoilt.add(model)
            raise Refused("no such file")
        server.spoilt.discard(model)
        if server.models.get(model) != release:
            server.become(model, release)
        self.reach()

    async def unload(self, model, epoch):
        await trio.sleep(0.01)
        server = self.reach()
        server.check(epoch)
        server.changes.append((server.boot, epoch, "unload"))
        server.models.pop(model, None)
        server.spoilt.discard(model)

    async def share(self, model, plan, epoch):
        await trio.sleep(0.01)
        server = self.reach()
        server.check(epoch)
        if plan.get("mirror"):
            raise Refused("invalid traffic plan")
        server.plans[model] = plan or None
        server.rolled_back.clear()


async def until(condition):
    """Wait for a condition of the world, a tenth of a second of its time at a time."""
    for _ in itertools.count():
        if condition():
            return
        await trio.sleep(0.1)


class SimulatedFleet:
    """Servers, what is wanted of them, and the controllers that are there."""

    def __init__(self, count, *, serving=NONE, wanted=GOOD, model=MODEL):
        self.servers = {}
        for number in range(count):
            name = f"r{number}"
            self.servers[name] = SimulatedServer(name, Member(name=name, url=f"http://{name}:8000"))
            if serving:
                self.servers[name].models[model] = serving
        self.cut = set()
        self.hidden = set()  # names that discovery does not find
        self.said = []
        self.wish: Wish | None = Wish(model=model, release=wanted)
        self.wishes = None
        self.rules = RULES
        self.scopes = {}
        self.controllers = {}

    @property
    def wanted(self):
        wishes = self.wishes if self.wishes is not None else [self.wish] if self.wish else []
        return Wanted(wishes=wishes, rules=self.rules, timing=TIMING)

    def named(self, name):
        return self.servers[name]

    def controller(self, name="one", **options):
        async def discover(wanted):
            return [server.member for name, server in self.servers.items() if name not in self.hidden]

        return Controller(
            name,
            lambda: self.wanted,
            discover,
            lambda member: Line(name, self.servers[member.name], self.cut),
            lambda event, **keys: self.said.append((event, keys)),
            **options,
        )

    async def run(self, nursery, name="one", **options):
        """Have a controller steer until it is killed."""
        scope = self.scopes[name] = trio.CancelScope()
        controller = self.controllers[name] = self.controller(name, **options)

        async def steer():
            with scope:
                await controller.run()

        nursery.start_soon(steer)

    def kill(self, name="one"):
        """End a controller at whatever it is just doing."""
        self.scopes[name].cancel()

    def decisions(self):
        return [keys["decision"] for event, keys in self.said if event == "fleet_decided"]

    def on(self, releases):
        return [s.name for s in self.servers.values() if s.models.get(MODEL) in releases]

    def all_serve(self, release, model=MODEL):
        return all(s.is_up and s.models.get(model, NONE) == release for s in self.servers.values())

    async def until(self, condition, seconds=400):
        """Wait for a condition, a tenth of a second at a time."""
        with trio.move_on_after(seconds):
            await until(condition)
            return
        raise AssertionError(f"not after {seconds} s: {self.decisions()}, {self.servers}, {self.said[-5:]}")


def in_virtual_time(story, *arguments):
    """Run a story whose sleeps take no time."""
    trio.run(story, *arguments, clock=MockClock(autojump_threshold=0))
