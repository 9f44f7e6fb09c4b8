"""From keys, which may be anything, to paths, which may not."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.layout import version_directories
from engine.repository.remote.objects import RemoteObject, Tree, is_model_name, tree_of
from engine.repository.source import FetchFailed, contents_of, read_manifest, version_of

COMPONENTS = st.one_of(
    st.sampled_from(
        ["", ".", "..", "a", "b", "a\0", "~", "con fig", "x" * 256, "\\..\\", "ä" * 128, "\ud800"]
    ),
    st.text(max_size=8),
)
KEYS = st.lists(COMPONENTS, min_size=1, max_size=6).map("/".join)


def entry(key: str, size: int = 1) -> RemoteObject:
    return RemoteObject(key=key, size=size, etag="e", modified="t")


def tree(*keys: str | tuple[str, int]) -> Tree:
    pairs = [key if isinstance(key, tuple) else (key, 1) for key in keys]
    return tree_of("r/m", [entry(f"r/m/{key}" if key else "r/m", size) for key, size in pairs])


def test_keys_become_relative_paths() -> None:
    assert list(tree("config.pbtxt", "1/model.onnx").files) == ["1/model.onnx", "config.pbtxt"]


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("../x", "a component of its path is '..'"),
        ("1/../../x", "a component of its path is '..'"),
        ("1/./x", "a component of its path is '.'"),
        ("/etc/passwd", "a component of its path is ''"),
        ("1//x", "a component of its path is ''"),
        ("1/x\0y", "its name holds a NUL"),
        ("1/" + "x" * 256, "a component of its path is longer than 255 bytes"),
        ("/".join(["x" * 200] * 11), "its path is longer than 2048 bytes"),
    ],
)
def test_a_key_that_can_be_no_file_is_refused(key: str, why: str) -> None:
    with pytest.raises(FetchFailed, match=why):
        tree("config.pbtxt", key)


def test_a_file_with_others_under_it_is_refused() -> None:
    with pytest.raises(FetchFailed, match="'r/m/1' is a file, and others lie under it as in a directory"):
        tree("1", "1/model.py")
    with pytest.raises(FetchFailed, match="'r/m' is a file, where a model's directory is expected"):
        tree("", "1/model.py")


def test_an_empty_object_with_others_under_it_is_a_directory() -> None:
    assert list(tree(("1", 0), "1/model.py", ("", 0)).files) == ["1/model.py"]


def test_an_empty_object_alone_may_be_either() -> None:
    found = tree("config.pbtxt", ("1", 0), ("2/__init__.py", 0))
    assert list(found.files) == ["config.pbtxt"]
    assert list(found.markers) == ["1", "2/__init__.py"]


def test_the_stamp_is_of_everything() -> None:
    assert tree("b", ("a", 0)).stamp.files == (("a", 0, "e"), ("b", 1, "e"))
    assert tree("b").stamp != tree("c").stamp
    assert hash(tree("b").stamp) == hash(tree("b").stamp)


def test_an_identity_is_of_the_bytes_not_of_the_time_where_there_is_a_tag() -> None:
    first = RemoteObject(key="k", size=1, etag="e", modified="yesterday")
    again = RemoteObject(key="k", size=1, etag="e", modified="today")
    assert first.identity("here") == again.identity("here")
    assert first.identity("here") != first.identity("there")
    untagged = [RemoteObject(key="k", size=1, etag="", modified=day) for day in ("yesterday", "today")]
    assert untagged[0].identity("here") != untagged[1].identity("here")
    assert [found.token for found in untagged] == ["yesterday", "today"]


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.tuples(KEYS, st.integers(min_value=0, max_value=1)), max_size=8))
def test_no_key_leads_out_of_the_directory_or_through_a_file(keys: list[tuple[str, int]]) -> None:
    try:
        found = tree_of("r/m", [entry(f"r/m/{key}", size) for key, size in keys])
    except FetchFailed:
        return
    paths = {*found.files, *found.markers}
    assert not found.files.keys() & found.markers.keys()
    for path in paths:
        assert os.path.normpath(path) == path
        assert Path("/cache/model", path).is_relative_to("/cache/model")
        assert not path.startswith(("/", ".."))
        assert not paths & _parents(path)
        assert all(0 < len(part.encode()) <= 255 for part in path.split("/"))


@settings(deadline=None)  # a busy machine is no failure
@given(st.text(max_size=300))
def test_a_model_name_is_one_component(name: str) -> None:
    if is_model_name(name):
        assert Path("/cache", name).parent == Path("/cache")
        assert Path("/cache", name).name == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0", "x" * 256])
def test_names_that_are_no_model(name: str) -> None:
    assert not is_model_name(name)


def _parents(path: str) -> set[str]:
    parts = path.split("/")
    above: Iterable[str] = ("/".join(parts[:count]) for count in range(1, len(parts)))
    return set(above)


A, B, C = ("a" * 64, "b" * 64, "c" * 64)


# -- the contents of a model directory, compared by digests; and the manifest that some directories bring


DIGESTS = st.sampled_from([A, B, C])
NAMES = st.sampled_from(["1", "2", "10", "1abc", "01", "0", "x", "warmup", "configs", "initial_state"])
PATHS = st.one_of(NAMES.map(lambda name: f"{name}/model.py"), st.just("config.pbtxt"), st.just("x/1/y"))


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        pytest.param(
            {"config.pbtxt": A, "1/model.py": B, "2/model.py": C},
            {"config.pbtxt": A, "1/model.py": B, "2/model.py": A},
            {2, "digest"},
            id="a version has a digest of its own",
        ),
        *(
            pytest.param(
                {path: A, "1/model.py": B},
                {path: C, "1/model.py": B},
                {"shared", "digest"},
                id=f"what lies in no version is shared by all: {path}",
            )
            for path in ("labels.txt", "warmup/data", "x")
        ),
        *(
            pytest.param(
                {path: A, "1/model.py": B},
                {path: C, "1/model.py": B},
                {"digest"},
                id=f"a configuration counts only in the whole: {path}",
            )
            for path in ("config.pbtxt", "configs/small.pbtxt")
        ),
        pytest.param(
            {"1/model.py": A},
            {"1/model.py": A, "1abc/model.py": B},
            {"shared", "digest"},
            id="of two directories for one version the other is shared content",
        ),
    ],
)
def test_a_change_is_of_the_part_that_has_the_file(
    before: dict[str, str], after: dict[str, str], changed: set[str | int]
) -> None:
    one, other = (
        {"digest": found.digest, "shared": found.shared, **found.versions}
        for found in (contents_of(before), contents_of(after))
    )
    assert {part for part in one | other if one.get(part) != other.get(part)} == changed


def test_equal_versions_are_equal_whatever_their_number() -> None:
    contents = contents_of({"1/model.py": A, "3/model.py": A})
    assert contents.versions[1] == contents.versions[3]


def test_a_version_directory_without_files_is_a_version() -> None:
    assert contents_of({"config.pbtxt": A}, ["1"]).versions.keys() == {1}
    assert contents_of({"config.pbtxt": A}, ["1"]).digest != contents_of({"config.pbtxt": A}).digest


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
@pytest.mark.parametrize("mode", ["--text", "--binary"])
def test_a_manifest_is_what_sha256sum_prints(tmp_path: Path, mode: str) -> None:
    (tmp_path / "1").mkdir()
    names = ["config.pbtxt", "1/model onnx", "1/back\\slash", "1/line\nfeed", "1/line\u2028separator"]
    for name in names:
        (tmp_path / name).write_text(name)
    printed = subprocess.run(
        ["sha256sum", mode, *(f"./{name}" for name in names)],
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
