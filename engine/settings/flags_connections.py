"""The flags about connections, of HTTP and gRPC alike.

This is a part of the table in `engine.settings.flags`. All are Tritium's own.
"""

from __future__ import annotations

from typing import Final

from engine.settings.flag import Flag, Group, Kind

CONNECTION_FLAGS: Final = (
    Flag(
        name="max-connections",
        kind=Kind.INT,
        group=Group.SERVER,
        default="8192",
        metavar="N",
        help="Tritium's own: how many connections each port has at once. Beyond them, those that are idle or slow make room"
        " for others, the longest idle first.",
    ),
    Flag(
        name="connection-idle-timeout-secs",
        kind=Kind.NUMBER,
        group=Group.SERVER,
        default="600",
        metavar="SECONDS",
        help="Tritium's own: how long a connection of HTTP or gRPC is kept without a request; 0: for ever.",
    ),
    Flag(
        name="max-connections-per-address",
        kind=Kind.INT,
        group=Group.SERVER,
        default="0",
        metavar="N",
        help="Tritium's own: how many connections one address may have at each port, an IPv6 network of 64 bits counting as one"
        " address; 0: any number. Balancers and NAT give many clients one address: name them by --trusted-proxies.",
    ),
    Flag(
        name="trusted-proxies",
        group=Group.SERVER,
        metavar="NETWORK[,NETWORK...]",
        repeatable=True,
        help="Tritium's own: addresses and networks, such as 10.0.0.0/8, that --max-connections-per-address does not count."
        " Repeatable.",
    ),
)
