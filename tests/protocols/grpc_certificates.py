"""Certificates for TLS on loopback, made on the spot."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Credentials:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes

    def write(self, directory, name):
        """Write both into files and return their paths."""
        paths = directory / f"{name}.pem", directory / f"{name}.key"
        paths[0].write_bytes(self.certificate)
        paths[1].write_bytes(self.key)
        return tuple(map(str, paths))


class Authority:
    """Signs for `localhost` and for clients."""

    def __init__(self):
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        builder = _builder(self._name, self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.certificate = _pem(builder.sign(self._key, hashes.SHA256()))

    def issue(self, name):
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._name, key).add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Credentials(_pem(builder.sign(self._key, hashes.SHA256())), private)


def _builder(subject, issuer, key):
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )


def _name(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)
