"""What a new configuration changes in the versions that serve (contract, repository.md section 5.1). Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from actors.values.specs import LanguageServing, ModelSpec

_IN_PLACE: Final = ("instance_group", "version_policy")
"""Parts of a configuration that change without a reload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChange:
    """What happens to each version: it stays, is scaled, or is started anew. All others are to be retired."""

    stay: tuple[int, ...] = ()
    scale: tuple[ModelSpec, ...] = ()
    start: tuple[ModelSpec, ...] = ()


def plan_change(
    serving: Mapping[int, ModelSpec], wanted: Sequence[ModelSpec], *, forced: bool = False
) -> VersionChange:
    """Compare the versions that serve with those that are wanted.

    With `forced` every version is started anew, except those whose changes can be made in place.

    Files are compared by their digests, `ModelSpec.content`; without one a version counts as changed.
    """
    stay: list[int] = []
    scale: list[ModelSpec] = []
    start: list[ModelSpec] = []
    for spec in wanted:
        present = serving.get(spec.version)
        if present is None or not _alike(present, spec):
            start.append(spec)
        elif (
            [each.unplaced for each in present.instances] != [each.unplaced for each in spec.instances]
            or present.config_json != spec.config_json
            or present.scheduling != spec.scheduling
        ):
            scale.append(spec)
        elif forced:
            start.append(spec)
        else:
            stay.append(spec.version)
    return VersionChange(stay=tuple(stay), scale=tuple(scale), start=tuple(start))


def _alike(one: ModelSpec, other: ModelSpec) -> bool:
    """Whether nothing differs except parts that can change in place."""
    return (
        bool(one.content)
        and one.content == other.content
        and one.settings == other.settings
        and one.runtime == other.runtime
        # Those of an ensemble come from its models.
        and (one.decoupled, one.outputs) == (other.decoupled, other.outputs)
        and _lasting(one) == _lasting(other)
        and (one.scheduling == other.scheduling or _takes_up(one, other))
    )


def _takes_up(one: ModelSpec, other: ModelSpec) -> bool:
    """Whether an engine takes up the difference: other adapters, in the directory that it was loaded from."""
    return (
        isinstance(one.scheduling, LanguageServing)
        and isinstance(other.scheduling, LanguageServing)
        and replace(one.scheduling, adapters=()) == replace(other.scheduling, adapters=())
        and one.version_directory == other.version_directory
    )


def _lasting(spec: ModelSpec) -> Mapping[str, object]:
    configuration = json.loads(spec.config_json)
    return {key: value for key, value in configuration.items() if key not in _IN_PLACE}
