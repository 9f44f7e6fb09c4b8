"""Workers that die, stop and loop while a server goes on; and what a serving process must not contain."""

from pathlib import Path

import numpy as np

from tests.survival.repository import WIDTH, instances


async def test_the_server_process_contains_no_framework(tritium_server, repository):
    repository.onnx_add_sub(config=instances(1))
    repository.torch_doubling()
    async with tritium_server() as server, await server.connect() as client:
        ones = np.ones((1, WIDTH), np.float32)
        assert (await client.infer("onnx_add_sub", inputs={"A": ones, "B": ones})).status == 200
        assert (await client.infer("torch_doubling", inputs={"INPUT__0": ones})).status == 200
        assert "onnxruntime" in mapped((await server.workers("onnx_add_sub"))[0])
        assert "libtorch" in mapped((await server.workers("torch_doubling"))[0])
        for framework in ("onnxruntime", "libtorch", "/torch/"):
            assert framework not in mapped(server.pid)


def mapped(pid):
    """What files a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text()
