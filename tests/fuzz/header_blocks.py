"""Header blocks: a decoder that remembers blocks says the same as one that does not, and as plain HPACK.

An input is a series of blocks, each behind one byte that tells its use and two that tell its length.
"""

from collections.abc import Sequence
from random import Random

from hpack import Decoder, Encoder, HPACKError

from protocols.http2.frames import ConnectionViolation, StreamViolation
from protocols.http2.header_blocks import HeaderDecoder
from tests.fuzz.h2wire import REQUEST, Field
from tests.fuzz.mutation import damaged
from tests.fuzz.series import parts_of, series

_REQUEST, _TRAILERS, _SKIPPED = range(3)
_MAX_LIST = 16 << 10
_CACHED = 4

_NAMES = (
    b"grpc-timeout",
    b"user-agent",
    b"x-a",
    b"x-b",
    b"traceparent",
    b"k-bin",
    b"grpc-accept-encoding",
    b"te",
    b"X-Up",
)
_VALUES = (
    b"",
    b"1S",
    b"trailers",
    b"grpc-python/1.60",
    b"identity,deflate,gzip",
    b"v" * 200,
    b"\xff\xfe",
    b"a\nb",
    b" pad ",
)

Head = tuple[Field, ...]


class HeaderBlocks:
    """Feeds the same series to decoders with and without kept blocks, and to a bare HPACK decoder."""

    name = "headers"
    prefix = "headers"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """An encoder's honest series, or a damaged one."""
        octets = _honest(chance) if chance.random() < 0.7 else chance.choice(corpus)
        return octets if chance.random() < 0.3 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Compare the three, block by block."""
        keeping, forgetting = _decoder(_CACHED), _decoder(0)
        plain = Decoder(max_header_list_size=1 << 24)
        outcome = "nothing"
        for tag, block in parts_of(octets):
            use = tag % 3
            said = _said(keeping, use, block)
            assert said == _said(forgetting, use, block)
            assert len(keeping.heads) <= _CACHED
            assert not forgetting.heads
            _compare_with_plain(said, plain, use, block)
            outcome = said if isinstance(said, str) else "request" if use == _REQUEST else "dropped"
            if outcome.startswith("connection"):
                break
        return outcome


def _decoder(cached: int) -> HeaderDecoder[Head]:
    return HeaderDecoder(_read, _read_more, max_header_list=_MAX_LIST, cached_heads=cached)


def _read(fields: Sequence[Field]) -> Head:
    return tuple((bytes(name), bytes(value)) for name, value in fields)


def _read_more(head: Head, more: Sequence[Field]) -> Head | None:
    return None if more[0][0] == b"te" else head + _read(more)


def _said(decoder: HeaderDecoder[Head], use: int, block: bytes) -> str | tuple[Head, int | None] | None:
    try:
        if use == _REQUEST:
            return decoder.request(block)
        (decoder.trailers if use == _TRAILERS else decoder.skip)(block)
    except StreamViolation as error:
        return f"stream {error.code.name}"
    except ConnectionViolation as error:
        return f"connection {error.code.name}"
    return None


def _compare_with_plain(
    said: str | tuple[Head, int | None] | None, plain: Decoder, use: int, block: bytes
) -> None:
    """What was accepted is what plain HPACK reads, and what plain HPACK can't read was not accepted."""
    try:
        fields = plain.decode(block, raw=True)
    except (HPACKError, IndexError):
        assert isinstance(said, str)
        assert said.startswith("connection")
        return
    if isinstance(said, tuple):
        assert said[0] == tuple(
            (name, value if name[:1] == b":" else value.strip(b" \t")) for name, value in fields
        )
    if said == "connection COMPRESSION_ERROR":
        assert block[0] & 0xE0 == 0x20, "only a row of size updates is refused beyond HPACK"


def _honest(chance: Random) -> bytes:
    """What one encoder might send: it repeats itself, grows its table, and now and then resizes it."""
    encoder = Encoder()
    blocks: list[tuple[int, bytes]] = []
    fields: list[Field] = list(REQUEST)
    for _ in range(chance.randrange(1, 9)):
        if chance.random() < 0.5:
            fields = [*REQUEST, *_some_fields(chance)]
        if chance.random() < 0.1:
            encoder.header_table_size = chance.choice((0, 40, 100, 4096))
        if chance.random() < 0.15:
            blocks.append((chance.choice((_TRAILERS, _SKIPPED)), encoder.encode(_some_fields(chance))))
            continue
        block = encoder.encode([(*field, True) for field in fields] if chance.random() < 0.1 else fields)
        blocks.append((_REQUEST, block))
    return series(blocks)


def _some_fields(chance: Random) -> list[Field]:
    fields = [(chance.choice(_NAMES[:-1]), chance.choice(_VALUES[:6])) for _ in range(chance.randrange(5))]
    if chance.random() < 0.2:
        fields.append((chance.choice(_NAMES), chance.choice(_VALUES)))
    if chance.random() < 0.1:
        fields.append((b"content-length", chance.choice((b"0", b"12", b"1", b"x"))))
    return fields
