"""Which backends there are."""

import sys
import types
from importlib import metadata

import pytest

from engine.processes import backends as module
from engine.processes.backends import BUILT_IN, GROUP, BackendTraits, discover, traits_of
from engine.worker.backends.base import Backend


class Mine(Backend):
    pure = False
    concurrent = False
    default_artifact = "model.mine"
    platforms = ("mine_v1",)

    def load(self, model):
        raise NotImplementedError

    def execute(self, batch):
        raise NotImplementedError


@pytest.fixture
def entry_point(monkeypatch):
    """Pretend that an installed distribution names these backends."""

    def pretend(**targets):
        found = [metadata.EntryPoint(name, value, GROUP) for name, value in targets.items()]
        monkeypatch.setattr(module, "entry_points", lambda *, group: [e for e in found if e.group == group])
        fake = types.ModuleType("their_backend")
        fake.Mine = Mine
        monkeypatch.setitem(sys.modules, "their_backend", fake)

    return pretend


def test_the_class_s_attributes_are_the_traits():
    assert traits_of(Mine, name="mine", target="a:B") == BackendTraits(
        name="mine",
        pure=False,
        concurrent=False,
        default_artifact="model.mine",
        platforms=("mine_v1",),
        target="a:B",
    )


def test_an_installed_backend_is_found(entry_point):
    entry_point(mine="their_backend:Mine")
    assert discover()["mine"] == traits_of(Mine, name="mine", target="their_backend:Mine")


def test_our_own_are_found_in_a_checkout(entry_point):
    entry_point()
    assert set(discover()) == set(BUILT_IN)


def test_an_entry_point_goes_before_our_own_table(entry_point):
    entry_point(python="their_backend:Mine")
    assert discover()["python"].target == "their_backend:Mine"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_such_module_anywhere:X", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("their_backend:Absent", "AttributeError: module 'their_backend' has no attribute 'Absent'"),
    ],
)
def test_a_backend_that_can_t_be_imported_is_listed_with_the_reason(entry_point, target, reason):
    entry_point(bad=target)
    assert discover()["bad"].unavailable == reason
