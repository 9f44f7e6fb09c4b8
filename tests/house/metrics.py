"""The page of all metric families, docs/metrics.md, from the tables of the rooms that declare them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from actors.caching import families as caching
from actors.events import families as events
from actors.generation import families as generation
from actors.health import families as health
from actors.padding import observing as padding
from actors.regions import families as regions
from actors.residency import residents
from actors.serving import families as serving
from actors.serving.policy import fairness, slo
from actors.tracing import families as tracing
from actors.traffic import families as traffic
from actors.values.families import Families, Family, SplitFamily
from engine.audit import trail
from engine.observability import engines, gateways, gpus, models, pending, system
from engine.observability.spans import counts as spans
from engine.processes import spares
from engine.server import identity, tls
from protocols.grpc import listener as grpc
from protocols.transport import listening, receiving
from tests.house.graph import ROOT

PAGE: Final = ROOT / "docs" / "metrics.md"

AnyFamily = Family[Any] | SplitFamily[Any]
_OF_VERSIONS: Final = "model, version"
_OF_MODELS: Final = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Families that are told under the same condition. `labels` are those that all their series have."""

    title: str
    about: str
    labels: str
    families: Sequence[AnyFamily]


def _section(title: str, labels: str, about: str, *tables: Families[Any]) -> Section:
    families = [family for table in tables for family in table]
    return Section(title=title, labels=labels, about=about, families=families)


SECTIONS: Final = (
    _section(
        "Requests and executions",
        _OF_VERSIONS,
        "Of each version that is loaded. With `--metrics-config=counter_latencies=false` the durations are"
        " absent, and the counts stay at 0.",
        serving.COUNTS,
        serving.DURATIONS,
        [serving.PENDING],
        models.LOAD,
    ),
    _section(
        "All requests",
        "",
        "Of the whole server, for autoscalers and [endpoint pickers](register.md#for-an-endpoint-picker).",
        pending.FAMILIES,
    ),
    _section(
        "How long requests took",
        _OF_VERSIONS,
        "The first is there unless `--request-duration-buckets=off`. `--metrics-config` asks for the others:"
        " `histogram_latencies=true` for the second, `summary_latencies=true` for the summaries.",
        [serving.REQUEST_DURATION, serving.FIRST_RESPONSE, serving.REQUEST_SUMMARY],
        serving.SUMMARIES,
        caching.SUMMARIES,
    ),
    _section(
        "How long loads took",
        _OF_VERSIONS,
        "Of each version that is loaded, or is being loaded.",
        [models.LOAD_PHASES],
    ),
    _section(
        "What containment did",
        _OF_VERSIONS,
        "Of each version that is loaded. [failures.md](failures.md#in-the-metrics) says what they mean.",
        serving.CONTAINMENT,
        serving.DEATHS,
        models.INSTANCES,
    ),
    _section("The queue", _OF_VERSIONS, "Of each version that is loaded.", models.QUEUE),
    _section(
        "Tenants",
        f"{_OF_VERSIONS}, tenant",
        "Of versions whose tenants share a queue ([fairness.md](fairness.md)). Tenants that are listed, and"
        " the 20 largest others, are told by name, the rest as `other`.",
        fairness.FAMILIES,
    ),
    _section(
        "Language models",
        _OF_VERSIONS,
        "Of versions of language models ([llm.md](llm.md)), whatever their engine. Requests are counted once, at"
        " their end. A reload begins these counts anew.",
        generation.FAMILIES,
    ),
    _section(
        "Language models, by the names of Triton's vLLM backend",
        _OF_VERSIONS,
        "Of versions with the parameter `REPORT_CUSTOM_METRICS`, unless their `model.json` has"
        " `disable_log_stats`.",
        generation.OF_VLLM_BACKEND,
    ),
    _section("Padding", _OF_VERSIONS, "Of versions that have padded inputs.", padding.FAMILIES),
    _section(
        "Tensors on GPUs",
        _OF_VERSIONS,
        "Of versions that can leave outputs on their GPU ([gpu.md](gpu.md#tensors-that-stay-on-the-gpu)).",
        (*serving.GPU_TENSORS, *serving.BUFFERS),
    ),
    _section("Latency promises", _OF_VERSIONS, "Of versions that make one.", slo.FAMILIES),
    _section("Readiness", "", "", health.READY),
    _section("Probes", _OF_VERSIONS, "Of versions that were probed.", health.PROBES),
    _section("Loads", _OF_MODELS, "Of each model that is known.", serving.LOADS),
    _section(
        "Traffic between versions",
        _OF_MODELS,
        "Of models that have, or had, a traffic plan ([traffic.md](traffic.md)).",
        traffic.FAMILIES,
    ),
    _section("Memory of models", _OF_MODELS, "", residents.MODELS),
    _section("Models on demand", _OF_MODELS, "Of models that are loaded on demand.", residents.ON_DEMAND),
    _section("Memory of all models", "", "", residents.WHOLE),
    _section(
        "Kept answers of a model",
        _OF_VERSIONS,
        "Of versions whose answers are kept ([cache.md](cache.md)).",
        caching.PER_MODEL,
    ),
    _section(
        "The response cache",
        "",
        "Where there is a cache. `nv_cache_*` are of the local one, `tritium_cache_available` and what"
        " follows it of Redis, the last two of either.",
        caching.NEAR,
        caching.FAR,
        caching.WHOLE,
    ),
    _section("Connections", "protocol", "", listening.FAMILIES),
    _section("gRPC", "", "Where there is a gRPC port.", grpc.FAMILIES),
    _section("Memory for requests", "", "", receiving.FAMILIES),
    _section(
        "Clients' shared memory",
        "",
        "See [shared_memory.md](shared_memory.md). `kind` is `system` or `cuda`.",
        regions.FAMILIES,
    ),
    _section("Events", "", "The names of events are a closed list ([events.md](events.md)).", events.EVENTS),
    _section("Traces", "", "See [tracing.md](tracing.md).", tracing.FAMILIES),
    _section(
        "Spans",
        "",
        "With `--trace-config=mode=opentelemetry` ([opentelemetry.md](opentelemetry.md)).",
        spans.FAMILIES,
    ),
    _section("Certificates", "", "Of ports that speak TLS.", tls.FAMILIES),
    _section(
        "Identities",
        "",
        "With an auth file, or limits by address. At most 1,000 identities are told by name, the rest as"
        " `other`.",
        identity.FAMILIES,
    ),
    _section("The audit log", "", "With `--audit-log`.", trail.FAMILIES),
    _section("Workers", "", "", spares.FAMILIES),
    _section(
        "Engines of language models",
        "model, version, instance",
        "For each instance, as its worker tells it twice a second ([llm.md](llm.md)).",
        engines.FAMILIES,
    ),
    _section(
        "Language models, by vLLM's names",
        "model_name, engine",
        "What the endpoint picker of a Kubernetes inference gateway reads: one series for each version that"
        " is ready. `engine` is the version. `vllm:lora_requests_info` is there where the engine serves"
        " adapters.",
        gateways.FAMILIES,
    ),
    _section(
        "GPUs",
        "gpu_uuid",
        "With the extra `gpu` (`pip install 'tritium[gpu]'`), NVIDIA's driver and a GPU. Where they are not,"
        " the table at the start says why (`gpu_metrics`), as does the event `gpus_unavailable`, and the"
        " server serves. `--allow-gpu-metrics=false` and the variable `TRITON_SERVER_CPU_ONLY` leave them"
        " out."
        " `CUDA_VISIBLE_DEVICES` says which GPUs are this server's. A GPU that can't tell something has no"
        " series for it. Energy is counted since the server started.",
        gpus.FAMILIES,
    ),
    _section(
        "The machine",
        "",
        "Unless `--allow-cpu-metrics=false`. Utilisation is since the sample before.",
        system.MACHINE,
    ),
    _section(
        "Pinned memory", "", "Always 0: there is no such pool, and dashboards divide the two.", system.POOLS
    ),
    _section("The server's own process", "", "Its workers are not in it.", system.LAG, system.PROCESS),
)

SPLIT: Final = {
    "nv_inference_request_failure": "reason",
    "nv_inference_first_response_histogram_ms": "le",
    "tritium_request_duration_seconds": "phase, le",
    "tritium_model_load_phase_seconds": "phase",
    "tritium_llm_time_to_first_token_seconds": "le",
    "tritium_llm_inter_token_seconds": "le",
    "tritium_llm_request_seconds": "le",
    "vllm:time_to_first_token_seconds": "le",
    "vllm:time_per_output_token_seconds": "le",
    "vllm:e2e_request_latency_seconds": "le",
    "vllm:request_prompt_tokens": "le",
    "vllm:request_generation_tokens": "le",
    "vllm:request_params_n": "le",
    "vllm:lora_requests_info": "max_lora, running_lora_adapters, waiting_lora_adapters",
    "vllm:cache_config_info": "block_size, num_gpu_blocks",
    "tritium_worker_deaths_total": "reason",
    "tritium_workers_recycled_total": "ceiling",
    "tritium_instances": "state",
    "tritium_tenant_tokens_total": "kind",
    "tritium_slo_refused_total": "reason",
    "tritium_slo_time_promised_seconds": "time",
    "tritium_slo_time_measured_seconds": "time",
    "tritium_slo_time_expected_seconds": "time",
    "tritium_slo_time_limit_seconds": "time",
    "tritium_model_reload_failed": "version",
    "tritium_traffic_share": "version",
    "tritium_traffic_requests_total": "version",
    "tritium_traffic_mirrored_total": "version, outcome",
    "tritium_traffic_rollbacks_total": "version",
    "tritium_tls_certificate_expiry_timestamp_seconds": "listener",
    "tritium_identity_requests_total": "identity",
    "tritium_identity_refusals_total": "identity, code",
    "tritium_loop_lag_seconds": "stat",
    "tritium_events_total": "event",
    "tritium_traces_lost_total": "reason",
    "tritium_trace_spans_total": "outcome",
    "tritium_connections_turned_away_total": "reason",
    "tritium_workers_started_total": "spare",
    "tritium_shared_memory_regions": "kind",
    "tritium_shared_memory_bytes": "kind",
    "tritium_shared_memory_failures_total": "operation",
}
"""The labels by which a family has several series for each thing that it is about."""

_INTRODUCTION: Final = """\
# Metrics

<!-- run: tritium serve --model-repository=examples/models --exit-on-error=false -->

```
curl http://127.0.0.1:8002/metrics
```

This page lists every family of the server; it is written by `python -m tests.house.reference` from the tables
that the families are declared in. Names and texts that begin with `nv_` are
[Triton's](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/metrics.md), those with
`tritium_` are ours. Models may have [metrics of their own](custom_metrics.md) besides.

## Labels

| label | where |
|---|---|
| `model`, `version` | of a model or a version |
| `namespace` | beside `model`, with `--model-namespacing=true` |
| `gpu_uuid` | of a GPU, and of a version all of whose instances use one GPU |
| `_<key>` | each `metric_tags` of the version's configuration |
| `le`, `quantile` | of a histogram, of a summary |

A series begins when its version is loaded, and ends when that is unloaded. A version that replaces another in
a reload goes on with its counts, also with those of requests that the old one still answers, but not with its
quantiles, nor with what is counted of a language model's tokens. What a client sends makes no
series: unknown models, versions, identities, paths and parameters are in no label, and of what clients name
themselves, tenants, at most 20 have series of their own. So the number of series depends on the models, the
listeners and the files of the operator. A client that may upload models names them: of models that serve
nothing, 200 are told by name, and the failed loads of the others as those of a model `other`.

## How long requests took, by phase

`tritium_request_duration_seconds` counts successful requests in each `phase`:

| phase | |
|---|---|
| `queue` | waiting: for room, for company in a batch, for an instance |
| `compute_input`, `infer`, `output` | the worker's own times for the batch that the request was in |
| `first_response` | from the request to its first response: of a decoupled model the first part |
| `request` | from the request to the end of its answer |

A phase that no request of a version has had is absent: an answer from the cache has no `infer`. Counting
costs a request 0.1 to 0.4 µs. A quantile over five minutes:

```
histogram_quantile(0.99, sum by (le, model)
  (rate(tritium_request_duration_seconds_bucket{phase="request"}[5m])))
```

Bounds are those of `--request-duration-buckets`. `nv_inference_first_response_histogram_ms` has Triton's, or
those of the model's own `model_metrics`.

## How long loads took, by phase

`tritium_model_load_phase_seconds` says where the time of a version's load went, and of one that goes on, where
it is:

| phase | |
|---|---|
| `reading` | the server reads the model's directory, checks signatures, and completes the configuration |
| `downloading` | files come from an object store |
| `environment` | the model's Python environment is built |
| `waiting` | for its turn, for room on a device, for the models of an ensemble |
| `starting` | the worker process starts |
| `loading` | the worker imports the framework and loads the model, whatever its backend calls that |
| `warming_up` | `model_warmup` |
| `probing` | a version is tried before it replaces another |

`nv_model_load_duration_secs` is `starting`, `loading` and `warming_up`. The phases before them are of the model,
and all its versions have them. If several instances load at once, the phase is what one of them entered last.
A load that failed has no series.

## What `--metrics-config` changes

| setting | default | |
|---|---|---|
| `counter_latencies` | `true` | `false` takes the durations and what is counted of kept answers away, and leaves the other counters of models at 0 |
| `histogram_latencies` | `false` | `true` adds `nv_inference_first_response_histogram_ms` |
| `summary_latencies` | `false` | `true` adds the summaries; they cover the last ten minutes |
| `summary_quantiles` | `0.5:0.05,0.9:0.01,0.95:0.001,0.99:0.001,0.999:0.001` | quantile and error of each; a pair that makes no sense is skipped with a warning |

`--metrics-interval-ms` is how old figures of the machine and its GPUs may become. Requests are counted at
once.
"""


def page() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for section in SECTIONS:
        parts.append(f"\n## {section.title}\n\n")
        about = [section.about] if section.about else []
        if section.labels:
            about.append(f"Labels: {_coded(section.labels)}.")
        if about:
            parts.append(textwrap.fill(" ".join(about), 110, break_long_words=False, break_on_hyphens=False))
            parts.append("\n\n")
        parts.append("| family | type | |\n|---|---|---|\n")
        parts += [_row(family) for family in section.families]
    return "".join(parts)


def _row(family: AnyFamily) -> str:
    labels = f"{{{SPLIT[family.name]}}}" if family.name in SPLIT else ""
    return f"| `{family.name}{labels}` | {family.kind} | {family.help} |\n"


def _coded(labels: str) -> str:
    return ", ".join(f"`{label}`" for label in labels.split(", "))
