"""`tritium traffic`: how a model's requests are shared out over its versions, on a running server.

The server answers and takes `/v2/tritium/models/<model>/traffic`; `docs/traffic.md` describes the documents.
The server checks what a plan may say, so that this command and any other client get the same answer.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from engine.cli.client import (
    Client,
    ServerUnavailable,
    add_form_options,
    add_server_options,
    client_for,
    show,
    watch,
)
from engine.observability.text import aligned, duration, printable

if TYPE_CHECKING:
    from rich.console import Group

_HEADINGS: Final = ("version", "state", "weight", "share", "requests", "of all", "errors", "mean latency")

Document = Mapping[str, Any]


def traffic(argv: Sequence[str]) -> int:
    """Change a model's traffic plan if the flags say so, and show it; return the process's exit status."""
    parser = traffic_parser()
    options = parser.parse_args(argv)
    plan = _plan(parser, options)
    try:
        client = client_for(options, os.environ)
        document = _ask(client, options.model, plan)
        if options.watch is not None:
            return watch(lambda: _ask(client, options.model, None), options.watch, drawn=drawn, plain=plain)
    except ServerUnavailable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    show(document, options, drawn=drawn, plain=plain)
    return 0


def _ask(client: Client, model: str, plan: Document | None) -> Document:
    path = f"/v2/tritium/models/{quote(model, safe='')}/traffic"
    document = client.ask(path, api="model-repository", wanted="a traffic plan", document=plan)
    if not isinstance(document, dict) or not isinstance(document.get("versions"), list):
        raise ServerUnavailable(f"the server at {client.base} did not answer with a traffic plan")
    return document


# -- flags


def traffic_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = argparse.ArgumentParser(
        prog="tritium traffic",
        description="""\
Show how the requests for MODEL that name no version are shared out over its
versions, and how each of them does. With --weights, put a new plan in force: it
replaces all of the old one, a version that was rolled back gets its share again,
and it stays until the model's configuration says something new about traffic.""",
        epilog="""\
examples:
  tritium traffic resnet                 what happens now
  tritium traffic resnet --watch         the same, redrawn every second
  tritium traffic resnet --weights 1=90,2=10 --rollback-error-rate 0.05
                                         a tenth to version 2, until it does badly
  tritium traffic resnet --weights 1=1 --mirror 2
                                         copies to version 2, for comparison only
  tritium traffic resnet --weights 1=50,2=50 --sticky-header x-user
                                         each user meets one version
  tritium traffic resnet --off           the highest version answers again
""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    add_server_options(parser)
    add_form_options(parser)
    change = parser.add_argument_group("a new plan")
    change.add_argument(
        "--weights",
        type=_weights,
        metavar="V=W,...",
        help="the weight of each version, relative to the others: 1=90,2=10",
    )
    change.add_argument(
        "--off", action="store_true", help="no plan: the highest version that is ready answers"
    )
    sticky = change.add_mutually_exclusive_group()
    sticky.add_argument(
        "--sticky-header", metavar="NAME", help="requests with one value of this header meet one version"
    )
    sticky.add_argument("--sticky-parameter", metavar="NAME", help="the same, by a request parameter")
    change.add_argument(
        "--mirror",
        type=int,
        metavar="VERSION",
        help="send copies to this version, compare its answers, and throw them away",
    )
    change.add_argument("--mirror-fraction", type=float, metavar="F", help="of the requests, from 0 to 1 [1]")
    change.add_argument(
        "--mirror-tolerance",
        type=float,
        metavar="T",
        help="what floating-point elements may differ by, absolutely and relatively [1e-5]",
    )
    for flag, metavar, explanation in (
        (
            "error-rate",
            "RATE",
            "take a version's share away when more of its answers than this, from 0 to 1, are errors",
        ),
        (
            "latency-ratio",
            "R",
            "when its mean latency is over R times that of the version with the largest share",
        ),
        ("latency", "SECONDS", "when its mean latency is over SECONDS"),
        ("window", "SECONDS", "what is looked at: the last SECONDS [5]"),
    ):
        change.add_argument(f"--rollback-{flag}", type=float, metavar=metavar, help=explanation)
    change.add_argument(
        "--rollback-min-requests",
        type=int,
        metavar="N",
        help="fewer requests than this within the window say nothing [20]",
    )
    return parser


def _weights(text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in text.split(","):
        version, equals, weight = (word.strip() for word in part.partition("="))
        try:
            number = float(weight) if equals and version.isdecimal() else math.nan
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise argparse.ArgumentTypeError(f"expected VERSION=WEIGHT such as 1=90,2=10, got {part!r}")
        if version in weights:
            raise argparse.ArgumentTypeError(f"version {version} has two weights")
        weights[version] = number
    return weights


def _plan(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Document | None:
    """Return the plan that the flags describe, `{}` for none, or None if nothing is to be changed."""
    sticky = _given(header=options.sticky_header, parameter=options.sticky_parameter)
    mirror = _given(
        version=options.mirror, fraction=options.mirror_fraction, tolerance=options.mirror_tolerance
    )
    rollback = _given(
        max_error_rate=options.rollback_error_rate,
        max_latency_ratio=options.rollback_latency_ratio,
        max_latency=options.rollback_latency,
        min_requests=options.rollback_min_requests,
        window=options.rollback_window,
    )
    parts = _given(sticky=sticky or None, mirror=mirror or None, rollback=rollback or None)
    if options.off:
        if parts or options.weights is not None:
            parser.error("--off ends the plan, so it goes with none of the other flags of a plan")
        return {}
    if options.weights is None:
        if parts:
            parser.error("a plan is given as a whole: say with --weights which versions answer")
        return None
    return {"weights": options.weights, **parts}


def _given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


# -- rendering


def _rows(document: Document) -> Iterator[tuple[str, ...]]:
    shared_out = document.get("plan") is not None  # if not, requests are not counted by version
    for each in document["versions"]:
        weight, answers, errors = each.get("weight"), each.get("answers"), each.get("errors")
        rate = f" ({errors / answers:.1%})" if errors and answers else ""
        latency = each.get("mean_latency_seconds")
        yield (
            str(each.get("version", "?")),
            str(each.get("state") or "not there"),
            "-" if weight is None else f"{weight:g}",
            f"{each.get('share', 0):.1%}",
            str(each.get("requests", 0)) if shared_out else "-",
            f"{each.get('share_of_requests', 0):.1%}" if shared_out else "-",
            "-" if errors is None else f"{errors}{rate}",
            _latency(latency) if latency else "-",
        )


def _latency(seconds: float) -> str:
    """Return a latency in three digits: `0.878 ms`, `12 ms`, `1.02 s`; from a minute on as a duration."""
    if seconds >= 60:
        return duration(seconds)
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def _heading(document: Document) -> str:
    name = printable(str(document.get("model", "?")))
    age = document.get("for_seconds")
    since = f" for {duration(age)}" if isinstance(age, int | float) else ""
    if document.get("plan") is None:
        ended = " (ended by an operator)" if document.get("origin") == "runtime" else ""
        return f"{name}: no traffic plan{since if ended else ''}{ended}; the highest version answers"
    whose = "an operator's" if document.get("origin") == "runtime" else "its configuration's"
    return f"{name}: {whose} plan, in force{since}"


def _facts(document: Document) -> Iterator[tuple[str, str]]:
    """Yield (kind, words) of what is worth saying below the table."""
    plan = document.get("plan") or {}
    for kind, name in (plan.get("sticky") or {}).items():
        yield "plain", f"requests with one value of {kind} '{printable(str(name))}' meet one version"
    for each in document["versions"]:
        rolled_back = each.get("rolled_back")
        if rolled_back:
            yield (
                "bad",
                f"version {each['version']} lost its share {duration(rolled_back.get('for_seconds', 0))} ago: "
                + printable(str(rolled_back.get("reason", ""))),
            )
    mirror = document.get("mirror")
    if mirror:
        counts = ", ".join(
            f"{mirror.get(name, 0)} {'failed' if name == 'errors' else name}"
            for name in ("sent", "same", "different", "errors", "uncompared", "skipped")
        )
        yield "plain", f"mirror to version {mirror.get('version')}: {counts}"
        for words in _differences(mirror.get("differences", ())):
            yield "warning", "  " + words
    for words in document.get("warnings", ()):
        yield "warning", f"warning: {printable(str(words))}"


def _differences(differences: Iterable[Document]) -> Iterator[str]:
    """Describe them in the order in which they were first seen; those that read alike are counted."""
    requests: dict[str, list[str]] = {}
    for found in differences:
        requests.setdefault(_difference(found), []).append(str(found.get("request_id") or ""))
    for words, ids in requests.items():
        known = [each for each in dict.fromkeys(ids) if each]
        asides = [f"{len(ids)} times"] if len(ids) > 1 else []
        if known:
            asides.append(f"{'last in ' if len(known) > 1 else ''}request '{known[-1]}'")
        yield printable(f"{words} ({', '.join(asides)})" if asides else words)


def _difference(found: Document) -> str:
    where = f"output '{found['output']}' " if found.get("output") else ""
    index = f"{found['index']} " if found.get("index") is not None else ""
    count = f", {found['elements']} elements differ" if found.get("elements", 0) > 1 else ""
    return (
        f"{where}{index}{found.get('what', '')}: client got {found.get('client')}, mirror gave "
        f"{found.get('mirror')}{count}"
    )


def plain(document: Document) -> str:
    """Return a description as text without colours."""
    facts = "".join(f"{words}\n" for _, words in _facts(document))
    return f"{_heading(document)}\n{aligned([_HEADINGS, *_rows(document)])}{facts}"


def drawn(document: Document) -> Group:
    """Return a description for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(*_HEADINGS, box=None, header_style="dim", padding=(0, 2, 0, 0))
    for each, row in zip(document["versions"], _rows(document), strict=True):
        style = "red" if each.get("rolled_back") else "green" if each.get("share") else ""
        table.add_row(*(Text(printable(cell), style=style) for cell in row))
    styles = {"bad": "red", "warning": "yellow"}
    facts = [Text(words, style=styles.get(kind, "")) for kind, words in _facts(document)]
    return Group(Text(_heading(document), style="bold"), table, *facts)
