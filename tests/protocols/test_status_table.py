import pytest

from actors.values.errors import NEVER, ErrorCode, InvalidArgument, Unavailable
from protocols.status import STATUS, grpc_status, http_status, retry_seconds


def test_every_error_code_has_a_status():
    assert set(STATUS) == set(ErrorCode)


@pytest.mark.parametrize(
    ("code", "http", "grpc"),
    [
        (ErrorCode.UNKNOWN, 400, "UNKNOWN"),
        (ErrorCode.INTERNAL, 500, "INTERNAL"),
        (ErrorCode.NOT_FOUND, 404, "NOT_FOUND"),
        (ErrorCode.INVALID_ARG, 400, "INVALID_ARGUMENT"),
        (ErrorCode.UNAVAILABLE, 503, "UNAVAILABLE"),
        (ErrorCode.UNSUPPORTED, 501, "UNIMPLEMENTED"),
        (ErrorCode.ALREADY_EXISTS, 400, "ALREADY_EXISTS"),
        (ErrorCode.CANCELLED, 400, "CANCELLED"),
        (ErrorCode.DEADLINE_EXCEEDED, 504, "DEADLINE_EXCEEDED"),
        (ErrorCode.POISONED, 422, "FAILED_PRECONDITION"),
    ],
)
def test_a_code_maps_to_the_contract_s_statuses(code, http, grpc):
    assert http_status(code) == http
    assert grpc_status(code) == _GRPC_NUMBERS[grpc]


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Unavailable("full"), 1),
        (Unavailable("full", retry_after=0.2), 1),
        (Unavailable("full", retry_after=2.0), 2),
        (Unavailable("full", retry_after=2.1), 3),
        (Unavailable("gone", retry_after=NEVER), 0),
        (InvalidArgument("wrong"), 0),
    ],
)
def test_a_client_is_told_to_come_back_after_whole_seconds_where_that_may_help(error, seconds):
    assert retry_seconds(error) == seconds


_GRPC_NUMBERS = {
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "FAILED_PRECONDITION": 9,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
}
