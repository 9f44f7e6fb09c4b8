"""A whole server over each object storage: it resumes a broken download and swaps in what is new."""

import os

import pytest

from tests.survival.changing import code, config, identity, load, policy, until_states
from tests.survival.server import served

pytestmark = [pytest.mark.slow, pytest.mark.system]

WEIGHTS = os.urandom(12 << 20)
CUT_AFTER = 5 << 20


@pytest.fixture
def model(emulator):
    """A bucket with one model, of two small files and a large one."""
    bucket = f"serving{os.urandom(4).hex()}"
    emulator.make_bucket(bucket)
    emulator.put(bucket, "models/telling/config.pbtxt", config(policy("latest { num_versions: 1 }")).encode())
    emulator.put(bucket, "models/telling/1/model.py", code(1).encode())
    emulator.put(bucket, "models/telling/1/weights.bin", WEIGHTS)
    return bucket


async def test_a_server_goes_on_with_a_download_where_another_was_cut_off(emulator, model, wire_to, tmp_path):
    wire = wire_to(emulator.port)
    uri, environ = emulator.uri(model, "models", wire.port), emulator.environ(wire.port)
    flags = (
        "--model-control-mode=explicit",
        f"--model-cache-directory={tmp_path / 'cache'}",
    )

    def server(life, **options):
        return served(uri, *flags, files=tmp_path / f"life-{life}", environ=environ, **options)

    wire.break_after(CUT_AFTER)
    async with server(1, exit_status=None) as first:
        answer = await load(first, "telling")
        assert answer.status == 500
        assert answer.error.startswith("failed to load 'telling', failed to poll from model repository: ")
        assert wire.broken.is_set()
        first.kill_all()
    wire.mend()
    async with server(2) as second:
        assert (await load(second, "telling")).status == 200
        assert await identity(second, "telling") == (1, 1)
    assert wire.down < len(WEIGHTS) - CUT_AFTER + (2 << 20)
    wire.mend()
    async with server(3) as third:
        assert (await load(third, "telling")).status == 200
    assert wire.down < 1 << 20  # everything was there


async def test_a_new_version_in_a_storage_is_swapped_in(emulator, model, tmp_path):
    flags = (
        "--model-control-mode=poll",
        "--repository-poll-secs=0.2",
        f"--model-cache-directory={tmp_path / 'cache'}",
    )
    uri, environ = emulator.uri(model, "models"), emulator.environ()
    async with served(uri, *flags, files=tmp_path / "server", environ=environ) as server:
        assert await identity(server, "telling") == (1, 1)
        emulator.put(model, "models/telling/2/model.py", code(2).encode())
        await until_states(server, "telling", {1: "UNAVAILABLE", 2: "READY"})
        assert await identity(server, "telling") == (2, 2)
