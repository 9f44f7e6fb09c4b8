"""From keys, which may be anything, to paths, which may not."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.repository.remote.objects import RemoteObject, Tree, is_model_name, tree_of
from engine.repository.source import FetchFailed

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
