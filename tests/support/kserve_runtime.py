"""The runtime for KServe in examples/kserve, as tests start it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

MANIFESTS: Final = Path(__file__).parents[2] / "examples/kserve"
RUNTIME: Final = MANIFESTS / "cluster-serving-runtime.yaml"


def document(path: Path) -> dict[str, Any]:
    """Return the one document of a manifest."""
    read: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return read


def container() -> dict[str, Any]:
    """Return the runtime's container."""
    found: dict[str, Any]
    [found] = document(RUNTIME)["spec"]["containers"]
    return found


def arguments(repository: Path) -> list[str]:
    """Return the runtime's flags for a repository in another place, and ports of the kernel's choice."""
    program, *flags = container()["args"]
    assert program == "tritonserver"
    elsewhere = {
        "--model-store=/mnt/models": f"--model-store={repository}",
        "--http-port=8080": "--http-port=0",
        "--grpc-port=9000": "--grpc-port=0",
    }
    assert elsewhere.keys() <= set(flags)
    return [elsewhere.get(flag, flag) for flag in flags]
