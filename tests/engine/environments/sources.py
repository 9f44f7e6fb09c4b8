"""What tests make environments from: packages, packed and unpacked environments, all made here and now."""

import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path


def make_wheel(directory, name, version, *, source="", requires=()):
    """Write a wheel of one module, whose `VERSION` is what it says; return its path."""
    info = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    metadata += [f"Requires-Dist: {each}\n" for each in requires]
    files = {
        f"{name}.py": f"VERSION = {version!r}\n{source}",
        f"{info}/METADATA": "".join(metadata),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in files) + f"{info}/RECORD,,\n"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return path


def offline(wheels):
    """Variables that let pip install from a directory and from nowhere else."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}


def make_environment(directory, *, activate="", python=None):
    """Make an unpacked environment whose Python is this one, or a script."""
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "activate").write_text(activate)
    script = directory / "bin" / "python3"
    script.write_text(python or f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return directory


def pack(directory, archive):
    """Pack an environment as conda-pack does: `bin` at the top."""
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(Path(directory).iterdir()):
            tar.add(path, arcname=path.name)
    return archive


def pack_members(archive, *members):
    """Pack members given as (name, content) or as TarInfo."""
    with tarfile.open(archive, "w:gz") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            name, content = member
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive


def link(name, target, *, hard=False):
    """A member that is a link."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.LNKTYPE if hard else tarfile.SYMTYPE
    info.linkname = target
    return info
