"""What a repository has of a model, as values: made by whoever reads repositories, carried out by `actors.deployment`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from actors.specs import ModelKey, ModelSpec


class LocalCopy(Protocol):
    """A directory that was made for a model, such as a download; it lives as long as somebody holds it."""

    def hold(self) -> None:
        """One more user."""

    def let_go(self) -> None:
        """One user less. The last one has it removed, off the loop. Never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What a load request puts in place of the repository's files (contract, repository.md section 5.2)."""

    config: str  # a ModelConfig as JSON
    files: Mapping[str, bytes] = field(default_factory=dict)  # by path; where there are any, the only ones


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """One model as its repository has it: its versions, or why there are none.

    Errors and warnings are for the log.
    """

    key: ModelKey
    specs: Sequence[ModelSpec] = ()
    versions: Sequence[int] = ()  # chosen by the version policy, also where there are no specs
    reason: str = ""
    # By version, where some have no fault of their own.
    reasons: Mapping[int, str] = field(default_factory=dict)
    readable: bool = True  # false: its configuration can't even be parsed
    unfit: str = ""  # why the models that an ensemble is composed of don't make it up, as clients are told
    duplicate: bool = False  # another repository has a model of the same name
    content: str = ""  # digest of everything it consists of; empty where nobody compares
    errors: Sequence[str] = ()  # everything that is wrong, each with its place; `reason` is the first
    warnings: Sequence[str] = ()
    copy: LocalCopy | None = None  # held once, by whoever read it; `settle` ends that

    @property
    def faults(self) -> Mapping[int, str]:
        """Why it can't be loaded, by version. The others only fall with these."""
        return self.reasons or dict.fromkeys(self.versions, self.reason)

    def settle(self) -> None:
        """Whoever wants its copy holds it by now."""
        if self.copy is not None:
            self.copy.let_go()
