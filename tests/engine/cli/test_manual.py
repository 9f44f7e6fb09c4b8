"""Completion and the manual page: made of the tables that the commands themselves read."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from engine.__main__ import main
from engine.cli.manual.commands import COMMANDS
from engine.cli.manual.roff import page
from engine.cli.manual.shells import SHELLS, brief
from engine.cli.manual.table import lines
from engine.settings.settings import FLAGS

TABLE = [*lines()]

_ASK = """
source /dev/stdin
compopt() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(( $# - 1 ))
_tritium
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(script, *words):
    """Return what bash offers for the last of the words."""
    done = subprocess.run(
        ["bash", "-c", _ASK, "ask", "tritium", *words],
        input=script,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert not done.stderr
    return done.stdout.split()


def test_the_table_has_every_command_with_its_options():
    by_name = {line.name: line for line in TABLE}
    assert list(by_name) == list(COMMANDS)
    options = {name: {each for word in line.words for each in word.names} for name, line in by_name.items()}
    assert {f"--{flag.name}" for flag in FLAGS} <= options["serve"]
    assert options["serve"] | {"--llm"} <= options["run"]
    assert {"--json", "--auth-file", "--no-model-code"} <= options["check"]
    assert {"--group", "--expires"} <= options["key"]
    assert by_name["key"].below == ("new", "list", "revoke")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell_has_every_flag(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for flag in FLAGS:
        assert flag.name in script
    for command in COMMANDS:
        assert command in script


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["che"], ["check"]),
        (["serve", "--model-con"], ["--model-control-mode=", "--model-config-name="]),
        (["serve", "--model-control-mode", "=", ""], ["none", "poll", "explicit"]),
        (["serve", "--allow-http", "t"], ["true"]),
        (["serve", "--http-port", "=", "8"], []),
        (["key", ""], ["new", "list", "revoke"]),
        (["logs", "--level", "w"], ["warning"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_bash_completes_commands_flags_and_values(words, offered):
    assert completed(SHELLS["bash"](TABLE), *words) == offered


def test_a_script_without_a_shell_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err


def test_an_explanation_beside_a_word_is_its_first_clause():
    assert brief("Tritium's own: how much. And more.") == "how much"
    assert len(brief("word " * 40)) <= 70


def test_the_manual_page_has_every_flag_in_text_that_roff_leaves_alone():
    text = page(TABLE, version="1.2.3")
    for flag in FLAGS:
        assert flag.name.replace("-", "\\-") in text
    assert text.isascii()
    known = (".TH", ".SH", ".SS", ".TP", ".B ", ".I ")
    assert all(line.startswith(known) for line in text.splitlines() if line.startswith((".", "'")))


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_reads_the_manual_page(capsys):
    assert main(["man"]) == 0
    drawn = subprocess.run(
        ["groff", "-man", "-Tascii"],
        input=capsys.readouterr().out,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert "serve the models of one or more repositories" in drawn.stdout
    assert "invalid" not in drawn.stderr
