"""The metrics of a model that can be customised (contract, model_config.md section 4.11)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import isfinite
from typing import Final

from engine.models.problems import Problem, Severity
from protocols.kserve.proto.model_config_pb2 import ModelConfig

FIRST_RESPONSE_HISTOGRAM: Final = "nv_inference_first_response_histogram_ms"


def model_metrics(config: ModelConfig) -> Iterator[Problem]:
    """Check `model_metrics`."""
    for at, control in enumerate(config.model_metrics.metric_control):
        key = f"model_metrics.metric_control[{at}]"
        if not control.HasField("metric_identifier"):
            yield Problem(
                message="metric control must specify 'metric_identifier'",
                key=key,
                hint=f'add: metric_identifier {{ family: "{FIRST_RESPONSE_HISTOGRAM}" }}',
            )
        elif not control.metric_identifier.family:
            yield Problem(
                message="metric identifier must specify non-empty 'family'",
                key=key,
                hint=f'add: family: "{FIRST_RESPONSE_HISTOGRAM}"',
            )
        elif control.metric_identifier.family != FIRST_RESPONSE_HISTOGRAM:
            yield Problem(
                severity=Severity.WARNING,
                message=f"metric family '{control.metric_identifier.family}' can not be customised",
                key=key,
                hint=f"only {FIRST_RESPONSE_HISTOGRAM} can",
            )
        if not control.HasField("histogram_options"):
            yield Problem(
                message="metric control must specify 'histogram_options'",
                key=key,
                hint="add: histogram_options { buckets: [ 10, 100, 1000 ] }",
            )
        elif not control.histogram_options.buckets:
            yield Problem(
                message="histogram options must specify non-empty 'buckets'",
                key=key,
                hint="such as buckets: [ 10, 100, 1000 ]",
            )
        elif control.metric_identifier.family == FIRST_RESPONSE_HISTOGRAM:
            buckets = control.histogram_options.buckets
            if not all(map(isfinite, buckets)) or any(low >= high for low, high in pairwise(buckets)):
                yield Problem(
                    message=f"histogram options must specify finite, ascending 'buckets' for {config.name}",
                    key=f"{key}.histogram_options.buckets",
                    hint="upper bounds in milliseconds; the one of +Inf is added",
                )
