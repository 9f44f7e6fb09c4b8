"""What a server says at its start of a floor that its kernel can't apply."""

import os
from dataclasses import replace

import pytest

from actors.values.confinement import Sandbox
from engine.processes.kernel import Kernel, lacking, this_kernel

WHOLE = Kernel(landlock=6, filters=True, machine="x86_64", no_users=None)


@pytest.mark.parametrize("level", Sandbox)
def test_a_kernel_that_has_all_lacks_nothing(level):
    assert lacking(level, WHOLE) == []


@pytest.mark.parametrize(
    ("change", "level", "told"),
    [
        ({"filters": False}, Sandbox.GUARD, ["this kernel has no seccomp"]),
        ({"machine": "riscv64"}, Sandbox.BASIC, ["known for x86_64 and aarch64 only"]),
        ({"landlock": 5}, Sandbox.GUARD, []),
        ({"landlock": 5}, Sandbox.BASIC, ["the refusal of signals to other processes"]),
        ({"landlock": 1}, Sandbox.GUARD, ["other processes' memory"]),
        ({"landlock": -1}, Sandbox.STRICT, ["signals", "the refusal of files", "memory"]),
        ({"no_users": "the server runs as root without CAP_KILL"}, Sandbox.STRICT, ["without CAP_KILL"]),
        ({"no_users": "the server runs as root without CAP_KILL"}, Sandbox.BASIC, []),
        ({"no_users": ""}, Sandbox.STRICT, []),
        ({"filters": False, "landlock": -1, "no_users": "x"}, Sandbox.OFF, []),
    ],
)
def test_what_is_missing_is_said_of_the_level_that_needs_it(change, level, told):
    warnings = lacking(level, replace(WHOLE, **change))
    assert len(warnings) == len(told)
    for warning, text in zip(warnings, told, strict=True):
        assert warning.startswith(f"--sandbox={level.value} lacks ")
        assert text in warning


def test_this_kernel_is_asked():
    found = this_kernel()
    assert found.machine == os.uname().machine
    assert (found.no_users == "") == (os.geteuid() != 0)
