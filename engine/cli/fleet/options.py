"""The command line of `tritium fleet`."""

from __future__ import annotations

import argparse
import re
from typing import Final

from engine.cli.client import add_credential_options
from engine.cli.fleet.launch import add_launch_options

_ABOUT: Final = """\
Steer servers that stand side by side, by a file that says what each model should
be. A change goes from one replica to the next, and stops at the first that fails.
No request passes through here: while no controller runs, changes stop, and
service does not. docs/fleet.md tells the file and the rules."""

_MORE: Final = """\
examples:
  tritium fleet plan --file fleet.yaml       what would be done
  tritium fleet apply --file fleet.yaml      do it, and end
  tritium fleet run --file fleet.yaml        do it whenever the file or a replica changes
  tritium fleet status --file fleet.yaml --watch
  tritium fleet roll resnet 4 --file fleet.yaml
                                             write version 4 into the file, and apply that
  tritium fleet drain gpu-1 --file fleet.yaml
                                             empty a replica before it is removed
  tritium fleet proxy-config haproxy --file fleet.yaml > haproxy.cfg
  tritium fleet launch --ray auto --replicas 3 -- --model-repository=/models

Servers of a fleet run with --model-control-mode=explicit, and with --await-fleet
so that balancers send nothing before their models are there.

exit status: 0 when all is as the file says; 1 when something was refused or failed;
2 for a command line that makes no sense. `tritium fleet WHAT --help` tells more.
"""

_FILE: Final = "fleet.yaml"
_ENDS: Final = {
    "status": """\
exit status: 0 when all is as the file says, or stays as it was after a release that was
refused; 1 when something is still to be done, or a replica is not reached.

A version with * has a configuration from the file. `good` is what all replicas proved to
serve well; a replica that fails gets that back.
""",
    "plan": """\
exit status: 0, whatever there is to do; 1 when too few replicas are reached.
""",
    "apply": """\
Each step is said on standard error, and the fleet is shown at the end. A command that is
interrupted leaves the fleet in order: the next one, or a controller, goes on.

exit status: 0 when all is as the file says; 1 when a release was refused, when no replica
may serve a model, or when --timeout is over; 130 or 143 after a signal.
""",
    "run": """\
examples:
  tritium fleet run --file fleet.yaml --metrics-address 127.0.0.1:9100
  curl http://127.0.0.1:9100/v2/tritium/fleet/status

The file is read again when it changes; one with a mistake is told, and the last one stays.
SIGTERM ends the controller in order. `apply`, `roll` and `drain` take over while they run.
""",
    "roll": """\
examples:
  tritium fleet roll resnet 4                from the version that is there to 4
  tritium fleet roll resnet 4,5              have both versions served
  tritium fleet roll resnet 3                back again

The file keeps its comments and its order. A release that is refused stays in it; ask for the
version before, or for a mended one. Exit statuses are those of `apply`.
""",
    "drain": """\
examples:
  tritium fleet drain gpu-1                  then end the server
  tritium fleet drain gpu-1 --undo           have it serve again

exit status: 0 when it may be ended; 1 when there is no such replica, when no other may serve
what it does, or when --timeout is over; 130 or 143 after a signal. It is drained then still,
until it is started again, or until --undo.
""",
    "proxy-config": """\
examples:
  tritium fleet proxy-config haproxy > haproxy.cfg && haproxy -c -f haproxy.cfg
  tritium fleet proxy-config envoy --grpc-port 9001 --output envoy.json
  tritium fleet proxy-config haproxy --output haproxy.cfg --watch \\
      --reload 'haproxy -c -q -f haproxy.cfg && systemctl reload haproxy'

docs/proxies.md tells what the configuration does.
""",
}


def fleet_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = argparse.ArgumentParser(
        prog="tritium fleet",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    status = _command(what, "status", "show replicas, models, and what is being changed")
    shown = status.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print all of it as JSON")
    shown.add_argument(
        "--watch", type=_seconds, nargs="?", const=2.0, metavar="SECONDS", help="again every 2 s, or SECONDS"
    )
    _command(what, "plan", "say what `apply` would do first, and do nothing")
    _limited(_command(what, "apply", "bring the fleet to what the file says, and end"))
    run = _command(what, "run", "steer for good: the controller, of which several may stand by")
    run.add_argument(
        "--metrics-address",
        metavar="HOST:PORT",
        type=_address,
        help="serve the metrics of all replicas and the fleet's own there, and its status as JSON",
    )
    run.add_argument(
        "--name",
        help="this controller's name: one that starts again under its name goes on at once [the host's]",
    )
    run.add_argument(
        "--log-format", choices=["text", "json"], default="text", help="how lines are written [%(default)s]"
    )
    roll = _command(
        what, "roll", "write other versions of a model into the file, and bring them over the fleet"
    )
    roll.add_argument("model", metavar="MODEL", help="the model's name")
    roll.add_argument("versions", metavar="VERSIONS", type=_versions, help="such as 4 or 3,4")
    _limited(roll)
    drain = _command(
        what, "drain", "empty a replica before it is removed: others first, then no new requests"
    )
    drain.add_argument("replica", metavar="REPLICA", help="its name, as `status` shows it")
    drain.add_argument("--undo", action="store_true", help="have it serve again")
    _limited(drain)
    config = _command(what, "proxy-config", "write the configuration of a balancer for the fleet's replicas")
    config.add_argument("proxy", choices=["haproxy", "envoy"], help="which balancer")
    config.add_argument("--output", metavar="FILE", help="write it there at once, not to standard output")
    config.add_argument(
        "--watch",
        type=_seconds,
        nargs="?",
        const=2.0,
        metavar="SECONDS",
        help="look every 2 s, or SECONDS, and write FILE when it is to be another one; takes --output",
    )
    config.add_argument(
        "--reload",
        metavar="COMMAND",
        default="",
        help="run this by sh when FILE has changed; if it fails, again after 10 s; takes --watch",
    )
    config.add_argument(
        "--idempotent",
        action="store_true",
        help="send a request to another replica when its own dies: it may then run twice",
    )
    config.add_argument("--address", default="0.0.0.0", help="where the balancer listens [%(default)s]")
    config.add_argument("--http-port", type=int, default=8000, help="its port for HTTP [%(default)s]")
    config.add_argument("--grpc-port", type=int, default=8001, help="its port for gRPC [%(default)s]")
    config.add_argument(
        "--timeout",
        dest="silence",
        type=int,
        default=3600,
        metavar="SECONDS",
        help="how long a stream may be silent [%(default)s]",
    )
    config.add_argument(
        "--retry-buffer",
        type=int,
        default=131072,
        metavar="BYTES",
        help="the largest request that can be sent again; memory for each connection [%(default)s]",
    )
    # It needs no file, and is carried out by a module of its own.
    add_launch_options(what.add_parser("launch", help="start servers in a Ray cluster", allow_abbrev=False))
    return parser


def _command(
    what: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str
) -> argparse.ArgumentParser:
    parser = what.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=_ENDS[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--file", default=_FILE, help="the fleet's file [%(default)s]")
    add_credential_options(parser)
    return parser


def _limited(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=3600,
        metavar="SECONDS",
        help="give up after so long; what was begun goes on at the next command [%(default)g]",
    )


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0
    if not 0.1 <= seconds <= 1e6:
        raise argparse.ArgumentTypeError(f"a number of seconds from 0.1 to 1000000 was expected. Got {word}")
    return seconds


def _versions(word: str) -> list[int]:
    if not re.fullmatch("[1-9][0-9]{0,15}(,[1-9][0-9]{0,15})*", word):
        raise argparse.ArgumentTypeError(f"numbers from 1 were expected, such as 4 or 3,4. Got {word}")
    return [int(each) for each in word.split(",")]


def _address(word: str) -> str:
    host, _, port = word.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"HOST:PORT was expected, such as 127.0.0.1:9100. Got {word}")
    return word
