"""The methods that a listener serves, by path: how header blocks find them, and how their code runs.

The table is built once from grpclib's generated bases. A header block is read once for all calls that repeat
it. An operator can put RPCs behind a secret metadata key (contract, grpc.md section 3). Whatever the code of
a method does, it costs no other call.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

import trio
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from actors.values.callers import Action
from actors.values.errors import DeadlineExceeded, Internal, TritiumError
from actors.values.requests import InferResponse
from actors.values.tensors import Buffer
from protocols.grpc.call import Call, Method, ServerStream
from protocols.grpc.call_states import BEGIN, SERVE, CallState
from protocols.grpc.codec.heads import CallHead, Refusal, read_head
from protocols.grpc.policy import GrpcOptions
from protocols.kserve.apart import MANAGEMENT, Elsewhere

INFERENCE_SERVICE: Final = "/inference.GRPCInferenceService/"
KEY_PREFIX: Final = "triton-grpc-protocol-"

_RPCS: Final[Mapping[Action, tuple[str, ...]]] = {
    Action.HEALTH: ("ServerLive", "ServerReady", "ModelReady"),
    Action.METADATA: ("ServerMetadata", "ModelMetadata"),
    Action.INFERENCE: ("ModelInfer", "ModelStreamInfer"),
    Action.SHARED_MEMORY: (
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryStatus",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
    ),
    Action.MODEL_CONFIG: ("ModelConfig",),
    Action.MODEL_REPOSITORY: ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    Action.STATISTICS: ("ModelStatistics",),
    Action.TRACE: ("TraceSetting",),
    Action.LOGGING: ("LogSettings",),
}

CATEGORIES: Final[Mapping[str, Action]] = {
    "/grpc.health.v1.Health/Check": Action.HEALTH,
    "/grpc.health.v1.Health/Watch": Action.HEALTH,
    **{INFERENCE_SERVICE + rpc: category for category, rpcs in _RPCS.items() for rpc in rpcs},
}
"""The category of each RPC, by full path. RPCs that are not in it can't be restricted."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """The metadata that opens an RPC: a `key`, in lower case as HTTP/2 has it, and its one `value`.

    `refusal` is the message for a call without it, with UNAVAILABLE.
    """

    key: str
    value: str
    refusal: str

    def opened_by(self, shown: str | bytes | None) -> bool:
        """Whether this is the value. How long the look takes does not tell how much of it was right."""
        if not isinstance(shown, str):
            return False
        value = self.value.encode("utf-8", "surrogatepass")  # a command line may hold any bytes
        return hmac.compare_digest(shown.encode(), value)


def restriction(path: str, restricted: Mapping[Action, tuple[str, str]]) -> Restriction | None:
    """Return the restriction of the RPC at `path`, None where it is open.

    `restricted` holds keys without their prefix.
    """
    category = CATEGORIES.get(path)
    opened_by = None if category is None else restricted.get(category)
    if opened_by is None:
        return None
    key, value = opened_by
    return Restriction(
        (KEY_PREFIX + key).lower(),
        value,
        f"This protocol is restricted, expecting header '{KEY_PREFIX}{key}'",
    )


_NAMES_MODEL: Final = {
    **dict.fromkeys(("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"), "name"),
    **dict.fromkeys(("RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting"), "model_name"),
}
"""The field of a request that names a model, by RPC. The inference RPCs look for themselves."""


def moved(elsewhere: Elsewhere | None) -> dict[str, Refusal]:
    """Return the refusal of each RPC, by full path, that is served at the ports for management alone."""
    if elsewhere is None:
        return {}
    refusal = Refusal(Status.PERMISSION_DENIED, elsewhere.refusal, forbidden=True)
    return {INFERENCE_SERVICE + call.rpc: refusal for call in MANAGEMENT if call.rpc and not call.by_settings}


class Service(Protocol):
    """What grpclib's generated bases give.

    `unary_methods`, by path, is optional and wins over the mapping.
    """

    def __mapping__(self) -> Mapping[str, Handler]:
        """Return handlers by path."""


def method_table(services: Iterable[Service]) -> dict[str, Method]:
    """Return the methods of `services` by path. Raises ValueError where two claim the same."""
    table: dict[str, Method] = {}
    for service in services:
        unary_methods: Mapping[str, Any] = getattr(service, "unary_methods", {})
        for path, handler in service.__mapping__().items():
            if path in table:
                raise ValueError(f"two services claim {path}")
            infer = CATEGORIES.get(path) is Action.INFERENCE
            table[path] = Method(
                infer=infer,
                unary=unary_methods.get(path),
                handler=handler,
                action=CATEGORIES.get(path, Action.METADATA),
                names_model=_NAMES_MODEL.get(path.removeprefix(INFERENCE_SERVICE), ""),
            )
    return table


class HeadReader:
    """Says what a request's header list means to these services."""

    def __init__(self, services: Iterable[Service], options: GrpcOptions) -> None:
        self._methods = method_table(services)
        self._restrictions = {path: restriction(path, options.restricted) for path in self._methods}
        self._moved = moved(options.elsewhere)
        self._compresses = options.compression != "none"

    def read(self, fields: Sequence[tuple[bytes, bytes]]) -> CallHead[Method]:
        """Return the head of a call.

        It has the refusal of a method that is restricted, or served elsewhere, and no coding that is not
        wanted.
        """
        head = read_head(fields, self._methods)
        method = head.method
        if head.answer_coding and not (self._compresses and method is not None and method.infer):
            head = replace(head, answer_coding=b"")
        if head.refusal is None and head.path in self._moved:
            return replace(head, refusal=self._moved[head.path])
        restricted = self._restrictions.get(head.path)
        if restricted is None or head.refusal is not None:
            return head
        if restricted.opened_by(head.metadata.get(restricted.key)):
            return head
        return replace(head, refusal=Refusal(Status.UNAVAILABLE, restricted.refusal, forbidden=True))


BUG: Final = "internal server error"
TOO_LATE: Final = "Deadline Exceeded"


class Refuser(Protocol):
    """The object that has the calls."""

    def refuse(self, call: Call, error: TritiumError | GRPCError) -> None:
        """End a call that is not closed with an error."""


class CallTasks:
    """Runs methods. `on_crash` is told the path and the exception of a method's bug.

    A unary method of the fast kind is called here and needs no task. Coroutine methods, and the slow parts of
    a unary one, run in `nursery`, which the connection gives once it serves.
    """

    def __init__(self, calls: Refuser, on_crash: Callable[[str, Exception], None]) -> None:
        self.nursery: trio.Nursery | None = None
        self._calls = calls
        self._on_crash = on_crash

    # Unary methods

    def begin(self, call: Call, request: Buffer) -> None:
        """Give a unary method the request of `call`."""
        unary = call.unary
        assert unary is not None
        call.state = call.state.after[BEGIN]
        try:
            unary.begin(call, request)
        except TritiumError as error:
            call.put(error, final=True)
        except Exception as bug:  # noqa: BLE001  # a protocol's outer edge: a bug costs no other call
            self.crashed(call, bug)
            call.put(Internal(BUG), final=True)

    def cancel(self, call: Call) -> None:
        """Have a unary method that began forget the call."""
        assert call.unary is not None, "only unary methods begin"
        self._tell(call, partial(call.unary.cancel, call))

    def finished(self, call: Call, outcome: InferResponse | TritiumError) -> None:
        """Tell a unary method that began the outcome of the call."""
        assert call.unary is not None, "only unary methods begin"
        self._tell(call, partial(call.unary.finished, call, outcome))

    def _tell(self, call: Call, hook: Callable[[], None]) -> None:
        try:
            hook()
        except Exception as bug:  # noqa: BLE001  # as in `begin`
            self.crashed(call, bug)

    def crashed(self, call: Call, bug: Exception) -> None:
        """Report a bug of a method, which has cost its call."""
        self._on_crash(call.head.path, bug)

    # Tasks

    def serve(self, call: Call, method: Method, *, leaving: bool) -> None:
        """Run the coroutine method of `call`. `leaving`: the server shuts down."""
        cardinality = method.handler.cardinality.value
        call.server_stream = ServerStream(
            call,
            method.handler.request_type,
            unary_request=not cardinality.client_streaming,
            unary_reply=not cardinality.server_streaming,
        )
        if leaving:
            call.server_stream.leave()
        call.state = call.state.after[SERVE]
        self.run(call, partial(_serve, call, method))

    def run(self, call: Call, body: Callable[[], Awaitable[None]]) -> None:
        """Run `body` beside the call, unless that is over."""
        if not call.state.closed:
            self.run_always(call, body)

    def run_always(self, call: Call, body: Callable[[], Awaitable[None]]) -> None:
        """Run `body` beside the call, answered or not."""
        assert self.nursery is not None, "calls come from reading, which the nursery encloses"
        scope = trio.CancelScope()
        if call.scopes is None:
            call.scopes = set()
        call.scopes.add(scope)
        self.nursery.start_soon(self._run, call, body, scope, name=call.head.path)

    async def _run(self, call: Call, body: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        try:
            with scope:
                await body()
        except (TritiumError, GRPCError) as error:
            self._fail(call, error)
        except Exception as bug:  # noqa: BLE001  # as in `begin`
            self.crashed(call, bug)
            self._fail(call, Internal(BUG))
        finally:
            if call.scopes is not None:
                call.scopes.discard(scope)
            if not call.scopes and call.state is CallState.OVER:
                call.server_stream = None  # its call was over before it

    def _fail(self, call: Call, error: TritiumError | GRPCError) -> None:
        """Answer a call with the error that one of its tasks raised."""
        if call.state.closed:
            return
        if isinstance(error, TritiumError) and call.server_stream is None:
            call.put(error, final=True)
        else:
            self._calls.refuse(call, error)


async def _serve(call: Call, method: Method) -> None:
    server_stream = call.server_stream
    assert server_stream is not None
    with trio.CancelScope(deadline=call.deadline) as scope:
        await method.handler.func(server_stream)
        server_stream.conclude()
    if scope.cancelled_caught:
        raise DeadlineExceeded(TOO_LATE)


def cancel_tasks(call: Call) -> None:
    """Cancel the tasks that run beside a call."""
    for scope in call.scopes or ():
        scope.cancel()
