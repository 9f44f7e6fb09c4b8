"""The reference repository, its journal and its harm: first as files, then in a real server."""

from collections import Counter
from contextlib import asynccontextmanager

import pytest
import trio

from chaos.record.records import Executed, read_records
from chaos.workload import answers
from chaos.workload.control import Control, journal_folder
from chaos.workload.models.journal import Journal
from chaos.workload.repository import INSTANCES, LOAD_TIMEOUT, write_model, write_repository
from engine.__main__ import main
from tests.chaos.workload_clients import ask, invoke, refusal
from tests.survival.server import served, until

pytestmark = pytest.mark.system

FATAL = {
    "segv": ("signal_11", 503),
    "exit0": ("exit_0", 503),
    "hang": ("hang", 504),
    "hang_lock": ("hang", 504),
    "oom": ("oom", 503),
    "close_frames": ("protocol_error", 503),
    "garbage_frames": ("protocol_error", 503),
}
"""By action, the reason that the server gives for the worker's end, and the status that the client gets."""

ONNX = (("raise", "500"), ("fpe", "422"), ("fpe", "422"), ("hang", "504"))
"""By poison of `add_sub`, the status that its request gets."""


# -- files


def test_every_model_of_the_repository_is_valid(tmp_path, capsys):
    write_repository(tmp_path / "models", run=tmp_path / 'a "run"')
    assert main(["check", "--json", str(tmp_path / "models")]) == 0
    assert {path.name for path in (tmp_path / "models").iterdir()} == set(answers.REFERENCE)
    assert "warning" not in capsys.readouterr().out


def test_copies_can_be_added_to_a_repository(tmp_path):
    write_repository(tmp_path / "models", run=tmp_path, models=["echo"])
    copy = write_model(tmp_path / "models", "echo-churned", run=tmp_path)
    assert 'name: "echo-churned"' in (copy / "config.pbtxt").read_text()
    with pytest.raises(FileExistsError):
        write_model(tmp_path / "models", "echo", run=tmp_path)


def test_the_journal_writes_lines_that_the_checker_reads(tmp_path):
    journal = Journal(str(tmp_path), "echo")
    first = journal.begin(["a", 'odd "id"\n'])
    journal.end(["a"], first)
    second = journal.begin([])
    assert (first, second) == (1, 2)
    (file,) = tmp_path.iterdir()
    assert [(each.id, each.end, each.batch, each.model) for each in read_records(file, Executed)] == [
        ("a", False, 1, "echo"),
        ('odd "id"\n', False, 1, "echo"),
        ("a", True, 1, "echo"),
    ]


def test_an_order_stands_until_it_is_withdrawn(tmp_path):
    order = Control(tmp_path).once("echo", "segv")
    assert order.stands
    assert order.withdraw()
    assert not order.stands
    assert not order.withdraw()


def test_orders_that_nobody_could_carry_out_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no model can 'explode', only raise"):
        Control(tmp_path).once("echo", "explode")
    with pytest.raises(ValueError, match="'pipeline' is no Python model"):
        Control(tmp_path).hold("pipeline", "raise")


# -- a real server


@pytest.fixture
def workload(tmp_path):
    """Open a server over some models of the reference repository."""

    @asynccontextmanager
    async def opened(*models, load_timeout=LOAD_TIMEOUT):
        write_repository(tmp_path / "models", run=tmp_path / "run", models=models)
        for config in (tmp_path / "models").glob("*/config.pbtxt"):
            config.write_text(config.read_text().replace(f'"{LOAD_TIMEOUT}"', f'"{load_timeout}"'))
        async with served(tmp_path / "models", files=tmp_path / "server", environ={}) as server:
            yield server, Control(tmp_path / "run")

    return opened


@pytest.fixture
def executed(tmp_path):
    """Read what the models have written so far, those of one request only where it is named."""

    def read(request_id=None):
        lines = [
            line
            for file in sorted(journal_folder(tmp_path / "run").iterdir())
            for line in read_records(file, Executed)
        ]
        return [line for line in lines if request_id in (None, line.id)]

    return read


async def assert_serves(server, model):
    """Check that every instance of a model has a worker, and that the answers are right.

    Twice as many requests as there are instances are sent at once.
    """
    if model != "pipeline":
        await server.wait_serving(model)
    async with trio.open_nursery() as nursery:
        for value in range(2 * INSTANCES):
            nursery.start_soon(assert_right, server, invoke(model, value))


async def assert_right(server, invoked):
    assert await ask(server, invoked) == tuple(answers.expected(invoked))


async def suffer(server, executed, action, *, control=None):
    """Have `echo` do something fatal, and check that everything is as promised.

    With `control`, an order causes it; otherwise the request's poison does.
    """
    reason, status = FATAL[action]
    name = f"{'order' if control else 'poison'}-{action}"
    if control:
        control.once("echo", action)
    value = 100 + list(FATAL).index(action)
    error = await refusal(server, invoke("echo", value, id=name, poison="" if control else action))
    assert error.status() == str(status), (name, error)
    (began,) = executed(name)
    assert not began.end

    def exits():
        return [line for line in server.logged("worker_exited") if line["pid"] == began.pid]

    await until(lambda: bool(exits()))
    (exited,) = exits()
    assert exited["reason"] == reason, (name, exited)
    assert exited["actor"].startswith("models/echo/1/instances/")
    await assert_serves(server, "echo")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("by", ["poison", "order"])
async def test_what_is_fatal_costs_one_worker_for_the_right_reason(workload, executed, by):
    async with workload("echo") as (server, control):
        for action in FATAL:
            await suffer(server, executed, action, control=control if by == "order" else None)
        for reason, times in Counter(reason for reason, _ in FATAL.values()).items():
            assert await server.metric("tritium_worker_deaths_total", model="echo", reason=reason) == times
        assert await server.metric("tritium_worker_deaths_total") == len(FATAL)


@pytest.mark.slow
async def test_a_batch_raises_as_a_whole_and_one_member_may_be_refused_alone(workload, executed):
    async with workload("batching") as (server, control):
        for by in ("poison", "order"):
            for action in ("raise", "raise_member"):
                name = f"{by}-{action}"
                poison = action if by == "poison" else ""
                if not poison:
                    control.once("batching", action)
                error = await refusal(server, invoke("batching", 1, id=name, poison=poison))
                assert error.status() == "500"
                assert "told to" in error.message()
                assert [line.end for line in executed(name)] == [False]
        await assert_serves(server, "batching")
        assert await server.metric("tritium_worker_deaths_total") == 0


@pytest.mark.slow
async def test_what_is_harmless_is_answered_right(workload, executed):
    async with workload("echo") as (server, control):
        for action in ("slow", "leak_descriptors", "flood_stdout"):
            await assert_right(server, invoke("echo", 5, poison=action, id=f"poison-{action}"))
            control.once("echo", action)
            await assert_right(server, invoke("echo", 5, id=f"order-{action}"))
        for name in ("poison-slow", "order-slow"):
            began, ended = executed(name)
            assert ended.t - began.t > 0.09
        assert await server.metric("tritium_worker_deaths_total") == 0


@pytest.mark.long
async def test_the_onnx_model_survives_what_its_numbers_do_to_it(workload):
    async with workload("add_sub") as (server, _):
        async with trio.open_nursery() as nursery:
            for value in range(40):
                nursery.start_soon(assert_right, server, invoke("add_sub", value))
            for value, (poison, status) in enumerate(ONNX):
                nursery.start_soon(assert_refused, server, invoke("add_sub", value, poison=poison), status)
        await assert_serves(server, "add_sub")
        assert {line["reason"] for line in server.logged("worker_exited")} == {"signal_8", "hang"}


async def assert_refused(server, invoked, status):
    assert (await refusal(server, invoked)).status() == status
