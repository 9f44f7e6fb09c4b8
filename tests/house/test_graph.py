"""The house keeps to its plan: no cycles, no class of many roles, no crowded folder, a true picture."""

import ast

import pytest

from tests.house.graph import House, Module, cycles, read
from tests.house.picture import PICTURE, drawn, without_counts
from tests.house.rules import broken
from tests.support.garbage import without_collector


@pytest.fixture(scope="module")
def house():
    with without_collector():
        return read()


def test_the_house_keeps_its_rules(house):
    told = list(dict.fromkeys(map(str, broken(house))))
    assert not told, "\n".join([*told, "", "see tests/house/rules.py"])


def test_the_picture_shows_the_rooms_and_arrows_of_today(house):
    assert without_counts(PICTURE.read_text()) == without_counts(drawn(house)), (
        "rooms or arrows have changed: draw the picture again, with `python -m tests.house.picture`"
    )


def test_a_cycle_is_found_however_long():
    ring = {str(number): frozenset({str((number + 1) % 3000)}) for number in range(3000)}
    assert [len(cycle) for cycle in cycles(ring)] == [3000]
    assert not cycles({"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset()})


def test_an_import_for_the_type_checker_counts(tmp_path):
    package = tmp_path / "engine" / "cli"
    package.mkdir(parents=True)
    (package / "one.py").write_text("def f():\n    from engine.cli import two\n")
    (package / "two.py").write_text("if TYPE_CHECKING:\n    from engine.cli.one import f\n")
    assert cycles(read(tmp_path).imports) == [["engine.cli.one", "engine.cli.two"]]


def test_a_large_class_and_a_crowded_folder_are_told():
    source = "class Large:\n" + "".join(f"    def method_{number}(self): ...\n" for number in range(26))
    modules = [
        Module(
            name=f"engine.cli.m{number}",
            path=f"engine/cli/m{number}.py",
            lines=27,
            tree=ast.parse(source if not number else ""),
            imports=frozenset(),
        )
        for number in range(21)
    ]
    house = House({module.name: module for module in modules})
    assert {(each.rule, each.what) for each in broken(house)} == {
        ("size of a class", "Large"),
        ("modules in a folder", "engine/cli"),
    }
