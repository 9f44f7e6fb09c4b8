"""Every secret that a server is given, looked for in everything that it shows."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.operators import ROOT, clean_environ, serving, write_model
from tests.support.redis_double import RedisDouble

pytestmark = [pytest.mark.system, pytest.mark.slow]

MARK = "marker-of-a-secret"
SECRETS = {
    name: f"{MARK}-{name}"
    for name in ("redis", "http", "grpc", "backend", "signature", "aws-key", "aws-session", "other-backend")
}
CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
response_cache { enable: true }
"""
PATHS = (
    "/v2",
    "/v2/health/ready",
    "/v2/models/double",
    "/v2/models/double/config",
    "/v2/models/double/stats",
    "/v2/models/stats",
    "/v2/models/nowhere/config",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/tritium/tree",
    "/v2/tritium/events?follow=false",
    "/v2/tritium/models/double/traffic",
    "/v2/repository/index",
)


def files(folder: Path, redis: RedisDouble) -> dict[str, Path]:
    """Write a file for each flag that takes one."""
    words = {
        "http-restricted-api": f"statistics,trace:x-key={SECRETS['http']}",
        "grpc-restricted-protocol": f"statistics:key={SECRETS['grpc']}",
        "backend-config": f"python,plain={SECRETS['backend']}\nonnxruntime,token={SECRETS['other-backend']}",
        "cache-config": f"redis,host=127.0.0.1\nredis,port={redis.port}\nredis,user=u\n"
        f"redis,password={SECRETS['redis']}",
        "model-repository": f"as://account.blob.storage.invalid/container?sig={SECRETS['signature']}\n"
        "s3://http://127.0.0.1:9/bucket\n",
    }
    found = {}
    for name, text in words.items():
        found[name] = folder / name
        found[name].write_text(f"# {name}\n{text}\n")
    return found


def everything(server, header: Path) -> dict[str, str]:
    """Return what clients, operators and models can see of a server, by where it is seen."""
    seen = {"out": server.out, "err": server.err}
    for path in PATHS:
        status, headers, body = server.get(path)
        seen[f"GET {path}"] = f"{status} {headers} {body!r}"
    with grpc.insecure_channel(server.address("GRPCInferenceService")) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for ask, request in (
            (stub.ModelStatistics, service_pb2.ModelStatisticsRequest(name="double")),
            (stub.ModelConfig, service_pb2.ModelConfigRequest(name="double")),
            (stub.RepositoryIndex, service_pb2.RepositoryIndexRequest()),
            (stub.RepositoryModelLoad, service_pb2.RepositoryModelLoadRequest(model_name="nowhere")),
        ):
            try:
                seen[f"gRPC {type(request).__name__}"] = str(ask(request, timeout=60))
            except grpc.RpcError as error:
                seen[f"gRPC {type(request).__name__}"] = str(error)
    for command in (["tree", "--json"], ["traffic", "double"]):
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "engine",
                *command,
                f"--url={server.address()}",
                f"--header-file={header}",
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        seen[f"tritium {command[0]}"] = ended.stdout + ended.stderr
    seen["metrics"] = str(server.get("/metrics", service="Metrics Service"))
    for process in [
        psutil.Process(server.process.pid),
        *psutil.Process(server.process.pid).children(recursive=True),
    ]:
        with contextlib.suppress(psutil.NoSuchProcess):
            seen[f"command line of {process.pid}"] = " ".join(process.cmdline())
            if process.pid != server.process.pid:
                seen[f"environment of {process.pid}"] = str(process.environ())
    return seen


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(("--log-format=json",), marks=pytest.mark.long),
        ("--log-format=default", "--log-verbose=2"),
    ],
)
def test_no_secret_is_shown_anywhere(tmp_path, log):
    write_model(tmp_path / "models", config=CONFIG)
    redis = RedisDouble(credentials=("u", SECRETS["redis"]))
    redis.start()
    paths = files(tmp_path, redis)
    header = tmp_path / "header"
    header.write_text(f"x-key: {SECRETS['http']}\n")
    environ = clean_environ(
        AWS_ACCESS_KEY_ID="id",
        AWS_SECRET_ACCESS_KEY=SECRETS["aws-key"],
        AWS_SESSION_TOKEN=SECRETS["aws-session"],
    )
    reading, writing = os.pipe()
    # One of them comes through a descriptor, as a shell gives it.
    flags = [f"--{name}-file={path}" for name, path in paths.items() if name != "cache-config"]
    flags += [
        f"--cache-config-file=/dev/fd/{reading}",
        "--model-control-mode=explicit",
        "--load-model=double",
    ]
    with open(writing, "wb") as given:
        given.write(paths["cache-config"].read_bytes())
    try:
        with serving(
            tmp_path / "server",
            *flags,
            f"--model-repository={tmp_path / 'models'}",
            "--exit-on-error=false",
            "--log-requests=true",
            *log,
            environ=environ,
            pass_fds=(reading,),
        ) as server:
            os.close(reading)
            server.wait_ready()
            infer(server)
            seen = everything(server, header)
            server.signal()
            server.wait()
            seen |= {"last out": server.out, "last err": server.err}
    finally:
        redis.stop()
    shown = {where: secret for where, text in seen.items() for secret in SECRETS.values() if secret in text}
    assert shown == {}
    assert b"AUTH" in redis.commands  # the password was read, and used
    assert "403" in seen["GET /v2/models/stats"]  # and the header that opens this
    assert "double" in seen["tritium tree"]
    assert len([where for where in seen if where.startswith("environment of")]) >= 1
    assert "holds a secret" not in seen["out"] + seen["err"]


def infer(server) -> None:
    """Have one request executed, logged and kept."""
    import json
    import urllib.request

    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    request = urllib.request.Request(
        f"http://{server.address()}/v2/models/double/infer", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def test_a_secret_in_argv_earns_a_warning_in_the_log_that_does_not_repeat_it(tmp_path):
    write_model(tmp_path / "models")
    flags = (
        f"--http-restricted-api=trace:x-key={SECRETS['http']}",
        f"--backend-config=python,api_key={SECRETS['backend']}",
    )
    with serving(tmp_path / "server", f"--model-repository={tmp_path / 'models'}", *flags) as server:
        server.wait_ready()
        said = server.said
    assert said.count("holds a secret on the command line") == 2
    assert "--http-restricted-api holds a secret" in said
    assert MARK not in said
