"""Runs a program under a filter of system calls that refuses, or ends, who asks for a sandbox.

The command is `python outer_filter.py refuse|kill PROGRAM ARGUMENT…`. Service managers and container engines
have such filters.
"""

import ctypes
import os
import struct
import sys

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBERS = {"x86_64": (317, 157), "aarch64": (277, 167)}  # of seccomp and prctl
LANDLOCK = (444, 445, 446)
NO_NEW_PRIVILEGES = 38
SET_SECCOMP, FILTER = 22, 2
VERDICTS = {"refuse": 0x00050001, "kill": 0x80000000}  # EPERM
LIBC = ctypes.CDLL(None, use_errno=True)


def program(verdict: int) -> bytes:
    """Return the filter."""
    seccomp, prctl = NUMBERS[os.uname().machine]
    made = [(LOAD, 0, 0, 0)]
    for number in (seccomp, *LANDLOCK):
        made += [(EQUAL, 0, 1, number), (RETURN, 0, 0, verdict)]
    made += [
        (EQUAL, 0, 3, prctl),
        (LOAD, 0, 0, 16),
        (EQUAL, 0, 1, NO_NEW_PRIVILEGES),
        (RETURN, 0, 0, verdict),
    ]
    made.append((RETURN, 0, 0, 0x7FFF0000))
    return b"".join(struct.pack("=HBBI", *each) for each in made)


def main() -> None:
    """Enter the filter, and become the program."""
    kept = ctypes.create_string_buffer(program(VERDICTS[sys.argv[1]]))
    argument = struct.pack("HP", (len(kept) - 1) // 8, ctypes.addressof(kept))
    assert LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert LIBC.prctl(SET_SECCOMP, FILTER, argument, 0, 0) == 0, os.strerror(ctypes.get_errno())
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
