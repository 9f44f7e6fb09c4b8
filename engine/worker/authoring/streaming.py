"""The responses of generators, sent one by one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from engine.worker.backends.python.exchange import RESPONSE_COMPLETE_FINAL
from engine.worker.backends.python.tensors import TritonModelException
from engine.worker.backends.python.tracing import places

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.worker.authoring.answering import Answerer
    from engine.worker.authoring.calls import Call
    from engine.worker.backends.python.exchange import InferenceResponseSender


def send_all(
    target: Callable[..., Any], call: Call, sender: InferenceResponseSender, answerer: Answerer
) -> None:
    """Send what one call of a generator yields, and the final flag; stop if the client has gone.

    Waits if the client is slow to take it. What the generator raises is sent as the last response.
    """
    places.set(call.positions)  # whose spans the generator makes
    try:
        with contextlib.closing(target(**call.arguments)) as values:
            for value in values:
                if sender.is_cancelled():
                    break
                sender.send(answerer.part(value))
    except _Gone:
        return
    except Exception as error:  # noqa: BLE001  # the model's exception is its client's answer
        _end(sender, answerer, error)
    else:
        _end(sender, answerer, None)


async def send_all_async(
    target: Callable[..., Any], call: Call, sender: InferenceResponseSender, answerer: Answerer
) -> None:
    """Do the same for an asynchronous generator.

    If the client is slow, a thread of the loop's pool waits, and not the loop.
    """
    import asyncio  # noqa: TID251  # the loop of user code, as in the backend

    loop = asyncio.get_running_loop()
    places.set(call.positions)  # in this task alone
    try:
        async with _closing(target(**call.arguments)) as values:
            async for value in values:
                if sender.is_cancelled():
                    break
                await loop.run_in_executor(None, sender.send, answerer.part(value))
    except _Gone:
        return
    except Exception as error:  # noqa: BLE001  # the model's exception is its client's answer
        _end(sender, answerer, error)
    else:
        _end(sender, answerer, None)


_Gone = TritonModelException  # what a sender raises that is closed


@contextlib.asynccontextmanager
async def _closing(values: Any) -> Any:
    """`contextlib.aclosing`, which Python 3.9 has not."""
    try:
        yield values
    finally:
        await values.aclose()


def _end(sender: InferenceResponseSender, answerer: Answerer, error: Exception | None) -> None:
    response = None if error is None else answerer.error(error)
    with contextlib.suppress(_Gone):
        sender.send(response, RESPONSE_COMPLETE_FINAL)
