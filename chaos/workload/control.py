"""How the harness has a reference model do harm: files in the run's folder, which the model's workers read.

`<run>/control/<model>/<time>.<action>` is done once, by the worker that succeeds to remove it: in its next
execution, or as it is loaded if it is one of `STARTING`. A worker takes one of them at a time, so that three
files are three executions. `<time>.<action>.on` is done by every worker, each time, for as long as the file is
there.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from chaos.workload.actions import ACTIONS, STARTING
from chaos.workload.answers import kind_of


class Order:
    """Something a model was told to do. As a context manager it is withdrawn at the end of the block."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def stands(self) -> bool:
        """Whether the order still exists: once it is taken or withdrawn, it does not."""
        return self._file.exists()

    def withdraw(self) -> bool:
        """Take it back. Returns whether it still stood."""
        try:
            self._file.unlink()
        except FileNotFoundError:
            return False
        return True

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.withdraw()


class Control:
    """Gives orders to the models of a run.

    Both ways raise ValueError for an action that no model, or not this one, can do.
    """

    def __init__(self, run: Path) -> None:
        self._folder = control_folder(run)

    def once(self, model: str, action: str) -> Order:
        """Have one worker of a model do it once; the order stands until one has begun to."""
        return self._given(model, action, "")

    def hold(self, model: str, action: str) -> Order:
        """Have all workers of a model do it each time, until the order is withdrawn.

        A `with` block withdraws it at its end.
        """
        return self._given(model, action, ".on")

    def _given(self, model: str, action: str, ending: str) -> Order:
        if kind_of(model) in {"add_sub", "pipeline"}:
            raise ValueError(f"'{model}' is no Python model: it takes no orders, only requests can harm it")
        if action not in ACTIONS and action not in STARTING:
            raise ValueError(f"no model can '{action}', only {', '.join((*ACTIONS, *STARTING))}")
        folder = self._folder / model
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{time.monotonic_ns():020}.{action}{ending}"
        file.touch(exist_ok=False)
        return Order(file)


def control_folder(run: Path) -> Path:
    """Return where a run's orders lie."""
    return run / "control"


def journal_folder(run: Path) -> Path:
    """Return where the models of a run write what they execute."""
    return run / "journal"
