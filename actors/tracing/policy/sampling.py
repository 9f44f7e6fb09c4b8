"""Which requests are sampled by one trace setting, and which of their traces have ended."""

from __future__ import annotations

from actors.tracing.policy.settings import samples
from actors.values.tracing.settings import OPENTELEMETRY, TENSORS, TraceSetting


class Sampler:
    """Counts requests for one setting, from the setting's beginning. Equality is identity.

    Every `rate`-th is sampled, as long as `left` is not 0. A request that comes with a valid context in the
    mode opentelemetry is always sampled, and counts for neither.
    """

    __slots__ = (
        "active",
        "collected",
        "forces",
        "keeps_tensors",
        "left",
        "lost",
        "retired",
        "sampled",
        "seen",
        "setting",
    )

    def __init__(self, setting: TraceSetting) -> None:
        self.setting = setting
        self.active = samples(setting)
        self.forces = self.active and setting.mode == OPENTELEMETRY
        self.keeps_tensors = TENSORS in setting.levels and not self.forces
        self.left = setting.count
        self.seen = 0
        self.sampled = 0
        # Of those: how many a sink has got, and how many will never come.
        self.collected = 0
        self.lost = 0
        self.retired = False  # another setting is in its place

    @property
    def exhausted(self) -> bool:
        """Whether no request will be sampled any more."""
        return not self.active or (self.left == 0 and not self.forces)

    @property
    def settled(self) -> bool:
        """Whether the traces of all that were sampled have ended."""
        return self.collected + self.lost >= self.sampled

    def take(self, *, forced: bool = False) -> bool:
        """Whether the request that has come is sampled. `forced`: it came with a valid context."""
        if not self.active:
            return False
        if forced and self.forces:
            self.sampled += 1
            return True
        if self.left == 0 or not self.setting.rate:
            return False
        self.seen += 1
        if self.seen % self.setting.rate:
            return False
        if self.left > 0:
            self.left -= 1
        self.sampled += 1
        return True

    def run(self) -> int:
        """Return how many requests in a row are not sampled from now on, and count them as having come."""
        if self.left == 0 or not self.setting.rate:
            return 0
        rest = self.setting.rate - 1 - self.seen % self.setting.rate
        self.seen += rest
        return rest

    def forget(self, *, sampled: bool = False, forced: bool = False) -> None:
        """Let a request, which comes once more, not have come.

        It was `sampled` or not, and perhaps `forced`.
        """
        if sampled:
            self.sampled -= 1
            if not forced:
                self.seen -= 1
                self.left += self.setting.count >= 0
        elif self.left and self.seen:  # otherwise it was not counted
            self.seen -= 1
