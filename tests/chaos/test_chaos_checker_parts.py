"""The checker's parts: which fault excuses which request, the order of journals, the times of faults."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.checker.goals import quantile
from chaos.checker.injections import SETTLING, blows
from chaos.checker.judge import journal
from chaos.checker.matching import matched
from chaos.checker.story import LINGER, Pairing
from chaos.record.records import Excuse, Executed, Healed, Injected, Invoke, Ok, line_of
from tests.support.examples import examples


def executed(t: float, pid: int = 1, *, end: bool = False, id: str = "r1") -> Executed:  # noqa: A002
    return Executed(t=t, id=id, model="echo", pid=pid, batch=int(t), end=end)


def injected(n: int, t: float, *, after: float | None = None) -> Injected:
    excuses = () if after is None else (Excuse(after=after),)
    return Injected(t=t, n=n, fault="any", models=("echo",), detail="", excuses=excuses)


# -- matching


@st.composite
def wishes(draw: st.DrawFn) -> tuple[list[list[int]], dict[int, int | None]]:
    things = draw(st.integers(1, 4))
    capacities = {thing: draw(st.none() | st.integers(0, 2)) for thing in range(things)}
    wants = draw(st.lists(st.lists(st.integers(0, things - 1), unique=True, max_size=3), max_size=5))
    return wants, capacities


@pytest.mark.slow
@given(wishes())
@settings(max_examples=examples(200))
def test_as_many_are_served_as_can_be_and_no_thing_more_often_than_it_allows(
    given: tuple[list[list[int]], dict[int, int | None]],
) -> None:
    wants, capacities = given
    got = matched(wants, capacities)
    assert all(thing is None or thing in wanted for thing, wanted in zip(got, wants, strict=True))
    assert all(bound is None or got.count(thing) <= bound for thing, bound in capacities.items())
    best = max(
        sum(each is not None for each in choice)
        for choice in itertools.product(*([None, *wanted] for wanted in wants))
        if all(bound is None or choice.count(thing) <= bound for thing, bound in capacities.items())
    )
    assert sum(each is not None for each in got) == best


# -- the journal


def test_journals_of_all_workers_are_read_by_time(tmp_path: Path) -> None:
    for pid in range(5):
        records = [executed(t=number * 1.0 + pid / 10, pid=pid) for number in range(pid, pid + 20)]
        (tmp_path / f"{pid}.jsonl").write_text("".join(line_of(each) + "\n" for each in records))
    (tmp_path / "empty.jsonl").write_text("")
    read = list(journal(tmp_path))
    assert len(read) == 100
    assert [each.t for each in read] == sorted(each.t for each in read)


def test_a_line_that_its_writer_did_not_finish_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(line_of(executed(1.0)) + "\n" + line_of(executed(2.0))[:20])
    assert [each.t for each in journal(tmp_path)] == [1.0]


# -- pairing


def invoke(n: int, t: float) -> Invoke:
    return Invoke(t=t, n=n, id=f"r{n}", model="echo", protocol="http", phase="calm", value=1)


def ok(n: int, t: float) -> Ok:
    return Ok(t=t, n=n, values=(1,), first=t)


def test_an_execution_belongs_to_its_request_even_if_it_is_read_before_it() -> None:
    stories = list(Pairing().stories([invoke(1, 5.0), ok(1, 6.0)], [executed(4.9), executed(5.5, end=True)]))
    assert [(each.begin) for each in stories[0].executions] == [4.9]


def test_a_request_is_told_once_it_has_ended_for_long_enough() -> None:
    later = 1.0 + LINGER
    history = [invoke(1, 0.0), ok(1, 0.5), invoke(2, 1.0 + later), ok(2, 2.0 + later)]
    read: list[float] = []

    def watched():
        for each in history:
            read.append(each.t)
            yield each

    first = next(Pairing().stories(watched(), []))
    assert first.invoke.n == 1
    assert len(read) < len(history)


def test_what_never_ended_is_kept_with_its_begin() -> None:
    pairing = Pairing()
    list(pairing.stories([invoke(1, 0.0)], [executed(1.0, pid=7)]))
    assert pairing.unended == {(7, 1): 1.0}


# -- what was felt when


def test_a_fault_is_felt_until_its_last_excuse_has_run_out() -> None:
    short, long = blows(
        [injected(1, 10.0), Healed(t=11.0, n=1), injected(2, 50.0, after=9.0), Healed(t=51.0, n=2)]
    )
    assert (short.felt_until, long.felt_until) == (11.0 + SETTLING, 60.0)


def test_a_number_that_is_used_twice_is_trouble() -> None:
    found = blows([injected(1, 1.0), Healed(t=2.0, n=1), injected(1, 3.0)])
    assert [each.trouble for each in found] == ["its number was used twice"]


# -- figures


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_a_value_that_at_least_its_share_does_not_exceed(
    values: list[float], share: float
) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(each <= found for each in values) >= share * len(values) - 1e-6
    assert sum(each < found for each in values) < share * len(values) + 1e-6
