"""The identity to use for one URI, by the environment or a credential file.

Contract: repository.md section 9.

Nothing here reaches a network. What a credential file says replaces what the environment says. The file is
read anew when an attempt with it has failed (`stores`).
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from actors.values.errors import InvalidArgument, NotFound
from engine.models.problems import did_you_mean
from engine.settings.uris import CREDENTIAL_FILE, Scheme, without_query

_DEFAULT_REGION: Final = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Credentials:
    """An access key, or else the name of an AWS profile.

    Neither of them means AWS's own chain; "" is its default profile.
    """

    key_id: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    profile: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsCredentials:
    """A JSON file of a user or a service account.

    "" means the metadata server if there is one, else no identity.
    """

    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureCredentials:
    """An account's key, an identity, or none: `auth_type` is "key", "managed_identity", "default" or ""."""

    account: str = ""
    key: str = field(default="", repr=False)
    auth_type: str = ""
    client_id: str = ""


Credentials = S3Credentials | GcsCredentials | AzureCredentials

# The credential file's names for the fields.
_FIELDS: Final[Mapping[Scheme, Mapping[str, str]]] = {
    Scheme.S3: {
        "secret_key": "secret_key",
        "key_id": "key_id",
        "region": "region",
        "session_token": "session_token",
        "profile": "profile",
    },
    Scheme.AZURE: {
        "account_str": "account",
        "account_key": "key",
        "auth_type": "auth_type",
        "client_id": "client_id",
    },
}
_AUTH_TYPES: Final = ("", "key", "managed_identity", "default")


def find(uri: str, scheme: Scheme, environ: Mapping[str, str]) -> Credentials:
    """Return the identity to use for `uri`.

    Raises NotFound if a credential file is named and has nothing for it, and InvalidArgument if that file, or
    the environment, can't be understood.
    """
    path = environ.get(CREDENTIAL_FILE, "")
    return _from_file(Path(path), uri, scheme) if path else _from_environment(scheme, environ)


def prefix_of(uri: str, scheme: Scheme, environ: Mapping[str, str]) -> str:
    """Return the prefix of the credential file that is for `uri`; "" without such a file.

    Raises as `find`.
    """
    path = environ.get(CREDENTIAL_FILE, "")
    return _match(Path(path), uri, scheme)[0] if path else ""


def region_of(credentials: S3Credentials, environ: Mapping[str, str], profile_region: str = "") -> str:
    """Return the AWS region: the credential's own, the environment's, the profile's, or AWS's first."""
    return (
        credentials.region
        or environ.get("AWS_DEFAULT_REGION")
        or environ.get("AWS_REGION")
        or profile_region
        or _DEFAULT_REGION
    )


def _from_environment(scheme: Scheme, environ: Mapping[str, str]) -> Credentials:
    match scheme:
        case Scheme.S3:
            key, secret = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
            if key and secret:
                return S3Credentials(
                    key_id=key, secret_key=secret, session_token=environ.get("AWS_SESSION_TOKEN", "")
                )
            return S3Credentials(profile=environ.get("AWS_PROFILE", ""))
        case Scheme.GCS:
            return GcsCredentials(path=environ.get("GOOGLE_APPLICATION_CREDENTIALS", ""))
        case Scheme.AZURE:
            return _azure(
                AzureCredentials(
                    account=environ.get("AZURE_STORAGE_ACCOUNT", ""),
                    key=environ.get("AZURE_STORAGE_KEY", ""),
                    auth_type=environ.get("AZURE_STORAGE_AUTH_TYPE", ""),
                    client_id=environ.get("AZURE_STORAGE_CLIENT_ID", ""),
                ),
                "AZURE_STORAGE_AUTH_TYPE",
                "AZURE_STORAGE_KEY",
            )


def _from_file(path: Path, uri: str, scheme: Scheme) -> Credentials:
    prefix, entry = _match(path, uri, scheme)
    return _entry(entry, scheme, f"{path}: {scheme.value}: '{prefix}'")


def _match(path: Path, uri: str, scheme: Scheme) -> tuple[str, Any]:
    """Return the longest prefix of `uri` that the file knows, and what it says there."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(
            f"the file of {CREDENTIAL_FILE} can't be read: {path}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise InvalidArgument(f"the file of {CREDENTIAL_FILE} is not JSON: {path}: {error}") from error
    entries = whole.get(scheme.value, {}) if isinstance(whole, dict) else None
    if not isinstance(entries, dict):
        raise InvalidArgument(f"{path}: expected an object of storages, each an object by URI prefix")
    prefixes = [prefix for prefix in entries if uri.startswith(prefix)]
    if not prefixes:
        raise NotFound(f"Cannot match credential for path  {without_query(uri)}")
    prefix = max(prefixes, key=len)
    return prefix, entries[prefix]


def _entry(entry: Any, scheme: Scheme, where: str) -> Credentials:
    if scheme is Scheme.GCS:
        if not isinstance(entry, str):
            raise InvalidArgument(f"{where}: expected the path of a JSON file")
        return GcsCredentials(path=entry)
    known = _FIELDS[scheme]
    if not isinstance(entry, dict):
        raise InvalidArgument(f"{where}: expected an object with {', '.join(known)}")
    values: dict[str, str] = {}
    for name, value in entry.items():
        if name not in known:
            hint = did_you_mean(name, known)
            raise InvalidArgument(f"{where}: unknown key '{name}'{f' ({hint})' if hint else ''}")
        if not isinstance(value, str):
            raise InvalidArgument(f"{where}: '{name}' must be a string")
        values[known[name]] = value
    if scheme is Scheme.AZURE:
        return _azure(AzureCredentials(**values), f"{where}: auth_type", f"{where}: account_key")
    credentials = S3Credentials(**values)
    if bool(credentials.key_id) != bool(credentials.secret_key):
        raise InvalidArgument(f"{where}: key_id and secret_key go together")
    return credentials


def _azure(credentials: AzureCredentials, type_named: str, key_named: str) -> AzureCredentials:
    """Return the credentials with their type: a key without one is a shared key."""
    if credentials.auth_type not in _AUTH_TYPES:
        raise InvalidArgument(
            f"{type_named}: '{credentials.auth_type}' is none of 'key', 'managed_identity' and 'default'"
        )
    if credentials.auth_type == "key" and not credentials.key:
        raise InvalidArgument(f"{type_named} is 'key', but {key_named} is empty")
    if credentials.auth_type or not credentials.key:
        return credentials
    return AzureCredentials(
        account=credentials.account, key=credentials.key, auth_type="key", client_id=credentials.client_id
    )


# -- Google's metadata server: the identity of the machine a server runs on, if it has one
#
# The library beneath would ask too, but only when it is needed and with the patience of its retries. Whether
# there is such a server at all must be known before, because without one the storage is asked without an
# identity.

_HOST: Final = "metadata.google.internal"
_TOKEN: Final = "/computeMetadata/v1/instance/service-accounts/default/token"
_PATIENCE: Final = 1.0  # seconds: the server is on the same host or nowhere
_LARGEST_ANSWER: Final = 1 << 20  # bytes; a token has a few thousand
_SPARE: Final = timedelta(minutes=1)  # a token is renewed this long before it expires


class MetadataToken:
    """A provider of access tokens in the form that obstore asks for: call it for a token and its expiry."""

    def __init__(self, host: str) -> None:
        self._host = host

    @staticmethod
    def found(environ: Mapping[str, str]) -> MetadataToken | None:
        """Return a provider if this machine has an identity.

        Google's own libraries know the two variables: `NO_GCE_CHECK` and `GCE_METADATA_HOST`.
        """
        if environ.get("NO_GCE_CHECK", "").lower() in ("true", "1"):
            return None
        provider = MetadataToken(environ.get("GCE_METADATA_HOST") or _HOST)
        try:
            provider()
        except (OSError, http.client.HTTPException, ValueError):
            return None
        return provider

    def __call__(self) -> dict[str, Any]:
        """Return a token. Raises OSError, HTTPException or ValueError without one."""
        connection = http.client.HTTPConnection(self._host, timeout=_PATIENCE)
        try:
            connection.request("GET", _TOKEN, headers={"Metadata-Flavor": "Google"})
            response = connection.getresponse()
            body = response.read(_LARGEST_ANSWER)
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise ValueError(f"the metadata server answered {response.status}")
        answer = json.loads(body)
        if not isinstance(answer, dict) or "access_token" not in answer:
            raise ValueError("the metadata server's answer holds no token")
        lifetime = timedelta(seconds=float(answer.get("expires_in", 0)))
        return {
            "token": answer["access_token"],
            "expires_at": datetime.now(UTC) + max(lifetime - _SPARE, _SPARE),
        }
