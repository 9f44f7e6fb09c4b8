"""The reference repository, its journal and its harm: first as files, then in a real server."""

from collections import Counter
from contextlib import asynccontextmanager

import psutil
import pytest
import trio
from tritonclient.utils import InferenceServerException

from chaos.record.records import Executed, read_records
from chaos.workload import answers
from chaos.workload.control import Control, journal_folder
from chaos.workload.models.journal import Journal
from chaos.workload.repository import INSTANCES, LOAD_TIMEOUT, write_model, write_repository, write_version
from engine.__main__ import main
from tests.chaos.workload_clients import ask, generate, invoke, refusal
from tests.survival.server import eventually, served, until

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

STREAMED = {"raise": "told to raise", "segv": "died of signal 11", "hang": "for a hang"}
"""By action, what the error of a stream says."""


# -- files


def test_every_model_of_the_repository_is_valid(tmp_path, capsys):
    write_repository(tmp_path / "models", run=tmp_path / 'a "run"')
    assert main(["check", "--json", str(tmp_path / "models")]) == 0
    assert {path.name for path in (tmp_path / "models").iterdir()} == set(answers.OUTPUTS)
    assert "warning" not in capsys.readouterr().out


def test_copies_and_versions_can_be_added_to_a_repository(tmp_path):
    write_repository(tmp_path / "models", run=tmp_path, models=["echo"])
    copy = write_model(tmp_path / "models", "echo-churned", run=tmp_path)
    version = write_version(tmp_path / "models", "echo-churned", 2)
    assert 'name: "echo-churned"' in (copy / "config.pbtxt").read_text()
    assert (version / "model.py").read_bytes() == (
        tmp_path / "models" / "echo" / "1" / "model.py"
    ).read_bytes()
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
    assert [path.name for path in (tmp_path / "control" / "echo").iterdir()] == ["000001.segv"]
    assert order.stands
    assert order.withdraw()
    assert not order.stands
    assert not order.withdraw()


def test_what_is_held_stands_for_as_long_as_the_block(tmp_path):
    with Control(tmp_path).hold("echo", "slow"):
        assert [path.name for path in (tmp_path / "control" / "echo").iterdir()] == ["000001.slow.on"]
    assert not any((tmp_path / "control" / "echo").iterdir())


def test_two_who_give_orders_do_not_take_each_other_s_numbers(tmp_path):
    Control(tmp_path).once("echo", "slow")
    Control(tmp_path).once("echo", "slow")
    assert len(list((tmp_path / "control" / "echo").iterdir())) == 2
    Control(tmp_path).clear()
    assert not any((tmp_path / "control" / "echo").iterdir())


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


async def assert_right(server, invoked, earlier=()):
    assert await ask(server, invoked) == tuple(answers.expected(invoked, earlier))


@pytest.mark.system
@pytest.mark.slow
async def test_every_model_answers_right_over_both_protocols_and_writes_it_down(workload, executed):
    async with workload(*answers.OUTPUTS) as (server, _):
        async with trio.open_nursery() as nursery:
            for protocol in ("http", "grpc"):
                for model in answers.OUTPUTS.keys() - {"counter"}:
                    for value in (-30, 0, 41):
                        each = invoke(
                            model, value, protocol=protocol, parts=5, id=f"{protocol}/{model}/{value}"
                        )
                        nursery.start_soon(assert_right, server, each)
        assert await trio.to_thread.run_sync(generate, server, invoke("stream", 7, parts=40)) == list(
            range(7, 47)
        )
    journal = Counter((line.id, line.model, line.end) for line in executed())
    assert set(journal.values()) == {1}
    for protocol in ("http", "grpc"):
        for model in answers.OUTPUTS.keys() - {"counter", "add_sub"}:
            who = "echo" if model == "pipeline" else model
            assert {(f"{protocol}/{model}/-30", who, end) for end in (False, True)} <= journal.keys()
    assert not any(model == "add_sub" for _, model, _ in journal)


@pytest.mark.slow
async def test_sequences_side_by_side_have_their_own_sums(workload):
    async def follow(number):
        asked = []
        for index in range(6):
            request = invoke(
                "counter",
                100 * number + index,
                protocol="http" if index % 2 else "grpc",
                sequence=number,
                start=index == 0,
                end=index == 5,
            )
            await assert_right(server, request, asked)
            asked.append(request)

    async with workload("counter") as (server, _):
        # More sequences than there are slots, then others in the same slots.
        for numbers in (
            range(1, 13),
            range(13, 25),
        ):
            async with trio.open_nursery() as nursery:
                for number in numbers:
                    nursery.start_soon(follow, number)


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
@pytest.mark.parametrize("by", ["poison", pytest.param("order", marks=pytest.mark.long)])
async def test_what_is_fatal_costs_one_worker_for_the_right_reason(workload, executed, by):
    async with workload("echo") as (server, control):
        for action in FATAL:
            await suffer(server, executed, action, control=control if by == "order" else None)
        for reason, times in Counter(reason for reason, _ in FATAL.values()).items():
            assert await server.metric("tritium_worker_deaths_total", model="echo", reason=reason) == times
        assert await server.metric("tritium_worker_deaths_total") == len(FATAL)


@pytest.mark.long
async def test_nobody_is_quarantined_by_hangs_of_a_model_that_runs_nothing_twice(workload):
    async with workload("echo") as (server, control):
        for _ in range(2):
            control.once("echo", "hang")
            assert (await refusal(server, invoke("echo", 1))).status() == "504"
        await assert_right(server, invoke("echo", 1))


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
async def test_the_batchmates_of_a_refused_member_get_their_answers(workload, executed):
    async def be_refused(invoked):
        assert "told to refuse this request" in (await refusal(server, invoked)).message()

    async with workload("batching") as (server, control):
        with control.hold("batching", "slow"):  # so that requests come together
            async with trio.open_nursery() as nursery:
                for value in range(24):
                    poison = "raise_member" if value % 4 == 0 else ""
                    asked = invoke("batching", value, poison=poison, protocol="grpc")
                    nursery.start_soon(
                        be_refused if poison else assert_right, *((asked,) if poison else (server, asked))
                    )
    shared = Counter((line.pid, line.batch) for line in executed() if not line.end)
    assert max(shared.values()) > 1


@pytest.mark.slow
async def test_what_is_harmless_is_answered_right(workload, executed):
    async with workload("echo") as (server, control):
        for action in ("slow", "leak_memory", "leak_descriptors", "flood_stdout"):
            await assert_right(server, invoke("echo", 5, poison=action, id=f"poison-{action}"))
            control.once("echo", action)
            await assert_right(server, invoke("echo", 5, id=f"order-{action}"))
        for name in ("poison-slow", "order-slow"):
            began, ended = executed(name)
            assert ended.t - began.t > 0.09
        assert await server.metric("tritium_worker_deaths_total") == 0


@pytest.mark.slow
async def test_a_leak_of_descriptors_takes_all_there_are_and_is_mended(workload, executed):
    async with workload("echo") as (server, control):
        before = {pid: psutil.Process(pid).num_fds() for pid in await server.workers("echo")}
        with control.hold("echo", "leak_descriptors"):
            await assert_right(server, invoke("echo", 1, id="leaking"))
            leaking = executed("leaking")[0].pid
            assert psutil.Process(leaking).num_fds() == 256
            await assert_serves(server, "echo")

        async def mended():
            await assert_serves(server, "echo")
            return {pid: psutil.Process(pid).num_fds() for pid in before} == before

        await eventually(mended)
        assert await server.metric("tritium_worker_deaths_total") == 0


@pytest.mark.slow
async def test_a_leak_of_memory_is_ended_at_the_limit(workload):
    async with workload("echo") as (server, control):
        with control.hold("echo", "leak_memory"):

            async def ended():
                with_errors = await answered_or_refused(server, invoke("echo", 1))
                assert with_errors in ("200", "503")
                return await server.metric("tritium_worker_deaths_total", reason="oom") > 0

            await eventually(ended)
        await assert_serves(server, "echo")
        assert {line["reason"] for line in server.logged("worker_exited")} == {"oom"}


async def answered_or_refused(server, invoked):
    """The status of an answer that has to be right if it is one."""
    try:
        assert await ask(server, invoked) == tuple(answers.expected(invoked))
    except InferenceServerException as error:
        return error.status()
    return "200"


@pytest.mark.slow
async def test_an_initialisation_fails_as_often_as_it_is_told_to(workload):
    async with workload("echo") as (server, control):
        orders = [control.once("echo", "init_fail") for _ in range(3)]
        await refusal(server, invoke("echo", 1, poison="exit0"))
        await until(lambda: not any(each.stands for each in orders))
        await assert_serves(server, "echo")
        assert await server.metric("tritium_worker_deaths_total", model="echo", reason="exit_0") == 1
        assert await server.metric("tritium_worker_deaths_total", model="echo", reason="start_failed") == 3


@pytest.mark.slow
async def test_an_initialisation_that_always_fails_leaves_the_other_instance_serving(workload):
    async with workload("echo") as (server, control):
        with control.hold("echo", "init_fail"):
            await refusal(server, invoke("echo", 1, poison="exit0"))
            await server.until_metric(2, "tritium_worker_deaths_total", reason="start_failed")
            await assert_right(server, invoke("echo", 4))
        await assert_serves(server, "echo")


@pytest.mark.slow
async def test_an_initialisation_that_hangs_leaves_the_other_instance_serving(workload):
    async with workload("echo") as (server, control):
        hanging = await hang_as_it_starts(server, control)
        await assert_right(server, invoke("echo", 4))
        psutil.Process(hanging).kill()
        await assert_serves(server, "echo")


@pytest.mark.slow
async def test_an_initialisation_that_hangs_is_ended_at_its_limit(workload, tmp_path):
    async with workload("echo", load_timeout=3) as (server, control):
        await hang_as_it_starts(server, control)
        with trio.fail_after(30):
            await server.wait_serving("echo")


async def hang_as_it_starts(server, control):
    """End one of two workers and hang its replacement in `initialize`.

    Returns the replacement's process id.
    """
    order = control.once("echo", "init_hang")
    await refusal(server, invoke("echo", 1, poison="exit0"))
    await until(lambda: not order.stands)
    (hanging,) = [
        each["info"]["pid"] for each in await server.instances("echo") if each["info"]["phase"] == "loading"
    ]
    return hanging


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


@pytest.mark.slow
async def test_a_stream_that_comes_to_harm_half_way_ends_with_one_error(workload, executed):
    async with workload("stream") as (server, _):
        for action, text in STREAMED.items():
            error = await refusal(server, invoke("stream", 10, parts=6, poison=action, id=action))
            assert error.values == (10, 11, 12)
            assert text in error.message()
            assert [line.end for line in executed(action)] == [False]
            await assert_right(server, invoke("stream", 20, parts=3))


@pytest.mark.slow
async def test_a_sequence_whose_worker_dies_is_over_and_the_others_go_on(workload):
    async with workload("counter") as (server, control):
        ask_of = {
            number: [invoke("counter", value, sequence=number, start=value == 1) for value in (1, 2, 3)]
            for number in range(1, 9)
        }
        for requests in ask_of.values():
            await assert_right(server, requests[0])
        control.once("counter", "segv")
        error = await refusal(server, ask_of[1][1])
        assert error.status() == "503"
        await server.wait_serving("counter")
        statuses = Counter([await answered_or_refused_in(server, ask_of[number]) for number in range(2, 9)])
        assert statuses == {"200": 4, "400": 3}


async def answered_or_refused_in(server, requests):
    """The same for the second request of a sequence."""
    try:
        await assert_right(server, requests[1], requests[:1])
    except InferenceServerException as error:
        return error.status()
    return "200"


@pytest.mark.slow
async def test_harm_in_a_pipeline_is_told_to_its_client_and_journalled_by_its_step(workload, executed):
    async with workload("pipeline", "echo", "add_sub") as (server, _):
        error = await refusal(server, invoke("pipeline", 3, poison="segv", id="through"))
        assert error.status() == "503"
        assert "in ensemble 'pipeline'" in error.message()
        assert [(line.model, line.end) for line in executed("through")] == [("echo", False)]
        await assert_serves(server, "pipeline")
