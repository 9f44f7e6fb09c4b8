"""What a frontend notes of a request's client, because the model needs it.

Frontends know headers and addresses, and models don't; models know which of them matter, and frontends don't.
So a model states its needs in its `ClientMarks`, and the frontend has them put on each request. A model that
needs nothing has none.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from actors.values.callers import Caller
from actors.values.specs import Fairness, ModelSpec
from actors.values.traffic import TrafficPlan

LONGEST_TENANT: Final = 128
"""Characters of a tenant's name; the end of a longer one is replaced by a digest of all of it."""

_KEPT: Final = 96
_NETWORK_BITS: Final = 64  # of an IPv6 address: clients that share them count as one


class Markable(Protocol):
    """The part of a request that is marked."""

    parameters: Mapping[str, bool | int | float | str] | None
    affinity: str
    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMarks:
    """What a model needs to know of a request's client.

    Names of headers are in lower case; empty: not needed.
    """

    affinity_header: str = ""  # for `InferRequest.affinity`
    tenant_header: str = ""  # for `InferRequest.tenant`, as the next two
    tenant_parameter: str = ""
    tenant_address: bool = False
    tenant_identity: bool = False
    # Tenants told apart from the rest; None: each is one of its own.
    listed: Container[str] | None = None

    def put_on(
        self,
        request: Markable,
        header: Callable[[str], str],
        address: Callable[[], str],
        caller: Caller | None = None,
    ) -> None:
        """Put the marks on `request`.

        `header` returns the value of a header, empty without one, and `address` the client's numeric address
        without a port, empty for a Unix socket. `caller` is None where identities are not told apart.
        """
        if self.affinity_header:
            request.affinity = header(self.affinity_header)
        if self.tenant_header:
            tenant = header(self.tenant_header)
        elif self.tenant_parameter:
            value = (request.parameters or {}).get(self.tenant_parameter, "")
            tenant = str(value).lower() if isinstance(value, bool) else str(value)
        elif self.tenant_address:
            tenant = client_at(address())
        elif self.tenant_identity:
            tenant = "" if caller is None else caller.name
        else:
            return
        request.tenant = tenant_named(tenant) if self.listed is None or tenant in self.listed else ""


def marks_for(plan: TrafficPlan | None, fairness: Fairness | None) -> ClientMarks | None:
    """Return the marks that a model with these settings needs; None for nothing."""
    sticky = plan.sticky_header if plan is not None else ""
    if fairness is None or not fairness.by_tenant:
        return ClientMarks(affinity_header=sticky) if sticky else None
    return ClientMarks(
        affinity_header=sticky,
        tenant_header=fairness.tenant_header,
        tenant_parameter=fairness.tenant_parameter,
        tenant_address=fairness.tenant_address,
        tenant_identity=fairness.tenant_identity,
        listed=fairness.weights if fairness.unlisted_together else None,
    )


def marks_of(spec: ModelSpec) -> ClientMarks | None:
    """Return the marks that one version of a model needs: it has no other versions to choose from."""
    return marks_for(None, spec.fairness)


def client_at(address: str) -> str:
    """Return the part of an address that all connections of one client have in common.

    Of an IPv6 address that is its first 64 bits: the client can choose the rest. A text that is no address
    stays as it is.
    """
    if ":" not in address:
        return address
    try:
        numeric = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if numeric.ipv4_mapped is not None:
        return str(numeric.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(numeric), _NETWORK_BITS), strict=False))


def tenant_named(name: str) -> str:
    """Return `name`, or something shorter that stands for it alone."""
    if len(name) <= LONGEST_TENANT:
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{name[:_KEPT]}…{digest}"
