"""The order in which subjects are loaded, and the fate of those that cannot be."""

from itertools import count

import pytest

from benchmarks.clients import ClientFailed
from benchmarks.payloads import WrongAnswer
from benchmarks.results import Load
from benchmarks.runner import Plan, Runner, verify
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.subjects import Subject
from tests.support.logged import Silent

SCENARIO = next(each for each in SCENARIOS if each.name == "onnx-binary")
ONE_CELL = Scenario(
    **{name: getattr(SCENARIO, name) for name in Scenario.__slots__} | {"concurrencies": (4,)}
)


class Fake(Subject):
    """Answers in process; `wrong` makes it answer with its inputs."""

    wrong = False

    def infer(self, model, request):
        assert SCENARIO.inputs is not None
        assert SCENARIO.expected is not None
        inputs = SCENARIO.inputs()
        return (inputs if self.wrong else SCENARIO.expected(inputs)), 304


class Wrong(Fake):
    wrong = True


def _subject(kind, label, port):
    return kind(label=label, host="127.0.0.1", port=port)


class FakeClient:
    """Remembers the ports it loaded and for how long; each run is 100 requests a second faster."""

    def __init__(self, broken=()):
        self.runs = []
        self._broken = broken
        self._rates = count(100, 100)

    def __call__(self, url, request, *, concurrency, seconds):
        port = int(url.split(":")[2].split("/")[0])
        self.runs.append((port, seconds))
        if port in self._broken:
            raise ClientFailed("connection refused")
        return Load(
            requests=10, seconds=seconds, rate=next(self._rates), p50=1e-3, p99=2e-3, errors=0, refused=0
        )


def _run(servers, *, client=None, yardstick=None, rounds=2):
    client = client or FakeClient()
    plan = Plan(scenarios=[ONE_CELL], clients=["fake"], seconds=2.0, rounds=rounds)
    return Runner(plan, servers, yardstick, Silent(), {"fake": client}).run(), client


def test_servers_take_turns_and_the_warm_up_does_not_count():
    found, client = _run([_subject(Fake, "a", 1), _subject(Fake, "b", 2)])
    assert client.runs == [(1, 0.5), (2, 0.5), (1, 2.0), (2, 2.0), (1, 2.0), (2, 2.0)]
    assert [(each.subject, each.rate) for each in found.cells] == [("a", 400.0), ("b", 500.0)]


def test_the_yardstick_goes_first_and_answers_as_many_bytes_as_the_server():
    yardstick = Subject(label="yardstick", host="127.0.0.1", port=9, is_yardstick=True)
    found, client = _run([_subject(Fake, "a", 1)], yardstick=yardstick, rounds=1)
    assert [port for port, _ in client.runs] == [9, 1, 9, 1]
    assert [each.subject for each in found.cells] == ["yardstick", "a"]
    assert yardstick.url("any", 304).endswith("/304")


def test_a_server_with_a_wrong_answer_is_not_loaded():
    found, client = _run([_subject(Wrong, "a", 1), _subject(Fake, "b", 2)])
    assert {port for port, _ in client.runs} == {2}
    (skipped,) = found.skipped
    assert (skipped.subject, "INPUT0" in skipped.reason) == ("a", True)


def test_a_server_that_the_client_can_not_load_is_left_out_and_the_others_go_on():
    found, _ = _run([_subject(Fake, "a", 1), _subject(Fake, "b", 2)], client=FakeClient(broken=[1]))
    assert [each.subject for each in found.cells] == ["b"]
    assert [(each.subject, each.reason) for each in found.skipped] == [("a", "connection refused")]


def test_no_answer_at_all_is_a_wrong_answer():
    unreachable = Subject(label="a", host="127.0.0.1", port=1)
    with pytest.raises(WrongAnswer, match="onnx_add_sub"):
        verify(SCENARIO, unreachable)
