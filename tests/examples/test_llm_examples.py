"""The examples with a language model, as their README has them: a model is trained, served, asked."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.operators import clean_environ

ROOT = Path(__file__).parents[2]
LLM = ROOT / "examples" / "llm"
MISSING = [
    name
    for name in ("torch", "transformers", "tokenizers", "openai")
    if importlib.util.find_spec(name) is None
]

pytestmark = [
    pytest.mark.long,
    pytest.mark.system,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


def run(script, *words, said=""):
    """Run an example and return what it prints."""
    done = subprocess.run(
        [sys.executable, LLM / script, *words],
        input=said,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("llm") / "tiny"
    assert run("tiny_model.py", made) == f"{made} knows {made / 'page.txt'} by heart\n"
    return made


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "page.txt").read_text().splitlines()


@pytest.fixture(scope="module")
def url(folder):
    """Where `tritium run --llm` serves it, with the ports that the kernel chooses."""
    log = folder.parent / "log"
    flags = ["--openai-port=0", "--http-port=0", "--http-address=127.0.0.1", "--allow-grpc=false"]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "engine", "run", "--llm", folder, *flags, "--allow-metrics=false"],
            cwd=ROOT,
            env=clean_environ() | {"TMPDIR": str(folder.parent)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    started = "Started OpenAI HTTPService at "
    while "readiness_changed ready=True" not in log.read_text():
        assert server.poll() is None, log.read_text()
        time.sleep(0.05)
    yield f"http://{log.read_text().partition(started)[2].partition(chr(34))[0]}/v1"
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
    assert not [name for name in os.listdir(folder.parent) if name.startswith("tritium-run-")]


def test_a_conversation_goes_on_from_what_was_said(url, page):
    first, second = run("chat.py", page[11], page[3], "--url", url).split(" answered]\n\n", 1)
    assert first.rpartition("\n[")[0] == "\n".join(page[12:]) + "\n"
    assert second.startswith("\n".join(page[4:]))


def test_messages_may_come_from_the_terminal(url, page):
    assert run("chat.py", "--url", url, said=page[11] + "\n").startswith("\n".join(page[12:]))


def test_a_tool_is_called_and_its_result_told(url):
    assert run("tools.py", "--url", url) == (
        "read_tide({'tide': 'low'}) = 4.5\nAt low tide the harbour is 4.5 metres deep.\n"
    )


def test_the_nearest_passage_goes_with_the_question(url, folder, page):
    found, answer = run("rag.py", folder / "page.txt", page[6], "--url", url).split("\n\n", 1)
    assert found == f"1.00  {page[6]}"
    assert answer == "\n".join(page[7:]) + "\n\n"
