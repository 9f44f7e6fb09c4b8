"""Whether files of a model are what Git LFS leaves in place of the real ones: texts of some 130 bytes.

Frameworks say of such a file that it is corrupt, in words of their own. Reference: the Git LFS specification,
"The Pointer".
"""

from __future__ import annotations

import os

_HEAD = b"version https://git-lfs.github.com/spec/"
_LARGEST = 1024  # bytes that a pointer has at most
_MOST_LOOKED_AT = 1000  # files of a version directory


def is_pointer(path: str) -> bool:
    """Whether the regular file at `path` is a pointer; False if it can't be read."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) >= _LARGEST:
            return False
        with open(path, "rb") as file:
            return file.read(len(_HEAD)) == _HEAD
    except OSError:
        return False


def pointers_in(directory: str) -> str:
    """Return what is to be said about pointers in a version directory; nothing if there are none."""
    looked_at = 0
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            looked_at += 1
            if looked_at > _MOST_LOOKED_AT:
                return ""
            path = os.path.join(folder, name)
            if is_pointer(path):
                return f"'{path}' {POINTER}"
    return ""


POINTER = "is a Git LFS pointer and not the file itself: run 'git lfs pull' where the repository was cloned"
"""What a pointer is and what to do, as it follows the file's name."""
