"""Other processes' memory stays open for the next batch, but not for ever, and never too much of it."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.worker.devices.cuda import CudaError
from engine.worker.devices.imports import Imports

MOST = 3
IDLE = 10.0


class Opener:
    """A driver that opens what it is asked to, once each."""

    def __init__(self):
        self.open = {}  # handles by address
        self.opened = 0
        self.most = 100
        self.gone = set()

    def open_exported(self, device, handle):
        if handle in self.gone or len(self.open) >= self.most:
            raise CudaError("it can't be opened")
        assert (device, handle) not in self.open.values()
        self.opened += 1
        self.open[self.opened << 32] = device, handle
        return self.opened << 32, 4096

    def close_exported(self, device, address):
        assert self.open.pop(address)[0] == device


class Cache(RuleBasedStateMachine):
    """Batches come and go at random, while time passes."""

    def __init__(self):
        super().__init__()
        self.opener = Opener()
        self.imports = Imports(lambda: self.opener, most=MOST, idle=IDLE)
        self.used = []
        self.now = 0.0

    @rule(device=st.integers(0, 1), name=st.integers(0, 4), passed=st.sampled_from([0.0, 1.0, IDLE]))
    def take(self, device, name, passed):
        self.now += passed
        handle = bytes([name]) * 64
        opened = self.imports.take(device, handle, self.now)
        assert self.imports.count <= max(MOST, len({each.address for each in self.used} | {opened.address}))
        assert self.opener.open[opened.address] == (device, handle)
        self.used.append(opened)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def let_go(self, data):
        self.used.pop(data.draw(st.integers(0, len(self.used) - 1)))

    @invariant()
    def what_is_used_is_open(self):
        assert {each.address for each in self.used} <= set(self.opener.open)
        assert self.imports.count == len(self.opener.open)

    def teardown(self):
        self.imports.close()
        assert not self.opener.open


TestCache = Cache.TestCase


@pytest.fixture
def opener():
    return Opener()


def use(imports, name, now):
    imports.take(0, name * 64, now)


def test_what_is_used_again_is_not_opened_again(opener):
    imports = Imports(lambda: opener, most=MOST, idle=IDLE)
    for turn in range(5):
        use(imports, b"a", turn * IDLE)
        use(imports, b"b", turn * IDLE)
    assert opener.opened == 2


def test_the_one_that_was_not_used_for_longest_is_closed_first(opener):
    imports = Imports(lambda: opener, most=2, idle=IDLE)
    for name in (b"a", b"b", b"a", b"c"):
        use(imports, name, 0.0)
    assert {handle[:1] for _, handle in opener.open.values()} == {b"a", b"c"}


def test_what_was_not_used_for_a_while_is_closed_when_another_is_used(opener):
    imports = Imports(lambda: opener, most=MOST, idle=IDLE)
    use(imports, b"a", 0.0)
    use(imports, b"b", IDLE)
    assert imports.count == 2
    use(imports, b"b", IDLE + 0.1)
    assert {handle[:1] for _, handle in opener.open.values()} == {b"b"}


def test_a_driver_that_is_short_is_asked_again_without_what_nothing_uses(opener):
    opener.most = 2
    imports = Imports(lambda: opener)
    held = imports.take(0, b"a" * 64, 0.0)
    use(imports, b"b", 0.0)
    use(imports, b"c", 0.0)
    assert opener.open[held.address][1][:1] == b"a"
    second = imports.take(0, b"c" * 64, 0.0)
    with pytest.raises(CudaError, match="can't be opened"):
        imports.take(0, b"d" * 64, 0.0)
    assert set(opener.open) == {held.address, second.address}


def test_what_is_gone_is_an_error_and_leaves_nothing_behind(opener):
    opener.gone.add(b"a" * 64)
    imports = Imports(lambda: opener)
    with pytest.raises(CudaError):
        imports.take(0, b"a" * 64, 0.0)
    assert not imports.count
    opener.gone.clear()
    use(imports, b"a", 0.0)
    assert imports.count == 1


def test_what_is_shared_no_longer_is_closed_and_opened_anew():
    opener = Opener()
    imports = Imports(lambda: opener)
    first = imports.take(0, b"a" * 64, 0.0).address
    imports.forget(b"b" * 64)  # it was never opened
    assert list(opener.open) == [first]
    imports.forget(b"a" * 64)
    assert not opener.open
    assert imports.take(0, b"a" * 64, 0.0).address != first


def test_what_is_in_use_is_closed_when_it_is_used_no_longer():
    opener = Opener()
    imports = Imports(lambda: opener)
    used = imports.take(0, b"a" * 64, 0.0)
    imports.forget(b"a" * 64)
    assert (list(opener.open), imports.count) == ([used.address], 0)
    del used
    imports.take(0, b"b" * 64, 0.0)
    assert list(opener.open.values()) == [(0, b"b" * 64)]
    imports.take(0, b"c" * 64, 0.0)
    held = imports.take(0, b"d" * 64, 0.0)
    imports.forget(b"d" * 64)
    imports.close()
    assert not opener.open
    assert held.nbytes
