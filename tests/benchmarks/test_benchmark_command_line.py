"""What can be asked for on the command line, and what is refused."""

import pytest

from benchmarks import __main__ as command
from benchmarks import clients


@pytest.fixture(autouse=True)
def _clients_installed(monkeypatch):
    monkeypatch.setattr(clients, "missing", lambda name: None)


def test_everything_is_measured_by_default():
    order = command.options([]).order
    assert len(order.operations) == 3
    assert (order.plan.seconds, order.plan.rounds, order.kills) == (3.0, 1, 20)
    assert not order.comparing


def test_quick_shortens_what_is_not_given():
    order = command.options(["--quick", "--kills", "7"]).order
    assert (order.plan.seconds, order.kills) == (1.0, 7)


def test_a_core_is_kept_awake_where_that_is_asked_for():
    assert not command.options([]).order.awake
    assert command.options(["--awake"]).order.awake


def test_only_names_scenarios_and_operations():
    order = command.options(["--only", "digits", "memory"]).order
    assert [each.name for each in order.plan.scenarios] == ["digits"]
    assert order.operations == {"memory"}


def test_over_grpc_the_usual_references_are_measured_beside():
    plan = command.options(["--only", "grpc-unary"]).order.plan
    assert (plan.scenarios, [each.name for each in plan.grpc_scenarios]) == ([], ["grpc-unary"])
    assert plan.grpc_clients == ("h2load",)
    assert set(plan.grpc_references) == {"grpclib", "grpcio", "bare"}


def test_references_and_clients_can_be_chosen():
    plan = command.options(["--grpc-client", "both", "--grpc-references", "grpcio-threads"]).order.plan
    assert plan.grpc_clients == ("h2load", "own")
    assert plan.grpc_references == ("grpcio-threads",)
    assert command.options(["--grpc-references"]).order.plan.grpc_references == ()


def test_without_h2load_unary_calls_are_sent_by_the_own_client(monkeypatch):
    monkeypatch.setattr(clients, "missing", lambda name: f"{name} is not installed")
    assert command.options(["--only", "grpc-unary"]).order.plan.grpc_clients == ("own",)


def test_comparing_takes_three_rounds():
    order = command.options(["--compare", "HEAD~1", "http://127.0.0.1:8000"]).order
    assert order.plan.rounds == 3
    assert [target.label for target in order.targets] == ["HEAD~1", "http://127.0.0.1:8000"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare", "HEAD"], "two or more different"),
        (["--compare", "HEAD", "HEAD"], "two or more different"),
        (["--compare", "HEAD", "https://x:1"], "no http://host:port"),
        (["--only", "nothing"], "invalid choice"),
        (["--seconds", "0"], "invalid number of seconds"),
        (["--grpc-client", "wrk"], "invalid choice"),
        (["--grpc-references", "nobody"], "invalid choice"),
        (["--rounds", "0"], "invalid positive number"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused_with_the_reason(arguments, message, capsys):
    with pytest.raises(SystemExit):
        command.options(arguments)
    assert message in capsys.readouterr().err


def test_a_missing_client_is_named_with_its_package(monkeypatch, capsys):
    monkeypatch.setattr(clients, "missing", lambda name: f"{name} is not installed")
    with pytest.raises(SystemExit):
        command.options(["--client", "h2load"])
    assert "h2load is not installed" in capsys.readouterr().err


def test_without_load_no_client_is_needed(monkeypatch):
    monkeypatch.setattr(clients, "missing", lambda name: f"{name} is not installed")
    assert command.options(["--only", "memory"]).order.plan.scenarios == []


def test_the_models_can_be_written_for_another_server(tmp_path, capsys):
    pytest.importorskip("onnx")
    with pytest.raises(SystemExit) as ended:
        command.options(["--write-repository", str(tmp_path / "models")])
    assert ended.value.code == 0
    assert (tmp_path / "models" / "python_add_sub" / "1" / "model.py").is_file()
    assert (tmp_path / "models" / "onnx_add_sub" / "1" / "model.onnx").is_file()
    assert "onnx_identity" in capsys.readouterr().out
