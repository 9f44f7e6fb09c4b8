"""Methods' code and the tasks of a connection's calls: whatever they do, it costs no other call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import trio
from grpclib.exceptions import GRPCError

from actors.values.errors import DeadlineExceeded, Internal, TritiumError
from protocols.grpc.call import Call, ServerStream
from protocols.grpc.call_states import BEGIN, SERVE, CallState

if TYPE_CHECKING:
    from actors.values.requests import InferResponse
    from actors.values.tensors import Buffer
    from protocols.grpc.call import Method

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
        call.step(BEGIN)
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
        call.step(SERVE)
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
