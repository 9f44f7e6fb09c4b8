"""Events to the log and to the stream: the same records, within bounds."""

import json

import pytest

from actors.supervision.events import ChildExited, Context
from actors.supervision.restart import Crashed
from actors.supervision.spec import ChildSpec
from actors.values.events import LOGGED_ONLY, Event
from engine.observability.events import supervision_observer
from engine.observability.reading.formats import parse
from engine.observability.streaming import StreamedLog

NOON = 1_800_000_000_123


class Taken:
    def __init__(self):
        self.told = []
        self.logged = []

    def tell(self, told):
        self.told.append(told)

    def log(self, event, *, level="info", **keys):
        self.logged.append((event, level, keys))

    @property
    def records(self):
        return [json.loads(each.text) for each in self.told]


@pytest.fixture
def taken():
    return Taken()


@pytest.fixture
def log(taken):
    return StreamedLog(taken.log, taken, wall_ms=lambda: NOON, verbose=lambda: 1)


def test_an_event_is_logged_and_streamed_with_the_same_keys(taken, log):
    log(Event.MODEL_READY, model="m", version=1)
    assert taken.logged == [(Event.MODEL_READY, "info", {"model": "m", "version": 1})]
    assert taken.records == [
        {
            "timestamp": "2027-01-15T08:00:00.123000Z",
            "level": "info",
            "event": "model_ready",
            "model": "m",
            "version": 1,
        }
    ]
    (told,) = taken.told
    assert (told.event, told.level, told.model) == ("model_ready", "info", "m")


def test_the_reader_of_logs_reads_a_record(taken, log):
    log(Event.WORKER_EXITED, level="warning", actor="models/a/1/instances/0", odd=object)
    line = parse(taken.told[0].text)
    assert line is not None
    assert (line.time, line.level, line.event) == (NOON / 1000, "warning", "worker_exited")
    assert line.keys == {"actor": "models/a/1/instances/0", "odd": "<class 'object'>"}


@pytest.mark.parametrize(
    ("keys", "model"),
    [
        ({"model": "m", "actor": "models/other/1"}, "m"),
        ({"actor": "models/resnet/1/instances/0"}, "resnet"),
        ({"actor": "models/resnet/3@2/scheduler"}, "resnet"),
        ({"actor": "frontends/http"}, ""),
        ({"model": None}, ""),
        ({}, ""),
    ],
)
def test_an_event_is_of_a_model_by_its_key_or_its_actors_place(taken, log, keys, model):
    log(Event.CHILD_RESTARTED, **keys)
    assert taken.told[0].model == model


@pytest.mark.parametrize("event", sorted(LOGGED_ONLY))
def test_what_single_requests_and_connections_cause_is_the_logs_alone(taken, log, event):
    log(event)
    assert (len(taken.logged), taken.told) == (1, [])


@pytest.mark.parametrize(
    ("verbose", "streamed"), [({}, True), ({"verbose": 1}, True), ({"verbose": 2}, False)]
)
def test_debug_events_are_streamed_as_deep_as_the_log_goes(taken, log, verbose, streamed):
    log(Event.CHILD_STARTED, level="debug", **verbose, actor="a")
    assert [each.get("actor") for each in taken.records] == ["a"] * streamed
    assert all("verbose" not in each for each in taken.records)


def test_a_crash_has_its_traceback(taken, log):
    try:
        raise ValueError("on cue")
    except ValueError as error:
        crash = Crashed(error)
    spec = ChildSpec("instance", lambda _: None)  # type: ignore[arg-type, return-value]
    observe = supervision_observer(log)
    observe(ChildExited("models", "models/add/1", spec, crash, Context.CHILD_TERMINATED))
    (record,) = taken.records
    assert (record["event"], record["level"], record["actor"]) == ("child_exited", "error", "models/add/1")
    assert record["exception"].endswith("ValueError: on cue")
    assert "exc_info" not in record


def test_a_record_that_is_too_long_is_cut_and_says_so(taken, log):
    log(Event.MODEL_LOAD_FAILED, level="error", model="m", reason="é" * 100_000, parts=["x" * 50] * 9999)
    (record,) = taken.records
    assert len(taken.told[0].text) <= 32 * 1024
    assert record["cut"] is True
    assert (record["model"], record["reason"].endswith("é…")) == ("m", True)


def test_a_record_of_too_many_keys_keeps_its_head(taken, log):
    log(Event.SERVER_CONFIGURED, **{f"key_{number}": "x" * 100 for number in range(1000)})
    (record,) = taken.records
    assert record == {
        "timestamp": "2027-01-15T08:00:00.123000Z",
        "level": "info",
        "event": "server_configured",
        "cut": True,
    }
