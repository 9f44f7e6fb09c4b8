"""Balancers before a fleet, by the configuration that `tritium fleet proxy-config` writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BALANCERS: Final[Mapping[str, Sequence[str]]] = {
    "haproxy": ("haproxy", "-f"),
    "envoy": ("envoy", "--log-level", "off", "--concurrency", "1", "-c"),
}
"""How each is run; the name of its configuration is the last argument."""


@contextmanager
def balancer(file: Path, proxy: str, http_port: int, grpc_port: int, *flags: str) -> Iterator[int]:
    """Run one before the fleet of `file`, beside which it writes what it needs; give its pid."""
    command = [*(sys.executable, "-m", "engine", "fleet", "proxy-config", proxy, f"--file={file}")]
    command += ["--address=127.0.0.1", f"--http-port={http_port}", f"--grpc-port={grpc_port}", *flags]
    written = file.with_name("haproxy.cfg" if proxy == "haproxy" else "envoy.yaml")
    written.write_bytes(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    with file.with_name(f"{proxy}.log").open("wb") as log:
        process = subprocess.Popen([*BALANCERS[proxy], str(written)], stdout=log, stderr=log)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
