"""What all tests share: three tiers, and how Hypothesis looks for examples.

- *quick*: decisions and actors in this process, much of it in virtual time. `python -m pytest -m "not system"`.
- *system*: real servers and workers. A test that starts a process is marked `system`, or fails in the quick tier.
- *long*: storms, campaigns and leaks at full length, marked `long` and left out unless that mark is selected.
  `python -m tests.long` runs them, with thousands of seeds and examples.
"""

import gc
import os
import sys

from engine.core.chosen import CORE  # isort: skip  # before anything that it chooses
import pytest
from hypothesis import HealthCheck, Phase, settings

# The same examples in every run, however slow the machine: what a run finds, the next one finds again.
settings.register_profile(
    "default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# `HYPOTHESIS_PROFILE=explore`: others each time.
settings.register_profile("explore", settings.get_profile("default"), derandomize=False)
# A sample of them: what is measured or compiled runs them besides, and slowly (`.ci/run`).
settings.register_profile("few", settings.get_profile("default"), max_examples=15)
# That there is a failure is enough, however long its story: what `python -m chaos.mutations` asks.
settings.register_profile(
    "unshrunk", settings.get_profile("default"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# Tests start hundreds of servers: each would compile all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_configure():
    """Refuse to test another core than `TRITIUM_TESTS_CORE` names."""
    wanted = os.environ.get("TRITIUM_TESTS_CORE", CORE.name)
    if wanted != CORE.name:
        raise pytest.UsageError(f"TRITIUM_TESTS_CORE asks for the core `{wanted}`, but this is {CORE}")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep tests from being looked at as garbage: there are 20,000, and they stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_report_header():
    """Say what is tested: the compiled core where one is installed that fits the source, or Python."""
    return f"core: {CORE}"


SYSTEM_FOLDERS = ("tests/survival/", "tests/conformance/", "tests/examples/")
"""Where every test needs real processes, and takes longer for it."""

STARTS_A_PROCESS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"}
"""The interpreter's audit events of new processes."""


class Watch:
    """Fails tests of the quick tier that start a process."""

    def __init__(self) -> None:
        self.quick = False
        self.running = ""

    def audit(self, event: str, _: object) -> None:
        """See one event of the interpreter. Raises AssertionError for a process that should not be started."""
        if self.quick and self.running and event in STARTS_A_PROCESS:
            raise AssertionError(f"{self.running} starts a process: mark it `system`")


WATCH = Watch()
sys.addaudithook(WATCH.audit)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Know which test runs."""
    WATCH.running = item.nodeid
    try:
        return (yield)
    finally:
        WATCH.running = ""


def pytest_collection_modifyitems(config, items):
    """Mark whole folders, and leave the long tests out unless their mark is selected."""
    WATCH.quick = "not system" in str(config.getoption("markexpr"))
    for item in items:
        if item.nodeid.startswith(SYSTEM_FOLDERS):
            item.add_marker(pytest.mark.system)
            item.add_marker(pytest.mark.slow)
    if "long" in str(config.getoption("markexpr")):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
