"""Which sockets a server opens, how servers share a port, and which server may have a Unix socket's path."""

import errno
import os
import socket
import stat
from contextlib import ExitStack
from typing import Any

import pytest

from engine.server.sockets import AddressInUse, bind, open_sockets, unix_listening
from engine.settings.cloud.platforms import CloudSettings, SageMakerSettings, VertexSettings
from engine.settings.listening import GrpcSettings
from engine.settings.management import ManagementSettings
from engine.settings.settings import Settings

PLATFORMS = CloudSettings(
    sagemaker=SageMakerSettings(allow=True, port=0), vertex=VertexSettings(allow=True, port=0)
)
APART = ManagementSettings(address="127.0.0.1", http_port=0, grpc_port=0)


def settings(**changes):
    ports: dict[str, Any] = {
        "http_address": "127.0.0.1",
        "http_port": 0,
        "metrics_address": "127.0.0.1",
        "metrics_port": 0,
    }
    grpc = changes.pop("grpc", GrpcSettings(address="127.0.0.1", port=0))
    return Settings(model_repositories=("/models",), grpc=grpc, **ports | changes)


def names(sockets):
    every = (
        "http",
        "grpc",
        "grpc_unix",
        "metrics",
        "management_http",
        "management_grpc",
        "sagemaker",
        "vertex",
    )
    return {name for name in every if getattr(sockets, name) is not None}


@pytest.mark.parametrize(
    ("changes", "http", "opened"),
    [
        ({}, True, {"http", "grpc", "metrics"}),
        ({}, False, {"grpc", "metrics"}),
        ({"allow_http": False}, True, {"grpc", "metrics"}),
        ({"allow_grpc": False}, True, {"http", "metrics"}),
        ({"allow_metrics": False}, True, {"http", "grpc"}),
        ({"management": APART}, True, {"http", "grpc", "metrics", "management_http", "management_grpc"}),
        ({"management": APART}, False, {"grpc", "metrics", "management_http", "management_grpc"}),
        (
            {"management": APART, "allow_http": False},
            True,
            {"grpc", "metrics", "management_http", "management_grpc"},
        ),
        ({"management": APART, "allow_grpc": False}, True, {"http", "metrics", "management_http"}),
        ({"cloud": PLATFORMS}, True, {"http", "grpc", "metrics", "sagemaker", "vertex"}),
        ({"cloud": PLATFORMS, "allow_http": False}, False, {"grpc", "metrics", "sagemaker", "vertex"}),
    ],
)
def test_what_is_allowed_is_opened(changes, http, opened):
    with open_sockets(settings(**changes), http=http) as sockets:
        assert names(sockets) == opened


def test_a_port_that_is_taken_leaves_no_other_open(tmp_path):
    path = tmp_path / "grpc"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        grpc = GrpcSettings(address="127.0.0.1", port=0, unix_socket=str(path))
        with pytest.raises(AddressInUse), open_sockets(settings(grpc=grpc, metrics_port=port)):
            pass
    assert not path.exists()


def test_a_port_is_shared_by_those_who_say_so_and_by_no_others():
    with bind("127.0.0.1", 0, reuse_port=True) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", port, reuse_port=True) as second:
            assert second.getsockname()[1] == port
        with pytest.raises(AddressInUse):
            bind("127.0.0.1", port)


def test_servers_share_the_http_port_where_both_say_so():
    with open_sockets(settings(http_reuse_port=True)) as first:
        assert first.http is not None
        port = first.http.getsockname()[1]
        with open_sockets(settings(http_port=port, http_reuse_port=True)) as second:
            assert second.http is not None
            assert second.http.getsockname()[1] == port
        with pytest.raises(AddressInUse) as caught, open_sockets(settings(http_port=port)):
            pass
    assert str(caught.value) == f"Socket '127.0.0.1:{port}' already in use "
    assert caught.value.hint == "another process listens there; --http-port=PORT takes another port"


# -- Unix sockets


def connect(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_unix_socket_is_there_while_it_is_served(tmp_path):
    path = tmp_path / "grpc"
    with unix_listening(str(path)) as sock:
        assert sock.getsockname() == str(path)
        connect(path)
    assert not path.exists()


def test_a_unix_socket_may_be_named_from_where_the_server_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with unix_listening("grpc"):
        connect(tmp_path / "grpc")


def test_what_a_server_that_died_left_behind_is_taken_over(tmp_path):
    path = tmp_path / "grpc"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert stat.S_ISSOCK(path.stat().st_mode)
    with unix_listening(str(path)):
        connect(path)


def test_a_unix_socket_that_is_served_is_not_taken_over(tmp_path):
    path = str(tmp_path / "grpc")
    with unix_listening(path):
        with pytest.raises(AddressInUse) as caught, unix_listening(path):
            pass
        connect(path)
    assert str(caught.value) == f"Socket 'unix:{path}' already in use "


def test_a_unix_socket_whose_server_is_slow_to_accept_is_not_taken_over(tmp_path):
    path = str(tmp_path / "grpc")
    with ExitStack() as clients, socket.socket(socket.AF_UNIX) as busy:
        busy.bind(path)
        busy.listen(0)
        status = 0
        while status == 0:
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            status = client.connect_ex(path)
        assert status == errno.EAGAIN
        with pytest.raises(AddressInUse, match="already in use"), unix_listening(path):
            pass


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_no_socket_is_left_alone(tmp_path, kind):
    path = tmp_path / "grpc"
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AddressInUse, match="there is a file that is no socket"), unix_listening(str(path)):
        pass
    assert os.path.lexists(path)


def test_a_directory_that_does_not_exist_is_told(tmp_path):
    path = tmp_path / "missing" / "grpc"
    with pytest.raises(AddressInUse) as caught, unix_listening(str(path)):
        pass
    assert str(caught.value) == f"Socket 'unix:{path}' can't be opened: No such file or directory"


def test_what_somebody_else_put_in_its_place_is_left_there(tmp_path):
    path = tmp_path / "grpc"
    with unix_listening(str(path)):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"
