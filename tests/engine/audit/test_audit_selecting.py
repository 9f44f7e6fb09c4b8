"""Records of a log put together, chosen, and their chain followed."""

from dataclasses import replace

import pytest

from engine.audit.records import End, Record, chained, parse
from engine.audit.selecting import MOST_OPEN, Chain, Wanted, told


def entries(*records, end=None):
    lines, _ = chained(records, end or End())
    return [parse(line) for line in lines.splitlines()]


def record(action="model_load", outcome="done", **more):
    return Record(time=more.pop("time", 0.0), action=action, outcome=outcome, **more)


def shown(records):
    found = [*told(entries(*records))]
    assert all(it.end.outcome == it.outcome for it in found)
    return [(it.first.record.action, it.outcome, len(it.entries)) for it in found]


def test_a_change_is_shown_once_where_it_began_with_its_outcome():
    assert shown(
        [
            record(outcome="asked", id="1"),
            record("traffic", outcome="asked", id="2"),
            record("server_stopped"),
            record("traffic", outcome="failed", id="2"),
            record(outcome="done", id="1"),
        ]
    ) == [("model_load", "done", 2), ("traffic", "failed", 2), ("server_stopped", "done", 1)]


def test_a_change_without_an_outcome_stays_asked_and_an_outcome_alone_stands_for_itself():
    assert shown([record(outcome="done", id="0"), record("traffic", outcome="asked", id="1")]) == [
        ("model_load", "done", 1),
        ("traffic", "asked", 1),
    ]


def test_a_record_that_was_written_twice_is_shown_once():
    twice = record(outcome="asked", id="1")
    assert shown([twice, twice, record(outcome="done", id="1")]) == [("model_load", "done", 2)]


def test_a_change_without_an_outcome_does_not_hold_everything_back():
    def flow():
        yield entries(record(outcome="asked", id="1"))[0]
        one = entries(record("x"))[0]
        for _ in range(MOST_OPEN):
            yield one
        raise AssertionError("nothing was shown")

    assert next(told(flow())).outcome == "asked"


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (Wanted(), 1),
        (Wanted(identities=["c*"], actions=["model_*"], models=["res?et"], addresses=["192.*"]), 1),
        (Wanted(identities=["ops", "ci"]), 1),
        (Wanted(identities=["ops"]), 0),
        (Wanted(actions=["traffic"]), 0),
        (Wanted(models=["Resnet"]), 0),
        (Wanted(addresses=["10.*"]), 0),
        (Wanted(outcomes=["asked"]), 0),
        (Wanted(outcomes=["done", "failed"]), 1),
        (Wanted(since=99.0, until=101.0), 1),
        (Wanted(since=100.5), 0),
        (Wanted(until=99.5), 0),
    ],
)
def test_an_action_is_wanted_where_all_that_is_asked_fits(wanted, count):
    asked = record(
        outcome="asked", id="1", identity="ci", model="resnet", address="192.0.2.7", via="http", time=100.0
    )
    found = told(entries(asked, replace(asked, outcome="done", time=200.0)))
    assert len([*filter(wanted.wants, found)]) == count


def followed(found):
    chain = Chain()
    for entry in found:
        chain.add(entry, f"line {entry.number}")
    return chain


LINES = entries(*(record(model=str(number)) for number in range(6)))


def test_a_whole_chain_has_no_breaks_wherever_it_begins():
    chain = followed(LINES[2:])
    assert (chain.breaks, chain.first, chain.number, chain.records) == ([], 3, 6, 4)
    assert chain.digest == followed(LINES).digest
    assert followed([]).records == 0


def test_lines_that_are_missing_changed_or_put_in_show():
    assert followed(LINES[:2] + LINES[4:]).breaks == ["line 5: 2 records are missing before number 5"]
    other = entries(record(model="other"), end=End(2, LINES[1].former))[0]
    changed = followed([*LINES[:2], other, *LINES[3:]])
    assert changed.breaks == [
        "line 3: the record before number 3 was changed",
        "line 4: the record before number 4 was changed",
    ]
    assert followed([*LINES[:3], LINES[2], *LINES[3:]]).breaks == [
        "line 3: number 3 follows number 3: records were added or exchanged"
    ]
