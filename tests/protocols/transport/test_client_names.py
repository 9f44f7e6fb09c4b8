"""The names in a client's certificate, each written in one way."""

import datetime
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from protocols.transport.names import client_names, rfc4514

TYPES = {
    "commonName": NameOID.COMMON_NAME,
    "organizationName": NameOID.ORGANIZATION_NAME,
    "organizationalUnitName": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "domainComponent": NameOID.DOMAIN_COMPONENT,
    "userId": NameOID.USER_ID,
}
# What a certificate can hold (RFC 5280): no NUL, no lone surrogates.
VALUES = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=20
)


def test_a_client_without_a_certificate_has_no_names():
    assert client_names(None) == ()
    assert client_names({}) == ()


def test_names_come_subject_first_and_then_in_the_order_of_the_certificate():
    certificate = {
        "subject": ((("countryName", "DE"),), (("organizationName", "Example"),), (("commonName", "alice"),)),
        "subjectAltName": (
            ("URI", "spiffe://example/alice"),
            ("DNS", "client.example"),
            ("email", "a@b"),
            ("IP Address", "192.0.2.7"),
            ("DirName", ((("commonName", "other"),),)),
            ("othername", "<unsupported>"),
        ),
    }
    assert client_names(certificate) == (
        "CN=alice,O=Example,C=DE",
        "URI:spiffe://example/alice",
        "DNS:client.example",
        "EMAIL:a@b",
        "IP:192.0.2.7",
    )
    assert client_names({"subject": (), "subjectAltName": (("DNS", "x"),)}) == ("DNS:x",)


def test_a_part_of_several_attributes_is_joined_and_unknown_types_keep_their_names():
    subject = ((("organizationName", "Example"),), (("commonName", "a"), ("emailAddress", "a@b")))
    assert rfc4514(subject) == "CN=a+emailAddress=a@b,O=Example"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("Example, Inc.", "Example\\, Inc."),
        ('a"b+c;d<e>f\\g', 'a\\"b\\+c\\;d\\<e\\>f\\\\g'),
        (" a b ", "\\ a b\\ "),
        ("#a#", "\\#a#"),
        ("Müller", "Müller"),
        ("a\nb", "a\\0Ab"),
    ],
)
def test_what_would_be_read_as_something_else_is_escaped(value, written):
    assert rfc4514(((("commonName", value),),)) == f"CN={written}"


@given(st.lists(st.tuples(st.sampled_from(sorted(TYPES)), VALUES), min_size=1, max_size=4))
def test_a_subject_reads_back_as_it_was(attributes):
    written = rfc4514([[attribute] for attribute in attributes])
    read = x509.Name.from_rfc4514_string(written)
    assert [(attribute.oid, attribute.value) for attribute in read] == [
        (TYPES[kind], value) for kind, value in attributes
    ]
    assert written.isprintable()


def test_names_are_those_of_a_real_certificate(tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example, Inc."),
            x509.NameAttribute(NameOID.COMMON_NAME, "alice"),
        ]
    )
    names = [
        x509.DNSName("client.example"),
        x509.UniformResourceIdentifier("spiffe://example/alice"),
        x509.RFC822Name("a@b.example"),
    ]
    signed = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 1, now, now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "root.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tmp_path / "root.pem")
    (certificate,) = context.get_ca_certs()
    assert client_names(certificate) == (
        "CN=alice,O=Example\\, Inc.",
        "DNS:client.example",
        "URI:spiffe://example/alice",
        "EMAIL:a@b.example",
    )
