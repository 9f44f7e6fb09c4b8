"""Clients' shared memory: whatever is registered, asked for and done to objects, answers are right or errors.

An input is lines, each a deed of a client: it registers, unregisters, asks for a status, sends a request over
either protocol, ends one, or resizes, unlinks or makes an object. What comes of it is held against a model of
a few lines. At the end, nothing is open and nothing is held.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

import trio

from actors.regions.policy import RegionLimits
from actors.regions.registry import RegionRegistry
from actors.regions.use import AT_ONCE
from actors.seams import threads
from actors.supervision.supervisor import Supervisor
from actors.values.datatypes import DataType
from actors.values.errors import AlreadyExists, InvalidArgument, NotFound, TritiumError, Unavailable
from actors.values.regions import Staying
from actors.values.requests import InferRequest, InferResponse, ReplyPort
from actors.values.tensors import Tensor
from protocols.grpc.codec.infer_request import InferDecoder as GrpcDecoder
from protocols.kserve.proto.grpc_service_pb2 import ModelInferRequest
from protocols.kserve.requests import Arrival
from protocols.kserve.requests import InferDecoder as HttpDecoder
from tests.fuzz.mutation import damaged
from tests.protocols.fakes import make_spec

_SPEC = make_spec(
    inputs=[("X", DataType.UINT8, (-1,)), ("Z", DataType.UINT8, (-1,))],
    outputs=[("Y", DataType.UINT8, (-1,))],
    max_batch_size=0,
)
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_MOST: Final = 2**64 - 1
_KEYS: Final = [f"tritium-fuzz-{os.getpid()}-{number}" for number in range(3)]
_NAMES: Final = ("a", "b", "c", "ü")
_SIZES: Final = (0, 1, 64, _PAGE, _PAGE + 1, AT_ONCE, AT_ONCE + 1, 2**20)
_NUMBERS: Final = (*_SIZES, 3 * _PAGE, 2**62, 2**63 - 1, _MOST)
_LIMITS: Final = RegionLimits(regions=3, nbytes=3 * 2**20)


class _InThisThread:
    """Does threads' work at once."""

    async def run_sync(self, function: Callable[..., Any], *args: object, **_: object) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*args)


class _Object:
    """An object as its client has it open."""

    def __init__(self, key: str, size: int) -> None:
        self.fileno = os.open(f"/dev/shm/{key}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self.fileno, size)

    @property
    def size(self) -> int:
        return os.fstat(self.fileno).st_size


class _Registered:
    """What the model knows of a region."""

    def __init__(self, made: _Object, key: str, offset: int, byte_size: int) -> None:
        self.object, self.key, self.offset, self.byte_size = made, key, offset, byte_size
        self.users = 0
        self.leaving = False


class _Port(ReplyPort):
    def __init__(self) -> None:
        self.part: InferResponse | TritiumError | None = None

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        assert self.part is None
        assert final
        self.part = part


class Regions:
    """Plays clients."""

    name = "regions"
    prefix = "regions"

    def __init__(self) -> None:
        self.deeds: Counter[str] = Counter()  # what came of all that was tried

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """Some deeds; damaged or not."""
        octets = _drawn(chance).encode() if chance.random() < 0.9 else chance.choice(corpus)
        return octets if chance.random() < 0.8 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Do all of them."""
        deeds = [line.split(" ") for line in octets.decode("utf-8", "replace").split("\n")][:40]
        return trio.run(_Play(deeds, self.deeds).run)


def _objects_open() -> int:
    """Return how many shared memory objects this process has open. It has other descriptors that come and go."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith(("/dev/shm/", "/memfd:"))
    return count


def _drawn(chance: Random) -> str:
    lines = [f"make {key} {chance.choice((2**20, 2**20, _PAGE))}" for key in range(chance.randint(2, 3))]
    named = list(_NAMES[: chance.randint(0, 2)])
    lines += [
        f"register {name} {place} 0 {chance.choice((_PAGE, 2**19))}" for place, name in enumerate(named)
    ]
    for _ in range(chance.randint(4, 24)):
        name, key = (
            chance.choice(named or _NAMES) if chance.random() < 0.8 else _NAMES[0],
            chance.randrange(3),
        )
        usual = chance.random() < 0.7
        match chance.choices(
            ("register", "infer", "end", "unregister", "status", "resize", "unlink", "make"),
            (6, 8, 3, 2, 1, 2, 1, 1),
        )[0]:
            case "register":
                offset = chance.choice((0, _PAGE)) if usual else chance.choice(_NUMBERS)
                size = chance.choice((_PAGE, AT_ONCE + _PAGE, 2**19)) if usual else chance.choice(_NUMBERS)
                name = chance.choice(_NAMES)
                named += [name] * usual
                lines.append(f"register {name} {key} {offset} {size}")
            case "infer":
                at = chance.choice((0, 1, 64)) if usual else chance.choice(_NUMBERS)
                size = (
                    chance.choice((*_SIZES[:3], _PAGE - 64, AT_ONCE, AT_ONCE + 1))
                    if usual
                    else chance.choice(_NUMBERS)
                )
                out = chance.choice((name, name, "-", chance.choice(_NAMES)))
                room = size if usual else chance.choice(_NUMBERS)
                protocol = chance.choice(("http", "grpc"))
                lines.append(f"infer {protocol} {name} {at} {size} {out} {chance.choice((0, 64))} {room}")
            case "end":
                lines.append("end")
            case "resize" | "make" as deed:
                lines.append(f"{deed} {key} {chance.choice(_SIZES)}")
            case "unlink":
                lines.append(f"unlink {key}")
            case deed:
                lines.append(f"{deed} {chance.choice((name, '*'))}")
    return "\n".join(lines)


class _Play:
    """One input, from its first deed to its last."""

    def __init__(self, deeds: list[list[str]], tally: Counter[str]) -> None:
        self._deeds = deeds
        self._tally = tally
        self._objects: dict[int, _Object] = {}  # by the key under which each can be opened
        self._every: list[_Object] = []
        self._known: dict[str, _Registered] = {}
        self._asked: list[tuple[InferRequest, list[_Registered]]] = []
        self._outcomes: list[str] = []

    async def run(self) -> str:
        threads.give(_InThisThread())
        open_before = _objects_open()
        self._registry = RegionRegistry(allowed=True, limits=_LIMITS, claims=_Claim)
        self._decoders = {"http": HttpDecoder(regions=self._registry), "grpc": GrpcDecoder(self._registry)}
        try:
            async with trio.open_nursery() as nursery:
                supervisor = Supervisor([self._registry.spec()])
                await nursery.start(supervisor.serve)
                for deed in self._deeds:
                    await self._do(deed)
                while self._asked:
                    self._end()
                self._registry.unregister_system()
                assert not len(self._registry.table)
                supervisor.stop()
        finally:
            self._registry.close()
            for each in self._every:
                os.close(each.fileno)
            for key in _KEYS:
                with suppress(FileNotFoundError):
                    os.unlink(f"/dev/shm/{key}")
        assert _objects_open() == open_before
        self._tally.update(self._outcomes)
        return self._outcomes[-1] if self._outcomes else "nothing"

    async def _do(self, deed: list[str]) -> None:
        try:
            match deed:
                case ["make", key, size]:
                    self._make(int(key) % 3, int(size) % (2**21))
                case ["resize", key, size]:
                    if (found := self._objects.get(int(key) % 3)) is not None:
                        os.ftruncate(found.fileno, int(size) % (2**21))
                case ["unlink", key]:
                    if self._objects.pop(int(key) % 3, None) is not None:
                        os.unlink(f"/dev/shm/{_KEYS[int(key) % 3]}")
                case ["register", name, key, offset, size]:
                    await self._register(name, int(key) % 3, int(offset) & _MOST, int(size) & _MOST)
                case ["unregister", name]:
                    self._unregister(name)
                case ["status", name]:
                    self._status(name)
                case ["infer", protocol, name, at, size, out, out_at, room] if protocol in self._decoders:
                    numbers = [int(each) & (2**63 - 1) for each in (at, size, out_at, room)]
                    await self._infer(protocol, name, out, numbers)
                case ["end"] if self._asked:
                    self._end()
        except (ValueError, OverflowError):
            pass  # a damaged number

    def _make(self, key: int, size: int) -> None:
        if key not in self._objects:
            self._objects[key] = _Object(_KEYS[key], size)
            self._every.append(self._objects[key])

    async def _register(self, name: str, key: int, offset: int, size: int) -> None:
        found = self._objects.get(key)
        held = sum(each.byte_size for each in self._known.values())
        if name in self._known:
            expected = "AlreadyExists"
        elif found is None:
            expected = "Internal"
        elif offset + size > found.size or not size or offset % _PAGE:
            expected = "InvalidArgument"
        elif len(self._known) >= _LIMITS.regions or held + size > _LIMITS.nbytes:
            expected = "Unavailable"
        else:
            expected = "registered"
        try:
            await self._registry.register_system(name, f"/{_KEYS[key]}", offset=offset, byte_size=size)
            outcome = "registered"
        except (AlreadyExists, Unavailable, TritiumError) as error:
            outcome = type(error).__name__
        assert outcome == expected, (outcome, expected)
        if outcome == "registered":
            assert found is not None
            self._known[name] = _Registered(found, _KEYS[key], offset, size)
        self._outcomes.append(f"register: {outcome}")

    def _unregister(self, name: str) -> None:
        names = list(self._known) if name in {"*", ""} else [name]
        self._registry.unregister_system("" if name == "*" else name)
        for each in names:
            if (region := self._known.get(each)) is not None:
                region.leaving = True
                self._forget()

    def _forget(self) -> None:
        for name, region in list(self._known.items()):
            if region.leaving and not region.users:
                del self._known[name]

    def _status(self, name: str) -> None:
        try:
            told = self._registry.system_regions("" if name == "*" else name)
        except NotFound:
            assert name not in self._known
            return
        names = sorted(self._known) if name in {"*", ""} else [name]
        assert [(each.name, each.offset, each.byte_size) for each in told] == [
            (each, self._known[each].offset, self._known[each].byte_size) for each in names
        ]

    async def _infer(self, protocol: str, name: str, out: str, numbers: list[int]) -> None:
        at, size, out_at, room = numbers
        port = _Port()
        region, target = self._known.get(name), self._known.get(out)
        wrong = _wrong(region, at, size) or (out != "-" and _wrong(target, out_at, room)) or ""
        try:
            request = self._decoded(protocol, name, out, numbers, port)
            assert request.regions is not None
        except TritiumError as error:
            outcome = type(error).__name__
        else:
            outcome = ""
        expected = wrong or (
            "InvalidArgument" if region is not None and _cut_at_once(region, at, size) else ""
        )
        assert outcome == expected, (outcome, expected)
        if outcome:
            self._outcomes.append(f"infer: {outcome}")
            return
        assert region is not None
        used = [region]
        region.users += 1
        if out != "-" and target is not None and target is not region:
            target.users += 1
            used.append(target)
        self._asked.append((request, used))
        assert request.regions is not None
        try:
            if request.regions.must_read(stay=Staying()):
                await request.regions.read(stay=Staying())
        except InvalidArgument:
            assert _cut(region, at, size)
            self._outcomes.append("infer: cut off")
            return
        data = bytes(request.inputs[0].data)
        assert data == os.pread(region.object.fileno, size, region.offset + at)
        assert len(data) == size
        await self._answer(request, data, None if out == "-" else target, out_at, room, port)

    def _decoded(self, protocol: str, name: str, out: str, numbers: list[int], port: _Port) -> InferRequest:
        at, size, out_at, room = numbers
        behind = b"zz"
        if protocol == "http":
            place = {
                "shared_memory_region": name,
                "shared_memory_offset": at,
                "shared_memory_byte_size": size,
            }
            given = {"name": "X", "datatype": "UINT8", "shape": [size], "parameters": place}
            wire = {"name": "Z", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": 2}}
            document: dict[str, Any] = {"inputs": [given, wire]}
            if out != "-":
                place = {
                    "shared_memory_region": out,
                    "shared_memory_offset": out_at,
                    "shared_memory_byte_size": room,
                }
                document["outputs"] = [{"name": "Y", "parameters": place}]
            text = json.dumps(document).encode()
            decoder = self._decoders["http"]
            assert isinstance(decoder, HttpDecoder)
            return decoder.decode(text + behind, len(text), _SPEC, Arrival(-1, port, 0.0))[0]
        message = ModelInferRequest(model_name="add", raw_input_contents=[behind])
        holders: list[Any] = [message.inputs.add(name="X", datatype="UINT8", shape=[size])]
        message.inputs.add(name="Z", datatype="UINT8", shape=[2])
        places = [(name, at, size)]
        if out != "-":
            holders.append(message.outputs.add(name="Y"))
            places.append((out, out_at, room))
        for holder, (region, offset, nbytes) in zip(holders, places, strict=True):
            holder.parameters["shared_memory_region"].string_param = region
            holder.parameters["shared_memory_offset"].int64_param = offset
            holder.parameters["shared_memory_byte_size"].int64_param = nbytes
        decoder = self._decoders["grpc"]
        assert isinstance(decoder, GrpcDecoder)
        target = decoder.peek(message.SerializeToString())
        return decoder.decode(target, _SPEC, requested_version=-1, reply=port, accepted_at=0.0)[0]

    async def _answer(
        self,
        request: InferRequest,
        data: bytes,
        target: _Registered | None,
        at: int,
        room: int,
        port: _Port,
    ) -> None:
        answer = bytes(byte ^ 1 for byte in data[:64]) + data[64:]
        before = None if target is None else target.object.size
        response = InferResponse(model_name="add", model_version=1)
        response.outputs = [Tensor("Y", DataType.UINT8, (len(answer),), answer)]
        released: list[bool] = []
        response.on_release(lambda: released.append(True))
        request.reply.put(response, final=True)
        while port.part is None:
            await trio.lowlevel.checkpoint()
        if target is None:
            assert port.part is response
            assert bytes(response.outputs[0].data) == answer
            self._outcomes.append("infer: over the wire")
            return
        place = target.offset + at
        assert target.object.size == before
        if isinstance(port.part, TritiumError):
            assert len(answer) > room or place + len(answer) > target.object.size
            assert released == [True]
            self._outcomes.append(f"infer: output {type(port.part).__name__}")
            return
        assert len(answer) <= room
        assert bytes(port.part.outputs[0].data) == b""
        assert os.pread(target.object.fileno, len(answer), place) == answer
        self._outcomes.append("infer: written")

    def _end(self) -> None:
        request, used = self._asked.pop(0)
        assert request.regions is not None
        request.regions.end()
        request.regions.end()
        for region in used:
            region.users -= 1
        self._forget()
        assert [entry.region.name for entry in self._registry.table] == list(self._known)


class _Claim:
    async def take(self, size: int, *, urgent: bool = False) -> bool:
        del size, urgent
        await trio.lowlevel.checkpoint()
        return True

    def release(self) -> None:
        """Nothing was taken."""


def _wrong(region: _Registered | None, at: int, size: int) -> str:
    """Return the error of a place, which is found before any byte is looked at."""
    if region is None:
        return "NotFound"
    return "InvalidArgument" if at >= region.byte_size or at + size > region.byte_size else ""


def _cut_at_once(region: _Registered, at: int, size: int) -> bool:
    return size <= AT_ONCE and _cut(region, at, size)


def _cut(region: _Registered, at: int, size: int) -> bool:
    return region.offset + at + size > region.object.size and size > 0
