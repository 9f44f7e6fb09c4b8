"""What one HTTP/2 connection may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.http2.frames import DEFAULT_WINDOW, LARGEST_FRAME_LIMIT, LARGEST_WINDOW, SMALLEST_FRAME_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """Bounds of one connection. Sizes are bytes, rates are per second.

    Raises ValueError for values that RFC 9113 (section 6.5.2) does not allow to be announced.
    """

    # Announced. nghttp2 and nginx allow 100 and 128 streams, gRPC's C++ server any number. A thousand
    # inferences in flight fill the largest batches; `protocols.grpc.admission` lowers it where windows could
    # exceed the memory.
    max_streams: int = 1024
    # A call that fits needs no WINDOW_UPDATE; larger ones are granted one by one.
    stream_window: int = DEFAULT_WINDOW
    connection_window: int = 64 * 1024 * 1024
    # DATA is passed on as it arrives, so a large frame costs no memory.
    max_frame_size: int = 1024 * 1024
    max_header_list: int = 16 * 1024  # gRPC's C++ server refuses metadata over 16 KiB

    # A block is in memory until it is complete. The header list of an honest block is longer than the block,
    # up to Huffman codes for odd bytes. So the limit is twice that of the list. nghttp2 allows 64 KiB.
    max_header_block: int = 32 * 1024
    # CONTINUATION frames to one block (CVE-2024-27316 and its kin). nghttp2 chose 8, and a block fits three.
    max_continuations: int = 8
    # Different calls that a connection repeats. gRPC's clients have a table of 4 KiB for them.
    cached_heads: int = 256

    # Streams that the peer resets, or makes us reset (CVE-2023-44487, CVE-2025-8671). nghttp2 allows 1,000
    # and 33 a second, Netty 200 in 30 seconds. gRPC's clients reset each call whose deadline passes, so here
    # all calls that may be open can time out every second.
    reset_burst: int = 1024
    reset_rate: float = 1024.0

    # PING, WINDOW_UPDATE, PRIORITY, frames of unknown types, empty DATA, frames for closed streams. A peer
    # may send ten for each stream it opened, and for each message, PING and longer DATA frame it was sent.
    # That is Envoy's ratio for WINDOW_UPDATE. The burst comes on top: it is as many as nghttp2 queues
    # acknowledgements. gRPC's own clients answer each message, however small, by an update of each of the two
    # windows, and often by a PING that measures the way. Together with a message of their own they send as
    # much before its answer is there, because they open the stream's window when they begin to wait. A DATA
    # frame of one byte, which is never refused, costs us what three of these do.
    chatter_burst: int = 1000
    chatter_rate: float = 100.0
    chatter_per_frame: int = 10
    chatter_per_received: int = 3

    # SETTINGS walks through all open streams. gRPC's clients adjust their windows at most every 100 ms.
    settings_burst: int = 50
    settings_rate: float = 20.0

    # Frames that wait for a peer that reads nothing while it makes us answer: as many as Go's server has.
    max_queued: int = 10_000

    def __post_init__(self) -> None:
        """Refuse values that could not be announced."""
        _check("max_streams", self.max_streams, 1, 2**31 - 1)
        _check("stream_window", self.stream_window, 0, LARGEST_WINDOW)
        _check("connection_window", self.connection_window, DEFAULT_WINDOW, LARGEST_WINDOW)
        _check("max_frame_size", self.max_frame_size, SMALLEST_FRAME_LIMIT, LARGEST_FRAME_LIMIT)


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, but must be from {least} to {most}")
