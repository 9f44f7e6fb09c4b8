"""A version's number as clients write it, and the contract's texts for what is none."""

import pytest

from actors.values.errors import InvalidArgument
from actors.values.versions import parse_version


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1), ("+7", 7), ("0012", 12), ("9223372036854775807", 2**63 - 1)]
)
def test_decimal_digits_and_perhaps_a_sign_are_a_version(text, number):
    assert parse_version(text) == number


@pytest.mark.parametrize("text", ["0", "-0", "-1", "-9223372036854775808"])
def test_versions_begin_at_one(text):
    with pytest.raises(InvalidArgument) as refused:
        parse_version(text)
    assert refused.value.message == (
        f"invalid model version specified '{text}' , version should be an integral value > 0"
    )


@pytest.mark.parametrize(
    "text",
    ["", "one", " 1", "1.0", "1_000", "٣", "--1", "9223372036854775808", "-9223372036854775809", "1" * 4001],
    ids=lambda text: text[:20],
)
def test_what_is_no_number_of_64_bits_can_not_be_read(text):
    with pytest.raises(InvalidArgument) as refused:
        parse_version(text)
    assert refused.value.message == (
        f"failed to get model version from specified version string '{text}' (details: stoll), "
        "version should be an integral value > 0"
    )
