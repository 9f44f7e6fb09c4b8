"""What workers see of the server's environment, which hardware exists, and which addresses can be bound."""

import socket

import pytest

from engine.processes.inheritance import scrubbed
from engine.processes.placement import gpu_count
from engine.server.sockets import AddressInUse, bind


def test_a_minimal_environment_has_what_programs_need():
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "2",
        "HF_HOME": "/hf",
    }
    assert scrubbed(environ) == {**environ, "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "DATABASE_URL",
        "TRITIUM_TOKEN",
        "HF_TOKEN",
        "NVIDIA_API_KEY",
        "ORT_SECRET",
        "TORCH_PASSWORD",
        "PATHS",
    ],
)
def test_a_minimal_environment_has_no_secret(name):
    assert scrubbed({name: "hidden"}) == {"PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 3),
        ("", 0),
        ("-1", 0),
        ("0", 1),
        ("2, 1", 2),
        ("0,-1,1", 1),
        ("0,1,2,3,4", 3),
        ("GPU-8f2,GPU-9a1", 2),
    ],
)
def test_gpus_are_counted_as_the_driver_would_show_them(tmp_path, visible, count):
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu_count(environ, tmp_path) == count


def test_without_device_nodes_there_are_no_gpus(tmp_path):
    assert gpu_count({}, tmp_path / "missing") == 0
    assert gpu_count({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path) == 0


def test_a_listener_gets_its_address():
    with bind("127.0.0.1", 0) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def test_a_taken_address_is_refused_in_the_contracts_words():
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(AddressInUse) as caught:
            bind("127.0.0.1", port)
    assert str(caught.value) == f"Socket '127.0.0.1:{port}' already in use "


@pytest.mark.parametrize(
    ("address", "shown"), [("192.0.2.1", "192.0.2.1:0"), ("2001:db8::1", "[2001:db8::1]:0")]
)
def test_an_address_that_is_not_ours_is_refused_with_the_systems_reason_and_no_more(address, shown):
    with pytest.raises(AddressInUse) as caught:
        bind(address, 0)
    assert str(caught.value).startswith(f"Socket '{shown}' can't be opened: ")
    assert "(" not in str(caught.value)


def test_an_ipv6_address_in_brackets_is_refused_with_how_to_write_it():
    with pytest.raises(AddressInUse) as caught:
        bind("[::1]", 0)
    assert str(caught.value) == (
        "Socket '[::1]:0' can't be opened: an IPv6 address is given without brackets, such as ::1"
    )
