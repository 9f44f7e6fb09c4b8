"""Our side of HTTP/2 against the client of the `h2` library, over byte strings cut and delayed at will.

Hypothesis drives both sides through legal exchanges. h2 is the referee of everything we send. What each side
was told is compared with what the other side said.
"""

from dataclasses import dataclass, field
from random import Random
from typing import cast

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    UnknownFrameReceived,
)
from h2.settings import SettingCodes
from hyperframe.frame import ExtensionFrame
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocols.http2.frames import ErrorCode
from protocols.http2.hpack import encode_headers
from protocols.http2.streams import Http2Limits, Stream
from tests.fuzz import h2wire as wire
from tests.fuzz.recorder import Rig
from tests.support.examples import examples

Fields = list[tuple[bytes, bytes]]

_GRACEFUL = 0xFA
"""Stands for a GOAWAY without an error on its way to h2, which would take it for the end of the connection."""

_HEAD: Fields = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_TRAILERS: Fields = [(b"grpc-status", b"0"), (b"grpc-message", b"")]

names = st.sampled_from([b"x-a", b"x-b", b"grpc-timeout", b"user-agent", b"x-long-bin"])
values = st.one_of(
    st.sampled_from([b"", b"1S", b"same value", b"v" * 300, b"\xe9\xff"]),
    st.text("abc/; =", max_size=40).map(lambda text: text.strip().encode()),
)
extra = st.lists(st.tuples(names, values), max_size=5)
sizes = st.one_of(st.integers(0, 100), st.sampled_from([1, 16_383, 16_384, 16_385, 65_535, 200_000]))
paddings = st.one_of(st.none(), st.integers(0, 255))
cuts = st.lists(st.integers(1, 70_000), max_size=6)
codes = st.sampled_from([ErrorCodes.CANCEL, ErrorCodes.NO_ERROR, ErrorCodes.INTERNAL_ERROR])


@dataclass(eq=False, slots=True)
class Exchange:
    """One stream as both sides should come to know it."""

    id: int
    head: Fields
    asked: bytearray = field(default_factory=bytearray)
    asked_all: bool = False
    cancelled: int | None = None

    answer_head: Fields | None = None
    answer: bytearray = field(default_factory=bytearray)
    answered_all: bool = False
    refused: int | None = None

    seen_head: Fields | None = None
    seen: bytearray = field(default_factory=bytearray)
    seen_trailers: Fields | None = None
    seen_end: bool = False
    seen_reset: int | None = None


def payload(size: int, at: int) -> bytes:
    """Return `size` bytes that differ by their place in the stream."""
    return bytes((at + step) % 251 for step in range(min(size, 251))) * (size // 251 + 1)


at_client = st.runner().flatmap(lambda peers: st.sampled_from(peers.at_client()))
at_server = st.runner().flatmap(lambda peers: st.sampled_from(peers.at_server()))


class Peers(RuleBasedStateMachine):
    """Two peers and the two byte strings in transit between them."""

    def __init__(self) -> None:
        super().__init__()
        self.sound = False

    @initialize(
        streams=st.sampled_from([1, 3, 100]),
        window=st.sampled_from([65_535, 100_000, 1 << 26]),
        frame=st.sampled_from([16_384, 16_385, 1 << 20]),
    )
    def connect(self, streams: int, window: int, frame: int) -> None:
        self.window = window
        self.rig = Rig(Http2Limits(max_streams=streams, connection_window=window, max_frame_size=frame))
        self.client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.exchanges_by_id: dict[int, Exchange] = {}
        self.credited: dict[int, int] = {}
        self.to_server = bytearray()
        self.to_client = bytearray()
        self.begun = bytearray()
        self.pings: list[bytes] = []
        self.pongs: list[bytes] = []
        self.our_pings: list[bytes] = []
        self.resized = 0
        self.settings_due = True
        self.last: int | None = None
        self.leaving = False
        self.client.initiate_connection()
        self._settle()

    # -- the client ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.may_open())
    @rule(fields=extra, end=st.booleans(), weight=st.one_of(st.none(), st.integers(1, 256)))
    def open(self, fields: Fields, end: bool, weight: int | None) -> None:
        number = self.client.get_next_available_stream_id()
        head = [*wire.REQUEST, *fields]
        self.client.send_headers(number, head, end_stream=end, priority_weight=weight)
        self.resized = 0
        exchange = Exchange(number, head, asked_all=end)
        self.exchanges_by_id[number] = exchange

    @precondition(lambda self: self.at_client())
    @rule(exchange=at_client, size=sizes, padding=paddings, end=st.booleans())
    def ask(self, exchange: Exchange, size: int, padding: int | None, end: bool) -> None:
        if not self._may_ask(exchange):
            return
        overhead = 0 if padding is None else padding + 1
        room = min(self.client.local_flow_control_window(exchange.id), self.client.max_outbound_frame_size)
        if room < overhead:
            return
        octets = payload(size, len(exchange.asked))[: min(size, room - overhead)]
        self.client.send_data(exchange.id, octets, end_stream=end, pad_length=padding)
        exchange.asked += octets
        exchange.asked_all = end

    @precondition(lambda self: self.at_client())
    @rule(exchange=at_client, fields=extra)
    def end_with_trailers(self, exchange: Exchange, fields: Fields) -> None:
        if self._may_ask(exchange):
            self.client.send_headers(exchange.id, fields or [(b"x-t", b"")], end_stream=True)
            self.resized = 0
            exchange.asked_all = True

    @precondition(lambda self: self.at_client())
    @precondition(lambda self: len(self.exchanges_by_id) % 3 == 0)
    @rule(exchange=at_client, code=codes)
    def cancel(self, exchange: Exchange, code: ErrorCodes) -> None:
        if not self._over_at_client(exchange):
            self.client.reset_stream(exchange.id, code)
            exchange.cancelled = int(code)

    @precondition(lambda self: self.at_client())
    @rule(exchange=at_client, weight=st.integers(1, 256))
    def prioritise(self, exchange: Exchange, weight: int) -> None:
        self.client.prioritize(exchange.id, weight=weight)

    @rule(size=st.sampled_from([0, 1, 100, 65_535, 1 << 20]))
    def set_initial_window(self, size: int) -> None:
        self._set({SettingCodes.INITIAL_WINDOW_SIZE: size})

    @rule(size=st.sampled_from([16_384, 16_385, 1 << 20, (1 << 24) - 1]))
    def set_frame_size(self, size: int) -> None:
        self._set({SettingCodes.MAX_FRAME_SIZE: size})

    @rule(size=st.sampled_from([0, 50, 4096, 65_536]), push=st.integers(0, 1))
    def set_the_rest(self, size: int, push: int) -> None:
        self._set({SettingCodes.HEADER_TABLE_SIZE: size, SettingCodes.ENABLE_PUSH: push})

    @precondition(lambda self: self.resized < 2)
    @rule(size=st.sampled_from([0, 64, 300, 4096]))
    def resize_the_header_table(self, size: int) -> None:
        """Resize it at most twice between two blocks.

        RFC 7541 section 4.2 says so, and hpack's encoder leaves it to its user. If the size is set to its
        current value, that encoder forgets to announce the earlier change.
        """
        if size == self.client.encoder.header_table_size:
            return
        self.client.encoder.header_table_size = size
        self.resized += 1

    @precondition(lambda self: self.at_client())
    @rule(exchange=at_client, size=st.sampled_from([1, 10, 16_384, 100_000]))
    def widen(self, exchange: Exchange, size: int) -> None:
        if not self._over_at_client(exchange) and not exchange.seen_end:
            self.client.increment_flow_control_window(size, exchange.id)

    @rule(size=st.sampled_from([1, 1000, 65_535]))
    def widen_connection(self, size: int) -> None:
        self.client.increment_flow_control_window(size)

    # -- the server ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.at_server())
    @rule(exchange=at_server)
    def answer_head(self, exchange: Exchange) -> None:
        stream = self._stream(exchange)
        if stream is not None and exchange.answer_head is None:
            self.rig.connection.answers.head(stream, encode_headers(_HEAD))
            exchange.answer_head = _HEAD

    @precondition(lambda self: self.at_server())
    @rule(exchange=at_server, size=sizes, pieces=st.integers(1, 4), keep=st.booleans())
    def answer_more(self, exchange: Exchange, size: int, pieces: int, keep: bool) -> None:
        stream = self._stream(exchange)
        if stream is None:
            return
        self.answer_head(exchange)
        octets = bytearray(payload(size, len(exchange.answer))[:size])
        exchange.answer += octets
        step = max(1, -(-size // pieces))
        views = [memoryview(octets)[at : at + step] for at in range(0, size, step)]
        self.rig.connection.answers.message(stream, views, size)
        if not keep:
            self._take(1 << 16)
            self.rig.connection.answers.own(stream)
            octets[:] = bytes(len(octets))

    @precondition(lambda self: self.at_server())
    @rule(exchange=at_server)
    def answer_trailers(self, exchange: Exchange) -> None:
        stream = self._stream(exchange)
        if stream is not None:
            self.answer_head(exchange)
            self.rig.connection.answers.trailers(stream, encode_headers(_TRAILERS))
            exchange.answered_all = True

    @precondition(lambda self: self.at_server())
    @rule(exchange=at_server, size=sizes)
    def answer(self, exchange: Exchange, size: int) -> None:
        stream = self._stream(exchange)
        if stream is None or exchange.answer_head is not None:
            return
        octets = payload(size, 0)[:size]
        self.rig.connection.answers.answer(
            stream, encode_headers(_HEAD), [octets[:1], octets[1:]], size, encode_headers(_TRAILERS)
        )
        exchange.answer_head = _HEAD
        exchange.answer += octets
        exchange.answered_all = True

    @precondition(lambda self: self.at_server())
    @rule(exchange=at_server)
    def answer_without_a_message(self, exchange: Exchange) -> None:
        stream = self._stream(exchange)
        if stream is not None and exchange.answer_head is None:
            self.rig.connection.answers.head(stream, encode_headers(_HEAD + _TRAILERS), end=True)
            exchange.answer_head = _HEAD + _TRAILERS
            exchange.answered_all = True

    @precondition(lambda self: self.at_server())
    @rule(exchange=at_server, code=st.sampled_from([ErrorCode.CANCEL, ErrorCode.INTERNAL_ERROR]))
    def refuse(self, exchange: Exchange, code: ErrorCode) -> None:
        stream = self._alive(exchange)
        if stream is not None:
            self.rig.connection.answers.reset(stream, code)
            exchange.refused = int(code)

    @rule(data=st.binary(min_size=8, max_size=8))
    def both_ping(self, data: bytes) -> None:
        self.rig.connection.control.ping(data)
        self.our_pings.append(data)
        self.client.ping(data[::-1])
        self.pings.append(data[::-1])

    @precondition(lambda self: self.at_server())
    @rule(exchange=at_server, size=st.sampled_from([1, 50_000, 1 << 20]))
    def grant(self, exchange: Exchange, size: int) -> None:
        stream = self._alive(exchange)
        if stream is not None and not exchange.asked_all:
            self.rig.connection.window.grant(stream, size)

    @rule()
    def consume(self) -> None:
        for number in self.rig.recorder.streams:
            self._credit(number)

    @precondition(lambda self: not self.leaving)
    @rule(chance=st.integers(0, 9))
    def leave(self, chance: int) -> None:
        if chance == 0:
            self.rig.connection.control.go_away(ErrorCode.NO_ERROR, b"good night")
            self.leaving = True

    # -- the wires -------------------------------------------------------------------------------------------

    @rule(at=cuts, whole=st.booleans())
    def deliver_to_server(self, at: list[int], whole: bool) -> None:
        self.to_server += self.client.data_to_send()
        size = len(self.to_server) if whole or not at else min(at[0], len(self.to_server))
        octets = bytes(self.to_server[:size])
        del self.to_server[:size]
        self.rig.send(octets, cuts=at)

    @rule(size=st.integers(1, 100_000), limit=st.sampled_from([1, 1000, 1 << 16]), rounds=st.integers(1, 3))
    def deliver_to_client(self, size: int, limit: int, rounds: int) -> None:
        for _ in range(rounds):
            self._take(limit)
        self._hear(size)

    @rule(at=cuts)
    def deliver_both_ways(self, at: list[int]) -> None:
        self.deliver_to_server(at, whole=True)
        self.deliver_to_client(1 << 20, 1 << 16, 3)

    # -- what holds ------------------------------------------------------------------------------------------

    @invariant()
    def the_server_heard_a_prefix(self) -> None:
        for number, heard in self.rig.recorder.streams.items():
            exchange = self.exchanges_by_id[number]
            assert heard.head == tuple(exchange.head)
            assert exchange.asked.startswith(heard.data)
            assert not heard.ended or (exchange.asked_all and heard.data == exchange.asked)
            assert heard.code is None or heard.code == exchange.cancelled

    @invariant()
    def the_client_heard_a_prefix(self) -> None:
        for exchange in self.exchanges_by_id.values():
            assert exchange.seen_head is None or exchange.seen_head == exchange.answer_head
            assert exchange.answer.startswith(exchange.seen)
            if exchange.seen_end:
                assert exchange.answered_all
                assert exchange.seen == exchange.answer

    @invariant()
    def only_what_is_open_is_kept(self) -> None:
        unknown = set(self.rig.connection.streams) - set(self.rig.recorder.streams)
        assert not unknown

    def teardown(self) -> None:
        """With windows open and every byte delivered, everything arrives and nothing is left."""
        if not self.sound:
            return  # h2 has already said what is wrong
        self._settle()
        self._set({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
        self._finish_answers()
        self._settle()
        for exchange in self.exchanges_by_id.values():
            self._check_complete(exchange)
        assert self.pongs == self.pings
        assert self.rig.recorder.pings.pongs == self.our_pings
        self._check_nothing_is_left()

    def _finish_answers(self) -> None:
        for exchange in self.exchanges_by_id.values():
            self.answer(exchange, 10)
            self.answer_trailers(exchange)

    def _check_complete(self, exchange: Exchange) -> None:
        heard = self.rig.recorder.streams.get(exchange.id)
        if heard is None:
            assert self.last is not None
            assert exchange.id > self.last
            return
        if exchange.cancelled is not None:
            return
        if exchange.refused is not None:
            assert exchange.seen_reset == exchange.refused or exchange.seen_end
            return
        assert exchange.seen_end
        assert exchange.seen == exchange.answer
        if exchange.seen_trailers is not None:
            assert exchange.seen_trailers == _TRAILERS
        assert exchange.seen_reset in (None, 0)

    def _check_nothing_is_left(self) -> None:
        assert not self.rig.connection.streams
        assert not self.rig.connection.outward.output
        for number in self.rig.recorder.streams:
            self._credit(number)
        self._settle()
        assert self.client.outbound_flow_control_window >= self.window // 2 - 1

    # -- who is there ----------------------------------------------------------------------------------

    def at_client(self) -> list[Exchange]:
        """The exchanges whose end the client has not seen."""
        return [one for one in self.exchanges_by_id.values() if not self._over_at_client(one)]

    def at_server(self) -> list[Exchange]:
        """What the server has not ended."""
        return [one for one in self.exchanges_by_id.values() if self._alive(one) is not None]

    def _set(self, values: dict[SettingCodes | int, int]) -> None:
        """Change settings, one frame at a time: h2 takes one acknowledgement for all that are in flight."""
        if not self.settings_due:
            self.client.update_settings(values)
            self.settings_due = True

    # -- how they are moved ----------------------------------------------------------------------------------

    def may_open(self) -> bool:
        """Whether the server lets the client open a stream."""
        return (
            self.last is None
            and self.client.open_outbound_streams < self.client.remote_settings.max_concurrent_streams
            and len(self.exchanges_by_id) < 200
        )

    def _may_ask(self, exchange: Exchange) -> bool:
        return not exchange.asked_all and not self._over_at_client(exchange)

    def _over_at_client(self, exchange: Exchange) -> bool:
        return (
            exchange.cancelled is not None
            or exchange.seen_reset is not None
            or (exchange.asked_all and exchange.seen_end)
        )

    def _alive(self, exchange: Exchange) -> Stream | None:
        return self.rig.connection.streams.get(exchange.id)

    def _stream(self, exchange: Exchange) -> Stream | None:
        return None if exchange.answered_all else self._alive(exchange)

    def _credit(self, number: int) -> None:
        stream = self.rig.recorder.known.get(number)
        if stream is not None:
            fresh = stream.received - self.credited.get(number, 0)
            self.credited[number] = stream.received
            self.rig.connection.window.consumed(fresh)

    def _take(self, limit: int) -> None:
        if self.rig.connection.outward.output:
            taken = b"".join(self.rig.connection.outward.take(limit))
            for one in wire.split(taken):
                kind = _GRACEFUL if one.kind == wire.GOAWAY and not one.number(4) else one.kind
                self.to_client += wire.frame(kind, one.flags, one.stream, one.payload)

    def _hear(self, size: int) -> None:
        self.sound = False
        while self.to_client and size > 0:
            piece = min(size, self._rest_of_frame())
            octets = bytes(self.to_client[:piece])
            del self.to_client[:piece]
            self.begun += octets
            size -= piece
            for event in self.client.receive_data(octets):
                self._note(event)
        self.sound = True

    def _rest_of_frame(self) -> int:
        """How much of a frame h2 has yet to get: it reads its own MAX_FRAME_SIZE once for each input."""
        if len(self.begun) >= 9 and len(self.begun) == 9 + int.from_bytes(self.begun[:3], "big"):
            self.begun.clear()
        if len(self.begun) < 9:
            return 9 - len(self.begun)
        return 9 + int.from_bytes(self.begun[:3], "big") - len(self.begun)

    def _note(self, event: Event) -> None:
        match event:
            case ResponseReceived(stream_id=number, headers=fields):
                assert self.exchanges_by_id[number].seen_head is None
                self.exchanges_by_id[number].seen_head = list(fields)
            case DataReceived(stream_id=number, data=octets):
                self.exchanges_by_id[number].seen += octets
            case TrailersReceived(stream_id=number, headers=fields):
                self.exchanges_by_id[number].seen_trailers = list(fields)
            case StreamEnded(stream_id=number):
                self.exchanges_by_id[number].seen_end = True
            case StreamReset(stream_id=number, error_code=code, remote_reset=True):
                assert self.exchanges_by_id[number].seen_reset is None
                self.exchanges_by_id[number].seen_reset = int(code)
            case SettingsAcknowledged():
                self.settings_due = False
            case PingAckReceived(ping_data=octets):
                self.pongs.append(octets)
            case UnknownFrameReceived(frame=frame):
                assert self.leaving
                self.last = int.from_bytes(cast("ExtensionFrame", frame).body[:4], "big")
            case ConnectionTerminated():
                raise AssertionError(f"we ended the connection: {event}")

    def _settle(self) -> None:
        """Deliver everything both ways, with windows opened at the client, until both sides are silent."""
        while True:
            self.to_server += self.client.data_to_send()
            self.rig.send(bytes(self.to_server))
            moved = len(self.to_server)
            self.to_server.clear()
            while self.rig.connection.outward.output:
                self._take(1 << 16)
            moved += len(self.to_client)
            self._hear(len(self.to_client))
            if not moved:
                return
            self._open_windows()

    def _open_windows(self) -> None:
        if self.client.inbound_flow_control_window < 1 << 20:
            self.client.increment_flow_control_window(1 << 20)
        for exchange in self.exchanges_by_id.values():
            if self._over_at_client(exchange) or exchange.seen_end:
                continue
            if self.client.remote_flow_control_window(exchange.id) < 1 << 20:
                self.client.increment_flow_control_window(1 << 20, exchange.id)


Peers.TestCase.settings = settings(
    max_examples=examples(100),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestPeers = pytest.mark.slow(Peers.TestCase)


_ANSWERS = (1, 5, 300, 16_383, 16_384, 16_385, 70_000, 200_000)
_WINDOWS = (0, 1, 100, 65_535, 1 << 20)


class LongTalk:
    """A run that a machine of rules seldom reaches: hundreds of steps, most of which carry data."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.peers = Peers()
        self.peers.connect(
            streams=chance.choice((2, 10, 100)),
            window=chance.choice((65_535, 100_000, 1 << 26)),
            frame=chance.choice((16_384, 1 << 20)),
        )

    def step(self) -> None:
        """Do one thing, most often one that moves bytes."""
        steps = (self._open, self._ask, self._answer, self._answer_more, self._deliver, self._rare)
        self._chance.choices(steps, weights=(3, 4, 2, 3, 5, 2))[0]()
        self.peers.the_server_heard_a_prefix()
        self.peers.the_client_heard_a_prefix()
        self.peers.only_what_is_open_is_kept()

    def _open(self) -> None:
        if self.peers.may_open():
            fields = [(b"x-n", b"%d" % self._chance.randrange(5))] * self._chance.randrange(2)
            self.peers.open(fields, end=self._chance.random() < 0.2, weight=None)

    def _ask(self) -> None:
        for exchange in self._some(self.peers.at_client()):
            padding = self._chance.choice((None, None, 0, 255))
            self.peers.ask(exchange, self._chance.choice(_ANSWERS), padding, end=self._chance.random() < 0.3)

    def _answer(self) -> None:
        for exchange in self._some(self.peers.at_server()):
            kind = self._chance.random()
            if kind < 0.5:
                self.peers.answer(exchange, self._chance.choice(_ANSWERS))
            elif kind < 0.9:
                self.peers.answer_trailers(exchange)
            else:
                self.peers.answer_without_a_message(exchange)

    def _answer_more(self) -> None:
        for exchange in self._some(self.peers.at_server()):
            size, pieces = self._chance.choice(_ANSWERS), self._chance.randrange(1, 5)
            self.peers.answer_more(exchange, size, pieces, keep=self._chance.random() < 0.5)

    def _deliver(self) -> None:
        cuts = [self._chance.randrange(1, 70_000) for _ in range(self._chance.randrange(4))]
        if self._chance.random() < 0.5:
            self.peers.deliver_to_server(cuts, whole=self._chance.random() < 0.7)
        else:
            limit = self._chance.choice((1, 1_000, 1 << 16))
            self.peers.deliver_to_client(
                self._chance.choice((100, 1 << 20)), limit, self._chance.randrange(1, 6)
            )

    def _rare(self) -> None:
        peers, chance = self.peers, self._chance
        for exchange in self._some(peers.at_client()):
            size = chance.choice((1, 10, 16_384, 100_000))
            match chance.randrange(10):
                case 0:
                    peers.cancel(exchange, ErrorCodes.CANCEL)
                case 1:
                    peers.refuse(exchange, ErrorCode.CANCEL)
                case 2 | 3:
                    peers.set_initial_window(chance.choice(_WINDOWS))
                case 4:
                    peers.set_frame_size(chance.choice((16_384, 16_385, 1 << 20)))
                case 5:
                    peers.set_the_rest(chance.choice((0, 50, 4096)), 0)
                case 6:
                    peers.widen(exchange, size)
                case 7:
                    peers.widen_connection(size)
                case 8:
                    peers.consume()
                case _:
                    peers.both_ping(chance.randbytes(8))
                    if not peers.leaving:
                        peers.leave(chance.randrange(40))

    def _some(self, exchanges: list[Exchange]) -> list[Exchange]:
        return [self._chance.choice(exchanges)] if exchanges else []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_long_talks_end_with_everything_said_and_nothing_kept(seed):
    talk = LongTalk(Random(seed))
    for _ in range(250):
        talk.step()
    assert talk.peers.exchanges_by_id
    talk.peers.teardown()
