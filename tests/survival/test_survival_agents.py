"""Repository agents in real processes: what they may do to a model, and can't to a server."""

import base64
import http.server
import io
import json
import os
import re
import signal
import tarfile
import tempfile
import threading
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.survival.changing import load, post, unload
from tests.survival.server import standing, until

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"
MODEL = """
import triton_python_backend_utils as pb_utils
import numpy as np


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SAYS", np.array([b"@SAYS@"], object))])
                for _ in requests]
"""
CONFIG = """
backend: "python"
output [ { name: "SAYS" data_type: TYPE_STRING dims: [ 1 ] } ]
model_repository_agents { @AGENTS@ }
"""
SCRIBE = """
import os, pathlib, time
from tritium import agents


class Agent(agents.Agent):
    def say(self, word):
        with open(self.model.parameters["log"], "a") as log:
            log.write(f"{self.model.parameters['as']} {word} {self.model.name} {os.getpid()}\\n")

    def load(self):
        self.say("load")
        match self.model.parameters.get("then", ""):
            case "raise": raise ValueError("no such luck")
            case "die": os.kill(os.getpid(), 11)
            case "exit": os._exit(3)
            case "hang": time.sleep(3600)
            case "hoard": bytearray(64 << 30)
            case "chatter": print("x" * 100_000_000, flush=True)
            case "late": self.late = True

    def load_complete(self):
        self.say("load_complete")
        if hasattr(self, "late"):
            self.model.relocate("/tmp")

    def load_fail(self): self.say("load_fail")
    def unload(self): self.say("unload")
    def unload_complete(self): self.say("unload_complete")
"""


def agent(name, **parameters):
    said = "".join(f' parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    return f'agents {{ name: "{name}"{said} }} '


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents")
    (folder / "models").mkdir()
    agents = folder / "agents"
    (agents / "scribe").mkdir(parents=True)
    (agents / "scribe" / "agent.py").write_text(SCRIBE)
    (agents / "library").mkdir()
    (agents / "library" / "libtritonrepoagent_library.so").touch()
    for example in EXAMPLES.iterdir():
        (agents / example.name).symlink_to(example)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    flags = (
        "--model-control-mode=explicit",
        f"--repoagent-directory={folder / 'agents'}",
        "--repoagent-timeout=5",
    )
    with standing(folder / "models", *flags, files=folder / "server") as server:
        yield server


@pytest.fixture
def model(folder, request):
    """Write a model with some agents, and files besides its configuration."""
    name = re.sub(r"\W", "_", request.node.name)[:80]

    def write(agents, files):
        directory = folder / "models" / name
        for path, content in {**files, "config.pbtxt": CONFIG.replace("@AGENTS@", agents).encode()}.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return name

    return write


def source(says):
    return MODEL.replace("@SAYS@", says).encode()


async def says(server, name):
    answer = await post(server, f"/v2/models/{name}/infer", {"inputs": []})
    assert answer.status == 200, answer.body
    return answer.json()["outputs"][0]["data"][0]


async def loaded(server, name):
    answer = await load(server, name)
    assert answer.status == 200, answer.body


async def refused(server, name, **parameters):
    answer = await load(server, name, **parameters)
    assert answer.status >= 400
    return answer.json()["error"]


async def unloaded(server, name):
    answer = await unload(server, name)
    assert answer.status == 200, answer.body


def folders_of(name):
    return list(Path(tempfile.gettempdir()).glob(f"tritium-agent-*/{name}"))


def log_of(folder, name):
    path = folder / f"{name}.log"
    return [tuple(line.split()[:2]) for line in path.read_text().splitlines()] if path.exists() else []


def alive(folder, name):
    pids = {int(line.split()[3]) for line in (folder / f"{name}.log").read_text().splitlines()}
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def test_an_archive_is_unpacked_for_its_model_and_removed_with_it(server, model):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("1/model.py")
        member.size = len(source("unpacked"))
        archive.addfile(member, io.BytesIO(source("unpacked")))
    name = model(agent("unpack", archive="model.tar.gz"), {"model.tar.gz": packed.getvalue()})
    await loaded(server, name)
    assert await says(server, name) == "unpacked"
    [made] = folders_of(name)
    await unloaded(server, name)
    await until(lambda: made not in folders_of(name))


async def test_files_are_decrypted_by_a_key_that_lies_elsewhere(server, model, folder):
    key = Fernet.generate_key()
    (folder / "model.key").write_bytes(key)
    secret = Fernet(key).encrypt(source("decrypted"))
    name = model(agent("decrypt", key_file=folder / "model.key"), {"1/model.py.enc": secret})
    await loaded(server, name)
    assert await says(server, name) == "decrypted"
    (folder / "model.key").write_bytes(Fernet.generate_key())
    told = await refused(server, name)
    assert (
        "repository agent 'decrypt' failed in LOAD: ValueError: model.py.enc was not encrypted with" in told
    )
    assert await says(server, name) == "decrypted"


async def test_a_file_is_fetched_and_held_against_its_digest(server, model):
    content = source("fetched")

    class Files(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{files.server_port}/model.py"
        good = f"{sha256(content).hexdigest()} {url}"
        name = model(agent("fetch", **{"1/model.py": good}), {"notes": b""})
        await loaded(server, name)
        assert await says(server, name) == "fetched"
        model(agent("fetch", **{"1/model.py": f"{'0' * 64} {url}"}), {"notes": b""})
        assert f"{url} has sha256 {sha256(content).hexdigest()}" in await refused(server, name)
        files.shutdown()


async def test_actions_come_in_the_contracts_order(server, model, folder):
    name = model("", {"1/model.py": source("two")})
    log = folder / f"{name}.log"
    model(agent("scribe", log=log, **{"as": "a"}) + agent("scribe", log=log, **{"as": "b"}), {})
    await loaded(server, name)
    await until(lambda: len(log_of(folder, name)) == 4)
    assert log_of(folder, name) == [
        ("a", "load"),
        ("b", "load"),
        ("b", "load_complete"),
        ("a", "load_complete"),
    ]
    await unloaded(server, name)
    await until(lambda: len(log_of(folder, name)) == 8 and not alive(folder, name))
    assert log_of(folder, name)[4:] == [
        ("a", "unload"), ("b", "unload"), ("b", "unload_complete"), ("a", "unload_complete")
    ]  # fmt: skip


async def test_a_model_that_fails_after_its_agents_tells_them(server, model, folder):
    name = model("", {"1/model.py": b"raise RuntimeError('broken')"})
    model(agent("scribe", log=folder / f"{name}.log", **{"as": "a"}), {})
    assert "broken" in await refused(server, name)
    await until(lambda: log_of(folder, name) == [("a", "load"), ("a", "load_fail")])
    await until(lambda: not alive(folder, name))


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ("raise", "repository agent 'scribe' failed in LOAD: ValueError: no such luck"),
        ("die", "repository agent 'scribe' ended during LOAD (signal 11)"),
        ("exit", "repository agent 'scribe' ended during LOAD (exit status 3)"),
        pytest.param(
            "hang",
            "repository agent 'scribe' did not end LOAD within 5 s and was ended (--repoagent-timeout)",
            marks=pytest.mark.long,
        ),
        ("hoard", "repository agent 'scribe' failed in LOAD: MemoryError"),
    ],
)
async def test_an_agent_that_fails_costs_its_load_only(server, model, folder, then, told):
    name = model("", {"1/model.py": source("never")})
    log = folder / f"{name}.log"
    model(agent("scribe", log=log, **{"as": "a"}) + agent("scribe", log=log, then=then, **{"as": "b"}), {})
    assert told in await refused(server, name)
    await until(lambda: ("a", "load_fail") in log_of(folder, name) and not alive(folder, name))
    model(agent("scribe", log=log, **{"as": "a"}), {})
    await loaded(server, name)
    assert await says(server, name) == "never"


async def test_what_an_agent_prints_is_bounded_and_logged(server, model, folder):
    name = model("", {"1/model.py": source("loud")})
    model(agent("scribe", log=folder / f"{name}.log", then="chatter", **{"as": "a"}), {})
    await loaded(server, name)
    assert await says(server, name) == "loud"


async def test_a_model_outlives_its_agents_death(server, model, folder):
    name = model("", {"1/model.py": source("alone")})
    model(agent("scribe", log=folder / f"{name}.log", **{"as": "a"}), {})
    await loaded(server, name)
    [pid] = alive(folder, name)
    os.kill(pid, signal.SIGKILL)
    assert await says(server, name) == "alone"
    await unloaded(server, name)
    await until(lambda: not alive(folder, name))


async def test_a_model_moves_only_while_it_is_loaded(server, model, folder):
    name = model("", {"1/model.py": source("here")})
    model(agent("scribe", log=folder / f"{name}.log", then="late", **{"as": "a"}), {})
    await loaded(server, name)
    assert await says(server, name) == "here"
    text = "location can only be updated during TRITONREPOAGENT_ACTION_LOAD, current action type is"
    await until(lambda: f"{text} TRITONREPOAGENT_ACTION_LOAD_COMPLETE" in server.stdout + server.stderr)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("absent", "unable to find 'libtritonrepoagent_absent.so' for repo agent 'absent', searched: "),
        (
            "library",
            "repository agents as shared libraries are not supported; write it as a Python entry point",
        ),
        (
            "../scribe",
            "unable to find 'libtritonrepoagent_../scribe.so' for repo agent '../scribe', searched: ",
        ),
    ],
)
async def test_an_agent_that_is_not_there_is_refused(server, model, wanted, told):
    name = model(agent(wanted), {"1/model.py": source("never")})
    assert told in await refused(server, name)


async def test_the_built_in_agent_checks_what_the_one_before_it_made(server, model):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("1/model.py")
        member.size = len(source("checked"))
        archive.addfile(member, io.BytesIO(source("checked")))
    right = agent("checksum", **{"SHA256:1/model.py": sha256(source("checked")).hexdigest()})
    name = model(agent("unpack", archive="a.tar") + right, {"a.tar": packed.getvalue()})
    await loaded(server, name)
    assert await says(server, name) == "checked"
    model(right + agent("unpack", archive="a.tar"), {})
    assert "failed to read file '1/model.py'" in await refused(server, name)


async def test_agents_of_an_uploaded_configuration_run_as_those_of_a_file(server, folder, model):
    name = model("", {"1/model.py": source("first")})
    log = folder / f"{name}.log"
    config = {
        "name": name,
        "backend": "python",
        "output": [{"name": "SAYS", "data_type": "TYPE_STRING", "dims": [1]}],
        "model_repository_agents": {
            "agents": [{"name": "scribe", "parameters": {"log": str(log), "as": "u"}}]
        },
    }
    files = {"file:1/model.py": base64.b64encode(source("uploaded")).decode()}
    answer = await load(server, name, config=json.dumps(config), **files)
    assert answer.status == 200, answer.body
    assert await says(server, name) == "uploaded"
    assert log_of(folder, name)[0] == ("u", "load")
