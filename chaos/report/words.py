"""How figures are written in a report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from chaos.checker.goals import FaultSummary, Goal

NOTHING = "–"


def seconds(value: float) -> str:
    """Write a duration: `4.2 ms`, `1.53 s`, `never`."""
    if math.isinf(value):
        return "never"
    if abs(value) < 0.9995:
        decimals = 0 if abs(value) >= 0.1 else 1
        return f"{value * 1e3:.{decimals}f} ms"
    return f"{value:,.2f} s"


def figure(value: float | None, unit: str) -> str:
    """Write a goal's figure or limit in its unit."""
    if value is None:
        return "not measured"
    if unit == "s":
        return seconds(value)
    if math.isinf(value) or math.isnan(value):
        return str(value)
    if unit == "×":
        return f"{value:.2f} ×"
    number = f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"
    return f"{number} {unit}".rstrip()


def limit(goal: Goal) -> str:
    """Write what a goal asks for: `≤ 100 ms`, or `0` where there must be none."""
    if goal.limit == 0 and goal.sense == "at most":
        return "0"
    return f"{'≤' if goal.sense == 'at most' else '≥'} {figure(goal.limit, goal.unit)}"


def reached(goal: Goal) -> str:
    """Write whether it was reached."""
    return {True: "reached", False: "MISSED", None: "not measured"}[goal.passed]


def seen(summary: FaultSummary) -> str:
    """Write what a fault's injections came to, in a line."""
    errors = ", ".join(f"{count} × {code}" for code, count in sorted(summary.excused.items()))
    said = [f"excused: {errors}" if errors else "no errors"]
    if summary.recoveries:
        said.append(f"good answer after {_range(summary.recoveries)}")
    if summary.lines_expected:
        said.append(f"{summary.lines_found} of {summary.lines_expected} log lines")
    if summary.troubles:
        said.append(f"trouble: {'; '.join(summary.troubles)}")
    return "; ".join(said)


def _range(times: Sequence[float]) -> str:
    least, most = seconds(min(times)), seconds(max(times))
    return least if least == most else f"{least} to {most}"
