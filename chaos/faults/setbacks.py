"""Where an operator sees that the last reload of a model failed.

Beside the log, these are the index, the tree, and a metric.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Final

from chaos.faults.base import PATIENCE, Trouble, until
from chaos.faults.shelves import READY, index_rows
from chaos.faults.targets import node_at
from chaos.subject.server import Server

PREFIX: Final = "reload failed: "
"""What a reason in the index begins with, beside a version that serves."""

METRIC: Final = "tritium_model_reload_failed"

_LOOK: Final = 0.1  # seconds between two questions

Places = Mapping[str, str]
"""What each place tells; "" if it tells of no failure."""


async def places(server: Server, model: str) -> Places:
    """Return what index, tree and metric tell of a model's last reload. Raises Broken."""
    rows = await index_rows(server, model)
    reasons = [str(each.get("reason", "")) for each in rows if each["state"] == READY]
    node = node_at(await server.tree(), f"repository/lanes/{model}")
    return {
        "index": next((each.removeprefix(PREFIX) for each in reasons if each.startswith(PREFIX)), ""),
        "tree": str(node.get("info", {}).get("reload_failed") or ""),
        "metric": "told" if await server.metric(METRIC, model=model) else "",
    }


async def until_told(server: Server, model: str) -> str:
    """Wait until all places tell that a reload failed, and return the reason.

    Raises Trouble if that takes too long.
    """
    seen = await _until(server, model, told=True)
    if seen["index"] != seen["tree"]:
        raise Trouble(f"the reload of '{model}' failed for different reasons: {json.dumps(seen)}")
    return seen["index"]


async def until_mended(server: Server, model: str) -> None:
    """Wait until no place tells of a failure any more. Raises Trouble if that takes too long."""
    await _until(server, model, told=False)


async def _until(server: Server, model: str, *, told: bool) -> Places:
    what = (
        "all places should tell of the reload that failed" if told else "it is mended, and none should tell"
    )
    return await until(
        partial(places, server, model),
        lambda seen: all(bool(each) is told for each in seen.values()),
        lambda seen: f"of '{model}' {json.dumps(seen)} after {PATIENCE:.0f} s; {what}",
        pause=_LOOK,
    )
