"""What a load request's JSON says, in files of any size."""

import base64
import json

import pytest

from actors.seams.steps import at_once
from actors.values.errors import Internal, InvalidArgument
from actors.values.versions import read_versions
from protocols.kserve.caps import MAX_PARAMETERS
from protocols.kserve.loading import load_parameters
from protocols.kserve.long_texts import LongText


def read(document):
    text = json.dumps(document).replace("/", "\\/").encode()
    return at_once(load_parameters(at_once(LongText(text, long_strings=True).document())))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000, 3_000_001])
@pytest.mark.parametrize("between", ["", "\n", " *"])
def test_a_file_is_what_its_base64_holds_whatever_stands_between(size, between):
    content = bytes(range(256)) * (size // 256) + b"/" * (size % 256)
    written = base64.b64encode(content).decode()
    written = between.join(written[at : at + 76] for at in range(0, len(written), 76))
    loaded = read({"parameters": {"config": "{}", "file:1/model": written}})
    assert loaded == {"config": "{}", "file:1/model": content}


def test_base64_that_is_cut_short_gives_what_is_there():
    assert read({"parameters": {"file:a": "YWJjZ", "file:b": "YWI"}}) == {"file:a": b"abc", "file:b": b"ab"}


def test_a_configuration_is_bounded_and_so_are_parameters():
    with pytest.raises(InvalidArgument, match="'config' has 1048576 bytes"):
        read({"parameters": {"config": "a" * 2**20}})
    with pytest.raises(InvalidArgument, match="the request has 1025 parameters"):
        read({"parameters": {f"file:{n}": "" for n in range(MAX_PARAMETERS + 1)}})


def test_a_load_without_parameters_has_none():
    assert read({}) == read({"parameters": {}}) == {}


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ("config", "Unable to parse 'parameters': attempt to get members for non-object"),
        (None, "Unable to parse 'parameters': attempt to get members for non-object"),
        ({"config": "{}", "files:a": ""}, "unexpected error on creating Triton parameter"),
    ],
)
def test_parameters_that_no_load_has_are_refused(parameters, told):
    with pytest.raises(Internal) as caught:
        read({"parameters": parameters})
    assert caught.value.message == told


@pytest.mark.parametrize("value", [1, None, ["a"], {}])
def test_what_is_no_string_is_refused(value):
    with pytest.raises(
        Internal, match="Unable to parse 'file:a': attempt to access JSON non-string as string"
    ):
        read({"parameters": {"file:a": value}})


def test_the_versions_to_serve_are_text_whatever_the_policy_says():
    assert read({"parameters": {"tritium.versions": "2,3"}}) == {"tritium.versions": "2,3"}
    assert read_versions("3,2,3") == (2, 3)
    for wrong in ("", "0", "1,", "1;2", "latest", "-1", 3, None, "9" * 30):
        with pytest.raises(InvalidArgument, match="it is text with the versions to serve, such as '3'"):
            read_versions(wrong)
