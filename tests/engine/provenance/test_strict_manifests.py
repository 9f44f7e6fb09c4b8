"""`SHA256SUMS` of a signed model: one reading only, and the one that `sha256sum -c` has."""

import hashlib
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.provenance.manifest import (
    ManifestRefused,
    check_model_name,
    check_path,
    read_strictly,
    write_manifest,
)

DIGEST = "0123456789abcdef" * 4
OTHER = "f" * 64


def test_what_is_written_is_read():
    digests = {"config.pbtxt": DIGEST, "1/model.onnx": OTHER, "1/a b\\c": DIGEST, "1/ü": OTHER}
    assert read_strictly(write_manifest(digests)) == digests


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "lists no file"),
        (f"{DIGEST}  a".encode(), "cut short"),
        (f"{DIGEST}  a\r\n".encode(), ":1: the path .* invisible"),
        (f"{DIGEST} a\n".encode(), ":1: expected"),
        (f"{DIGEST}   a\n".encode(), None),
        (f"{DIGEST.upper()}  a\n".encode(), ":1: expected"),
        (f"{DIGEST[:-1]}  a\n".encode(), ":1: expected"),
        (f"{DIGEST}  a\n\n".encode(), ":2: expected"),
        (f"# comment\n{DIGEST}  a\n".encode(), ":1: expected"),
        (f"{DIGEST}  a\n{OTHER}  a\n".encode(), ":2: 'a' is listed twice"),
        (f"{DIGEST}  a\n{DIGEST} *a\n".encode(), ":2: 'a' is listed twice"),
        (f"{DIGEST}  ./a\n".encode(), "no plain path"),
        (f"{DIGEST}  a//b\n".encode(), "no plain path"),
        (f"{DIGEST}  a/\n".encode(), "no plain path"),
        (f"{DIGEST}  /etc/passwd\n".encode(), "no plain path"),
        (f"{DIGEST}  ../other/model.py\n".encode(), "no plain path"),
        (f"{DIGEST}  1/../../x\n".encode(), "no plain path"),
        (f"{DIGEST}  a\0b\n".encode(), "invisible"),
        (f"\\{DIGEST}  a\\nb\n".encode(), "invisible"),
        (f"\\{DIGEST}  a\\tb\n".encode(), "escape"),
        (f"\\{DIGEST}  a\\\n".encode(), "escape"),
        (f"{DIGEST}  model\u202eyp.onnx\n".encode(), "invisible"),
        (f"{DIGEST}  mo\u200bdel.py\n".encode(), "invisible"),
        (f"{DIGEST}  a\u2028b\n".encode(), "invisible"),
        (f"{DIGEST}  \u00e9\n{OTHER}  e\u0301\n".encode(), "look alike"),
        (f"{DIGEST}  model.py\n{OTHER}  \uff4dodel.py\n".encode(), "look alike"),
        (f"{DIGEST}  a\n{OTHER}  \xff\n".encode("latin-1"), ":2: a path is not UTF-8"),
        (f"{DIGEST}  SHA256SUMS\n".encode(), "lists itself"),
        (f"{DIGEST}  SHA256SUMS.sig\n".encode(), "lists itself"),
    ],
)
def test_what_two_programs_could_read_in_two_ways_is_refused(text, complaint):
    if complaint is None:  # two spaces, and a name that begins with one: sha256sum reads it so too
        assert read_strictly(text) == {" a": DIGEST}
        return
    with pytest.raises(ManifestRefused, match=complaint):
        read_strictly(text)


@pytest.mark.parametrize("path", ["", "/a", "a/../b", "a\nb", "\ud800"])
def test_a_path_that_no_manifest_can_have_is_not_written(path):
    with pytest.raises(ManifestRefused):
        write_manifest({path: DIGEST})
    with pytest.raises(ManifestRefused):
        check_path(path, "here")


@pytest.mark.parametrize("name", ["", "a/b", "a\tb", "mo\u202edel"])
def test_a_model_of_such_a_name_is_not_signed(name):
    with pytest.raises(ManifestRefused, match="rename its folder"):
        check_model_name(name)


def test_two_names_that_look_alike_are_not_written():
    with pytest.raises(ManifestRefused, match="look alike"):
        write_manifest({"\u00e9": DIGEST, "e\u0301": OTHER})


@given(st.dictionaries(st.text(max_size=12), st.just(DIGEST), max_size=5))
def test_every_manifest_that_is_written_is_read_again(digests):
    try:
        data = write_manifest(digests)
    except ManifestRefused:
        return
    if data and not {"SHA256SUMS", "SHA256SUMS.sig"} & digests.keys():
        assert read_strictly(data) == digests


EDITS = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from([b"", b"\n", b"\r", b" ", b"*", b"/", b"\\", b"\0", b"."]))
)


@given(EDITS)
def test_an_edited_manifest_is_refused_or_says_the_same_to_sha256sum(edits):
    data = bytearray(write_manifest({"1/a": DIGEST, "config.pbtxt": OTHER}))
    for at, instead in edits:
        data[at % len(data) : at % len(data) + 1] = instead
        if not data:
            return
    try:
        listed = read_strictly(bytes(data))
    except ManifestRefused:
        return
    lines = bytes(data).replace(b" *", b"  ", 2).splitlines()
    assert sorted(write_manifest(listed).splitlines()) == sorted(lines)


@pytest.mark.system
def test_sha256sum_accepts_what_is_written_and_finds_a_change(tmp_path):
    names = ["config.pbtxt", "1/model.onnx", "1/with space", "1/back\\slash", "1/ü"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in names}
    (tmp_path / "SHA256SUMS").write_bytes(write_manifest(digests))
    command = ["sha256sum", "--strict", "-c", "SHA256SUMS"]
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    (tmp_path / "1/ü").write_text("other")
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode == 1
    made = subprocess.run(["sha256sum", *names], cwd=tmp_path, check=True, capture_output=True).stdout
    (tmp_path / "1/ü").write_text("1/ü")
    again = subprocess.run(["sha256sum", *names], cwd=tmp_path, check=True, capture_output=True).stdout
    assert read_strictly(again) == digests
    assert read_strictly(made) != digests
