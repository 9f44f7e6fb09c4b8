"""Inputs by which an HTTP client would hold the loop or fill the memory, if the server allowed it.

Each is a request for the models that `write_models` puts into a repository. Each is made on demand, because
some have 60 MiB.
"""

import base64
import gzip
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MIB = 1024 * 1024
NUMBERS, STRINGS, MAKER, TEXT = (
    "/v2/models/hostile_numbers/infer",
    "/v2/models/hostile_strings/infer",
    "/v2/models/hostile_maker/infer",
    "/v2/models/hostile_strings/generate",
)


@dataclass(frozen=True)
class Attack:
    """One request. `tensors` is the size in bytes of its decoded tensors, `unfolded` that of its content."""

    path: str
    make: Callable[[], bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    unfolded: int = 0  # 0: as many as are sent
    tensors: int = 0
    answered: bool = False  # 200; else it is refused


def around(data, *, datatype="FP32", shape="[1]", front="", behind=""):
    """Return the text of a request with one input, whose data is `data`."""
    head = f'"inputs":[{{"name":"INPUT","datatype":"{datatype}","shape":{shape},"data":'
    return b"{" + front.encode() + head.encode() + data + b"}]" + behind.encode() + b"}"


def array(item, size, last=b"1"):
    """Return the text of an array that repeats `item`, a value and its comma, over `size` bytes."""
    return b"[" + item * (size // len(item)) + last + b"]"


def many(item, size, **more):
    """Return a request whose data repeats `item`, with the shape that belongs to it."""
    count = (size // len(item)) * (item.count(b",")) + 1
    last = b'""' if more.get("datatype") == "BYTES" else b"1"
    return lambda: around(array(item, size, last), shape=f"[{count}]", **more)


def plain(text):
    """Return what makes a body of `text`."""
    return lambda: text


def gzipped(make):
    """Return what makes the same, compressed."""
    return lambda: gzip.compress(make(), 6)


def framed(lengths, *, count=None, datatype="BYTES"):
    """Return a binary request of packed strings with these lengths, repeated, and its header."""
    unit, times = lengths
    packed = b"".join(struct.pack("<I", length) + b"x" * length for length in unit) * times
    text = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT",
                    "datatype": datatype,
                    "shape": [len(unit) * times if count is None else count],
                    "parameters": {"binary_data_size": len(packed)},
                }
            ]
        }
    ).encode()
    return text, packed


def binary(lengths, *, answered=True, cut=0, count=None):
    """Return an attack by packed strings."""
    text, packed = framed(lengths, count=count)
    return Attack(
        STRINGS,
        lambda: text + packed[: len(packed) - cut] + b"" * cut,
        {"Inference-Header-Content-Length": str(len(text))},
        tensors=len(packed),
        answered=answered,
    )


def load(parameters):
    """Return a load request's body."""
    return lambda: json.dumps({"parameters": parameters()}).encode()


def made(count, kind, **output):
    """Return a request whose answer has `count` elements."""
    document = {
        "inputs": [{"name": "COUNT", "datatype": "INT64", "shape": [2], "data": [count, kind]}],
        "outputs": [{"name": "STRINGS" if kind else "NUMBERS", "parameters": output}],
    }
    return lambda: json.dumps(document).encode()


DIGITS = b"0123456789"

ATTACKS: Mapping[str, Attack] = {
    # Tensors in JSON
    "60 MiB of ones": Attack(NUMBERS, many(b"1,", 60 * MIB, datatype="UINT8"), tensors=30 * MIB),
    "16 MiB of ones": Attack(NUMBERS, many(b"1,", 16 * MIB), tensors=32 * MIB, answered=True),
    "16 MiB of NaN and ones": Attack(NUMBERS, many(b"NaN,1,", 16 * MIB), tensors=22 * MIB, answered=True),
    "16 MiB of infinities": Attack(NUMBERS, many(b"-Inf,", 16 * MIB), tensors=14 * MIB, answered=True),
    "16 MiB of 1e9": Attack(NUMBERS, many(b"1e9,", 16 * MIB), tensors=16 * MIB, answered=True),
    "16 MiB of 1e999": Attack(NUMBERS, many(b"1e999,", 16 * MIB)),
    "16 MiB of 20 digits": Attack(
        NUMBERS, many(b"99999999999999999999,", 16 * MIB), tensors=4 * MIB, answered=True
    ),
    "16 MiB of long fractions": Attack(
        NUMBERS, many(b"0." + DIGITS * 40 + b",", 16 * MIB), tensors=MIB, answered=True
    ),
    "rows": Attack(NUMBERS, many(b"[1],", 16 * MIB), tensors=16 * MIB, answered=True),
    "deep rows": Attack(NUMBERS, many(b"[" * 90 + b"1" + b"]" * 90 + b",", 8 * MIB), answered=True),
    "too deep rows": Attack(NUMBERS, many(b"[" * 120 + b"1" + b"]" * 120 + b",", 8 * MIB)),
    "empty arrays": Attack(NUMBERS, many(b"[],", 16 * MIB)),
    "brackets": Attack(NUMBERS, lambda: around(b"[" * (16 * MIB))),
    "objects in data": Attack(NUMBERS, many(b"{},", 16 * MIB)),
    "objects behind a number": Attack(NUMBERS, lambda: around(b"[1," + array(b"{},", 16 * MIB)[1:])),
    "nulls": Attack(NUMBERS, many(b"null,", 16 * MIB)),
    "truths": Attack(NUMBERS, many(b"true,", 16 * MIB)),
    "strings for numbers": Attack(NUMBERS, many(b'"",', 16 * MIB)),
    "one number of 16 MiB": Attack(NUMBERS, lambda: around(b"[" + b"7" * (16 * MIB) + b"]")),
    "a fraction of 16 MiB": Attack(NUMBERS, lambda: around(b"[0." + b"7" * (16 * MIB) + b"]")),
    "an exponent of 16 MiB": Attack(NUMBERS, lambda: around(b"[1e" + b"7" * (16 * MIB) + b"]")),
    "60 MiB of space": Attack(
        NUMBERS, lambda: around(b"[" + b" " * (60 * MIB) + b"1]"), tensors=4, answered=True
    ),
    "a comma too many": Attack(NUMBERS, lambda: around(array(b"1,", 16 * MIB, b""))),
    "cut short": Attack(NUMBERS, lambda: around(array(b"1,", 16 * MIB))[:-8]),
    "data before its type": Attack(
        NUMBERS,
        lambda: (
            b'{"inputs":[{"data":'
            + array(b"1,", 8 * MIB)
            + b',"name":"INPUT","datatype":"FP32","shape":[%d]}]}' % (4 * MIB + 1)
        ),
        tensors=16 * MIB,
        answered=True,
    ),
    "data twice": Attack(
        NUMBERS,
        lambda: around(array(b"1,", 8 * MIB) + b',"data":' + array(b"1,", 8 * MIB), shape=f"[{4 * MIB + 1}]"),
        tensors=32 * MIB,
        answered=True,
    ),
    "4 M empty strings": Attack(
        STRINGS, many(b'"",', 12 * MIB, datatype="BYTES"), tensors=16 * MIB, answered=True
    ),
    "strings of one letter": Attack(
        STRINGS, many(b'"a",', 12 * MIB, datatype="BYTES"), tensors=15 * MIB, answered=True
    ),
    "strings of escapes": Attack(
        STRINGS, many(b'"\\u0041\\n",', 12 * MIB, datatype="BYTES"), tensors=6 * MIB, answered=True
    ),
    "strings of commas": Attack(
        STRINGS,
        lambda: around(array(b'",,,]]",', 12 * MIB, b'""'), datatype="BYTES", shape=f"[{12 * MIB // 8 + 1}]"),
        tensors=15 * MIB,
        answered=True,
    ),
    "surrogates": Attack(
        STRINGS, many(b'"\\ud83d\\ude00",', 12 * MIB, datatype="BYTES"), tensors=7 * MIB, answered=True
    ),
    "half a surrogate": Attack(STRINGS, many(b'"\\ud83d",', 12 * MIB, datatype="BYTES")),
    "strings that are not UTF-8": Attack(
        STRINGS, many(b'"\xff",', 12 * MIB, datatype="BYTES"), tensors=15 * MIB, answered=True
    ),
    "one string of 60 MiB": Attack(
        STRINGS,
        lambda: around(b'["' + b"a" * (60 * MIB) + b'"]', datatype="BYTES"),
        tensors=60 * MIB,
        answered=True,
    ),
    "one string of escapes": Attack(
        STRINGS,
        lambda: around(b'["' + b"\\n" * (8 * MIB) + b'"]', datatype="BYTES"),
        tensors=8 * MIB,
        answered=True,
    ),
    "a string that does not end": Attack(
        STRINGS, lambda: around(b'["' + b"a" * (16 * MIB), datatype="BYTES")
    ),
    # What stands around them
    "a shape of 16 M dimensions": Attack(
        NUMBERS, lambda: around(b"[1]", shape=array(b"1,", 32 * MIB).decode())
    ),
    "a shape of strings": Attack(NUMBERS, lambda: around(b"[1]", shape=array(b'"",', 16 * MIB).decode())),
    "a shape of huge dimensions": Attack(
        NUMBERS, lambda: around(b"[1]", shape=array(b"18446744073709551615,", 600).decode())
    ),
    "2 M parameters": Attack(
        NUMBERS,
        lambda: around(
            b"[1]", front='"parameters":{' + ",".join(f'"p{n}":1' for n in range(2_000_000)) + "},"
        ),
    ),
    "a million equal parameters": Attack(
        NUMBERS, lambda: around(b"[1]", front='"parameters":{' + '"p":1,' * 1_000_000 + '"p":1},')
    ),
    "a million inputs": Attack(NUMBERS, lambda: b'{"inputs":' + array(b"{},", 3_000_000, b"{}") + b"}"),
    "a million named inputs": Attack(
        NUMBERS,
        lambda: (
            b'{"inputs":'
            + array(b'{"name":"INPUT","datatype":"FP32","shape":[1],"data":[1]},', 60_000_000, b"{}")
            + b"}"
        ),
    ),
    "a million outputs": Attack(
        NUMBERS, lambda: around(b"[1]", behind=',"outputs":[' + '{"name":"OUTPUT"},' * 1_000_000 + "{}]")
    ),
    "inputs that are numbers": Attack(NUMBERS, lambda: b'{"inputs":' + array(b"1,", 60 * MIB) + b"}"),
    "a million unknown members": Attack(
        NUMBERS, lambda: around(b"[1]", front="".join(f'"m{n}":{{}},' for n in range(1_000_000)))
    ),
    "an id of 60 MiB": Attack(NUMBERS, lambda: around(b"[1]", front='"id":"' + "a" * (60 * MIB) + '",')),
    "an id of escapes": Attack(NUMBERS, lambda: around(b"[1]", front='"id":"' + "\\n" * (8 * MIB) + '",')),
    "a name of 60 MiB": Attack(NUMBERS, lambda: around(b"[1]", front='"' + "a" * (60 * MIB) + '":1,')),
    "a parameter of 60 MiB": Attack(
        NUMBERS, lambda: around(b"[1]", front='"parameters":{"p":"' + "a" * (60 * MIB) + '"},')
    ),
    "nested objects": Attack(NUMBERS, lambda: b'{"a":' * (4 * MIB)),
    "just objects": Attack(NUMBERS, lambda: array(b"{},", 60 * MIB, b"{}")),
    "just a string": Attack(NUMBERS, lambda: b'"' + b"a" * (60 * MIB) + b'"'),
    "no JSON": Attack(NUMBERS, lambda: b"x" * (60 * MIB)),
    "32 KiB of brackets": Attack(NUMBERS, lambda: b"[" * (32 * 1024)),
    "32 KiB of objects": Attack(NUMBERS, lambda: array(b"{},", 32_000, b"{}")),
    "32 KiB of escapes that break": Attack(NUMBERS, lambda: b'"' + b"\\n" * 16_000),
    # Compressed
    "60 KiB that unfold to 62 MiB of NaN": Attack(
        NUMBERS, gzipped(many(b"NaN,1,", 62 * MIB)), {"Content-Encoding": "gzip"}, unfolded=62 * MIB
    ),
    "60 KiB that unfold to 62 MiB of objects": Attack(
        NUMBERS,
        gzipped(lambda: array(b"{},", 62 * MIB, b"{}")),
        {"Content-Encoding": "gzip"},
        unfolded=62 * MIB,
    ),
    "15 MiB of NaN, compressed": Attack(
        NUMBERS,
        gzipped(many(b"NaN,1,", 15 * MIB)),
        {"Content-Encoding": "gzip"},
        unfolded=15 * MIB,
        tensors=20 * MIB,
        answered=True,
    ),
    "zeros": Attack(
        NUMBERS,
        lambda: zlib.compress(bytes(200 * MIB), 9),
        {"Content-Encoding": "deflate"},
        unfolded=64 * MIB,
    ),
    # Packed strings
    "4 M packed empty strings": binary(([0], 4 * MIB)),
    "packed strings of 0 and 1": binary(([0, 1], 2 * MIB)),
    "packed strings, one too few": binary(([0, 1], 2 * MIB), count=4 * MIB + 1, answered=False),
    "packed strings, one cut": binary(([0, 1], 2 * MIB), cut=1, answered=False),
    "packed strings of every length": binary((list(range(64)), 30_000)),
    # Other routes
    "the index, 60 MiB": Attack("/v2/repository/index", lambda: array(b"{},", 60 * MIB, b"{}")),
    "the index, strings": Attack("/v2/repository/index", lambda: array(b'"a",', 60 * MIB)),
    "an unload, 60 MiB": Attack(
        "/v2/repository/models/x/unload", lambda: b'{"parameters":' + array(b"{},", 60 * MIB, b"{}") + b"}"
    ),
    "a load with a file of 40 MiB": Attack(
        "/v2/repository/models/x/load",
        load(lambda: {"config": "{}", "file:1/model.py": base64.b64encode(bytes(40 * MIB)).decode()}),
        tensors=40 * MIB,
    ),
    "a load with a configuration of 16 MiB": Attack(
        "/v2/repository/models/x/load", load(lambda: {"config": "a" * (16 * MIB)})
    ),
    "a load with many files": Attack(
        "/v2/repository/models/x/load", load(lambda: {f"file:{n}": "" for n in range(200_000)})
    ),
    "a traffic plan": Attack(
        "/v2/tritium/models/hostile_numbers/traffic", lambda: array(b"{},", 60 * MIB, b"{}")
    ),
    "generate, one text": Attack(
        TEXT, lambda: b'{"INPUT":"' + b"a" * (60 * MIB) + b'"}', tensors=60 * MIB, answered=True
    ),
    "generate, many texts": Attack(
        TEXT, lambda: b'{"INPUT":' + array(b'"",', 12 * MIB, b'""') + b"}", tensors=16 * MIB, answered=True
    ),
    "generate, the same input often": Attack(
        TEXT, lambda: b"{" + b'"INPUT":"",' * 1_000_000 + b'"INPUT":""}'
    ),
    "generate, parameters": Attack(
        TEXT, lambda: b'{"INPUT":"",' + b",".join(b'"p%d":1' % n for n in range(1_000_000)) + b"}"
    ),
    # Answers
    "an answer of 4 M numbers": Attack(MAKER, made(4 * MIB, 0), tensors=16 * MIB, answered=True),
    "an answer of 1 M strings": Attack(MAKER, made(MIB, 1), tensors=5 * MIB, answered=True),
    "a million classes": Attack(  # each number becomes a text of some 16 bytes
        MAKER, made(1_000_000, 0, classification=1_000_000), tensors=(4 + 16) * MIB, answered=True
    ),
}

_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(self.answer(request)) for request in requests]

    def answer(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if "COUNT" in given:
            count, kind = given["COUNT"].tolist()
            if kind:
                return [pb_utils.Tensor("STRINGS", np.full(count, b"a", dtype=object)),
                        pb_utils.Tensor("NUMBERS", np.zeros(1, np.float32))]
            return [pb_utils.Tensor("NUMBERS", np.linspace(0, 1, count, dtype=np.float32)),
                    pb_utils.Tensor("STRINGS", np.full(1, b"a", dtype=object))]
        (array,) = given.values()
        return [pb_utils.Tensor("OUTPUT", np.array([array.size], np.int64))]
"""


def _config(name, inputs, outputs):
    def tensors(pairs):
        return ", ".join(
            f'{{ name: "{tensor}", data_type: TYPE_{datatype}, dims: [ {dims} ] }}'
            for tensor, datatype, dims in pairs
        )

    return (
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n'
        f"input [ {tensors(inputs)} ]\noutput [ {tensors(outputs)} ]\n"
    )


def write_models(folder):
    """Write the models that the attacks are for into the repository `folder`."""
    counted = [("OUTPUT", "INT64", 1)]
    models = {
        "hostile_numbers": ([("INPUT", "FP32", -1)], counted),
        "hostile_strings": ([("INPUT", "STRING", -1)], counted),
        "hostile_maker": ([("COUNT", "INT64", 2)], [("NUMBERS", "FP32", -1), ("STRINGS", "STRING", -1)]),
    }
    for name, (inputs, outputs) in models.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(_MODEL)
        (folder / name / "config.pbtxt").write_text(_config(name, inputs, outputs))
