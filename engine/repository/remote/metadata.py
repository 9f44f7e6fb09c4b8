"""Google's metadata server: the identity of the machine a server runs on, if it has one.

The library beneath would ask too, but only when it is needed and with the patience of its retries. Whether
there is such a server at all must be known before, because without one the storage is asked without an
identity.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

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
