"""Writes a run's reports into its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chaos.checker.judge import Judgement
from chaos.report.markdown import markdown
from chaos.report.page import page


def write_reports(folder: Path, judgement: Judgement, behaviours: Mapping[str, str]) -> None:
    """Write `report.md` and `report.html`.

    `behaviours` says of each fault, by its name, what must be seen of it.
    """
    (folder / "report.md").write_text(markdown(judgement, behaviours), encoding="utf-8")
    (folder / "report.html").write_text(page(judgement, behaviours), encoding="utf-8")
