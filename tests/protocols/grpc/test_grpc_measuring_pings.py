"""Clients measure a large answer's path by pings, which are no strikes while its data goes out.

See gRPC proposal A8.
"""

import struct
from typing import Any

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, PingAckReceived, StreamEnded, TrailersReceived

from protocols.grpc.policy import GrpcOptions
from tests.protocols.grpc_serving import INFER, serve

SIZE = 1_000_000
HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", INFER),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


async def test_a_client_may_ping_all_along_a_large_answer():
    async with serve(options=GrpcOptions(max_ping_strikes=1)) as served:
        client = H2Connection(H2Configuration(header_encoding="utf-8"))
        client.initiate_connection()
        client.send_headers(1, HEAD)
        unsent = struct.pack(">BI", 0, SIZE) + bytes(SIZE)
        received = pings = 0
        answered = True
        events: list[Any] = []
        async with await trio.open_tcp_stream(*served.socket.getsockname()) as stream:
            with trio.fail_after(20):
                while not any(isinstance(event, StreamEnded | ConnectionTerminated) for event in events):
                    room = min(client.local_flow_control_window(1), len(unsent))
                    for start in range(0, room, client.max_outbound_frame_size):
                        client.send_data(1, unsent[start : min(room, start + client.max_outbound_frame_size)])
                    unsent = unsent[room:]
                    if room and not unsent:
                        client.end_stream(1)
                    await stream.send_all(client.data_to_send())
                    events = client.receive_data(await stream.receive_some())
                    for event in events:
                        if isinstance(event, DataReceived) and event.data:
                            received += len(event.data)
                            client.acknowledge_received_data(event.flow_controlled_length, 1)
                            if answered:  # one at a time, as gRPC's own clients have it
                                client.ping(pings.to_bytes(8, "big"))
                                pings += 1
                                answered = False
                        elif isinstance(event, PingAckReceived):
                            answered = True
        assert not [event for event in events if isinstance(event, ConnectionTerminated)]
        assert received == SIZE + 5
        assert pings > 10
        assert [event for event in events if isinstance(event, TrailersReceived)]
