"""A Ray cluster on this machine: `python cluster.py FOLDER NODES`, on a Python that has Ray.

It prints a line of JSON once it stands: its address, and the numbers of its nodes besides the head, which
takes no servers. Then each line of its input is a command and is answered by a line of JSON:

- `add`: add a node;
- `kill NODE`: kill a node's processes, as if its machine had gone;
- `relay URL`: have Ray Serve pass on each request to `URL` with its path.

It ends, and the cluster with it, at the end of its input. `FOLDER` is for Ray's files and has a short path.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, Final

# All on loopback: Ray insists on an address of the host otherwise. Read as Ray is imported.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
# This file's folder would come before packages.
sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != Path(__file__).parent.resolve()]

from ray.cluster_utils import Cluster  # noqa: E402  # see above

HEALTH: Final = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}
"""What has a head notice a dead node within some two seconds; docs/ray.md recommends it."""


def main() -> int:
    """Serve until the input ends; return the exit status."""
    folder, count = sys.argv[1], int(sys.argv[2])
    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": folder, "_system_config": HEALTH}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes: dict[str, Any] = {}
    try:
        for _ in range(count):
            _add(cluster, nodes)
        _say(address=cluster.address, nodes=list(nodes))
        for line in sys.stdin:
            match line.split():
                case ["add"]:
                    _say(node=_add(cluster, nodes))
                case ["kill", node]:
                    cluster.remove_node(nodes.pop(node), allow_graceful=False)
                    _say(nodes=list(nodes))
                case ["relay", url]:
                    _say(url=_relay(cluster.address, url))
    finally:
        # Not by `shutdown`, which has each node drain for half a minute.
        for node in cluster.list_all_nodes()[::-1]:
            cluster.remove_node(node, allow_graceful=False)
    return 0


def _add(cluster: Cluster, nodes: dict[str, Any]) -> str:
    node = cluster.add_node(num_cpus=2, labels={"zone": f"z{len(nodes)}"})
    nodes[node.node_id] = node
    return str(node.node_id)


def _relay(address: str, url: str) -> str:
    import aiohttp
    import ray
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import Response

    @serve.deployment(max_ongoing_requests=100)
    class Relay:
        def __init__(self) -> None:
            self._session: Any = None

        async def __call__(self, request: Request) -> Response:
            # Made here, as a session belongs to the loop that asks.
            self._session = self._session or aiohttp.ClientSession()
            body = await request.body()
            headers = {"Content-Type": request.headers.get("content-type", "application/json")}
            target = url + request.url.path
            async with self._session.request(request.method, target, data=body, headers=headers) as answer:
                return Response(await answer.read(), answer.status, media_type=answer.content_type)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(address, log_to_driver=False, logging_level="ERROR")
    # One proxy: those of several nodes on one machine would want the same port.
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    serve.run(Relay.bind(), name="relay", route_prefix="/")
    return f"http://127.0.0.1:{port}"


def _say(**values: object) -> None:
    sys.stdout.write(f"{json.dumps(values)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
