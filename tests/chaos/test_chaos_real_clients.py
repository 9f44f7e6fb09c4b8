"""Real gRPC clients: their verdicts on answers, and a short run of each fault that is built on them."""

from pathlib import Path

import grpc
import pytest

from chaos.clients.clients import open_clients
from chaos.clients.long_streams import Client
from chaos.faults import control, repository
from chaos.faults.network import streams
from chaos.faults.targets import Instance, at_work
from chaos.faults.workers import hangs
from chaos.flags import EXCLUSIONS, clashing
from chaos.record.history import History
from chaos.record.outcome import now
from chaos.record.records import Executed, Fail, Invoke, Ok, line_of, read_records
from chaos.subject.server import KUBERNETES
from engine.settings.scanning import settings_among
from tests.chaos.client_doubles import grpc_answer, grpc_double
from tests.chaos.faults_bench import bench

# -- what a client is owed


@pytest.mark.parametrize(
    ("values", "answers", "trouble"),
    [((10, 11, 12), 6, ""), ((11, 10, 12), 0, "was due"), ((10, 11), 0, "was due"), (None, 0, "INTERNAL")],
)
def test_a_client_goes_on_until_it_has_had_enough_or_an_answer_is_not_right(values, answers, trouble):
    def ask(invoke):
        if values is None:
            return Fail(t=0.0, n=invoke.n, code="INTERNAL", message="oh")
        return Ok(t=0.0, n=invoke.n, values=tuple(each - 10 + invoke.value for each in values), first=0.0)

    client = Client("test", "stream", 3, 0.0, 4)
    client.ask_all(ask, 0.0)
    assert client.answers == answers
    assert bool(trouble) == len(client.troubles)
    assert trouble in "".join(client.troubles)


def test_a_client_that_has_had_few_answers_has_shown_nothing():
    reports = [
        {"name": "echo", "answers": streams.LEAST - 1, "troubles": []},
        {"name": "stream", "answers": streams.LEAST, "troubles": ["it broke"]},
        {"name": "unary", "answers": 1, "troubles": []},
    ]
    assert streams.troubles_in(reports) == [
        "stream: it broke",
        f"echo: only {streams.LEAST - 1} answers came",
    ]


async def test_a_client_that_lasts_asks_over_one_stream_until_something_ends_it(tmp_path: Path) -> None:
    calls = []

    def stream(request, context):
        calls.append(context)
        if len(calls) == 3:
            context.abort(grpc.StatusCode.UNAVAILABLE, "a worker died")
        yield grpc_answer(request, final=True)

    path = tmp_path / "history.jsonl"
    with grpc_double(stream=stream) as port, History(path) as history:
        async with open_clients(history, 1, port) as clients:
            begin = now()
            await clients.last(begin=begin, until=begin + 0.65)
    assert [context is calls[0] for context in calls[:4]] == [True, True, True, False]
    assert all(context is calls[3] for context in calls[4:])
    assert [each.code for each in read_records(path, Fail)] == ["UNAVAILABLE"]
    asked_for = list(read_records(path, Invoke))
    assert {(each.model, each.protocol, each.due) for each in asked_for} == {("echo", "grpc", None)}


# -- the record of hangs


def test_a_worker_is_at_work_when_the_last_that_it_wrote_is_a_beginning(tmp_path):
    (tmp_path / "journal").mkdir()
    worker = Instance(model="echo", path="models/echo/1/instances/0", pid=7)
    assert not at_work(tmp_path, worker)
    path = tmp_path / "journal" / "echo-7.jsonl"
    for place, end in enumerate((False, True) * 40):
        with path.open("a") as file:
            file.write(
                line_of(Executed(t=0.0, id=f"r{place}", model="echo", pid=7, batch=place, end=end)) + "\n"
            )
        assert at_work(tmp_path, worker) is not end


def test_faults_with_models_of_their_own_meet_nothing_that_takes_these():
    assert "models_supervisor_crash" in clashing("hang_without_limit", ["models_supervisor_crash"])
    assert "http_connection_crash" in clashing("real_grpc_streams", ["http_connection_crash"])
    assert any({"real_grpc_streams", "server_stopped"} == each for each in EXCLUSIONS)


# -- what every server finds around it


def test_the_variables_of_kubernetes_are_no_settings():
    assert KUBERNETES["TRITIUM_PORT"] == "tcp://10.0.0.1:8000"
    assert KUBERNETES["TRITIUM_METRICS_PORT"] == "tcp://10.0.0.2:8002"
    assert settings_among(KUBERNETES) == {}


# -- against a real server


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "flags"),
    [
        pytest.param(fault, flags, id=f"{fault.name}-{mode}", marks=marks)
        for fault in (*streams.FAULTS, *hangs.FAULTS)
        for mode, flags, marks in (
            ("poll", repository.POLLED, pytest.mark.long),
            ("explicit", control.EXPLICIT, pytest.mark.long),
        )
    ],
)
async def test_what_real_clients_and_endless_hangs_do_is_felt_by_nobody_else(tmp_path, fault, flags):
    async with bench(tmp_path, *flags, rate=10) as made:
        assert await made.trouble(fault) == ""
        await made.until_logged(made.injections[-1])
    assert made.failed() == []
    assert not list((tmp_path / "models").glob("*-*"))


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("broken_reload", control.EXPLICIT),
        pytest.param("corrupted_model", repository.POLLED, marks=pytest.mark.long),
        pytest.param("corrupted_config", repository.POLLED, marks=pytest.mark.long),
    ],
)
async def test_a_reload_that_fails_is_told_until_it_is_mended(tmp_path, name, flags):
    (fault,) = (each for each in (*control.FAULTS, *repository.FAULTS) if each.name == name)
    async with bench(tmp_path, *flags, rate=10) as made:
        assert await made.trouble(fault) == ""
        await made.until_logged(made.injections[-1])
    assert made.failed() == []
