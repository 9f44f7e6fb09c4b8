"""Whether the code of a confined model may have the server load or unload another one. Pure.

A model that could have code of its choice loaded in a laxer sandbox would have left its own. So from `basic`
on a model reaches only models that are confined at least as it is, as they stand in the repository. Calls of
models that serve are inferences like a client's, and are not refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from actors.values.confinement import Sandbox


def confines_calls(level: Sandbox) -> bool:
    """Whether models in a sandbox of this level are bound by the rule."""
    return level.holds(Sandbox.BASIC)


def why_not_load(
    caller: str, level: Sandbox, name: str, *, brings: bool, levels: Mapping[str, Sandbox]
) -> str:
    """Return why a model may not load another, with what would work; "" if it may.

    `brings` says that it comes with a configuration or files of its own. `levels` are the sandboxes of the
    model and of all that it is composed of, by name.
    """
    if not confines_calls(level):
        return ""
    if brings:
        return (
            f"model '{caller}' runs in a {level.value} sandbox and may not load '{name}' with a configuration"
            f" or files of its own: leave them out, and '{name}' is loaded as the repository has it"
        )
    return _laxer("load", caller, level, name, levels)


def why_not_unload(caller: str, level: Sandbox, name: str, levels: Mapping[str, Sandbox]) -> str:
    """Return why a model may not unload another, with what would work; "" if it may.

    `levels` are the sandboxes of the models that would be unloaded, by name.
    """
    return _laxer("unload", caller, level, name, levels) if confines_calls(level) else ""


def _laxer(what: str, caller: str, level: Sandbox, name: str, levels: Mapping[str, Sandbox]) -> str:
    for each, its in levels.items():
        if not its.holds(level):
            part = "" if each == name else f", of which '{each}' is a part"
            return (
                f"model '{caller}' runs in a {level.value} sandbox and may not {what} '{name}'{part}:"
                f" the sandbox of '{each}' is '{its.value}'."
                f" Set its 'tritium.sandbox' to '{level.value}', or start the server with"
                f" --sandbox={level.value}"
            )
    return ""
