"""Bytes that clients write: requests of all kinds, whole and well-formed or not."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

ID = b"######"
"""Stands for the id of a request, which says whose it is, and its place among those of its connection."""

MODELS = ("echo", "held", "held", "held", "texts", "busy", "marked", "fails", "refuses")
ODD_MODELS = ("crashes", "unmarkable", "unresolvable", "streams", "unknown", "he%6cd", "", "held ")
KEY = "Bearer good"


T = TypeVar("T")


def weighted(*choices: tuple[SearchStrategy[T], int]) -> SearchStrategy[T]:
    """Return a strategy that is each of `choices` as often as its number says; simple ones come first."""
    return st.sampled_from([each for each, weight in choices for _ in range(weight)]).flatmap(
        lambda each: each
    )


@dataclass(frozen=True)
class Written:
    """The bytes of one request, or of what a client takes for one."""

    octets: bytes

    def signed(self, name: bytes) -> bytes:
        """Return the bytes with its name in them, which is as long as `ID`."""
        return self.octets.replace(ID, name)

    def __repr__(self) -> str:
        shown = self.octets if len(self.octets) < 1_000 else self.octets[:900] + b"..."
        return f"Written({shown!r}, {len(self.octets)} bytes)"


# A field that changes nothing, or something
FIELDS = (
    "User-Agent: a client",
    "Accept: */*",
    "Accept-Encoding: identity",
    "Accept-Encoding: gzip, deflate;q=0.5",
    "Accept-Encoding: br",
    "Content-Type: application/json",
    "Content-Encoding: identity",
    "Content-Encoding: gzip",
    "Content-Encoding: br",
    "Connection: close",
    "Connection: keep-alive",
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "Expect: 100-continue",
    "Expect: 200-ok",
    "X-Client: c1",
    "X-Tenant: t1",
    "X-Forward-This: v",
    "X-Key: open",
    f"Authorization: {KEY}",
    "Authorization: Bearer bad",
    "Origin: http://page.example",
    "Sec-Fetch-Site: cross-site",
    "Sec-Fetch-Site: same-origin",
    "Content-Type: text/plain",
    "Forwarded: for=1.2.3.4",
    "Host: again",
    "Content-Length: 0",
    "Content-Length: 3",
    "Content-Length : 3",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Inference-Header-Content-Length: 0",
    "Inference-Header-Content-Length: 1",
    "Inference-Header-Content-Length: -1",
    "Inference-Header-Content-Length: 99999999",
    "Inference-Header-Content-Length: x",
    "inference-header-content-length: 20",
    "Cookie: a=b; c=d",
    "X-Long: " + "l" * 3_000,
    "X-Longer: " + "l" * 70_000,
    "X-Odd: \x00",
    ": empty",
    " folded",
    "no colon",
)
PATHS = (
    "/v2/health/live",
    "/v2/health/ready",
    "/v2",
    "/v2/models/held",
    "/v2/models/held/ready",
    "/v2/models/unknown",
    "/v2/models/held/config",
    "/v2/models/held/stats",
    "/v2/models/stats",
    "/v2/tritium/tree",
    "/v2/nowhere",
    "/",
    "*",
    "/v2/models/held/infer",
    "/v2/repository/index",
    "http://h/v2/health/live",
)


def _head(line: str, fields: list[str]) -> bytes:
    return "\r\n".join([line, *fields, "", ""]).encode("latin-1")


def _framed(draw: DrawFn, body: bytes, fields: list[str], line: str) -> bytes:
    """Put a body behind its head: of known length or in chunks, now and then in a wrong way."""
    how = draw(st.sampled_from(("length",) * 30 + ("chunks",) * 4 + ("short", "long", "none")))
    if how == "chunks":
        cut = draw(st.integers(0, len(body)))
        chunks = [chunk for chunk in (body[:cut], body[cut:]) if chunk]
        coded = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"
        return _head(line, [*fields, "Transfer-Encoding: chunked"]) + coded
    if how == "none":
        return _head(line, fields) + body
    length = len(body) + {"short": -1, "long": 5}.get(how, 0)
    return _head(line, [*fields, f"Content-Length: {max(0, length)}"]) + body


def _numbers(count: int) -> Any:
    return (np.arange(count) % 97 / np.float32(4)).astype(np.float32)


@st.composite
def documents(draw: DrawFn) -> tuple[dict[str, Any], bytes]:
    """The JSON of an inference, and the binary tensors behind it."""
    texts = draw(st.booleans()) and draw(st.booleans())
    count = draw(st.sampled_from((1, 2, 3, 0, 16, 1_000, 9_000, 40_000)))
    binary = draw(st.booleans())
    tail = b""
    tensor: dict[str, Any] = {"name": "X", "shape": [count], "datatype": "BYTES" if texts else "FP32"}
    if texts:
        elements = ["t" * (n % 5) for n in range(count)]
        tail = b"".join(len(each).to_bytes(4, "little") + each.encode() for each in elements)
        tensor["data"] = elements
    else:
        tail = _numbers(count).tobytes()
        tensor["data"] = _numbers(count).tolist()
    if binary:
        tensor["parameters"] = {"binary_data_size": len(tail)}
        del tensor["data"]
    document: dict[str, Any] = {"id": ID.decode(), "inputs": [tensor]}
    match draw(st.integers(0, 7)):
        case 0:
            document["parameters"] = {"binary_data_output": True}
        case 1:
            document["outputs"] = [{"name": "Y", "parameters": {"binary_data": True}}]
        case 2:
            document["outputs"] = [{"name": "Y", "parameters": {"classification": 2}}]
        case 3:
            document["parameters"] = {"priority": 3, "timeout": 5_000_000, "tenant": "t2", "own": "x"}
        case 4:
            document["parameters"] = {"sequence_id": 7, "sequence_start": True, "headers": 1}
    return document, tail if binary else b""


MISTAKES: tuple[Any, ...] = (
    {"inputs": []},
    {"inputs": [{}]},
    {"inputs": [{"name": "Z", "shape": [1], "datatype": "FP32", "data": [1]}]},
    {"inputs": [{"name": "X", "shape": [2], "datatype": "FP32", "data": [1]}]},
    {"inputs": [{"name": "X", "shape": [-1], "datatype": "FP32", "data": [1]}]},
    {"inputs": [{"name": "X", "shape": [1], "datatype": "FP99", "data": [1]}]},
    {"inputs": [{"name": "X", "shape": [1], "datatype": "INT64", "data": ["a"]}]},
    {"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}]},
    {
        "inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [[1]]}],
        "outputs": [{"name": "N"}],
    },
    {"inputs": 5},
    {"id": 5, "inputs": []},
    [],
    "text",
    None,
)
NO_JSON = (b"", b"{", b"{}x", b"\xff\xfe", b'{"inputs":[' + b"[" * 2_000, b"nul", b'{"id":"\\ud800"}')


@st.composite
def inferences(draw: DrawFn) -> bytes:
    """An inference: of a model of any kind, in any coding, with mistakes now and then."""
    model = draw(st.sampled_from(MODELS * 4 + ODD_MODELS))
    version = draw(st.sampled_from(("",) * 6 + ("/versions/1", "/versions/9", "/versions/x", "/versions/01")))
    fields = draw(_fields())
    kind = draw(st.sampled_from(("good",) * 10 + ("mistake", "no JSON", "raw", "gzip")))
    document, tail = draw(documents())
    text = json.dumps(document, separators=(",", ":") if draw(st.booleans()) else None).encode()
    if kind == "mistake":
        text, tail = json.dumps(draw(st.sampled_from(MISTAKES))).encode(), b""
    elif kind == "no JSON":
        text, tail = draw(st.sampled_from(NO_JSON)), b""
    elif kind == "raw":
        text, tail = b"", tail or b"\0\0\x80?"
    if tail or kind == "raw":
        wrong = draw(st.sampled_from((0,) * 15 + (1, -1)))
        fields.insert(
            draw(st.integers(0, len(fields))), f"Inference-Header-Content-Length: {len(text) + wrong}"
        )
    body = text + tail
    if kind == "gzip":
        body = gzip.compress(body, mtime=0)
        fields.append("Content-Encoding: gzip")
    protocol = draw(st.sampled_from(("HTTP/1.1",) * 20 + ("HTTP/1.0", "HTTP/1.2", "HTTP/2.0")))
    method = draw(st.sampled_from(("POST",) * 20 + ("GET", "HEAD", "PUT", "post")))
    return _framed(draw, body, fields, f"{method} /v2/models/{model}{version}/infer {protocol}")


@st.composite
def generations(draw: DrawFn) -> bytes:
    """A request of the generate extension, which the direct path leaves alone."""
    model = draw(st.sampled_from(("held", "texts", "streams")))
    how = draw(st.sampled_from(("generate", "generate_stream")))
    body = json.dumps({"X": 1.5 if model != "texts" else "a", "id": ID.decode()}).encode()
    return _framed(draw, body, draw(_fields()), f"POST /v2/models/{model}/{how} HTTP/1.1")


@st.composite
def others(draw: DrawFn) -> bytes:
    """A request that is no inference."""
    method = draw(st.sampled_from(("GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "DELETE")))
    protocol = draw(st.sampled_from(("HTTP/1.1",) * 6 + ("HTTP/1.0",)))
    line = f"{method} {draw(st.sampled_from(PATHS))} {protocol}"
    if method == "POST" or draw(st.integers(0, 9)) == 0:
        return _framed(draw, b"{}", draw(_fields()), line)
    return _head(line, draw(_fields()))


@st.composite
def _fields(draw: DrawFn) -> list[str]:
    """Fields of a head: mostly those that any client sends."""
    fields = ["Host: h"] if draw(st.integers(0, 80)) else []
    for _ in range(draw(st.sampled_from((0,) * 8 + (1, 1, 2)))):
        fields.insert(draw(st.integers(0, len(fields))), draw(st.sampled_from(FIELDS)))
    return fields


def plain(model: str, count: int = 4) -> bytes:
    """Return a binary inference of so many numbers."""
    tail = _numbers(count).tobytes()
    document = {
        "id": ID.decode(),
        "inputs": [
            {
                "name": "X",
                "shape": [len(tail) // 4],
                "datatype": "FP32",
                "parameters": {"binary_data_size": len(tail)},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(document).encode()
    fields = [
        "Host: h",
        f"Inference-Header-Content-Length: {len(text)}",
        f"Content-Length: {len(text + tail)}",
    ]
    return _head(f"POST /v2/models/{model}/infer HTTP/1.1", fields) + text + tail


PLAIN: SearchStrategy[bytes] = st.builds(
    plain,
    st.sampled_from(("echo", "held")),
    st.sampled_from((1, 4, 100)),
)
"""Inferences as clients send them all day."""


GARBAGE: SearchStrategy[bytes] = st.sampled_from(
    (
        b"\r\n",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\n\n",
        b"\x00",
        b"0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    )
)


@st.composite
def _damaged(draw: DrawFn) -> bytes:
    octets = bytearray(draw(st.one_of(PLAIN, inferences())))
    at = draw(st.integers(0, min(len(octets), 600)))
    match draw(st.integers(0, 2)):
        case 0:
            octets[at : at + 1] = bytes([draw(st.integers(0, 255))])
        case 1:
            del octets[at : at + draw(st.integers(1, 20))]
        case _:
            octets[at:at] = draw(st.sampled_from((b"\r\n", b"\r", b"\n", b" ", b"\0", b":", b"GET ")))
    return bytes(octets)


writings: SearchStrategy[Written] = st.builds(
    Written,
    weighted(
        (PLAIN, 12), (inferences(), 12), (others(), 3), (generations(), 1), (_damaged(), 1), (GARBAGE, 1)
    ),
)
"""Anything that a client may write in one go."""
