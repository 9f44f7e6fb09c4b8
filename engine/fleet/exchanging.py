"""One question to a server over HTTP, and its answer: within a time, and of a bounded size."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
import trio

from engine.fleet.ports import Unreachable
from engine.observability.text import printable

T = TypeVar("T")

_MOST_BYTES: Final = 32 * 2**20  # of an answer; metrics are the longest
_SHOWN: Final = 1000  # characters of an error that a server tells
_NOT_THERE: Final = frozenset((301, 302, 303, 307, 308, 404, 405, 501))
_TLS: Final = {
    "WRONG_VERSION": "; is its address http://?",
    "CERTIFICATE_REQUIRED": "; it asks for `tls.certificate_file`",
}
_KEYS: Final = frozenset((401, 403))
_MISSHAPEN: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What is raised when a value of JSON is read as another one than it is."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server at `url` answered."""

    url: str
    status: int
    body: bytes

    def read_as(self, what: str, parse: Callable[[Any], T]) -> T:
        """Return what `parse` makes of a good answer's JSON; `what` was asked for. Raises Unreachable."""
        self.good(what)
        try:
            document = json.loads(self.body)
        except (RecursionError, ValueError) as error:
            raise self._strange(what, "that is no JSON") from error
        try:
            return parse(document)
        except KeyError as error:
            raise self._strange(what, f"{error} is missing") from error
        except ValueError as error:
            raise self._strange(what, str(error)) from error
        except _MISSHAPEN as error:
            raise self._strange(what, "it has another form") from error

    def good(self, what: str) -> Answer:
        """Return it if its status is 200. Raises Unreachable."""
        if self.status == 200:
            return self
        advice = ""
        if self.status in _NOT_THERE:
            advice = "; is it Tritium, and its port of HTTP?"
        elif self.status in _KEYS:
            advice = "; keys are shown with --key-file or --header-file"
        raise Unreachable(f"{self.url} answered {self.status} when asked for {what}: {self.error()}{advice}")

    def error(self) -> str:
        """Return the error that it tells, on one line."""
        try:
            said = json.loads(self.body)["error"]
        except _MISSHAPEN:
            said = self.body[: 4 * _SHOWN].decode(errors="replace")
        return printable(" ".join(str(said).split())[:_SHOWN]) or "it says no more"

    def _strange(self, what: str, why: str) -> Unreachable:
        begin = self.body[:60].decode(errors="replace")
        return Unreachable(
            f"{self.url} did not answer with {what}, but with {printable(repr(begin))}:"
            f" {printable(why)[:200]}; is it Tritium, and its port of HTTP?"
        )


async def exchange(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: object = None,
    server_name: str = "",
    connect: float,
    within: float,
) -> Answer:
    """Ask, and return the answer. `connect` and `within` are seconds, the second for all of it.

    The server's certificate is for `server_name`, or for the host in `url` if that is empty.

    Raises Unreachable if none comes, or more than 32 MiB.
    """
    content = None if body is None else json.dumps(body).encode()
    # As it comes: what is packed could be any size.
    headers = {"accept-encoding": "identity", **headers}
    timeout = httpx.Timeout(None, connect=connect)
    extensions = {"sni_hostname": server_name} if server_name else {}
    try:
        with trio.fail_after(within):
            async with client.stream(
                method, url, headers=headers, content=content, timeout=timeout, extensions=extensions
            ) as response:
                return Answer(url, response.status_code, await _whole(url, response))
    except (trio.TooSlowError, httpx.TimeoutException) as error:
        raise Unreachable(f"{url}: no answer within {within:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise Unreachable(f"{url}: {_why(error)}") from error


async def _whole(url: str, response: httpx.Response) -> bytes:
    found = bytearray()
    # A generator that is left in its middle would be closed at some later time.
    with trio.CancelScope() as scope:
        async for piece in response.aiter_raw():
            found += piece
            if len(found) > _MOST_BYTES:
                scope.cancel()
    if len(found) > _MOST_BYTES:
        raise Unreachable(f"{url}: its answer has more than {_MOST_BYTES} bytes")
    return bytes(found)


def _why(error: BaseException) -> str:
    """Return why there is no answer. What TLS says stands at the end of a chain of errors."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}; `tls.ca_file` says what is"
        if isinstance(cause, ssl.SSLError):
            reason = str(cause.reason or cause)
            advice = next((advice for word, advice in _TLS.items() if word in reason), "")
            return f"TLS fails ({reason}){advice}"
        cause = cause.__cause__ or cause.__context__
    why = printable(str(error)).rstrip(".") or type(error).__name__
    strange = isinstance(error, httpx.RemoteProtocolError)
    return f"{why}; is it Tritium's port of HTTP, and does it speak TLS (https://)?" if strange else why
