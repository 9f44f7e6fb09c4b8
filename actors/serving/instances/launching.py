"""How a worker is started, and what it is told about its model."""

from __future__ import annotations

import json
import os
import socket
from typing import Protocol

from actors.serving.policy.confinement import Usage
from actors.serving.policy.retries import DeathReason
from actors.values.specs import InputSpec, InstanceSpec, ModelSpec, OutputSpec


class Launched(Protocol):
    """A worker that has been started, as a process or as a thread."""

    @property
    def socket(self) -> socket.socket:
        """The server's end of the connection."""

    @property
    def pid(self) -> int:
        """The id of the process that runs it; for a thread, the server's own."""

    @property
    def output(self) -> int | None:
        """Descriptor of a pipe with everything it prints, if that is captured."""

    async def wait(self) -> DeathReason:
        """Wait until it has ended, reap it, and return how it ended."""

    @property
    def abandoned(self) -> bool:
        """Whether it was given up and still runs: a hung thread can't be ended."""

    @property
    def suspended(self) -> bool:
        """Whether a signal has stopped it, so that it is not working however long it takes."""

    @property
    def exited(self) -> bool:
        """Whether it has ended. `wait` may still be busy with processes that it has left behind."""

    @property
    def dying(self) -> bool:
        """Whether it is ending, whatever the reason: it can't be kept running, nor end in another way."""

    def glance(self) -> Usage | None:
        """Measure as `usage` does, on the event loop; None where that would take too long."""

    def usage(self, *, exact: bool = False) -> Usage:
        """Measure the usage of the worker, together with all processes that it has started.

        `exact` may take long, see `Usage`.
        """

    def terminate(self) -> None:
        """Ask it to end, by SIGTERM."""

    def kill(self) -> None:
        """End it and all processes that it has started, by SIGKILL; a thread can only be abandoned."""


class Launcher(Protocol):
    """Starts workers; `engine` knows how."""

    async def launch(self, spec: ModelSpec, instance: InstanceSpec) -> Launched:
        """Start a worker for one instance. Raises OSError where the system refuses."""

    def backend_path(self, spec: ModelSpec) -> str:
        """Return the backend class as `module:Class`."""

    def limits(self) -> dict[str, int]:
        """Return the limits that a worker must impose on itself: how many `open_files` it may have."""


def prefetches(spec: ModelSpec) -> bool:
    """Whether a batch may wait in a worker behind the one that executes.

    Contract: scheduling.md section 3.1.

    Not where queued requests may expire, be refused or be overtaken: such requests stay in the queue
    until an instance is idle.
    """
    policy = getattr(spec.scheduling, "default_queue_policy", None)
    return not getattr(spec.scheduling, "priority_levels", 0) and not (
        policy is not None
        and (policy.default_timeout or policy.allow_timeout_override or policy.max_queue_size)
    )


def threads_for(spec: ModelSpec, instance: InstanceSpec) -> int:
    """Return how many CPU threads one execution may use: as configured, or its share of the cores.

    Instances that a host policy binds to the same cores share those.
    """
    cores = instance.cores
    sharing = (each for each in spec.instances if not each.passive and (not cores or each.cores == cores))
    executing = max(1, sum(each.lanes for each in sharing))
    return spec.threads or max(1, (len(cores) or os.cpu_count() or 1) // executing)


def model_fields(spec: ModelSpec, instance: InstanceSpec) -> dict[str, object]:
    """Return the fields of `engine.worker.backends.base.ModelInfo`, as JSON values."""
    return {
        "name": spec.name,
        "version": spec.version,
        "model_directory": str(spec.model_directory),
        "version_directory": str(spec.version_directory),
        "artifact": spec.artifact,
        "max_batch_size": spec.max_batch_size,
        "inputs": [_input_fields(each) for each in spec.backend_inputs],
        "outputs": [_output_fields(each) for each in spec.backend_outputs],
        "parameters": dict(spec.parameters),
        "settings": dict(spec.settings),
        "config": json.loads(spec.config_json),
        "instance_name": instance.name,
        "kind": instance.kind,
        "device_id": instance.ordinal,
        "gpu_memory": spec.gpu_memory.nbytes,
        "gpu_share": spec.gpu_memory.share,
        "lanes": instance.lanes,
        "threads": threads_for(spec, instance),
        "decoupled": spec.decoupled,
    }


def _input_fields(spec: InputSpec) -> dict[str, object]:
    padded = spec.padded
    return {
        **_tensor_fields(spec),
        "optional": spec.optional,
        "ragged": spec.ragged,
        "padded": padded
        and {
            "buckets": [[axis, list(each.sizes), each.longer] for axis, each in padded.buckets.items()],
            "value": padded.value,
        },
        "cuts": (),
    }


def _output_fields(spec: OutputSpec) -> dict[str, object]:
    cuts = [[cut.axis, cut.source, cut.source_axis] for cut in spec.cuts]
    return {**_tensor_fields(spec), "optional": False, "ragged": False, "padded": None, "cuts": cuts}


def _tensor_fields(spec: InputSpec | OutputSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "datatype": spec.datatype.protocol_name,
        "dims": list(spec.dims),
        "reshape": None if spec.reshape is None else list(spec.reshape),
    }
