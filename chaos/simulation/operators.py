"""Operators as tasks.

They ask the repository API to load and to unload, over the server's own interface, HTTP and gRPC.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import trio

from actors.values.errors import TritiumError
from chaos.simulation.asking import STATUS, ask_grpc
from chaos.simulation.outcomes import ANSWERED, LOST
from chaos.simulation.plan import Order
from chaos.wires.http import Broken, ask
from engine.server.running import RunningServer
from protocols.kserve.proto import grpc_service_pb2 as pb


@dataclass(slots=True)
class Ordered:
    """An order and what became of it.

    `ended` is infinite if its end is not known: it may have an effect at any time.
    """

    order: Order
    began: float
    ended: float = math.inf
    code: str = ""  # `ANSWERED`, `LOST`, or an error's code by its name
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return self.code == ANSWERED

    def __str__(self) -> str:
        order = self.order
        return (
            f"{order.what} of {order.model} by {order.wire} at {self.began:.3f}: {self.code} {self.message!r}"
        )


async def carry_out(running: RunningServer, addresses: Mapping[str, bytes], ordered: Ordered) -> None:
    """Ask, and write down what comes of it."""
    order = ordered.order
    try:
        if order.wire == "core":
            await _ask_core(running, order)
        elif order.wire == "http":
            ordered.code, ordered.message = await _ask_http(addresses["http"], order)
        else:
            ordered.code, ordered.message = await _ask_grpc(addresses["grpc"], order)
    except TritiumError as error:
        ordered.code, ordered.message = error.code.name, error.message
    except (Broken, OSError) as error:
        ordered.code, ordered.message = LOST, repr(error)
        return
    ordered.code = ordered.code or ANSWERED
    ordered.ended = trio.current_time()


async def _ask_core(running: RunningServer, order: Order) -> None:
    repository = running.server.repository
    if order.what == "load":
        await repository.load(order.model, {})
    else:
        await repository.unload(order.model, unload_dependents=order.dependents)


async def _ask_http(address: bytes, order: Order) -> tuple[str, str]:
    parameters = {"unload_dependents": True} if order.dependents else {}
    reply = await ask(
        address,
        "POST",
        f"/v2/repository/models/{order.model}/{order.what}",
        json.dumps({"parameters": parameters}).encode(),
    )
    if reply.status == 200:
        return "", ""
    return STATUS.get(reply.status, f"HTTP {reply.status}"), str(reply.json().get("error", ""))


async def _ask_grpc(address: bytes, order: Order) -> tuple[str, str]:
    asked: pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest
    if order.what == "load":
        asked = pb.RepositoryModelLoadRequest(model_name=order.model)
    else:
        asked = pb.RepositoryModelUnloadRequest(model_name=order.model)
        if order.dependents:
            asked.parameters["unload_dependents"].bool_param = True
    method = f"RepositoryModel{order.what.capitalize()}"
    code, message, _ = await ask_grpc(address, method, asked.SerializeToString())
    return code, message
