"""Keys and signatures in minisign's own formats, held against another implementation of them."""

import base64
import shutil
import subprocess

import minisign
import pytest

from engine.provenance import ed25519
from engine.provenance.minisign import Malformed, PublicKey, SecretKey, Signature, digest, shown
from engine.provenance.trust import Trust, check_signature, sign
from tests.support.signing import new_key

MANIFEST = b"0" * 64 + b"  config.pbtxt\n"


def theirs():
    """A key pair of the other implementation, and the same key of ours."""
    pair = minisign.KeyPair.generate()
    return pair, SecretKey.read(bytes(pair.secret_key).decode())


def test_minisign_verifies_what_was_signed_here():
    pair, secret = theirs()
    made = sign(MANIFEST, "m", secret, now=7)
    signature = minisign.Signature.from_bytes(made.encode())
    pair.public_key.verify(MANIFEST, signature)
    assert signature.trusted_comment == "timestamp:7\tfile:SHA256SUMS\thashed\tmodel:m"
    with pytest.raises(minisign.VerifyError):
        pair.public_key.verify(MANIFEST + b"x", signature)


def test_what_minisign_signed_with_the_models_name_counts_here():
    pair, secret = theirs()
    made = bytes(pair.secret_key.sign(MANIFEST, trusted_comment="model:m")).decode()
    trust = Trust().with_file("keys", bytes(pair.public_key).decode())
    assert check_signature(MANIFEST, made, "m", trust).key == secret.public


def test_minisign_reads_a_key_that_was_made_here():
    secret = new_key()
    read = minisign.SecretKey.from_bytes(secret.file("comment").encode())
    assert read.get_public_key().to_base64().decode() == secret.public.text
    assert SecretKey.read(secret.file("comment")) == secret


def test_a_key_id_is_shown_as_minisign_shows_it():
    assert shown(bytes.fromhex("1fe8b442180f62e7")) == "E7620F1842B4E81F"
    key = PublicKey.read("RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3")
    assert key.name == "E7620F1842B4E81F"


def test_a_secret_key_does_not_show_its_secret():
    secret = new_key()
    assert repr(secret.seed)[2:-1] not in repr(secret)
    assert "seed" not in repr(secret)


def test_a_key_with_a_password_is_left_to_minisign():
    pair, _ = theirs()
    pair.secret_key.encrypt("password", opslimit=32768, memlimit=16777216)
    with pytest.raises(Malformed, match="protected by a password"):
        SecretKey.read(bytes(pair.secret_key).decode())


def test_the_older_form_of_a_signature_is_refused():
    pair, _ = theirs()
    made = bytes(pair.secret_key.sign(MANIFEST, prehash=False, trusted_comment="model:m")).decode()
    with pytest.raises(Malformed, match="older form"):
        Signature.read(made)


def changed(text, line, change):
    """A file with one line's bytes changed."""
    lines = text.split("\n")
    lines[line] = base64.b64encode(change(bytearray(base64.b64decode(lines[line])))).decode()
    return "\n".join(lines)


def flipped(at):
    def change(data):
        data[at] ^= 1
        return bytes(data)

    return change


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no secret key file"),
        ("one\ntwo\n", "no secret key file"),
        ("untrusted comment: x\n????\n", "no secret key file"),
        (changed(new_key().file("x"), 1, flipped(0)), "no secret key file"),
        (changed(new_key().file("x"), 1, flipped(4)), "no secret key file"),
        (changed(new_key().file("x"), 1, flipped(70)), "damaged"),
    ],
)
def test_what_is_no_secret_key_is_said_without_its_text(text, complaint):
    with pytest.raises(Malformed, match=complaint) as refused:
        SecretKey.read(text)
    assert text[:4] not in str(refused.value) or not text


GOOD = sign(MANIFEST, "m", new_key(), now=0)
LINES = GOOD.split("\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "four lines"),
        ("\n".join(LINES[:2]) + "\n", "four lines"),  # signify's, which has no trusted comment
        (GOOD + "more\n", "four lines"),
        (GOOD.replace("untrusted comment", "comment", 1), "four lines"),
        (GOOD.replace("\ntrusted comment", "\nTrusted comment", 1), "four lines"),
        (changed(GOOD, 1, lambda data: bytes(data[:-1])), "second line"),
        (changed(GOOD, 1, flipped(0)), "unknown algorithm"),
        (changed(GOOD, 3, lambda data: bytes(data + b"x")), "fourth line"),
        (GOOD.replace(LINES[3], LINES[3].replace("==", "=")), "fourth line"),
        (GOOD.replace(LINES[1], LINES[1] + "\u00e9"), "second line"),
        (GOOD.replace("\thashed", "\t" + "x" * 8192), "8192 bytes"),
    ],
)
def test_what_is_no_signature_is_refused(text, complaint):
    with pytest.raises(Malformed, match=complaint):
        Signature.read(text)


@pytest.mark.parametrize(
    "text", ["", "RWQ", "x" * 56, "RWQ=" * 14, base64.b64encode(b"XX" + bytes(40)).decode()]
)
def test_what_is_no_public_key_is_refused(text):
    with pytest.raises(Malformed):
        PublicKey.read(text)


def test_base64_with_bits_to_spare_has_one_spelling():
    text = base64.b64encode(b"ED" + bytes(8 + 64)).decode()
    other = GOOD.replace(LINES[3], LINES[3][:-3] + chr(ord(LINES[3][-3]) + 1) + "==")
    assert base64.b64decode(text)
    with pytest.raises(Malformed):
        Signature.read(other)


def test_a_point_that_is_none_makes_no_signature_valid():
    assert not ed25519.is_valid(b"\xff" * 32, bytes(64), b"")
    assert not ed25519.is_valid(bytes(31), bytes(64), b"")
    secret = new_key()
    assert ed25519.is_valid(secret.point, ed25519.signed(secret.seed, digest(b"x")), digest(b"x"))


@pytest.mark.system
@pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed")
def test_the_program_itself_verifies_ours_and_signs_with_a_key_of_ours(tmp_path):
    secret, manifest, signature = new_key(), tmp_path / "SHA256SUMS", tmp_path / "SHA256SUMS.sig"
    (tmp_path / "key").write_text(secret.file("without a password"))
    manifest.write_bytes(MANIFEST)
    signature.write_text(sign(MANIFEST, "m", secret, now=0))
    files = ["-m", str(manifest), "-x", str(signature)]
    subprocess.run(
        ["minisign", "-V", "-H", "-P", secret.public.text, *files], check=True, capture_output=True
    )
    signature.unlink()
    command = ["minisign", "-S", "-W", "-s", str(tmp_path / "key"), "-t", "model:m", *files]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    trust = Trust().with_file("keys", secret.public.text)
    assert check_signature(MANIFEST, signature.read_text(), "m", trust).key == secret.public
