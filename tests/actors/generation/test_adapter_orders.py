"""Which LoRA adapters there are: those of the file, and what was ordered by API."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.generation.policy import adapters as policy
from actors.generation.policy.adapters import AdapterOrders, Adapters
from actors.generation.policy.resolving import embedding
from actors.values.errors import InvalidArgument
from actors.values.generation.adapters import Adapter
from actors.values.generation.asking import EMBED, Ask
from actors.values.generation.facts import NoSuchAdapter


def adapter(name, root=""):
    return Adapter(name, root or name, f"/{root or name}", "1f")


TONE, KEY = adapter("tone"), adapter("key")


def test_the_file_and_the_orders_make_the_set():
    adapters = Adapters([TONE])
    assert adapters.roots == {"tone": "tone"}
    adapters.load(KEY)
    assert adapters.named == {"tone": TONE, "key": KEY}
    adapters.unload("tone")
    adapters.unload("key")
    assert adapters.named == {}
    with pytest.raises(NoSuchAdapter, match=r"^The lora adapter 'key' cannot be found\.$"):
        adapters.unload("key")


def test_a_name_is_taken_unless_the_client_says_in_place():
    adapters = Adapters([TONE])
    with pytest.raises(InvalidArgument, match="'tone' has already been loaded"):
        adapters.check_new("tone", in_place=False)
    adapters.check_new("tone", in_place=True)
    adapters.load(adapter("tone", "other"))
    assert adapters.roots == {"tone": "other"}
    adapters.unload("tone")
    adapters.check_new("tone", in_place=False)


def test_there_may_be_so_many(monkeypatch):
    monkeypatch.setattr(policy, "MOST_LOADED", 1)
    adapters = Adapters()
    adapters.load(TONE)
    with pytest.raises(InvalidArgument, match="1 adapters are loaded, which is the most"):
        adapters.check_new("key", in_place=True)
    adapters.check_new("tone", in_place=True)


def test_the_file_goes_first_where_it_says_something_new():
    adapters = Adapters([TONE, KEY])
    adapters.load(adapter("tone", "other"))
    adapters.unload("key")
    adapters.follow([TONE, KEY, adapter("more")])
    assert adapters.roots == {"tone": "other", "more": "more"}
    adapters.follow([adapter("tone", "third"), adapter("key", "fourth")])
    assert adapters.roots == {"tone": "third", "key": "fourth"}
    adapters.follow([])
    assert adapters.roots == {}


def test_orders_are_those_of_all_versions():
    orders = AdapterOrders()
    old, new = Adapters([TONE], orders), Adapters([TONE, KEY], orders)
    old.load(adapter("more"))
    old.unload("tone")
    assert list(new.named) == ["key", "more"]
    assert new.over([TONE]).named == old.named
    new.follow([KEY, adapter("tone", "again")])
    assert list(old.named) == ["tone", "more"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["load", "unload", "follow"]), st.sets(st.sampled_from("abc"), min_size=1)),
        max_size=20,
    )
)
def test_the_later_word_counts(steps):
    adapters = Adapters()
    expected: dict[str, str] = {}
    file: dict[str, str] = {}
    for number, (step, names) in enumerate(steps):
        if step == "load":
            for name in sorted(names):
                adapters.load(adapter(name, f"{name}{number}"))
                expected[name] = f"{name}{number}"
        elif step == "unload":
            for name in sorted(names & expected.keys()):
                adapters.unload(name)
                del expected[name]
        else:
            before, file = file, {name: f"{name}{number}" for name in sorted(names)}
            expected = {name: root for name, root in expected.items() if name not in before} | file
            adapters.follow([adapter(name, root) for name, root in file.items()])
        assert adapters.roots == expected


def test_an_engine_is_told_of_the_adapter_of_a_vector():
    plain = embedding(Ask(EMBED, prompts=("a",), dimensions=3), None)
    assert plain == {"embed": True, "dimensions": 3}
    assert embedding(Ask(EMBED, prompts=("a",), dimensions=3), TONE) == {**plain, "adapter": TONE.told}
