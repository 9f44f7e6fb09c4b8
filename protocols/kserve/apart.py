"""Management apart: which calls manage the server, and what a port that does not serve them says.

One table for HTTP and gRPC. Reading is no management, but for the tree, the events and the register: models,
statistics, settings and the index of the repositories can be read wherever requests are answered.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagementCall:
    """A call that manages, by HTTP endpoint and method, and by RPC of the inference service.

    `by_settings`: the RPC also reads, and manages only with a message that has settings.
    """

    endpoint: str
    method: str
    rpc: str = ""
    by_settings: bool = False


MANAGEMENT: Final = (
    ManagementCall(endpoint="model_load", method="POST", rpc="RepositoryModelLoad"),
    ManagementCall(endpoint="model_unload", method="POST", rpc="RepositoryModelUnload"),
    ManagementCall(endpoint="traffic", method="POST"),
    ManagementCall(endpoint="fleet", method="GET"),
    ManagementCall(endpoint="fleet", method="POST"),
    ManagementCall(endpoint="tree", method="GET"),
    ManagementCall(endpoint="events", method="GET"),
    ManagementCall(endpoint="logging", method="POST", rpc="LogSettings", by_settings=True),
    ManagementCall(endpoint="trace", method="POST", rpc="TraceSetting", by_settings=True),
)
"""Endpoints are the values of `protocols.http.routes.Endpoint`."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where management is served, when it is not here: `address:port` of both protocols, empty for none."""

    http: str = ""
    grpc: str = ""

    @property
    def refusal(self) -> str:
        """What a client is told that asks here."""
        places = [
            f"HTTP at {_place(self.http)}" if self.http else "",
            f"gRPC at {_place(self.grpc)}" if self.grpc else "",
        ]
        return f"management is served elsewhere: {', '.join(filter(None, places))} (--management-address)"


def _place(address: str) -> str:
    """Return an address as a client can use it: where a socket listens everywhere, its port alone counts."""
    host, _, port = address.rpartition(":")
    everywhere = ipaddress.ip_address(host.strip("[]")).is_unspecified
    return f"port {port} of this server" if everywhere else address
