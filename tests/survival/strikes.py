"""Signals to workers, and the accounts that must agree afterwards."""

import json
import os
import sys

import trio

from chaos.subject.server import serving
from tests.survival.server import ROOT
from tests.survival.storm import milliseconds, quantile


class Striker:
    """Sends a signal to one worker of a model at a time, and watches its instance come back."""

    def __init__(self, server, model, number):
        self.server = server
        self.model = model
        self.number = number
        self.struck_at = []
        self.recoveries = []
        self._struck = set()  # process ids; a stopped worker still looks as if it served

    async def strike(self, storm):
        """Strike some worker that serves, again and again; return when the last one is back."""
        async with trio.open_nursery() as nursery:
            due = trio.current_time()
            deadline = due + storm["lasts"]
            while trio.current_time() < deadline:
                victim = await self._victim()
                os.kill(victim["info"]["pid"], self.number)
                self.struck_at.append(trio.current_time())
                self._struck.add(victim["info"]["pid"])
                nursery.start_soon(self._watch, victim["path"], victim["info"]["pid"], self.struck_at[-1])
                due = max(due + storm["strikes_every"], trio.current_time())
                await trio.sleep_until(due)

    async def _victim(self):
        """Return the serving instance that was restarted least; while none serves, wait."""
        while True:
            nodes = await self.server.instances(self.model)
            alive = [node for node in nodes if serving(node) and node["info"]["pid"] not in self._struck]
            if alive:
                return min(alive, key=lambda node: node["restarts"])
            await trio.sleep(0.02)

    async def _watch(self, path, pid, struck_at):
        with trio.fail_after(60):
            while True:
                node = await self.server.node(path)
                if serving(node) and node["info"]["pid"] != pid:
                    break
                await trio.sleep(0.02)
        self.recoveries.append(trio.current_time() - struck_at)

    def report(self):
        return {
            "strikes": len(self.struck_at),
            "recovery p50 ms": milliseconds(quantile(self.recoveries, 0.5)),
            "recovery p99 ms": milliseconds(quantile(self.recoveries, 0.99)),
        }


async def check_books(server, model, striker, label):
    """Check the server's reports: deaths, restarts in the tree and on the command line, no surplus answer."""
    nodes = await server.instances(model)
    restarts = sum(node["restarts"] for node in nodes)
    assert restarts == await server.metric("tritium_worker_deaths_total", model=model, reason=label)
    # A busy machine may make a running worker look stopped.
    assert restarts == len(striker.struck_at) or (label == "hang" and restarts > len(striker.struck_at))
    assert await server.metric("tritium_reply_violations_total") == 0
    shown = await trio.run_process(
        [sys.executable, "-m", "engine", "tree", "--url", f"http://{server.url}"],
        cwd=ROOT,
        capture_stdout=True,
    )
    most = max(node["restarts"] for node in nodes)
    assert f"{most} restart" in shown.stdout.decode()


def tell(name, storm, *reports):
    figures = {"seconds": storm["lasts"]}
    for report in reports:
        figures.update(report)
    print(f"\n{name}: {json.dumps(figures, indent=2)}", file=sys.stderr)
