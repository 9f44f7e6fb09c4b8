"""A client with a region of its own, as a program: one that can be killed in the middle.

    python -m chaos.clients.region_owner PORT REGION BYTES MODEL

Makes the object `/REGION`, registers it by its name, and has MODEL, of the kind `echo`, read from it and
write to it over HTTP for ever, from several threads. Says `answered` once an answer has come.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import sys
import threading
from typing import Final

_ROWS: Final = 262_144
_ASKING: Final = 2  # threads


def _post(port: int, path: str, body: object) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def _ask(port: int, region: str, model: str, number: int, told: threading.Event) -> None:
    at, nbytes = 8 * _ROWS * number, 4 * _ROWS
    place: dict[str, object] = {"shared_memory_region": region, "shared_memory_byte_size": nbytes}
    given: dict[str, object] = {"name": "VALUE", "shape": [_ROWS, 1], "datatype": "INT32"}
    for count in itertools.count():
        body: dict[str, object] = {
            "id": f"fault-{region}-{number}-{count}",
            "inputs": [{**given, "parameters": place | {"shared_memory_offset": at}}],
            "outputs": [{"name": "ANSWER", "parameters": place | {"shared_memory_offset": at + nbytes}}],
        }
        if _post(port, f"/v2/models/{model}/infer", body) == 200:
            told.set()


def main() -> None:
    """Ask until killed."""
    port, region, nbytes, model = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    fileno = os.open(f"/dev/shm/{region}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(fileno, nbytes)
    body = {"key": f"/{region}", "offset": 0, "byte_size": nbytes}
    status = _post(port, f"/v2/systemsharedmemory/region/{region}/register", body)
    if status != 200:
        sys.exit(f"HTTP {status} to the registration of '{region}'")
    told = threading.Event()
    for number in range(_ASKING):
        threading.Thread(target=_ask, args=(port, region, model, number, told), daemon=True).start()
    told.wait()
    os.write(1, b"answered\n")
    threading.Event().wait()


if __name__ == "__main__":
    main()
