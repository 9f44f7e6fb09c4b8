"""Bytes in, requests out: HTTP/1.1 without a socket, a clock or a loop.

llhttp (through `httptools`) does the parsing, in its strict mode. It refuses messages that smuggle: two
lengths, a length and a transfer coding, bare line feeds, folded headers. This module refuses messages that
llhttp lets pass although HTTP forbids them: a Host that is missing, repeated or not a host, and transfer
codings besides `chunked`. It also bounds what it collects, and takes long bodies out of llhttp's hands: once
a head has announced a long body, the connection reads the rest straight into one buffer, `direct`.

A request that offers an upgrade (`Upgrade: h2c`, which some clients send with everything) is answered as if
it had not. llhttp leaves the protocol behind such a head, with or without a body. So that body is taken
directly too.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import httptools
import numpy as np

from actors.values.callers import Caller
from actors.values.tensors import Buffer
from protocols.http.admission import AdmitHead, may_skip
from protocols.http.answers import Answer, error_answer
from protocols.http.origins import FROM_PAGES

_BLANK_LINE: Final = b"\r\n\r\n"
_LONGEST_KNOWN: Final = 4096  # bytes of a head that is kept for comparison
# Bytes still to come above which a body is read past llhttp.
_LONG_BODY: Final = 32 * 1024
_INT32_MAX: Final = 2**31 - 1
_MOST_DIGITS: Final = 10  # of a number up to 2**31 - 1
_VERSIONS: Final = frozenset(("1.0", "1.1"))
# RFC 3986, section 3.2.2, with a port; empty is allowed where the
# target has no authority (RFC 9112, section 3.2).
_HOST: Final = re.compile(rb"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]*")
_CONTENT_LENGTH: Final = re.compile(rb"^content-length:[ \t]*([^\r\n]*)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What one request may consist of. Sizes are bytes.

    Heads may be eight times what other servers allow, because forwarded headers and traces travel there.
    `max_body_size` is the largest length that Triton's frontend can express, `max_chunks` is its limit.
    """

    max_head_size: int = 64 * 1024
    max_headers: int = 128
    max_body_size: int = _INT32_MAX
    max_chunks: int = 65536


class Head:
    """The head of a request. It is never changed: requests whose heads are the same bytes share one.

    `note` is the application's own: what it has found out about this head.
    """

    __slots__ = (
        "headers",
        "http_version",
        "keep_alive",
        "length",
        "method",
        "note",
        "of_page",
        "path",
        "query",
        "raw_headers",
    )

    def __init__(self) -> None:
        self.method = ""
        self.path = b"/"
        self.query = b""
        self.http_version = "1.1"
        self.headers: list[tuple[bytes, bytes]] = []  # names in lower case
        self.raw_headers: list[tuple[bytes, bytes]] = []  # names as received
        self.length = -1  # Content-Length; -1 without one
        self.of_page = False  # a browser says which page it is of
        self.keep_alive = True
        self.note: object = None


class Request:
    """One request, complete."""

    __slots__ = ("body", "caller", "head", "release", "size")

    def __init__(self, head: Head, body: Buffer = b"", size: int = 0) -> None:
        self.head = head
        self.body = body
        self.size = size  # of the body as it came, also where it was not wanted
        self.caller: Caller | None = None  # who asks, once that was asked
        self.release: Callable[[], None] | None = None  # gives back the room that the body had on its way


class RequestParser:
    """Collects the requests in what `feed` is given into `ready`, in order.

    Where `direct` is set, the bytes that come next belong in there instead, from `received` on; tell `fill`
    of them. Once `refusal` is set nothing more is looked at: answer the requests in `ready`, send the
    refusal, close. Where `skipped` is set, answer the requests in `ready`, then the skipped one, and go on
    feeding: its body is dropped as it comes.

    `admit` is asked about a request of whose body more is to come than came with its head.

    Clients repeat themselves: where the bytes that come are the last request's head once more and a whole
    body, llhttp is spared, as it would find the same.
    """

    def __init__(self, limits: RequestLimits, admit: AdmitHead | None = None) -> None:
        self.ready: deque[Request] = deque()
        self.refusal: Answer | None = None
        self.skipped: tuple[Request, Answer] | None = None
        self.begun = False  # a request is here in part
        self.in_body = False  # and its head is complete
        self.awaits_continue = False  # and its sender waits for `100 Continue`
        self.received = 0  # bytes of its body
        self.direct: memoryview | None = None
        self._limits = limits
        self._admit = admit
        self._asked = False  # `admit`, about the request that is here in part
        self._skipping = False  # its body is dropped as it comes, because it is answered already
        self._wanted = True  # its body is kept
        self._most = limits.max_body_size  # bytes of its body
        self._complain: Callable[[int], Answer] | None = None  # makes the answer to more
        self._llhttp: Any = httptools.HttpRequestParser(self)
        self._last = False  # a request closed the connection: later bytes are ignored
        self._head = Head()
        self._caller: Caller | None = None  # that of a body which `admit` was asked about
        self._known = b""  # the bytes of the last head, if another request with it would be as plain
        self._target = b""
        self._parts: list[Buffer] = []
        self._length = -1  # that of the head
        self._upgrade = False
        self._head_size = 0
        self._unfinished = 0  # bytes fed while the head stayed incomplete
        self._chunks = 0
        self._chunk_begins = False
        self._framing = 0  # bytes fed within a chunked body that are not the body
        # The last Host that was checked: a client rarely changes it.
        self._host = b""

    def close(self) -> None:
        """End the parser: nothing more is fed. The inner parser and this one let go of each other."""
        self._llhttp = None

    def feed(self, data: Buffer) -> None:  # noqa: C901  cases of one grammar
        """Parse the bytes that came next. `data` may be overwritten once this returns."""
        if self._last:
            return
        fresh = not self.begun and not self.ready
        if fresh and self._known and self._again(data):
            return
        in_head = self.begun and not self.in_body
        received = self.received if self.in_body else -1
        try:
            self._llhttp.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._resume(memoryview(data)[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            raise  # a bug in here
        except httptools.HttpParserError as error:
            if not self._last:
                self._refuse(400, _describe(error, data))
        if not self.begun:
            if fresh:
                self._learn(data)
            return
        if self.direct is not None:
            return
        if not self.in_body:
            if in_head:
                self._unfinished += len(data)
                if self._unfinished > self._limits.max_head_size:
                    self._refuse_head()
            return
        if not self._asked:
            self._ask()
        if self._length >= 0:
            if self._length - self.received > _LONG_BODY:
                self._take_over()
        elif received >= 0:
            self._framing += len(data) - (self.received - received)
            if self._framing > self._limits.max_head_size + 64 * self._limits.max_chunks:
                self._refuse(400, "Bad Request: chunk extensions take too much room")

    def _again(self, data: Buffer) -> bool:
        """Take a request whose head is that of the last one, byte for byte; False where it is not."""
        known = self._known
        size = len(known)
        length = len(data) - size
        if length != max(0, self._head.length) or bytes(data[:size]) != known:
            return False
        self.ready.append(Request(self._head, bytes(data[size:]), length))
        return True

    def _learn(self, data: Buffer) -> None:
        """Note the head of the request in `data`, if nothing else is in there.

        The last four bytes of it must be the first blank line: so nothing that llhttp overlooks, such as line
        breaks behind a body, can move the place where a body is cut off.
        """
        self._known = b""
        head = self._head
        if len(self.ready) != 1 or self._upgrade or self._last or self.refusal is not None:
            return
        request = self.ready[0]
        size = len(data) - request.size
        if size <= _LONGEST_KNOWN and request.size == max(0, head.length):
            known = bytes(data[:size])
            if known.find(_BLANK_LINE) == size - len(_BLANK_LINE):
                self._known = known

    def _resume(self, rest: memoryview) -> None:
        """Go on behind a head that offers an upgrade, where llhttp stopped."""
        self._llhttp = httptools.HttpRequestParser(self)
        if self.begun:
            body = rest[: self._length]
            self.on_body(bytes(body))
            rest = rest[len(body) :]
            if self.received == self._length:
                self._complete()
            else:
                self._ask()
                self._take_over()
        if rest and not self._last and self.refusal is None:
            self.feed(rest)

    def _refuse(self, status: int, message: str) -> None:
        if self.refusal is None:
            self.refusal = error_answer(status, message)

    def _refuse_head(self) -> None:
        self._refuse(431, "Request Header Fields Too Large")

    def _ask(self) -> None:
        """Have `admit` say whether the rest of the body may come."""
        self._asked = True
        if self._admit is None or self.refusal is not None:
            return
        head = self._head
        verdict = self._admit(head.method, head.path, head.headers, self._length)
        if not isinstance(verdict, Answer):
            self._caller = verdict.caller
            if verdict.most <= self._most:
                self._most, self._complain = verdict.most, verdict.too_long
            # Behind a head that offers an upgrade, the body is not for llhttp to count.
            self._wanted = verdict.wanted or self._upgrade
            if not self._wanted:
                self._parts.clear()
            self._check_size()
            return
        rest = self._length - self.received if self._length >= 0 else -1
        if may_skip(rest, awaits_continue=self.awaits_continue) and not self._upgrade and head.keep_alive:
            self._skipping = True
            self._parts.clear()
            self.skipped = Request(head), verdict
        else:
            self._refuse_body(verdict)

    def _refuse_body(self, answer: Answer) -> None:
        self._parts.clear()
        if self.refusal is None:
            self.refusal = answer

    def _check_size(self) -> None:
        """Refuse a chunked body of which too much has come.

        A body with a length was refused by its length.
        """
        if self.received <= self._most or self.refusal is not None:
            return
        if self._complain is not None:
            self._refuse_body(self._complain(self.received))
        else:
            self._refuse(413, f"request body exceeds the maximum allowed size of {self._most} bytes")

    def _take_over(self) -> None:
        """Have the rest of the body read into one buffer. Pages of it that stay unread stay unallocated."""
        if self._skipping or not self._wanted or self.refusal is not None:
            return
        direct = np.empty(self._length, dtype=np.uint8).data
        at = 0
        for part in self._parts:
            direct[at : at + len(part)] = part
            at += len(part)
        self._parts.clear()
        self.direct = direct

    def fill(self, count: int) -> None:
        """Note that `count` more bytes of the body were read into `direct`.

        The last ones complete the request.
        """
        self.received += count
        if self.direct is not None and self.received == len(self.direct):
            self._parts.append(self.direct)
            self.direct = None
            self._llhttp = httptools.HttpRequestParser(self)  # the old one still waits for this body
            self._complete()

    @property
    def kept(self) -> int:
        """Bytes of memory for the body on its way: its length or, chunked, what has come. 0: nothing is kept."""
        if not self.in_body or self._skipping or not self._wanted or self.refusal is not None:
            return 0
        return self.received if self._length < 0 else self._length

    @property
    def rest(self) -> int:
        """Bytes of the body that are still to come; 0 where that is not known."""
        return max(0, self._length - self.received)

    @property
    def most(self) -> int:
        """Bytes that the body may have."""
        return self._most

    def drop(self) -> None:
        """Let go of what has come of a body."""
        self.direct = None
        self._parts.clear()

    def _complete(self) -> None:
        parts = self._parts
        body = b"" if not parts else parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        request = Request(self._head, body, self.received)
        request.caller = self._caller
        self.begun = self.in_body = self.awaits_continue = False
        self._last = not self._head.keep_alive
        if self._skipping:
            self._skipping = False
        elif self.refusal is None:
            self.ready.append(request)

    # llhttp calls these while it is fed. They leave complaints in `refusal`, because an exception would come
    # out of llhttp as another one.

    def on_message_begin(self) -> None:
        """A request line comes next."""
        self._head = Head()
        self._known = b""  # the bytes of the head before
        self._caller = None
        self._target = b""
        self._head_size = self._unfinished = 0
        self._length = -1
        self._asked = False
        self._wanted = True
        self._most = self._limits.max_body_size
        self._complain = None
        self.begun = True
        self.in_body = False

    def on_url(self, part: bytes) -> None:
        """Part of the request's target."""
        self._target += part
        self._head_size += len(part)
        if self._head_size > self._limits.max_head_size:
            self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer of a chunked body; trailers are counted and dropped."""
        self._head_size += len(name) + len(value)
        headers = self._head.raw_headers
        if self._head_size > self._limits.max_head_size or len(headers) >= self._limits.max_headers:
            self._refuse_head()
        elif not self.in_body:
            # llhttp leaves the blanks behind a value, which are not part of it (RFC 9110, section 5.5).
            headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:  # noqa: C901  cases of one grammar
        """The head is here; a body may follow."""
        head = self._head
        llhttp = self._llhttp
        head.headers = headers = [(name.lower(), value) for name, value in head.raw_headers]
        head.method = llhttp.get_method().decode("latin-1")
        head.path, _, head.query = _origin_form(self._target).partition(b"?")
        version = llhttp.get_http_version()
        if version != "1.1":
            head.http_version = version
            if version not in _VERSIONS:
                self._refuse(505, "HTTP Version Not Supported")
        head.keep_alive = llhttp.should_keep_alive()
        self.in_body = True
        self.received = self._chunks = self._framing = 0
        chunked = False
        hosts = 0
        for name, value in headers:
            if name == b"host":
                hosts += 1
                if value != self._host:
                    self._check_host(value)
            elif name == b"content-length":
                self._take_length(value)
            elif name == b"transfer-encoding":
                chunked = True
                self._check_coding(value)
            elif name in FROM_PAGES:
                head.of_page = True
            elif name == b"expect":
                self.awaits_continue = version == "1.1" and value.lower() == b"100-continue"
        # Health checks of balancers speak HTTP/1.0, which knew no Host.
        if hosts != 1 and (hosts or version == "1.1"):
            self._refuse(
                400, "Bad Request: " + ("more than one Host" if hosts else "no Host") + " in the head"
            )
        self._upgrade = llhttp.should_upgrade()
        if self._upgrade:
            if head.method == "CONNECT":
                head.keep_alive = False
            elif chunked:
                self._refuse(400, "Bad Request: an upgrade can't be offered together with a chunked body")

    def _check_host(self, value: bytes) -> None:
        if _HOST.fullmatch(value) is None:
            shown = value[:80].decode("latin-1")
            self._refuse(400, f"Bad Request: the Host is not a host with an optional port: '{shown}'")
        else:
            self._host = value

    def _check_coding(self, value: bytes) -> None:
        """Refuse transfer codings by RFC 9112, section 6.1: unknown ones, and in HTTP/1.0 any."""
        if value.lower() != b"chunked":
            shown = value[:80].decode("latin-1")
            self._refuse(
                501,
                f"Transfer-Encoding '{shown}' is not supported: send the body chunked or with a Content-Length, "
                "and compress it by Content-Encoding",
            )
        elif self._head.http_version != "1.1":
            self._refuse(400, "Bad Request: HTTP/1.0 has no Transfer-Encoding")

    def _take_length(self, value: bytes) -> None:
        # Only digits come here, because llhttp saw to that. But there may be any number of zeros.
        digits = value.lstrip(b"0") or b"0"
        length = int(digits) if len(digits) <= _MOST_DIGITS else _INT32_MAX + 1
        if length > _INT32_MAX:
            self._refuse(400, _length_complaint(value, out_of_range=True))
        elif length > self._limits.max_body_size:
            self._refuse(
                413,
                f"request body of {length} bytes exceeds the maximum allowed size of "
                f"{self._limits.max_body_size} bytes",
            )
        else:
            self._length = self._head.length = length

    def on_chunk_header(self) -> None:
        """A chunk of the body comes next or, where it is empty, the body's end."""
        self._chunk_begins = True

    def on_body(self, part: bytes) -> None:
        """Part of the body."""
        if self.refusal is not None:
            return
        self.received += len(part)
        if self._skipping:
            return
        if self._wanted:
            self._parts.append(part)
        if self._length >= 0:
            return
        if self._chunk_begins:
            self._chunk_begins = False
            self._chunks += 1
            if self._chunks > self._limits.max_chunks:
                self._refuse(
                    400,
                    f"Chunked request body exceeds maximum of {self._limits.max_chunks} non-empty chunks. "
                    "Send fewer or larger HTTP chunks.",
                )
        self._check_size()

    def on_message_complete(self) -> None:
        """The request is here, unless an upgrade made llhttp stop in front of the body."""
        if not (self._upgrade and self._length > 0):
            self._complete()


def _origin_form(target: bytes) -> bytes:
    """Return the path and query of a request target.

    A proxy's client may give them with a scheme and a host.
    """
    if target.startswith(b"/"):
        return target
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        return target
    path: bytes = url.path or b"/"
    return path if url.query is None else path + b"?" + url.query


def _describe(error: Exception, data: Buffer) -> str:
    reason = str(error)
    out_of_range = reason == "Content-Length overflow"
    if out_of_range or reason == "Invalid character in Content-Length":
        found = _CONTENT_LENGTH.findall(bytes(data))
        if found:
            return _length_complaint(found[-1], out_of_range=out_of_range)
    return f"Bad Request: {reason}"


def _length_complaint(value: bytes, *, out_of_range: bool) -> str:
    detail = f", value is out of range [ -2147483648, {_INT32_MAX} ]" if out_of_range else ""
    return f"Unable to parse Content-Length{detail}, got: {value.decode('latin-1')}"
