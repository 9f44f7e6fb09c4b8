"""What the operator decided about changes: at which ports, with files or not, and how they are recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from engine.settings.forms import PORT, SIZE, Form, integer, one_of, out_of_bound, some_text
from engine.settings.option import Given, Group

_ADDRESS: Final = "management-address"


def _port_of(name: str) -> Callable[[int, Given], int]:
    def then(port: int, given: Given) -> int:
        if given.has(name) and not given.word(_ADDRESS):
            given.warn_of(name, f"management has ports of its own only with --{_ADDRESS}")
        return port

    return then


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagementSettings:
    """Where management listens. Without an `address` it is served at the ports of everything else."""

    address: str = Group.MANAGEMENT.option(f"--{_ADDRESS}", some_text("ADDRESS")).means(
        "Tritium's own: serve management at ports of its own at this address, such as 127.0.0.1, and nowhere"
        " else: load and unload, changes of traffic and of the settings of logs and traces, and the tree. The"
        " other ports then refuse these and say where they are. All other requests are answered at both."
        " [default: management has no ports of its own]"
    )
    http_port: int = Group.MANAGEMENT.option(
        "--management-http-port=8003", PORT, _port_of("management-http-port")
    ).means("Tritium's own: its port for HTTP; 0 lets the kernel choose.")
    grpc_port: int = Group.MANAGEMENT.option(
        "--management-grpc-port=8004", PORT, _port_of("management-grpc-port")
    ).means(
        "Tritium's own: its port for gRPC, with TLS where gRPC has it; 0 lets the kernel choose."
        " --allow-grpc=false switches it off."
    )


_AUDIT_LOG: Final = "audit-log"
_SMALLEST: Final = 1024 * 1024


def _only_with_audit_log(name: str, value: int, given: Given) -> int:
    if given.has(name) and not given.word(_AUDIT_LOG):
        given.warn_of(name, f"there is an audit log only with --{_AUDIT_LOG}")
    return value


def _audit_size(size: int, given: Given) -> int:
    if size < _SMALLEST:
        raise out_of_bound(given.word("audit-log-size"), "--audit-log-size is 1MiB at least")
    return _only_with_audit_log("audit-log-size", size, given)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Where changes and denials are recorded, if anywhere. `size` is bytes; `keep` 0: all files."""

    file: str = Group.MANAGEMENT.option(f"--{_AUDIT_LOG}", some_text("FILE")).means(
        "Tritium's own: append to FILE who changes what is served, from where and with which outcome, who is"
        " denied what, and which keys and rules change. Where it can't be written, changes are refused and"
        " inference goes on. `tritium audit` reads it. [default: no audit log]"
    )
    size: int = Group.MANAGEMENT.option("--audit-log-size=64MiB", SIZE, _audit_size).means(
        "Tritium's own: begin another file before FILE grows over this; the older ones are FILE.1, FILE.2 and"
        " so on."
    )
    keep: int = Group.MANAGEMENT.option(
        "--audit-log-keep=10",
        integer("N"),
        lambda keep, given: _only_with_audit_log("audit-log-keep", keep, given),
    ).means("Tritium's own: how many older files are kept; 0 keeps all.")


class Uploads(Enum):
    """Which uploaded models are taken. Uploaded files are code as soon as a worker loads them."""

    OFF = "off"
    STRICT = "strict"  # served in the strict sandbox, whatever their configuration says
    ON = "on"


UPLOADS: Final[Form[Uploads]] = one_of("WHICH", *(each.value for each in Uploads)).into(Uploads)


def in_explicit_mode(uploads: Uploads, given: Given) -> Uploads:
    """Return `uploads`; warn where nothing can be uploaded anyway."""
    if given.has("uploads") and given.word("model-control-mode").lower() != "explicit":
        given.warn_of("uploads", "only --model-control-mode=explicit takes load requests")
    return uploads
