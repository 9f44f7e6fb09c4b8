"""Clients that misbehave, against a real server under a small load.

Other clients do not notice, and the fault itself has no complaint.
"""

import random
from functools import partial

import pytest
import trio

from chaos.faults.network import clients, crowds
from chaos.faults.network.asking import Question, together
from chaos.wires.frames import GrpcAnswer
from chaos.wires.http import Broken, Connection, Reply, chunked, request
from tests.chaos.faults_bench import bench


@pytest.mark.long
@pytest.mark.parametrize("faults", [clients.FAULTS, crowds.FAULTS], ids=["alone", "in crowds"])
async def test_clients_that_misbehave_harm_nobody_else(tmp_path, faults):
    async with bench(tmp_path) as made:
        assert {each.name: await made.trouble(each) for each in faults} == {each.name: "" for each in faults}
    assert all(excuse.own for each in made.injections for excuse in each.excuses)


@pytest.mark.long
async def test_floods_are_in_the_history_under_their_priority_tenant_and_fault(tmp_path):
    async with bench(tmp_path) as made:
        for each in crowds.FAULTS[:2]:
            await made.strike(each)
    flooding = {(each.model, each.priority, each.tenant) for each in made.asked() if each.by}
    assert flooding == {("slow", 2, ""), ("slow", 0, "flood")}


@pytest.mark.long
async def test_the_limit_on_descriptors_is_given_back(tmp_path):
    (idle,) = (each for each in crowds.FAULTS if each.name == "idle_connections")
    async with bench(tmp_path) as made:
        before = await made.server.metric("process_max_fds")
        assert await made.trouble(idle) == ""
        assert made.logged("listener_exhausted")
        assert await made.server.metric("process_max_fds") == before


# -- what faults say of a server that does not keep its promises


def question(model="echo"):
    return Question.draw(model, random.Random(1))


def http(status, body=b""):
    return Reply(status, {}, body)


def answered(asked, value, **rest):
    outputs = [{"name": "ANSWER", "datatype": "INT32", "shape": [1, 1], "data": [value]}]
    return http(200, repr({"id": asked.invoke.id, "outputs": outputs, **rest}).replace("'", '"').encode())


def test_the_right_answer_is_no_trouble():
    asked = question()
    assert asked.judge_http(answered(asked, asked.invoke.value)) == ""


def test_that_a_model_is_not_available_is_left_to_the_ordinary_load_to_tell():
    assert question().judge_http(http(503)) == ""
    assert question().judge_grpc(GrpcAnswer(status=14)) == ""


def test_wrong_values_anothers_answer_and_other_errors_are_trouble():
    asked = question()
    assert "not" in asked.judge_http(answered(asked, asked.invoke.value + 1))
    assert "the answer to request 'r1' came" in asked.judge_http(answered(asked, asked.invoke.value, id="r1"))
    assert "HTTP 500" in asked.judge_http(http(500, b"oh"))
    assert "status 13" in asked.judge_grpc(GrpcAnswer(status=13, details="oh"))


async def test_a_broken_connection_and_an_answer_that_does_not_come_are_trouble():
    async def broken():
        raise Broken("it broke")

    async def late():
        await trio.sleep_forever()

    async def fine():
        return ""

    troubles = await together([broken, late, fine], patience=0)
    assert sorted(troubles) == ["it broke", "not over after 0 s"]


# -- what they send


def test_a_request_names_its_length_and_its_headers():
    assert request("GET", "/v2", x_tenant="a") == (
        b"GET /v2 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nx-tenant: a\r\n\r\n"
    )


def test_chunks_are_of_one_byte_each():
    assert chunked("/p", b"ab").endswith(b"\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n")


async def echoing(stream):
    async for piece in stream:
        await stream.send_all(piece)


async def test_what_trickles_arrives_whole_and_a_reset_is_one():
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, echoing, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        async with await Connection.open(port) as connection:
            await connection.trickle(b"abcdefg", pieces=3, pause=0)
            assert await connection.take(7) == b"abcdefg"
            await connection.half_close()
            assert await connection.wait_ended() == b""
        nursery.cancel_scope.cancel()


async def test_whoever_is_reset_is_told_so():
    async def reset_by_peer(stream):
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        raised.append(True)
        nursery.cancel_scope.cancel()

    raised: list[bool] = []
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, reset_by_peer, 0, host="127.0.0.1"))
        connection = await Connection.open(listener.socket.getsockname()[1])
        connection.reset()
        await trio.sleep_forever()
    assert raised == [True]
