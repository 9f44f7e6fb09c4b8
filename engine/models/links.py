"""Where symbolic links in a model repository may lead, and where those of a model do lead."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Final

MOST_ENTRIES: Final = 250_000
"""Files and directories of a model, as seen through links.

One with an unpacked environment has some 100,000.
"""

DEEPEST: Final = 64

_HELD: Final = re.compile(r"/proc/self/fd/([0-9]+)(?:/|$)")


class Links(Enum):
    """How far links are followed. What a model's owner names by `..` or from the root is another matter."""

    ANYWHERE = "anywhere"  # as Triton does
    INSIDE = "inside"  # only within the model repository, and within the model for labels and such

    def follow(self, name: str) -> bool:
        """Whether the file `name` of a directory is taken wherever links on its way lead.

        If not, what counts is where it lies.
        """
        return self is Links.ANYWHERE and not _climbs(name)


def _climbs(name: str) -> bool:
    parts = Path(os.path.normpath(name)).parts if "\0" not in name else ("..",)
    return os.path.isabs(name) or ".." in parts[:1]


def resolved(path: Path) -> Path:
    """Return where `path` leads by name, or `path` if no name of this process leads there.

    A link into another container (`/proc/<pid>/root/models`) reads as if it led to a path of this one.
    """
    try:
        target = path.resolve()
        return target if os.path.samefile(target, path) else path
    except (OSError, RuntimeError):
        return path


def held(descriptor: int, name: str) -> Path:
    """Return the path of `name` in an open directory that no path of this process's own leads to.

    Such a directory lies in another container. Paths lead there through `/proc/<pid>/root`, which a sandboxed
    worker may not follow. A worker may follow this one, if it inherits the descriptor under the same number.
    """
    return Path(f"/proc/self/fd/{descriptor}", name)


def descriptors_in(paths: Iterable[Path]) -> tuple[int, ...]:
    """Return the descriptors that a process needs for those of the paths that `held` has made."""
    found = (_HELD.match(str(path)) for path in paths)
    return tuple(sorted({int(match[1]) for match in found if match}))


def targets(directory: Path) -> tuple[Path, ...]:
    """Return what lies elsewhere and belongs to the model in `directory` by links, each by its own path.

    Sorted, and nothing that lies below another. It looks at no more than a survey of the model does.
    """
    found: list[Path] = []
    for target in sorted(_led_to(directory)):
        if not any(target.is_relative_to(each) for each in found):
            found.append(target)
    return tuple(found)


def _led_to(directory: Path) -> Iterator[Path]:
    whole = resolved(directory)
    pending, seen, looked_at = [whole], set[tuple[int, int]](), 0
    if whole != directory:
        yield whole
    while pending:
        folder = pending.pop()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    looked_at += 1
                    if looked_at > MOST_ENTRIES:
                        return
                    if entry.is_symlink():
                        target = resolved(Path(entry.path))
                        if os.path.exists(target) and not target.is_relative_to(whole):
                            yield target
                            pending += [target] if target.is_dir() else []
                    elif entry.is_dir():
                        pending.append(Path(entry.path))
        except OSError:  # removed meanwhile, or not for the server to read
            continue
