"""Who asks for something, what can be asked for, and the port by which frontends learn whether it may be.

A frontend has a `HeadGate`, or None: without one everything is allowed, and costs nothing. It shows the gate
the head of each request, before it takes a long body. The gate names the `Caller`, or refuses. The caller is
then asked about each model, and goes along with the inference, as its tenant and the owner of its sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import Final

from actors.values.errors import Unauthenticated

ANONYMOUS: Final = "anonymous"
"""The name of the identity of clients that show no credentials."""


class Action(Enum):
    """What a client can ask for. A rule of an auth file allows or denies it.

    The first nine are those that `--http-restricted-api` and `--grpc-restricted-protocol` name (contract:
    http.md section 2.1 and grpc.md section 3). The others are Tritium's own.
    """

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"
    TRAFFIC = "traffic"  # read or change how requests are shared out over versions
    SETTINGS = "settings"  # change settings of logs and traces
    UPLOAD = "upload"  # bring a model's files along when it is loaded
    METRICS = "metrics"

    # Members are equal where they are the same one. Enum's own hash is a call, on the way of each request.
    __hash__ = object.__hash__


RESTRICTABLE: Final = tuple(Action)[:9]
"""The categories of Triton's API that a header can open."""


def written(host: str, port: int) -> str:
    """Return an address as gRPC writes it, such as `ipv6:[::1]:1234`."""
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


class Peer:
    """Who made a request, as far as its connection and, behind a trusted proxy, that proxy tell.

    `address` is numeric and has no port; it is empty for a Unix socket. `text` is the address as gRPC writes
    it, for logs; there `port` is 0 where it is not known. `names` are those of a verified client certificate.
    `note` is the gate's own: what it found out about this client's last request on this connection.
    """

    __slots__ = ("address", "names", "note", "port", "text")

    def __init__(self, address: str = "", names: tuple[str, ...] = (), *, port: int = 0) -> None:
        self.names = names
        self.note: object = None
        self.address = self.text = ""
        self.port = 0
        if address:
            self.stand_at(address, port)

    def stand_at(self, address: str, port: int) -> None:
        """Have another address from now on: that which a proxy told of the whole connection."""
        self.address, self.port, self.text = address, port, written(address, port)

    @classmethod
    def at(cls, text: str) -> Peer:
        """Return the client at an address as gRPC writes it, such as `ipv6:[::1]:1234` or `unix:`."""
        peer = cls()
        family, _, rest = text.partition(":")
        if family != "unix" and rest:
            host, _, port = rest.rpartition(":")
            peer.address, peer.port = host.strip("[]"), int(port)
        peer.text = text
        return peer


class Caller(ABC):
    """An identity that was established. `name` is for logs and metrics, and safe to print.

    It judges by the rules that were in force when the gate returned it. `counted` says whether its inferences
    under way are: only then `begin` and `end` are called.
    """

    __slots__ = ("counted", "name")

    name: str
    counted: bool

    @abstractmethod
    def require(self, action: Action, model: str = "", namespace: str | None = None) -> None:
        """Raise Unauthenticated or PermissionDenied if `action` is not allowed on `model`.

        Without a model: if it is allowed on none at all. For `namespace` see `may`.
        """

    @abstractmethod
    def admit(self, action: Action, model: str = "", *, size: int = 0) -> None:
        """Let a request pass that brings `size` bytes, or raise.

        Raises as `require`, or TooManyRequests with the time after which to try again.
        """

    @abstractmethod
    def may(self, action: Action, model: str, namespace: str | None = None) -> bool:
        """Whether `action` is allowed on `model`. For lists, which leave out what the caller may not see.

        Without a namespace it is that of the loaded model of this name. An empty one is that of a model that
        lies in no repository: no rule allows it by its namespace, and each that denies by one counts.
        """

    @abstractmethod
    def may_all(self, action: Action) -> bool:
        """Whether `action` is allowed on every model. For what tells of all of them at once."""

    @abstractmethod
    def received(self, size: int) -> None:
        """Account for bytes whose number was not known when the request was admitted."""

    @abstractmethod
    def begin(self) -> None:
        """Count an inference as under way. Raises TooManyRequests where as many as allowed are."""

    @abstractmethod
    def end(self) -> None:
        """An inference that began is over, whatever its outcome."""


class HeadGate(ABC):
    """Decides on the head of a request whether it may go on, and whose it is."""

    __slots__ = ()

    @abstractmethod
    def identify(self, authorization: bytes, peer: Peer) -> Caller:
        """Return the caller of a request on the connection of `peer`, with this `Authorization`, or empty.

        Raises Unauthenticated for credentials that are not good. They are never overlooked.
        """


def presented(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the one `Authorization` field of a head, whose names are in lower case; empty for none.

    Raises Unauthenticated where there are several, since a proxy may have judged another one
    (RFC 9110, section 5.3).
    """
    found: bytes | None = None
    for name, value in fields:
        if name == b"authorization":
            if found is not None:
                raise Unauthenticated("more than one Authorization in the head: send one", invalid=True)
            found = value
    return found or b""
