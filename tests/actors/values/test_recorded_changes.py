"""A change in an audit log: a record before it, its outcome behind it, nothing without the first."""

import pytest

from actors.values.auditing import AuditUnwritable, ManagedChange, Requester, recorded
from actors.values.callers import Peer
from actors.values.errors import Internal
from tests.support.auditing import KeptAuditor
from tests.support.callers import KnownCaller

CHANGE = ManagedChange(action="model_load", model="m")
CI = Requester("ci", "192.0.2.7")


async def done():
    return "result"


@pytest.mark.parametrize("error", [Internal("no"), ValueError("a bug")])
async def test_what_fails_is_told_and_raised(error):
    async def fail():
        raise error

    auditor = KeptAuditor()
    with pytest.raises(type(error)):
        await recorded(auditor, CHANGE, CI, fail)
    assert [outcome for outcome, *_ in auditor.told] == ["asked", type(error).__name__]


async def test_what_is_done_is_told_and_returned():
    auditor = KeptAuditor()
    assert await recorded(auditor, CHANGE, CI, done) == "result"
    assert auditor.told == [("asked", "model_load", "m", "ci"), ("done", "model_load", "m", "ci")]


async def test_nothing_is_done_where_that_can_not_be_told():
    auditor = KeptAuditor()
    auditor.unwritable = "full"
    with pytest.raises(AuditUnwritable):
        await recorded(auditor, CHANGE, CI, pytest.fail)
    assert await recorded(None, CHANGE, CI, done) == "result"


def test_an_origin_has_the_callers_name_if_there_is_one():
    assert Requester.of(None, Peer("192.0.2.7")) == Requester("", "192.0.2.7")
    assert Requester.of(KnownCaller("ci"), Peer("192.0.2.7")) == CI
