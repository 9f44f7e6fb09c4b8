"""Certificates for tests of TLS: those of chaos runs, and what a listener makes of them."""

from __future__ import annotations

from pathlib import Path

from chaos.subject.certificates import Authority as _Authority
from chaos.subject.certificates import Certified
from engine.server.tls import Credentials, credentials
from engine.settings.tls import PemFile, TlsFiles


def tls_files(certified: Certified, *, roots: Path | None = None, optional: bool = False) -> TlsFiles:
    """Return the files of a listener that shows this certificate, as if HTTP's flags had named them."""
    return TlsFiles(
        certificate=PemFile(str(certified.certificate), "http-server-cert"),
        key=PemFile(str(certified.key), "http-server-key"),
        client_roots=None if roots is None else PemFile(str(roots), "http-root-cert"),
        optional=optional,
    )


class Authority(_Authority):
    """Signs certificates into a directory, and makes listeners' credentials of them."""

    def tls_of(self, name: str, alpn: str) -> Credentials:
        """Return what a listener that speaks `alpn` speaks TLS with; its certificate is signed here."""
        return credentials(tls_files(self.sign(name)), alpn)
