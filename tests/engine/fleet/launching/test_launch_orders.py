"""What launched servers are told, what the registry holds, and whether a cluster has room: values alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.fleet.launching import registry
from engine.fleet.launching.flags import Ports, command_words, ports_of, value_of, what_is_wrong
from engine.fleet.launching.registry import LaunchedServer, LaunchOrder, Phase, StandingOrder
from engine.fleet.launching.room import bundle, what_lacks

FREE = (1111, 2222, 3333)
ENTRY = LaunchedServer(name="g-1-0", node="ab", host="10.0.0.1", http_port=80, labels={"zone": "a"}, boot="7")


def node(alive=True, **resources):
    return {"Alive": alive, "Resources": resources}


def test_servers_have_free_ports_unless_flags_name_some():
    assert ports_of((), FREE) == Ports(*FREE)
    assert ports_of(("--http-port=8000", "--grpc-port", "8001", "--metrics-port=0"), FREE) == Ports(
        8000, 8001, 3333
    )
    assert ports_of(("--http-port=8000", "--http-port=9000"), FREE).http == 9000


@pytest.mark.parametrize("off", ["false", "off", "0", "FALSE"])
def test_what_is_switched_off_has_no_port(off):
    ports = ports_of((f"--allow-grpc={off}", "--allow-metrics", off), FREE)
    assert ports == Ports(1111, 0, 0)
    assert command_words(["/models"], "g-1-0", ports) == [
        "/models",
        "--http-port=1111",
        "--replica-name=g-1-0",
    ]


def test_a_server_is_named_and_has_its_ports_after_the_flags_given():
    words = command_words(["/models", "--http-port=0"], "g-1-0", Ports(*FREE))
    assert words[:2] == ["/models", "--http-port=0"]
    assert (value_of(words, "http-port"), value_of(words, "replica-name")) == ("1111", "g-1-0")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--replica-name=me"], "--replica-name can't be given to servers of a group: each"),
        (["--reuse-http-port", "true"], "--reuse-http-port can't be given"),
        (["--allow-http=false"], "--allow-http=false can't be given to servers of a group: a fleet asks"),
        (["/models", "--allow-http=true"], ""),
    ],
)
def test_flags_that_a_group_can_not_have_are_told(flags, told):
    assert what_is_wrong(flags).startswith(told)
    assert bool(what_is_wrong(flags)) is bool(told)


def test_an_entry_is_read_as_it_was_written_and_what_is_unknown_is_left_out():
    assert LaunchedServer.read(ENTRY.written()) == ENTRY
    later = json.dumps({**json.loads(ENTRY.written()), "of_a_later_version": 1})
    assert LaunchedServer.read(later.encode()) == ENTRY
    assert LaunchedServer.read(ENTRY.written()).phase is Phase.STARTING


def test_an_order_is_read_as_it_was_written():
    order = LaunchOrder(group="g", replicas=2, flags=("/m", "--id=x"), gpus=0.5, labels={"a": "b"})
    assert StandingOrder.read(StandingOrder(order, 3).written()) == StandingOrder(order, 3)


@given(
    group=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    other=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    number=st.integers(1, 10**6),
    index=st.integers(0, 10**4),
)
def test_a_name_belongs_to_one_group(group, other, number, index):
    name = registry.server_name(group, number, index)
    assert registry.set_of(group, name) == number
    assert registry.set_of(other, name) is None or other == group


def test_a_group_whose_name_begins_another_does_not_take_its_servers():
    assert registry.set_of("cats", registry.server_name("cats-1", 2, 0)) is None


def test_nodes_count_that_live_and_have_what_a_server_needs():
    order = LaunchOrder(group="g", replicas=2, cpus=2, gpus=1)
    enough = [node(CPU=2.0, GPU=1.0), node(CPU=8.0, GPU=4.0)]
    assert what_lacks(order, enough) == ""
    assert what_lacks(order, [enough[0], node(alive=False, CPU=8.0, GPU=8.0), node(CPU=8.0)]) == (
        "2 servers need 2 nodes, as each stands on a node of its own. 2 nodes are alive, and 1 of them has"
        " 2 CPUs and 1 GPU"
    )
    assert what_lacks(order, []).endswith("0 nodes are alive, and 0 of them have 2 CPUs and 1 GPU")


def test_nothing_is_reserved_that_was_not_asked_for():
    assert bundle(LaunchOrder(group="g", replicas=1, cpus=0, gpus=0.5)) == {"GPU": 0.5}
    assert bundle(LaunchOrder(group="g", replicas=1)) == {"CPU": 1.0}
