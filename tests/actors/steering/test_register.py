"""The register that controllers of several servers keep: which document stays, and which epoch is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.steering.register import Register
from actors.values.errors import TakenOver
from tests.support.examples import examples


def test_a_new_register_has_no_epoch_and_no_document():
    registered = Register(replica="a", boot="b00t", available=lambda: 7).describe()
    assert (registered.replica, registered.boot, registered.available_bytes) == ("a", "b00t", 7)
    assert (registered.epoch, registered.sequence, registered.document) == (0, 0, None)


def test_a_document_is_replaced_by_a_later_one():
    register = Register()
    for epoch, sequence in ((1, 0), (1, 3), (4, 0)):
        document = b'{"at":%d}' % (10 * epoch + sequence)
        register.keep(epoch, sequence, document)
        kept = register.describe()
        assert (kept.epoch, kept.document_epoch, kept.sequence) == (epoch, epoch, sequence)
        assert kept.document == document


@pytest.mark.parametrize("sequence", [2, 3])
def test_another_document_with_no_higher_sequence_is_refused(sequence):
    register = Register()
    register.keep(5, 3, b"{}")
    with pytest.raises(TakenOver, match=f"keeps sequence 3 of epoch 5, .* sequence {sequence} of epoch 5"):
        register.keep(5, sequence, b'{"a":1}')
    assert register.describe().document == b"{}"


def test_the_same_document_may_be_sent_twice():
    register = Register()
    for _ in range(2):
        register.keep(5, 3, b"{}")
    assert register.describe().sequence == 3


def test_who_takes_over_needs_a_higher_epoch_and_keeps_the_document():
    register = Register()
    register.keep(1, 9, b"{}")
    register.take_over(2)
    kept = register.describe()
    assert (kept.epoch, kept.document_epoch, kept.sequence, kept.document) == (2, 1, 9, b"{}")
    with pytest.raises(TakenOver, match="has seen epoch 2, and the request shows epoch 2: another"):
        register.take_over(2)
    with pytest.raises(TakenOver, match="has seen epoch 2, and the request shows epoch 1: another"):
        register.keep(1, 10, b"{}")
    register.keep(2, 0, b'{"a":1}')
    assert register.describe().document == b'{"a":1}'


def test_a_change_raises_the_epoch_and_a_lower_one_does_not_begin():
    register = Register()
    register.begin(3)
    register.begin(3)
    assert register.epoch == 3
    with pytest.raises(TakenOver, match="has seen epoch 3, and the request shows epoch 2"):
        register.begin(2)


NUMBER = st.integers(1, 5)
STEP = st.one_of(
    st.tuples(st.just("keep"), NUMBER, st.integers(0, 4), st.sampled_from([b"{}", b'{"a":1}'])),
    st.tuples(st.just("take_over"), NUMBER),
    st.tuples(st.just("begin"), NUMBER),
)


@settings(max_examples=examples(200))
@given(steps=st.lists(STEP, max_size=30))
def test_epochs_and_documents_never_go_back(steps):
    register = Register()
    for name, *arguments in steps:
        before = register.describe()
        try:
            getattr(register, name)(*arguments)
        except TakenOver:
            assert register.describe() == before
            assert arguments[0] <= before.epoch
            continue
        after = register.describe()
        assert after.epoch == max(before.epoch, arguments[0])
        assert (after.document_epoch, after.sequence) >= (before.document_epoch, before.sequence)
        if name == "keep":
            assert after.document == arguments[2]
        else:
            assert after.document == before.document
