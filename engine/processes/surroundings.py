"""What around the process will get in its way, told at the start and not when it does."""

from __future__ import annotations

import resource
import sys
import tempfile
from typing import Final

FEW_FILES: Final = 1024
"""Open files below which a server is short of them.

A connection takes one, a worker some ten, the server itself some twenty.
"""


def in_the_way() -> list[str]:
    """Return a warning for each thing that this process lacks, after it has raised its own limits."""
    said = (_few_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]), _file_names(), _no_room_for_files())
    return [warning for warning in said if warning]


def _few_files(limit: int) -> str:
    if limit == resource.RLIM_INFINITY or limit >= FEW_FILES:
        return ""
    return (
        f"only {limit} files may be open at once: a connection takes one and a worker some ten, so models"
        " may not load and clients"
        " may have to wait; raise it, by ulimit -n 65536, LimitNOFILE=65536 (systemd) or --ulimit"
        " nofile=65536 (docker)"
    )


def _file_names() -> str:
    encoding = sys.getfilesystemencoding().lower().replace("_", "-")
    if encoding in {"utf-8", "utf8"}:
        return ""
    return (
        f"file names are read as {encoding}, by the locale: models whose names are not plain ASCII are not"
        " found; set"
        " LC_ALL=C.UTF-8 or PYTHONUTF8=1"
    )


def _no_room_for_files() -> str:
    try:
        tempfile.gettempdir()
    except OSError:
        return (
            "no directory for temporary files can be written to: models that come with a load request,"
            " downloads and packed"
            " environments can't be unpacked; mount a tmpfs at /tmp, or set TMPDIR"
        )
    return ""
