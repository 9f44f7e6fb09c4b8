"""The benchmark of deaths: pauses are those of the streams that were hit, and a wrong text is never whole."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from benchmarks.llm_deaths import __main__ as command
from benchmarks.llm_deaths import picture
from benchmarks.llm_deaths.findings import Found, Kill, Right, Stream, goals, sure_of, table
from benchmarks.subjects import CHECKOUT

TEXT = "The lamp was lit."
RIGHTS = {0: Right(TEXT, 17, len(TEXT)), 1: Right(TEXT, 17, 8)}


def stream(*times, begin=0.0, attempts=1, text=TEXT, prompt=0, tokens=17, **more):
    """Return a stream that got a letter at each time, and the rest at the last."""
    pieces = [*text[: len(times) - 1], text[len(times) - 1 :]]
    made = Stream(prompt, begin, list(zip(times, pieces, strict=True)), attempts, tokens, "stop")
    for name, value in more.items():
        setattr(made, name, value)
    return made


KILLED = (Kill(2.0, "a", 1, 9.0),)


def found(*streams, kills=KILLED):
    return Found([*streams], [*kills], RIGHTS)


def test_a_pause_is_around_the_death_of_the_stream_s_own_engine():
    beside = stream(1.0, 1.5, 2.5, 3.0)
    hit = stream(1.0, 1.9, 2.6, 5.0, attempts=2)
    some = found(beside, hit)
    assert some.pauses(stood=True) == [pytest.approx(0.7)]
    assert some.pauses(stood=False) == []
    assert some.hit(beside, some.kills[0]) is None
    assert some.hit(hit, some.kills[0]).begin == 1.9


def test_events_that_are_still_on_their_way_come_before_the_pause():
    hit = stream(1.0, 2.1, 2.2, 4.2, 4.3, attempts=2)
    assert found(hit).pauses(stood=True) == [pytest.approx(2.0)]


def test_a_wait_for_the_first_event_is_no_pause():
    begun_again = stream(4.0, 5.0, begin=1.0, attempts=2)
    whole = stream(4.0, begin=1.0, attempts=2, streamed=False)
    nothing = Stream(0, 1.0, attempts=2)
    assert found(begun_again, whole, nothing).pauses(stood=True) == []


def test_a_pause_across_several_deaths_had_no_engine_if_one_of_them_left_none():
    kills = Kill(2.0, "a", 1), Kill(2.5, "b", 0)
    hit = stream(1.0, 1.9, 4.0, attempts=3)
    assert found(hit, kills=kills).pauses(stood=False) == [pytest.approx(2.1)]


def test_first_events_are_those_of_streams_without_a_death():
    told = found(
        stream(0.5, 1.0), stream(4.0, 5.0, begin=1.0), stream(0.9, streamed=False), stream(0.9, attempts=2)
    )
    assert told.firsts == [0.5]
    assert found(kills=(Kill(1.0, "a", ready=3.5), Kill(9.0, "a"))).starts == [2.5]


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        (stream(1.0), False),
        (stream(1.0, tokens=18), True),
        (stream(1.0, text="The lamp was"), True),
        (stream(1.0, text="The lamp was", finish=""), False),
        (stream(1.0, text="The lamp waS", finish=""), True),
        (stream(1.0, text="The lamp was", finish="", error="unavailable: it died"), False),
        (stream(1.0, text="The lamp is lit", prompt=1), False),
        (stream(1.0, text="The Lamp was lit", prompt=1), True),
    ],
)
def test_what_is_wrong(made, wrong):
    assert bool(found(made).wrong) is wrong


def test_errors_are_counted_and_those_of_the_rule_apart():
    some = found(
        *(
            Stream(0, 0.0, error=why)
            for why in (
                "poisoned: twice",
                "a is not tried once more",
                "gone (tritium.resume_within)",
                "x",
                "x",
            )
        )
    )
    assert some.errors.total() == 5
    assert some.errors["x"] == 2
    assert some.beyond_the_rule == 2
    assert len(some.ended) == 5
    labels = dict(table(some, 60.0))
    assert labels["ended with an error"] == "5, 2 but by the rule"


def test_what_is_sure_ends_before_the_first_near_choice():
    sure, near = [-0.1, -2.0], [-0.7, -0.705]
    assert sure_of([("The", sure), (" la", sure), ("mp", near), ("s", sure)]) == 6
    assert sure_of([("a", [-0.1])]) == 1


def test_a_pause_may_take_a_start_or_a_second_and_a_prefill():
    kills = Kill(2.0, "a", 1, 7.0), Kill(12.0, "b", 0, 16.0)
    some = found(
        stream(0.5, 1.0),
        stream(1.0, 1.9, 2.6, 3.0, attempts=2),
        stream(11.0, 11.9, 17.0, attempts=2, begin=10.5),
        kills=kills,
    )
    prefill = 0.5
    assert [*goals(some)] == [
        ("no other stood", pytest.approx(5.1), 4.0 + prefill),
        ("another stood", pytest.approx(0.7), 1.0 + prefill),
    ]
    assert [*goals(found())] == []


def test_a_record_is_read_as_it_was_written_and_its_verdict_is_the_exit_status(tmp_path, capsys):
    record = tmp_path / "record.json"
    for each, status in ((stream(1.0, 1.5, 3.0, attempts=2), 0), (stream(1.0, text="no"), 1)):
        some = found(each)
        record.write_text(command._written(some))
        assert command._read(record.read_text()) == some
        assert command.main([f"--of={record}"]) == status
    assert "wrong, of prompt 0: 17 tokens for 17, 'no'" in capsys.readouterr().out
    assert json.loads(record.read_text())["kills"] == [{"at": 2.0, "engine": "a", "others": 1, "ready": 9.0}]


@pytest.mark.parametrize(
    "words", [["--engine=vllm"], ["--engine=transformers", "--model=nowhere"], ["--signal=HELLO"]]
)
def test_the_command_line_says_what_is_missing(words, capsys):
    with pytest.raises(SystemExit):
        command.main(words)
    assert "error: --" in capsys.readouterr().err


def test_the_picture_has_ticks_and_texts_of_the_streams_that_were_hit():
    before, behind = [1.5, 1.6, 1.7, 1.8, 1.9], [2.4, 2.5, 2.6, 2.7, 2.8]
    hit = stream(*before, *behind, begin=1.0, attempts=2)
    beside = stream(1.2, *before, 2.05, *behind)
    drawn = picture.drawn(found(hit, beside))
    root = ET.fromstring(drawn)
    words = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"killed", "0.50 s", "…The l", "amp was lit.…", "stream 2"} <= {*words}
    ticks = [
        each.attrib["d"].count("v16")
        for each in root.iter("{http://www.w3.org/2000/svg}path")
        if "v16" in each.attrib["d"]
    ]
    assert sorted(ticks) == [5, 5, 12]


def test_there_is_no_picture_without_another_engine():
    with pytest.raises(picture.NothingToDraw):
        picture.drawn(found(stream(1.0, 1.5, 3.0, attempts=2), kills=(Kill(2.0, "a", 0, 9.0),)))
    with pytest.raises(picture.NothingToDraw):
        picture.drawn(found())


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
def test_a_run_with_two_engines_that_are_killed(tmp_path):
    record = tmp_path / "record.json"
    words = ["--instances=2", "--streams=4", "--whole=1", "--seconds=2.5", "--every=1", "--tokens=60"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.llm_deaths", *words, "--pace=0.01", f"--record={record}"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(record.read_text())
    assert len(told["kills"]) == 2
    assert any(each["attempts"] > 1 for each in told["streams"])
    assert "0, 0 but by the rule" in done.stdout
