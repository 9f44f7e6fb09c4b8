"""What comes of a generation: pieces of its choices, then what it has used.

In order of time for each choice: any number of pieces, the last of which has a `finish`. The answer's final
part has the `TokenUsage`. Text is whole characters; pieces never end in the middle of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Union

if TYPE_CHECKING:
    from collections.abc import Sequence

STOP: Final = "stop"
LENGTH: Final = "length"
TOOL_CALLS: Final = "tool_calls"


class TokenChance(NamedTuple):
    """A token and its logarithmic probability; `rank` is 1 for the most probable."""

    token_id: int
    text: str
    logprob: float
    rank: int
    data: bytes = b""  # the token's own bytes, which need not be whole characters


class TokenChances(NamedTuple):
    """A generated token, and the alternatives that were asked for, the most probable first."""

    chosen: TokenChance
    others: Sequence[TokenChance]


class ToolDelta(NamedTuple):
    """More of a call of a tool. The first delta of a call has its `id` and `name`."""

    call: int  # its place among the choice's calls
    id: str = ""
    name: str = ""
    arguments: str = ""


class TextPiece(NamedTuple):
    """What has come of a choice since its last piece."""

    choice: int
    text: str = ""
    reasoning: str = ""
    tools: Sequence[ToolDelta] = ()
    tokens: int = 0  # how many were generated for it
    token_ids: Sequence[int] = ()  # if they were asked for
    chances: Sequence[TokenChances] = ()  # if they were asked for
    finish: str = ""  # STOP, LENGTH or TOOL_CALLS; empty: there is more to come
    reason: str = ""
    """Why, in our own words, where `finish` can't say it: `deadline`, say, or the text that stopped it."""
    reasoning_tokens: int = 0  # of `tokens`: those that were generated for `reasoning`
    attempts: int = 1  # of the last piece: engines that were asked for the choice, one after the other


class TokenUsage(NamedTuple):
    """The tokens of one request: of all its prompts, and of all its choices."""

    prompt: int
    completion: int
    cached: int = 0  # of the prompt's: those that the engine did not have to compute
    reasoning: int = 0


class Begun(NamedTuple):
    """The engine has begun: what is known of a prompt. Comes before the first piece of its choices.

    A request of several prompts has one for each. The choices of prompt `p` are `p * n` to `p * n + n - 1`.
    """

    prompt_tokens: int
    prompt_text: str = ""  # if it was to be echoed
    prompt_ids: Sequence[int] = ()  # if they were asked for
    prompt_chances: Sequence[TokenChances | None] = ()
    prompt: int = 0


class Embedding(NamedTuple):
    """The vector of one prompt."""

    prompt: int
    values: Sequence[float]


class Tokens(NamedTuple):
    """The answer to TOKENIZE."""

    ids: Sequence[int]
    strings: Sequence[str]
    longest: int  # tokens that prompt and answer may have together


class Text(NamedTuple):
    """The answer to DETOKENIZE."""

    text: str


Generated = Union[Begun, TextPiece, TokenUsage, Embedding, Tokens, Text]
