"""Make the Python code of every `.proto` beside this file: `python -m protocols.kserve.proto.generate`.

Messages come to lie beside their `.proto` (`*_pb2`), services in `protocols/grpc/generated`. There the code
for a server (`*_base`) is apart from the code for a client (`*_stub`), because grpclib's client imports
asyncio, which the server process does without.

Needs grpclib, and `grpcio-tools==1.76.0`: code made by a later version refuses to load beside Triton's
clients. The generated code is committed, and a test compares it with what this module makes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
MESSAGES: Final = "protocols.kserve.proto"
SERVICES: Final = "protocols.grpc.generated"
# The module of ServerStream, which methods get in place of grpclib's Stream.
STREAM: Final = "protocols.grpc.call"
PLUGIN: Final = "protoc-gen-grpclib_python"


def generate(root: Path) -> None:
    """Write the code of every `.proto` here into the packages `MESSAGES` and `SERVICES` under `root`."""
    messages, services = (root.joinpath(*package.split(".")) for package in (MESSAGES, SERVICES))
    for folder in (messages, services):
        folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as made:
        compile_into(Path(made))
        for path in sorted(Path(made).iterdir()):
            code = path.read_text()
            if not path.stem.endswith("_grpc"):
                (messages / path.name).write_text(adopt_messages(code))
            elif "\nclass " in code:
                base, stub = split_service(adopt_service(code))
                stem = path.stem.removesuffix("_grpc")
                (services / f"{stem}_base.py").write_text(base)
                (services / f"{stem}_stub.py").write_text(stub)


def compile_into(target: Path) -> None:
    """Run protoc over every `.proto` here; leave `_pb2.py`, `_pb2.pyi` and grpclib's `_grpc.py` as made."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--plugin={PLUGIN}={Path(sysconfig.get_path('scripts'), PLUGIN)}",
            f"--proto_path={HERE}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            f"--grpclib_python_out={target}",
            *sorted(path.name for path in HERE.glob("*.proto")),
        ],
        check=True,
    )


def adopt_messages(code: str) -> str:
    """Return `_pb2` code with descriptors in our own pool and absolute imports of its neighbours."""
    code = code.replace(
        "from google.protobuf import descriptor_pool as _descriptor_pool\n",
        f"from {MESSAGES}.pool import POOL as _POOL\n",
    )
    code = code.replace("_descriptor_pool.Default()", "_POOL")
    return re.sub(r"^import (\w+_pb2) as", rf"from {MESSAGES} import \1 as", code, flags=re.MULTILINE)


def adopt_service(code: str) -> str:
    """Return `_grpc` code with absolute imports of its messages, whose methods get our stream."""
    code = re.sub(r"^import (\w+_pb2)$", rf"from {MESSAGES} import \1", code, flags=re.MULTILINE)
    code = code.replace("    import grpclib.server\n", f"    import {STREAM}\n")
    return code.replace("grpclib.server.Stream[", f"{STREAM}.ServerStream[")


def split_service(code: str) -> tuple[str, str]:
    """Return two modules: the bases in `code` with what they import, and the stubs with what they import."""
    head, *classes = code.rstrip("\n").split("\n\n\n")
    bases = [each for each in classes if "(abc.ABC):" in each.partition("\n")[0]]
    stubs = [each for each in classes if each not in bases]
    base_head = head.replace("import grpclib.client\n", "")
    stub_head = re.sub(
        r"^import (abc|typing|grpclib\.const)\n\n?|^if typing.*\n.*\n", "", head, flags=re.MULTILINE
    )
    return "\n\n\n".join([base_head, *bases]) + "\n", "\n\n\n".join([stub_head, *stubs]) + "\n"


if __name__ == "__main__":
    generate(ROOT)
