"""What is logged, changed while the server runs: the logging extension, and those that follow it.

The settings of the start are the first state. A client may change levels and the format; the file is the
operator's. What logs by settings of its own, such as the hooks of frontends, `follow`s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from actors.values.events import Event, Log
from actors.values.interfaces import LogState
from engine.settings.reporting import LOG_FORMATS, LogSettings

Following = Callable[[LogSettings], None]
"""Is told the settings: at once, and whenever they have changed."""


class RunningLogs:
    """Implements `actors.values.interfaces.Logs`."""

    formats: Final[Sequence[str]] = LOG_FORMATS

    def __init__(
        self, settings: LogSettings, configure: Following = lambda _: None, log: Log | None = None
    ) -> None:
        """`configure` has lines follow new settings. `log` is told of each change."""
        self._settings = settings
        self._configure = configure
        self._log = log
        self._followers: list[Following] = []

    @property
    def settings(self) -> LogSettings:
        """The settings now."""
        return self._settings

    def follow(self, follower: Following) -> None:
        """Have `follower` told of the settings, now and after each change."""
        self._followers.append(follower)
        follower(self._settings)

    def tell(self, log: Log) -> None:
        """Have `log` told of each change from now on."""
        self._log = log

    def describe(self) -> LogState:
        """See `Logs.describe`."""
        now = self._settings
        return LogState(
            file=now.file,
            info=now.info,
            warning=now.warning,
            error=now.error,
            verbose_level=now.verbose,
            format=now.format,
        )

    def change(self, state: LogState) -> None:
        """See `Logs.change`."""
        form = next(form for form in LOG_FORMATS if form == state.format)
        changed = replace(
            self._settings,
            info=state.info,
            warning=state.warning,
            error=state.error,
            verbose=state.verbose_level,
            format=form,
        )
        if changed == self._settings:
            return
        before, self._settings = self.describe(), changed
        if self._log is not None:  # before it has an effect: the change may switch off the line that tells it
            self._log(Event.LOG_SETTINGS_CHANGED, level="info", **_differences(before, self.describe()))
        self._configure(changed)
        for follower in self._followers:
            follower(changed)


def _differences(before: LogState, after: LogState) -> dict[str, str]:
    fields = ("info", "warning", "error", "verbose_level", "format")
    return {
        name: f"{getattr(before, name)} to {getattr(after, name)}"
        for name in fields
        if getattr(before, name) != getattr(after, name)
    }
