"""The flags about model instances: a part of the table in `engine.settings.flags`.

Reference: contract repository.md section 10, scheduling.md section 5.
"""

from __future__ import annotations

from typing import Final

from engine.settings.flag import Flag, Group, Kind, OneOf

INSTANCE_FLAGS: Final = (
    Flag(
        name="rate-limit",
        group=Group.INSTANCES,
        default="off",
        metavar="MODE",
        check=OneOf("invalid argument for --rate-limit", "off", "execution_count"),
        help="execution_count: an instance executes only while it holds the resources of its 'rate_limiter', and who waits"
        " for the same ones is served by execution count × priority. off: 'rate_limiter' has no effect.",
    ),
    Flag(
        name="rate-limit-resource",
        group=Group.INSTANCES,
        metavar="NAME:COUNT[:DEVICE]",
        repeatable=True,
        help="How much there is of a resource: on the GPU DEVICE, or on every device and of a global resource."
        " Repeatable. [default: the most that any one instance needs]",
    ),
    Flag(
        name="host-policy",
        group=Group.INSTANCES,
        metavar="NAME,SETTING=VALUE",
        repeatable=True,
        help="Run the workers of instances with the host policy NAME on these cores: cpu-cores=0-3,8 or numa-node=0. An"
        " instance group without a 'host_policy' has cpu, gpu_<id> or model, by its kind. Repeatable.",
    ),
    Flag(
        name="default-execution-timeout",
        kind=Kind.NUMBER,
        group=Group.INSTANCES,
        default="0",
        metavar="SECONDS",
        help="Tritium's own: how long one execution may take of a model that has no 'tritium.execution_timeout' of its own, after"
        " which its worker is replaced and the clients are told. Of a decoupled model: how long without progress. 0: for ever.",
    ),
    Flag(
        name="unready-after-hang-secs",
        kind=Kind.NUMBER,
        group=Group.INSTANCES,
        default="300",
        metavar="SECONDS",
        help="Tritium's own: not ready while every instance of an essential model has been at one execution for so long. A SIGTERM"
        " does not wait for what has. Models with an execution timeout are left to that. 0: never.",
    ),
    Flag(
        name="worker-environment",
        group=Group.INSTANCES,
        default="inherit",
        metavar="MODE",
        check=OneOf("invalid argument for --worker-environment", "inherit", "minimal"),
        help="inherit: workers have the server's environment variables, but for its own settings (TRITIUM_*) and the credentials of its"
        " repositories and cache. minimal: only what programs and frameworks need, such as PATH and CUDA_*; so it is in a strict"
        " sandbox in any case.",
    ),
    Flag(
        name="spare-workers",
        kind=Kind.INT,
        group=Group.INSTANCES,
        default="4",
        metavar="N",
        help="Keep a worker process ready for each environment in use (backend, interpreter, variables, cores), N at most, which"
        " has imported its backend's framework and waits for a model, so that an instance that died is back after the time its"
        " model takes to load. 0: none.",
    ),
)
