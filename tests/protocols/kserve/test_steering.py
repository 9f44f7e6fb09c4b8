"""What a controller of several servers shows and writes, each as the wire reads it."""

import json

import pytest

from actors.steering.register import Register
from actors.values.callers import Action
from actors.values.errors import InvalidArgument, OtherReplica, PermissionDenied, TakenOver
from actors.values.requests import FLAG_SEQUENCE_START, InferRequest
from protocols.kserve.auditing import register_change
from protocols.kserve.caps import REGISTER_BODY
from protocols.kserve.steering import (
    Posted,
    Steered,
    check_replica,
    check_steers,
    parse_epoch,
    posted,
    shown,
)
from tests.support.callers import KnownCaller
from tests.support.ports import NoPort

ON_SOME = KnownCaller("ci", [(Action.MODEL_REPOSITORY, "m")])


def ended(coroutine):
    """Return what a coroutine returns that waits for nothing."""
    with pytest.raises(StopIteration) as caught:
        coroutine.send(None)
    return caught.value.value


def test_an_epoch_is_a_whole_number():
    assert parse_epoch(None) is None
    assert parse_epoch(b"7") == parse_epoch("7") == 7
    for wrong in ("0", "-1", "x", "9" * 30):
        with pytest.raises(InvalidArgument, match="'tritium-epoch' is a whole number from 1"):
            parse_epoch(wrong)


def test_a_body_takes_over_or_keeps_a_document():
    assert posted(b'{"epoch": 3}') == Posted(3, 0, None)
    kept = b'{"epoch": 3, "sequence": 2, "document": {"b": 1, "a": 2}, "held": true}'
    assert posted(kept) == Posted(3, 2, b'{"a":2,"b":1}', True)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "the body is a JSON object"),
        (b"{", "the body is no JSON text"),
        (b" " * (REGISTER_BODY + 1), "bytes at most"),
        (b'{"epoch": 1, "x": 1}', "unknown member 'x'"),
        (b"{}", "'epoch' is missing"),
        (b'{"epoch": 0}', "'epoch' is '0'"),
        (b'{"epoch": 1, "held": true}', "'held' goes with a 'document'"),
        (b'{"epoch": 1, "sequence": 1, "document": 3}', "'document' is a JSON object"),
        (b'{"epoch": 1, "sequence": 1, "document": {}, "held": 3}', "'held' is '3'"),
        (b'{"epoch":1,"sequence":1,"document":' + b'{"a":' * 500 + b"1" + b"}" * 501, "can't be kept"),
    ],
    ids=str,
)
def test_bodies_that_say_nothing_of_use_are_refused(body, told):
    with pytest.raises(InvalidArgument, match=told):
        posted(body)


def test_the_register_is_shown_whole():
    register = Register(replica="a", boot="b00t", available=lambda: 5)
    empty = json.loads(shown(register.describe(), held=True))
    assert (empty["document"], empty["held"], empty["memory"]) == (None, True, {"available_bytes": 5})
    register = Register()
    register.keep(2, 1, b'{"a":1}')
    told = json.loads(shown(register.describe(), held=False))
    assert (told["document"], told["document_epoch"], told["sequence"]) == ({"a": 1}, 2, 1)
    assert "memory" not in told


def test_a_change_shows_its_epoch_as_it_begins():
    async def change():
        return "done"

    register = Register()
    assert ended(Steered(register, 3, None).carry_out(change)) == "done"
    assert ended(Steered(register, None, None).carry_out(change)) == "done"
    assert ended(Steered(register, 3, ON_SOME).carry_out(change)) == "done"  # it raises no epoch
    with pytest.raises(TakenOver):
        Steered(register, 2, None).carry_out(change).send(None)
    with pytest.raises(PermissionDenied, match="'ci' may use 'model-repository' on some only"):
        Steered(register, 4, ON_SOME).carry_out(change).send(None)
    check_steers(None)


def test_a_change_shows_its_epoch_again_once_its_models_are_found():
    judged = []

    def permit(model, repository):
        judged.append((model, repository))

    register = Register()
    assert Steered(register, None, None).permit(permit) is permit
    judge = Steered(register, 3, None).permit(permit)
    judge("m", "r")
    register.take_over(4)
    with pytest.raises(TakenOver):
        judge("m", "r")
    assert judged == [("m", "r")] * 2


@pytest.mark.parametrize(
    ("flags", "sequence", "refused"), [(0, 7, True), (FLAG_SEQUENCE_START, 7, False), (0, 0, False)]
)
@pytest.mark.parametrize(
    ("own", "here"), [("b", "this is 'b'"), ("", "this is a server without --replica-name")]
)
def test_a_sequence_goes_on_where_it_began(flags, sequence, refused, own, here):
    request = InferRequest(
        model_name="m", reply=NoPort(), accepted_at=0.0, flags=flags, correlation_id=sequence
    )
    check_replica(request, own, own)
    if refused:
        with pytest.raises(OtherReplica, match=here):
            check_replica(request, "a", own)
    else:
        check_replica(request, "a", own)


def test_the_audit_log_tells_the_epoch_and_what_is_kept():
    assert register_change(3, None, None).facts == {"epoch": 3}
    change = register_change(3, 2, b"{}")
    assert (change.facts, change.files) == ({"epoch": 3, "sequence": 2}, {"document": b"{}"})
