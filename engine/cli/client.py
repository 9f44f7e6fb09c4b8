"""What commands that talk to a running server share.

These are the address, the headers, requests in JSON, and redrawing.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from engine.cli.credentials import NoCredentials, credentials
from engine.observability.terminals import ability_of
from engine.observability.text import printable
from engine.settings.forms import SettingsError
from engine.settings.scanning import CLIENT_KEY
from engine.settings.secrets import concealed, looks_secret, read_secret

if TYPE_CHECKING:
    from rich.console import RenderableType

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110's token
_MOST_BYTES: Final = 64 * 1024 * 1024
_LONGEST_LINE: Final = 1024 * 1024
_AUTHORIZATION: Final = "Authorization"
_RESTRICTED: Final = "This API is restricted"  # how a server with --http-restricted-api begins


class ServerUnavailable(Exception):
    """A request to the server came to nothing, with a message for the operator."""


class ServerRefused(ServerUnavailable):
    """The server answered a request with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Asks the server at `url`, sending `headers` with everything.

    `source` is where the credentials among them are from, for texts; empty if there are none.
    """

    def __init__(self, url: str, headers: Sequence[tuple[str, str]], *, source: str = "") -> None:
        """Raises ServerUnavailable if `url` is no address of a server."""
        self.base = (url if "://" in url else f"http://{url}").rstrip("/")
        if not self.base.startswith(("http://", "https://")):
            raise ServerUnavailable(f"--url takes an http:// address. Got {url}")
        # An operator's own server needs no proxy.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _StayHere())
        self._opener.addheaders += headers
        self._source = source

    def ask(self, path: str, *, api: str, wanted: str, document: object = None) -> Any:
        """Return the JSON that the server answers with; `document`, if there is one, is posted.

        `api` is the name by which `--http-restricted-api` knows it, `wanted` says what is asked for. Raises
        ServerUnavailable with what went wrong.
        """
        request = urllib.request.Request(self.base + path)
        if document is not None:
            request.data = json.dumps(document).encode()
            request.add_header("Content-Type", "application/json")
        with self._answered(request, api, wanted) as response:
            return json.loads(response.read(_MOST_BYTES))

    def lines(
        self, path: str, *, api: str, wanted: str, headers: Mapping[str, str], within: float
    ) -> Iterator[bytes]:
        """Yield the lines of an answer that goes on, without their ends, as they come.

        Raises ServerUnavailable as `ask`, also if nothing comes `within` some seconds.
        """
        request = urllib.request.Request(self.base + path, headers=dict(headers))
        with self._answered(request, api, wanted, within=within) as response:
            while line := response.readline(_LONGEST_LINE):
                if not line.endswith(b"\n"):
                    raise ValueError("a line without an end")
                yield line.rstrip(b"\r\n")

    @contextlib.contextmanager
    def _answered(
        self, request: urllib.request.Request, api: str, wanted: str, *, within: float = 10
    ) -> Iterator[http.client.HTTPResponse]:
        """Give the answer to a request. Raises ServerUnavailable, also for what goes wrong in the block."""
        path = request.full_url.removeprefix(self.base).partition("?")[0]
        try:
            with self._opener.open(request, timeout=within) as response:
                yield response
        except urllib.error.HTTPError as error:
            with error:
                said = _error_text(error)
            raise ServerRefused(
                error.code,
                f"the server at {self.base} answered {error.code} to {path}: "
                f"{self._advised(error.code, said, api)}",
            ) from error
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            reason = getattr(error, "reason", error)
            why = getattr(reason, "strerror", None) or reason
            raise ServerUnavailable(f"no server answers at {self.base}: {why}") from error
        except ValueError as error:
            raise ServerUnavailable(
                f"the server at {self.base} did not answer with {wanted}: {error}"
            ) from error

    def _advised(self, status: int, said: str, api: str) -> str:
        """Return what the server said, and what its operator can do about it if that is known."""
        if status == 401 and not self._source:
            return (
                f"{said or 'it asks for credentials'}; give a key with --key-file FILE, or in the variable "
                f"{CLIENT_KEY}. `tritium key new` makes keys"
            )
        if status == 401:
            return (
                f"{said or 'the credentials are not good'}. They are from {self._source}; "
                "`tritium key list` shows which keys the server's auth file has"
            )
        if status == 403 and "--management-address" in said:
            return f"{said}; ask there, with --url"
        if status == 403 and (not said or _RESTRICTED in said):
            return f"{said or f'its API {api!r} is restricted'}; give it with --header 'NAME: VALUE'"
        if status == 403:
            return f"{said}; beside the server's auth file, `tritium auth explain` says which rule decides"
        if 300 <= status < 400:
            return "it sends elsewhere, and commands do not follow: give the address itself with --url"
        return said or f"is it Tritium, and if its API '{api}' is restricted, did it get the --header?"


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: another server must not get the key."""

    def redirect_request(self, *_: object) -> None:
        return None


def client_for(options: argparse.Namespace, environ: Mapping[str, str]) -> Client:
    """Return the client that the options of `add_server_options` describe. Raises ServerUnavailable."""
    headers, source = headers_for(options, environ)
    return Client(options.url, headers, source=source)


def headers_for(
    options: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[Sequence[tuple[str, str]], str]:
    """Return the headers that the options of `add_credential_options` describe, and where the key is from.

    Raises ServerUnavailable.
    """
    try:
        key, source = credentials(options.key_file, environ)
    except NoCredentials as error:
        raise ServerUnavailable(str(error)) from error
    for name, _ in options.header:
        if name.lower() == _AUTHORIZATION.lower() or looks_secret(name):
            sys.stderr.write(
                f"warning: the value of {name} stands on the command line, where every user of this machine"
                " can read it; use --header-file FILE\n"
            )
    headers = [*options.header, *options.header_files]
    own = any(name.lower() == _AUTHORIZATION.lower() for name, _ in headers)
    if own and options.key_file:
        raise ServerUnavailable(
            "--key-file and an Authorization in --header both say who asks: leave one out"
        )
    if own:
        return headers, "--header"
    shown = [(_AUTHORIZATION, f"Bearer {key}")] if key else []
    return [*headers, *shown], source


def _error_text(error: urllib.error.HTTPError) -> str:
    """Return what the server said was wrong, if it said so in its usual form."""
    try:
        document = json.loads(error.read(_MOST_BYTES))
    except (OSError, http.client.HTTPException, ValueError):
        return ""
    return printable(str(document.get("error", ""))) if isinstance(document, dict) else ""


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Let `parser` take `--url`, `--key-file` and `--header`."""
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="the server's HTTP address [%(default)s]"
    )
    add_credential_options(parser)


def add_credential_options(parser: argparse.ArgumentParser) -> None:
    """Let `parser` take `--key-file` and `--header`."""
    parser.add_argument(
        "--key-file",
        metavar="FILE",
        help="a file with the API key or JWT to show, for servers with an --auth-file"
        f" [the key in the variable {CLIENT_KEY}, if there is one]",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        type=_header,
        metavar="'NAME: VALUE'",
        help="send this header too, such as the one that --http-restricted-api asks for; repeatable",
    )
    parser.add_argument(
        "--header-file",
        action="append",
        default=[],
        dest="header_files",
        type=_header_file,
        metavar="FILE",
        help="send the header 'NAME: VALUE' that FILE holds, which is on no command line then; repeatable",
    )


def add_form_options(parser: argparse.ArgumentParser) -> None:
    """Let `parser` take `--json` or `--watch`."""
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print the server's answer as JSON")
    shown.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=1.0,
        metavar="SECONDS",
        help="redraw every second, or every SECONDS",
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
        given = f", got {concealed(text)!r}" if colon else ""
        raise argparse.ArgumentTypeError(f"expected 'NAME: VALUE'{given}")
    return name, value.strip()


def _header_file(path: str) -> tuple[str, str]:
    try:
        return _header(read_secret(path, "--header-file"))
    except SettingsError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def show(
    document: Any,
    options: argparse.Namespace,
    *,
    drawn: Callable[[Any], RenderableType],
    plain: Callable[[Any], str],
) -> None:
    """Write the server's answer in the form that the options or the place it goes to ask for."""
    if options.json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    elif sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(drawn(document))
    else:
        sys.stdout.write(plain(document))


def watch(
    ask: Callable[[], Any],
    interval: float,
    *,
    drawn: Callable[[Any], RenderableType],
    plain: Callable[[Any], str],
) -> int:
    """Ask and redraw until interrupted or told to end.

    A server that goes away and comes back is part of what is watched. If the output is no terminal, each
    round is written whole, below the one before.
    """
    with ended_by_signals():
        if ability_of(sys.stdout, os.environ).draws:
            _redraw(ask, interval, drawn)
        else:
            _write(ask, interval, plain)
    return 0


def _write(ask: Callable[[], Any], interval: float, plain: Callable[[Any], str]) -> None:
    waiting = ""
    for document in _rounds(ask, interval):
        before, waiting = waiting, _waiting(document) if isinstance(document, ServerUnavailable) else ""
        if waiting and waiting == before:
            continue
        sys.stdout.write(waiting or plain(document))
        sys.stdout.flush()


def _waiting(error: ServerUnavailable) -> str:
    return f"{error}; waiting for it to come back\n"


def _redraw(ask: Callable[[], Any], interval: float, drawn: Callable[[Any], RenderableType]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        for document in _rounds(ask, interval):
            lost = isinstance(document, ServerUnavailable)
            live.update(Text(_waiting(document), style="red") if lost else drawn(document), refresh=True)


def _rounds(ask: Callable[[], Any], interval: float) -> Iterator[Any]:
    """Yield what the server answers, for ever, or why it does not."""
    while True:
        try:
            document = ask()
        except ServerUnavailable as error:
            document = error
        yield document
        time.sleep(max(0.1, interval))


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the block at SIGTERM as at an interrupt, so that the terminal is given back."""

    def end(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
