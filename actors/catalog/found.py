"""What a repository has of a model, as values.

The code that reads repositories makes them, and `actors.catalog.deployment` carries them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from actors.values.specs import ModelKey, ModelSpec


class LocalCopy(Protocol):
    """A directory that was made for a model, such as a download. It lives until its last user lets go."""

    def hold(self) -> None:
        """Add one user."""

    def settled(self, *, applied: bool) -> None:
        """The model that was read from it serves now, or is ready to be woken; or nothing came of it."""

    def let_go(self) -> None:
        """Remove one user. The last one has the directory removed, off the loop. Never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What a load request puts in place of the repository's files (contract, repository.md section 5.2)."""

    config: str | None = None  # a ModelConfig as JSON
    files: Mapping[str, bytes] = field(default_factory=dict)  # by path; if given, there are no others
    versions: tuple[int, ...] = ()  # if given, those alone, whatever the configuration's version policy says


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """One model as its repository has it: its versions, or why there are none.

    Errors and warnings are for the log.
    """

    key: ModelKey
    specs: Sequence[ModelSpec] = ()
    # Chosen by the version policy, also where there are no specs.
    versions: Sequence[int] = ()
    reason: str = ""
    # By version; set only where some versions have no fault of their own.
    reasons: Mapping[int, str] = field(default_factory=dict)
    readable: bool = True  # false: its configuration can't even be parsed
    # Why an ensemble's models don't fit together, in the words that clients are told.
    unfit: str = ""
    duplicate: bool = False  # another repository has a model of the same name
    # Digest of everything it consists of; empty where it is never compared.
    content: str = ""
    # Everything that is wrong, each with its place; `reason` is the first.
    errors: Sequence[str] = ()
    warnings: Sequence[str] = ()
    # Held once, by the code that read the model; `settle` ends that.
    copy: LocalCopy | None = None

    @property
    def faults(self) -> Mapping[int, str]:
        """Why it can't be loaded, by version. The other versions fail only because of these."""
        return self.reasons or dict.fromkeys(self.versions, self.reason)

    def settle(self, *, applied: bool = False) -> None:
        """End the reader's hold on the copy: the code that needs the copy holds it by now.

        `applied`: the model serves as it was found, or is ready to be woken.
        """
        if self.copy is not None:
            self.copy.settled(applied=applied)
            self.copy.let_go()
