"""Ask the registry of a Ray cluster: `python -m engine.fleet.launching.asking ADDRESS`.

Each line of the standard input is a group. The answer is a line of JSON: `servers`, with the entries as they
are in the registry, or `error`. The process ends with its input.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from engine.fleet.launching.heads import HeadAway, head_of
from engine.fleet.launching.registry import NAMESPACE, servers_prefix

_TIMEOUT: Final = 5.0  # seconds for one question
_HEAD_PORT: Final = 6379


def main() -> int:
    """Answer until the input ends; return the exit status."""
    address = sys.argv[1]
    client = None
    for line in sys.stdin:
        try:
            client = client or _connected(address)
            answer: dict[str, Any] = {"servers": _servers(client, line.strip())}
        except HeadAway as error:
            answer = {"error": str(error)}
        except Exception as error:  # noqa: BLE001  # of Ray's C++ part
            client = None
            answer = {"error": f"the Ray cluster at {address} does not answer: {error}"}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    return 0


def _servers(client: Any, group: str) -> list[str]:
    space = NAMESPACE.encode()
    keys = client.internal_kv_keys(servers_prefix(group).encode(), space, timeout=_TIMEOUT)
    found = client.internal_kv_multi_get(keys, space, timeout=_TIMEOUT) if keys else {}
    return [found[key].decode() for key in sorted(found)]


def _connected(address: str) -> Any:
    if address.startswith("ray://"):
        raise HeadAway(
            f"{address} is the address of a Ray client, and the registry is asked at that of the cluster's"
            f" head: give its host and the port of `ray start --head`, {_HEAD_PORT} by default"
        )
    try:
        from ray._raylet import GcsClient

        found = head_of(address)
    except ImportError as error:
        raise HeadAway("the package ray is not installed; tritium's extra of that name brings it") from error
    return GcsClient(address=found)


if __name__ == "__main__":
    sys.exit(main())
