"""What the fake language model says: a page, round and round, from any of its words on. Pure.

A prompt says how many tokens, and from which word: `say 40 from 3`. Tokens are pieces of the page of some
bytes each, which begin and end anywhere, also within a character. So text that comes token by token has to be
held back, and an answer that another engine goes on with is often cut within a character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

TEXT: Final = (
    "The lamp was lit, and Brücke the cat slept by the stair 🕯. It is 217 steps to the top; “stay”, said"
    " Señor Ibáñez, and caught a 鮭 as long as herself ☀. Fog came in March, e\u0301tage by e\u0301tage; no"
    " ship END was seen from Ålesund <|end of it. "
)
END: Final = 0
"""The id that ends a text. It is the only special one."""

STOPS: Final = ("END", "slept by", "🕯.")
"""Texts of the page, by which a client may have its answer stopped."""

_SIZES: Final = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)
"""Bytes of the pieces, by turns."""

_ASKED: Final = re.compile(r"say (\d+) from (\d+)( and die)?")


class Asked(NamedTuple):
    """What a prompt asks for."""

    tokens: int
    begin: int  # a word of the page, counted on and on
    dies: bool = False  # the engine is to die under it

    @property
    def prompt(self) -> str:
        """The prompt that asks for it."""
        return f"say {self.tokens} from {self.begin}{' and die' if self.dies else ''}"

    @classmethod
    def of(cls, prompt: str) -> Asked | None:
        """Return what a prompt asks for; None of one that asks for nothing."""
        found = _ASKED.search(prompt)
        return None if found is None else cls(int(found[1]), int(found[2]), found[3] is not None)

    def ids(self, most: int | None = None) -> list[int]:
        """Return what it is answered: at most `most` ids, and `END` behind those that it asked for."""
        said = _said()
        first = _words()[self.begin % len(_words())]
        count = self.tokens if most is None else min(self.tokens, most)
        ids = [said[(first + place) % len(said)] for place in range(count)]
        return [*ids, END] if most is None or most > self.tokens else ids

    def text(self, most: int | None = None, stops: Sequence[str] = ()) -> str:
        """Return the text of `ids`, up to the first of the `stops` in it."""
        spelt = _tokens()
        whole = b"".join(spelt[each] for each in self.ids(most) if each != END).decode(errors="replace")
        ends = [at for at in map(whole.find, stops) if at >= 0]
        return whole[: min(ends)] if ends else whole


@cache
def _said() -> Sequence[int]:
    """Return the ids of the whole page."""
    ids = {token: place for place, token in enumerate(_tokens())}
    return [ids[piece] for piece in _pieces()]


@cache
def _pieces() -> Sequence[bytes]:
    data, pieces, at = TEXT.encode(), list[bytes](), 0
    while at < len(data):
        size = _SIZES[len(pieces) % len(_SIZES)]
        pieces.append(data[at : at + size])
        at += size
    return pieces


@cache
def _words() -> Sequence[int]:
    """Return at which pieces an answer may begin: those that begin with a character."""
    return [place for place, piece in enumerate(_pieces()) if piece[0] & 0xC0 != 0x80]


@cache
def _tokens() -> Sequence[bytes]:
    """Return the bytes of each id: the end, one for each byte, and the pieces of the page."""
    single = [bytes((byte,)) for byte in range(256)]
    return [b"", *single, *sorted({each for each in _pieces() if len(each) > 1})]


def text_of(ids: Sequence[int]) -> str:
    """Return the text of a prompt's ids."""
    tokens = _tokens()
    return b"".join(tokens[each] for each in ids).decode(errors="replace")


# -- its folder


def write_folder(folder: Path) -> None:
    """Write the tokenizer, and what else a text worker loads. A prompt has a token for each byte."""
    for name, document in documents().items():
        (folder / name).write_text(document)


@cache
def documents() -> dict[str, str]:
    """Return the files of the folder by name."""
    spelt = {"".join(map(_letters().__getitem__, token)): at for at, token in enumerate(_tokens()) if token}
    end = "<|end|>"
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": END, "content": end, **special}],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {end: END, **spelt}, "merges": []},
    }
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    config = {"eos_token": end, "chat_template": template}
    return {
        "tokenizer.json": json.dumps(tokenizer),
        "tokenizer_config.json": json.dumps(config),
        "config.json": json.dumps({"vocab_size": len(_tokens())}),
    }


@cache
def _letters() -> Sequence[str]:
    """Return the letter by which a byte-level tokenizer spells each byte, as that of GPT-2 does."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte if byte in plain else 256 + others.index(byte)) for byte in range(256)]
