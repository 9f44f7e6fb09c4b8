"""What a request for events says, and how portions stand on the wire."""

import json

import pytest

from actors.values.errors import InvalidArgument
from actors.values.events import Portion, ToldEvent, WantedEvents
from protocols.http.events.asking import Question, asked_for, beginning, in_text

WANTED = WantedEvents(models=(), events=())


def told(event="model_ready", **keys):
    text = json.dumps({"level": "info", "event": event, **keys}).encode()
    return ToldEvent(event=event, level="info", text=text)


def asked(query=b"", headers=()):
    found = asked_for(query, headers)
    return found.after, found.live


def test_nothing_said_means_everything_from_now_on():
    assert asked_for(b"", ()) == Question(wanted=WANTED, after=None, live=True)


def test_the_query_says_which_events():
    query = b"model=a&model=b%2Fc&event=worker_*&level=warning&after=3f2a9c1d-4&follow=false"
    assert asked_for(query, ()) == Question(
        wanted=WantedEvents(models=["a", "b/c"], events=["worker_*"], level="warning"),
        after="3f2a9c1d-4",
        live=False,
    )


@pytest.mark.parametrize(
    ("query", "header", "after", "live"),
    [
        (b"after=", b"", "", True),
        (b"after=0", b"", "0", True),
        (b"after=x-1", b"x-2", "x-2", True),  # a browser keeps the URL that it began with
        (b"", b"x-2", "x-2", True),
        (b"follow=false", b"", "", False),  # otherwise there would be nothing to tell
        (b"follow=0", b"x-2", "x-2", False),
        (b"follow=1", b"", None, True),
    ],
)
def test_where_a_client_goes_on(query, header, after, live):
    assert asked(query, [(b"last-event-id", header)] if header else []) == (after, live)


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        (b"models=a", "unknown field 'models' in the query: there are model, event, level, after, follow"),
        (b"level=loud", "Invalid value 'loud' for 'level': expected one of debug, info, warning, error"),
        (b"follow=maybe", "Invalid value 'maybe' for 'follow': expected true or false"),
        (b"model=" + b"a" * 257, "the value of 'model' has 257 characters, more than 256"),
        (b"&".join([b"model=a"] * 9), "'model' is given more than 8 times"),
        (b"after=1&after=2", "'after' is given twice"),
        (b"&".join([b"model=a"] * 40), "the query has more than 32 fields"),
    ],
)
def test_what_means_nothing_is_refused_with_what_would(query, complaint):
    with pytest.raises(InvalidArgument) as caught:
        asked_for(query, ())
    assert complaint in caught.value.message


def parsed(text):
    """Read server-sent events as the standard says: (id, event, data), and the id at the end."""
    found: list[tuple[str, str, object]] = []
    data: list[str] = []
    last, event = "", "message"
    for line in text.decode().split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                found.append((last, event, json.loads("\n".join(data))))
            event, data = "message", []
        elif name == "id":
            last = value
        elif name == "event":
            event = value
        elif name == "data":
            data.append(value)
    return found, last


def test_a_portion_is_events_with_their_ids():
    portion = Portion(events=[("b-1", told(a=1)), ("b-2", told("worker_exited", b="x\ny"))], upto="b-2")
    assert parsed(in_text(portion)) == (
        [
            ("b-1", "model_ready", {"level": "info", "event": "model_ready", "a": 1}),
            ("b-2", "worker_exited", {"level": "info", "event": "worker_exited", "b": "x\ny"}),
        ],
        "b-2",
    )


@pytest.mark.parametrize("events", [[], [("b-1", told())]])
def test_a_client_gets_past_what_it_did_not_want(events):
    found, last = parsed(in_text(Portion(events=events, upto="b-7")))
    assert (len(found), last) == (len(events), "b-7")


@pytest.mark.parametrize(("missed", "why"), [(3, "no longer kept"), (None, "started anew")])
def test_a_gap_is_told_by_an_event(missed, why):
    portion = Portion(events=[("b-5", told())], upto="b-5", gap=True, missed=missed)
    (gap, event), last = parsed(in_text(portion))
    assert (gap[:2], gap[2]["missed"], gap[2]["before"]) == (("", "events_missed"), missed, "b-5")
    assert why in gap[2]["reason"]
    assert (event[0], last) == ("b-5", "b-5")


def test_a_gap_with_nothing_behind_it_leads_past_it():
    (gap,), last = parsed(in_text(Portion(upto="b-9", gap=True, missed=None)))
    assert (gap[2]["before"], last) == ("b-9", "b-9")


def test_a_client_is_told_first_how_soon_to_come_back():
    assert beginning() == b"retry: 1000\n"
