"""What is measured over gRPC: servers, and what is measured beside them in the same minute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.grpc.judge import Address, method
from benchmarks.grpc.scenarios import Way
from benchmarks.subjects import Subject, printing_port

BARE: Final = "bare"
REFERENCES: Final[Mapping[str, Sequence[str]]] = {  # what to run, by the name that tables have
    "grpclib": ["benchmarks.grpc.grpclib_reference"],
    "grpcio": ["benchmarks.grpc.grpcio_reference", "aio"],
    "grpcio-threads": ["benchmarks.grpc.grpcio_reference", "threads"],
    BARE: ["benchmarks.grpc.bare"],
}
USUAL: Final = ("grpclib", "grpcio", BARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSubject:
    """Something that may answer gRPC; `address` is None if its port is not known. `pid` as for `Subject`."""

    label: str
    address: Address | None
    pid: int | None = None

    @property
    def is_bare(self) -> bool:
        """Whether it only pretends to answer."""
        return self.label == BARE

    def path(self, way: Way, answer_size: int) -> str:
        """Return what a load client calls: a method, or the bare responder's path for so many bytes."""
        if self.is_bare:
            return f"/{'stream' if way is Way.STREAM else 'unary'}/{answer_size}"
        return method(way)


def of(subject: Subject) -> GrpcSubject:
    """Return a server as a subject of the gRPC measurements."""
    address = None if subject.grpc_port is None else Address(subject.host, subject.grpc_port)
    return GrpcSubject(label=subject.label, address=address, pid=subject.pid)


@contextmanager
def reference(name: str, scratch: Path) -> Iterator[GrpcSubject]:
    """Run one of `REFERENCES` in a process of its own. Raises NotStarted."""
    with printing_port(name, REFERENCES[name], scratch) as (pid, port):
        yield GrpcSubject(label=name, address=Address("127.0.0.1", port), pid=pid)
