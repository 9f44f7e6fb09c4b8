"""`tritium check --auth-file`: an auth file is explained, alone or beside models."""

import json

import pytest

from engine.__main__ import main
from tests.engine.cli.conftest import onnx_model

DIGEST = "ab" * 32
TEXT = f"""\
[[key]]
id = "ci"
digest = "{DIGEST}"

[[rule]]
for = ["ci"]
allow = ["inference"]

[[rule]]
for = ["ci"]
deny = ["inference"]
models = ["secret"]
"""
SHOWN = """\
{path}  auth file
  identities
    1 key (1 good) of 1 identity: ci
  rules, the first that matches decides, and what none allows is denied
    rule 1 (line 5) allows inference on every model to ci
    rule 2 (line 9) denies inference on model secret to ci
  limits
    none
  open to clients without credentials
    health: no rule names 'health', and until one does it is open to all
    metrics: no rule names 'metrics', and until one does it is open to all
  warning: rule 2 (line 9) can never decide: rule 1 before it decides all that it is about
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "auth.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models" / "identity" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(onnx_model("N", 4))
    return str(tmp_path / "models")


def test_an_auth_file_is_explained(path, capsys):
    assert main(["check", "--auth-file", str(path)]) == 0
    assert capsys.readouterr().out == SHOWN.format(path=path)


def test_what_is_wrong_is_told_with_its_place(path, capsys):
    path.write_text(TEXT.replace("deny", "denny"))
    assert main(["check", "--auth-file", str(path)]) == 1
    out = capsys.readouterr().out
    assert f"  error: {path}, line 9: [[rule]] number 2, 'allow': a rule has either 'allow' or 'deny'" in out
    assert main(["check", "--auth-file", str(path), "--quiet"]) == 1
    assert capsys.readouterr().out.startswith(f"{path}: error: {path}, line 9")


def test_the_outcome_is_one_line(path, capsys):
    assert main(["check", "--auth-file", str(path), "--quiet"]) == 0
    assert capsys.readouterr().out == f"{path}: ok, 1 warning\n"


def test_programs_get_json(path, capsys):
    assert main(["check", "--auth-file", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["auth_file"]
    assert (found["path"], found["ok"], found["error"]) == (str(path), True, None)
    assert found["rules"][0] == "rule 1 (line 5) allows inference on every model to ci"
    path.write_text("x")
    assert main(["check", "--auth-file", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["auth_file"]
    assert (found["ok"], "rules" in found) == (False, False)


def test_models_and_the_auth_file_are_checked_together(path, models, capsys):
    words = ["check", models, "--auth-file", str(path)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "1 of 1 model would load" in out
    assert out.endswith(SHOWN.format(path=path))
    assert main([*words, "--quiet"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main([*words, "--json"]) == 0
    assert {"auth_file"} < set(json.loads(capsys.readouterr().out))
    path.write_text("x")
    assert main(words) == 1


def test_many_rules_are_cut_for_readers_only(path, capsys):
    rule = '[[rule]]\nfor = ["anonymous"]\nallow = ["inference"]\nmodels = ["m{}"]\n'
    path.write_text("".join(rule.format(number) for number in range(205)))
    assert main(["check", "--auth-file", str(path)]) == 0
    assert "    and 5 more; --json has all of them\n" in capsys.readouterr().out


def test_something_is_to_be_checked(capsys):
    with pytest.raises(SystemExit) as end:
        main(["check"])
    assert end.value.code == 2
    assert "say what to check: a PATH, --auth-file FILE, or both" in capsys.readouterr().err
