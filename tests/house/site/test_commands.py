"""Commands in documents are run, or say why not; and what they name is there.

`tests/examples/test_pages.py` and `test_tutorials.py` run them. What is checked here takes no server: flags and
words of `tritium`, paths of URLs, modules, files and extras.
"""

import contextlib
import importlib.util
import io
import re
import tomllib
from collections.abc import Callable
from importlib import import_module
from urllib.parse import urlsplit

import pytest

from engine.cli.llm.command import run_parser
from engine.cli.manual.commands import COMMANDS
from engine.settings.forms import SettingsError
from engine.settings.option import Given
from engine.settings.scanning import scan_argv
from engine.settings.settings import BY_NAME
from protocols.http import routes
from protocols.openai import routes as openai
from tests.house.graph import ROOT
from tests.house.site.commands import REASONS, blocks
from tests.house.site.links import documents

WITH_COMMANDS = [
    document for document in documents() if any(blocks((ROOT / document).read_text(encoding="utf-8")))
]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OURS = ("benchmarks", "chaos", "engine", "tests")
PATHS: dict[str, Callable[[str], object]] = {
    "8000": routes.match,
    "8002": ("/metrics",).count,
    "8003": routes.match,
    "9000": openai.match,
}


@pytest.mark.parametrize("document", WITH_COMMANDS)
def test_commands_name_what_there_is(document):
    wrong = []
    for block in blocks((ROOT / document).read_text(encoding="utf-8")):
        if block.reason is not None and block.reason not in REASONS:
            wrong.append(f"{block.line}: '{block.reason}' is no reason: {', '.join(sorted(REASONS))}")
        if block.reason != "mistake":
            wrong += [f"{block.line}: {said}" for call in block.calls() for said in complaints(call)]
    assert wrong == []


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("tritium serve --model-repository=models --http-port 80", ""),
        ("tritium serve --modle-repository=models", "unrecognized option '--modle-repository'"),
        ("tritium serve --http-port=many", "many"),
        ("tritium tree --url http://127.0.0.1:8000", ""),
        ("tritium tree --depth 3", "--depth"),
        ("tritium key rotate", "rotate"),
        ("tritium grow", "no command"),
        ("curl -s localhost:8000/v2/models/m/infer", ""),
        ("curl -s localhost:8000/v2/model/m/infer", "no endpoint"),
        ("python -m chaos.simulation", ""),
        ("python -m chaos.nothing", "no module"),
        ("python examples/none.py", "no file"),
        ("pip install 'tritium[onyx]'", "no extra"),
        ("pip install '.[onnx]' 'tritonclient[http]'", ""),
    ],
)
def test_what_a_command_names_is_looked_for(call, said):
    (block,) = blocks(f"```sh\n{call}\n```\n")
    (words,) = block.calls()
    found = list(complaints(words))
    assert (not found) if not said else (said in found[0])


def test_blocks_of_commands_are_found_with_their_reasons():
    text = "```\nname: 1\n```\n<!-- not run: gpu -->\n```\nX=1 tritium tree \\\n  --json && echo '#' # shown\n```\n"
    (block,) = blocks(text)
    assert (block.line, block.reason) == (5, "gpu")
    assert list(block.calls()) == [["tritium", "tree", "--json"], ["echo", "#"]]


def complaints(call):
    """Yield what is wrong with one call."""
    end = next((at for at, word in enumerate(call) if re.match(r"\d*[<>]", word)), len(call))
    program, *words = call[:end]
    if "…" in words:
        return
    if program == "tritium":
        yield from _of_tritium(words)
    elif program == "curl":
        yield from _of_curl(words)
    elif program in {"python", "python3"} and words[:1] == ["-m"]:
        if words[1].split(".")[0] in OURS and importlib.util.find_spec(words[1]) is None:
            yield f"there is no module {words[1]}"
    elif program in {"python", "python3"} and words[0].startswith("examples/"):
        if not (ROOT / words[0]).is_file():
            yield f"there is no file {words[0]}"
    elif program.endswith("pip"):
        asked = re.findall(r"(?:^|\s)(?:tritium|\.)\[([\w,-]+)\]", " ".join(words))
        yield from (
            f"there is no extra {each}" for each in ",".join(asked).split(",") if each and each not in EXTRAS
        )


def _of_tritium(words):
    command, *rest = words
    if command.startswith("-"):
        return
    if command not in COMMANDS:
        yield f"there is no command {command}"
    elif command in {"serve", "sagemaker"} or (command == "run" and "--llm" not in rest):
        try:
            Given(scan_argv(rest, BY_NAME), BY_NAME)
        except SettingsError as error:
            yield str(error)
    else:
        module = import_module(f"engine.cli.{COMMANDS[command].module}")
        parser = run_parser if command == "run" else getattr(module, f"{command}_parser")
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                parser().parse_args(rest)
            except SystemExit:
                yield said.getvalue().splitlines()[-1]


def _of_curl(words):
    for word in words:
        found = re.match(r"(?:https?://)?(?:localhost|127\.0\.0\.1):(\d+)(/.*)?$", word)
        if found and found[1] in PATHS:
            path = urlsplit(found[2] or "/").path
            if not PATHS[found[1]](path):
                yield f"there is no endpoint {path} at port {found[1]}"
