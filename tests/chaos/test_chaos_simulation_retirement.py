"""What a swap leaves to end and remove is ended and removed, even if the task for it crashes.

No other actor has to be restarted for that.
"""

import pytest

from chaos.simulation.plan import Fault, Request, Scenario
from chaos.simulation.simulate import simulate

pytestmark = pytest.mark.slow


def swap(tmp_path, point):
    """Replace a version under load while something that follows from that crashes; return the trace."""
    requests = [Request(id=f"r{n}", at=n / 8, model="echo", values=(4,), wire="core") for n in range(64)]
    faults = [
        Fault(at=0.9, what="crash", detail=point),
        Fault(at=1.0, what="version", model="echo"),
    ]
    verdict = simulate(
        Scenario(seed=1, models=["echo"], requests=requests, sequences=[], faults=faults), tmp_path
    )
    assert verdict.complaints == []
    assert verdict.crashed == [point]
    assert all(outcome.ok for outcome in verdict.outcomes)
    assert verdict.outcomes[-1].version == 2
    return verdict.trace.lines


def restarted(lines):
    return [line for line in lines if "child_restarted" in line]


def test_a_retirement_that_crashed_ends_its_version_at_once(tmp_path):
    lines = swap(tmp_path, "deployment.retirement")
    (restart,) = restarted(lines)
    assert "repository/retiring/echo/1" in restart
    crashed_at = float(restart.split()[0])
    ended = next(line for line in lines if "worker_exited" in line and "models/echo/1/" in line)
    assert float(ended.split()[0]) < crashed_at + 1


def test_a_janitor_that_crashes_takes_nobody_along_and_removes_what_it_was_to(tmp_path):
    (restart,) = restarted(swap(tmp_path, "janitor.remove"))
    assert "services/janitor" in restart
