"""Whether the server's resources go back to what they were before anything happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from chaos.checker.goals import Evidence, Goal
from chaos.checker.rules.limits import Limits
from chaos.record.records import Manifest, Sample

QUANTITIES: Final = ("descriptors", "threads", "children")


def resource_goals(
    samples: Sequence[Sample], manifest: Manifest, quiet: float | None, limits: Limits
) -> Iterable[Goal]:
    """Yield, for each quantity, how long after `quiet` it took to come back into its calm range for good.

    Its calm range lies between its extremes in the calm phase. `quiet` is when the last fault was healed;
    None if there was none. What never came back takes infinitely long. Children must be as many as they were:
    a missing worker is not back. Of the other quantities fewer is as good. A run that ended before its last
    fault was healed has seen nothing come back.
    """
    calm = [each for each in samples if each.phase == "calm"]
    until = max((end for phase, _, end in manifest.phases if phase == "recovery"), default=0.0)
    after = [] if quiet is None else [each for each in samples if quiet <= each.t <= until]
    for name in QUANTITIES:
        yield _goal(name, calm, after, quiet, limits)


def _goal(
    name: str, calm: Sequence[Sample], after: Sequence[Sample], quiet: float | None, limits: Limits
) -> Goal:
    slack = limits.slack.get(name, 0)
    within = f", but for {slack}" if slack else ""
    about = f"from the last fault's healing until {name} are what they were in the calm phase{within}, and stay so"
    if not calm or not after or quiet is None:
        never = float("inf") if calm and quiet is not None else None
        return Goal(name=f"{name} back", about=about, limit=limits.back, figure=never, unit="s", timed=True)
    before = [int(getattr(each, name)) for each in calm]
    most = max(before) + slack
    least = min(before) - slack if name == "children" else 0
    outside = [each for each in after if not least <= int(getattr(each, name)) <= most]
    took = 0.0
    evidence: tuple[Evidence, ...] = ()
    if outside:
        last = outside[-1]
        later = next((each.t for each in after if each.t > last.t), float("inf"))
        took = later - quiet
        evidence = (
            Evidence(
                what=f"{getattr(last, name)} {name} {last.t - quiet:.1f} s after quiet",
                id=name,
                story=f"{min(before)} to {max(before)} in the calm phase",
            ),
        )
    return Goal(
        name=f"{name} back",
        about=about,
        limit=limits.back,
        figure=took,
        unit="s",
        timed=True,
        measured=len(after),
        found=int(took > limits.back),
        evidence=evidence,
    )
