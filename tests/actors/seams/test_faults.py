"""Fault points: the list matches the code, and what is armed happens where the code passes."""

import ast
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.seams import faults
from actors.seams.faults import NAMES, Points
from engine.observability.system import LoopLag
from protocols.grpc.listener import GrpcListener
from protocols.http.app import V2App
from protocols.http.listener import HttpListener
from tests.protocols.fakes import FakeServer

ROOT = Path(__file__).parents[3]


def fail():
    raise ZeroDivisionError("armed")


@pytest.fixture
def points():
    with faults.given(Points()):
        yield faults.points


def passed_in(source):
    """Yield the name of each fault point in a source file."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "faults.points.passing":
            yield ast.literal_eval(node.args[0])


def test_the_names_are_those_of_the_code_and_each_is_in_one_place():
    passed = [
        name
        for room in ("actors", "protocols", "engine")
        for source in (ROOT / room).rglob("*.py")
        if source != ROOT / "actors/seams/faults.py"
        for name in passed_in(source)
    ]
    assert sorted(passed) == sorted(NAMES)


def test_a_server_has_no_points_unless_they_are_given():
    assert faults.points is None
    with faults.given(Points()):
        assert faults.points is not None
    assert faults.points is None


def test_an_action_is_called_where_the_code_passes_and_what_it_raises_comes_out(points):
    lag = LoopLag()
    disarm = points.arm("loop_lag.record", fail)
    with pytest.raises(ZeroDivisionError, match="armed"):
        lag.record(0.5, 1.0)
    assert lag.last == 0.0
    disarm()
    called = []
    points.arm("loop_lag.record", lambda: called.append(1))
    lag.record(0.5, 1.0)
    assert (lag.last, called) == (0.5, [1])


def test_an_action_may_disarm_its_own_point_and_disarming_twice_changes_nothing(points):
    lag = LoopLag()

    def once():
        disarm()
        fail()

    disarm = points.arm("loop_lag.record", once)
    with pytest.raises(ZeroDivisionError):
        lag.record(0.5, 1.0)
    lag.record(0.5, 1.0)
    points.arm("loop_lag.record", fail)
    disarm()
    with pytest.raises(ZeroDivisionError):
        lag.record(0.5, 1.0)


def test_what_is_no_point_or_armed_already_is_refused(points):
    with pytest.raises(KeyError, match=r"there are .*batcher\.turn"):
        points.arm("batcher.trun", fail)
    points.arm("batcher.turn", fail)
    with pytest.raises(ValueError, match="is armed; disarm it first"):
        points.arm("batcher.turn", fail)


@pytest.mark.parametrize(
    ("point", "make"),
    [
        ("http.connection", lambda: HttpListener(V2App(FakeServer().server))),
        ("http.accept", lambda: HttpListener(V2App(FakeServer().server))),
        ("grpc.connection", lambda: GrpcListener([], on_crash=lambda path, bug: None)),
        ("grpc.accept", lambda: GrpcListener([], on_crash=lambda path, bug: None)),
    ],
)
async def test_a_connection_that_crashes_as_it_begins_leaves_nothing_that_the_end_would_wait_for(
    points, point, make
):
    points.arm(point, fail)
    listener = make()
    crashes: list[Any] = []

    async def survived(run, *args):
        try:
            await run(*args)
        except* ZeroDivisionError as group:
            crashes.extend(group.exceptions)

    with socket.create_server(("127.0.0.1", 0)) as sock, trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            def spawn(name, run):
                nursery.start_soon(survived, run, name=name)

            nursery.start_soon(survived, listener.serve, sock, spawn)
            client = await trio.open_tcp_stream(*sock.getsockname())
            with contextlib.suppress(trio.BrokenResourceError):  # as good an end
                assert await client.receive_some() == b""
            listener.drain()
            await listener.wait_drained()
    assert len(crashes) == 1
    await client.aclose()
    listener.close()
