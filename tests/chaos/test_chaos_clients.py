"""The clients of the chaos harness: what they send and when, and their records.

Each request is recorded once at its beginning and once at its end.
"""

import itertools
import threading
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial

import grpc
import pytest
import trio
import trio.testing

from actors.values.errors import ErrorCode
from chaos.clients.clients import open_clients
from chaos.clients.mix import ORDINARY, Kind, arrivals
from chaos.record.history import History
from chaos.record.outcome import code_of, now
from chaos.record.records import Fail, Invoke, Ok, Unknown, read_records
from chaos.subject.server import served
from chaos.workload.answers import expected
from chaos.workload.repository import write_repository
from protocols.status import STATUS
from tests.chaos.client_doubles import answer_to, grpc_answer, grpc_double, http_double, response

GRPC_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}

# -- what comes when


def test_the_same_seed_brings_the_same_users():
    first, again, other = (list(itertools.islice(arrivals(ORDINARY, 150, s), 500)) for s in (7, 7, 8))
    assert first == again != other


def test_requests_come_at_the_rate_that_was_asked_for_with_sequences_counted_by_their_steps():
    users = list(itertools.takewhile(lambda user: user.at < 60, arrivals(ORDINARY, 150, 3)))
    requests = sum(len(user.steps) for user in users)
    assert requests == pytest.approx(60 * 150, rel=0.03)
    shares = Counter(step.model for user in users for step in user.steps)
    whole = sum(kind.weight for kind in ORDINARY)
    for kind in ORDINARY:
        assert shares[kind.model] / requests == pytest.approx(kind.weight / whole, rel=0.2)


def test_decoupled_models_are_asked_by_grpc_alone_and_deadlines_go_where_they_can_be_kept():
    kinds = [Kind(model="stream", parts=(1, 3)), Kind(model="echo", deadlines=(1.0,))]
    steps = [user.steps[0] for user in itertools.islice(arrivals(kinds, 10, 1), 200)]
    assert {step.protocol for step in steps if step.model == "stream"} == {"grpc"}
    assert {(step.protocol, step.deadline) for step in steps if step.model == "echo"} == {
        ("http", None),
        ("grpc", 1.0),
    }


@pytest.mark.parametrize("code", ErrorCode)
def test_http_statuses_mean_what_the_servers_own_table_says_but_for_the_ambiguous_400(code):
    status, number = STATUS[code]
    assert code_of(status) == ("INVALID_ARGUMENT" if status == 400 else GRPC_NAMES[number])


# -- the history


def invoked(n: int) -> Invoke:
    return Invoke(t=now(), n=n, id=f"r{n}", model="echo", protocol="http", phase="calm", value=n)


def test_a_request_ends_once_and_only_if_it_has_begun(tmp_path):
    with History(tmp_path / "history.jsonl") as history:
        history.begin(invoked(1))
        with pytest.raises(ValueError, match="under way already"):
            history.begin(invoked(1))
        history.end(Unknown(t=now(), n=1, reason="gone"))
        with pytest.raises(ValueError, match="never began, or has ended already"):
            history.end(Unknown(t=now(), n=1, reason="gone"))


# -- over HTTP


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.jsonl"


@asynccontextmanager
async def clients_of(path, http_port=1, grpc_port=1, **options):
    with History(path) as history:
        async with open_clients(history, http_port, grpc_port, **options) as clients:
            yield clients
    begun = [each.n for each in read_records(path, Invoke)]
    ends: list[Ok | Fail | Unknown] = [
        *read_records(path, Ok),
        *read_records(path, Fail),
        *read_records(path, Unknown),
    ]
    assert sorted(begun) == sorted(each.n for each in ends)


async def test_a_good_answer_is_ok_with_its_values_and_attempts(path):
    async with http_double(lambda document: answer_to(document, 8, parameters={"attempts": 3})) as (_, port):
        async with clients_of(path, port) as clients:
            end = await clients.send("echo")
    assert isinstance(end, Ok)
    assert (end.values, end.attempts) == ((8,), 3)


async def test_tensors_are_sent_as_json_and_in_binary_by_turns(path):
    async with http_double(answer_to) as (double, port), clients_of(path, port) as clients:
        await clients.send("echo", poison="raise")
        await clients.send("echo", poison="raise")
    (_, plain), (fields, binary) = double.requests
    assert plain["inputs"][1]["data"] == ["raise"]
    assert binary["inputs"][1]["parameters"] == {"binary_data_size": 4 + len("raise")}
    assert "inference-header-content-length" in fields


async def test_connections_are_used_again(path):
    async with http_double(answer_to) as (double, port), clients_of(path, port) as clients:
        for _ in range(5):
            await clients.send("echo")
        assert double.connections == 1


async def test_requests_that_are_under_way_together_have_a_connection_each(path):
    async with http_double(lambda _: None) as (double, port):
        async with clients_of(path, port) as clients, trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(clients.send, "echo")
            with trio.fail_after(30):
                # The double counts connections and signals no event.
                while double.connections < 5:  # noqa: ASYNC110
                    await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
    assert [end.reason for end in read_records(path, Unknown)] == ["went away: Cancelled"] * 5


@pytest.mark.parametrize(
    ("status", "code"), [(503, "UNAVAILABLE"), (504, "DEADLINE_EXCEEDED"), (418, "UNKNOWN")]
)
async def test_an_error_is_a_fail_with_the_code_of_its_status(path, status, code):
    async with http_double(lambda _: response({"error": "no"}, status)) as (_, port):
        async with clients_of(path, port) as clients:
            end = await clients.send("echo")
    assert isinstance(end, Fail)
    assert (end.code, end.message) == (code, "no")


@pytest.mark.parametrize(
    "said",
    [
        lambda document: answer_to({"id": "somebody else's"}),
        lambda document: response({"id": document["id"]}),
        lambda document: response(["nonsense"]),
        lambda document: response({"id": document["id"], "outputs": [{"name": "ANSWER", "shape": [2]}]}),
    ],
)
async def test_a_good_status_with_an_answer_that_cant_be_read_is_data_loss(path, said):
    async with http_double(said) as (_, port), clients_of(path, port) as clients:
        end = await clients.send("echo")
    assert isinstance(end, Fail)
    assert end.code == "DATA_LOSS"


async def test_a_connection_that_ends_before_the_answer_leaves_the_end_unknown(path):
    async with http_double(lambda _: b"") as (_, port), clients_of(path, port) as clients:
        end = await clients.send("echo")
    assert end.reason.startswith("disconnected")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_half_an_answer_or_none_leaves_the_end_unknown(path, protocol):
    release = threading.Event()

    def infer(request, _):
        release.wait(30)
        return grpc_answer(request)

    async with http_double(lambda document: answer_to(document)[:-3]) as (_, port):
        with grpc_double(infer) as grpc_port:
            async with clients_of(path, port, grpc_port, patience=0.05) as clients:
                end = await clients.send("echo", protocol=protocol)
            release.set()
    assert end.reason == "lost: no answer within 0.05 s"


async def test_two_answers_to_one_request_are_no_good_answer(path):
    async with http_double(lambda document: answer_to(document) * 2) as (_, port):
        async with clients_of(path, port) as clients:
            end = await clients.send("echo")
    assert end.reason == "disconnected: more than one answer came to one request"


async def test_an_answer_that_comes_when_nobody_asks_is_counted(path):
    surplus = response("more")
    came = trio.Event()

    async def serve(stream):
        async with stream:
            await stream.receive_some()
            await stream.send_all(answer_to({"id": "r1"}))
            await came.wait()
            await stream.send_all(surplus)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        async with clients_of(path, listeners[0].socket.getsockname()[1], patience=0.1) as clients:
            assert isinstance(await clients.send("echo"), Ok)
            came.set()
            await trio.testing.wait_all_tasks_blocked(0.01)
            await clients.send("echo")
            assert clients.surplus == len(surplus)
        nursery.cancel_scope.cancel()


async def test_without_a_server_nothing_is_sent_and_after_a_restart_elsewhere_all_is_well(path):
    async with clients_of(path) as clients:
        for protocol in ("http", "grpc"):
            end = await clients.send("echo", protocol=protocol)
            assert end.reason.startswith("no connection"), end
        with grpc_double(lambda request, _: grpc_answer(request)) as grpc_port:
            async with http_double(answer_to) as (_, http_port):
                clients.retarget(http_port, grpc_port)
                for protocol in ("http", "grpc"):
                    assert isinstance(await clients.send("echo", protocol=protocol), Ok)


async def test_priority_tenant_sequence_and_deadline_are_sent_over_http(path):
    kinds = [
        Kind(model="counter", steps=(2, 2), gap=(0, 0), wires=("http",), priorities=(2,), tenants=("gold",))
    ]
    timed = Kind(model="echo", wires=("http",), deadlines=(0.5,), deadline_wires=("http",))
    async with http_double(answer_to) as (double, port), clients_of(path, port, kinds=kinds) as clients:
        users = [next(arrivals(kinds, 1000, 1)), next(arrivals([timed], 1000, 1))]
        await clients.load(users, begin=now(), until=now() + 60)
    sequence = [(fields, each) for fields, each in double.requests if "sequence_id" in each["parameters"]]
    marks = [
        (each["parameters"]["sequence_start"], each["parameters"]["sequence_end"]) for _, each in sequence
    ]
    assert marks == [(True, False), (False, True)]
    assert {(fields["x-tenant"], each["parameters"]["priority"]) for fields, each in sequence} == {
        ("gold", 2)
    }
    (timeout,) = (
        each["parameters"]["timeout"] for _, each in double.requests if "timeout" in each["parameters"]
    )
    assert 0 < timeout <= 500_000


# -- over gRPC


async def test_answers_over_grpc_are_told_with_values_and_attempts(path):
    with grpc_double(lambda request, _: grpc_answer(request, 9, attempts=2)) as port:
        async with clients_of(path, grpc_port=port) as clients:
            end = await clients.send("echo", protocol="grpc")
    assert (end.values, end.attempts) == ((9,), 2)


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE])
async def test_errors_over_grpc_have_their_own_codes(path, code):
    with grpc_double(lambda _, context: context.abort(code, "no")) as port:
        async with clients_of(path, grpc_port=port) as clients:
            end = await clients.send("echo", protocol="grpc")
    assert (end.code, end.message) == (code.name, "no")


async def test_a_part_too_many_is_counted(path):
    def stream(request, _):
        yield grpc_answer(request, 1, final=True)
        yield grpc_answer(request, 2, final=True)

    with grpc_double(stream=stream) as port:
        async with clients_of(path, grpc_port=port) as clients:
            assert (await clients.send("stream")).values == (1,)
            assert clients.surplus == 1


async def test_every_second_deadline_is_the_servers_alone_to_keep(path):
    remaining = []

    def infer(request, context):
        remaining.append(context.time_remaining())
        return grpc_answer(request)

    kind = Kind(model="echo", wires=("grpc",), deadlines=(20.0,))
    with grpc_double(infer) as port:
        async with clients_of(path, grpc_port=port, kinds=[kind]) as clients:
            users = itertools.islice(arrivals([kind], 1000, 1), 2)
            await clients.load(users, begin=now(), until=now() + 60)
    assert len(remaining) == 2
    assert all(15 < each < 21 for each in remaining)


async def test_a_deadline_that_nobody_else_keeps_ends_the_call(path):
    release = threading.Event()

    def infer(request, _):
        release.wait(30)
        return grpc_answer(request)

    kind = Kind(model="echo", wires=("grpc",), deadlines=(0.05,))
    with grpc_double(infer) as port:
        async with clients_of(path, grpc_port=port, kinds=[kind]) as clients:
            await clients.load([next(arrivals([kind], 1000, 1))], begin=now(), until=now() + 60)
        release.set()
    (end,) = read_records(path, Fail)
    assert end.code == "DEADLINE_EXCEEDED"


async def test_what_is_under_way_as_the_clients_turn_to_another_server_went_away(path):
    arrived, release = threading.Event(), threading.Event()

    def infer(request, _):
        arrived.set()
        release.wait(30)
        return grpc_answer(request)

    with grpc_double(infer) as port:
        async with clients_of(path, grpc_port=port) as clients, trio.open_nursery() as nursery:
            nursery.start_soon(partial(clients.send, "echo", protocol="grpc"))
            await trio.to_thread.run_sync(arrived.wait)
            clients.retarget(1, 1)
        release.set()
    (end,) = read_records(path, Unknown)
    assert end.reason.startswith("went away")


def count_up(request, _):
    for n in range(3):
        yield grpc_answer(request, n, final=n == 2)


async def test_the_parts_of_a_decoupled_answer_are_gathered_in_their_order(path):
    with grpc_double(stream=count_up) as port:
        async with clients_of(path, grpc_port=port) as clients:
            ends = [await clients.send("stream") for _ in range(3)]
    assert [end.values for end in ends] == [(0, 1, 2)] * 3
    assert all(end.first <= end.t for end in ends)


async def test_an_error_in_a_stream_has_its_code_and_the_parts_before_it(path):
    def stream(request, context):
        yield grpc_answer(request, 4, final=False)
        context.abort(grpc.StatusCode.UNAVAILABLE, "the worker died")

    with grpc_double(stream=stream) as port:
        async with clients_of(path, grpc_port=port) as clients:
            ends = [await clients.send("stream") for _ in range(2)]
    assert [(end.code, end.message, end.values) for end in ends] == [
        ("UNAVAILABLE", "the worker died", (4,))
    ] * 2


# -- the load


async def test_users_keep_coming_while_answers_are_slow(path):
    kind = Kind(model="echo", wires=("http",))
    async with http_double(lambda _: None) as (double, port):
        async with clients_of(path, port, patience=0.1) as clients:
            begin = now()
            await clients.load(arrivals([kind], 200, 1), begin=begin, until=begin + 0.1)
            assert double.connections == clients.sent
    invokes = list(read_records(path, Invoke))
    wanted = [user.at for user in itertools.takewhile(lambda user: user.at < 0.1, arrivals([kind], 200, 1))]
    assert [(each.due or 0.0) - begin for each in invokes] == pytest.approx(wanted)
    assert all(each.due and each.t >= each.due for each in invokes)


async def test_a_sequence_with_an_error_is_begun_anew_under_another_id(path):
    seen: Counter[str] = Counter()

    def answer(document):
        seen["requests"] += 1
        return response({"error": "no"}, 503) if seen["requests"] == 3 else answer_to(document)

    kind = Kind(model="counter", steps=(5, 5), gap=(0, 0), wires=("http",))
    async with http_double(answer) as (_, port), clients_of(path, port, kinds=[kind]) as clients:
        await clients.load([next(arrivals([kind], 1000, 1))], begin=now(), until=now() + 60)
    steps = [(each.sequence, each.index, each.start, each.end) for each in read_records(path, Invoke)]
    assert steps == [
        (1, 0, True, False),
        (1, 1, False, False),
        (1, 2, False, False),
        (2, 0, True, False),
        (2, 1, False, True),
    ]


async def test_what_a_fault_sends_is_down_to_it(path):
    async with http_double(answer_to) as (_, port), clients_of(path, port) as clients:
        clients.phase = "overload"
        await clients.send("echo", poison="segv", priority=1, tenant="gold", by=7)
    (invoke,) = read_records(path, Invoke)
    assert (invoke.by, invoke.poison, invoke.priority, invoke.tenant) == (7, "segv", 1, "gold")
    assert invoke.phase == "overload"


# -- the real thing


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
async def test_a_short_load_on_the_reference_workload_gets_right_answers_only(tmp_path, path):
    run = tmp_path / "run"
    (run / "journal").mkdir(parents=True)
    write_repository(run / "repository", run=run)
    async with served(run / "repository", run / "server") as server:
        async with clients_of(path, server.http_port, server.grpc_port) as clients:
            begin = now()
            await clients.load(arrivals(ORDINARY, 60, 5), begin=begin, until=begin + 3)
            assert clients.surplus == 0
    invokes = {each.n: each for each in read_records(path, Invoke)}
    assert {each.model for each in invokes.values()} == {kind.model for kind in ORDINARY}
    assert list(read_records(path, Fail, Unknown)) == []
    earlier: dict[int, list[Invoke]] = {}
    for end in read_records(path, Ok):
        invoke = invokes[end.n]
        before = earlier.setdefault(invoke.sequence, [])
        assert tuple(end.values) == tuple(expected(invoke, before if invoke.sequence else ()))
        before.append(invoke)
