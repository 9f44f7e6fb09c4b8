"""The models of the simulation, as data: their configuration, and what the right answers are.

Every model takes `VALUE`, an INT32, and gives `ANSWER`. Version v adds `VERSION_STEP` times v, so that an
answer shows its version, whatever else the server says about that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

VERSION_STEP: Final = 1_000_000
# Elements of a large answer: more than is copied out of a slot.
WIDE: Final = 90_000

Kind = Literal["plain", "batched", "sequence", "decoupled", "ensemble", "language"]

TELLS: Final = "telling"
"""The backend of language models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model.

    `answer` is what one row of the first version comes to; of an ensemble, what all its steps add up to.
    """

    name: str
    kind: Kind
    config: str  # beyond what all have
    answer: Callable[[int], int] = lambda value: value
    retried: bool = True  # whether a batch that died may run again
    limit: float = 2.0  # seconds that an execution may take
    instances: int = 2
    rows: int = 1  # most that one request may have
    bounded: bool = False  # whether its queue refuses
    wide: bool = False  # whether answers may be `WIDE`
    cached: bool = False
    prioritised: bool = False
    steps: Sequence[str] = ()  # models of an ensemble

    def text(self) -> str:
        """Return its config.pbtxt."""
        if self.kind == "ensemble":
            return _ENSEMBLE + self.config
        if self.kind == "language":
            return f'backend: "{TELLS}"\n{self._instances()}{self._time()}{self.config}'
        dims = "-1" if self.wide else "1"
        retry = "always" if self.retried else "never"
        return (
            f'backend: "simulated"\n'
            f'input [{{ name: "VALUE" data_type: TYPE_INT32 dims: [ 1 ] }}]\n'
            f'output [{{ name: "ANSWER" data_type: TYPE_INT32 dims: [ {dims} ] }}]\n'
            f"{self._instances()}"
            f'parameters {{ key: "tritium.retry" value: {{ string_value: "{retry}" }} }}\n'
            f"{self._time()}"
        ) + self.config

    def _instances(self) -> str:
        return f"instance_group [{{ count: {self.instances} kind: KIND_CPU{self._limits()} }}]\n"

    def _time(self) -> str:
        return (
            f'parameters {{ key: "tritium.execution_timeout" value: {{ string_value: "{self.limit:g}" }} }}\n'
            f'parameters {{ key: "tritium.drain_timeout" value: {{ string_value: "10" }} }}\n'
        )

    def _limits(self) -> str:
        return ' rate_limiter { resources [{ name: "R" count: 2 }] }' if self.name == "limited" else ""

    def right(self, values: Sequence[int], version: int) -> list[int]:
        """Return the right answer of `version` to a request without a history."""
        return [self.answer(value) + VERSION_STEP * version for value in values]


_ENSEMBLE: Final = (
    'platform: "ensemble"\n'
    'input [{ name: "VALUE" data_type: TYPE_INT32 dims: [ 1 ] }]\n'
    'output [{ name: "ANSWER" data_type: TYPE_INT32 dims: [ 1 ] }]\n'
)

_CONTROLS: Final = (
    "control_input [\n"
    '  { name: "START" control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }] },\n'
    '  { name: "READY" control [{ kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] }] },\n'
    '  { name: "END" control [{ kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] }] },\n'
    '  { name: "CORRID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] }\n'
    "]\n"
)

MODELS: Final[Mapping[str, Model]] = {
    each.name: each
    for each in (
        Model(name="echo", kind="plain", config=""),
        Model(name="once", kind="plain", config="", retried=False, answer=lambda value: 2 * value),
        Model(name="wide", kind="plain", config="", wide=True, answer=lambda value: value + 11),
        Model(
            name="batching",
            kind="batched",
            config="max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 5000 }\n",
            answer=lambda value: 3 * value + 1,
            rows=3,
        ),
        Model(
            name="ordered",
            kind="batched",
            config="max_batch_size: 4\ndynamic_batching { preserve_ordering: true preferred_batch_size: [ 4 ]"
            " max_queue_delay_microseconds: 20000 }\n",
            answer=lambda value: value - 5,
            rows=2,
        ),
        Model(
            name="queued",
            kind="batched",
            config="max_batch_size: 2\ndynamic_batching { priority_levels: 3 default_priority_level: 2 default_queue_policy {"
            " timeout_action: REJECT default_timeout_microseconds: 400000 allow_timeout_override: true max_queue_size: 12 } }\n",
            answer=lambda value: value + 77,
            bounded=True,
            prioritised=True,
        ),
        Model(
            name="cached",
            kind="batched",
            config="max_batch_size: 4\ndynamic_batching { }\nresponse_cache { enable: true }\n",
            answer=lambda value: 5 * value + 2,
            cached=True,
        ),
        Model(name="limited", kind="plain", config="", answer=lambda value: 7 * value),
        Model(
            name="direct",
            kind="sequence",
            config="max_batch_size: 2\nsequence_batching { max_sequence_idle_microseconds: 20000000\n"
            + _CONTROLS
            + "direct { } }\n",
            retried=False,
        ),
        Model(
            name="oldest",
            kind="sequence",
            config="max_batch_size: 4\nsequence_batching { max_sequence_idle_microseconds: 20000000\n"
            + _CONTROLS
            + "oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 2000 } }\n",
            retried=False,
        ),
        Model(
            name="stream",
            kind="decoupled",
            config="model_transaction_policy { decoupled: true }\n",
            retried=False,
        ),
        Model(
            name="pipeline",
            kind="ensemble",
            config=(
                "ensemble_scheduling { step ["
                '{ model_name: "once" model_version: -1 input_map { key: "VALUE" value: "VALUE" } output_map { key: "ANSWER" value: "between" } },'
                '{ model_name: "echo" model_version: -1 input_map { key: "VALUE" value: "between" } output_map { key: "ANSWER" value: "ANSWER" } }'
                "] }\n"
            ),
            answer=lambda value: 2 * value,
            retried=False,
            steps=("once", "echo"),
        ),
        Model(name="teller", kind="language", config=""),
    )
}
"""The models by name. `retried` of the ensemble is that of its weakest step."""


def parts_of(value: int) -> list[int]:
    """Return what the decoupled model answers, before the version is added.

    These are a few parts, and now and then more than a window.
    """
    return [value + place for place in range(70 if value % 23 == 0 else value % 6)]


def width_of(value: int) -> int:
    """Return how many elements the answer of a `wide` model has, all of them equal."""
    return WIDE if value % 3 == 0 else 1 + value % 5
