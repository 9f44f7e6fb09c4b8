"""A conversation and its tools, checked one by one and brought into one form for chat templates.

Most templates take texts only, so content that is a list of text parts becomes one text, its parts on lines
of their own, as vLLM does for such templates.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

from protocols.openai.checking import Members, misfit, refuse, shown

MOST_TOOLS: Final = 128
_MOST_MESSAGES: Final = 16_384
_MOST_CALLS: Final = 1024
_LONGEST: Final = 4 * 1024 * 1024
_AT_ONCE: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
# In a message; other members are ignored.
_COPIED: Final = ("name", "reasoning_content", "reasoning", "refusal")
_KNOWN: Final = ("role", "content", "tool_calls", "tool_call_id", "function_call", "audio", *_COPIED)
_NONE: Final = "none"
Tools = Sequence[Mapping[str, Any]]


def read_messages(given: Members, ignored: set[str]) -> Generator[None, None, list[dict[str, Any]]]:
    """Return the conversation. Names of members that mean nothing are added to `ignored`. Raises BadAsk."""
    messages = given.array("messages", _MOST_MESSAGES)
    if not messages:
        refuse("messages", "'messages' must be an array of at least one message")
    read: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        read.append((yield from _message(Members(message, f"messages[{at}]"), ignored)))
        if at % _AT_ONCE == 0:
            yield
    return read


def _message(given: Members, ignored: set[str]) -> Generator[None, None, dict[str, Any]]:
    role = given.get("role")
    if role not in _ROLES:
        misfit(given.param("role"), role, f"one of {', '.join(_ROLES)}")
    ignored.update("messages." + name.rpartition(".")[2] for name in given.others(_KNOWN))
    for name in ("function_call", "audio"):
        if name in given:
            refuse(given.param(name), f"'{name}' of a message is not supported", reason="unsupported_field")
    message: dict[str, Any] = {"role": role}
    content = yield from _content(given)
    for name in _COPIED:
        if name in given:
            message[name] = given.text(name, _LONGEST)
    if role == "assistant":
        calls = _calls(given)
        if calls:
            message["tool_calls"] = calls
        elif content is None and "refusal" not in given:
            misfit(given.param("content"), None, "a text, or text parts, where there are no tool_calls")
    elif content is None:
        misfit(given.param("content"), None, "a text, or text parts")
    if role == "tool":
        message["tool_call_id"] = given.text("tool_call_id")
    message["content"] = content
    return message


def _content(given: Members) -> Generator[None, None, str | None]:
    content = given.get("content")
    if content is None or type(content) is str:
        return content
    if type(content) is not list:
        misfit(given.param("content"), content, "a text, or text parts")
    texts: list[str] = []
    for at, part in enumerate(content):
        path = f"{given.param('content')}[{at}]"
        kind = part.get("type") if type(part) is dict else "text"
        if type(part) is str:
            texts.append(part)
        elif not isinstance(kind, str) or kind not in _TEXT_PARTS:
            said = kind if isinstance(kind, str) else shown(kind)
            refuse(path, f"only text message is supported, but got {said[:80]}", reason="unsupported_content")
        else:
            texts.append(_part(Members(part, path), _TEXT_PARTS[kind]))
        if at % _AT_ONCE == 0:
            yield
    return "\n".join(texts)


def _part(given: Members, name: str) -> str:
    if name not in given:
        misfit(given.param(name), None, "a text")
    return given.text(name, _LONGEST)


def _calls(given: Members) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for at, each in enumerate(given.array("tool_calls", _MOST_CALLS) or ()):
        call = Members(each, f"{given.param('tool_calls')}[{at}]")
        if call.get("type") not in {None, "function"}:
            misfit(call.param("type"), call.get("type"), "'function'")
        function = Members(call.object("function") or {}, call.param("function"))
        name = function.text("name")
        if not name:
            misfit(function.param("name"), function.get("name"), "the name of a function")
        described = {"name": name, "arguments": function.text("arguments", _LONGEST)}
        calls.append({"id": call.text("id"), "type": "function", "function": described})
    return calls


def read_tools(given: Members) -> Tools:
    """Return the tools. Raises BadAsk."""
    tools: list[dict[str, Any]] = []
    names: set[str] = set()
    for at, each in enumerate(given.array("tools", MOST_TOOLS) or ()):
        tool = Members(each, f"tools[{at}]")
        if tool.get("type") != "function":
            misfit(tool.param("type"), tool.get("type"), "'function', the only type of tool")
        function = Members(tool.object("function") or {}, tool.param("function"))
        name = function.text("name")
        if _NAME.fullmatch(name) is None:
            misfit(function.param("name"), name, "1 to 64 letters, digits, '_', '-' and '.'")
        if name in names:
            refuse(function.param("name"), f"'tools' has two functions of the name '{name}'")
        names.add(name)
        tools.append({"type": "function", "function": _function(function, name)})
    return tools


def _function(given: Members, name: str) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name}
    if "description" in given:
        described["description"] = given.text("description", _LONGEST)
    parameters = given.object("parameters")
    if parameters is not None:
        described["parameters"] = parameters
    if "strict" in given:
        described["strict"] = given.flag("strict", False)
    return described


def read_tool_choice(given: Members, tools: Tools) -> Any:
    """Return which tools may or have to be called, as `Ask.tool_choice` has it. Raises BadAsk."""
    choice = given.get("tool_choice")
    if choice is None:
        return "auto" if tools else _NONE
    if choice in ("none", "auto"):
        return choice if tools else _NONE
    if choice == "required":
        if not tools:
            refuse(
                "tool_choice",
                '"required" tool choice requires CreateChatCompletionRequest.tools to be provided',
            )
        return choice
    if type(choice) is not dict or choice.get("type") != "function":
        misfit(
            "tool_choice", choice, "none, auto, required, or {'type': 'function', 'function': {'name': ...}}"
        )
    name = Members(choice.get("function"), "tool_choice.function").text("name")
    if not tools:
        refuse("tool_choice", "Named tool choice requires CreateChatCompletionRequest.tools to be provided")
    if name not in {tool["function"]["name"] for tool in tools}:
        refuse("tool_choice", f"Tool '{name}' has not been passed in `tools`.")
    return {"name": name}
