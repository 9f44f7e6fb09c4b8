"""Certificates of a server under test: an authority, what it signs, and the files that a listener follows.

Needs `cryptography`, which comes with the extras `auth` and `test`.
"""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import os
import shutil
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFETIME: Final = datetime.timedelta(days=1)
_SIGNS: Final = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
_LONG: Final = datetime.timedelta(days=90)  # a server warns of one that expires soon


@dataclass(frozen=True)
class Certified:
    """A certificate and its key, in two files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates into a directory; `root` is its own."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(constraints, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(_SIGNS, critical=True)
        )
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
            # Clients of Python 3.13 hold to RFC 5280, which wants it.
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )


class ServedFiles:
    """The PEM files of the metrics' listener, in a folder of their own, and what its clients trust."""

    def __init__(self, folder: Path) -> None:
        """Make the folder, and sign the first pair."""
        folder.mkdir(parents=True)
        self._authority = Authority(folder)
        self._numbers = itertools.count(1)
        self._certificate, self._key = folder / "tls.pem", folder / "tls.key"
        self.name = ""
        """The common name of the pair that was put last."""
        self.trust: Final = ssl.create_default_context(cafile=self._authority.root)
        self.exchange()

    @property
    def flags(self) -> Sequence[str]:
        """The flags of a server that shows them."""
        return (
            "--metrics-use-ssl=true",
            f"--metrics-server-cert={self._certificate}",
            f"--metrics-server-key={self._key}",
        )

    def exchange(self) -> str:
        """Put a new pair in place, one file after the other. Returns its name."""
        signed = self._sign()
        self._put(signed.certificate, self._certificate)
        self._put(signed.key, self._key)
        self.name = signed.certificate.stem
        return self.name

    def break_pair(self) -> None:
        """Put another's key beside the certificate."""
        self._put(self._sign().key, self._key)

    def _sign(self) -> Certified:
        return self._authority.sign(f"chaos-{next(self._numbers)}", lifetime=_LONG)

    @staticmethod
    def _put(source: Path, place: Path) -> None:
        new = place.with_suffix(".new")
        shutil.copyfile(source, new)
        os.replace(new, place)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
