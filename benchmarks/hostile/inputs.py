"""What an attacker sends: one request each, over HTTP or gRPC. Pure.

Each costs a careless server far more than it costs to send. A server of Tritium holds to a rule: no input
takes more than 20 ms of the event loop's own CPU time at once, nor more memory than 64 KiB + 4 times its
unfolded bytes + 3 times the bytes of its decoded tensors.
"""

from __future__ import annotations

import base64
import gzip
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

MIB: Final = 1 << 20
MOST_TURN: Final = 0.020
"""Seconds of the loop thread's own CPU time that one turn may take."""

FLOATS: Final = "floats"
TEXTS: Final = "texts"
"""The models that are asked: each answers with its input, FP32 or BYTES of any shape."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Hostile:
    """One input.

    `body` is made when it is wanted. `unfolded` and `tensors` are bytes, 0 if `body` tells them. `path` is
    that of HTTP, or a method of gRPC's. `compressed` is gRPC's flag; over HTTP the headers tell. `openai`: it
    goes to the port of the OpenAI API.
    """

    name: str
    body: Callable[[], bytes]
    path: str
    grpc: bool = False
    method: str = "POST"
    headers: Sequence[tuple[str, str]] = ()
    unfolded: int = 0
    tensors: int = 0
    compressed: bool = False
    openai: bool = False

    def allowed(self, size: int) -> int:
        """Return how many bytes of memory a server may take for this input, whose body has `size` bytes."""
        return 64 * 1024 + 4 * max(self.unfolded, size) + 3 * self.tensors


def infer_path(model: str) -> str:
    """Return where a model of the benchmark is asked over HTTP."""
    return f"/v2/models/{model}/infer"


# -- JSON ----------------------------------------------------------------------------------------------------


def _document(data: bytes, *, shape: bytes = b"[1]", datatype: bytes = b"FP32", extra: bytes = b"") -> bytes:
    return b"".join(
        (
            b'{"inputs":[{"name":"IN","datatype":"',
            datatype,
            b'","shape":',
            shape,
            b',"data":[',
            data,
            b"]}]",
            extra,
            b"}",
        )
    )


def _listed(element: bytes, count: int, model: str = FLOATS) -> bytes:
    """Return a request with the same element `count` times in a row."""
    datatype = b"FP32" if model == FLOATS else b"BYTES"
    data = (element + b",") * (count - 1) + element
    return _document(data, shape=b"[%d]" % count, datatype=datatype)


def _json(name: str, body: Callable[[], bytes], *, model: str = FLOATS, tensors: int = 0) -> Hostile:
    return Hostile(name=f"json: {name}", body=body, path=infer_path(model), tensors=tensors)


def _element(name: str, element: bytes, count: int, model: str = FLOATS) -> Hostile:
    """Many of the same; each may become an element of 4 bytes, or a string with its length."""
    each = 4 if model == FLOATS else 4 + len(element)
    return _json(name, partial(_listed, element, count, model), model=model, tensors=each * count)


def _members(count: int) -> bytes:
    return b",".join(b'"k%d":1' % number for number in range(count))


def _with(extra: bytes) -> bytes:
    return _document(b"1", extra=extra)


def _repeated(template: bytes, count: int, *, before: bytes, after: bytes) -> bytes:
    return before + b",".join(template % number for number in range(count)) + after


def _json_inputs() -> Iterator[Hostile]:
    yield _element("15 M ones", b"1", 15 * MIB)
    yield _element("6 M floats", b"1.2345678", 6 * MIB)
    yield _element("15 M NaN", b"NaN", 15 * MIB)
    yield _element("8 M infinities", b"-Infinity", 6 * MIB)
    yield _element("8 M true for FP32", b"true", 8 * MIB)
    yield _element("8 M null for FP32", b"null", 8 * MIB)
    yield _element("8 M strings for FP32", b'"x"', 8 * MIB)
    yield _element("15 M empty objects", b"{}", 15 * MIB)
    yield _element("15 M empty lists", b"[]", 15 * MIB)
    yield _element("12 M lists of one", b"[1]", 12 * MIB)
    yield _element("6 M numbers out of range", b"1e999", 6 * MIB)
    yield _element("100,000 integers of 400 digits", b"1" * 400, 100_000)
    yield _element("4 M empty strings", b'""', 4 * MIB, TEXTS)
    yield _element("4 M escapes", b'"\\u0041"', 4 * MIB, TEXTS)
    yield _element("4 M half surrogates", b'"\\ud800"', 4 * MIB, TEXTS)
    yield _element("8 M numbers for BYTES", b"7", 8 * MIB, TEXTS)
    long = partial(_listed, b'"' + b"x" * 60 * MIB + b'"', 1, TEXTS)
    yield _json("a string of 60 MiB", long, model=TEXTS, tensors=60 * MIB)
    escaped = partial(_listed, b'"' + b"\\n" * 10 * MIB + b'"', 1, TEXTS)
    yield _json("a string of 10 M escapes", escaped, model=TEXTS, tensors=10 * MIB)
    yield _json("a number of 20 M digits", lambda: _listed(b"1" * 20 * MIB, 1))
    yield _json("a fraction of 20 M digits", lambda: _listed(b"0." + b"1" * 20 * MIB, 1))
    yield _json("16 M dimensions", lambda: _document(b"1", shape=b"[" + b"1," * 16 * MIB + b"1]"))
    yield _json("a dimension of 20 M digits", lambda: _document(b"1", shape=b"[" + b"9" * 20 * MIB + b"]"))
    yield _json("2 M parameters", lambda: _with(b',"parameters":{' + _members(2 * MIB) + b"}"))
    yield _json("a million members", lambda: _with(b"," + _members(MIB)))
    yield _json("4 M times the same member", lambda: _with(b',"id":"a"' * 4 * MIB))
    yield _json("an id of 60 MiB", lambda: _with(b',"id":"' + b"i" * 60 * MIB + b'"'))
    yield _json("a parameter of 60 MiB", lambda: _with(b',"parameters":{"a":"' + b"v" * 60 * MIB + b'"}'))
    yield _json("a name of 60 MiB", lambda: _with(b',"parameters":{"' + b"n" * 60 * MIB + b'":1}'))
    one = b'{"name":"I%d","datatype":"FP32","shape":[1],"data":[1]}'
    yield _json("500,000 inputs", lambda: _repeated(one, 500_000, before=b'{"inputs":[', after=b"]}"))
    outputs = partial(_repeated, b'{"name":"O%d"}', MIB)
    yield _json("a million outputs", lambda: _with(outputs(before=b',"outputs":[', after=b"]")))
    asked = b',"outputs":[{"name":"OUT","parameters":{"classification":1000000000}}]'
    yield _json("a billion classes", lambda: _with(asked))
    yield _json("30 M lists deep", lambda: _document(b"[" * 30 * MIB))
    yield _json("10 M objects deep", lambda: b'{"a":' * 10 * MIB)
    yield _json("60 MiB of blanks in front", lambda: b" " * 60 * MIB + _document(b"1"))
    yield _json("60 MiB of blanks within", lambda: _document(b" " * 60 * MIB + b"1"))
    yield _json("60 MiB that are no UTF-8", lambda: _with(b',"id":"' + b"\xff" * 60 * MIB + b'"'))
    yield _json("60 MiB and no end", lambda: _document(b"1," * 30 * MIB)[:-3])
    yield _json("60 MiB of quotes", lambda: b'"' * 60 * MIB)
    yield _json("60 MiB of commas", lambda: b"," * 60 * MIB)


def _routes() -> Iterator[Hostile]:
    junk = partial(_listed, b"{}", 15 * MIB)
    for name, path in (
        ("index", "/v2/repository/index"),
        ("load", f"/v2/repository/models/{FLOATS}/load"),
        ("unload", f"/v2/repository/models/{FLOATS}/unload"),
        ("traffic", f"/v2/tritium/models/{FLOATS}/traffic"),
        ("generate", f"/v2/models/{TEXTS}/generate"),
        ("generate_stream", f"/v2/models/{TEXTS}/generate_stream"),
        ("no route", "/v2/no/such/route"),
        ("no model", infer_path("nobody")),
    ):
        yield Hostile(name=f"route: 45 MiB of {{}} for {name}", body=junk, path=path)
    yield Hostile(
        name="route: a million members for generate",
        body=lambda: b'{"IN":"x",' + _members(MIB) + b"}",
        path=f"/v2/models/{TEXTS}/generate",
    )
    begin, end = b'{"parameters":{"config":"{}","file:1/model.py":"', b'"}}'
    yield Hostile(
        name="route: a file of 45 MiB for load",
        body=lambda: begin + base64.b64encode(bytes(45 * MIB)) + end,
        path=f"/v2/repository/models/{FLOATS}/load",
    )


# -- binary, and compressed ----------------------------------------------------------------------------------


def _binary(name: str, head: bytes, tensor: Callable[[], bytes], *, model: str, tensors: int) -> Hostile:
    return Hostile(
        name=f"binary: {name}",
        body=lambda: head + tensor(),
        path=infer_path(model),
        headers=[("inference-header-content-length", str(len(head)))],
        tensors=tensors,
    )


def _binary_inputs() -> Iterator[Hostile]:
    def head(shape: bytes, size: int, datatype: bytes = b"BYTES") -> bytes:
        return (
            b'{"inputs":[{"name":"IN","datatype":"%b","shape":%b,"parameters":{"binary_data_size":%d}}],'
            b'"parameters":{"binary_data_output":true}}' % (datatype, shape, size)
        )

    strings = 4 * MIB
    yield _binary(
        "4 M empty strings", head(b"[%d]" % strings, 4 * strings), lambda: bytes(4 * strings),
        model=TEXTS, tensors=4 * strings,
    )  # fmt: skip
    letters = struct.pack("<I", 1) + b"x"
    yield _binary(
        "3 M strings of one letter", head(b"[%d]" % (3 * MIB), 15 * MIB), lambda: letters * (3 * MIB),
        model=TEXTS, tensors=15 * MIB,
    )  # fmt: skip
    cut = bytes(4 * (strings - 1)) + struct.pack("<I", 9)
    yield _binary(
        "4 M strings, the last cut short", head(b"[%d]" % strings, 4 * strings), lambda: cut,
        model=TEXTS, tensors=4 * strings,
    )  # fmt: skip
    yield _binary(
        "60 MiB of floats", head(b"[%d]" % (15 * MIB), 60 * MIB, b"FP32"), lambda: bytes(60 * MIB),
        model=FLOATS, tensors=60 * MIB,
    )  # fmt: skip
    shape = b"[" + b"1," * 16 * MIB + b"1]"
    yield _binary("16 M dimensions", head(shape, 4, b"FP32"), lambda: bytes(4), model=FLOATS, tensors=4)


def _zeros(count: int, container: int) -> bytes:
    """Return `count` MiB of zeros, folded; `container` is zlib's number for it: 31 gzip, 15 deflate."""
    folding = zlib.compressobj(1, zlib.DEFLATED, container)
    return b"".join([*(folding.compress(bytes(MIB)) for _ in range(count)), folding.flush()])


def _packed(
    name: str, body: Callable[[], bytes], unfolded: int, *, coding: str = "gzip", tensors: int = 0
) -> Hostile:
    return Hostile(
        name=f"{coding}: {name}",
        body=body,
        path=infer_path(FLOATS),
        headers=[("content-encoding", coding)],
        unfolded=unfolded,
        tensors=tensors,
    )


def _folded(made: Callable[[], bytes]) -> bytes:
    return gzip.compress(made(), 9)


def _compressed_inputs() -> Iterator[Hostile]:
    for element in (b"NaN", b"1", b"{}", b"[]", b"null"):
        count = 62 * MIB // (len(element) + 1)
        made = partial(_listed, element, count)
        folded = partial(_folded, made)
        yield _packed(f"62 MiB of {element.decode()}", folded, 62 * MIB, tensors=4 * count)
    # Over the ratio, or over the limit of 64 MiB. Bytes count that are unfolded until the server notices.
    yield _packed("1 GiB of zeros", partial(_zeros, 1024, 31), 64 * MIB)
    yield _packed("256 MiB of zeros", partial(_zeros, 256, 15), 64 * MIB, coding="deflate")
    yield _packed("60 MiB and no end", lambda: gzip.compress(_listed(b"1", 30 * MIB), 9)[:-9], 60 * MIB)
    yield _packed("no gzip at all", lambda: b"x" * 60 * MIB, 60 * MIB)
    yield _packed("30 M members of nothing", lambda: gzip.compress(b"") * (MIB // 2), 10 * MIB)


# -- heads ---------------------------------------------------------------------------------------------------


def _heads() -> Iterator[Hostile]:
    path = infer_path(FLOATS)
    nothing = bytes
    many = [(f"h{number}", "v") for number in range(3000)]
    yield Hostile(name="head: 3,000 fields", body=nothing, path=path, headers=many)
    yield Hostile(name="head: a field of 60 KiB", body=nothing, path=path, headers=[("h", "v" * 60_000)])
    yield Hostile(
        name="head: a path of 60 KiB", body=nothing, path="/v2/models/" + "m" * 60_000, method="GET"
    )
    yield Hostile(
        name="head: a query of 60 KiB", body=nothing, path="/v2/health/ready?" + "a=1&" * 15_000, method="GET"
    )
    digits = [("inference-header-content-length", "9" * 50_000)]
    yield Hostile(name="head: a length of 50,000 digits", body=nothing, path=path, headers=digits)
    codings = [("accept-encoding", "gzip;q=0.1," * 5_000)]
    yield Hostile(name="head: 5,000 codings", body=lambda: _document(b"1"), path=path, headers=codings)


# -- gRPC ----------------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """Return a protobuf varint."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


_SERVICE: Final = "/inference.GRPCInferenceService/"
# Fields of ModelInferRequest.
_NAME, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = 1, 3, 4, 5, 6, 7


def _tensor(shape: bytes, *, contents: bytes = b"", datatype: bytes = b"FP32") -> bytes:
    held = field(5, contents) if contents else b""
    return field(_INPUTS, field(1, b"IN") + field(2, datatype) + field(3, shape) + held)


def _asked(model: str, *parts: bytes) -> bytes:
    return field(_NAME, model.encode()) + b"".join(parts)


def _parameters(number: int, count: int) -> bytes:
    """Return so many parameters, in the field `number`."""
    value = field(2, b"\x10\x01")
    return b"".join(field(number, field(1, b"k%d" % each) + value) for each in range(count))


def _call(
    name: str, message: Callable[[], bytes], *, method: str = "ModelInfer", tensors: int = 0,
    unfolded: int = 0, compressed: bool = False,
) -> Hostile:  # fmt: skip
    return Hostile(
        name=f"gRPC: {name}",
        body=message,
        path=_SERVICE + method,
        grpc=True,
        tensors=tensors,
        unfolded=unfolded,
        compressed=compressed,
    )


def _grpc_inputs() -> Iterator[Hostile]:
    one = varint(1)
    count = 4 * MIB
    shape = varint(count)

    def texts(contents: bytes) -> bytes:
        return _asked(TEXTS, _tensor(shape, contents=contents, datatype=b"BYTES"))

    yield _call("4 M empty strings", lambda: texts(b"\x42\x00" * count), tensors=4 * count)
    yield _call("4 M strings of one letter", lambda: texts(b"\x42\x01x" * count), tensors=5 * count)
    plain = _tensor(shape, datatype=b"BYTES")
    yield _call(
        "4 M empty strings, raw",
        lambda: _asked(TEXTS, plain, field(_RAW, bytes(4 * count))),
        tensors=4 * count,
    )
    yield _call("4 M raw contents", lambda: _asked(TEXTS, plain, field(_RAW, b"") * count))
    ten = varint(10 * MIB)

    def floats() -> bytes:
        return _asked(FLOATS, _tensor(ten, contents=field(6, bytes(40 * MIB))))

    yield _call("10 M floats", floats, tensors=40 * MIB)
    apart = b"\x35\0\0\0\0"  # fp32_contents, one by one
    yield _call(
        "10 M floats, apart",
        lambda: _asked(FLOATS, _tensor(ten, contents=apart * 10 * MIB)),
        tensors=40 * MIB,
    )
    yield _call(
        "30 M varints for FP32",
        lambda: _asked(FLOATS, _tensor(one, contents=field(3, b"\x01" * 30 * MIB))),
    )
    yield _call("16 M dimensions", lambda: _asked(FLOATS, _tensor(one * 16 * MIB)))
    yield _call(
        "8 M dimensions, apart",
        lambda: _asked(FLOATS, field(_INPUTS, field(1, b"IN") + b"\x18\x01" * 8 * MIB)),
    )
    yield _call(
        "500,000 parameters", lambda: _asked(FLOATS, _tensor(one), _parameters(_PARAMETERS, MIB // 2))
    )
    yield _call("4 M empty parameters", lambda: _asked(FLOATS, _tensor(one), field(_PARAMETERS, b"") * count))
    yield _call("a million inputs", lambda: _asked(FLOATS, _tensor(one) * MIB))
    yield _call("4 M empty inputs", lambda: _asked(FLOATS, field(_INPUTS, b"") * count))
    yield _call("4 M empty outputs", lambda: _asked(FLOATS, _tensor(one), field(_OUTPUTS, b"") * count))
    yield _call("an id of 60 MiB", lambda: _asked(FLOATS, field(_ID, b"i" * 60 * MIB), _tensor(one)))
    yield _call("10 M unknown fields", lambda: _asked(FLOATS, b"\xf8\x07\x01" * 10 * MIB))
    yield _call("10 M groups deep", lambda: b"\xfb\x07" * 10 * MIB)
    yield _call("a model's name of 60 MiB", lambda: field(1, b"m" * 60 * MIB), method="ModelReady")
    yield _call(
        "10 M unknown fields for the index", lambda: b"\xf8\x07\x01" * 10 * MIB, method="RepositoryIndex"
    )
    load = "RepositoryModelLoad"
    yield _call(
        "250,000 parameters for a load", lambda: field(2, b"floats") + _parameters(3, MIB // 4), method=load
    )

    def file() -> bytes:
        return field(2, b"floats") + field(
            3, field(1, b"file:1/model.py") + field(2, field(4, bytes(60 * MIB)))
        )

    yield _call("a file of 60 MiB for a load", file, method=load)
    stream = "ModelStreamInfer"
    yield _call(
        "4 M empty strings in a stream", lambda: texts(b"\x42\x00" * count), method=stream, tensors=4 * count
    )
    yield _call(
        "0.5 MiB that unfold to 512 MiB", partial(_zeros, 512, 31), unfolded=64 * MIB, compressed=True
    )
    zeros = partial(_folded, floats)
    yield _call("40 MiB of floats, folded", zeros, unfolded=40 * MIB, tensors=40 * MIB, compressed=True)
    empty = partial(_folded, lambda: texts(b"\x42\x00" * count))
    yield _call("4 M empty strings, folded", empty, unfolded=8 * MIB, tensors=4 * count, compressed=True)


def catalog() -> Sequence[Hostile]:
    """Return all inputs, over HTTP first."""
    parts = (_json_inputs, _routes, _binary_inputs, _compressed_inputs, _heads, _grpc_inputs)
    return [each for part in parts for each in part()]
