"""The references answer rightly and count answers; both load clients load them and report failures."""

import pytest

from benchmarks import clients
from benchmarks.clients import ClientFailed
from benchmarks.grpc import judge, payloads, subjects
from benchmarks.grpc.clients import GRPC_CLIENTS, Task, own
from benchmarks.grpc.judge import Address, Counts
from benchmarks.grpc.runner import GrpcRunner
from benchmarks.grpc.scenarios import GRPC_SCENARIOS as ALL
from benchmarks.grpc.scenarios import GrpcScenario, Shape, Way
from benchmarks.grpc.subjects import BARE, REFERENCES, GrpcSubject
from benchmarks.payloads import WrongAnswer
from benchmarks.results import Load
from benchmarks.runner import Plan
from chaos.subject.ports import free_ports
from tests.support.logged import Silent
from tests.support.tiers import mostly_long

pytest.importorskip("grpc")
pytestmark = [pytest.mark.slow, pytest.mark.system]

GRPC_SCENARIOS = [each for each in ALL if each.referenced]
SMALL = next(each for each in GRPC_SCENARIOS if each.name == "grpc-unary")
STREAM = next(each for each in GRPC_SCENARIOS if each.way is Way.STREAM)
COMPUTING = [name for name in REFERENCES if name != BARE]


def _shaped(scenario, *shapes):
    values = {name: getattr(scenario, name) for name in GrpcScenario.__slots__}
    return GrpcScenario(**values | {"shapes": shapes})


@pytest.fixture(scope="module", params=mostly_long(COMPUTING, "grpclib"))
def reference(request, tmp_path_factory):
    with subjects.reference(request.param, tmp_path_factory.mktemp("reference")) as subject:
        yield subject


@pytest.fixture(scope="module")
def grpclib(tmp_path_factory):
    with subjects.reference("grpclib", tmp_path_factory.mktemp("grpclib")) as subject:
        yield subject


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    with subjects.reference(BARE, tmp_path_factory.mktemp("bare")) as subject:
        yield subject


def _messages(scenario):
    return [[payloads.encode(scenario.first, scenario.inputs()).SerializeToString()]]


def _task(subject, scenario, shape=None, **changes):
    size = 100 if subject.label in ("bare", "gone") else judge.verify(scenario, subject.address)
    given = {
        "address": subject.address,
        "path": subject.path(scenario.way, size),
        "way": scenario.way,
        "shape": shape or Shape(2, 4),
        "messages": _messages(scenario),
        "answer_size": size,
    }
    return Task(**given | changes)


def test_a_reference_computes_what_the_models_compute_and_counts_it(reference):
    before = judge.counts(reference.address, ["onnx_add_sub"])
    for scenario in GRPC_SCENARIOS:
        if not scenario.on_gpu:
            assert judge.verify(scenario, reference.address) > scenario.transfer
    after = judge.counts(reference.address, ["onnx_add_sub"])
    assert after == Counts(before.success + sum(not each.on_gpu for each in GRPC_SCENARIOS), failed=0)


@pytest.mark.parametrize("way", [way for way in Way if way is not Way.SCRIPT])
def test_the_own_client_loads_a_reference_and_every_call_is_counted_there(reference, way):
    scenario = next(each for each in GRPC_SCENARIOS if each.way is way)
    task = _task(reference, scenario)
    before = judge.counts(reference.address, scenario.models)
    load = own(task, 0.3)
    assert load.requests > 0
    assert 0 < load.p50 <= load.p99
    assert (load.errors, load.refused) == (0, 0)
    after = judge.counts(reference.address, scenario.models)
    assert load.requests <= after.success - before.success <= load.requests + 2 * 8


@pytest.mark.parametrize("client", GRPC_CLIENTS)
def test_a_load_client_sees_that_calls_fail(grpclib, client):
    if client == "h2load" and (reason := clients.missing("h2load")):
        pytest.skip(reason)
    load = GRPC_CLIENTS[client](_task(grpclib, SMALL, path=payloads.SERVICE + "NoSuchMethod"), 0.3)
    assert load.refused >= load.requests > 0


@pytest.mark.parametrize("client", GRPC_CLIENTS)
@pytest.mark.parametrize("name", ["grpc-unary", "grpc-identity-1mib"])
def test_the_bare_responder_answers_as_many_bytes_as_it_is_told(bare, client, name):
    if client == "h2load" and (reason := clients.missing("h2load")):
        pytest.skip(reason)
    scenario = next(each for each in GRPC_SCENARIOS if each.name == name)
    load = GRPC_CLIENTS[client](_task(bare, scenario), 0.3)
    assert load.requests > 0
    assert (load.errors, load.refused) == (0, 0)


@pytest.mark.parametrize("client", GRPC_CLIENTS)
def test_a_server_that_is_gone_is_a_failure_of_the_client(client):
    if client == "h2load" and (reason := clients.missing("h2load")):
        pytest.skip(reason)
    gone = GrpcSubject(label="gone", address=Address("127.0.0.1", free_ports(1)[0]))
    with pytest.raises(ClientFailed):
        GRPC_CLIENTS[client](_task(gone, SMALL), 0.1)


def test_no_answer_is_a_wrong_answer():
    with pytest.raises(WrongAnswer, match="UNAVAILABLE"):
        judge.verify(SMALL, Address("127.0.0.1", free_ports(1)[0]))


def test_an_error_is_a_wrong_answer_with_its_reason(grpclib):
    gpu = next(each for each in GRPC_SCENARIOS if each.on_gpu)
    with pytest.raises(WrongAnswer, match="INVALID_ARGUMENT a reference has no model"):
        judge.verify(gpu, grpclib.address)


def _claiming(requests):
    """Stands for a client that claims so many answers, whatever the server has counted."""

    def client(task, seconds):
        return Load(requests=requests, seconds=seconds, rate=1.0, p50=1e-3, p99=2e-3, errors=0, refused=0)

    return client


def _run(scenario, servers, references=(), requests=0):
    plan = Plan(scenarios=[], grpc_scenarios=[scenario], grpc_clients=("own",), seconds=0.1)
    return GrpcRunner(plan, servers, references, Silent(), {"own": _claiming(requests)}).run()


def test_servers_are_measured_beside_the_references(grpclib, bare):
    found = _run(_shaped(SMALL, Shape(1, 1), Shape(4, 8)), [grpclib], [bare])
    assert [(each.subject, each.cell.at) for each in found.cells] == [
        ("bare", "1"),
        ("grpclib", "1"),
        ("bare", "4×8"),
        ("grpclib", "4×8"),
    ]
    assert found.skipped == []


def test_answers_that_the_server_does_not_count_are_failures(grpclib):
    found = _run(_shaped(SMALL, Shape(1, 1)), [grpclib], requests=7)
    assert [each.failures for each in found.cells] == [7]


def test_beside_a_gpu_no_reference_is_measured_and_a_server_without_the_model_is_left_out(grpclib, bare):
    gpu = next(each for each in GRPC_SCENARIOS if each.on_gpu)
    found = _run(gpu, [grpclib], [bare])
    assert found.cells == []
    assert [each.subject for each in found.skipped] == ["grpclib"]


def test_a_server_whose_grpc_port_is_not_known_is_left_out_and_says_so():
    found = _run(SMALL, [GrpcSubject(label="http://127.0.0.1:1", address=None)])
    assert [each.reason for each in found.skipped] == ["its gRPC port is not known"]


def test_a_server_that_does_not_answer_grpc_is_left_out_and_the_others_go_on(grpclib):
    silent = GrpcSubject(label="old", address=Address("127.0.0.1", free_ports(1)[0]))
    found = _run(_shaped(SMALL, Shape(1, 1)), [silent, grpclib])
    assert [each.subject for each in found.cells] == ["grpclib"]
    assert [each.subject for each in found.skipped] == ["old"]
