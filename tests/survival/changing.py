"""Models that tell their identity, repositories that change under a server, and clients that check both.

The clients notice an answer from a version that should no longer serve.
"""

import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import trio
import tritonclient.http
from tritonclient.utils import InferenceServerException

from chaos.subject.server import Node, serving
from tests.survival.repository import instances
from tests.survival.server import ServerProcess, eventually
from tests.survival.wire import Connection, Lost, Response

CLIENTS = 16
_PATIENCE = 90.0

# IDENTITY = (TICKET, the version's number, the generation that was written into the file).
_CODE = """
import os
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils

GENERATION = @GENERATION@
PARTS = @PARTS@
HERE = pathlib.Path(__file__).parent


class TritonPythonModel:
    def initialize(self, args):
        missing = sum(not (HERE / f"part-{number}").exists() for number in range(PARTS))
        if missing:
            raise RuntimeError(f"{missing} parts are missing")
        @INITIALIZE@
        self.version = int(args["model_version"])

    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(@EXECUTE_SECONDS@)
            ticket = pb_utils.get_input_tensor_by_name(request, "TICKET").as_numpy()
            identity = np.array([int(ticket.ravel()[0]), self.version, GENERATION], np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("IDENTITY", identity)]))
        return responses
"""

PORTS = """
input [ { name: "TICKET" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "IDENTITY" data_type: TYPE_INT32 dims: [ 3 ] } ]
"""


def code(
    generation: int = 1, *, parts: int = 0, initialize: str = "pass", execute_seconds: float = 0.0
) -> str:
    """Return a `model.py`. It loads once all its `part-<n>` lie beside it; `initialize` is a statement."""
    return (
        _CODE.replace("@GENERATION@", str(generation))
        .replace("@PARTS@", str(parts))
        .replace("@INITIALIZE@", initialize)
        .replace("@EXECUTE_SECONDS@", repr(execute_seconds))
    )


def config(extra: str = "", *, workers: int = 1) -> str:
    """Return the `config.pbtxt` that goes with it."""
    return 'backend: "python"\nmax_batch_size: 0\n' + PORTS + instances(workers) + extra


def as_json(**extra: Any) -> str:
    """Return the same configuration as the JSON of a load request."""
    return json.dumps(
        {
            "backend": "python",
            "max_batch_size": 0,
            "input": [{"name": "TICKET", "data_type": "TYPE_INT32", "dims": [1]}],
            "output": [{"name": "IDENTITY", "data_type": "TYPE_INT32", "dims": [3]}],
            "instance_group": [{"kind": "KIND_CPU", "count": 1}],
            **extra,
        }
    )


def policy(choice: str) -> str:
    """Configuration text: which versions are served."""
    return f"version_policy {{ {choice} }}\n"


class Workshop:
    """Makes models and files aside and renames them into a repository, so that none is seen half made."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self._bench = repository.parent / f"{repository.name}.workshop"
        self._bench.mkdir()
        self._numbers = itertools.count()

    def model(
        self, name: str, *, extra: str = "", workers: int = 1, versions: Sequence[int] = (1,), **options: Any
    ) -> Path:
        """Put in a whole model, with the options of `code`. A version's default generation is its number."""
        made = self._somewhere()
        made.mkdir()
        (made / "config.pbtxt").write_text(config(extra, workers=workers))
        for version in versions:
            (made / str(version)).mkdir()
            (made / str(version) / "model.py").write_text(code(**{"generation": version, **options}))
        return made.rename(self.repository / name)

    def version(self, model: str, version: int, **options: Any) -> None:
        """Put in one more version of a model."""
        made = self._somewhere()
        made.mkdir()
        (made / "model.py").write_text(code(**{"generation": version, **options}))
        made.rename(self.repository / model / str(version))

    def write(self, path: str, text: str) -> None:
        """Replace one file."""
        made = self._somewhere()
        made.write_text(text)
        os.replace(made, self.repository / path)

    def take(self, path: str) -> Path:
        """Take a model or a file out, whole; return its new path."""
        return (self.repository / path).rename(self._somewhere())

    def remove(self, path: str) -> None:
        """Take something out for good."""
        taken = self.take(path)
        if taken.is_dir():
            shutil.rmtree(taken)
        else:
            taken.unlink()

    def _somewhere(self) -> Path:
        return self._bench / str(next(self._numbers))


# -- what the server says


async def entries(server: ServerProcess, model: str = "", *, ready: bool = False) -> list[dict[str, Any]]:
    """Return the index as it is on the wire, or what it says of one model."""
    async with await server.connect() as connection:
        return await index_of(connection, model, ready=ready)


async def index_of(connection: Connection, model: str = "", *, ready: bool = False) -> list[dict[str, Any]]:
    """The same over an open connection."""
    body = b'{"ready":true}' if ready else b""
    found: list[dict[str, Any]] = (await connection.request("POST", "/v2/repository/index", body)).json()
    return [entry for entry in found if not model or entry["name"] == model]


async def states(server: ServerProcess, model: str) -> dict[int, str]:
    """Return the state of each version of a model that the index knows."""
    return {
        int(entry["version"]): entry["state"] for entry in await entries(server, model) if "version" in entry
    }


async def until_states(server: ServerProcess, model: str, wanted: Mapping[int, str]) -> None:
    """Wait until the versions of a model are in those states, and no other is known."""

    async def reached() -> bool:
        return await states(server, model) == wanted

    await eventually(reached, within=_PATIENCE)


async def post(server: ServerProcess, path: str, document: Any = None) -> Response:
    """One POST on a fresh connection, with a JSON body."""
    async with await server.connect() as connection:
        body = b"" if document is None else json.dumps(document).encode()
        return await connection.request("POST", path, body)


async def load(server: ServerProcess, model: str, **parameters: Any) -> Response:
    """Ask for a load, and accept any outcome."""
    document = {"parameters": parameters} if parameters else None
    return await post(server, f"/v2/repository/models/{model}/load", document)


async def unload(server: ServerProcess, model: str) -> Response:
    """Ask for an unload, and accept any outcome."""
    return await post(server, f"/v2/repository/models/{model}/unload")


async def ready(server: ServerProcess, model: str = "", version: int = 0) -> bool:
    """Ask whether the server is ready, or a model, or a version of it."""
    path = "/v2/health/ready"
    if model:
        path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/ready"
    return (await server.get(path)).status == 200


async def pids(server: ServerProcess, model: str, version: int = 1) -> set[int]:
    """Return the workers that serve a version."""
    found: dict[int, Any] = {}
    for node in _below(await server.node("models")):
        info = node["info"]
        if (info.get("model"), info.get("version")) == (model, version):
            found.update(
                {
                    each["info"]["pid"]: None
                    for each in _below(node)
                    if "/instances/" in each["path"] and serving(each)
                }
            )
    return set(found)


async def replaced(server: ServerProcess, model: str, before: set[int]) -> set[int]:
    """Wait until none of the workers `before` serves; return those that do."""
    now: set[int] = set()

    async def gone() -> bool:
        nonlocal now
        now = await pids(server, model)
        return bool(now) and not now & before

    await eventually(gone)
    return now


def _below(node: Node) -> Iterator[Node]:
    for child in node["children"]:
        yield child
        yield from _below(child)


# -- tritonclient


async def triton(server: ServerProcess, method: str, *args: Any, **options: Any) -> Any:
    """Call a method of tritonclient's on a thread. Raises InferenceServerException."""
    return await trio.to_thread.run_sync(partial(_triton, server.url, method, args, options))


async def triton_refusal(server: ServerProcess, method: str, *args: Any, **options: Any) -> tuple[str, str]:
    """Return the status and the message of the error that the call must get."""
    try:
        answer = await triton(server, method, *args, **options)
    except InferenceServerException as error:
        return error.status(), error.message()
    raise AssertionError(f"{method} was answered {answer}")


def _triton(url: str, method: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    with tritonclient.http.InferenceServerClient(
        url, network_timeout=_PATIENCE, connection_timeout=_PATIENCE
    ) as client:
        return getattr(client, method)(*args, **options)


# -- who answers


async def identity(
    server: ServerProcess, model: str, ticket: int = 1, *, version: int = 0
) -> tuple[int, int]:
    """Have a model answer; return its version and generation."""
    async with await server.connect() as connection:
        response = await connection.request(
            "POST",
            _infer_path(model, version),
            _body(ticket),
            inference_header_content_length=str(len(_ASKED)),
        )
    assert response.status == 200, response.body
    return _identity(response, ticket)


async def refusal(server: ServerProcess, model: str, *, version: int = 0) -> tuple[int, str]:
    """Return the status and the message of the error that a request must get."""
    async with await server.connect() as connection:
        response = await connection.request(
            "POST", _infer_path(model, version), _body(1), inference_header_content_length=str(len(_ASKED))
        )
    assert response.status >= 400, response.body
    return response.status, response.error


_ASKED = json.dumps(
    {
        "inputs": [
            {"name": "TICKET", "shape": [1], "datatype": "INT32", "parameters": {"binary_data_size": 4}}
        ],
        "parameters": {"binary_data_output": True},
    }
).encode()


def _infer_path(model: str, version: int) -> str:
    return f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"


def _body(ticket: int) -> bytes:
    return _ASKED + ticket.to_bytes(4, "little")


def _identity(response: Response, ticket: int) -> tuple[int, int]:
    """Check that the answer is to this ticket; return the version and the generation that gave it."""
    echo, version, generation = (int(each) for each in response.tensors()["IDENTITY"])
    assert echo == ticket
    assert response.json()["model_version"] == str(version)
    return version, generation


@dataclass(slots=True)
class Witness:
    """What clients of one model saw. Generations only grow, so a lower one comes from a retired version."""

    newest: int = 0  # the generation that was seen, or reported, to have taken over
    version_of: dict[int, int] = field(default_factory=dict)  # by generation, where that is known
    seen: Counter[int] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    stopping: bool = False

    @property
    def answered(self) -> int:
        """Answers so far."""
        return sum(self.seen.values())

    def reported(self, generation: int) -> None:
        """The server has said that everything before this generation is retired."""
        self.newest = max(self.newest, generation)

    def heard(self, ticket: int, floor: int, response: Response) -> None:
        """Check one answer to a request that was sent when `floor` had taken over."""
        if response.status != 200:
            self.failed.append(f"{response.status} {response.error}")
            return
        try:
            version, generation = _identity(response, ticket)
        except AssertionError as error:
            self.wrong.append(f"{ticket}: {error}")
            return
        self.seen[generation] += 1
        if self.version_of.get(generation, version) != version:
            self.wrong.append(f"generation {generation} as version {version}")
        if generation < floor:
            self.stale.append(f"generation {generation} after {floor}")
        self.newest = max(self.newest, generation)

    def check(self) -> None:
        """Check that no request failed and that no client got an answer from a retired version."""
        assert not self.failed, (len(self.failed), self.failed[:5])
        assert not self.stale, (len(self.stale), self.stale[:5])
        assert not self.wrong, (len(self.wrong), self.wrong[:5])

    async def heard_more(self, count: int = CLIENTS) -> None:
        """Wait until `count` more answers have come."""
        wanted = self.answered + count

        async def enough() -> bool:
            return self.answered >= wanted

        await eventually(enough)


@asynccontextmanager
async def witnessed(server: ServerProcess, model: str, *, clients: int = CLIENTS) -> AsyncIterator[Witness]:
    """Run clients around the block, each with one request at a time; then check what they saw."""
    witness = Witness()
    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(_client, server, model, number, clients, witness)
        yield witness
        witness.stopping = True
    witness.check()


async def _client(server: ServerProcess, model: str, number: int, clients: int, witness: Witness) -> None:
    path, length = _infer_path(model, 0), str(len(_ASKED))
    async with await server.connect() as connection:
        for ticket in itertools.count(number, clients):
            if witness.stopping:
                return
            floor = witness.newest
            try:
                response = await connection.request(
                    "POST", path, _body(ticket), inference_header_content_length=length
                )
            except Lost as error:
                witness.failed.append(str(error))
                return
            witness.heard(ticket, floor, response)


def tensor(ticket: int) -> Any:
    """Return the input, for tritonclient."""
    made = tritonclient.http.InferInput("TICKET", [1], "INT32")
    made.set_data_from_numpy(np.array([ticket], np.int32))
    return made
