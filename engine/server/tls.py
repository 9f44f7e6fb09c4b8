"""TLS of the listeners: contexts of the PEM files that the operator named, read again when these change.

A listener asks its `ListenerTls` for a context for each connection. A connection keeps its own, so a new
certificate costs no connection that stands. Files that can't be used leave the context before in place.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from actors.values.events import Event, Log
from actors.values.families import Block, Families, SplitFamily, by, once
from engine.server.reloading import Followed, NotReloaded, stamp_of
from engine.settings.settings import Settings
from engine.settings.tls import PemFile, TlsFiles
from protocols.grpc.listener import ALPN as HTTP_2

HTTP_1: Final = "http/1.1"
"""What a client of HTTP may say that it speaks (RFC 7301, section 6). It need not say anything."""

SOON: Final = 14 * 24 * 3600.0
"""Seconds before a certificate expires from which on the log warns."""

# Of TLS 1.2, those that RFC 9113 appendix A leaves. TLS 1.3 has none other.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_NO_CHECK_TIME: Final = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME


class TlsUnusable(NotReloaded):
    """The files make no TLS listener. The message names the flag, the file and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a listener speaks TLS with.

    `expires_at` is when the server's certificate expires, in seconds since the epoch; None where clients
    would refuse it anyway, for the reason `flaw`.
    """

    context: ssl.SSLContext
    expires_at: float | None
    flaw: str = ""


class ListenerTls(Followed[Credentials]):
    """The TLS of one listener. `alpn` is the protocol that it offers."""

    def __init__(
        self, listener: str, files: TlsFiles, alpn: str, *, wall_clock: Callable[[], int], log: Log
    ) -> None:
        """`wall_clock` returns milliseconds since the epoch. Raises TlsUnusable."""
        self.listener = listener
        self.name = f"tls-{listener}"
        self.files = files.paths
        self.stamp = stamp_of(self.files)
        self._pem = files
        self._alpn = alpn
        self._wall_clock = wall_clock
        self._log = log
        self._credentials = self.read()
        self._warn()

    @property
    def expires_at(self) -> float | None:
        """When the certificate that is shown expires, in seconds since the epoch; None if that is unknown."""
        return self._credentials.expires_at

    def context(self) -> ssl.SSLContext:
        """Return what the next connection speaks TLS with."""
        return self._credentials.context

    def read(self) -> Credentials:
        """Make a context of the files. Raises TlsUnusable."""
        return credentials(self._pem, self._alpn)

    def adopt(self, found: Credentials) -> Mapping[str, object]:
        """Use another context for the next connections."""
        self._credentials = found
        self._warn()
        return {} if found.expires_at is None else {"expires": _date(found.expires_at)}

    def _warn(self) -> None:
        """Say that clients refuse the certificate, or soon will."""
        path, expires_at = self._pem.certificate.path, self._credentials.expires_at
        if expires_at is None:
            said = f"clients will refuse the certificate in '{path}': {self._credentials.flaw}"
        elif (left := expires_at - self._wall_clock() / 1000) > SOON:
            return
        else:
            said = f"the certificate in '{path}' {'has expired' if left <= 0 else 'expires soon'}"
        expires = {} if expires_at is None else {"expires": _date(expires_at)}
        self._log(
            Event.CERTIFICATE_DOUBTFUL, level="warning", listener=self.listener, warning=said, **expires
        )


def _date(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The TLS of each listener; None for those in the clear."""

    http: ListenerTls | None = None
    grpc: ListenerTls | None = None
    metrics: ListenerTls | None = None

    @property
    def every(self) -> Sequence[ListenerTls]:
        """Those that there are."""
        return [each for each in (self.http, self.grpc, self.metrics) if each is not None]


def open_tls(settings: Settings, *, http: bool, wall_clock: Callable[[], int], log: Log) -> ServerTls:
    """Read the files of all listeners that are on. `http` is false if another server does that part.

    Management's own ports have the files of HTTP and gRPC. Raises TlsUnusable.
    """
    on_http = (http and settings.allow_http) or bool(settings.management.address)

    def of(listener: str, allowed: bool, files: TlsFiles | None, alpn: str) -> ListenerTls | None:
        if not allowed or files is None:
            return None
        return ListenerTls(listener, files, alpn, wall_clock=wall_clock, log=log)

    return ServerTls(
        http=of("http", on_http, settings.http_tls, HTTP_1),
        grpc=of("grpc", settings.allow_grpc, settings.grpc.tls, HTTP_2),
        metrics=of("metrics", settings.allow_metrics, settings.metrics_tls, HTTP_1),
    )


FAMILIES: Final[Families[Sequence[ListenerTls]]] = (
    SplitFamily(
        "tritium_tls_certificate_expiry_timestamp_seconds",
        "gauge",
        "When the certificate that a listener shows expires, in seconds since the epoch",
        lambda every: by(
            "listener", ((each.listener, each.expires_at) for each in every if each.expires_at is not None)
        ),
    ),
)


def tls_blocks(every: Sequence[ListenerTls]) -> Iterator[Block]:
    """Yield what is told of the listeners' certificates; nothing if there are none."""
    if every:
        yield from once(FAMILIES, every)


# -- PEM files, or what is wrong with them


def credentials(files: TlsFiles, alpn: str) -> Credentials:
    """Return what a listener speaks TLS with: 1.2 or later, and `alpn`.

    See RFC 9113 sections 3.3 and 9.2. With `client_roots`, only clients with a certificate that these vouch
    for get through or, if that is `optional`, also those without one. Raises TlsUnusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # A client may close its side without a goodbye and wait for an answer. Requests tell where they end.
    context.options |= getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)  # OpenSSL 1.1 ignores it unasked
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols([alpn])
    _load_certificate(context, files.certificate, files.key)
    expires_at, flaw = _tried(context, files.certificate)
    if files.client_roots is not None:
        _load_roots(context, files.client_roots)
        context.verify_mode = ssl.CERT_OPTIONAL if files.optional else ssl.CERT_REQUIRED
    return Credentials(context=context, expires_at=expires_at, flaw=flaw)


def _load_certificate(context: ssl.SSLContext, certificate: PemFile, key: PemFile) -> None:
    _check(certificate, b"CERTIFICATE-----", "PEM certificate")
    _check(key, b"PRIVATE KEY-----", "PEM private key")

    def encrypted() -> NoReturn:
        raise TlsUnusable(
            f"--{key.flag}: the key in '{key.path}' is encrypted, and a server can't type its password;"
            " `openssl pkey -in KEY -out PLAIN` decrypts it"
        )

    try:
        context.load_cert_chain(certificate.path, key.path, password=encrypted)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsUnusable(
                f"--{key.flag}: the key in '{key.path}' does not belong to the certificate in '{certificate.path}'"
            ) from error
        raise TlsUnusable(
            f"--{certificate.flag}, --{key.flag}: '{certificate.path}' and '{key.path}' can't be used:"
            f" {_reason(error)}"
        ) from error
    except OSError as error:  # it was there a moment ago
        raise TlsUnusable(
            f"--{certificate.flag}, --{key.flag}: '{certificate.path}' and '{key.path}' can't be read:"
            f" {error.strerror}"
        ) from error


def _load_roots(context: ssl.SSLContext, roots: PemFile) -> None:
    _check(roots, b"CERTIFICATE-----", "PEM certificate")
    try:
        context.load_verify_locations(cafile=roots.path)
    except ssl.SSLError as error:
        raise TlsUnusable(f"--{roots.flag}: '{roots.path}' can't be used: {_reason(error)}") from error
    except OSError as error:
        raise TlsUnusable(f"--{roots.flag}: '{roots.path}' can't be read: {error.strerror}") from error


def _check(file: PemFile, mark: bytes, wanted: str) -> None:
    try:
        with open(file.path, "rb") as opened:
            content = opened.read()
    except OSError as error:
        raise TlsUnusable(f"--{file.flag}: '{file.path}' can't be read: {error.strerror}") from error
    if b"-----BEGIN" not in content or mark not in content:
        raise TlsUnusable(f"--{file.flag}: '{file.path}' holds no {wanted} (-----BEGIN …{mark.decode()})")


def _reason(error: ssl.SSLError) -> str:
    """Return what OpenSSL says; it has no word for PEM whose lines can't be read."""
    return error.reason.lower().replace("_", " ") if error.reason else "its PEM is damaged"


def _tried(context: ssl.SSLContext, certificate: PemFile) -> tuple[float | None, str]:
    """Have a client in memory shake hands with `context`, which asks for no certificate yet.

    The client trusts the certificate, and looks at no clock. Returns when the certificate expires, in seconds
    since the epoch, or None and why a client refuses it.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    try:
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
        client.load_verify_locations(cafile=certificate.path)
        shown = _shake_hands(context, client)
    except ssl.SSLCertVerificationError as error:
        return None, error.verify_message
    except (ssl.SSLError, OSError) as error:
        return None, str(error)
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"]))), ""


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, object]:
    """Return the server's certificate as the client sees it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    while True:
        for end in (here, there):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if end is here:
                return here.getpeercert() or {}
