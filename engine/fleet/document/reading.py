"""The file of a fleet: which servers there are, and what each model should be (`docs/fleet.md`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from engine.fleet.document.nodes import BadDocument, Entry, each_told, read
from engine.fleet.names import is_host, is_model_name
from engine.fleet.policy.scaling import Scale
from engine.fleet.policy.values import Plan, Release, Rules, Wish
from engine.fleet.ports import Member
from engine.fleet.wanted import Timing, Tls, Wanted

_TOP: Final = ("replicas", "discovery", "models", "rules", "autoscale", "controller", "tls")
_METRICS_PORT: Final = 8002
_MOST_CHARACTERS: Final = 4 * 2**20
_NAME: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
_SECONDS: Final = "_seconds"
LISTENS: Final = ("port", "grpc_port", "metrics_port", "scheme", "metrics_scheme")
DISCOVERIES: Final[Mapping[str, tuple[str, ...]]] = {
    "dns": ("name", *LISTENS),
    "endpointslices": ("service", "namespace", *LISTENS),
    "ray": ("address", "group", "python"),
}
"""How replicas may be found, and what each way takes."""


def read_file(path: Path) -> Wanted:
    """Return what a file says. Raises BadDocument with every mistake, each with its line and key."""
    return read_wanted(str(path), text_of(path))


def text_of(path: Path) -> str:
    """Return the text of a file. Raises BadDocument if it can't be read."""
    try:
        with path.open() as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except FileNotFoundError as error:
        raise BadDocument(f"{path}: {error.strerror}; --file names the fleet's file") from error
    except (OSError, UnicodeError) as error:
        raise BadDocument(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if len(text) > _MOST_CHARACTERS:
        raise BadDocument(f"{path}: it has more than {_MOST_CHARACTERS} characters")
    return text


def read_wanted(file: str, text: str) -> Wanted:
    """Return what the text of a file says. Raises as `read_file`."""
    whole = read(file, text)
    top = whole.fields(*_TOP)
    if not {"replicas", "discovery"} & set(top):
        whole.wrong("say which servers there are: `replicas` lists them, `discovery` finds them")
    results: dict[str, Any] = {}
    reads = [partial(_part, results, name, entry) for name, entry in top.items()]
    for _ in each_told(reads):
        pass
    return Wanted(**results)


def _part(results: dict[str, Any], name: str, entry: Entry) -> None:
    match name:
        case "replicas":
            results["members"] = _members(entry)
        case "discovery":
            results["discovery"] = _discovery(entry)
        case "models":
            reads = [partial(_wish, model, each) for model, each in entry.members().items()]
            results["wishes"] = list(each_told(reads))
        case "rules":
            results["rules"] = _rules(entry)
        case "autoscale":
            results["scale"] = _scale(entry)
        case "tls":
            results["tls"] = _tls(entry)
        case _:
            results["timing"] = _timing(entry)


# -- replicas


def _members(entry: Entry) -> list[Member]:
    found = list(each_told([partial(_member, each) for each in entry.items()]))
    names, places = [each.name for each in found], [_place(each.url) for each in found]
    for at, one in enumerate(found):
        if one.name in names[:at]:
            entry.items()[at].wrong(
                f"there is a replica named '{one.name}' already; give this one another `name`"
            )
        if places[at] in places[:at]:
            first = names[places.index(places[at])]
            entry.items()[at].wrong(f"has the address of replica '{first}'; a server is listed once")
    return found


def _place(url: str) -> tuple[str | None, int | None, str]:
    parts = urlsplit(url)
    return parts.hostname, parts.port or {"http": 80}.get(parts.scheme, 443), parts.path


def _member(entry: Entry) -> Member:
    if not entry.is_mapping():
        url = _url(entry)
        return Member(name=_named(url), url=url, metrics=_metrics(url))
    fields = entry.fields("name", "url", "grpc", "metrics", "labels", "memory")
    if "url" not in fields:
        entry.wrong("a replica has the `url` of its HTTP port, such as http://10.0.0.7:8000")
    url = _url(fields["url"])
    return Member(
        name=fields["name"].text(_NAME, "a name of letters, digits, '.', '_' and '-'")
        if "name" in fields
        else _named(url),
        url=url,
        grpc=_target(fields["grpc"]) if "grpc" in fields else "",
        metrics=_scraped(fields.get("metrics"), url),
        labels=fields["labels"].texts() if "labels" in fields else {},
        memory=fields["memory"].size() if "memory" in fields else None,
    )


def _scraped(entry: Entry | None, url: str) -> str:
    if entry is not None and entry.value() is False:
        return ""
    return _metrics(url) if entry is None else _url(entry)


def _url(entry: Entry) -> str:
    text = entry.text(r"https?://[^\s/]+(/\S*)?", "an address such as http://10.0.0.7:8000").rstrip("/")
    try:
        parts, port = urlsplit(text), urlsplit(text).port
    except ValueError as error:
        entry.wrong(f"has no host and port that can be: {error}. An IPv6 address stands in brackets")
    if port == 0:
        entry.wrong(f"has no port that can be: {text}")
    if "@" in parts.netloc:
        entry.wrong("has credentials in it; show them with --key-file or --header-file")
    if not is_host(parts.hostname or ""):
        entry.wrong(f"{parts.hostname!r} is no address and no name of a host")
    if parts.query or parts.fragment:
        entry.wrong(f"takes no query and no fragment: {text}")
    return text


def _target(entry: Entry) -> str:
    """Return a HOST:PORT."""
    text = entry.text(r"[^\s/@]+:[0-9]{1,5}", "HOST:PORT")
    try:
        parts = urlsplit(f"//{text}")
        fits = bool(parts.port) and is_host(parts.hostname or "")
    except ValueError:
        fits = False
    if not fits:
        entry.wrong(f"takes HOST:PORT, got {text!r}")
    return text


def _named(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2].replace(":", "-").replace("[", "").replace("]", "")


def _metrics(url: str) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{_METRICS_PORT}/metrics"


def _discovery(entry: Entry) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for kind, each in entry.fields(*DISCOVERIES).items():
        fields = each.fields(*DISCOVERIES[kind])
        needed = DISCOVERIES[kind][0]
        if kind != "ray" and needed not in fields:
            each.wrong(f"needs `{needed}`")
        found[kind] = {name: _way(name, value) for name, value in fields.items()}
        if kind == "dns" and not is_host(found[kind]["name"]):
            fields["name"].wrong(f"{found[kind]['name']!r} is no name of a host")
    return found


def _way(name: str, entry: Entry) -> str | int:
    if name.endswith("port"):
        return entry.whole(1, 65535)
    return entry.text("https?", "http or https") if name.endswith("scheme") else entry.text()


# -- models


def _wish(model: str, entry: Entry) -> Wish:
    if not is_model_name(model):
        entry.wrong("no model has this name: it has up to 255 printable bytes, without '/'")
    fields = entry.fields("versions", "replicas", "labels", "memory", "config", "traffic")
    if "versions" not in fields:
        entry.wrong("say which `versions` to serve, such as 3 or [2, 3]")
    return Wish(
        model=model,
        release=Release(
            _versions(fields["versions"]), _config(fields["config"]) if "config" in fields else ""
        ),
        replicas=_replicas(fields["replicas"]) if "replicas" in fields else None,
        labels=fields["labels"].texts() if "labels" in fields else {},
        memory=fields["memory"].size() if "memory" in fields else 0,
        traffic=_plan(fields["traffic"]) if "traffic" in fields else None,
    )


def _versions(entry: Entry) -> tuple[int, ...]:
    each = entry.items() if entry.is_list() else [entry]
    if not each:
        entry.wrong("is empty; leave the model out to have it served nowhere")
    return tuple(sorted({one.whole(1, 2**53) for one in each}))


def _replicas(entry: Entry) -> int | None:
    return None if entry.value() == "all" else entry.whole(1)


def _config(entry: Entry) -> str:
    if not entry.is_mapping():
        entry.wrong("takes a model's configuration, as a load request's `config` does")
    if "parameters" in (members := entry.members()):
        for each in members["parameters"].members().values():
            each.members()
    return _json(entry)


def _json(entry: Entry) -> str:
    try:
        return json.dumps(entry.value(), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        entry.wrong(f"can't be written as JSON: {error}")


def _plan(entry: Entry) -> Plan:
    """Return a traffic plan. The servers say what else is wrong with it."""
    fields = entry.fields("weights", "sticky", "mirror", "rollback")
    if not fields:
        return {}
    if "weights" not in fields:
        entry.wrong("needs `weights`, such as {1: 90, 2: 10}; {} ends all plans")
    weights = fields["weights"].members()
    if not any(each.number(0, 1e9) > 0 for each in weights.values()):
        fields["weights"].wrong("some version has to have a weight above 0")
    for name, each in weights.items():
        if not re.fullmatch("[0-9]{1,16}", name):
            each.wrong("a weight's key is the number of a version")
    if "rollback" in fields:
        rules = fields["rollback"].members()
        if "max_error_rate" in rules:
            rules["max_error_rate"].number(0, 1)
        if "min_requests" in rules:
            rules["min_requests"].whole(1)
    plan = {name: json.loads(_json(each)) for name, each in fields.items() if name != "weights"}
    return {"weights": {name: each.value() for name, each in weights.items()}, **plan}


# -- how


def _rules(entry: Entry) -> Rules:
    fields = entry.fields(
        "settle_seconds",
        "max_error_rate",
        "min_requests",
        "load_timeout_seconds",
        "return_timeout_seconds",
        "retry_seconds",
    )
    given: dict[str, Any] = {
        name.removesuffix(_SECONDS): each.number(0, 86400)
        for name, each in fields.items()
        if name.endswith(_SECONDS)
    }
    if "max_error_rate" in fields:
        given["max_error_rate"] = fields["max_error_rate"].number(0, 1)
    if "min_requests" in fields:
        given["min_requests"] = fields["min_requests"].whole(1)
    return Rules(**given)


def _scale(entry: Entry) -> Scale:
    fields = entry.fields("requests_per_replica", "min_replicas", "max_replicas")
    given: dict[str, Any] = {}
    if "requests_per_replica" in fields:
        given["requests"] = fields["requests_per_replica"].number(0.001, 1e6)
    for name, key in (("min_replicas", "least"), ("max_replicas", "most")):
        if name in fields:
            given[key] = fields[name].whole(0 if key == "least" else 1)
    scale = Scale(**given)
    if scale.least > scale.most:
        entry.wrong(f"min_replicas is {scale.least}, above max_replicas, which is {scale.most}")
    return scale


def _timing(entry: Entry) -> Timing:
    fields = entry.fields("interval_seconds", "takeover_seconds", "drain_delay_seconds", "request_seconds")
    least = {"interval_seconds": 0.1, "takeover_seconds": 5, "request_seconds": 0.1}
    given = {
        name.removesuffix(_SECONDS): each.number(least.get(name, 0), 3600) for name, each in fields.items()
    }
    return Timing(**given)


def _tls(entry: Entry) -> Tls:
    fields = entry.fields("ca_file", "certificate_file", "key_file", "server_name")
    given = {name: each.text() for name, each in fields.items()}
    if "key_file" in given and "certificate_file" not in given:
        entry.wrong("has a key_file, and no certificate_file that the key belongs to")
    if "server_name" in given and not is_host(given["server_name"]):
        fields["server_name"].wrong(f"{given['server_name']!r} is no name of a host")
    return Tls(**given)
