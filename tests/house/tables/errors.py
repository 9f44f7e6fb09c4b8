"""The page of errors, docs/reference/errors.md, from the table of codes and statuses."""

from __future__ import annotations

import inspect
from typing import Final

from grpclib.const import Status

from actors.values.errors import ErrorCode, TritiumError
from protocols.status import STATUS
from tests.house.graph import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "errors.md"

_INTRODUCTION: Final = """\
# Errors

This page is written by `python -m tests.house.reference` from the one table of codes. The first eight codes
are Triton's, the others Tritium's own. [failures.md](../failures.md) says which failure of a worker becomes
which.

Over HTTP an error is `{"error": "<message>"}` with the status, over gRPC the status with the message. The
OpenAI API has errors of OpenAI's form with the same statuses, but for 429 in place of 503 where a queue is
full. A part of a stream that has begun carries its error inside ([generate.md](../generate.md),
[decoupled.md](../decoupled.md)). Where trying again may help after a time, `Retry-After` says when, over gRPC
`grpc-retry-pushback-ms`.

| code | HTTP | gRPC | when |
|---|---|---|---|
"""
_LATER: Final = """
Statuses that come before a request has a meaning:

| HTTP | when |
|---|---|
| 400 | the head, the path or the JSON can't be read |
| 404 | no endpoint has this path |
| 405 | the endpoint has other methods |
| 408 | the request did not come in time |
| 413 | the body is longer than the endpoint takes |
| 431 | the head is too long |
| 501 | `Transfer-Encoding` is none that the server knows |
| 505 | the version of HTTP is none that the server knows |
"""


def page() -> str:
    """Return the page."""
    return _INTRODUCTION + "".join(map(_row, STATUS)) + _LATER


def _row(code: ErrorCode) -> str:
    http, grpc = STATUS[code]
    about = (inspect.getdoc(type(TritiumError.of(code, ""))) or "").partition("\n")[0].rstrip(".")
    return f"| `{code.name}` | {http} | {grpc} {Status(grpc).name} | {about[0].lower()}{about[1:]} |\n"
