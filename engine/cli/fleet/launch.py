"""`tritium fleet launch`: servers on the nodes of a Ray cluster, one on each."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import Final

from engine.fleet.launching.flags import what_is_wrong
from engine.fleet.launching.groups import LaunchFailed, Patience, RayMissing, connected
from engine.fleet.launching.registry import LaunchedServer, LaunchOrder
from engine.observability.text import aligned
from engine.settings.extras import how_to_install

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HEADINGS: Final = ("server", "state", "node", "http", "grpc", "metrics")
_EPILOG: Final = """\
What stands behind -- are flags of `tritium serve`, and the same for each server. Ports are free ones unless
the flags name some. With neither --replicas nor --stop the group is shown.

A group that runs is changed by launching it again: other servers are started beside those that run, which are
drained once all of the others serve. The same words again start what is missing, and change nothing else.

examples:
  tritium fleet launch --ray auto --replicas 3 -- --model-repository=/models
  tritium fleet launch --ray 10.0.0.1:6379 --replicas 8 --name vision --gpus-per-replica 1 -- /mnt/models
  tritium fleet launch --ray auto --name vision
  tritium fleet launch --ray auto --name vision --stop

docs/ray.md tells more.
"""


def launch(argv: Sequence[str]) -> int:
    """Start, change, show or stop a group of servers; return the process's exit status."""
    words, behind = _split(argv)
    parser = launch_parser()
    options = parser.parse_args(words)
    flags = (*options.flags, *behind)
    _check(parser, options, flags)
    try:
        with connected(options.ray, _say) as groups:
            if options.stop:
                count = groups.stop(options.name)
                sys.stdout.write(f"stopped {count} server{'s' * (count != 1)} of group {options.name}\n")
                return 0
            if options.replicas is None:
                servers = groups.shown(options.name)
            else:
                patience = Patience(nodes=options.wait, start=options.timeout)
                servers = groups.start(_order(options, flags), patience)
            sys.stdout.write(_as_json(servers) if options.json else _table(servers))
    except RayMissing as error:
        return _complain(str(error), how_to_install("ray"))
    except LaunchFailed as error:
        return _complain(str(error), error.hint)
    return 0


def launch_parser() -> argparse.ArgumentParser:
    """Return the parser of the words before `--`."""
    parser = argparse.ArgumentParser(
        prog="tritium fleet launch",
        usage="tritium fleet launch --ray ADDRESS [--name GROUP] [--replicas N | --stop] [OPTIONS]"
        " -- [FLAGS]",
        description="Start servers on the nodes of a Ray cluster, each on a node of its own.\n"
        "If a node dies, Ray starts its server on another one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_launch_options(parser)
    return parser


def add_launch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, and what stands behind `--`."""
    parser.add_argument(
        "--ray", metavar="ADDRESS", required=True, help="the cluster: host:port, auto, or ray://host:port"
    )
    parser.add_argument("--name", metavar="GROUP", default="tritium", help="the group [default: tritium]")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--replicas", metavar="N", type=_count, help="how many servers there should be")
    what.add_argument("--stop", action="store_true", help="drain and stop all servers of the group")
    parser.add_argument(
        "--cpus-per-replica",
        metavar="F",
        type=_amount,
        default=1.0,
        help="what Ray reserves for a server [default: 1]",
    )
    parser.add_argument(
        "--gpus-per-replica", metavar="F", type=_amount, default=0.0, help="the same of GPUs [default: 0]"
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        default="",
        help="the Python on the nodes that has Tritium [default: the one that Ray runs on there]",
    )
    parser.add_argument(
        "--label",
        metavar="KEY=VALUE",
        type=_label,
        action="append",
        default=[],
        help="a label for selectors of the fleet, beside those of the node; repeatable",
    )
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=_amount,
        default=60.0,
        help="how long a server may drain before it is killed [default: 60]",
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=_amount,
        default=0.0,
        help="how long nodes that lack are waited for, where a cluster scales itself [default: 0]",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_amount,
        default=300.0,
        help="how long servers may take to be ready [default: 300]",
    )
    parser.add_argument("--json", action="store_true", help="print the servers as JSON")
    parser.add_argument("flags", metavar="FLAGS", nargs="*", help="of `tritium serve`, behind --")


def _split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    words = list(argv)
    if "--" not in words:
        return words, ()
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace, flags: Sequence[str]) -> None:
    if not _NAME.fullmatch(options.name):
        parser.error(f"--name takes letters, digits, dots, - and _, at most 100. Got {options.name}")
    if flags and options.replicas is None:
        parser.error("flags of servers go with --replicas")
    if options.replicas is not None and not flags:
        parser.error("--replicas needs the servers' flags: -- --model-repository=PATH")
    if options.replicas is not None and not options.cpus_per_replica and not options.gpus_per_replica:
        parser.error("--cpus-per-replica 0 needs --gpus-per-replica: Ray must reserve something")
    if wrong := what_is_wrong(flags):
        parser.error(wrong)


def _order(options: argparse.Namespace, flags: tuple[str, ...]) -> LaunchOrder:
    return LaunchOrder(
        group=options.name,
        replicas=options.replicas,
        flags=flags,
        cpus=options.cpus_per_replica,
        gpus=options.gpus_per_replica,
        python=options.python,
        grace=options.grace,
        labels=dict(options.label),
    )


def _count(word: str) -> int:
    if not word.isdecimal() or not 1 <= int(word) <= 10_000:
        raise argparse.ArgumentTypeError(f"a number from 1 to 10000 was expected. Got {word}")
    return int(word)


def _amount(word: str) -> float:
    try:
        amount = float(word)
    except ValueError:
        amount = -1
    if not 0 <= amount < 1e9:
        raise argparse.ArgumentTypeError(f"a number of 0 or more was expected. Got {word}")
    return amount


def _label(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"KEY=VALUE was expected. Got {word}")
    return key, value


def _table(servers: Sequence[LaunchedServer]) -> str:
    rows = [
        (each.name, each.phase.value, each.node[:8], *(_at(each.host, port) for port in _ports(each)))
        for each in servers
    ]
    return aligned([_HEADINGS, *rows])


def _ports(server: LaunchedServer) -> tuple[int, int, int]:
    return server.http_port, server.grpc_port, server.metrics_port


def _at(host: str, port: int) -> str:
    return f"{host}:{port}" if port else "-"


def _as_json(servers: Sequence[LaunchedServer]) -> str:
    return json.dumps([json.loads(each.written()) for each in servers], indent=2) + "\n"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _complain(message: str, hint: str) -> int:
    sys.stderr.write(f"{message}\n" + (f"{hint}\n" if hint else ""))
    return 1
