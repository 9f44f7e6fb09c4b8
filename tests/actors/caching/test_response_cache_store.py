"""Which requests are equal to the response cache, and what it holds of their answers within its bound."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.caching.policy.cache import (
    ENTRY_OVERHEAD,
    KEY_SIZE,
    KeptAnswer,
    KeyMaker,
    LruCache,
    copy_of,
    entry_size,
)
from actors.values.datatypes import DataType
from actors.values.requests import InferRequest, InferResponse
from actors.values.tensors import Tensor
from tests.support.examples import examples
from tests.support.model_doubles import make_spec
from tests.support.ports import NoPort


def tensor(name="INPUT", data=bytes(8), shape=(1, 2), datatype=DataType.FP32):
    return Tensor(name, datatype, shape, data)


def request(*inputs, **options):
    return InferRequest(
        model_name="model", inputs=inputs or (tensor(),), reply=NoPort(), accepted_at=0.0, **options
    )


def key(*inputs, spec=None, **options):
    return KeyMaker(spec or make_spec()).key(request(*inputs, **options))


# -- keys


def test_equal_requests_have_equal_keys_whatever_memory_they_are_in():
    assert key(tensor(data=bytes(8))) == key(tensor(data=memoryview(bytearray(8)), shape=[1, 2]))
    assert len(key()) == KEY_SIZE


def test_the_order_of_inputs_and_of_requested_outputs_does_not_count():
    a, b = tensor("A", b"aaaaaaaa"), tensor("B", b"bbbbbbbb")
    assert key(a, b) == key(b, a)
    assert key(requested_outputs=("X", "Y")) == key(requested_outputs=("Y", "X"))


def test_how_a_request_is_to_be_served_does_not_count():
    assert key() == key(id="7", priority=2, timeout=1.0, deadline=5.0)


@pytest.mark.parametrize(
    "other",
    [
        {"inputs": (tensor(data=b"12345678"),)},
        {"inputs": (tensor(shape=(2, 1)),)},
        {"inputs": (tensor(datatype=DataType.INT32),)},
        {"inputs": (tensor("OTHER"),)},
        {"inputs": (tensor(), tensor("SECOND", b"", (0,)))},
        {"requested_outputs": ("OUTPUT",)},
        {"parameters": {"temperature": 1}},
        {"correlation_id": 3},
        {"correlation_id": "3"},
        {"spec": make_spec(name="another")},
        {"spec": make_spec(version=2)},
        {"spec": make_spec(namespace="/elsewhere")},
        {"spec": make_spec(content="reloaded")},
        {"spec": make_spec(config_json=b'{"parameters":{}}')},
    ],
    ids=lambda other: f"{next(iter(other))}={next(iter(other.values()))!r:.40}",
)
def test_whatever_an_answer_may_depend_on_counts(other):
    inputs = other.pop("inputs", (tensor(),)) if "inputs" in other else (tensor(),)
    assert key(*inputs, **other) != key()


def test_bytes_can_not_move_from_one_input_to_the_next():
    one = (tensor("A", b"1234", (4,), DataType.UINT8), tensor("B", b"5678", (4,), DataType.UINT8))
    other = (tensor("A", b"12345", (5,), DataType.UINT8), tensor("B", b"678", (3,), DataType.UINT8))
    assert key(*one) != key(*other)


def test_a_parameters_type_counts():
    assert len({key(parameters={"p": value}) for value in (1, 1.0, True, "1")}) == 4


# -- entries


def test_an_entry_views_nobodys_memory():
    memory = bytearray(np.array([1, 2], np.float32).tobytes())
    response = InferResponse(
        model_name="m", model_version=1, outputs=[tensor("OUTPUT", memoryview(memory), [1, 2])]
    )
    entry = copy_of(response)
    memory[:] = bytes(8)
    (again,) = entry.tensors()
    assert again.as_numpy().tolist() == [[1, 2]]
    assert entry.nbytes == entry_size(response.outputs) > 8


def test_each_answer_has_tensors_of_its_own():
    entry = copy_of(InferResponse(model_name="m", model_version=1, outputs=[tensor()]))
    first, second = entry.tensors()[0], entry.tensors()[0]
    first.name = "mine"
    assert second.name == "INPUT"


# -- what is held


def entry_of(nbytes):
    return KeptAnswer((), nbytes)


def test_a_cache_that_holds_nothing_is_no_cache():
    with pytest.raises(ValueError, match="got 0"):
        LruCache(0)


def test_an_entry_larger_than_the_cache_is_refused_in_the_contracts_words():
    cache = LruCache(1000)
    cache.insert(b"a", entry_of(600))
    assert not cache.fits(1001)
    with pytest.raises(
        ValueError, match=r"^Requested byte_size: 1001 is greater than total cache size: 1000$"
    ):
        cache.insert(b"b", entry_of(1001))
    assert cache.contents() == {b"a": 600}


def test_a_look_up_is_counted_as_what_it_was():
    cache = LruCache(1000)
    cache.insert(b"a", entry_of(250))
    assert (cache.lookup(b"a") is None, cache.lookup(b"b") is None) == (False, True)
    assert (cache.counts.hits, cache.counts.misses, cache.counts.lookups) == (1, 1, 2)
    assert cache.utilization == 0.25


class CacheMachine(RuleBasedStateMachine):
    """The cache beside a plain list of what was used when."""

    CAPACITY = 10

    def __init__(self):
        super().__init__()
        self.cache = LruCache(self.CAPACITY)
        self.held = OrderedDict()
        self.evictions = 0

    @rule(name=st.sampled_from("abcdef"), nbytes=st.integers(1, 12))
    def insert(self, name, nbytes):
        entry = entry_of(nbytes)
        if nbytes > self.CAPACITY:
            with pytest.raises(ValueError, match="greater than total"):
                self.cache.insert(name.encode(), entry)
            return
        self.cache.insert(name.encode(), entry)
        self.held.pop(name, None)
        while sum(each.nbytes for each in self.held.values()) + nbytes > self.CAPACITY:
            self.held.popitem(last=False)
            self.evictions += 1
        self.held[name] = entry

    @rule(name=st.sampled_from("abcdef"))
    def look_up(self, name):
        assert self.cache.lookup(name.encode()) is self.held.get(name)
        if name in self.held:
            self.held.move_to_end(name)

    @invariant()
    def the_same_is_held_in_the_same_order(self):
        expected = [(name.encode(), entry.nbytes) for name, entry in self.held.items()]
        assert list(self.cache.contents().items()) == expected
        assert len(self.cache) == len(expected)

    @invariant()
    def the_bound_holds(self):
        assert self.cache.nbytes == sum(self.cache.contents().values()) <= self.CAPACITY
        assert self.cache.counts.evictions == self.evictions


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)


def test_overhead_is_counted_so_that_empty_answers_have_a_bound_too():
    assert entry_size([]) == ENTRY_OVERHEAD > 0
