"""The hardening checklist of docs/security.md, tried: what it lets in, and what each line of it refuses."""

import base64
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import sys
from contextlib import closing
from pathlib import Path

import pytest

from engine.identity.keys import digest_of, new_secret
from tests.support.certificates import Authority
from tests.support.interpreters import shared_interpreter, with_these_packages
from tests.support.operators import ROOT, clean_environ, serving
from tests.support.signing import new_key, sign_model
from tests.survival.repository import Repository

pytestmark = [pytest.mark.slow, pytest.mark.system]

PAGE = (ROOT / "docs" / "security.md").read_text()
SECRETS = {name: new_secret() for name in ("ci", "ops")}
PORTS = ("--management-http-port=0", "--management-grpc-port=0")
INFERENCE = {
    "inputs": [{"name": name, "shape": [1, 16], "datatype": "FP32", "data": [1] * 16} for name in ("A", "B")]
}
LOAD = "/v2/repository/models/add_sub/load"
USER = 65534


def block(opening):
    """The fenced block of the page that begins so."""
    found = re.search(rf"```\w*\n({re.escape(opening)}.*?)```", PAGE, re.DOTALL)
    assert found is not None, "the page has no such block"
    return found[1]


def as_another_user():
    """The words in front of a command that run it as another user, where root runs the tests."""
    program = shutil.which("setpriv")
    if os.geteuid() != 0 or program is None:
        return ()
    return (program, f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs")


def owned(folder):
    """Give everything in `folder` to the user that the server runs as, and let it be reached."""
    if as_another_user():
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER)
        for path in folder.parents:
            if path.owner() == "root" and str(path).startswith("/tmp/"):
                path.chmod(path.stat().st_mode | 0o011)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the page's paths stand for: a repository, certificates, an auth file, keys that are trusted."""
    folder = tmp_path_factory.mktemp("hardened")
    repository = Repository(folder / "models")
    repository.onnx_add_sub("add_sub")
    repository.onnx_add_sub("unsigned")
    repository.python_add_sub("code")
    key = new_key()
    sign_model(repository.path / "add_sub", key)
    sign_model(repository.path / "code", key)
    (folder / "release.key.pub").write_text(f"{key.public.text}\n")
    Authority(folder).sign("server")
    keys = "".join(
        f'[[key]]\nid = "{name}"\ndigest = "{digest_of(secret)}"\n' for name, secret in SECRETS.items()
    )
    auth = folder / "auth.toml"
    auth.write_text(keys + block("# /etc/tritium/auth.toml").replace("_second = 50", "_second = 10"))
    auth.chmod(0o600)
    (folder / "cache").mkdir()
    (folder / "server").mkdir()
    owned(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    flags = block("--model-repository").replace("/srv/models", str(folder / "models"))
    flags = flags.replace("/etc/tritium", str(folder)).replace("/var/cache/tritium", str(folder / "cache"))
    prefix, python, environ = as_another_user(), sys.executable, clean_environ()
    if prefix:
        python, environ = shared_interpreter(), with_these_packages(environ)
    environ["HOME"] = str(folder)
    given = {"prefix": prefix, "python": python, "environ": environ}
    with serving(folder / "server", *flags.split(), *PORTS, **given) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def ask(server, folder):
    def ask(method, path, document=None, *, key="", service="HTTPService", **headers):
        body = None if document is None else json.dumps(document)
        if key:
            headers["authorization"] = f"Bearer {key}.{SECRETS[key]}"
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        context = ssl.create_default_context(cafile=folder / "authority.pem")
        context.check_hostname = False
        address = server.address(service)
        with closing(http.client.HTTPSConnection(address, timeout=60, context=context)) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    return ask


MANAGEMENT = {"service": "HTTPManagementService"}


def with_parameters(**parameters):
    return {"parameters": {"config": "{}", **parameters}}


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        (("GET", "/v2/health/live"), 200, ""),
        (("GET", "/metrics", None, {"service": "Metrics Service"}), 200, "nv_inference_count"),
        (("POST", "/v2/models/add_sub/infer", INFERENCE), 401, "takes credentials"),
        (("POST", "/v2/models/add_sub/infer", INFERENCE, {"key": "ci"}), 200, "SUM"),
        (("GET", "/v2/models/unsigned", None, {"key": "ci"}), 403, "no rule of the server allows it"),
        (("POST", LOAD, {}, {"key": "ops"}), 403, "management is served elsewhere"),
        (("POST", LOAD, {}, {"key": "ci", **MANAGEMENT}), 403, "no rule of the server allows it"),
        (("POST", LOAD, {}, {"key": "ops", **MANAGEMENT}), 200, ""),
        (
            ("POST", LOAD.replace("add_sub", "unsigned"), {}, {"key": "ops", **MANAGEMENT}),
            500,
            "refused by --require-signed: it is not signed",
        ),
        (
            ("POST", LOAD.replace("add_sub", "code"), {}, {"key": "ops", **MANAGEMENT}),
            400,
            "--no-code-models",
        ),
        (("POST", LOAD, with_parameters(), {"key": "ops", **MANAGEMENT}), 400, "no signature covers"),
        (
            (
                "POST",
                LOAD,
                with_parameters(**{"file:1/model.py": base64.b64encode(b"print(1)").decode()}),
                {"key": "ops", **MANAGEMENT},
            ),
            403,
            "may not use 'upload'",
        ),
        (
            ("POST", LOAD, {}, {"key": "ops", "origin": "https://evil.example", **MANAGEMENT}),
            403,
            "a web page of another site sent this",
        ),
        (
            (
                "POST",
                LOAD,
                {},
                {"key": "ops", "sec_fetch_site": "same-origin", "host": "evil.example", **MANAGEMENT},
            ),
            403,
            "--trusted-hosts must name it",
        ),
    ],
)
def test_the_checklist_lets_in_and_refuses_as_its_table_says(ask, asked, status, told):
    method, path, document, options = (*asked, None, None)[:4]
    got, text = ask(method, path, document, **(options or {}))
    assert (got, told in text) == (status, True), text


def test_a_request_in_the_clear_is_told_so(server):
    with closing(http.client.HTTPConnection(server.address(), timeout=60)) as connection:
        connection.request("GET", "/v2/health/ready")
        answer = connection.getresponse()
        assert (answer.status, b"this port speaks TLS" in answer.read()) == (400, True)


def test_more_than_its_share_is_refused_to_an_identity_and_health_goes_on(ask):
    assert any(ask("GET", "/v2/models/add_sub", key="ci")[0] == 429 for _ in range(100))
    assert ask("GET", "/v2/health/live")[0] == 200


def test_workers_have_no_privileges_and_the_start_says_what_is_open(server):
    assert re.search(
        r"credentials: auth file; uploads: off; sandbox: strict; TLS: HTTP, gRPC and metrics", server.said
    )
    statuses = [
        status
        for each in Path("/proc").glob("[0-9]*/status")
        if f"PPid:\t{server.process.pid}\n" in (status := _read(each))
    ]
    workers = [status for status in statuses if "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status]
    assert workers
    assert all("CapEff:\t0000000000000000" in status for status in workers)


def _read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


def test_a_slip_in_the_auth_file_leaves_the_rules_in_force(server, folder, ask):
    auth = folder / "auth.toml"
    good = auth.read_text()
    auth.write_text(good + "\nnonsense = [")
    server.signal(signal.SIGHUP)
    server.wait_said("reload_failed what=auth-file")
    assert ask("POST", LOAD, {}, key="ops", **MANAGEMENT)[0] == 200
    assert ask("POST", LOAD, {}, key="ci", **MANAGEMENT)[0] in {403, 429}
    auth.write_text(good)


def test_no_secret_of_the_server_was_said(server):
    assert not any(secret in server.said for secret in SECRETS.values())
