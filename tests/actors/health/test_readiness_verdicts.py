"""The rules of readiness (contract, repository.md section 8), as a pure function."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.health.verdicts import Verdict, VersionFacts, judge
from actors.values.specs import ModelKey

ADD = ModelKey("add")


def standing(status="READY", reason="", *, key=ADD, version=1, **changes):
    return VersionFacts(key=key, version=version, status=status, reason=reason, **changes)


def after(*standings, before=None, finished=True, strict=True, now=1.0):
    return judge(standings, finished=finished, strict=strict, before=before or Verdict(), now=now)


def opened(*standings):
    """The verdict on a server that has been ready with these."""
    verdict = after(*standings)
    assert verdict.ready
    return verdict


def test_nothing_is_ready_before_the_start_is_over():
    assert not after(standing(), finished=False).ready
    assert not after(standing(), finished=False, strict=False).ready
    assert after(standing()).ready


def test_an_empty_repository_is_ready():
    assert after().ready


@pytest.mark.parametrize(
    ("status", "reason", "ready"),
    [
        ("READY", "", True),
        ("LOADING", "", True),
        ("UNLOADING", "", True),
        ("UNAVAILABLE", "unloaded", True),
        ("UNAVAILABLE", "Internal: no such file", False),
        ("UNAVAILABLE", "", False),
        ("", "", True),
    ],
)
def test_strict_readiness_asks_after_every_version(status, reason, ready):
    verdict = after(standing(), standing(status, reason, version=2))
    assert verdict.ready is ready
    assert after(standing(), standing(status, reason, version=2), strict=False).ready
    assert [part.version for part in verdict.failed] == ([] if ready else [2])


def test_a_model_of_two_repositories_is_told_and_does_not_count():
    """Triton's lifecycle never hears of it (contract, repository.md sections 2 and 8)."""
    reason = "model appears in two or more repositories"
    verdict = after(standing(), standing("UNAVAILABLE", reason, version=0, key=ModelKey("twice")))
    assert verdict.ready
    assert [(str(part), part.reason) for part in verdict.parts if not part.ok] == [("model twice", reason)]


@pytest.mark.parametrize("strict", [True, False])
def test_a_repository_that_the_start_went_without_keeps_the_server_from_being_ready(strict):
    gone = "/models can't be read: No such file or directory"
    verdict = judge(
        [standing()], finished=True, strict=strict, before=opened(standing()), now=2.0, missing=gone
    )
    assert not verdict.ready
    assert (verdict.missing, verdict.since) == (gone, 2.0)
    assert not verdict.failed


def test_a_model_without_a_version_to_show_counts():
    verdict = after(standing("UNAVAILABLE", "no version is available", version=0))
    assert not verdict.ready
    assert str(verdict.failed[0]) == "model add"
    assert verdict.failed[0].reason == "no version is available"


def test_what_is_not_essential_is_told_and_does_not_count():
    verdict = after(standing("UNAVAILABLE", "Internal: no", essential=False))
    assert verdict.ready
    assert not verdict.failed
    assert [part.reason for part in verdict.parts] == ["Internal: no"]


def test_what_is_said_against_a_version_counts_while_it_serves():
    assert not after(standing(trouble="its own readiness check says no")).ready
    assert after(standing("UNAVAILABLE", "unloaded", trouble="its own readiness check says no")).ready


def test_a_server_waits_for_the_first_word_of_everything_only_until_it_was_ready_once():
    waiting = standing(awaited="not heard yet")
    assert not after(waiting).ready
    assert after(waiting, before=opened(standing())).ready
    lenient = after(waiting, strict=False)
    assert lenient.ready


def test_a_failed_version_stays_failed_while_it_is_loaded_again():
    failed = after(standing("UNAVAILABLE", "Internal: no"), before=opened(), now=5.0)
    again = after(standing("LOADING"), before=failed, now=6.0)
    assert not again.ready
    assert [(part.reason, part.since) for part in again.failed] == [("Internal: no", 5.0)]
    assert after(standing(), before=again, now=7.0).ready
    leaving = after(standing("UNLOADING"), before=again, now=7.0)
    assert not leaving.ready
    assert after(standing("UNAVAILABLE", "unloaded"), before=leaving, now=8.0).ready


def test_a_part_tells_since_when():
    verdict = opened(standing())
    for now, trouble, since in ((2.0, "", 1.0), (3.0, "no", 3.0), (4.0, "still no", 3.0), (5.0, "", 5.0)):
        verdict = after(standing(trouble=trouble), before=verdict, now=now)
        (part,) = verdict.parts
        assert (part.reason, part.since) == (trouble, since)
        assert verdict.since == since
        assert verdict.opened


def test_models_of_one_name_are_told_apart_by_their_namespace():
    verdict = after(
        standing(key=ModelKey("add", "left")),
        standing("UNAVAILABLE", "no", key=ModelKey("add", "right")),
    )
    assert [str(part) for part in verdict.failed] == ["model right::add version 1"]


STATUSES = st.sampled_from(["READY", "LOADING", "UNLOADING", "UNAVAILABLE", ""])
STANDINGS = st.lists(
    st.builds(
        standing,
        STATUSES,
        st.sampled_from(["", "unloaded", "Internal: no"]),
        version=st.integers(0, 3),
        essential=st.booleans(),
        trouble=st.sampled_from(["", "no"]),
        awaited=st.sampled_from(["", "not yet"]),
    ),
    max_size=4,
    unique_by=lambda each: each.version,
)


@given(st.lists(st.tuples(STANDINGS, st.booleans()), max_size=6), st.booleans())
def test_a_verdict_follows_from_its_parts(history, strict):
    verdict = Verdict()
    for now, (standings, finished) in enumerate(history, 1):
        before = verdict
        verdict = judge(standings, finished=finished, strict=strict, before=before, now=float(now))
        assert verdict.ready is (finished and not (strict and verdict.failed))
        assert verdict.opened is (before.opened or verdict.ready)
        assert verdict.since == (before.since if verdict.ready is before.ready else now)
        assert all(part.since <= now for part in verdict.parts)


@given(STANDINGS)
def test_loading_a_model_never_takes_readiness_away(standings):
    before = judge(standings, finished=True, strict=True, before=Verdict(opened=True), now=1.0)
    loading = standing("LOADING", key=ModelKey("new"))
    beside = judge([*standings, loading], finished=True, strict=True, before=before, now=2.0)
    assert beside.ready is before.ready
