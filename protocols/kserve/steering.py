"""What a controller of several servers shows: the epoch of a change, and what it writes into the register."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from actors.values.callers import Action, Caller
from actors.values.errors import InvalidArgument, OtherReplica, PermissionDenied
from actors.values.interfaces import PermitIn, Registered, Steering
from actors.values.requests import FLAG_SEQUENCE_START, InferRequest
from actors.values.tensors import Buffer
from protocols.kserve.caps import REGISTER_BODY
from protocols.kserve.documents import Verbatim, dump

T = TypeVar("T")

EPOCH: Final = "tritium-epoch"
"""The header, or the metadata key, by which a change shows the epoch of its controller."""

REPLICA: Final = "tritium-replica"
"""The header, or the metadata key, that names a server: in its answers, and in requests of a sequence."""

_MOST: Final = 2**63 - 1
_DIGITS: Final = re.compile(r"[0-9]{1,19}")
_SHOWN: Final = 253  # characters of a name that an error repeats
_MEMBERS: Final = frozenset(("epoch", "sequence", "document", "held"))


class Posted(NamedTuple):
    """What a controller writes into the register: an epoch, and perhaps a document with its sequence.

    `held` says whether the server is to be kept from being ready; None leaves that as it is.
    """

    epoch: int
    sequence: int
    document: bytes | None
    held: bool | None = None


def parse_epoch(shown: str | bytes | None) -> int | None:
    """Return the epoch that a request shows, None for none. Raises InvalidArgument."""
    if shown is None:
        return None
    text = shown.decode("latin-1") if isinstance(shown, bytes) else shown
    if not _DIGITS.fullmatch(text) or not 1 <= int(text) <= _MOST:
        raise InvalidArgument(f"'{EPOCH}' is a whole number from 1 to {_MOST}, and not '{text[:40]}'")
    return int(text)


def posted(body: Buffer) -> Posted:
    """Return what the body of a request to the register says. Raises InvalidArgument.

    It is read in one piece: within `REGISTER_BODY` even an attack takes some 8 ms. Triton's liberties with
    JSON are none here, since the document is written again.
    """
    if len(body) > REGISTER_BODY:
        raise InvalidArgument(
            f"a request to the register has {REGISTER_BODY} bytes at most, and this body {len(body)}"
        )
    try:
        document = orjson.loads(body) if body else None
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"the body is no JSON text: {error}") from None
    if type(document) is not dict:
        raise InvalidArgument(
            "the body is a JSON object: 'epoch' alone takes over, and 'epoch', 'sequence' and 'document' keep"
            " a document"
        )
    unknown = sorted(document.keys() - _MEMBERS)
    if unknown:
        raise InvalidArgument(
            f"unknown member '{unknown[0][:40]}': there are 'epoch', 'sequence', 'document', 'held'"
        )
    epoch = _whole(document, "epoch", least=1)
    if "document" not in document:
        for name in ("sequence", "held"):
            if name in document:
                raise InvalidArgument(f"'{name}' goes with a 'document', and there is none")
        return Posted(epoch, 0, None)
    kept = document["document"]
    if type(kept) is not dict:
        raise InvalidArgument("'document' is a JSON object")
    sequence = _whole(document, "sequence", least=0)
    held = document.get("held")
    if held is not None and type(held) is not bool:
        raise InvalidArgument(f"'held' is {str(held)[:40]!r}: it is true or false")
    try:
        return Posted(epoch, sequence, orjson.dumps(kept, option=orjson.OPT_SORT_KEYS), held)
    except TypeError as error:  # too many levels
        raise InvalidArgument(f"'document' can't be kept: {error}") from error


def _whole(document: dict[str, Any], name: str, *, least: int) -> int:
    value = document.get(name)
    if type(value) is not int or not least <= value <= _MOST:
        given = "is missing" if name not in document else f"is {str(value)[:40]!r}"
        raise InvalidArgument(f"'{name}' {given}: it is a whole number from {least} to {_MOST}")
    return value


def shown(registered: Registered, *, held: bool) -> bytes:
    """Return the JSON text of the register. `held`: a controller keeps the server from being ready."""
    document = registered.document
    told: dict[str, object] = {
        "replica": registered.replica,
        "boot": registered.boot,
        "epoch": registered.epoch,
        "sequence": registered.sequence,
        "document_epoch": registered.document_epoch,
        "held": held,
        "document": None if document is None else Verbatim(document),
    }
    if registered.available_bytes is not None:
        told["memory"] = {"available_bytes": registered.available_bytes}
    return dump(told)


def check_steers(caller: Caller | None) -> None:
    """Raise PermissionDenied unless `caller` may change every model: an epoch holds for all of them."""
    action = Action.MODEL_REPOSITORY
    if caller is not None and not caller.may_all(action):
        raise PermissionDenied(
            f"the register and a new epoch concern all models, and '{caller.name}' may use '{action.value}'"
            " on some only"
        )


def check_replica(request: InferRequest, shown: str, own: str) -> None:
    """Raise OtherReplica for a request that goes on with a sequence which began on the replica `shown`.

    Here, on the replica `own`, the id may be that of another client's sequence.
    """
    if shown == own or not request.correlation_id or request.flags & FLAG_SEQUENCE_START:
        return
    here = f"'{own}'" if own else "a server without --replica-name"
    raise OtherReplica(
        f"{request.prefix}the sequence {request.correlation_id} to model '{request.model_name}' began on the"
        f" replica '{shown[:_SHOWN]}', and this is {here}: begin it anew, with the START flag"
    )


class Steered:
    """A change, with the epoch that it shows; None where no controller asks for it."""

    def __init__(self, steering: Steering, epoch: int | None, caller: Caller | None) -> None:
        self._steering = steering
        self._epoch = epoch
        self._caller = caller

    async def carry_out(self, change: Callable[[], Awaitable[T]]) -> T:
        """Carry out the change at once. Raises TakenOver, and PermissionDenied for who may raise no epoch."""
        if self._epoch is not None:
            if self._epoch > self._steering.epoch:
                check_steers(self._caller)
            self._steering.begin(self._epoch)
        return await change()

    def permit(self, permit: PermitIn) -> PermitIn:
        """Return what judges by the epoch, too, once the models of a change are found."""
        epoch = self._epoch
        if epoch is None:
            return permit

        def judge(model: str, repository: str) -> None:
            permit(model, repository)
            self._steering.begin(epoch)

        return judge
