"""Frames of Python's import machinery are no news to the owner of a model."""

import importlib
import traceback

from actors.serving.instances.joining import without_importing
from engine.worker.backends.python.source import describe


def failure():
    try:
        importlib.import_module("no_such_module_of_ours")
    except ImportError as error:
        return error
    raise AssertionError


def test_a_traceback_loses_them_and_keeps_what_calls_and_what_is_said():
    whole = "".join(traceback.format_exception(failure()))
    said = without_importing(whole)
    assert "importlib/__init__" in whole
    assert "frozen importlib" in whole
    assert "importlib/__init__" not in said
    assert "frozen importlib" not in said
    assert 'in failure\n    importlib.import_module("no_such_module_of_ours")' in said
    assert said.endswith("ModuleNotFoundError: No module named 'no_such_module_of_ours'\n")


def test_a_reason_in_tritons_form_loses_them():
    whole = describe(failure())
    said = without_importing(whole)
    assert "importlib" in whole
    assert "importlib" not in said
    assert said.startswith("ModuleNotFoundError: No module named 'no_such_module_of_ours'\n\nAt:\n  ")
    assert "test_load_errors.py(" in said


def test_a_heading_that_has_no_other_frames_goes_with_them():
    said = "SyntaxError: '(' was never closed (model.py, line 1)"
    frames = "  <frozen importlib._bootstrap_external>(1074): get_code\n"
    assert without_importing(f"{said}\n\nAt:\n{frames}") == said


def test_other_text_stays_as_it_is():
    text = "ValueError: the file /a/importlib/__init__.py is missing\n\nAt:\n  /m/model.py(3): initialize\n"
    assert without_importing(text) == text
