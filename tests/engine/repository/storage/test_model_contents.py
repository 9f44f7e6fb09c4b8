"""The contents of a model directory, compared by digests; and the manifest that some directories bring."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.layout import version_directories
from engine.repository.source import contents_of, read_manifest, version_of

A, B, C = ("a" * 64, "b" * 64, "c" * 64)
DIGESTS = st.sampled_from([A, B, C])
NAMES = st.sampled_from(["1", "2", "10", "1abc", "01", "0", "x", "warmup", "configs", "initial_state"])
PATHS = st.one_of(NAMES.map(lambda name: f"{name}/model.py"), st.just("config.pbtxt"), st.just("x/1/y"))


def test_a_version_has_a_digest_of_its_own() -> None:
    before = contents_of({"config.pbtxt": A, "1/model.py": B, "2/model.py": C})
    after = contents_of({"config.pbtxt": A, "1/model.py": B, "2/model.py": A})
    assert before.versions[1] == after.versions[1]
    assert before.versions[2] != after.versions[2]
    assert before.shared == after.shared
    assert before.digest != after.digest


def test_equal_versions_are_equal_whatever_their_number() -> None:
    contents = contents_of({"1/model.py": A, "3/model.py": A})
    assert contents.versions[1] == contents.versions[3]


@pytest.mark.parametrize("path", ["labels.txt", "warmup/data", "x"])
def test_what_lies_in_no_version_is_shared_by_all(path: str) -> None:
    before = contents_of({path: A, "1/model.py": B})
    after = contents_of({path: C, "1/model.py": B})
    assert before.versions == after.versions
    assert before.shared != after.shared


@pytest.mark.parametrize("path", ["config.pbtxt", "configs/small.pbtxt"])
def test_a_configuration_counts_only_in_the_whole(path: str) -> None:
    before = contents_of({path: A, "1/model.py": B})
    after = contents_of({path: C, "1/model.py": B})
    assert (before.versions, before.shared) == (after.versions, after.shared)
    assert before.digest != after.digest


def test_a_version_directory_without_files_is_a_version() -> None:
    assert contents_of({"config.pbtxt": A}, ["1"]).versions.keys() == {1}
    assert contents_of({"config.pbtxt": A}, ["1"]).digest != contents_of({"config.pbtxt": A}).digest


def test_of_two_directories_for_one_version_the_other_is_shared_content() -> None:
    alone = contents_of({"1/model.py": A})
    both = contents_of({"1/model.py": A, "1abc/model.py": B})
    assert both.versions == alone.versions
    assert both.shared != alone.shared


PLAIN = st.dictionaries(PATHS.filter(lambda path: not path.startswith("1abc")), DIGESTS)


@settings(deadline=None)  # a busy machine is no failure
@given(PLAIN, PLAIN)
def test_different_files_have_different_contents(one: dict[str, str], other: dict[str, str]) -> None:
    assert (contents_of(one) == contents_of(other)) == (one == other)


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(NAMES, unique=True))
def test_versions_are_those_that_the_layout_finds(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    model = tmp_path_factory.mktemp("model")
    for name in names:
        (model / name).mkdir()
    found, _ = version_directories(model)
    assert list(contents_of({}, names).versions) == [version.number for version in found]


@pytest.mark.parametrize(
    ("directory", "version"),
    [
        ("1", 1),
        ("1abc", 1),
        ("01", None),
        ("0", None),
        ("-1", None),
        ("abc", None),
        ("", None),
        (str(2**63 - 1), 2**63 - 1),
        (str(2**63), None),
        ("1" + "0" * 40, None),
    ],
)
def test_a_version_is_named_by_the_digits_at_the_beginning(directory: str, version: int | None) -> None:
    assert version_of(directory) == version


@pytest.mark.system
def test_a_manifest_is_what_sha256sum_prints(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    names = ["config.pbtxt", "1/model onnx", "1/back\\slash", "1/line\nfeed", "1/line\u2028separator"]
    for name in names:
        (tmp_path / name).write_text(name)
    printed = subprocess.run(
        ["sha256sum", *(f"./{name}" for name in names)],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    ).stdout.decode()
    # Editors on other systems save it with these line ends.
    assert read_manifest(printed.replace("\n", "\r\n")) == read_manifest(printed)
    assert read_manifest(printed) == {name: hashlib.sha256(name.encode()).hexdigest() for name in names}


def test_a_manifest_says_nothing_of_itself_and_may_hold_comments() -> None:
    assert read_manifest(f"# made by hand\n\n{A}  SHA256SUMS\n{B.upper()} *x\n") == {"x": B}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("what is this", r"SHA256SUMS:1: expected '<sha256>  <path>', got 'what is this'"),
        (f"{A}  x\n{A[:-1]}  y", r"SHA256SUMS:2: expected"),
        (f"{A}  /etc/passwd", r"SHA256SUMS:1: '/etc/passwd' is not a path inside the model's directory"),
        (f"{A}  1/../../x", r"SHA256SUMS:1: '1/\.\./\.\./x' is not a path"),
    ],
)
def test_a_manifest_that_cannot_be_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_manifest(text)
