"""What a worker's letters say beside their bytes is checked, since a worker may be hostile."""

import json

import pytest

from actors.wire.call_fields import Attached, read_attached, read_call
from actors.wire.call_frames import LARGEST_BODY, Letter
from actors.wire.frames import ASK, CALL, FrameError

HALF_A_PAIR = "\ud800"


def called(**fields):
    return read_call(Letter(CALL, 1, fields))


def asked(body=b"{}", *, subject="memory", attachments=(), data=b""):
    """Read a question with this JSON, and `data` behind it."""
    fields = {"subject": subject, "attachments": attachments}
    return read_attached(Letter(ASK, 1, fields, (), body + data))


def test_what_a_call_does_not_say_has_its_default():
    fields = called(model="add")
    assert (fields.model, fields.version, fields.id, fields.requested_outputs) == ("add", -1, "", ())
    assert (fields.correlation_id, fields.flags, fields.priority, fields.timeout) == (0, 0, 0, 0.0)
    assert fields.parameters is None
    assert (fields.decoupled, fields.blocking) == (False, False)


@pytest.mark.parametrize(
    ("given", "name", "read"),
    [
        ({"version": 3}, "version", 3),
        ({"version": None}, "version", -1),
        ({"id": "männlich"}, "id", "männlich"),
        ({"outputs": ["S", "T"]}, "requested_outputs", ("S", "T")),
        ({"correlation_id": "seven"}, "correlation_id", "seven"),
        ({"correlation_id": 2**64 - 1}, "correlation_id", 2**64 - 1),
        ({"flags": 3}, "flags", 3),
        ({"timeout": 2_500_000}, "timeout", 2.5),
        ({"priority": 2**64 - 1}, "priority", 2**64 - 1),
        ({"parameters": {"a": 1, "b": True}}, "parameters", {"a": 1, "b": True}),
        ({"trace": "00-1-2-01"}, "parameters", {"traceparent": "00-1-2-01"}),
        ({"trace": "mine", "parameters": {"a": 1}}, "parameters", {"traceparent": "mine", "a": 1}),
        ({"trace": "mine", "parameters": {"traceparent": "its"}}, "parameters", {"traceparent": "its"}),
        ({"decoupled": True}, "decoupled", True),
        ({"blocking": True}, "blocking", True),
    ],
)
def test_a_call_says_what_it_wants_and_for_whom(given, name, read):
    assert getattr(called(**given), name) == read


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"model": 1}, "a worker's 'model' is of type int"),
        ({"id": HALF_A_PAIR}, "a worker's 'id' is of type str, or no text that can travel"),
        ({"trace": None}, "a worker's 'trace' is of type NoneType"),
        ({"version": "1"}, "a worker's 'version' is '1'"),
        ({"version": True}, "a worker's 'version' is 'True'"),
        ({"version": 2**63}, "a worker's 'version' is '9223372036854775808'"),
        ({"flags": -1}, "a worker's 'flags' is '-1'"),
        ({"correlation_id": 2**64}, "a worker's 'correlation_id' is"),
        ({"correlation_id": HALF_A_PAIR}, "a worker's 'correlation_id' is of type str"),
        ({"timeout": 0.5}, "a worker's 'timeout' is '0.5'"),
        ({"decoupled": 1}, "a worker's 'decoupled' is of type int"),
        ({"outputs": "S"}, "a worker's outputs are of type str"),
        ({"outputs": [1]}, "a worker's 'output' is of type int"),
        ({"parameters": [1]}, "a call's parameters are no object"),
        ({"parameters": {"a": None}}, "a call's parameters can't travel"),
    ],
)
def test_a_call_that_no_worker_of_ours_would_make_is_refused(given, why):
    with pytest.raises(FrameError) as refused:
        called(**given)
    assert str(refused.value).startswith(why)


def test_attachments_lie_behind_the_body_in_their_order():
    found = asked(b'{"a":1}', attachments=[["x", 2], ["y", 0], ["z", 3]], data=b"xxzzz")
    assert found == Attached("memory", {"a": 1}, {"x": b"xx", "y": b"", "z": b"zzz"})
    assert list(found.attachments) == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"subject": "x" * 257, "attachments": []}, f"a letter on '{'x' * 256}' with attachments list"),
        ({"attachments": None}, "a letter on 'memory' with attachments NoneType"),
        ({"attachments": ["x"]}, "an attachment without a name and a size"),
        ({"attachments": [["x"]]}, "an attachment without a name and a size"),
        ({"attachments": [[1, 1]]}, "a worker's 'name' is of type int"),
        ({"attachments": [["x", -1]]}, "a worker's 'size' is '-1'"),
        ({"attachments": [["x", 3]], "data": b""}, "attachment 'x' of 3 bytes in a letter of 2"),
        ({"body": b"{"}, "a letter on 'memory' is no JSON"),
        ({"body": b"[" * 60_000}, "a letter on 'memory' is no JSON: JSON that nests too deeply"),
        ({"body": b"[1]"}, "a letter on 'memory' holds list, not an object"),
        (
            {"body": json.dumps({"x": "x" * LARGEST_BODY}).encode()},
            f"a letter on 'memory' with {LARGEST_BODY + 9} bytes of JSON",
        ),
    ],
    ids=lambda given: "" if isinstance(given, dict) else given[:40],
)
def test_a_question_that_no_worker_of_ours_would_ask_is_refused(given, why):
    with pytest.raises(FrameError) as refused:
        asked(**{"attachments": [], **given})
    assert str(refused.value).startswith(why)


def test_a_subject_may_be_so_long():
    assert asked(subject="x" * 256, attachments=[]).subject == "x" * 256
