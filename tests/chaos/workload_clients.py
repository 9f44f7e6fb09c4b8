"""An ordinary tritonclient.http that asks what an `Invoke` says, on threads: a test can have several at once."""

from typing import Any

import trio
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from chaos.record.records import Invoke
from chaos.workload import answers
from tests.support.triton_inputs import inputs
from tests.survival.server import ServerProcess

PATIENCE = 60.0


def invoke(model: str, value: int, **rest: Any) -> Invoke:
    """Return a request of the ordinary load, except for what is given."""
    given = {"t": 0.0, "n": 1, "id": f"{model}/{value}", "protocol": "http", "phase": "calm", **rest}
    return Invoke(model=model, value=value, **given)


async def ask(server: ServerProcess, invoked: Invoke) -> tuple[int, ...]:
    """Return the values of the answer. Raises InferenceServerException."""
    return await trio.to_thread.run_sync(_ask, server.url, invoked)


async def refusal(server: ServerProcess, invoked: Invoke) -> InferenceServerException:
    """Return the error that it has to be answered with."""
    try:
        values = await ask(server, invoked)
    except InferenceServerException as error:
        return error
    raise AssertionError(f"{invoked} was answered {values}")


def _ask(url: str, invoked: Invoke) -> tuple[int, ...]:
    with tritonclient.http.InferenceServerClient(
        url, network_timeout=PATIENCE, connection_timeout=PATIENCE
    ) as client:
        result = client.infer(
            invoked.model, inputs(tritonclient.http, **answers.inputs(invoked)), request_id=invoked.id
        )
    outputs = {name: result.as_numpy(name) for name in answers.OUTPUTS[answers.kind_of(invoked.model)]}
    return tuple(answers.values(invoked.model, outputs))
