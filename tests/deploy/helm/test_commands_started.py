"""Each command line of the chart, started as the image starts it, and asked as a kubelet asks it.

Folders of volumes become folders here, cloud storage a local repository, and ports free ones.
"""

import datetime
import http.client
import re
import signal
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.deploy.helm.charts import ROOT, SETS, container, golden, one
from tests.engine.repository.storage.emulators import MotoS3, moto_command, started
from tests.support.certificates import Authority
from tests.support.operators import LOOPBACK, clean_environ, serving, write_model

pytestmark = [pytest.mark.system, pytest.mark.slow]

AUTH = '[[rule]]\nfor = ["*"]\ndeny = ["*"]\n'
"""No client may do anything, and probes go on."""

LONG = datetime.timedelta(days=90)
STORAGE = {
    "credentials": "[default]\naws_access_key_id = id\naws_secret_access_key = key\n",
    "credentials.json": '{"as": {"as://account/models": {"account_str": "account", "account_key": "a2V5"}}}',
    "key.json": "{}",
}


class Pod:
    """What a pod has of the manifest: its volumes under a folder, its variables and its command line."""

    def __init__(self, name: str, folder: Path) -> None:
        self._container = container(golden(name))
        self._folder = folder
        models = folder / "models"
        models.mkdir()
        write_model(models)
        for mount in self._container["volumeMounts"]:
            self.at(mount["mountPath"]).mkdir(parents=True, exist_ok=True)
        self._fill(models)

    def at(self, path: str) -> Path:
        """Return where a path of the pod is here."""
        return self._folder / path.removeprefix("/")

    @property
    def flags(self) -> list[str]:
        """The flags of the server."""
        command, *flags = self._container["args"]
        assert command == "tritonserver"
        return [self._here(flag) for flag in flags if not flag.startswith("--openai-port=")] + [
            "--openai-port=0" for flag in flags if flag.startswith("--openai-port=")
        ]

    @property
    def environ(self) -> dict[str, str]:
        """The variables of the container."""
        return {
            each["name"]: self._here(each["value"]) if "value" in each else "demo-tritium-7f9c-x2x7q"
            for each in self._container["env"]
        }

    def probe(self, name: str, address: str) -> int:
        """Ask what a probe asks, at an address, and return the status. Certificates are not checked."""
        asked = self._container[f"{name}Probe"]["httpGet"]
        host, _, port = address.rpartition(":")
        seconds = self._container[f"{name}Probe"]["timeoutSeconds"] * 10
        connection: http.client.HTTPConnection
        if asked.get("scheme") == "HTTPS":
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = http.client.HTTPSConnection(host, int(port), timeout=seconds, context=context)
        else:
            connection = http.client.HTTPConnection(host, int(port), timeout=seconds)
        try:
            connection.request("GET", asked["path"], headers={"User-Agent": "kube-probe/1.37"})
            with connection.getresponse() as answer:
                answer.read()
                return answer.status
        finally:
            connection.close()

    def wait_ready(self, address: str, within: float = 30.0) -> bool:
        """Probe readiness until it is there, as a kubelet does."""
        deadline = time.monotonic() + within
        while self.probe("readiness", address) != 200:
            if time.monotonic() > deadline:
                return False
            threading.Event().wait(0.05)
        return True

    def _here(self, word: str) -> str:
        """Return a word with its paths and addresses as they are here."""
        word = re.sub(r"(?<==)(?:s3|gs|as)://.*", "/models", word)
        return re.sub(r"^(--[a-z-]+=)?(/(?:models|etc|var|tmp)\b)", rf"\1{self._folder}\2", word)

    def _fill(self, models: Path) -> None:
        storage = {**STORAGE, "repositories": f"# of Azure\n{models}\n"}
        self._mount("/etc/tritium/storage", storage)
        self._mount("/etc/tritium/auth", {"auth.toml": AUTH})
        signed = Authority(self._folder).sign("pod", lifetime=LONG)
        pair = {"tls.crt": signed.certificate.read_text(), "tls.key": signed.key.read_text()}
        self._mount("/etc/tritium/tls", pair)

    def _mount(self, path: str, files: Mapping[str, str]) -> None:
        """Fill a Secret's folder, if there is one, as Kubernetes does: with links to files of one moment."""
        folder = self.at(path)
        if folder.is_dir():
            (folder / "..2026").mkdir()
            (folder / "..data").symlink_to("..2026")
            for key, text in files.items():
                (folder / "..2026" / key).write_text(text)
                (folder / "..2026" / key).chmod(0o440)
                (folder / key).symlink_to(f"..data/{key}")


def controller(folder: Path, address: str) -> list[str]:
    """Return the command of the fleet's controller, which is told of one server in place of its discovery."""
    every = golden("fleet")
    wanted = yaml.safe_load(one(every, "ConfigMap", "-fleet")["data"]["fleet.yaml"])
    wanted["replicas"] = [{"url": f"http://{address}", "metrics": False}]
    del wanted["discovery"]
    (folder / "fleet.yaml").write_text(yaml.safe_dump(wanted))
    (fleet,) = one(every, "Deployment", "-fleet")["spec"]["template"]["spec"]["containers"]
    program, *words = fleet["args"]
    assert program == "tritium"
    here = [
        word.replace("/etc/tritium/fleet", str(folder)).replace("0.0.0.0:8005", "127.0.0.1:0")
        for word in words
    ]
    return [sys.executable, "-m", "engine", *here]


@pytest.mark.parametrize("name", [name for name in SETS if name != "fleet"])
def test_a_command_line_starts_answers_its_probes_and_ends_with_0(name, tmp_path):
    pod = Pod(name, tmp_path)
    environ = {**clean_environ(), **pod.environ}
    with serving(tmp_path / "run", *pod.flags, environ=environ) as server:
        address = server.address()
        assert (pod.probe("startup", address), pod.probe("liveness", address)) == (200, 200)
        server.wait_ready()
        assert pod.probe("readiness", address) == 200
        server.signal(signal.SIGTERM)
        if not any(flag == "--drain-delay-secs=0" for flag in pod.flags):
            server.wait_said("server_draining delay_seconds")
            assert (pod.probe("liveness", address), pod.probe("readiness", address)) == (200, 503)
            server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.said


def test_a_server_of_a_fleet_is_ready_once_the_controller_has_brought_its_models(tmp_path):
    pod = Pod("fleet", tmp_path)
    with serving(tmp_path / "run", *pod.flags, environ={**clean_environ(), **pod.environ}) as server:
        address = server.address()
        server.wait_ready()
        assert (pod.probe("liveness", address), pod.probe("readiness", address)) == (200, 400)
        command = controller(tmp_path, address)
        with serving(tmp_path / "controller", environ=clean_environ(), command=command) as fleet:
            fleet.wait_said("version 1 good on 1 replica")
            assert pod.wait_ready(address)
            fleet.signal(signal.SIGTERM)
            assert fleet.wait() == 0, fleet.said
        assert server.get("/v2/models/double/ready")[0] == 200
        server.signal(signal.SIGTERM)
        server.wait_said("server_draining delay_seconds")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.said


def test_a_server_reads_models_from_a_bucket_with_keys_of_a_secret(tmp_path):
    pod = Pod("s3", tmp_path)
    with started(moto_command(), clean_environ()) as port:
        bucket = MotoS3(port)
        bucket.make_bucket("models.example")
        for path in (tmp_path / "models").rglob("*.*"):
            key = path.relative_to(tmp_path / "models").as_posix()
            bucket.put("models.example", f"production/{key}", path.read_bytes())
        environ = {
            **clean_environ(**pod.environ),
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        # The address as the manifest has it; it is the cloud that is another.
        flags = [flag for flag in pod.flags if not flag.startswith("--model-repository=")]
        flags += [flag for flag in container(golden("s3"))["args"] if flag.startswith("--model-repository=")]
        with serving(tmp_path / "run", *flags, environ=environ) as server:
            server.wait_ready()
            assert pod.probe("readiness", server.address()) == 200
            assert server.get("/v2/models/double/ready")[0] == 200


def test_the_first_argument_is_a_program_of_the_image(tmp_path):
    pod = Pod("claim", tmp_path)
    program = ROOT / "deploy" / "bin" / "tritonserver"
    command = [str(program), *LOOPBACK, *pod.flags]
    with serving(tmp_path / "run", environ={**clean_environ(), **pod.environ}, command=command) as server:
        server.wait_ready()
        server.signal(signal.SIGTERM)
        server.wait_said("server_draining delay_seconds")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.said
