"""Regular expressions that Triton takes are taken, or refused with what to write instead."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.values.errors import ErrorCode, TritiumError
from engine.settings.re2 import compiled
from engine.settings.uris import Location, Scheme, is_remote, parse, without_query


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("x-.*", ["x-user", "X-User"], ["y"]),
        ("(?-i)x-.*", ["x-user"], ["X-User"]),
        ("(?i)(?-i)x-.*", ["x-user"], ["X-User"]),
        ("a(?-i)b|c", ["Ab", "ab", "c"], ["aB", "C"]),
        ("(a(?-i)b)c", ["AbC"], ["ABC"]),
        ("(?-i:a)b", ["aB"], ["Ab"]),
        ("(?s-i)a.b", ["a\nb"], ["A\nb"]),
        ("^[[:alpha:]_]+$", ["Ab_"], ["a1"]),
        ("^[^[:digit:]]$", ["a"], ["1"]),
        (r"^\Qa.b*\E$", ["a.b*"], ["axb"]),
        (r"^a\z", ["a"], ["a\n"]),
        (r"^\x{e9}$", ["é"], ["e"]),
        ("^(?<name>a)b$", ["ab"], ["b"]),
        ("^(?P<name>a)b$", ["ab"], ["b"]),
        (r"^[]a]+$", ["]a"], ["b"]),
        (r"^[a\]]+$", ["]a"], ["b"]),
        (r"^\(\|\)$", ["(|)"], ["()"]),
        ("^(?:a|b)$", ["a", "b"], ["c"]),
        ("^[(?i)]$", ["(", "i"], ["x"]),
    ],
)
def test_it_matches_as_re2_does(pattern, matching, others):
    found = compiled(pattern, re.IGNORECASE)
    assert [text for text in matching + others if found.search(text)] == matching


@pytest.mark.parametrize(
    ("pattern", "cure"),
    [
        (r"\p{Greek}", "write the ranges"),
        (r"[\pL]", "write the ranges"),
        (r"(?U)a*", r"write \*\? for \*"),
        (r"\C", r"write \(\?s:\.\)"),
        ("[[:letter:]]", "there are alnum"),
        ("[[:^alpha:]]", r"write \[\^\[:alpha:\]\]"),
        ("[a", "does not end"),
        ("(a", "unterminated subpattern"),
        (r"\x{110000}", "no character"),
    ],
)
def test_what_python_has_no_counterpart_for_is_refused_with_the_cure(pattern, cure):
    with pytest.raises(re.error, match=cure):
        compiled(pattern)


S3, GCS, AZURE = Scheme.S3, Scheme.GCS, Scheme.AZURE


# -- every form of a remote repository's address


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("s3://bucket", Location(scheme=S3, bucket="bucket")),
        ("s3://bucket/", Location(scheme=S3, bucket="bucket")),
        ("s3://bucket/a/b", Location(scheme=S3, bucket="bucket", prefix="a/b")),
        ("s3://bucket//a///b//", Location(scheme=S3, bucket="bucket", prefix="a/b")),
        ("s3:////bucket/a", Location(scheme=S3, bucket="bucket", prefix="a")),
        ("s3://my.bucket/a", Location(scheme=S3, bucket="my.bucket", prefix="a")),
        ("s3://host:9000/b/p", Location(scheme=S3, bucket="b", prefix="p", endpoint="http://host:9000")),
        (
            "s3://10.0.0.1:9000//b//p",
            Location(scheme=S3, bucket="b", prefix="p", endpoint="http://10.0.0.1:9000"),
        ),
        ("s3://[::1]:9000/b", Location(scheme=S3, bucket="b", endpoint="http://[::1]:9000")),
        (
            "s3://https://host:9000/b/p",
            Location(scheme=S3, bucket="b", prefix="p", endpoint="https://host:9000"),
        ),
        ("s3://http://host:9000/b", Location(scheme=S3, bucket="b", endpoint="http://host:9000")),
        (
            "s3://https://storage.example/b",
            Location(scheme=S3, bucket="b", endpoint="https://storage.example"),
        ),
        ("gs://bucket/a/b", Location(scheme=GCS, bucket="bucket", prefix="a/b")),
        ("gs://bucket", Location(scheme=GCS, bucket="bucket")),
        ("as://account/container", Location(scheme=AZURE, bucket="container", account="account")),
        (
            "as://account/container/a//b/",
            Location(scheme=AZURE, bucket="container", prefix="a/b", account="account"),
        ),
        (
            "as://account.blob.core.windows.net/container/a?sv=1&sig=s",
            Location(scheme=AZURE, bucket="container", prefix="a", account="account", query="sv=1&sig=s"),
        ),
        (
            "as://account.blob.core.chinacloudapi.cn/container",
            Location(
                scheme=AZURE,
                bucket="container",
                account="account",
                endpoint="https://account.blob.core.chinacloudapi.cn",
            ),
        ),
    ],
)
def test_an_address_is_understood(uri: str, location: Location) -> None:
    assert is_remote(uri)
    assert parse(uri) == location


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("s3://", "No bucket name found in path: s3://"),
        ("s3:///", "No bucket name found in path: s3:///"),
        ("s3://host:9000", "No bucket name found in path: s3://host:9000"),
        ("s3://https://host:9000/", "No bucket name found in path: s3://https://host:9000/"),
        ("s3://http:///bucket", "No bucket name found in path: s3://http:///bucket"),
        ("gs://", "No bucket name found in path: gs://"),
        ("as://account", "Invalid azure storage path: as://account"),
        ("as:///container", "Invalid azure storage path: as:///container"),
        ("as://account.example/container", "Invalid azure storage path: as://account.example/container"),
        ("as://account?sig=secret", "Invalid azure storage path: as://account"),
    ],
)
def test_an_address_that_says_too_little_is_refused(uri: str, text: str) -> None:
    with pytest.raises(TritiumError) as caught:
        parse(uri)
    assert (caught.value.code, caught.value.message) == (ErrorCode.INTERNAL, text)


def test_a_directory_is_not_remote() -> None:
    assert not any(
        map(is_remote, ("/models", "models", "file:///models", "s3:/models", "http://host/models"))
    )


def test_a_signature_is_not_shown() -> None:
    assert without_query("as://a/c/p?sig=secret") == "as://a/c/p"
    assert without_query("s3://b/what?") == "s3://b/what?"


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.sampled_from(["s3://", "gs://", "s3://host:1/", "s3://https://host:1/", "as://account/"]),
    st.lists(st.from_regex(r"[a-z][a-z0-9._-]{0,8}", fullmatch=True), min_size=1, max_size=5),
    st.data(),
)
def test_extra_slashes_mean_nothing(host: str, parts: list[str], data: st.DataObject) -> None:
    slashes = st.integers(min_value=1, max_value=3).map("/".__mul__)
    spread = "".join(f"{part}{data.draw(slashes)}" for part in parts)
    assert parse(host + spread) == parse(host + "/".join(parts))
