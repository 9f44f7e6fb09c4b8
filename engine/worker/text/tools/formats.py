"""The formats in which models call tools. Pure.

| name | calls | models |
|---|---|---|
| `hermes` | `<tool_call>{"name": …, "arguments": {…}}</tool_call>` | Hermes, Qwen 2.5 and 3 |
| `llama3` | `<|python_tag|>` or nothing, then objects with `parameters`, separated by `; ` | Llama 3.1 on |
| `mistral` | `[TOOL_CALLS]` with a list of objects, or a name, perhaps `[ARGS]`, and an object | Mistral |
| `json` | a list of objects with `parameters`, as our own grammar for `required` asks | any |
| `named` | the arguments alone, as our own grammar for a named tool asks | any |

What can't be read as a call is content.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from engine.worker.text.thinking import held_back
from engine.worker.text.tools.scanning import BROKEN, MORE, CallScan, ValueScan
from engine.worker.text.tools.told import Told, long_id, short_id

if TYPE_CHECKING:
    from collections.abc import Collection

    from engine.worker.text.tools.told import Delta

HERMES: Final = "hermes"
LLAMA3: Final = "llama3"
MISTRAL: Final = "mistral"
JSON: Final = "json"
NAMED: Final = "named"

PARSERS: Final = (HERMES, LLAMA3, MISTRAL)
"""Those that an operator may choose for a model."""

MARKERS: Final = ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
"""Tokens that are part of calls, and so are text also where special tokens are left out."""

_CALL: Final = "<tool_call>"
_CALL_END: Final = "</tool_call>"
_PYTHON: Final = "<|python_tag|>"
_CALLS: Final = "[TOOL_CALLS]"
_ARGS: Final = "[ARGS]"
_CALL_ID: Final = "[CALL_ID]"
_WHITE: Final = " \t\r\n"
_LONGEST_NAME: Final = 256


def guessed(template: str) -> str:
    """Return the format of a model by the text of its chat template; empty: it can't be told."""
    if _CALLS in template:
        return MISTRAL
    if _CALL in template:
        return HERMES
    if _PYTHON in template or ('"parameters"' in template and "ipython" in template):
        return LLAMA3
    return ""


class Format(Protocol):
    """Reads one choice's text."""

    told: Told

    def feed(self, text: str) -> tuple[str, list[Delta]]:
        """Return the content and the calls that this text completes."""

    def end(self) -> tuple[str, list[Delta]]:
        """Return what was held back, as nothing more comes."""


def format_of(name: str, *, parallel: bool, names: Collection[str]) -> Format:
    """Return a parser. `names` are those of the tools; for `NAMED` there is one."""
    if name == MISTRAL:
        return _Mistral(Told(parallel=parallel, make_id=short_id))
    told = Told(parallel=parallel, make_id=long_id)
    if name == HERMES:
        return _Hermes(told)
    if name == LLAMA3:
        return _Llama(told, names)
    if name == JSON:
        return _List(told)
    return _Named(told, next(iter(names)))


class _Steps(ABC):
    """Reads text by steps, each of which takes some of `_text` or waits for more."""

    __slots__ = ("_scan", "_state", "_text", "told")

    _announced: ClassVar[Collection[str]] = ()
    """States in which a marker has come, and nothing else of what it announces."""

    def __init__(self, told: Told, state: str) -> None:
        self.told = told
        self._text = ""
        self._state = state
        self._scan: CallScan | None = None

    def feed(self, text: str) -> tuple[str, list[Delta]]:
        """See `Format`."""
        self._text += text
        while self._text and self._step():
            pass
        return self.told.take()

    def end(self) -> tuple[str, list[Delta]]:
        """See `Format`."""
        if self._scan is not None and not self._scan.told:
            self.told.content(self._marked(self._scan.raw))
        elif self._scan is None and self._state in self._announced:
            self.told.content(self._marked(""))
        self._scan = None
        self.told.content(self._text)
        self._text = ""
        return self.told.take(end=True)

    @abstractmethod
    def _step(self) -> bool:
        """Read on; return whether more can be read."""

    def _marked(self, raw: str) -> str:
        """Return the text of what turned out to be no call, with what announced it."""
        return raw

    def _plain(self, marker: str) -> bool:
        """Read content up to a marker; return whether the marker has come."""
        before, found, after = self._text.partition(marker)
        if found:
            self.told.content(before)
            self._text = after
            return True
        certain = len(self._text) - held_back(self._text, marker)
        self.told.content(self._text[:certain])
        self._text = self._text[certain:]
        return False

    def _without_spaces(self) -> bool:
        """Skip spaces; return whether there is text behind them."""
        self._text = self._text.lstrip(_WHITE)
        return bool(self._text)

    def _call(self, after: str, otherwise: str, names: Collection[str] = ()) -> bool:
        """Read a call; go to `after` behind it, or to `otherwise` if it is none."""
        if self._scan is None:
            self._scan = CallScan(names=names)
        scan, text = self._scan, self._text
        self._text = scan.feed(text, self.told)
        if scan.broken:
            if not scan.told:
                self.told.content(self._marked(scan.raw))
            self._scan, self._state = None, otherwise
            return True
        if scan.done:
            self._scan, self._state = None, after
            return True
        return False

    def _is_next(self, marker: str) -> bool | None:
        """Whether the text begins with a marker; None: that is not known yet."""
        if self._text.startswith(marker):
            return True
        return None if marker.startswith(self._text) else False


class _Hermes(_Steps):
    __slots__ = ()

    _announced: ClassVar[Collection[str]] = ("call",)

    def __init__(self, told: Told) -> None:
        super().__init__(told, "text")

    def _step(self) -> bool:
        if self._state == "text":
            if not self._plain(_CALL):
                return False
            self._state = "call"
            return True
        if self._state == "call":
            return self._call("tail", "text")
        if not self._without_spaces():
            return False
        following = self._is_next(_CALL_END)
        if following is None:
            return False
        if following:
            self._text = self._text[len(_CALL_END) :]
        self._state = "text"
        return True

    def _marked(self, raw: str) -> str:
        return _CALL + raw


class _Llama(_Steps):
    __slots__ = ("_any", "_names", "_spaces")

    def __init__(self, told: Told, names: Collection[str]) -> None:
        super().__init__(told, "start")
        self._names = names
        self._any = False  # whether any name is a tool's, as the model has said that it calls one
        self._spaces = ""

    def _step(self) -> bool:
        if self._state == "text":
            self.told.content(self._text)
            self._text = ""
            return False
        if self._state == "call":
            return self._call("next", "text", () if self._any else self._names)
        if self._state == "start":
            return self._start()
        self._text = self._text.lstrip(_WHITE + ";")
        if self._text:
            self._state = "call" if self._text[0] == "{" else "text"
        return bool(self._text)

    def _start(self) -> bool:
        stripped = self._text.lstrip(_WHITE)
        self._spaces += self._text[: len(self._text) - len(stripped)]
        self._text = stripped
        if not stripped:
            return False
        following = self._is_next(_PYTHON)
        if following is None:
            return False
        if following:
            self._any = True
            self._text = stripped[len(_PYTHON) :]
            self._state = "next"
        elif stripped[0] == "{":
            self._state = "call"
        else:
            self._text = self._spaces + stripped
            self._state = "text"
        return True


class _Mistral(_Steps):
    __slots__ = ("_value",)

    _announced: ClassVar[Collection[str]] = ("kind", "name")

    def __init__(self, told: Told) -> None:
        super().__init__(told, "text")
        self._value = ValueScan()

    def _step(self) -> bool:
        if self._state == "text":
            if not self._plain(_CALLS):
                return False
            self._state = "kind"
            return True
        if self._state == "call":
            return self._call("between", "text")
        if self._state == "single":
            return self._call("text", "text")
        if self._state == "arguments":
            return self._arguments()
        if self._state == "name":
            return self._name()
        if not self._without_spaces():
            return False
        return self._kind() if self._state == "kind" else self._between()

    def _kind(self) -> bool:
        if self._text[0] == "[":
            self._text = self._text[1:]
            self._state = "between"
        else:
            self._state = "single" if self._text[0] == "{" else "name"
        return True

    def _between(self) -> bool:
        if self._text[0] == "{":
            self._state = "call"
        else:
            if self._text[0] != ",":
                self._state = "text"
            if self._text[0] in ",]":
                self._text = self._text[1:]
        return True

    def _name(self) -> bool:
        """Read `name[CALL_ID]…[ARGS]` or `name`, up to the object behind it."""
        head, brace, _ = self._text.partition("{")
        if not brace and len(head) <= _LONGEST_NAME:
            return False
        head = head[: _LONGEST_NAME + 1]
        name = head.replace(_ARGS, "").partition(_CALL_ID)[0].strip()
        if not brace or not name or len(head) > _LONGEST_NAME or any(letter in _WHITE for letter in name):
            self.told.content(_CALLS + head)
            self._text = self._text[len(head) :]
            self._state = "text"
            return True
        self._text = self._text[len(head) :]
        self._value = ValueScan()
        self._state = "arguments"
        self.told.call(name)
        return True

    def _arguments(self) -> bool:
        end = self._value.feed(self._text, 0)
        stop = {MORE: len(self._text), BROKEN: self._value.broken_at}.get(end, end)
        self.told.arguments(self._text[:stop])
        self._text = self._text[stop:]
        if end != MORE:
            self._state = "text"
        return end != MORE

    def _marked(self, raw: str) -> str:
        return _CALLS + raw


class _List(_Steps):
    __slots__ = ()

    def __init__(self, told: Told) -> None:
        super().__init__(told, "between")

    def _step(self) -> bool:
        if self._state == "call":
            return self._call("between", "text")
        if self._state == "text":
            self.told.content(self._text)
            self._text = ""
            return False
        if not self._without_spaces():
            return False
        if self._text[0] in "[,]":
            self._text = self._text[1:]
        else:
            self._state = "call"
        return True


class _Named(_Steps):
    __slots__ = ("_name",)

    def __init__(self, told: Told, name: str) -> None:
        super().__init__(told, "start")
        self._name = name

    def _step(self) -> bool:
        if self._state == "start":
            if not self._without_spaces():
                return False
            self._state = "arguments"
            self.told.call(self._name)
        self.told.arguments(self._text)
        self._text = ""
        return False
