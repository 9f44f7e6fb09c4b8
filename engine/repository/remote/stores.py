"""Asking an object storage: obstore behind a narrow seam, its errors told in our words.

obstore is imported here and nowhere else, and only when the first remote repository is opened. Its calls
block without holding the interpreter's lock. They can't be interrupted, so everything is asked for in pieces,
under time limits.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from actors.values.errors import Internal, TritiumError
from engine.repository.remote import credentials as whom
from engine.repository.remote.credentials import (
    AzureCredentials,
    Credentials,
    GcsCredentials,
    MetadataToken,
    S3Credentials,
)
from engine.repository.remote.objects import RemoteObject
from engine.repository.source import FetchFailed, SourceUnavailable
from engine.settings.extras import how_to_install
from engine.settings.uris import CREDENTIAL_FILE, Location, Scheme, without_query

# Bytes handed on at a time. For each connection, an interruption may cost as much.
_CHUNK: Final = 1 << 20
_PAGE: Final = 1000  # objects taken over from the library at a time

# Refusals come as several classes of the library's errors; those of a listing as its general one.
_REFUSED: Final = re.compile(
    r"status code: 40[13]\b|credential error|token request|Invalid Access Key"
    r"|<Code>(?:ExpiredToken|InvalidToken|AuthorizationHeaderMalformed)</Code>"
)
_REASON: Final = re.compile(r"<Code>([^<]+)</Code>\s*<Message>([^<]{1,200})")
_SIGNATURE: Final = re.compile(r"\bsig=[^&\s\"']*")

# Contract, repository.md section 9. Google's and Azure's texts say no more; ours add the reason after the
# sentence.
_CLIENT_FAILED: Final[Mapping[Scheme, str]] = {
    Scheme.S3: "Unable to create S3 filesystem client. Check account credentials. Exception: '{kind}' Message: '{text}'",
    Scheme.GCS: "Unable to create GCS client. Check account credentials. ({text})",
    Scheme.AZURE: "Unable to create Azure filesystem client. Check account credentials. ({text})",
}

_T = TypeVar("_T")


class ObjectChanged(Exception):
    """The object is no longer the one that was listed."""


class UnsafeListing(FetchFailed):
    """A listing holds a key that is no path at all, such as one with an empty component or `..`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long one request may take, in seconds, and how often it is tried again.

    A request transfers at most one segment of a download (8 MiB), so that `request` asks for 70 kB/s.
    `silence` notices a connection that died.
    """

    connect: float = 5.0
    silence: float = 20.0
    request: float = 120.0
    retries: int = 3
    retrying: float = 30.0


PATIENCE: Final = Patience()


class Bucket(Protocol):
    """What is asked of an object storage.

    Keys are whole; every method may be called from several threads at once.

    All raise SourceUnavailable if the storage can't be asked.
    """

    @property
    def storage(self) -> str:
        """What tells this bucket from every other, wherever it is."""

    def directories(self, prefix: str) -> list[str]:
        """Return the names directly under `prefix` that have objects below them. Raises UnsafeListing."""

    def objects(self, prefix: str) -> list[RemoteObject]:
        """Return every object at and below `prefix`. Raises UnsafeListing."""

    def exists(self, key: str) -> bool:
        """Return whether there is an object of exactly this name."""

    def read(self, entry: RemoteObject, start: int, stop: int) -> Iterator[bytes]:
        """Yield exactly bytes `start` to `stop` of the very object that was listed. Raises ObjectChanged."""


class CloudBucket:
    """A bucket, or Azure's container, for one URI. Implements `Bucket`.

    The client is made when it is first needed, and again whenever an attempt fails that other credentials may
    repair.
    """

    def __init__(
        self, uri: str, location: Location, environ: Mapping[str, str], patience: Patience = PATIENCE
    ) -> None:
        self._uri = uri
        self._shown = without_query(uri)
        self._location = location
        self._environ = dict(environ)
        self._patience = patience
        self._library = _obstore(location.scheme)
        self._errors = importlib.import_module("obstore.exceptions")
        self._lock = threading.Lock()
        self._made: tuple[int, Any] = (0, None)  # generation, client
        # A mistake in the settings is told before the first request.
        whom.find(uri, location.scheme, self._environ)

    @property
    def storage(self) -> str:
        """What tells this bucket from every other, wherever it is."""
        at = self._location
        endpoint = _endpoint(at, self._environ)
        return f"{at.scheme.value}://{at.account}@{endpoint}/{at.bucket}"

    def directories(self, prefix: str) -> list[str]:
        """Return the names directly under `prefix` that have objects below them."""
        found = self._list(lambda client: self._library.list_with_delimiter(client, prefix or None))
        return [path.rpartition("/")[2] for path in found["common_prefixes"]]

    def objects(self, prefix: str) -> list[RemoteObject]:
        """Return every object at and below `prefix`."""

        def listing(client: Any) -> list[RemoteObject]:
            pages = self._library.list(client, prefix or None, chunk_size=_PAGE)
            return [_described(meta) for page in pages for meta in page]

        return self._list(listing)

    def exists(self, key: str) -> bool:
        """Return whether there is an object of exactly this name."""
        try:
            self._attempt(lambda client: self._library.head(client, key))
        except ObjectChanged:
            return False
        return True

    def read(self, entry: RemoteObject, start: int, stop: int) -> Iterator[bytes]:
        """Yield exactly bytes `start` to `stop` of the very object that was listed."""
        options: dict[str, Any] = {"range": (start, stop)}
        if entry.etag and not entry.etag.startswith("W/"):  # a weak tag never matches
            options["if_match"] = f'"{entry.etag}"'
        answer = self._attempt(lambda client: self._library.get(client, entry.key, options=options))
        found = _described(answer.meta)
        if found.size != entry.size or found.etag != entry.etag or tuple(answer.range) != (start, stop):
            raise ObjectChanged(entry.key)
        at = start
        chunks = iter(answer.stream(min_chunk_size=_CHUNK))
        while at < stop:
            with self._told():
                chunk = next(chunks, b"")
            at += len(chunk)
            if not chunk or at > stop:
                raise SourceUnavailable(f"{self._shown}: '{entry.key}' ended at the wrong place")
            yield chunk

    def _list(self, operation: Callable[[Any], _T]) -> _T:
        try:
            return self._attempt(operation)
        except ObjectChanged as error:  # of a listing it is the bucket that isn't there
            raise SourceUnavailable(f"{self._shown}: {error}") from error

    def _attempt(self, operation: Callable[[Any], _T]) -> _T:
        """Run `operation`; after a failure that other credentials may mend, once more with a new client."""
        generation, client = self._client(None)
        try:
            with self._told():
                return operation(client)
        except _ClientFailed:
            pass
        except SourceUnavailable:
            if not self._environ.get(CREDENTIAL_FILE):
                raise
        _, client = self._client(generation)
        with self._told():
            return operation(client)

    def _client(self, failed: int | None) -> tuple[int, Any]:
        """Return the client and its number; a new one if the one numbered `failed` is still the newest."""
        with self._lock:
            generation, client = self._made
            if client is None or generation == failed:
                with self._told_of_client():
                    client = self._make()
                self._made = (generation + 1, client)
            return self._made

    def _make(self) -> Any:
        at = self._location
        identity = whom.find(self._uri, at.scheme, self._environ)
        endpoint = _endpoint(at, self._environ)
        client_options = {
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=self._patience.connect),
            "read_timeout": timedelta(seconds=self._patience.silence),
            "timeout": timedelta(seconds=self._patience.request),
            "user_agent": "tritium",
        }
        retry_config = {
            "max_retries": self._patience.retries,
            "retry_timeout": timedelta(seconds=self._patience.retrying),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=2),
                "base": 2,
            },
        }
        common: dict[str, Any] = {"client_options": client_options, "retry_config": retry_config}
        return _client_of(at, endpoint, identity, self._environ, common)

    @contextmanager
    def _told_of_client(self) -> Iterator[None]:
        """Map what keeps a client from being made to our errors."""
        try:
            yield
        except (self._errors.BaseError, ValueError, OSError) as error:
            raise self._refused(error) from error
        except TritiumError as error:  # the credential file, which has changed since it was first read
            raise SourceUnavailable(f"{self._shown}: {error}") from error

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Map the library's errors, and those of the identity's provider, to ours."""
        errors = self._errors
        try:
            yield
        except (FileNotFoundError, errors.PreconditionError, errors.NotModifiedError) as error:
            raise ObjectChanged(_text(error)) from error
        except errors.InvalidPathError as error:
            raise UnsafeListing(
                f"{self._shown}: an object's name can't be the path of a file, rename or delete it: {_text(error)}"
            ) from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise self._refused(error) from error
        except errors.BaseError as error:
            if _REFUSED.search(str(error)):
                raise self._refused(error) from error
            raise SourceUnavailable(f"{self._shown}: {_text(error)}") from error

    def _refused(self, error: Exception) -> SourceUnavailable:
        text = _CLIENT_FAILED[self._location.scheme]
        return _ClientFailed(f"{self._shown}: {text.format(kind=type(error).__name__, text=_text(error))}")


class _ClientFailed(SourceUnavailable):
    """The credentials are refused, or there are none."""


def _obstore(scheme: Scheme) -> Any:
    try:
        return importlib.import_module("obstore")
    except ImportError as error:
        raise Internal(
            f"{scheme.value}:// file-system not supported. To enable, {how_to_install('cloud')}."
        ) from error


def _endpoint(at: Location, environ: Mapping[str, str]) -> str:
    """Return where the storage is asked; "" for S3 if the region decides.

    The variables are the ones that each storage's own tools know: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`,
    `STORAGE_EMULATOR_HOST`, and the Azure command line's `AZURE_STORAGE_SERVICE_ENDPOINT`.
    """
    if at.endpoint:
        return at.endpoint
    match at.scheme:
        case Scheme.S3:
            return (environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or "").rstrip("/")
        case Scheme.GCS:
            emulator = environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
            if not emulator:
                return "https://storage.googleapis.com"
            return emulator if "://" in emulator else f"http://{emulator}"
        case Scheme.AZURE:
            chosen = environ.get("AZURE_STORAGE_SERVICE_ENDPOINT", "").rstrip("/")
            return chosen or f"https://{at.account}.blob.core.windows.net"


def _client_of(
    at: Location,
    endpoint: str,
    identity: Credentials,
    environ: Mapping[str, str],
    common: dict[str, Any],
) -> Any:
    """Return obstore's client.

    Everything that decides on the identity and the storage is given in full. Otherwise the library would fill
    gaps from variables of its own, which may mean another account, and would try the cloud's metadata address
    in the end.
    """
    stores = importlib.import_module("obstore.store")
    match identity:
        case S3Credentials():
            provider, profile_region = _s3_provider(identity, environ)
            region = whom.region_of(identity, environ, profile_region)
            china = ".cn" if region.startswith("cn-") else ""
            url = endpoint or f"https://s3.{region}.amazonaws.com{china}"
            config: dict[str, Any] = {
                "endpoint": url,
                "aws_endpoint_url_s3": url,
                "region": region,
                "virtual_hosted_style_request": False,
                "skip_signature": provider is None,
            }
            return stores.S3Store(at.bucket, config=config, credential_provider=provider, **common)
        case GcsCredentials(path=path):
            config = {"base_url": endpoint, "skip_signature": False}
            token: MetadataToken | None = None
            if environ.get("STORAGE_EMULATOR_HOST"):
                # An emulator knows no identities.
                config["skip_signature"] = True
            elif path:
                config["application_credentials"] = path
            else:
                token = MetadataToken.found(environ)
                config["skip_signature"] = token is None
            return stores.GCSStore(at.bucket, config=config, credential_provider=token, **common)
        case AzureCredentials():
            config = {
                "account_name": identity.account or at.account,
                "endpoint": endpoint,
                **_azure_identity(at, identity),
            }
            return stores.AzureStore(container_name=at.bucket, config=config, **common)


def _azure_identity(at: Location, identity: AzureCredentials) -> dict[str, Any]:
    if "sig=" in at.query:  # the query of the URI is a shared access signature
        return {"sas_key": at.query, "credential_type": "sas_token"}
    match identity.auth_type:
        case "key":
            return {"account_key": identity.key, "credential_type": "access_key"}
        case "managed_identity":
            chosen = {"client_id": identity.client_id} if identity.client_id else {}
            return {"credential_type": "managed_identity", **chosen}
        case "default":
            return {"client_id": identity.client_id} if identity.client_id else {}
        case _:
            return {"skip_signature": True}


def _s3_provider(identity: S3Credentials, environ: Mapping[str, str]) -> tuple[Any, str]:
    """Return what tells the library its identity, None for anonymous access, and the profile's region."""
    if identity.key_id:
        fixed = {
            "access_key_id": identity.key_id,
            "secret_access_key": identity.secret_key,
            "token": identity.session_token or None,
            "expires_at": None,
        }
        return (lambda: fixed), ""
    try:
        adapter = importlib.import_module("obstore.auth.boto3")
        botocore = importlib.import_module("botocore.session")
        boto_errors = importlib.import_module("botocore.exceptions")
    except ImportError as error:
        raise _Unusable(
            f"AWS profiles and AWS's own chain of credentials need boto3: {how_to_install('cloud')}, "
            "or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    try:
        session = botocore.Session(profile=identity.profile or None)
        for setting, variable in (
            ("credentials_file", "AWS_SHARED_CREDENTIALS_FILE"),
            ("config_file", "AWS_CONFIG_FILE"),
        ):
            if environ.get(variable):
                session.set_config_variable(setting, environ[variable])
        if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            session.get_component("credential_provider").remove("iam-role")
        region = str(session.get_scoped_config().get("region", ""))
        if session.get_credentials() is None:
            # This is what AWS's own client does: a public bucket can be read without an identity.
            return None, region
        return adapter.Boto3CredentialProvider(session), region
    except boto_errors.BotoCoreError as error:
        raise _Unusable(f"{type(error).__name__}: {error}") from error


class _Unusable(ValueError):
    """An identity that can't be obtained."""


def _described(meta: Any) -> RemoteObject:
    return RemoteObject(
        key=meta["path"],
        size=meta["size"],
        etag=(meta["e_tag"] or "").replace('"', ""),
        modified=meta["last_modified"].isoformat(),
        version=meta["version"] or "",
    )


def _text(error: BaseException) -> str:
    """Return an error's first line, with the storage's own words instead of its XML, without signatures."""
    whole = str(error)
    line = whole.partition("\n")[0].partition(": <?xml")[0].strip().rstrip(":")
    reason = _REASON.search(whole)
    if reason is not None:
        line += f": {reason[1]}: {reason[2].strip()}"
    return _SIGNATURE.sub("sig=…", line) or type(error).__name__
