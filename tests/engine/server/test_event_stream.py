"""The stream of events of a real server: a death as it happens, clients that come back, and the end."""

import http.client
import json
import subprocess
import sys
import threading

import pytest

from tests.support.flavours import process
from tests.support.operators import ROOT, clean_environ, serving, write_model
from tests.support.tiers import mostly_long

pytestmark = [pytest.mark.slow, pytest.mark.system]

KILLER = """
import os, signal
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        if any(request.inputs()[0].as_numpy()[0] == 666 for request in requests):
            os.kill(os.getpid(), signal.SIGSEGV)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy() * 2)])
            for request in requests
        ]
"""
PATH = "/v2/tritium/events"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    write_model(folder / "models", "killer", code=KILLER)
    write_model(folder / "models", "double")
    flags = (f"--model-repository={folder / 'models'}", "--log-format=json", "--events-followers=3")
    with serving(folder, *flags) as server:
        server.wait_ready()
        yield server


class Stream:
    """One connection that follows; its events are read one by one, up to a time limit of the socket."""

    def __init__(self, address, path=PATH, headers=()):
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self._connection.request("GET", path, headers=dict(headers))
        self.answer = self._connection.getresponse()
        self.last = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._connection.close()
        self.answer.close()

    def blocks(self):
        """Yield (event, record), ("", None) for a block that only has an id, until the stream ends."""
        event, record = "", None
        while line := self.answer.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "id":
                self.last = value
            elif name == "event":
                event = value
            elif name == "data":
                record = json.loads(value)
            elif not name:
                yield event, record
                event, record = "", None

    def until(self, wanted):
        """Return the records up to the first event of that name."""
        records = []
        for event, record in self.blocks():
            if record is not None:
                records.append(record)
            if event == wanted:
                return records
        raise AssertionError(f"no {wanted} in {records}")


def infer(server, value, model="killer"):
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [value]}]}
    connection = http.client.HTTPConnection(server.address(), timeout=60)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body))
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def logged(server):
    """The log's lines without what the stream leaves out: the time to the microsecond, and places in code."""
    for line in server.out.splitlines():
        record = json.loads(line)
        yield {key: value for key, value in record.items() if key not in {"timestamp", "filename", "lineno"}}


def untimed(record):
    return {key: value for key, value in record.items() if key != "timestamp"}


def test_a_death_is_seen_as_it_happens_with_the_records_of_the_log(server):
    with Stream(server.address(), f"{PATH}?model=killer") as stream:
        blocks = stream.blocks()
        assert next(blocks) == ("", None)  # it follows now
        assert infer(server, 666) >= 400
        seen = stream.until("worker_ready")
    names = [each["event"] for each in seen]
    assert names[0] == "worker_exited"
    assert {"child_exited", "child_restarted", "worker_started", "worker_ready"} <= set(names)
    server.wait_said(rf'"pid": {seen[-1]["pid"]}, "seconds"')
    lines = list(logged(server))
    assert all(untimed(each) in lines for each in seen)
    assert infer(server, 1) == 200


def test_a_request_that_kills_twice_is_quarantined_and_that_is_told(server):
    with Stream(server.address(), f"{PATH}?model=killer&event=request_quarantined") as stream:
        blocks = stream.blocks()
        assert next(blocks) == ("", None)
        assert [infer(server, 666) for _ in range(2)] == [422, 422]  # it has killed one before
        (told,) = stream.until("request_quarantined")
    assert (told["level"], told["model"], told["reason"]) == ("warning", "killer", "signal_11")
    assert told["seconds"] == 600


def test_a_client_that_comes_back_by_id_gets_each_event_once(server):
    with Stream(server.address(), f"{PATH}?after=0&event=worker_ready") as stream:
        first = stream.until("worker_ready")
        last = stream.last
    with Stream(server.address(), f"{PATH}?follow=false", {"Last-Event-ID": last}) as stream:
        rest = [record for _, record in stream.blocks() if record is not None]
    with Stream(server.address(), f"{PATH}?follow=false") as stream:
        whole = [record for _, record in stream.blocks() if record is not None]
    assert whole[whole.index(first[-1]) + 1 :][: len(rest)] == rest
    assert rest


def test_followers_are_bounded_and_those_that_left_are_not_among_them(server):
    streams = [Stream(server.address()) for _ in range(3)]
    try:
        status, _, body = server.get(PATH)
        assert status == 503
        assert "3 clients follow the events of this server" in json.loads(body)["error"]
        assert b"\ntritium_event_followers 3\n" in server.get("/metrics", service="Metrics Service")[2]
    finally:
        for each in streams:
            each.__exit__()
    while server.get(f"{PATH}?follow=false")[0] == 503:
        threading.Event().wait(0.02)


def test_events_are_counted_in_metrics(server):
    status, _, body = server.get("/metrics", service="Metrics Service")
    counts = {
        line.split('"')[1]: int(line.split()[1])
        for line in body.decode().splitlines()
        if line.startswith("tritium_events_total{")
    }
    with Stream(server.address(), f"{PATH}?follow=false") as stream:
        told = [record["event"] for _, record in stream.blocks() if record is not None]
    assert status == 200
    assert counts["worker_ready"] == told.count("worker_ready") >= 2
    assert counts["traffic_rolled_back"] == 0


def command(address, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "engine", "events", "--url", f"http://{address}", *words],
        cwd=ROOT,
        env=clean_environ(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_the_command_follows_over_a_restart_and_says_that_ids_began_anew(tmp_path):
    write_model(tmp_path / "models")
    flags = (f"--model-repository={tmp_path / 'models'}", "--exit-timeout-secs=30")
    with serving(tmp_path / "first", *flags) as first:
        first.wait_ready()
        address = first.address()
        following = command(address, "--follow", "--json", "--after", "0")
        try:
            seen = [json.loads(line) for line in _until(following, "server_ready")]
            assert all(each["id"].endswith(f"-{number}") for number, each in enumerate(seen, 1))
            first.signal()
            assert first.wait() == 0  # a stream does not hold it up
            drained = [json.loads(line) for line in _until(following, "server_draining")]
            assert {each["event"] for each in drained[:-1]} <= {"readiness_changed"}  # it comes after `ready`
            with serving(tmp_path / "second", *flags, f"--http-port={address.rpartition(':')[2]}") as second:
                second.wait_ready()
                anew = [json.loads(line) for line in _until(following, "server_ready")]
                events = [each["event"] for each in anew]
                gap = anew[events.index("events_missed")]
                assert (gap["missed"], "started anew" in gap["reason"]) == (None, True)
                assert events.count("server_ready") == 1
        finally:
            following.terminate()
            _, told = following.communicate(timeout=60)
    assert "coming back after event" in told


def _until(following, event):
    for line in following.stdout:
        yield line
        if f'"event": "{event}"' in line:
            return
    raise AssertionError(f"no {event}: {following.stderr.read()}")


@pytest.mark.parametrize("worker", mostly_long(["trio", "asyncio"], "asyncio"))
def test_under_hypercorn_events_are_streamed_too(tmp_path, worker):
    write_model(tmp_path / "models")
    flavour = process(
        *("hypercorn", "-k", worker, "-b", "127.0.0.1:0", "--graceful-timeout", "1", "engine.asgi"),
        http=r"Running on http://(\S+)",
    )
    with flavour(tmp_path / "models") as addresses:
        with Stream(addresses.http, f"{PATH}?after=0") as stream:
            assert stream.answer.getheader("content-type") == "text/event-stream; charset=utf-8"
            assert stream.until("model_ready")[-1]["model"] == "double"
        with Stream(addresses.http, f"{PATH}?follow=false&event=model_ready") as stream:
            assert [event for event, record in stream.blocks() if record] == ["model_ready"]


def test_a_change_of_the_logs_settings_is_told_and_makes_the_stream_more_verbose(server):
    def change(**settings):
        connection = http.client.HTTPConnection(server.address(), timeout=60)
        try:
            connection.request("POST", "/v2/logging", json.dumps(settings))
            return connection.getresponse().status
        finally:
            connection.close()

    with Stream(server.address(), f"{PATH}?event=log_settings_changed&event=child_started") as stream:
        assert next(stream.blocks()) == ("", None)
        assert change(log_verbose_level=2) == 200
        try:
            (told,) = stream.until("log_settings_changed")
            assert told["verbose_level"] == "0 to 2"
            assert infer(server, 1, "double") == 200  # its connection is a child that starts
            (started,) = stream.until("child_started")
            assert (started["level"], "verbose" in started) == ("debug", False)
        finally:
            assert change(log_verbose_level=0) == 200
