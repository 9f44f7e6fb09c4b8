"""Kubernetes' EndpointSlices of a Service, from inside a pod whose account may read them."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from engine.fleet.discovery.addresses import member
from engine.fleet.ports import Member, Unreachable

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SERVICE_LABEL: Final = "kubernetes.io/service-name"


def found_in(slices: Mapping[str, Any], options: Mapping[str, Any]) -> list[Member]:
    """Return a member for each endpoint of a list of EndpointSlices (discovery.k8s.io/v1), ready or not.

    One that is not ready yet waits for its models, which the fleet brings. One that terminates is left out.
    """
    found = {}
    for each in slices.get("items", ()):
        for endpoint in each.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            if conditions.get("terminating") or not endpoint.get("addresses"):
                continue
            address = str(endpoint["addresses"][0])
            name = str((endpoint.get("targetRef") or {}).get("name") or address)
            found[name] = member(name, address, options)
    return list(found.values())


def ask(options: Mapping[str, Any], environ: Mapping[str, str], account: Path = _ACCOUNT) -> Sequence[Member]:
    """Ask the API server for the slices of a Service. Blocks; raises Unreachable."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise Unreachable("EndpointSlices are found from inside a pod: KUBERNETES_SERVICE_HOST is not set")
    try:
        token = (account / "token").read_text().strip()
        namespace = options.get("namespace") or (account / "namespace").read_text().strip()
        context = ssl.create_default_context(cafile=str(account / "ca.crt"))
    except OSError as error:
        raise Unreachable(f"the pod's service account can't be read: {error}") from error
    address = f"[{host}]" if ":" in host else host
    url = f"https://{address}:{port}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    try:
        answer = httpx.get(
            url,
            params={"labelSelector": f"{_SERVICE_LABEL}={options['service']}"},
            headers={"Authorization": f"Bearer {token}"},
            verify=context,
            timeout=10,
        )
        answer.raise_for_status()
        return found_in(answer.json(), options)
    except (httpx.HTTPError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Unreachable(f"the API server did not list the EndpointSlices: {error}") from error


def members(options: Mapping[str, Any]) -> Sequence[Member]:
    """Return the replicas behind a Service. Blocks; raises Unreachable."""
    return ask(options, os.environ)
