"""What frontends know of language models, and errors that are their own."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from actors.values.errors import Internal, InvalidArgument, NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LanguageFacts(NamedTuple):
    """One language model that serves.

    `adapters` are its LoRA adapters by name: where each comes from.
    """

    longest: int  # tokens that prompt and answer may have together; 0: not known
    created: int = 0  # seconds since 1970: when this version was loaded
    root: str = ""  # what the engine was told to load; empty: the model's own name
    adapters: Mapping[str, str] = MappingProxyType({})
    takes_adapters: bool = False  # whether its engine serves some, if there are any


class Languages(Protocol):
    """Which of the models that serve are language models."""

    def names(self) -> Sequence[str]:
        """Return the names of those with a READY version, in order."""

    def facts(self, model: str) -> LanguageFacts | None:
        """Return the facts of `model`'s highest READY version; None if it is no language model or not READY.

        It is asked once a request, so it must be a look-up.
        """


class NoSuchAdapter(NotFound):
    """The client named a LoRA adapter that there is not."""


class BadAsk(InvalidArgument):
    """An ask that can't be met. `param` is the field at fault as clients write it, empty if there is none.

    `reason` is a word for programs, such as `context_length_exceeded`; empty: nothing more is to be said.
    """

    def __init__(self, message: str, *, param: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.param = param
        self.reason = reason


class TextDiffers(Internal):
    """A text worker that has taken over makes another text of the same tokens than was sent."""
