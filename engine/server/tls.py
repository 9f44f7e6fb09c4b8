"""TLS for listeners: a context of the PEM files that the operator named, or what is wrong with them."""

from __future__ import annotations

import ssl
from typing import Final, NoReturn

from engine.settings.listening import TlsFiles

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2, those that RFC 9113 appendix A leaves


class TlsUnusable(Exception):
    """The files make no TLS listener. The message names the flag, the file and what is wrong with it."""


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return what a gRPC listener speaks TLS with: 1.2 or later, and HTTP/2 by ALPN.

    See RFC 9113 sections 3.3 and 9.2. With `client_roots`, only clients with a certificate that these vouch
    for get through. Raises TlsUnusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["h2"])
    _load_certificate(context, files)
    if files.client_roots:
        _load_roots(context, files.client_roots)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    _check("grpc-server-cert", files.certificate, b"CERTIFICATE-----", "PEM certificate")
    _check("grpc-server-key", files.key, b"PRIVATE KEY-----", "PEM private key")

    def encrypted() -> NoReturn:
        raise TlsUnusable(
            f"--grpc-server-key: the key in '{files.key}' is encrypted, and nobody is there to type its password;"
            " `openssl pkey -in KEY -out PLAIN` decrypts it"
        )

    try:
        context.load_cert_chain(files.certificate, files.key, password=encrypted)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsUnusable(
                f"--grpc-server-key: the key in '{files.key}' does not belong to the certificate in '{files.certificate}'"
            ) from error
        raise TlsUnusable(
            f"--grpc-server-cert, --grpc-server-key: '{files.certificate}' and '{files.key}' can't be used: {_reason(error)}"
        ) from error


def _load_roots(context: ssl.SSLContext, path: str) -> None:
    _check("grpc-root-cert", path, b"CERTIFICATE-----", "PEM certificate")
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise TlsUnusable(f"--grpc-root-cert: '{path}' can't be used: {_reason(error)}") from error


def _check(flag: str, path: str, mark: bytes, wanted: str) -> None:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise TlsUnusable(f"--{flag}: '{path}' can't be read: {error.strerror}") from error
    if b"-----BEGIN" not in content or mark not in content:
        raise TlsUnusable(f"--{flag}: '{path}' holds no {wanted} (-----BEGIN …{mark.decode()})")


def _reason(error: ssl.SSLError) -> str:
    """Return what OpenSSL says; it has no word for PEM whose lines can't be read."""
    return error.reason.lower().replace("_", " ") if error.reason else "its PEM is damaged"
