"""Which keys count, and what a signature vouches for."""

import os

import pytest

from engine.provenance.keys import TrustedFiles
from engine.provenance.trust import KeysUnusable, NotTrusted, Trust, check_signature, sign
from tests.support.signing import new_key, signed_as, trusted

MANIFEST = b"0" * 64 + b"  config.pbtxt\n"
KEY, SECOND = new_key(), new_key("second")
TRUST = Trust().with_file("keys", f"# ours\n\n{KEY.public.text}  # the team\n{SECOND.public.text}\n")


def test_every_trusted_key_counts():
    for key in (KEY, SECOND):
        made = sign(MANIFEST, "m", key, now=0)
        assert check_signature(MANIFEST, made, "m", TRUST).key == key.public


def test_a_key_that_is_not_there_does_not_count():
    made = sign(MANIFEST, "m", new_key("unknown"), now=0)
    with pytest.raises(NotTrusted, match="none of the trusted ones") as refused:
        check_signature(MANIFEST, made, "m", TRUST)
    assert KEY.public.name in refused.value.hint


def test_a_key_with_the_id_of_a_trusted_one_does_not_count():
    forged = new_key("forged")
    forged = type(forged)(KEY.key_id, forged.seed, forged.point)
    with pytest.raises(NotTrusted, match="is no signature of SHA256SUMS"):
        check_signature(MANIFEST, sign(MANIFEST, "m", forged, now=0), "m", TRUST)


def test_a_changed_manifest_is_not_signed():
    with pytest.raises(NotTrusted, match="is no signature"):
        check_signature(MANIFEST + MANIFEST, sign(MANIFEST, "m", KEY, now=0), "m", TRUST)


def test_the_signature_of_one_model_does_not_count_for_another():
    made = sign(MANIFEST, "other", KEY, now=0)
    with pytest.raises(NotTrusted, match="signed as 'other', and this is the model 'm'"):
        check_signature(MANIFEST, made, "m", TRUST)


def test_the_name_in_a_signature_can_not_be_changed():
    made = sign(MANIFEST, "other", KEY, now=0).replace("model:other", "model:m")
    with pytest.raises(NotTrusted, match="is no signature"):
        check_signature(MANIFEST, made, "m", TRUST)


@pytest.mark.parametrize(
    "comment", ["", "timestamp:1\tfile:SHA256SUMS", "model:m\tmodel:other", "model:m\tmodel:m", "model:"]
)
def test_a_signature_has_to_name_one_model(comment):
    with pytest.raises(NotTrusted, match="not signed for one model"):
        check_signature(MANIFEST, signed_as(MANIFEST, comment, KEY), "m", TRUST)


def test_what_is_no_signature_is_said():
    with pytest.raises(NotTrusted, match=r"SHA256SUMS.sig is no signature file"):
        check_signature(MANIFEST, "nonsense", "m", TRUST)


@pytest.mark.parametrize("how", [KEY.public.name, KEY.public.name.lower(), KEY.public.text])
def test_a_revoked_key_counts_no_more_wherever_it_is_listed(how):
    for trust in (
        Trust().with_file("a", f"revoked {how}  # lost\n").with_file("b", f"{KEY.public.text}\n"),
        Trust().with_file("b", f"{KEY.public.text}\n").with_file("a", f"revoked {how}\n"),
    ):
        assert list(trust.usable) == []
        with pytest.raises(NotTrusted, match=f"{KEY.public.name}, which a:1 revokes"):
            check_signature(MANIFEST, sign(MANIFEST, "m", KEY, now=0), "m", trust)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("hello\n", r"keys:1: 'hello'… is no public key"),
        (f"\n{KEY.public.text} name\n", "keys:2: expected one key"),
        ("revoked\n", "keys:1: 'revoked' is followed by"),
        ("revoked x\n", "keys:1: 'revoked' is followed by"),
        ("revoked a b\n", "keys:1: 'revoked' is followed by"),
        (f"{KEY.public.text}\n{type(KEY)(KEY.key_id, b'', SECOND.point).public.text}\n", "keys:2: .*same id"),
    ],
)
def test_a_file_that_says_something_else_is_told_of_by_its_line(text, complaint):
    with pytest.raises(KeysUnusable, match=complaint):
        Trust().with_file("keys", text)


class TestFiles:
    """The files, which are read again when they change."""

    def test_a_key_that_is_added_counts_at_once_and_one_that_is_revoked_does_not(self, tmp_path):
        files = trusted(tmp_path, KEY)
        assert list(files.trust().usable) == [KEY.public.name]
        trusted(tmp_path, KEY, SECOND)
        assert list(files.trust().usable) == [KEY.public.name, SECOND.public.name]
        trusted(tmp_path, KEY, SECOND, revoked=KEY.public.name)
        assert list(files.trust().usable) == [SECOND.public.name]
        assert files.trust() is files.trust()

    @pytest.mark.parametrize("content", [b"nonsense\n", b"\xff\n", b"#" * (1 << 20) + b"##", b""])
    def test_a_file_that_goes_bad_makes_no_key_count(self, tmp_path, content):
        files = trusted(tmp_path, KEY)
        files.trust()
        (tmp_path / "trusted.keys").write_bytes(content)
        with pytest.raises(KeysUnusable):
            files.trust()
        with pytest.raises(KeysUnusable):
            files.trust()
        trusted(tmp_path, SECOND)
        assert list(files.trust().usable) == [SECOND.public.name]

    def test_a_file_that_vanishes_makes_no_key_count(self, tmp_path):
        files = trusted(tmp_path, KEY)
        files.trust()
        (tmp_path / "trusted.keys").unlink()
        with pytest.raises(KeysUnusable, match="can't be read: No such file"):
            files.trust()

    def test_a_descriptor_is_read_once(self):
        reading, writing = os.pipe()
        try:
            os.write(writing, f"{KEY.public.text}\n".encode())
            os.close(writing)
            files = TrustedFiles([f"/dev/fd/{reading}"])
            assert list(files.trust().usable) == [KEY.public.name]
            assert list(files.trust().usable) == [KEY.public.name]
        finally:
            os.close(reading)
