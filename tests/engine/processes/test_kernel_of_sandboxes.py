"""What a server says at its start of a floor that its kernel can't apply."""

import os
import sys
from dataclasses import replace

import pytest

from actors.values.confinement import Sandbox
from actors.values.events import Event
from engine.processes import kernel
from engine.processes.kernel import Kernel, applicable, lacking, tell_what_lacks, this_kernel
from engine.settings.sandbox import SandboxSettings

WHOLE = Kernel(landlock=6, filters=True, machine="x86_64", no_users=None, no_groups="")


BARE = replace(WHOLE, filters=False)


def asked(level):
    return SandboxSettings(asked=True, level=level)


@pytest.mark.parametrize("level", Sandbox)
def test_a_kernel_that_has_all_lacks_nothing(level):
    assert lacking(asked(level), WHOLE) == []


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
        ({"no_groups": "there is none"}, Sandbox.STRICT, ["a control group for each worker, with"]),
        ({"no_groups": "there is none"}, Sandbox.BASIC, []),
        ({"filters": False, "landlock": -1, "no_users": "x"}, Sandbox.OFF, []),
        ({"kills": True, "landlock": -1}, Sandbox.BASIC, ["everything: a filter of system calls"]),
        ({"kills": True, "landlock": -1}, Sandbox.OFF, []),
    ],
)
def test_what_is_missing_is_said_of_the_level_that_needs_it(change, level, told):
    warnings = lacking(asked(level), replace(WHOLE, **change))
    assert len(warnings) == len(told)
    for warning, text in zip(warnings, told, strict=True):
        assert warning.startswith(f"--sandbox={level.value} lacks ")
        assert text in warning


def test_an_operator_is_warned_only_of_what_was_asked_for():
    told = []

    def log(event, **keys):
        told.append((event, keys["level"], keys["warning"]))

    tell_what_lacks(SandboxSettings(), BARE, log)
    tell_what_lacks(asked(Sandbox.GUARD), BARE, log)
    lacks = "lacks the filter of system calls: this kernel has no seccomp"
    assert told == [
        (Event.SERVER_STARTING, "info", f"the default sandbox, guard, {lacks}"),
        (Event.SERVER_STARTING, "warning", f"--sandbox=guard {lacks}"),
    ]


@pytest.mark.parametrize(
    ("kills", "settings", "level"),
    [
        (False, SandboxSettings(), Sandbox.GUARD),
        (True, SandboxSettings(), Sandbox.OFF),
        (True, asked(Sandbox.GUARD), Sandbox.GUARD),
    ],
)
def test_where_a_worker_would_die_of_the_sandbox_there_is_none_unless_it_was_asked_for(
    kills, settings, level
):
    assert applicable(settings, replace(WHOLE, kills=kills)) == replace(settings, level=level)


def test_this_kernel_is_asked():
    found = this_kernel()
    assert found.machine == os.uname().machine
    assert (found.no_users == "") == (os.geteuid() != 0)


@pytest.mark.system
def test_a_process_that_never_comes_through_holds_up_no_start(monkeypatch, tmp_path):
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    monkeypatch.setattr(kernel, "_ENTERED_WITHIN", 0.01)
    assert not kernel._kills()
