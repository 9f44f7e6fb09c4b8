"""OTP's supervisor without tasks: rows in a list and recursion say what must happen, and in which order."""

from collections import deque
from itertools import count
from typing import Any

import trio

from actors.supervision.errors import (
    AlreadyStarted,
    NoSuchChild,
    NotRunning,
    StartError,
)
from actors.supervision.spec import OnExhausted, Restart, Strategy
from tests.support.trees import Cue

ALL, EACH = Strategy.ONE_FOR_ALL, Strategy.ONE_FOR_ONE
AWAITING = ("backing_off", "exhausted")
ABNORMAL = ("crashed", "killed", "escalated")


class Player:
    """A child that obeys at once: its next `starts` go as listed, and later ones well."""

    def __init__(self, journal):
        self.journal = journal
        self.supervisor: Any = None
        self.starts = []
        self.on_stop = "stop"
        self.ctx: Any = None
        self.told: Any = None

    async def run(self, ctx):
        self.journal.append(("start", ctx.path))
        try:
            await self._live(ctx)
        finally:
            self.journal.append(("end", ctx.path))

    async def _live(self, ctx):
        how = self.starts.pop(0) if self.starts else "well"
        if how == "fail":
            raise Cue
        at_once = how == "crash" and self.supervisor.tree().state.value != "starting"
        ctx.started(self)
        if at_once:
            raise Cue
        self.ctx, self.told = ctx, trio.Event()
        if self.on_stop != "deaf":
            ctx.stopping.then(self.told.set)
        self.how = None
        await self.told.wait()
        if self.how is not None:
            raise self.how
        if ctx.asked and self.on_stop == "crash":
            raise Cue

    def end(self, error):
        self.how = error
        self.told.set()


class Actor:
    """The model of a `Player`, of which it looks at the orders."""

    def __init__(self, player):
        self.player = player
        self.starts = []

    def start(self, owner, row):
        how = self.starts.pop(0) if self.starts else "well"
        owner.tell("start", row)
        if how == "fail":
            owner.tell("end", row)
            return "failed"
        return "crashed" if how == "crash" and not owner.starting else "ready"

    def stop(self, owner, row):
        owner.tell("end", row)
        if row.spec.grace == 0:
            return "killed"
        return "crashed" if self.player.on_stop == "crash" else "shutdown"

    def swept(self, owner, row):
        owner.tell("end", row)


class Row:
    """A child as the model knows it."""

    def __init__(self, spec, part, *, dynamic):
        self.spec = spec
        self.part = part
        self.dynamic = dynamic
        self.forgotten = dynamic or spec.restart is Restart.TEMPORARY
        self.state = "stopped"
        # What its restart waits for: a number for a death in the mail, a tuple for a time.
        self.due = None
        self.in_a_row = 0
        self.exhausted = False
        self.own_deaths = []
        self.ready_at = None
        self.progress = False
        self.restarts = 0


class Otp:
    """What a supervisor must do: a list of rows, and plain recursion.

    `outer` is the supervisor that this one is a child of, and `row` is its row there.
    """

    def __init__(self, prefix, specs, parts, clock, *, strategy, intensity):
        self.prefix = prefix
        self.specs = specs
        self.parts = parts
        self.clock = clock
        self.strategy = strategy
        self.intensity = intensity
        self.outer = None
        self.up = self.starting = False
        self.ended: Any = None  # of a root
        self.rows = []
        self.deaths = []
        self.mail: deque[tuple[Row, int, float]] = deque()
        self.numbers = count()
        self.expected = []  # events, and dicts of events by path where the order is open
        self.open_order = None

    def tell(self, what, row, *more):
        path = self.prefix + row.spec.name
        if self.open_order is None:
            self.expected.append((what, path, *more))
        else:
            self.open_order.setdefault(path, []).append((what, path, *more))

    def find(self, name):
        return next((row for row in self.rows if row.spec.name == name), None)

    # As a part of another

    def start(self, owner, row):
        self.outer, self.row = owner, row
        return self.start_all()

    def stop(self, owner, row):
        if row.spec.grace == 0:
            self.sweep()
            return "killed"
        self.shut()
        return "shutdown"

    def swept(self, owner, row):
        self.sweep()

    def start_all(self):
        self.up = self.starting = True
        self.deaths = []
        for spec in self.specs:
            self.rows.append(row := Row(spec, self.parts[spec.name], dynamic=False))
            if self.begin(row, "initial") == "failed":
                self.starting = False
                self.shut()
                return "failed"
        self.starting = False
        return "ready"

    def shut(self):
        """Stop every child, right to left.

        A one_for_one supervisor first stops, together, the children that were added later.
        """
        self.up = False
        self.mail.clear()
        rows = list(reversed(self.rows))
        if self.strategy is EACH:
            self.in_any_order([row for row in rows if row.dynamic], self.stop_row)
            rows = [row for row in rows if not row.dynamic]
        for row in rows:
            self.stop_row(row)
        self.rows = []

    def sweep(self):
        def swept(row):
            if row.state == "running":
                row.part.swept(self, row)
                self.tell("child_exited", row, "killed")

        self.up = False
        self.mail.clear()
        self.in_any_order(self.rows, swept)
        self.rows = []

    def in_any_order(self, rows, act):
        self.open_order = {}
        for row in rows:
            act(row)
        self.expected.append(self.open_order)
        self.open_order = None

    # One child

    def begin(self, row, purpose):
        row.progress = False
        result = row.part.start(self, row)
        if result in ("ready", "crashed"):
            row.state, row.ready_at = "running", self.clock.now
            if purpose == "restart":
                row.restarts += 1
                self.tell("child_restarted", row, row.restarts)
            else:
                self.tell("child_started", row)
            if result == "crashed":
                self.tell("end", row)
                self.died(row, "crashed")
            return "ready"
        if result == "failed":
            self.tell("child_start_failed", row)
            if purpose == "restart":
                self.await_restart(row, 0.0)
                return result
        row.state = "stopped"
        if row.forgotten:
            self.rows.remove(row)
        return result

    def stop_row(self, row, *, for_restart=False):
        if row.state in AWAITING:
            row.due = None
            if not for_restart:
                row.state = "stopped"
                if row.forgotten:
                    self.rows.remove(row)
        elif row.state == "running":
            reason = row.part.stop(self, row)
            self.tell("child_exited", row, reason)
            row.state = "backing_off" if for_restart else "stopped"
            if row.spec.restart is Restart.TEMPORARY or (row.forgotten and not for_restart):
                self.rows.remove(row)

    def died(self, row, reason):
        """It has ended without having been asked to."""
        self.tell("child_exited", row, reason)
        restart = row.spec.restart
        if restart is Restart.PERMANENT or (restart is Restart.TRANSIENT and reason in ABNORMAL):
            self.await_restart(row, self.clock.now - row.ready_at)
            return
        row.state = "stopped"
        if row.forgotten:
            self.rows.remove(row)

    def await_restart(self, row, uptime):
        row.state = "backing_off"
        row.due = next(self.numbers)
        self.mail.append((row, row.due, uptime))

    def read_mail(self):
        while self.mail:
            row, number, uptime = self.mail.popleft()
            if row.due == number:
                row.due = None
                self.decide(row, uptime)
        if self.outer is not None:
            self.outer.read_mail()

    def close(self, why):
        self.shut()
        if self.outer is None:
            self.ended = why
        else:
            self.outer.died(self.row, why)

    # Restarts

    def decide(self, row, uptime):
        now, spec = self.clock.now, row.spec
        budget = spec.intensity or self.intensity
        if row.progress or uptime >= budget.period:
            row.in_a_row, row.exhausted = 0, False
        row.in_a_row += 1
        if spec.intensity is None:
            self.deaths = counted = [*(at for at in self.deaths if now - at <= budget.period), now]
        elif row.progress:
            row.own_deaths = counted = []
        else:
            row.own_deaths = counted = [*(at for at in row.own_deaths if now - at <= budget.period), now]
        row.progress = False
        if len(counted) > budget.restarts or row.exhausted:
            if spec.on_exhausted is OnExhausted.ESCALATE:
                self.tell("restarts_exhausted", row)
                self.close("escalated")
                return
            if not row.exhausted:
                self.tell("restarts_exhausted", row)
            row.state, row.exhausted = "exhausted", True
            delay = spec.backoff.cap
        else:
            delays = [0.0, 1.0, 2.0, 4.0]  # of the first deaths in a row, in units of the first
            steps = delays[min(row.in_a_row, len(delays)) - 1]
            delay = min(spec.backoff.cap, spec.backoff.initial * steps)
        if delay:
            self.stop_group(row)
            row.due = ("at", now + delay)
        else:
            self.restart(row)

    def group(self, row):
        if self.strategy is EACH:
            return [row]
        return list(self.rows) if self.strategy is ALL else self.rows[self.rows.index(row) :]

    def stop_group(self, row):
        for each in reversed(self.group(row)):
            if each is not row:
                self.stop_row(each, for_restart=True)

    def restart(self, row):
        self.stop_group(row)
        for each in self.group(row):
            if self.begin(each, "restart") == "failed":
                return

    def appointments(self):
        return [(row.due[1], self, row) for row in self.rows if isinstance(row.due, tuple)]

    def fire(self, row):
        row.due = None
        self.restart(row)
        self.read_mail()

    # Operations: the class of the error that is due, or None

    def start_child(self, spec):
        if not self.up:
            return NotRunning
        if self.strategy is not EACH:
            return ValueError
        if self.find(spec.name) is not None:
            return AlreadyStarted
        self.rows.append(row := Row(spec, self.parts[spec.name], dynamic=True))
        return StartError if self.begin(row, "dynamic") == "failed" else None

    def terminate_child(self, name):
        row = self.find(name)
        if not self.up:
            return NotRunning
        if self.strategy is not EACH:
            return ValueError
        if row is None:
            return NoSuchChild
        row.forgotten = True
        if row.state == "stopped":
            self.rows.remove(row)
        else:
            self.stop_row(row)
        return None

    def kill(self, path):
        row = self.find(path.removeprefix(self.prefix))
        if not self.up or row is None:
            return NoSuchChild if self.up else NotRunning
        if row.state == "running":
            row.part.swept(self, row)
            self.died(row, "killed")
        return None
