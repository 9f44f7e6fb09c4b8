"""What the operator decided, read once from the command line or the environment and never edited.

`Settings` is the table of all options. `Settings.from_argv` takes tritonserver's flags. `Settings.from_environ` takes
the same ones as variables, for servers that are started by an ASGI server and have no command line of their own.
Each part of the server is given the few values it uses, not this object.

Reference: contract repository.md section 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from actors.serving.policy.holding import StartAfter
from actors.values.tracing.settings import TraceSetting
from engine.core.caches import cache_directory
from engine.models.links import Links
from engine.settings.cache import CACHE_BYTES, CACHE_CONFIG, CacheSettings, cache_secret, read_cache
from engine.settings.cloud.platforms import CloudSettings, unless_in_prediction
from engine.settings.compatible import COMPATIBLE
from engine.settings.forms import (
    ANY_MEMORY,
    BOOL,
    MEMORY,
    PORT,
    SIZE,
    SWITCH,
    Form,
    integer,
    number,
    one_of,
    some_text,
    text,
    to_int,
)
from engine.settings.forms import SettingsError as SettingsError
from engine.settings.instances import HostPolicy, read_gpu_limits, read_host_policies, read_resources
from engine.settings.listening import (
    PATTERN,
    REPLICA_NAME,
    ConnectionSettings,
    GrpcSettings,
    RestrictedHeader,
    SharedMemorySettings,
    host_port,
    refuse_clashes,
    restrictions,
)
from engine.settings.management import (
    UPLOADS,
    AuditSettings,
    ManagementSettings,
    Uploads,
    in_explicit_mode,
)
from engine.settings.models import (
    LINKS,
    AgentSettings,
    ProvenanceSettings,
    backend_secret,
    config_name,
    default_environment_cache,
    existing,
    links_of,
    poll_interval,
    read_backend_directory,
    read_backend_settings,
    read_filed_backend_settings,
    read_load_models,
    read_repositories,
    read_start_after,
)
from engine.settings.openai.settings import OpenAiSettings
from engine.settings.option import Flag, Given, Group, combined, section
from engine.settings.pages import PageSettings
from engine.settings.reporting import TRACE_FLAGS, EventSettings, LogSettings, MetricsSettings, read_trace
from engine.settings.sandbox import SandboxSettings
from engine.settings.scanning import scan_argv, scan_environ, warn_of_environ
from engine.settings.secrets import HIDDEN, from_files, in_query, looks_secret, warnings, with_files
from engine.settings.sheet import entries_of, read_sheet
from engine.settings.tls import TlsFiles, TlsFlags, security_of
from engine.settings.uris import is_remote, without_query

ControlMode = Literal["none", "poll", "explicit"]
WorkerEnvironment = Literal["inherit", "minimal"]
_CONTROL_MODES: Final[Form[ControlMode]] = one_of("MODE", "none", "poll", "explicit")
_ENVIRONMENTS: Final[Form[WorkerEnvironment]] = one_of("MODE", "inherit", "minimal")


def _input_size(word: str, name: str) -> int:
    size = to_int(word, name, wide=True)
    if size <= 0:
        raise SettingsError(f"Error: --{name} must be greater than 0.")
    return size


def _metrics_address(address: str, given: Given) -> str:
    if given.has("metrics-address"):
        return address
    allowed = unless_in_prediction(given.on("allow-http"), given, "allow-http")
    return given.word("http-address") if allowed else "0.0.0.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the operator can set. Durations are seconds; port 0 lets the kernel choose."""

    model_repositories: tuple[str, ...] = combined(  # directories, and s3://, gs:// and as:// URIs
        read_repositories,
        Group.MODELS.flag(
            "--model-repository",
            text("DIR|URI"),
            "A model repository: a directory, s3://BUCKET/PATH, gs://BUCKET/PATH or"
            " as://ACCOUNT/CONTAINER/PATH; required, and repeatable. --model-store is the same.",
            repeatable=True,
            separator=":",
            aliases=("model-store",),
            secret=in_query,
        ),
    )
    control_mode: ControlMode = Group.MODELS.option("--model-control-mode=none", _CONTROL_MODES).means(
        "none: load every model at start-up. poll: the same, then follow what changes in the repositories."
        " explicit: load what --load-model names, then what the load and unload requests of the repository"
        " API ask for."
    )
    poll_interval: float = Group.MODELS.option("--repository-poll-secs=15", number(), poll_interval).means(
        "How often poll mode looks at the repositories; decimals, such as 0.5, are Tritium's own."
    )
    load_models: tuple[str, ...] = Group.MODELS.collected("--load-model", "MODEL", read_load_models).means(
        "Load MODEL at start-up, in explicit mode; repeatable. '*', alone, stands for every model."
    )
    uploads: Uploads = Group.MODELS.option("--uploads=on", UPLOADS, in_explicit_mode).means(
        "Tritium's own, in explicit mode: whether a load request may bring the model's files. on: as in"
        " Triton. strict: such a model runs in the strict sandbox, whatever its configuration says. off: such"
        " requests are refused."
    )
    links: Links = Group.MODELS.option("--model-repository-links=anywhere", LINKS, links_of).means(
        "Tritium's own: how far symbolic links in local repositories are followed. anywhere: wherever they"
        " lead, as in Triton. inside: only within the repository, and within the model for labels, warmup"
        " data and the like; models with other links are refused. --require-signed means inside."
    )
    namespacing: bool = Group.MODELS.option("--model-namespacing=false", BOOL).means(
        "Let models of several repositories have the same name; otherwise such models are not served."
    )
    model_config_name: str = Group.MODELS.option("--model-config-name", text("NAME"), config_name).means(
        "Prefer configs/NAME.pbtxt of each model to its config.pbtxt."
    )
    disable_auto_complete_config: bool = combined(
        lambda given: given.has("disable-auto-complete-config") or given.on("strict-model-config"),
        Group.MODELS.flag(
            "--disable-auto-complete-config",
            SWITCH,
            "Take configurations as they are written, without completing them from the model file.",
        ),
        Group.MODELS.flag(
            "--strict-model-config=false",
            BOOL,
            "Deprecated by Triton: true is --disable-auto-complete-config.",
        ),
    )
    load_thread_count: int = Group.MODELS.option("--model-load-thread-count=4", integer("N", least=1)).means(
        "How many models may load at once."
    )
    load_retry_count: int = Group.MODELS.option("--model-load-retry-count=0", integer("N")).means(
        "How often a failed load is tried again."
    )
    resident_memory_limit: str = Group.MODELS.option("--resident-memory-limit=80%", MEMORY).means(
        "Tritium's own: the memory that all models may take before those loaded on demand are evicted,"
        " least recently used first: bytes, a size such as 8GiB, or a share of what the server may use,"
        " such as 80%."
    )
    resident_gpu_memory_limit: str = Group.MODELS.option("--resident-gpu-memory-limit", ANY_MEMORY).means(
        "Tritium's own: the memory that all models may take on each GPU before those loaded on demand are"
        " evicted: a size, or a share of the GPU's memory. It is measured by nvidia-ml-py. [default: no"
        " bound]"
    )
    model_cache_directory: str = Group.MODELS.option(
        "--model-cache-directory",
        text("DIR"),
        lambda path, given: path or cache_directory(given.environ),
    ).means(
        "Tritium's own: where models of remote repositories are kept. [default: tritium in"
        " ${XDG_CACHE_HOME}, else in ~/.cache]"
    )
    model_cache_size: int = Group.MODELS.option("--model-cache-size=50GiB", SIZE).means(
        "Tritium's own: how much of the disk that directory may fill; what was used least recently goes"
        " first."
    )
    environment_cache: str = Group.MODELS.option(
        "--environment-cache",
        text("DIR"),
        lambda path, given: path or default_environment_cache(given.environ),
    ).means(
        "Tritium's own: where the environments of Python models are unpacked and built, once each; servers"
        " may share it. [default: tritium/environments in ${XDG_CACHE_HOME}, else in ~/.cache]"
    )
    provenance: ProvenanceSettings = section(ProvenanceSettings)
    agents: AgentSettings = section(AgentSettings)

    backend_settings: Mapping[str, Mapping[str, str]] = Group.BACKENDS.collected(
        "--backend-config", "[BACKEND,]SETTING=VALUE", read_backend_settings, secret=backend_secret
    ).means("A setting for one backend, or for all of them; repeatable.")
    filed_backend_settings: frozenset[tuple[str, str]] = combined(read_filed_backend_settings)  # not shown
    backend_directory: Path | None = Group.BACKENDS.option(
        "--backend-directory", Form("DIR", read_backend_directory), existing
    ).means(
        "Where backends are, each a folder: a C library written for Triton (libtriton_NAME.so), or a"
        " model.py; others are packages with entry points."
    )

    rate_limit: bool = Group.INSTANCES.option(
        "--rate-limit=off", one_of("MODE", "off", "execution_count").into(lambda mode: mode != "off")
    ).means(
        "execution_count: an instance executes only while it holds the resources of its 'rate_limiter', and"
        " who waits for the same ones is served by execution count × priority. off: 'rate_limiter' has no"
        " effect."
    )
    rate_limit_resources: Mapping[tuple[str, int | None], int] = Group.INSTANCES.collected(
        "--rate-limit-resource", "NAME:COUNT[:DEVICE]", read_resources
    ).means(
        "How much there is of a resource: on the GPU DEVICE, or on every device and of a global resource."
        " Repeatable. [default: the most that any one instance needs]"
    )
    host_policies: Mapping[str, HostPolicy] = Group.INSTANCES.collected(
        "--host-policy", "NAME,SETTING=VALUE", read_host_policies
    ).means(
        "Run the workers of instances with the host policy NAME on these cores: cpu-cores=0-3,8 or"
        " numa-node=0. An instance group without a 'host_policy' has cpu, gpu_<id> or model, by its kind."
        " Repeatable."
    )
    model_load_gpu_limits: Mapping[int, float] = Group.INSTANCES.collected(
        "--model-load-gpu-limit", "GPU:FRACTION", read_gpu_limits
    ).means(
        "Load no model with an instance on GPU while more than this share of the GPU's memory is in use. It"
        " is read by nvidia-ml-py; where it can't be read, models with instances there don't load."
        " Repeatable."
    )
    default_execution_timeout: float = Group.INSTANCES.option(
        "--default-execution-timeout=0", number()
    ).means(
        "Tritium's own: how long one execution may take of a model that has no 'tritium.execution_timeout'"
        " of its own, after which its worker is replaced and the clients are told. Of a decoupled model:"
        " how long without progress. 0: for ever."
    )
    unready_after_hang: float = Group.INSTANCES.option("--unready-after-hang-secs=300", number()).means(
        "Tritium's own: not ready while every instance of an essential model has been at one execution for"
        " so long. A SIGTERM does not wait for what has. Models with an execution timeout are left to that."
        " 0: never."
    )
    worker_environment: WorkerEnvironment = Group.INSTANCES.option(
        "--worker-environment=inherit", _ENVIRONMENTS
    ).means(
        "Tritium's own. inherit: workers have the server's environment variables, but for its own settings (TRITIUM_*) and"
        " the credentials of its repositories and cache. minimal: only what programs and frameworks need,"
        " such as PATH and CUDA_*; so it is in a strict sandbox in any case."
    )
    sandbox: SandboxSettings = section(SandboxSettings)
    spare_workers: int = Group.INSTANCES.option("--spare-workers=4", integer("N", most=1024)).means(
        "Tritium's own: keep a worker process ready for each environment in use (backend, interpreter, variables, cores),"
        " N at most, which has imported its backend's framework and waits for a model, so that an instance"
        " that died is back after the time its model takes to load. 0: none."
    )

    cache: CacheSettings | None = combined(
        read_cache,
        Group.CACHE.flag(
            "--cache-config",
            CACHE_CONFIG,
            "Keep answers of models with response_cache.enable: local,size=BYTES in the server's memory, or"
            " redis,host=HOST and redis,port=PORT in a Redis server. One cache, so repeatable for its"
            " settings only.",
            repeatable=True,
            secret=cache_secret,
        ),
        Group.CACHE.flag(
            "--response-cache-byte-size=0",
            CACHE_BYTES,
            "Deprecated by Triton: --cache-config=local,size=BYTES.",
        ),
    )
    start_after: StartAfter = combined(read_start_after)  # of a model's first batch

    id: str = Group.SERVER.option("--id=triton", text("NAME")).means(
        "The server's name, as its metadata endpoint tells it."
    )
    replica_name: str = Group.SERVER.option("--replica-name", REPLICA_NAME).means(
        "Tritium's own: this server's name among several. Answers carry it as the header tritium-replica, and"
        " a request that shows another name can't go on with a sequence here (docs/sequences.md)."
        " [default: none]"
    )
    await_fleet: bool = Group.SERVER.option("--await-fleet=false", BOOL).means(
        "Tritium's own: not ready until a fleet's controller has said so, which it does when the models are"
        " there (docs/fleet.md)."
    )
    exit_on_error: bool = Group.SERVER.option("--exit-on-error=true", BOOL).means(
        "Exit with status 1 when a model fails to load at start-up; otherwise serve the others."
    )
    strict_readiness: bool = Group.SERVER.option("--strict-readiness=true", BOOL).means(
        "Report ready only while every model is ready; otherwise as soon as the server is."
    )
    exit_timeout: float = Group.SERVER.option("--exit-timeout-secs=30", integer("SECONDS").into(float)).means(
        "On SIGTERM or SIGINT, how long requests in flight may take to finish."
    )
    drain_delay: float = Group.SERVER.option("--drain-delay-secs=0", number()).means(
        "Tritium's own: on SIGTERM or SIGINT, how long the server serves on before --exit-timeout-secs"
        " begins. It says at once that it is not ready, so that load balancers have so long to send"
        " requests elsewhere. A second signal cuts it short."
    )
    auth_file: str = Group.SERVER.option("--auth-file", some_text("FILE")).means(
        "Tritium's own: a TOML file that says who may do what: API keys, issuers of JWTs, certificates, rules"
        " and limits. It is read again when it changes, and on SIGHUP. Without it, all may do everything."
    )
    connections: ConnectionSettings = section(ConnectionSettings)
    shared_memory: SharedMemorySettings = section(SharedMemorySettings)

    allow_http: bool = Group.HTTP.option(
        "--allow-http=true", BOOL, lambda on, given: unless_in_prediction(on, given, "allow-http")
    ).means("Serve the KServe v2 protocol over HTTP; off by default on Vertex AI.")
    http_address: str = Group.HTTP.option("--http-address=0.0.0.0", text("ADDRESS")).means(
        "Where HTTP listens."
    )
    http_port: int = Group.HTTP.option("--http-port=8000", PORT).means(
        "On which port; 0 lets the kernel choose."
    )
    http_reuse_port: bool = Group.HTTP.option("--reuse-http-port=false", BOOL).means(
        "Let several servers listen on that port; the kernel deals connections out among them."
    )
    http_tls: TlsFiles | None = TlsFlags(
        group=Group.HTTP, listener="http", title="HTTP", lends="metrics"
    ).declared()
    http_max_input_size: int = Group.HTTP.option(
        "--http-max-input-size=67108864", Form("BYTES", _input_size, CACHE_BYTES.check)
    ).means(
        "The largest JSON part of a request, JSON tensor, raw-binary body, and body once decompressed;"
        " tensors in binary form are not limited by it."
    )
    http_header_forward_pattern: str = Group.HTTP.option("--http-header-forward-pattern", PATTERN).means(
        "Request headers whose name matches (anywhere, in any case) become request parameters."
    )
    server_timing: bool = Group.HTTP.option("--server-timing=false", BOOL).means(
        "Tritium's own: tell each client in a Server-Timing header how long its request was queued and"
        " computed, as browsers and proxies read it."
    )
    http_restricted_api: Mapping[str, RestrictedHeader] = Group.HTTP.collected(
        "--http-restricted-api", "API[,API...]:KEY=VALUE", restrictions("api", "API"), secret=bool
    ).means(
        "Answer these APIs only where the header KEY has the value VALUE: health, metadata, inference,"
        " shared-memory, model-config, model-repository, statistics, trace, logging. Repeatable."
    )

    pages: PageSettings = section(PageSettings)

    allow_grpc: bool = Group.GRPC.option(
        "--allow-grpc=true", BOOL, lambda on, given: unless_in_prediction(on, given, "allow-grpc")
    ).means("Serve the KServe v2 protocol over gRPC; off by default on Vertex AI.")
    grpc: GrpcSettings = section(GrpcSettings)
    openai: OpenAiSettings = section(OpenAiSettings)
    cloud: CloudSettings = section(CloudSettings)
    management: ManagementSettings = section(ManagementSettings)
    audit: AuditSettings = section(AuditSettings)

    allow_metrics: bool = Group.METRICS.option("--allow-metrics=true", BOOL).means(
        "Serve Prometheus metrics at /metrics on a port of their own."
    )
    metrics_address: str = Group.METRICS.option("--metrics-address", text("ADDRESS"), _metrics_address).means(
        "Where metrics listen. [default: HTTP's address where HTTP is on, else 0.0.0.0]"
    )
    metrics_port: int = Group.METRICS.option("--metrics-port=8002", PORT).means(
        "On which port; 0 lets the kernel choose."
    )
    metrics_tls: TlsFiles | None = TlsFlags(
        group=Group.METRICS, listener="metrics", title="the metrics port", borrows="http"
    ).declared()
    metrics: MetricsSettings = section(MetricsSettings)
    log: LogSettings = section(LogSettings)
    events: EventSettings = section(EventSettings)
    trace: TraceSetting = combined(read_trace, *TRACE_FLAGS)

    warnings: tuple[str, ...] = ()  # what was accepted and changes nothing, to be logged at start-up

    @classmethod
    def from_argv(cls, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
        """Read tritonserver's flags; `environ` supplies what they leave out. Raises SettingsError."""
        environ = {} if environ is None else environ
        cut_short: list[str] = []
        words = scan_argv(argv, BY_NAME, cut_short)
        settings = cls._read(_under(scan_environ(environ, BY_VARIABLE), words), environ)
        return replace(settings, warnings=(*settings.warnings, *cut_short, *warnings(words, BY_NAME)))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Read `TRITIUM_*` variables, one for each flag. Raises SettingsError.

        An unknown variable is a warning.
        """
        return cls._read(scan_environ(environ, BY_VARIABLE), environ)

    @classmethod
    def _read(cls, words: Mapping[str, Sequence[str]], environ: Mapping[str, str]) -> Settings:
        if "cache-config" in words and "response-cache-byte-size" in words:
            raise SettingsError(
                "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided."
                " Please provide one or the other."
            )
        filed = from_files(words, BY_NAME)
        words = {**words, **{name: [*words.get(name, ()), *lines] for name, lines in filed.items()}}
        given = Given(words, BY_NAME, environ, filed)
        settings = read_sheet(cls, given)
        listeners = _listeners(settings)
        settings.cloud.refuse_unsafe(listeners)
        refuse_clashes(listeners)
        return replace(settings, warnings=(*warn_of_environ(environ, BY_VARIABLE), *given.warnings))

    def options(self) -> list[tuple[str, str]]:
        """Return (name, value) of what an operator wants to see at start-up."""
        shown = [
            ("model_repository_path", ", ".join(map(without_query, self.model_repositories))),
            ("model_control_mode", self.control_mode),
            *self._control_options(),
            ("model_repository_links", self.links.value),
            ("model_namespacing", str(int(self.namespacing))),
            ("resident_memory_limit", self.resident_memory_limit),
            ("strict_model_config", str(int(self.disable_auto_complete_config))),
            ("sandbox", self.sandbox.level.value),
            *self.provenance.options(),
            ("strict_readiness", str(int(self.strict_readiness))),
            ("exit_on_error", str(int(self.exit_on_error))),
            ("exit_timeout", f"{self.exit_timeout:g}"),
            *([("drain_delay", f"{self.drain_delay:g}")] if self.drain_delay else []),
            *(
                [("default_execution_timeout", f"{self.default_execution_timeout:g}")]
                if self.default_execution_timeout
                else []
            ),
            ("http", _place(self.allow_http, self.http_address, self.http_port, self.http_tls)),
            *(self.grpc.options() if self.allow_grpc else [("grpc", "off")]),
            (
                "metrics",
                _place(self.allow_metrics, self.metrics_address, self.metrics_port, self.metrics_tls),
            ),
            *self.openai.options(self.http_address),
            *self.cloud.options(self.http_address),
            *(
                [("management", f"{_place(True, apart.address, apart.http_port, self.http_tls)} (HTTP)")]
                if (apart := self.management).address
                else []
            ),
            ("log_format", self.log.format),
            *(self.cache.options() if self.cache is not None else []),
        ]
        for backend, values in self.backend_settings.items():
            name = f"backend_config[{backend}]" if backend else "backend_config"
            shown.append((name, ", ".join(self._shown(backend, key, value) for key, value in values.items())))
        return [("server_id", self.id), *shown]

    def _shown(self, backend: str, setting: str, value: str) -> str:
        secret = looks_secret(setting) or (backend, setting) in self.filed_backend_settings
        return f"{setting}={HIDDEN if secret else value}"

    def _control_options(self) -> list[tuple[str, str]]:
        """Return those that count only in one control mode, or only for remote repositories."""
        shown = []
        if self.control_mode == "poll":
            shown.append(("repository_poll_secs", f"{self.poll_interval:g}"))
        if self.control_mode == "explicit":
            shown.append(("startup_models", ", ".join(self.load_models)))
            shown.append(("uploads", self.uploads.value))
        if any(map(is_remote, self.model_repositories)):
            shown.append(("model_cache_directory", self.model_cache_directory))
            shown.append(("model_cache_size", str(self.model_cache_size)))
        return shown


def _place(allowed: bool, address: str, port: int, tls: TlsFiles | None) -> str:
    return f"{host_port(address, port)}{security_of(tls)}" if allowed else "off"


def _under(
    variables: Mapping[str, Sequence[str]], words: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """Return the words of the command line, and those variables that it does not replace.

    A flag and the one that names a file for it are one option.
    """
    said = {name.removesuffix("-file") for name in words}
    return {
        **{name: each for name, each in variables.items() if name.removesuffix("-file") not in said},
        **words,
    }


def _listeners(settings: Settings) -> list[tuple[str, str, int]]:
    """Return what each listener is for, in Triton's words, and where it is."""
    management = settings.management
    apart = bool(management.address)
    places = [
        (settings.allow_http, "HTTP requests", settings.http_address, settings.http_port),
        (settings.allow_grpc, "GRPC requests", settings.grpc.address, settings.grpc.port),
        (settings.allow_metrics, "metrics requests", settings.metrics_address, settings.metrics_port),
        (apart, "management over HTTP", management.address, management.http_port),
        (apart and settings.allow_grpc, "management over GRPC", management.address, management.grpc_port),
    ]
    listeners = [(what, address, port) for allowed, what, address, port in places if allowed]
    address = settings.http_address
    return [*listeners, *settings.openai.listeners(address), *settings.cloud.listeners(address)]


FLAGS: Final[tuple[Flag, ...]] = (*with_files(entries_of(Settings)), *COMPATIBLE)
BY_NAME: Final = {name: flag for flag in FLAGS for name in (flag.name, *flag.aliases)}
BY_VARIABLE: Final = {flag.variable: flag for flag in FLAGS}
