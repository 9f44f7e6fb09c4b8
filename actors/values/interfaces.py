"""The interface between frontends and the server. `engine` implements it, and `protocols` calls it.

All methods raise `TritiumError` subclasses with the contract's texts, and no other error that a client should
see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from actors.values.events import EventStream
from actors.values.regions import RegionPlaces, no_region
from actors.values.requests import InferRequest, ServedModel
from actors.values.tracing.settings import TraceControl


class Models(Protocol):
    """Resolve names to models that serve."""

    def resolve(self, name: str, version: str = "") -> ServedModel:
        """Return the requested version, or the highest READY one for `""`.

        Raises NotFound, Unavailable or InvalidArgument with the texts of contract http.md section 3.
        """

    def versions(self, name: str) -> Sequence[int]:
        """Return the READY versions of `name`, ascending."""

    def statistics(self, name: str = "", version: str = "") -> Sequence[Mapping[str, object]]:
        """Return `model_stats` elements of one model, or of all READY ones.

        Contract, observability.md section 2.

        Raises InvalidArgument `requested model '<M>' is not available` and its version form.
        """


UNLOADED: Final = "unloaded"
"""The reason of a version that was unloaded on purpose."""

DUPLICATE_REASON: Final = "model appears in two or more repositories"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One line of the repository index (contract, repository.md section 4). Version 0: never loaded."""

    name: str
    version: int = 0
    state: str = ""
    reason: str = ""
    namespace: str = ""
    essential: bool = True  # whether readiness depends on it; not told to clients
    progress: Mapping[str, object] | None = None  # of a load: phase, seconds, attempt, and other facts


PermitIn = Callable[[str, str], None]
"""Told a model and in which repository it lies (empty: in none), once that is found.

Raises TritiumError where its caller may not do with it what it asked for.
"""


def anywhere(_model: str, _repository: str) -> None:
    """Permit it for every model, in every repository (`PermitIn`)."""


class Repository(Protocol):
    """The repository as an operator sees it. `permit` is asked of each model before anything is changed."""

    async def index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return every known model version with its state, by name and version.

        A model that was never loaded is listed by name alone.
        """

    async def load(self, name: str, parameters: Mapping[str, object], *, permit: PermitIn = anywhere) -> None:
        """Load or reload a model; returns when it serves. Unavailable outside explicit mode."""

    async def unload(
        self, name: str, *, unload_dependents: bool = False, permit: PermitIn = anywhere
    ) -> None:
        """Unload a model. Unavailable outside explicit mode."""


class Registrations(Protocol):
    """Repositories that come and go while the server runs, in explicit mode."""

    async def register(self, path: str, models: Mapping[str, str]) -> None:
        """Have the models in the directory `path` be found.

        `models` maps names to the folders that are to have them. Raises Unsupported, AlreadyExists or
        InvalidArgument, with the texts of contract repository.md section 10.
        """

    def unregister(self, path: str) -> None:
        """Have no more models of this directory be found. Raises InvalidArgument for an unknown one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """The content of the server metadata endpoint."""

    name: str
    version: str
    extensions: tuple[str, ...]


class Health(Protocol):
    """Probes. While the server drains, `exiting` is true and the frontend refuses both probes.

    If draining begins with a delay, `withdrawn` is true from its start: the server is not ready, but serves
    all requests.
    """

    @property
    def exiting(self) -> bool:
        """Whether shutdown has begun."""

    @property
    def withdrawn(self) -> bool:
        """Whether shutdown is about to begin, so that clients should go elsewhere."""

    @property
    def held(self) -> bool:
        """Whether a fleet's controller keeps it from being ready; it serves all the same."""

    def hold(self, held: bool) -> None:
        """Keep it from being ready, or let it be."""

    async def wait_turned(self, ready: bool) -> None:
        """Wait until `ready()` differs from `ready`, or `exiting` is true."""

    def live(self) -> bool:
        """Whether the server initialised."""

    async def ready(self) -> bool:
        """Whether it serves: a cached verdict, by the strict or lenient rule.

        Contract, repository.md section 8.
        """

    async def deep(self) -> DeepReport:
        """Make an inference through the queue of every essential model, within a bounded time, and report."""

    async def model_ready(self, name: str, version: str = "") -> bool:
        """Whether this model version serves and its instances say so themselves.

        Raises like `Models.resolve`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepReport:
    """The result of exercising the request path.

    `document` is the JSON body, with a verdict for each part.
    """

    ready: bool
    document: Mapping[str, object]


class Traffic(Protocol):
    """How requests that name no version are shared out over a model's versions, at run time."""

    def describe(self, name: str) -> Mapping[str, object]:
        """Return the plan in force, its origin, and the results of each version and the mirror, as JSON.

        Raises NotFound for an unknown model.
        """

    def change(self, name: str, document: Mapping[str, object]) -> Mapping[str, object]:
        """Put a new plan in force until the model is next loaded, and describe it.

        An empty plan ends the split.

        Raises NotFound for an unknown model. Raises InvalidArgument, naming the key, for a plan that makes no
        sense. Raises Unavailable if the control mode lets no client change what is served.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """What is logged, as the logging extension tells it. `file` is empty for stdout."""

    file: str = ""
    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    format: str = "default"


class Logs(Protocol):
    """What is logged, changed while the server runs."""

    @property
    def formats(self) -> Sequence[str]:
        """The formats that lines may have."""

    def describe(self) -> LogState:
        """Return what is logged now."""

    def change(self, state: LogState) -> None:
        """Log by `state` from now on. Its `file` stays as it is: the operator alone chooses that."""


class Introspection(Protocol):
    """The live supervision tree, for `tritium tree`."""

    def tree(self) -> Mapping[str, object]:
        """Return a JSON-ready snapshot of every supervisor and child."""


class Regions(ABC):
    """The regions that clients have registered, as decoders of requests know them."""

    __slots__ = ()

    @abstractmethod
    def attach(self, request: InferRequest, places: RegionPlaces) -> None:
        """Look up the regions of a request that was just decoded, and have it hold them.

        Short inputs are read; longer ones become `RegionTensor`s. The reply port is replaced by one that
        writes outputs to their regions first. Raises NotFound and InvalidArgument with the texts of
        contract, shared_memory.md section 6.2; then nothing is held.
        """


class NoRegions(Regions):
    """No client can register a region."""

    __slots__ = ()

    def attach(self, request: InferRequest, places: RegionPlaces) -> None:
        """Raise NotFound for the first region that the request names."""
        del request
        named = [place.region for place in (*places.inputs, *places.outputs.values()) if place is not None]
        raise no_region(named[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRegion:
    """A registered region of system shared memory, as its status tells it."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaRegion:
    """A registered region of CUDA shared memory, as its status tells it."""

    name: str
    device_id: int
    byte_size: int


class SharedMemory(Regions):
    """Clients' shared memory. Texts are those of contract, shared_memory.md.

    An unregistered region that requests use stays until the last of them is over.
    """

    __slots__ = ()

    @abstractmethod
    def check_allowed(self) -> None:
        """Raise Unsupported where clients may not register and unregister regions."""

    @property
    @abstractmethod
    def has_cuda(self) -> bool:
        """Whether the server can open memory of a GPU."""

    @abstractmethod
    async def register_system(self, name: str, key: str, *, offset: int, byte_size: int) -> None:
        """Register bytes of the object with this key. Raises TritiumError."""

    @abstractmethod
    async def register_cuda(self, name: str, raw_handle: bytes, *, device_id: int, byte_size: int) -> None:
        """Register memory of a GPU, by the 64 bytes of its handle. Raises TritiumError."""

    @abstractmethod
    def system_regions(self, name: str = "") -> Sequence[SystemRegion]:
        """Return the region of this name, or all by their names. Raises NotFound."""

    @abstractmethod
    def cuda_regions(self, name: str = "") -> Sequence[CudaRegion]:
        """Return the region of this name, or all by their names. Raises NotFound."""

    @abstractmethod
    def unregister_system(self, name: str = "") -> None:
        """Unregister the region of this name, if there is one, or all. Raises Internal."""

    @abstractmethod
    def unregister_cuda(self, name: str = "") -> None:
        """Unregister the region of this name, if there is one, or all. Raises Internal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What a server's register says.

    `replica` is its name among several, empty without one. `boot` differs at each start. `epoch` is the
    highest that was seen, and 0 before any. `document` is JSON text; None before any. It came with `sequence`
    in `document_epoch`. `available_bytes` is of memory; None where it is not known.
    """

    replica: str = ""
    boot: str = ""
    epoch: int = 0
    document_epoch: int = 0
    sequence: int = 0
    document: bytes | None = None
    available_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoad:
    """What a model has to do now.

    `utilization` is the busy part of what executes, from 0 to 1; None where nothing can tell. Of a language
    model it is `cache_used`, the part of its cache that is in use, which has place for `max_tokens`.
    """

    queue_depth: int = 0
    utilization: float | None = None
    cache_used: float | None = None
    max_tokens: int | None = None


class ModelLoads(Protocol):
    """How busy models are."""

    def of(self, model: ServedModel) -> ModelLoad:
        """Return what `model`, which `Models.resolve` has returned, has to do."""


class Steering(Protocol):
    """What controllers of several servers write down in each of them, and the epochs that they show."""

    @property
    def epoch(self) -> int:
        """The highest epoch seen; 0 before any."""

    def describe(self) -> Registered:
        """Return what is kept."""

    def keep(self, epoch: int, sequence: int, document: bytes) -> None:
        """Keep a document of a controller in place of the one before.

        Raises TakenOver where a higher epoch was seen, and for a sequence of the same epoch that is not
        higher, unless the document is the one that is kept.
        """

    def take_over(self, epoch: int) -> None:
        """Note that a controller with a higher epoch begins. Raises TakenOver where it is not higher."""

    def begin(self, epoch: int) -> None:
        """Note that a change of this epoch begins. Raises TakenOver where a higher one was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The parts of the server that a frontend is given."""

    identity: ServerIdentity
    models: Models
    repository: Repository
    health: Health
    introspection: Introspection
    events: EventStream
    traffic: Traffic
    shared_memory: SharedMemory
    steering: Steering
    logs: Logs | None = None
    traces: TraceControl | None = None
    loads: ModelLoads | None = None
