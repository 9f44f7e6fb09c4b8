"""Make the Python code of every `.proto` beside this file: `python -m protocols.kserve.proto.generate`.

Needs `grpcio-tools==1.76.0`: code made by a later one refuses to load beside Triton's clients. The generated code is
committed, and a test compares it with what this makes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
PACKAGE: Final = "protocols.kserve.proto"


def generate(target: Path) -> None:
    """Write the `_pb2.py` and `_pb2.pyi` of every `.proto` here into `target`."""
    sources = sorted(path.name for path in HERE.glob("*.proto"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={HERE}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            *sources,
        ],
        check=True,
    )
    for source in sources:
        stem = source.removesuffix(".proto") + "_pb2"
        for path in (target / f"{stem}.py", target / f"{stem}.pyi"):
            path.write_text(adopt(path.read_text()))


def adopt(code: str) -> str:
    """Return generated `code` with descriptors in our own pool and absolute imports of its neighbours."""
    code = code.replace(
        "from google.protobuf import descriptor_pool as _descriptor_pool\n",
        f"from {PACKAGE}.pool import POOL as _POOL\n",
    )
    code = code.replace("_descriptor_pool.Default()", "_POOL")
    return re.sub(r"^import (\w+_pb2) as", rf"from {PACKAGE} import \1 as", code, flags=re.MULTILINE)


if __name__ == "__main__":
    generate(HERE)
