"""The deliberate bugs fit the present code, and the report separates what notices them from what does not."""

import pytest

from chaos.mutations.catalogue import MUTATIONS, Mutation
from chaos.mutations.table import table
from chaos.mutations.workbench import ROOT, Caught, Detector, notices, set_on


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_a_bug_changes_code_that_is_there_into_code_that_compiles(mutation):
    compile(mutation.applied((ROOT / mutation.file).read_text()), mutation.file, "exec")


def test_names_are_unique():
    assert len({each.name for each in MUTATIONS}) == len(MUTATIONS) >= 20


def test_a_bug_that_does_not_fit_any_more_is_told_by_its_name():
    with pytest.raises(ValueError, match=r"mutation 'gone': .* occurs 0 times in actors/serving/model.py"):
        Mutation("gone", "", "actors/serving/model.py", "old", "new").applied("text")


def detector(code, *, patience=20.0):
    return Detector("a test", ("-c", code), patience, r"(?m)^FAILED (\S+)")


def test_a_detector_names_what_has_noticed(tmp_path):
    assert notices(detector("pass"), tmp_path) is None
    assert (
        notices(detector("print('FAILED tests/x.py::y - oh'); raise SystemExit(1)"), tmp_path)
        == "tests/x.py::y"
    )
    assert notices(detector("print('a'); print('oh'); raise SystemExit(3)"), tmp_path) == "exit status 3: oh"


def test_who_is_not_done_in_time_has_noticed(tmp_path):
    slow = detector("import time; time.sleep(60)", patience=0.2)
    assert notices(slow, tmp_path) == "not done within 0.2 s"


def test_detectors_run_in_the_copy(tmp_path):
    (tmp_path / "actors").mkdir()
    (tmp_path / "actors" / "__init__.py").write_text("print('FAILED copy'); raise SystemExit(1)")
    assert notices(detector("import actors"), tmp_path) == "copy"


def test_the_first_that_notices_is_named_and_a_bug_that_nobody_does_is_shown(tmp_path):
    mutation = MUTATIONS[0]
    caught = set_on(
        [detector("pass"), detector("print('FAILED a|b'); raise SystemExit(1)")], mutation, tmp_path
    )
    assert (caught.detector, caught.by) == ("a test", "a|b")
    page = table([caught, Caught(mutation)])
    assert "1 of 2 are noticed: 1 by the a test." in page
    assert "a\\|b" in page
    assert "**nothing**" in page
