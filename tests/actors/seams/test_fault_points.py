"""Fault points: the list matches the code, an unarmed point changes nothing, and disarming restores all."""

import contextlib
import socket
from functools import partial

import pytest
import trio

import engine.server.tree  # noqa: F401  # with it come all modules that have points
from actors.seams.fault_points import NAMES, Place, arm, armed, fault_point, places
from engine.observability.loop_lag import LoopLag
from engine.processes.launch import Spawner
from protocols.grpc.listener import GrpcListener
from protocols.http.app import V2App
from protocols.http.listener import HttpListener
from tests.protocols.fakes import FakeServer


def fail():
    raise ZeroDivisionError("armed")


def test_the_names_are_those_of_the_code():
    assert set(places()) == set(NAMES)


def test_a_function_that_is_marked_stays_what_it_is_and_is_put_back_when_disarmed():
    before = LoopLag.__dict__["record"]
    assert before.__module__ == "engine.observability.loop_lag"
    assert not hasattr(before, "__wrapped__")
    with armed("loop_lag.record", lambda: None):
        assert LoopLag.__dict__["record"] is not before
    assert LoopLag.__dict__["record"] is before


def test_an_action_is_called_in_front_of_the_function_and_what_it_raises_comes_out():
    lag = LoopLag()
    with armed("loop_lag.record", fail), pytest.raises(ZeroDivisionError, match="armed"):
        lag.record(0.5, 1.0)
    assert lag.last == 0.0
    called = []
    with armed("loop_lag.record", lambda: called.append(1)):
        lag.record(0.5, 1.0)
    assert (lag.last, called) == (0.5, [1])


async def test_an_action_in_front_of_a_coroutine_function_may_wait(autojump_clock):
    began = trio.current_time()
    with armed("spawner.run", partial(trio.sleep, 3)):
        assert await Spawner().run(lambda: "done") == "done"
    assert trio.current_time() - began >= 3
    assert places()["spawner.run"] == Place("engine.processes.launch", "Spawner.run", waiting=True)


async def test_an_action_in_front_of_a_plain_function_may_not_wait():
    class Waits:
        def __await__(self):
            raise AssertionError("nobody awaits it")

    with armed("loop_lag.record", Waits), pytest.raises(TypeError, match="may only raise"):
        LoopLag().record(0.1, 1.0)


def test_an_action_may_disarm_its_own_point_and_disarming_twice_changes_nothing():
    before = LoopLag.__dict__["record"]
    lag = LoopLag()

    def once():
        disarm()
        fail()

    disarm = arm("loop_lag.record", once)
    with pytest.raises(ZeroDivisionError):
        lag.record(0.5, 1.0)
    lag.record(0.5, 1.0)
    with armed("loop_lag.record", fail):
        disarm()
        with pytest.raises(ZeroDivisionError):
            lag.record(0.5, 1.0)
    assert LoopLag.__dict__["record"] is before


def test_what_is_no_point_or_armed_already_is_refused():
    with pytest.raises(KeyError, match=r"there are .*batcher\.turn"):
        arm("batcher.trun", fail)
    with armed("batcher.turn", fail), pytest.raises(ValueError, match="is armed; disarm it first"):
        arm("batcher.turn", fail)


def test_a_point_is_a_method_of_one_class_and_has_a_name_of_the_list():
    with pytest.raises(ValueError, match="'nowhere' is no fault point"):
        fault_point("nowhere")
    with pytest.raises(TypeError, match="has to be a plain method"):
        fault_point("batcher.turn")(staticmethod(fail))
    with pytest.raises(ValueError, match=r"is Scheduler\.turn already"):
        fault_point("batcher.turn")(LoopLag.record)


@pytest.mark.parametrize(
    ("point", "make"),
    [
        ("http.connection", lambda: HttpListener(V2App(FakeServer().server))),
        ("http.accept", lambda: HttpListener(V2App(FakeServer().server))),
        ("grpc.connection", lambda: GrpcListener([], on_crash=lambda path, bug: None)),
        ("grpc.accept", lambda: GrpcListener([], on_crash=lambda path, bug: None)),
    ],
)
async def test_a_connection_that_crashes_as_it_begins_leaves_nothing_that_the_end_would_wait_for(point, make):
    listener = make()
    crashes = []

    async def survived(run, *args):
        try:
            await run(*args)
        except* ZeroDivisionError as group:
            crashes.extend(group.exceptions)

    with socket.create_server(("127.0.0.1", 0)) as sock, trio.fail_after(10), armed(point, fail):
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
