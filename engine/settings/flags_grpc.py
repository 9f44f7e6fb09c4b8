"""The flags of the gRPC listener that do what their help says: a part of the table in `engine.settings.flags`.

Reference: contract grpc.md section 1, repository.md section 10.
"""

from __future__ import annotations

from typing import Final

from engine.settings.flag import Flag, Group, Kind, OneOf

GRPC_FLAGS: Final = (
    Flag(
        name="allow-grpc",
        kind=Kind.BOOL,
        group=Group.GRPC,
        default="true",
        help="Serve the KServe v2 protocol over gRPC.",
    ),
    Flag(
        name="grpc-address",
        group=Group.GRPC,
        default="0.0.0.0",
        metavar="ADDRESS",
        help="Where gRPC listens.",
    ),
    Flag(
        name="grpc-port",
        kind=Kind.INT,
        group=Group.GRPC,
        default="8001",
        metavar="PORT",
        help="On which port; 0 lets the kernel choose.",
    ),
    Flag(
        name="reuse-grpc-port",
        kind=Kind.BOOL,
        group=Group.GRPC,
        default="false",
        help="Let several servers listen on that port; the kernel deals connections out among them.",
    ),
    Flag(
        name="grpc-unix-socket",
        group=Group.GRPC,
        metavar="PATH",
        help="Tritium's own: listen on a Unix socket at PATH too, without TLS; clients name it unix:PATH.",
    ),
    Flag(
        name="grpc-use-ssl",
        kind=Kind.BOOL,
        group=Group.GRPC,
        default="false",
        help="Speak TLS on the port; needs --grpc-server-cert and --grpc-server-key.",
    ),
    Flag(
        name="grpc-use-ssl-mutual",
        kind=Kind.BOOL,
        group=Group.GRPC,
        default="false",
        help="Speak TLS, and only to clients whose certificate --grpc-root-cert vouches for.",
    ),
    Flag(
        name="grpc-server-cert",
        group=Group.GRPC,
        metavar="FILE",
        help="The server's certificate and those between it and its root, PEM.",
    ),
    Flag(name="grpc-server-key", group=Group.GRPC, metavar="FILE", help="Its key, PEM, not encrypted."),
    Flag(
        name="grpc-root-cert",
        group=Group.GRPC,
        metavar="FILE",
        help="The certificates that vouch for clients, PEM.",
    ),
    Flag(
        name="grpc-connection-bytes",
        group=Group.GRPC,
        default="64MiB",
        metavar="SIZE",
        help="Tritium's own: what one connection may have under way in requests and in answers, each: bytes, or a size"
        " such as 8MiB, 128KiB at least. One request, or one answer, that is larger goes alone.",
    ),
    Flag(
        name="grpc-infer-response-compression-level",
        group=Group.GRPC,
        default="none",
        metavar="LEVEL",
        check=OneOf(
            "invalid argument for --grpc_infer_response_compression_level", "none", "low", "medium", "high"
        ),
        help="Compress answers of the inference calls for clients that accept it: none, low, medium, high.",
    ),
    Flag(
        name="grpc-header-forward-pattern",
        group=Group.GRPC,
        metavar="REGEX",
        help="Request metadata whose key matches (anywhere, in any case) become request parameters.",
    ),
    Flag(
        name="grpc-restricted-protocol",
        group=Group.GRPC,
        metavar="API[,API...]:KEY=VALUE",
        repeatable=True,
        help="Answer these APIs, those of --http-restricted-api, only where the metadata triton-grpc-protocol-KEY has the"
        " value VALUE. Repeatable.",
    ),
    Flag(
        name="grpc-keepalive-time",
        kind=Kind.INT,
        group=Group.GRPC,
        default="7200000",
        metavar="MS",
        help="Ping a connection on which nothing has come for so long; 2147483647: never.",
    ),
    Flag(
        name="grpc-keepalive-timeout",
        kind=Kind.INT,
        group=Group.GRPC,
        default="20000",
        metavar="MS",
        help="Close a connection whose ping is not answered for so long.",
    ),
    Flag(
        name="grpc-keepalive-permit-without-calls",
        kind=Kind.BOOL,
        group=Group.GRPC,
        default="false",
        help="Send, and allow, such pings while no call is under way.",
    ),
    Flag(
        name="grpc-http2-max-pings-without-data",
        kind=Kind.INT,
        group=Group.GRPC,
        default="2",
        metavar="N",
        help="How many pings are sent without data between them; 0: any number.",
    ),
    Flag(
        name="grpc-http2-min-recv-ping-interval-without-data",
        kind=Kind.INT,
        group=Group.GRPC,
        default="300000",
        metavar="MS",
        help="A client that pings more often than this, without data between its pings, earns a strike.",
    ),
    Flag(
        name="grpc-http2-max-ping-strikes",
        kind=Kind.INT,
        group=Group.GRPC,
        default="2",
        metavar="N",
        help="How many strikes are borne before the connection is closed; 0: any number.",
    ),
    Flag(
        name="grpc-max-connection-age",
        kind=Kind.INT,
        group=Group.GRPC,
        metavar="MS",
        help="Have clients connect anew after so long. [default: never]",
    ),
    Flag(
        name="grpc-max-connection-age-grace",
        kind=Kind.INT,
        group=Group.GRPC,
        metavar="MS",
        help="How long calls may then take before they are cut off. [default: for ever]",
    ),
)
