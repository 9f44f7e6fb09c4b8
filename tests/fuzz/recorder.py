"""A handler that records its calls, and checks what it may rely on whatever a peer sends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from protocols.http2.connection import Http2Connection
from protocols.http2.streams import Handler, Http2Limits, PingHandler, Stream
from tests.fuzz.h2wire import Field, Frame, split


@dataclass(eq=False, slots=True)
class Heard:
    """The handler's calls for one stream."""

    head: tuple[Field, ...]
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    code: int | None = None


class PingRecorder(PingHandler):
    """Keeps the pings of a peer's and the answers to ours."""

    def __init__(self) -> None:
        self.pongs: list[bytes] = []
        self.pings = 0
        self.on_ping: Callable[[float], None] = lambda now: None

    def pong(self, payload: bytes) -> None:
        """Keep the ping's payload."""
        self.pongs.append(bytes(payload))

    def pinged(self, now: float) -> None:
        """Count the peer's pings."""
        self.pings += 1
        self.on_ping(now)


class Recorder(Handler[tuple[Field, ...]]):
    """Records every stream, and fails at once if its calls come in an impossible order."""

    def __init__(self) -> None:
        self.streams: dict[int, Heard] = {}
        self.open: dict[int, Stream] = {}
        self.known: dict[int, Stream] = {}
        self.pings = PingRecorder()

    def read_head(self, headers: Sequence[tuple[bytes, bytes]]) -> tuple[Field, ...]:
        """Keep the fields: they are compared with what the peer sent."""
        return tuple((bytes(name), bytes(value)) for name, value in headers)

    def read_more(self, head: tuple[Field, ...], more: Sequence[tuple[bytes, bytes]]) -> tuple[Field, ...]:
        """Keep the fields behind those of an earlier list, too."""
        return head + self.read_head(more)

    def opened(self, stream: Stream, head: tuple[Field, ...]) -> None:
        """A stream is opened once, and ids only grow."""
        assert stream.id % 2 == 1
        assert not self.streams or stream.id > max(self.streams)
        self.streams[stream.id] = Heard(head)
        self.open[stream.id] = self.known[stream.id] = stream

    def received(self, stream: Stream, data: memoryview) -> None:
        """Nothing arrives on a stream that is not open, has ended or was reset."""
        heard = self._alive(stream)
        heard.data += data

    def ended(self, stream: Stream) -> None:
        """A stream ends once."""
        self._alive(stream).ended = True

    def reset(self, stream: Stream, code: int) -> None:
        """A stream is reset once, whether or not its peer had ended it."""
        heard = self.streams[stream.id]
        assert heard.code is None
        heard.code = code
        del self.open[stream.id]

    def _alive(self, stream: Stream) -> Heard:
        heard = self.streams[stream.id]
        assert self.open[stream.id] is stream
        assert heard.code is None
        assert not heard.ended
        return heard


class Rig:
    """One connection under test with its recorder; what it writes gathers in `frames`."""

    def __init__(self, limits: Http2Limits | None = None, recorder: Recorder | None = None) -> None:
        self.recorder = recorder or Recorder()
        self.connection: Http2Connection[tuple[Field, ...]] = Http2Connection(
            self.recorder, self.recorder.pings, limits or Http2Limits()
        )
        self.frames: list[Frame] = []
        self.now = 0.0
        self.connection.begin()

    def send(self, octets: bytes, *, cuts: Sequence[int] = ()) -> None:
        """Give the connection `octets`, cut at the offsets `cuts`, 10 ms later.

        Raises what `receive` raises.
        """
        self.now += 0.01
        edges = sorted({0, len(octets), *(cut for cut in cuts if 0 < cut < len(octets))})
        for start, end in pairwise(edges):
            self.connection.receive(memoryview(octets)[start:end], self.now)

    def drain(self, limit: int = 1 << 16) -> bytes:
        """Take everything that may be written now."""
        written = bytearray()
        while self.connection.outward.output:
            taken = self.connection.outward.take(limit)
            assert taken or not self.connection.outward.output, (
                "output is promised, and again none is handed over"
            )
            for part in taken:
                written += part
        self.frames += split(bytes(written))
        return bytes(written)
