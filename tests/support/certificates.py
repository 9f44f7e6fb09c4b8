"""Certificates for tests of TLS: a test authority, and what it signs, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from engine.server.tls import Credentials, credentials
from engine.settings.tls import PemFile, TlsFiles

_LIFETIME = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certified:
    """A certificate and its key, in two files."""

    certificate: Path
    key: Path


def tls_files(certified: Certified, *, roots: Path | None = None, optional: bool = False) -> TlsFiles:
    """Return the files of a listener that shows this certificate, as if HTTP's flags had named them."""
    return TlsFiles(
        certificate=PemFile(str(certified.certificate), "http-server-cert"),
        key=PemFile(str(certified.key), "http-server-key"),
        client_roots=None if roots is None else PemFile(str(roots), "http-root-cert"),
        optional=optional,
    )


class Authority:
    """Signs certificates into a directory; `root` is its own."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._builder(self._name, self._key).add_extension(constraints, critical=True)
        self.root = directory / f"{name}.pem"
        self.root.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def sign(
        self,
        name: str,
        *,
        password: bytes | None = None,
        lifetime: datetime.timedelta = _LIFETIME,
        usage: x509.ObjectIdentifier | None = None,
    ) -> Certified:
        """Return a certificate for 127.0.0.1 and localhost, to be used by a server or a client.

        With a `usage`, it is good for that alone.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        certificate = self._builder(subject, key, lifetime).add_extension(names, critical=False)
        if usage is not None:
            certificate = certificate.add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        files = Certified(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        files.certificate.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))
        protection = (
            serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        )
        files.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
        )
        return files

    def tls_of(self, name: str, alpn: str) -> Credentials:
        """Return what a listener that speaks `alpn` speaks TLS with; its certificate is signed here."""
        return credentials(tls_files(self.sign(name)), alpn)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, lifetime: datetime.timedelta = _LIFETIME
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + lifetime) - _LIFETIME)
            .not_valid_after(now + lifetime)
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
