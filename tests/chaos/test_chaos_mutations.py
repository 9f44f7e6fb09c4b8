"""Deliberate bugs are made from the present code, and the report separates what notices them from what does not."""

import ast

import pytest

from chaos.mutations.__main__ import table
from chaos.mutations.operators import OPERATORS, Mutant, NoSuchFunction, mutants_of
from chaos.mutations.targets import TARGETS
from chaos.mutations.workbench import ROOT, Caught, Detector, notices, set_on

pytestmark = pytest.mark.system

CODE = """
class Line:
    def take(self, most):
        \"\"\"Take some.\"\"\"
        found = []
        while self.kept and len(found) < most:
            found.append(self.kept.popleft())
            self.size -= 1
        return min(found, key=len)
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "actors").mkdir()
    (tmp_path / "actors" / "line.py").write_text(CODE)
    return tmp_path


@pytest.mark.parametrize(
    ("operator", "changed"),
    [
        ("negate", ["while not (self.kept and len(found) < most):"]),
        ("drop", ["pass", "pass"]),
        (
            "swap",
            [
                "while self.kept or len(found) < most:",
                "while self.kept and len(found) <= most:",
                "found.appendleft(self.kept.popleft())",
                "found.append(self.kept.pop())",
                "self.size += 1",
                "return max(found, key=len)",
            ],
        ),
        ("off by one", ["self.size -= 2"]),
    ],
)
def test_an_operator_changes_one_place_at_a_time(root, operator, changed):
    mutants = [each for each in mutants_of(root, "Line.take") if each.operator == operator]
    before = ast.unparse(ast.parse(CODE)).splitlines()
    different = []
    for each in mutants:
        lines = [line.strip() for line in each.applied(CODE).splitlines()]
        different += [line for line, old in zip(lines, before, strict=True) if line != old.strip()]
    assert sorted(different) == sorted(changed)


@pytest.mark.parametrize("function", TARGETS)
def test_each_bug_changes_code_that_is_there_into_code_that_compiles(function):
    mutants = mutants_of(ROOT, function)
    assert mutants
    text = (ROOT / mutants[0].file).read_text()
    unchanged = ast.unparse(ast.parse(text))
    for each in mutants:
        changed = each.applied(text)
        assert changed != unchanged
        compile(changed, each.file, "exec")


def test_a_function_that_is_not_there_or_there_twice_is_told_by_its_name(root):
    with pytest.raises(NoSuchFunction, match=r"'Line.gone' is in no module"):
        mutants_of(root, "Line.gone")
    (root / "actors" / "other.py").write_text(CODE)
    with pytest.raises(NoSuchFunction, match=r"'Line.take' is in actors/line.py, actors/other.py"):
        mutants_of(root, "Line.take")
    assert {each.file for each in mutants_of(root, "other:Line.take")} == {"actors/other.py"}


def detector(code, *, patience=20.0):
    return Detector("a test", ("-c", code), patience, r"(?m)^FAILED (\S+)")


def test_a_detector_names_what_has_noticed(tmp_path):
    assert notices(detector("pass"), tmp_path) is None
    assert (
        notices(detector("print('FAILED tests/x.py::y - oh'); raise SystemExit(1)"), tmp_path)
        == "tests/x.py::y"
    )
    assert notices(detector("print('a'); print('oh'); raise SystemExit(3)"), tmp_path) == "exit status 3: oh"


def test_a_detector_that_is_not_done_in_time_has_noticed(tmp_path):
    slow = detector("import time; time.sleep(60)", patience=0.2)
    assert notices(slow, tmp_path) == "not done within 0.2 s"


def test_detectors_run_in_the_copy(tmp_path):
    (tmp_path / "actors").mkdir()
    (tmp_path / "actors" / "__init__.py").write_text("print('FAILED copy'); raise SystemExit(1)")
    assert notices(detector("import actors"), tmp_path) == "copy"


def test_the_first_that_notices_is_named_and_a_bug_that_none_does_is_shown(tmp_path):
    mutant = Mutant("Slot.release", next(iter(OPERATORS)), 0, "actors/wire/slots.py", 50)
    caught = set_on(
        [detector("pass"), detector("print('FAILED a|b'); raise SystemExit(1)")], mutant, tmp_path
    )
    assert (caught.detector, caught.by) == ("a test", "a|b")
    page = table([caught, Caught(mutant)])
    assert "1 of 2 are noticed: 1 by the a test." in page
    assert "a\\|b" in page
    assert "**nothing**" in page
