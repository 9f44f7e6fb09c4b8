"""The addresses of remote repositories, in every form of the contract (repository.md section 9)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from actors.values.errors import Internal

CREDENTIAL_FILE: Final = "TRITON_CLOUD_CREDENTIAL_PATH"
"""The environment variable that names a file of credentials for these addresses."""


class Scheme(Enum):
    """A kind of object storage; the value is how its URIs begin."""

    S3 = "s3"
    GCS = "gs"
    AZURE = "as"


_PREFIXES: Final = tuple(f"{scheme.value}://" for scheme in Scheme)
# A host is told from a bucket by its port, or by the `http://` or `https://` before it.
_S3_HOST: Final = re.compile(
    r"(?:(?P<scheme>https?)://(?P<named>\[[0-9a-fA-F:.]+\]|[^/:\[\]]+)(?P<port>:[0-9]+)?"
    r"|(?P<bare>\[[0-9a-fA-F:.]+\]|[^/:\[\]]+)(?P<bare_port>:[0-9]+))(?=/|$)"
)
_AZURE_HOST: Final = re.compile(r"(?P<account>[A-Za-z0-9_-]+)(?:\.z[0-9]+)?\.blob(?:\.[A-Za-z0-9-]+)+")
_AZURE_DEFAULT: Final = ".blob.core.windows.net"
_AZURE_ACCOUNT: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a remote repository is.

    `bucket` is Azure's container. `prefix` is the repository's path in it, without slashes at its ends, ""
    for all of it. `endpoint` is empty if the storage's own is meant; `account` and `query` are Azure's.
    """

    scheme: Scheme
    bucket: str
    prefix: str = ""
    endpoint: str = ""
    account: str = ""
    query: str = ""

    def key(self, name: str) -> str:
        """Return the key of `name` in this repository."""
        return f"{self.prefix}/{name}" if self.prefix else name


def is_remote(uri: str) -> bool:
    """Return whether `uri` names a repository in an object storage, rather than a directory."""
    return uri.startswith(_PREFIXES)


def parse(uri: str) -> Location:
    """Return what a remote repository's URI says.

    Raises Internal with the contract's text if it says too little.
    """
    scheme, _, rest = uri.partition("://")
    match Scheme(scheme):
        case Scheme.S3:
            return _s3(uri, rest)
        case Scheme.GCS:
            bucket, prefix = _split(rest)
            if not bucket:
                raise Internal(f"No bucket name found in path: {uri}")
            return Location(scheme=Scheme.GCS, bucket=bucket, prefix=prefix)
        case Scheme.AZURE:
            return _azure(uri, rest)


def without_query(uri: str) -> str:
    """Return `uri` as it may be shown: a query may hold a signature."""
    return uri.partition("?")[0] if uri.startswith(f"{Scheme.AZURE.value}://") else uri


def _s3(uri: str, rest: str) -> Location:
    endpoint = ""
    rest = rest.lstrip("/")
    host = _S3_HOST.match(rest)
    if host is not None:
        name, port = (host["named"], host["port"]) if host["scheme"] else (host["bare"], host["bare_port"])
        endpoint = f"{host['scheme'] or 'http'}://{name}{port or ''}"
        rest = rest[host.end() :]
    bucket, prefix = _split(rest)
    if not bucket or ":" in bucket:
        raise Internal(f"No bucket name found in path: {uri}")
    return Location(scheme=Scheme.S3, bucket=bucket, prefix=prefix, endpoint=endpoint)


def _azure(uri: str, rest: str) -> Location:
    path, _, query = rest.partition("?")
    host, _, inside = path.lstrip("/").partition("/")
    container, prefix = _split(inside)
    named = _AZURE_HOST.fullmatch(host)
    if not container or (named is None and _AZURE_ACCOUNT.fullmatch(host) is None):
        raise Internal(f"Invalid azure storage path: {without_query(uri)}")
    return Location(
        scheme=Scheme.AZURE,
        bucket=container,
        prefix=prefix,
        endpoint="" if named is None or host.endswith(_AZURE_DEFAULT) else f"https://{host}",
        account=host if named is None else named["account"],
        query=query,
    )


def _split(path: str) -> tuple[str, str]:
    """Return the first component and the rest of them, extra slashes collapsed."""
    parts = [part for part in path.split("/") if part]
    return (parts[0], "/".join(parts[1:])) if parts else ("", "")
