"""The commands of pages, run from top to bottom in a folder that has the project's examples.

Tutorials and the gallery have tests of their own.
"""

import shutil

import pytest

from tests.house.site.followed import followed
from tests.support.operators import ROOT
from tests.support.pages import as_tutorial
from tests.support.tutorials import reader


@pytest.mark.long
@pytest.mark.system
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("document", followed())
def test_a_page_can_be_followed(document, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(as_tutorial((ROOT / document).read_text(encoding="utf-8")), encoding="utf-8")
    (tmp_path / "work").mkdir()
    shutil.copytree(ROOT / "examples", tmp_path / "work" / "examples")
    with reader(tmp_path / "work") as someone:
        someone.follow(page)


def test_commands_without_prompts_are_run_line_by_line():
    page = "```\npip install x\ntritium serve a \\\n  b\ncurl localhost:8000/v2\n```\n"
    assert as_tutorial(page) == ("```sh\ntritium serve a    b\n```\n```sh\ncurl -sS 127.0.0.1:8000/v2\n```\n")


def test_commands_of_one_session_share_a_shell_and_their_output_is_compared():
    page = "```console\n$ tritium serve a\n$ f() { echo $1; }\n$ f 1\n1\n$ f 2\n2\n```\n"
    assert as_tutorial(page) == (
        "```sh\ntritium serve a\n```\n"
        "```sh\n{ f() { echo $1; }\n} >/dev/null\n{ f 1\n} 2>&1 | sed '$a\\'\n"
        "{ f 2\n} 2>&1 | sed '$a\\'\n```\n"
        "```text\n1\n2\n```\n"
    )


def test_a_command_that_a_page_does_not_show_is_run_where_it_stands():
    page = "<!-- run: tritium serve a -->\n\n<!-- not run: gpu -->\n```sh\necho 1\n```\n```sh\necho 2\n```\n"
    assert as_tutorial(page) == "```sh\ntritium serve a\n```\n```sh\necho 2\n```\n"
