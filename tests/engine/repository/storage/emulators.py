"""Object storages on loopback: child processes on ephemeral ports, ended by their ids."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import boto3
import httpx
import obstore
from botocore.config import Config
from obstore.store import AzureStore

ACCOUNT = "devstoreaccount1"
# The account and the key of every Azure emulator; they open nothing else.
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_LISTENING = re.compile(r"http://127\.0\.0\.1:(\d+)")
_STARTING = 30.0


class Emulator(Protocol):
    """One storage from outside: what an operator would write, and what a writer does."""

    kind: str
    port: int

    def uri(self, bucket: str, prefix: str = "", port: int | None = None) -> str: ...

    def environ(self, port: int | None = None) -> dict[str, str]: ...

    def make_bucket(self, bucket: str) -> None: ...

    def put(self, bucket: str, key: str, content: bytes) -> None: ...

    def delete(self, bucket: str, key: str) -> None: ...


@contextmanager
def started(command: list[str], environ: Mapping[str, str]) -> Iterator[int]:
    """Run an emulator that says where it listens; yield its port; end it."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(environ),
    )
    assert process.stdout is not None
    watchdog = threading.Timer(_STARTING, process.kill)
    watchdog.start()
    said: list[str] = []
    try:
        for line in process.stdout:
            said.append(line)
            found = _LISTENING.search(line)
            if found is not None:
                break
        else:
            raise RuntimeError(f"{command[0]} ended before it listened: {''.join(said)}")
        watchdog.cancel()
        drain = threading.Thread(target=process.stdout.read)
        drain.start()
        try:
            yield int(found[1])
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            drain.join()
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


@dataclass
class MotoS3:
    """Amazon's storage."""

    port: int
    kind: str = "s3"

    def uri(self, bucket: str, prefix: str = "", port: int | None = None) -> str:
        return f"s3://127.0.0.1:{port or self.port}/{bucket}/{prefix}"

    def environ(self, port: int | None = None) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}

    def make_bucket(self, bucket: str) -> None:
        self.client.create_bucket(Bucket=bucket)

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=bucket, Key=key, Body=content)

    def delete(self, bucket: str, key: str) -> None:
        self.client.delete_object(Bucket=bucket, Key=key)

    @cached_property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id="me",
            aws_secret_access_key="secret",
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, proxies={}),
        )


@dataclass
class MotoGcs(MotoS3):
    """Google's storage: to a client without credentials, its listings and objects look like Amazon's."""

    kind: str = "gs"

    def uri(self, bucket: str, prefix: str = "", port: int | None = None) -> str:
        return f"gs://{bucket}/{prefix}"

    def environ(self, port: int | None = None) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": f"127.0.0.1:{port or self.port}"}

    def make_bucket(self, bucket: str) -> None:
        self.client.create_bucket(Bucket=bucket, ACL="public-read")

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=bucket, Key=key, Body=content, ACL="public-read")


@dataclass
class Azurite:
    """Microsoft's storage."""

    port: int
    kind: str = "as"
    _stores: dict[str, AzureStore] = field(default_factory=dict)

    def uri(self, bucket: str, prefix: str = "", port: int | None = None) -> str:
        return f"as://{ACCOUNT}/{bucket}/{prefix}"

    def environ(self, port: int | None = None) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT": ACCOUNT,
            "AZURE_STORAGE_KEY": ACCOUNT_KEY,
            "AZURE_STORAGE_SERVICE_ENDPOINT": f"http://127.0.0.1:{port or self.port}/{ACCOUNT}",
        }

    def make_bucket(self, bucket: str, access: str = "") -> None:
        """Make a container; `access` "container" lets every client read it."""
        headers = {
            "x-ms-date": datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"),
            "x-ms-version": "2021-08-06",
            **({"x-ms-blob-public-access": access} if access else {}),
        }
        canonical = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        signed = f"PUT{chr(10) * 12}{canonical}/{ACCOUNT}/{ACCOUNT}/{bucket}\nrestype:container"
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{_signature(signed)}"
        with httpx.Client(trust_env=False) as client:
            url = f"http://127.0.0.1:{self.port}/{ACCOUNT}/{bucket}?restype=container"
            client.put(url, headers=headers).raise_for_status()

    def put(self, bucket: str, key: str, content: bytes) -> None:
        obstore.put(self._store(bucket), key, content)

    def delete(self, bucket: str, key: str) -> None:
        obstore.delete(self._store(bucket), key)

    def shared_access(self, bucket: str) -> str:
        """Return the query of a URI that lets its bearer list and read a container for an hour."""
        expiry = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        version = "2020-12-06"
        signed = "\n".join(
            ("rl", "", expiry, f"/blob/{ACCOUNT}/{bucket}", "", "", "", version, "c", *[""] * 7)
        )
        return f"sp=rl&se={quote(expiry, safe='')}&sv={version}&sr=c&sig={quote(_signature(signed), safe='')}"

    def _store(self, bucket: str) -> AzureStore:
        if bucket not in self._stores:
            self._stores[bucket] = AzureStore(
                container_name=bucket,
                config={
                    "account_name": ACCOUNT,
                    "account_key": ACCOUNT_KEY,
                    "endpoint": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
                },
                client_options={"allow_http": True},
            )
        return self._stores[bucket]


def moto_command() -> list[str]:
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]


def azurite_command() -> list[str] | None:
    """Return the command of Azurite, from `AZURITE` (the path of `azurite-blob`) or PATH; None without it."""
    program = os.environ.get("AZURITE") or shutil.which("azurite-blob")
    if not program or not Path(program).exists():
        return None
    return [
        program,
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        "0",
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--silent",
    ]


def _signature(text: str) -> str:
    key = base64.b64decode(ACCOUNT_KEY)
    return base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
