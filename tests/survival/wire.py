"""HTTP as bytes on a socket: a client that notices an answer too many, which a library would hide."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import trio

from chaos.wires import http
from chaos.wires.http import Broken, Reply
from chaos.wires.http import request as message

_PATIENCE = 60.0
_JSON_SIZE = "inference-header-content-length"


Lost = Broken


@dataclass(frozen=True, slots=True)
class Response(Reply):
    """One answer."""

    def json(self) -> Any:
        """The body's JSON part."""
        return json.loads(self.body[: int(self.fields.get(_JSON_SIZE, len(self.body)))])

    @property
    def ok(self) -> bool:
        """Whether it is a success."""
        return self.status == 200

    @property
    def id(self) -> str:
        """The request's id, as it came back."""
        return str(self.json()["id"])

    @property
    def attempts(self) -> int:
        """How often the request was run."""
        return int(self.json().get("parameters", {}).get("attempts", 1))

    @property
    def error(self) -> str:
        """The error message; empty for a success."""
        return str(self.json()["error"]) if self.status >= 400 and self.body else ""

    def tensors(self) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs, which are FP32 or INT32 and were asked for in binary."""
        at = int(self.fields[_JSON_SIZE])
        found = {}
        for output in self.json()["outputs"]:
            size = output["parameters"]["binary_data_size"]
            dtype = {"FP32": np.float32, "INT32": np.int32}[output["datatype"]]
            found[output["name"]] = np.frombuffer(self.body[at : at + size], dtype).reshape(output["shape"])
            at += size
        return found


class Connection(http.Connection):
    """One keep-alive connection. `request` is `send` and `receive` in one."""

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Response:
        """Send a request and wait for its answer."""
        await self.send(message(method, path, body, **headers))
        return await self.receive()

    async def infer(self, model: str, **fields: Any) -> Response:
        """Have a model infer; see `inference` for the fields."""
        await self.send(inference(model, **fields))
        return await self.receive()

    async def receive(self) -> Response:
        """Wait for one whole answer. Raises Lost, also for a second answer behind it."""
        with trio.fail_after(_PATIENCE):
            reply = await self.answer()
        return Response(reply.status, reply.fields, reply.body)

    async def wait_closed(self) -> None:
        """Wait until the server has closed the connection. Raises AssertionError if it sends anything."""
        with trio.fail_after(_PATIENCE):
            assert await self.wait_ended() == b""

    async def silent(self, seconds: float) -> bool:
        """Whether nothing arrives for so long."""
        with trio.move_on_after(seconds):
            await self.read()
            return False
        return True


def inference(
    model: str,
    inputs: Mapping[str, np.ndarray[Any, Any]],
    *,
    request_id: str = "",
    parameters: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the bytes of an inference request; tensors are FP32 or INT32, binary both ways."""
    described = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32" if array.dtype == np.float32 else "INT32",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in inputs.items()
    ]
    asked = {"binary_data_output": True, **(parameters or {})}
    text = json.dumps({"id": request_id, "inputs": described, "parameters": asked}).encode()
    body = text + b"".join(array.tobytes() for array in inputs.values())
    return message("POST", f"/v2/models/{model}/infer", body, inference_header_content_length=str(len(text)))
