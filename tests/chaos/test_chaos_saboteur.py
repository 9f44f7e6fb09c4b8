"""The saboteur: its orders, its effects on the tree beside it, and an otherwise unchanged server."""

import json
import socket
import stat
import time
from pathlib import Path

import pytest
import trio

from actors.supervision.supervisor import Supervisor
from chaos.saboteur import SabotagedMachine, Saboteur, listen, main, open_socket
from chaos.subject.sabotage import SabotageClient, SabotageRefused
from chaos.subject.server import LogLines, served
from chaos.workload.repository import write_repository
from tests.support.logged import Logged
from tests.support.trees import Puppet, serving, settled
from tests.survival.server import eventually


def saboteur(root, log=None):
    return Saboteur(root, SabotagedMachine(), Logged() if log is None else log)


def answer(to, **command):
    return json.loads(to.obey(json.dumps(command).encode()))


async def test_an_actor_is_killed_by_its_path_and_the_log_says_by_whom(autojump_clock):
    puppet, log = Puppet("scheduler"), Logged()
    async with serving(Supervisor([Supervisor([puppet.spec()]).spec("models")])) as tree:
        assert answer(saboteur(tree.root, log), do="crash", path="models/scheduler") == {"ok": None}
        await settled()
    assert puppet.lives == 2
    assert log == [("fault_injected", "warning", {"fault": "crash", "target": "models/scheduler"})]


async def test_the_paths_that_can_be_crashed_are_those_of_the_tree(autojump_clock):
    async with serving(Supervisor([Supervisor([Puppet("a").spec()]).spec("s"), Puppet("b").spec()])) as tree:
        assert answer(saboteur(tree.root), do="list") == {"ok": ["s", "s/a", "b"]}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ({"do": "crash", "path": "nobody"}, "nothing at 'nobody'"),
        ({"do": "raise", "point": "nowhere"}, "no fault point 'nowhere'"),
        ({"do": "raise", "point": "batcher.turn", "times": 0}, "1 at least"),
        ({"do": "dance"}, "`do` is one of crash, raise, disarm, jump, list"),
        ({"do": "crash"}, "no command"),
        ({}, "no command"),
    ],
)
async def test_what_can_not_be_done_is_refused_with_the_reason(autojump_clock, command, why):
    async with serving(Supervisor([Puppet("a").spec()])) as tree:
        assert why in answer(saboteur(tree.root), **command)["error"]


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'"crash"', b"\xff\xfe"])
async def test_a_line_that_is_no_command_is_refused(autojump_clock, line):
    async with serving(Supervisor([Puppet("a").spec()])) as tree:
        assert "no command" in json.loads(saboteur(tree.root).obey(line))["error"]


def test_the_wall_clock_jumps_and_the_monotonic_one_goes_on():
    machine = SabotagedMachine()
    before, steady = machine.wall_clock(), machine.monotonic()
    machine.jump(-3600)
    assert before - 3_601_000 < machine.wall_clock() < before - 3_000_000
    machine.jump(7200)
    assert machine.wall_clock() > before + 3_599_000
    assert machine.monotonic() - steady < 600


def test_the_socket_is_for_this_user_alone(tmp_path):
    with open_socket(tmp_path / "socket"):
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) & 0o077 == 0


def test_a_path_that_is_taken_is_refused_before_anything_runs(tmp_path, capsys):
    path = tmp_path / "socket"
    path.touch()
    flags = [f"--model-repository={tmp_path}", f"--sabotage-socket={path}"]
    assert main(flags) == 1
    assert "give a path at which nothing is yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [[], ["--sabotage-socket="], ["--sabotage-socket=a", "--sabotage-socket=b"]]
)
def test_exactly_one_socket_has_to_be_named(flags, capsys):
    assert main(flags) == 1
    assert "usage: python -m chaos.saboteur" in capsys.readouterr().err


async def test_clients_are_answered_one_command_after_the_other(tmp_path):
    puppet = Puppet("a")
    async with serving(Supervisor([puppet.spec()])) as tree:
        with open_socket(tmp_path / "socket") as listening:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen, listening, saboteur(tree.root))
                client = SabotageClient(tmp_path / "socket")
                await client.crash("a")
                with pytest.raises(SabotageRefused, match="nothing at 'b'"):
                    await client.crash("b")
                assert list(await client.list()) == ["a"]
                assert await client.disarm("batcher.turn") is False
                nursery.cancel_scope.cancel()
    assert puppet.lives == 2


async def test_who_goes_away_in_the_middle_of_a_command_disturbs_nobody(tmp_path):
    async with serving(Supervisor([Puppet("a").spec()])) as tree:
        with open_socket(tmp_path / "socket") as listening:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen, listening, saboteur(tree.root))
                with socket.socket(socket.AF_UNIX) as rude:
                    rude.connect(str(tmp_path / "socket"))
                    rude.sendall(b'{"do": "list"}\n{"do": "cra')
                assert list(await SabotageClient(tmp_path / "socket").list()) == ["a"]
                nursery.cancel_scope.cancel()


# -- beside a real server


@pytest.mark.system
@pytest.mark.slow
async def test_a_fault_point_raises_in_the_server_and_its_clock_jumps_but_that_of_the_log(tmp_path: Path):
    write_repository(tmp_path / "models", run=tmp_path, models=["echo"])
    async with served(tmp_path / "models", tmp_path / "server", sabotage=tmp_path / "socket") as server:
        client = SabotageClient(tmp_path / "socket")
        began = time.time()  # noqa: TID251
        await client.jump(-86_400)
        await client.fail("metrics.scrape")  # nothing scrapes here, so that it stays armed
        with pytest.raises(SabotageRefused, match="is armed"):
            await client.fail("metrics.scrape")
        assert await client.disarm("metrics.scrape")
        await client.fail("loop_lag.record")

        def logged(event, **keys):
            lines = [*LogLines(server.out).fresh(), *LogLines(server.err).fresh()]
            return [each for each in lines if each.get("event") == event and keys.items() <= each.items()]

        async def restarted():
            return bool(logged("child_restarted", actor="telemetry/loop-lag"))

        await eventually(restarted)
        assert not await client.disarm("loop_lag.record")
        asked = {"name": "VALUE", "shape": [1, 1], "datatype": "INT32", "data": [1]}
        await server.ask(
            "/v2/models/echo/infer", method="POST", body=json.dumps({"inputs": [asked]}).encode()
        )
        [statistics] = json.loads((await server.ask("/v2/models/echo/stats")).body)["model_stats"]
        assert began - 86_500 < statistics["last_inference"] / 1000 < began - 80_000
        jump = logged("fault_injected", fault="jump", seconds=-86_400)
        assert jump[0]["timestamp"] >= time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(began - 1))
        assert "InjectedFault" in logged("child_exited", actor="telemetry/loop-lag")[0]["reason"]
        with pytest.raises(SabotageRefused, match="no fault point"):
            await client.fail("nothing.at_all")
        assert await server.stop() == 0
    assert not (tmp_path / "socket").exists()
