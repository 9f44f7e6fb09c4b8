"""The gallery as its page has it: made, served, and asked by the page's own commands."""

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from examples.gallery import build
from tests.support.flavours import process

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.http as triton

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "examples" / "gallery" / "build.py"
PAGE = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
QUICK = ["digits", "iris", "tumours", "photos", "morse", "alarm"]
LANGUAGE = ["sentences", "writer"]
OPENAI = r"Started OpenAI HTTPService at (\S+?)\"?\s"

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def run(*command):
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )


def make(repository, *names):
    """Make the models of entries, and return what `build.py` says."""
    done = run(BUILD, *names, "--into", repository)
    assert done.returncode == 0, done.stderr
    return done.stdout


def found(pattern, text):
    """Return the group of `pattern` where it is first found."""
    match = re.search(pattern, text)
    assert match is not None, f"no {pattern!r} in {text}"
    return match[1]


def shown(entry):
    """Return what the page has for an entry: the command that asks, and its answer."""
    section = found(rf"(?sm)^## {entry}\n(.*?)^## ", PAGE)
    block = found(r"(?sm)^```console\n(.*?)^```", section)
    assert f"$ python examples/gallery/build.py {entry}\n$ tritium serve examples/gallery/models" in block
    command, _, answer = block.rpartition("$ ")[2].partition("\n")
    return command, answer


def test_nothing_is_said_of_serving_where_nothing_was_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "missing", lambda needs: ["pip install it"])
    monkeypatch.setattr(sys, "argv", ["build.py", "iris", "--into", str(tmp_path / "models")])
    assert build.main() == 1
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "iris       left out; it needs: pip install it\n")


def asked(entry, addresses, openai=""):
    """Run the command that asks, of the server at other addresses, and return what it prints."""
    command = shown(entry)[0]
    if command.startswith("curl"):
        command = command.replace("localhost:8000", addresses.http)
    else:
        url = {"morse": addresses.grpc, **dict.fromkeys(LANGUAGE, openai)}.get(entry, addresses.http)
        command += f" --url {url}"
    command = command.replace("python ", f"{shlex.quote(sys.executable)} ")
    done = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_alike(found, expected):
    """Another machine, or scikit-learn of another day, may give a number that differs by 2 %."""
    number = r"-?\d+(?:\.\d+)?"
    assert re.sub(number, "#", found) == re.sub(number, "#", expected)
    numbers = [[float(each) for each in re.findall(number, text)] for text in (found, expected)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.02, abs=0.02)


def test_every_entry_has_a_section():
    assert sorted(QUICK + LANGUAGE) == build.ENTRIES
    assert re.findall(r"^\| \[(\w+)\]", PAGE, re.MULTILINE) == QUICK + LANGUAGE


def test_the_entries_answer_as_the_page_has_it(tmp_path):
    told = make(tmp_path / "models", *QUICK)
    assert [line.split()[0] for line in told.splitlines()[:6]] == QUICK
    with process("engine", "serve")(tmp_path / "models") as addresses, ThreadPoolExecutor(2) as two:
        answers = dict(zip(QUICK, two.map(lambda entry: asked(entry, addresses), QUICK), strict=True))
    for entry in QUICK:
        assert_alike(answers[entry], shown(entry)[1])


@pytest.mark.skipif(
    bool([name for name in ("torch", "transformers", "openai") if importlib.util.find_spec(name) is None]),
    reason="torch, transformers and openai are not all installed",
)
@pytest.mark.long
def test_the_whole_gallery_is_served_at_once(tmp_path):
    told = make(tmp_path / "models")
    made = [entry for entry in build.ENTRIES if f"\n{entry} " in f"\n{told}"]
    assert {*QUICK, "writer"} <= {*made}
    log = tmp_path / "log"
    with process("engine", "serve", said=log, TRITIUM_OPENAI_PORT="0")(tmp_path / "models") as addresses:
        openai = f"http://{found(OPENAI, log.read_text())}/v1"
        answers = {entry: asked(entry, addresses, openai) for entry in made}
    for entry in made:
        assert_alike(answers[entry], shown(entry)[1])


def test_what_is_usual_outlives_the_worker_that_learnt_it(tmp_path):
    make(tmp_path / "models", "alarm")
    log = tmp_path / "log"
    with process("engine", "serve", said=log)(tmp_path / "models") as addresses:
        with triton.InferenceServerClient(addresses.http, network_timeout=120) as client:
            before = [watch(client, value, start=at == 0) for at, value in enumerate((20.1, 20.4, 19.9))]
            os.kill(int(found(r"worker_started .*\bpid=(\d+)", log.read_text())), signal.SIGKILL)
            after = [watch(client, value) for value in (20.2, 20.0, 27.5)]
    assert [f"{value:+.1f}" for value in before + after] == ["+0.0", "+0.0", "+0.0", "+0.3", "-0.7", "+38.4"]


def watch(client, value, *, start=False):
    given = triton.InferInput("reading", [1, 1], "FP32")
    given.set_data_from_numpy(np.full((1, 1), value, np.float32))
    return client.infer("alarm", [given], sequence_id=1, sequence_start=start).as_numpy("sigmas").item()


def test_an_entry_that_is_not_there_is_refused(tmp_path):
    done = run(BUILD, "irises", "--into", tmp_path / "models")
    assert done.returncode == 2
    assert "there is no irises; the gallery has alarm, digits, iris, " in done.stderr
    assert not (tmp_path / "models").exists()


def test_what_is_missing_is_told_with_its_cure():
    needs = {"numpy": "no", "no_such_a": "pip install a", "no_such_b": "pip install a", "no_such_c": "c"}
    assert build.missing(needs) == ["pip install a", "c"]


def test_an_entry_that_can_not_be_made_leaves_the_old_one(tmp_path, monkeypatch):
    build.build("alarm", tmp_path)
    (tmp_path / "alarm" / "mark").touch()

    class Failing:
        @staticmethod
        def make(repository, say):
            raise OSError("no room")

    monkeypatch.setattr(build, "load", lambda name: Failing)
    with pytest.raises(OSError, match="no room"):
        build.build("alarm", tmp_path)
    assert os.listdir(tmp_path) == ["alarm"]
    assert (tmp_path / "alarm" / "mark").exists()
