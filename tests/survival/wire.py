"""HTTP as bytes on a socket: a client that notices an answer too many, which a library would hide."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import trio

_PATIENCE = 60.0


class Lost(Exception):
    """The connection ended without an answer."""


@dataclass(frozen=True, slots=True)
class Response:
    """One answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's JSON part."""
        return json.loads(
            self.body[: int(self.headers.get("inference-header-content-length", len(self.body)))]
        )

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
        at = int(self.headers["inference-header-content-length"])
        found = {}
        for output in self.json()["outputs"]:
            size = output["parameters"]["binary_data_size"]
            dtype = {"FP32": np.float32, "INT32": np.int32}[output["datatype"]]
            found[output["name"]] = np.frombuffer(self.body[at : at + size], dtype).reshape(output["shape"])
            at += size
        return found


class Connection:
    """One keep-alive connection. `request` is `send` and `receive` in one."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect. Raises OSError if no server listens on `port`."""
        sock = trio.socket.socket()
        try:
            await sock.connect(("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return cls(trio.SocketStream(sock))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave, without saying anything."""
        self._stream.socket.close()

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Response:
        """Send a request and wait for its answer."""
        await self.send(message(method, path, body, **headers))
        return await self.receive()

    async def infer(self, model: str, **fields: Any) -> Response:
        """Have a model infer; see `inference` for the fields."""
        await self.send(inference(model, **fields))
        return await self.receive()

    async def send(self, data: bytes) -> None:
        """Send bytes as they are. Raises Lost."""
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            raise Lost("the connection broke while a request was sent") from error

    async def receive(self) -> Response:
        """Wait for one whole answer. Raises Lost, and AssertionError for surplus bytes behind it."""
        with trio.fail_after(_PATIENCE):
            while (end := self._buffer.find(b"\r\n\r\n")) < 0:
                await self._more()
            lines = self._buffer[:end].decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
            }
            size = int(headers.get("content-length", 0))
            while len(self._buffer) < end + 4 + size:
                await self._more()
        body = bytes(self._buffer[end + 4 :])
        self._buffer.clear()
        assert len(body) == size, f"an answer, and {len(body) - size} bytes more: {body[size:][:200]!r}"
        return Response(int(lines[0].split(" ")[1]), headers, body)

    async def wait_closed(self) -> None:
        """Wait until the server has closed the connection. Raises AssertionError if it sends anything."""
        with trio.fail_after(_PATIENCE):
            try:
                assert await self._stream.receive_some() == b""
            except trio.BrokenResourceError:
                return

    async def silent(self, seconds: float) -> bool:
        """Whether nothing arrives for so long."""
        with trio.move_on_after(seconds):
            await self._more()
            return False
        return True

    async def _more(self) -> None:
        try:
            data = await self._stream.receive_some(65536)
        except trio.BrokenResourceError as error:
            raise Lost("the connection broke before the answer") from error
        if not data:
            raise Lost(f"the connection ended before the answer, after {bytes(self._buffer[:100])!r}")
        self._buffer += data


def message(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """Return the bytes of a request; `_` in the headers' names stands for `-`."""
    fields = {"host": "localhost", "content-length": str(len(body)), **headers}
    lines = [
        f"{method} {path} HTTP/1.1",
        *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


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
