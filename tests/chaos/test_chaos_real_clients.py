"""Real gRPC clients as faults and behind a balancer: their verdicts on answers, and one short run of each."""

import random
from functools import partial

import grpc
import psutil
import pytest
import trio

from chaos import endings
from chaos.balancer import Load, judge
from chaos.clients.clients import open_clients
from chaos.clients.grpc_messages import encode
from chaos.clients.real_grpc import Ledger, Report, pinging
from chaos.faults import control, repository
from chaos.faults.base import now
from chaos.faults.network import streams
from chaos.faults.network.asking import Question
from chaos.faults.setbacks import metric_says
from chaos.faults.targets import Instance
from chaos.faults.workers import hangs
from chaos.faults.workers.journals import at_work
from chaos.flags import EXCLUSIONS, clashing
from chaos.record.history import History
from chaos.record.records import Executed, Fail, Invoke, Ok, Unknown, line_of, read_records
from chaos.subject.server import KUBERNETES, served
from chaos.wires.http import Reply
from chaos.workload.control import Control
from chaos.workload.repository import write_model, write_repository
from engine.settings.scanning import settings_among
from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.chaos.client_doubles import grpc_answer, grpc_double
from tests.chaos.faults_bench import bench
from tests.chaos.test_chaos_faults_instances import stage

# -- what a client is owed


def asked(number, parts=1):
    model = "stream" if parts > 1 else "echo"
    return Invoke(
        t=0.0,
        n=number,
        id=f"q{number}",
        model=model,
        protocol="grpc",
        phase="standard",
        value=10,
        parts=parts,
    )


def answer(invoke, value):
    """The response that carries one value, made of the request, whose input it repeats."""
    message = encode(invoke)
    response = pb.ModelInferResponse(id=invoke.id, model_name=invoke.model)
    response.outputs.add(name="ANSWER", datatype="INT32", shape=message.inputs[0].shape)
    response.raw_output_contents.append(value.to_bytes(4, "little"))
    return response


@pytest.fixture
def ledger():
    return Ledger(Report("test"))


def test_right_answers_in_their_order_are_all_that_is_owed(ledger):
    one, many = asked(1), asked(2, parts=3)
    ledger.ask(one)
    ledger.ask(many)
    for each in (answer(many, 10), answer(one, 10), answer(many, 11), answer(many, 12)):
        ledger.came(each)
    ledger.settle()
    assert ledger.report == Report("test", asked=2, answers=4)


def test_parts_that_change_places_are_wrong(ledger):
    many = asked(1, parts=3)
    ledger.ask(many)
    for value in (11, 10, 12):
        ledger.came(answer(many, value))
    assert ledger.report.wrong == 2
    assert "part 0 of q1 is [11], not [10]" in ledger.report.troubles[0]


def test_an_answer_that_comes_twice_is_wrong(ledger):
    one = asked(1)
    ledger.ask(one)
    ledger.came(answer(one, 10))
    ledger.came(answer(one, 10))
    assert (ledger.report.answers, ledger.report.wrong) == (1, 1)
    assert "owed none" in ledger.report.troubles[0]


def test_what_never_comes_or_comes_as_an_error_has_failed(ledger):
    lost, refused = asked(1), asked(2)
    ledger.ask(lost)
    ledger.ask(refused)
    ledger.came(pb.ModelInferResponse(id="q2"), "too many")
    ledger.settle()
    assert ledger.report.failed == 2
    assert ledger.report.troubles == [
        "q2 was answered with the error: too many",
        "q1 is without its answer, after 0 parts",
    ]


def test_who_waits_for_room_gets_it_when_an_answer_has_come(ledger):
    one = asked(1)
    ledger.ask(one)
    assert not ledger.wait_fewer(1, 0)
    ledger.came(answer(one, 10))
    assert ledger.wait_fewer(1, 0)


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


def test_pings_are_sent_in_milliseconds_and_on_a_connection_of_their_own():
    assert dict(pinging(0.25))["grpc.keepalive_time_ms"] == 250
    assert dict(pinging(0.25))["grpc.use_local_subchannel_pool"] == 1


async def test_a_client_that_lasts_asks_over_one_stream_until_something_ends_it(tmp_path):
    calls = []

    def stream(request, context):
        calls.append(id(context))
        if len(calls) == 3:
            context.abort(grpc.StatusCode.UNAVAILABLE, "a worker died")
        yield grpc_answer(request, final=True)

    path = tmp_path / "history.jsonl"
    with grpc_double(stream=stream) as port, History(path) as history:
        async with open_clients(history, 1, port) as clients:
            begin = now()
            with trio.move_on_after(20) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(partial(clients.last, begin=begin, until=begin + 60))
                    await wait_ended(path, 6)
                    nursery.cancel_scope.cancel()
    assert not scope.cancelled_caught
    assert len(set(calls[:3])) == len(set(calls[3:6])) == 1
    assert calls[2] != calls[3]
    (failed,) = read_records(path, Fail)
    assert failed.code == "UNAVAILABLE"
    asked_for = list(read_records(path, Invoke))
    assert {(each.model, each.protocol, each.due) for each in asked_for} == {("echo", "grpc", None)}


async def wait_ended(path, count):
    """Wait until the record shows `count` requests as ended."""
    while len(list(read_records(path, Ok, Fail, Unknown))) < count:  # noqa: ASYNC110 (a file)
        await trio.sleep(0.01)


# -- the record of reloads, hangs and the balancer


def test_the_metric_of_a_reload_tells_of_its_own_model_while_it_is_not_zero():
    text = 'tritium_model_reload_failed{model="a",version="1"} 1\ntritium_model_reload_failed{model="b",version="1"} 0\n'
    assert metric_says(text, "a").endswith(" 1")
    assert metric_says(text, "b") == metric_says(text, "c") == ""


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


@pytest.mark.parametrize(("status", "counts"), [(200, (0, 0, 1)), (503, (0, 1, 0))])
def test_behind_a_balancer_a_refusal_is_a_failure(status, counts):
    question = Question.draw("echo", random.Random(1))
    value = question.invoke.value
    said = f'{{"id": "{question.invoke.id}", "outputs": [{{"name": "ANSWER", "datatype": "INT32", "shape": [1, 1], "data": [{value}]}}]}}'
    report = Report("http")
    judge(report, question, Reply(status, {}, said.encode()))
    assert (report.wrong, report.failed, report.answers) == counts


def test_what_many_clients_have_seen_is_added_up():
    load = Load(stage().server)
    load.reports += [Report("a", asked=2, failed=1), Report("b", asked=3)]
    assert (load.total(lambda each: each.asked), load.total(lambda each: each.failed)) == (5, 1)


def test_faults_with_models_of_their_own_meet_nothing_that_takes_these():
    assert "models_supervisor_crash" in clashing("hang_without_limit", ["models_supervisor_crash"])
    assert "http_connection_crash" in clashing("real_grpc_streams", ["http_connection_crash"])
    assert any({"real_grpc_streams", "server_stopped"} == each for each in EXCLUSIONS)


# -- what every server finds around it


def test_the_variables_of_kubernetes_are_no_settings():
    assert KUBERNETES["TRITIUM_PORT"] == "tcp://10.0.0.1:8000"
    assert KUBERNETES["TRITIUM_METRICS_PORT"] == "tcp://10.0.0.2:8002"
    assert settings_among(KUBERNETES) == {}


@pytest.mark.system
@pytest.mark.slow
async def test_a_server_starts_among_the_variables_of_kubernetes_without_a_word_about_them(tmp_path):
    write_repository(tmp_path / "models", run=tmp_path, models=("echo",))
    async with served(tmp_path / "models", tmp_path / "server") as server:
        assert KUBERNETES.items() <= psutil.Process(server.pid).environ().items()
    assert "TRITIUM_SERVICE" not in server.out.read_text() + server.err.read_text()


# -- against a real server


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "flags"),
    [
        pytest.param(fault, flags, id=f"{fault.name}-{mode}", marks=marks)
        for fault in (*streams.FAULTS, *hangs.FAULTS)
        for mode, flags, marks in (
            ("poll", repository.POLLED, ()),
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


@pytest.mark.system
@pytest.mark.slow
async def test_no_request_behind_a_balancer_fails_while_the_server_drains(tmp_path):
    seen = await ended(tmp_path, endings.balanced_drain, f"--drain-delay-secs={endings.DRAIN_DELAY}")
    assert seen.trouble == ""
    assert {name: seen.figures[name] for name in ("failed", "wrong", "status", "children", "sockets")} == {
        "failed": 0,
        "wrong": 0,
        "status": 0,
        "children": 0,
        "sockets": 0,
    }
    assert seen.figures["asked"] > 0


@pytest.mark.system
@pytest.mark.slow
async def test_a_server_whose_model_hangs_ends_at_its_limit_and_tells_everybody(tmp_path):
    seen = await ended(tmp_path, endings.sigterm_hung, f"--exit-timeout-secs={endings.EXIT_TIMEOUT}")
    assert seen.trouble == ""
    assert (seen.figures["accepted"], seen.figures["untold"]) == (endings.WAITING, 0)


async def ended(folder, end, *flags):
    """Have a server ended in one of the ways; return what was seen."""
    write_repository(folder / "models", run=folder, models=("echo",))
    write_model(folder / "models", endings.ENDLESS, run=folder, timeout=None)
    seen = []
    async with served(folder / "models", folder / "server", *flags) as server:
        with History(folder / "history.jsonl") as history:
            async with open_clients(history, server.http_port, server.grpc_port) as clients:
                seen.append(await end(server, clients, Control(folder)))
    return seen[0]
