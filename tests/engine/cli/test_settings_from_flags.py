"""tritonserver's flags and our variables become settings, or a contract error (repository.md section 10)."""

import contextlib
import math
import os
from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.settings.listening import GrpcSettings, KeepaliveSettings, RestrictedHeader
from engine.settings.option import Group
from engine.settings.settings import BY_NAME, BY_VARIABLE, FLAGS, Settings, SettingsError
from engine.settings.tls import PemFile, TlsFiles
from tests.support.examples import examples

REPOSITORY = "--model-repository=/models"
SIGNED = ("--require-signed", "--trusted-keys=release.key.pub")
FILES = ("--grpc-server-cert=server.pem", "--grpc-server-key=server.key")


def pem_files(listener, *paths, **options):
    """The files of a listener: its certificate, its key, its clients' roots."""
    flags = ("server-cert", "server-key", "root-cert")
    files = [PemFile(path, f"{listener}-{flag}") for flag, path in zip(flags, paths, strict=False)]
    roots = files[2] if len(files) == 3 else None
    return TlsFiles(certificate=files[0], key=files[1], client_roots=roots, **options)


def read(*flags):
    return Settings.from_argv([REPOSITORY, *flags])


def refusal(*flags):
    with pytest.raises(SettingsError) as caught:
        read(*flags)
    return caught.value


def test_without_flags_the_defaults_are_tritons():
    settings = read()
    assert settings.model_repositories == ("/models",)
    assert (settings.id, settings.exit_on_error, settings.strict_readiness) == ("triton", True, True)
    assert (settings.exit_timeout, settings.load_thread_count, settings.load_retry_count) == (30.0, 4, 0)
    assert (settings.allow_http, settings.http_address, settings.http_port) == (True, "0.0.0.0", 8000)
    assert (settings.allow_metrics, settings.metrics_address, settings.metrics_port) == (
        True,
        "0.0.0.0",
        8002,
    )
    assert settings.http_max_input_size == 67108864
    assert settings.metrics.interval == 2.0
    assert list(settings.metrics.summary_quantiles) == [0.5, 0.9, 0.95, 0.99, 0.999]
    assert (settings.log.format, settings.log.verbose, settings.log.requests) == ("default", 0, False)
    assert (settings.control_mode, settings.poll_interval, settings.load_models) == ("none", 0.0, ())
    assert (settings.namespacing, settings.resident_memory_limit) == (False, "80%")
    assert (settings.model_cache_size, settings.warnings) == (50 * 1024**3, ())


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--id=me"], "id", "me"),
        (["--id", "me"], "id", "me"),
        (["--id=a=b"], "id", "a=b"),
        ([], "replica_name", ""),
        (["--replica-name=tritium-0"], "replica_name", "tritium-0"),
        (["--exit-timeout-secs=5"], "exit_timeout", 5.0),
        (["--default-execution-timeout=2.5"], "default_execution_timeout", 2.5),
        ([], "default_execution_timeout", 0.0),
        (["--unready-after-hang-secs=0"], "unready_after_hang", 0.0),
        ([], "unready_after_hang", 300.0),
        (["--exit-on-error=false"], "exit_on_error", False),
        (["--strict-readiness", "OFF"], "strict_readiness", False),
        (["--allow-http=0"], "allow_http", False),
        (["--allow-http=False", "--allow-http=On"], "allow_http", True),
        (["--http-port=0"], "http_port", 0),
        (["--http-port", "9000"], "http_port", 9000),
        (["--http-address=127.0.0.1"], "http_address", "127.0.0.1"),
        (["--http-address=127.0.0.1"], "metrics_address", "127.0.0.1"),
        (["--http-address=127.0.0.1", "--allow-http=false"], "metrics_address", "0.0.0.0"),
        (["--metrics-address=::1"], "metrics_address", "::1"),
        (["--http-max-input-size=5000000000"], "http_max_input_size", 5_000_000_000),
        (["--server-timing=true"], "server_timing", True),
        ([], "server_timing", False),
        (["--http-header-forward-pattern=X-.*"], "http_header_forward_pattern", "X-.*"),
        (["--disable-auto-complete-config"], "disable_auto_complete_config", True),
        (["--strict-model-config=true"], "disable_auto_complete_config", True),
        (["--model-config-name=gpu"], "model_config_name", "gpu"),
        (["--model-load-thread-count=2"], "load_thread_count", 2),
        (["--model-load-retry-count=3"], "load_retry_count", 3),
        (["--model-store=/more"], "model_repositories", ("/models", "/more")),
        (["--model-store=s3://h:9000/b/p"], "model_repositories", ("/models", "s3://h:9000/b/p")),
        (["--model-control-mode=none"], "control_mode", "none"),
        (["--model-control-mode=poll"], "control_mode", "poll"),
        (["--model-control-mode=poll"], "poll_interval", 15.0),
        (["--model-control-mode=poll", "--repository-poll-secs=5"], "poll_interval", 5.0),
        (["--model-control-mode=poll", "--repository-poll-secs=.5"], "poll_interval", 0.5),
        (["--repository-poll-secs=0"], "poll_interval", 0.0),
        (["--model-control-mode", "explicit"], "control_mode", "explicit"),
        (["--model-control-mode=EXPLICIT"], "control_mode", "explicit"),
        (["--model-control-mode=Poll"], "poll_interval", 15.0),
        (["--model-control-mode=Explicit", "--load-model=a"], "load_models", ("a",)),
        (["--rate-limit=EXECUTION_COUNT"], "rate_limit", True),
        (["--rate-limit=Off"], "rate_limit", False),
        (["--model-control-mode=explicit"], "load_models", ()),
        (
            ["--model-control-mode=explicit", *(f"--load-model={name}" for name in "aba")],
            "load_models",
            ("a", "b"),
        ),
        (["--load-model=*", "--load-model=*", "--model-control-mode=explicit"], "load_models", ("*",)),
        (["--model-namespacing=true"], "namespacing", True),
        (["--resident-memory-limit=8GiB"], "resident_memory_limit", "8GiB"),
        (["--resident-memory-limit=62.5%"], "resident_memory_limit", "62.5%"),
        (["--resident-memory-limit=500000000"], "resident_memory_limit", "500000000"),
        (["--model-cache-directory=/var/cache/models"], "model_cache_directory", "/var/cache/models"),
        (["--environment-cache=/var/cache/envs"], "environment_cache", "/var/cache/envs"),
        (["--model-cache-size=1000"], "model_cache_size", 1000),
        (["--model-cache-size=1.5 GiB"], "model_cache_size", 3 * 2**29),
        (["--model-cache-size=2TB"], "model_cache_size", 2 * 10**12),
        (["--log-verbose=2"], "log.verbose", 2),
        (["--log-verbose=true"], "log.verbose", 1),
        (["--log-verbose=off"], "log.verbose", 0),
        (["--log-info=false"], "log.info", False),
        (["--log-warning=0"], "log.warning", False),
        (["--log-error=off"], "log.error", False),
        (["--log-format=ISO8601"], "log.format", "ISO8601"),
        (["--log-format=json"], "log.format", "json"),
        (["--log-file=/tmp/x.log"], "log.file", "/tmp/x.log"),
        (["--log-requests=true"], "log.requests", True),
        (["--allow-cpu-metrics=false"], "metrics.cpu", False),
        (["--metrics-interval-ms=500"], "metrics.interval", 0.5),
        (["--allow-gpu-metrics=True"], "metrics.gpu", True),  # as GKE's chart writes it
        (["--allow-gpu-metrics=false"], "metrics.gpu", False),
        (["--request-duration-buckets=0.001,0.5,2"], "metrics.duration_buckets", (0.001, 0.5, 2.0)),
        (["--request-duration-buckets=off"], "metrics.duration_buckets", ()),
        (["--metrics-config=counter_latencies=false"], "metrics.counter_latencies", False),
        (["--metrics-config", "histogram_latencies=true"], "metrics.histogram_latencies", True),
        (["--metrics-config=summary_latencies=true"], "metrics.summary_latencies", True),
        (
            ["--metrics-config=summary_quantiles=0.5:0.1,0.7:0.01"],
            "metrics.summary_quantiles",
            {0.5: 0.1, 0.7: 0.01},
        ),
        (["--model-control-mode=explicit", "--repository-poll-secs=5"], "poll_interval", 0.0),
        (["--http-port=0", "--metrics-port=0"], "metrics_port", 0),  # listeners may share port zero
        (
            ["--http-address=127.0.0.1", "--metrics-address=127.0.0.2", "--metrics-port=8000"],
            "metrics_port",
            8000,
        ),
        (["--allow-grpc=false"], "allow_grpc", False),
        (["--allow-grpc=false", "--http-port=8001"], "http_port", 8001),  # which gRPC does not take
        (
            ["--grpc-use-ssl=true", *FILES],
            "grpc.tls",
            pem_files("grpc", "server.pem", "server.key"),
        ),
        (
            ["--grpc-use-ssl-mutual=true", *FILES, "--grpc-root-cert=ca.pem"],
            "grpc.tls",
            pem_files("grpc", "server.pem", "server.key", "ca.pem"),
        ),
    ],
)
def test_a_flag_sets_its_field(flags, name, value):
    assert attrgetter(name)(read(*flags)) == value


def test_a_bad_quantile_is_skipped_with_a_warning():
    settings = read("--metrics-config=summary_quantiles=0.5:0.1,nonsense,2:0.1")
    assert dict(settings.metrics.summary_quantiles) == {0.5: 0.1}
    assert ["'nonsense'" in settings.warnings[0], "'2:0.1'" in settings.warnings[1]] == [True, True]


@pytest.mark.parametrize(
    ("flags", "links", "warnings"),
    [
        ((), "anywhere", 0),
        (("--model-repository-links=inside",), "inside", 0),
        (SIGNED, "inside", 0),
        ((*SIGNED, "--model-repository-links=inside"), "inside", 0),
        ((*SIGNED, "--model-repository-links=anywhere"), "inside", 1),
    ],
)
def test_what_must_be_signed_has_no_links_out(flags, links, warnings):
    settings = read(*flags)
    assert (settings.links.value, len(settings.warnings)) == (links, warnings)
    assert ("model_repository_links", links) in settings.options()


def test_backend_settings_are_kept_by_backend_those_for_all_under_no_name():
    settings = read(
        "--backend-config=default-max-batch-size=4",
        "--backend-config=onnxruntime,threads=2",
        "--backend-config=onnxruntime,default-max-batch-size=8",
        "--backend-config=onnxruntime,path=a,b=c",
    )
    assert settings.backend_settings == {
        "": {"default-max-batch-size": "4"},
        "onnxruntime": {"default-max-batch-size": "8", "threads": "2", "path": "a,b=c"},
    }


def test_connections_are_bounded_as_asked():
    plain = read().connections
    assert (plain.most, plain.idle_timeout, plain.address_limit) == (8192, 600.0, None)
    asked = read(
        "--max-connections=100",
        "--connection-idle-timeout-secs=0",
        "--max-connections-per-address=5",
        "--trusted-proxies=10.0.0.0/8,192.0.2.7",
        "--trusted-proxies=2001:db8::/64",
    )
    assert (asked.connections.most, asked.connections.idle_timeout) == (100, math.inf)
    limit = asked.connections.address_limit
    assert limit is not None
    assert limit.most == 5
    assert [limit.origin(host) for host in ("10.9.9.9", "192.0.2.7", "2001:db8::5")] == [None] * 3
    assert limit.origin("192.0.2.8") == "192.0.2.8"


def test_proxies_are_trusted_and_introduce_clients_as_asked():
    plain = read().connections
    assert (plain.proxies, plain.proxy_protocol) == (None, frozenset())
    asked = read("--trusted-proxies=10.0.0.0/8", "--proxy-protocol=http, grpc").connections
    assert asked.proxies is not None
    assert asked.proxies.trusts("10.9.9.9")
    assert not asked.proxies.trusts("11.0.0.1")
    assert asked.proxy_protocol == {"http", "grpc"}
    assert read("--proxy-protocol=").connections.proxy_protocol == frozenset()


def test_a_proxy_that_is_not_trusted_introduces_no_clients():
    refused = refusal("--proxy-protocol=http")
    assert "needs --trusted-proxies" in refused.message
    refused = refusal("--proxy-protocol=http,https", "--trusted-proxies=10.0.0.0/8")
    assert "Got https" in refused.message
    assert "http, grpc, metrics, management" in refused.hint


def test_an_address_may_ask_for_as_much_as_asked():
    plain = read().connections
    assert {plain.requests_per_address, plain.bytes_per_address, plain.concurrent_per_address} == {math.inf}
    asked = read(
        "--max-requests-per-second-per-address=0.5",
        "--max-bytes-per-second-per-address=10MiB",
        "--max-concurrent-per-address=4",
    ).connections
    assert (asked.requests_per_address, asked.bytes_per_address) == (0.5, 10 * 1024 * 1024)
    assert asked.concurrent_per_address == 4
    none = read("--max-bytes-per-second-per-address=0", "--max-concurrent-per-address=0").connections
    assert {none.bytes_per_address, none.concurrent_per_address} == {math.inf}
    assert "0 for any number" in refusal("--max-bytes-per-second-per-address=much").hint


def test_what_is_no_network_is_refused():
    refused = refusal("--max-connections-per-address=1", "--trusted-proxies=10.0.0.0/8,here")
    assert "Got here" in refused.message
    assert "10.0.0.0/8" in refused.hint


def test_each_restricted_api_knows_its_header():
    settings = read(
        "--http-restricted-api=health,metadata:admin-key=a=b", "--http-restricted-api=inference:k=v"
    )
    assert settings.http_restricted_api == {
        "health": RestrictedHeader("admin-key", "a=b"),
        "metadata": RestrictedHeader("admin-key", "a=b"),
        "inference": RestrictedHeader("k", "v"),
    }


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--allow-http=maybe"], "invalid value for bool option: maybe"),
        (["--model-control-mode=often"], "invalid argument for --model-control-mode"),
        (["--http-max-input-size=0"], "Error: --http-max-input-size must be greater than 0."),
        (["--http-max-input-size=-1"], "Error: --http-max-input-size must be greater than 0."),
        (["--log-format=xml"], "invalid argument for --log-format"),
        (["--rate-limit=some"], "invalid argument for --rate-limit"),
        ([""], "Unexpected argument: "),
        (["http-port=9000"], "Unexpected argument: http-port=9000"),
        (["-p"], "Unexpected argument: -p"),
        (
            ["--http-port=99999999999999999999999"],
            "Provided option value is out of bound. Got 99999999999999999999999",
        ),
        (["--http-port=65536"], "Provided option value is out of bound. Got 65536"),
        (["--http-port=-1"], "Provided option value is out of bound. Got -1"),
        (["--exit-timeout-secs=2147483648"], "Provided option value is out of bound. Got 2147483648"),
        (["--http-port=web"], "Invalid option value. Got web"),
        (["--log-verbose=-1"], "Provided option value is out of bound. Got -1"),
        (
            ["--backend-config=onnxruntime"],
            "--backend-config option format is '<backend name>,<setting>=<value>'. Got onnxruntime",
        ),
        (
            ["--backend-config=,a=b"],
            "--backend-config option format is '<backend name>,<setting>=<value>'. Got ,a=…",
        ),
        (
            ["--cache-config=local"],
            "--cache-config option format is '<cache name>,<setting>=<value>'. Got local",
        ),
        (
            ["--trace-config=rate"],
            "--trace-config option format is '<trace mode>,<setting>=<value>'. Got rate",
        ),
        (
            ["--http-restricted-api=health:a=b", "--http-restricted-api=health:c=d"],
            "restricted api 'health' can not be specified in multiple config groups",
        ),
        (["--http-restricted-api=wealth:a=b"], "unknown restricted api 'wealth'"),
        (
            ["--cache-config=local,size=1", "--response-cache-byte-size=1"],
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided."
            " Please provide one or the other.",
        ),
        (
            ["--grpc-infer-thread-count=1"],
            "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.",
        ),
        (["--grpc-infer-thread-count=+-5"], "Invalid option value. Got +-5"),
        (
            ["--grpc-max-response-pool-size=0"],
            "Error: --grpc-max-response-pool-size must be greater than 0.",
        ),
        (
            ["--load-model=add"],
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        (
            ["--load-model=add", "--model-control-mode=poll"],
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        (
            ["--model-control-mode=explicit", "--load-model=*", "--load-model=add"],
            "error: creating server: Invalid argument - "
            "Wildcard model name '*' must be the ONLY startup model if specified at all.",
        ),
        (["--model-control-mode=explicit", "--load-model="], None),
        (["--model-config-name="], "Error: empty argument for --model-config-name"),
        (["--model-config-name=../gpu"], "--model-config-name must be a name, not a path. Got ../gpu"),
        (["--repository-poll-secs=soon"], "Invalid option value. Got soon"),
        (["--repository-poll-secs=1e3"], "Invalid option value. Got 1e3"),
        (["--repository-poll-secs=-1"], "Provided option value is out of bound. Got -1"),
        (["--model-control-mode=poll", "--repository-poll-secs=0"], None),
        (["--model-namespacing=perhaps"], "invalid value for bool option: perhaps"),
        (["--resident-memory-limit=much"], "Invalid option value. Got much"),
        (["--resident-memory-limit=8gigs"], "Invalid option value. Got 8gigs"),
        (["--resident-memory-limit=0%"], "Provided option value is out of bound. Got 0%"),
        (["--resident-memory-limit=101%"], "Provided option value is out of bound. Got 101%"),
        (["--model-cache-size=80%"], "Invalid option value. Got 80%"),
        (["--model-cache-size=0"], "Provided option value is out of bound. Got 0"),
        (
            ["--model-cache-size=9999999999TiB"],
            "Provided option value is out of bound. Got 9999999999TiB",
        ),
        (
            ["--grpc-port=8000"],
            "The server cannot listen to HTTP requests and GRPC requests at the same address and port 0.0.0.0:8000",
        ),
        (
            ["--metrics-port=8000"],
            "The server cannot listen to HTTP requests and metrics requests at the same address and port 0.0.0.0:8000",
        ),
        (
            ["--management-address=0.0.0.0", "--management-http-port=8000"],
            "The server cannot listen to HTTP requests and management over HTTP at the same address and port"
            " 0.0.0.0:8000",
        ),
        (
            ["--management-address=0.0.0.0", "--management-grpc-port=8003"],
            "The server cannot listen to management over HTTP and management over GRPC at the same address"
            " and port 0.0.0.0:8003",
        ),
        (["--metrics-config=x,counter_latencies=true"], None),
        (["--metrics-config=counter_latencies=False"], None),
        (["--metrics-config=colour=red"], None),
        (["--request-duration-buckets="], None),
        (["--request-duration-buckets=0,1"], None),
        (["--request-duration-buckets=2,1"], None),
        (["--request-duration-buckets=" + ",".join(map(str, range(1, 67)))], None),
        (["--http-restricted-api=health"], None),
        (["--http-header-forward-pattern=("], None),
        (["--model-repository="], None),
        (["--http-port"], "option '--http-port' requires an argument"),
        (
            ["--disable-auto-complete-config=true"],
            "option '--disable-auto-complete-config' doesn't allow an argument",
        ),
        (["--allow-grpc=maybe"], "invalid value for bool option: maybe"),
        (["--grpc-port=65536"], "Provided option value is out of bound. Got 65536"),
        (["--grpc-port=-1"], "Provided option value is out of bound. Got -1"),
        (["--grpc-port=grpc"], "Invalid option value. Got grpc"),
        (
            ["--grpc-infer-response-compression-level=max"],
            "invalid argument for --grpc_infer_response_compression_level",
        ),
        (["--grpc-keepalive-time=0"], "Provided option value is out of bound. Got 0"),
        (["--grpc-keepalive-timeout=0"], "Provided option value is out of bound. Got 0"),
        (["--grpc-keepalive-time=1.5"], "Invalid option value. Got 1.5"),
        (["--grpc-keepalive-time=2147483648"], "Provided option value is out of bound. Got 2147483648"),
        (["--grpc-http2-max-ping-strikes=-1"], "Provided option value is out of bound. Got -1"),
        (["--grpc-max-connection-age=-1"], "Provided option value is out of bound. Got -1"),
        (["--http-max-connection-age=-1"], "Provided option value is out of bound. Got -1"),
        (["--http-max-connection-age=5m"], "Invalid option value. Got 5m"),
        *(
            (
                [f"--replica-name={name}"],
                "--replica-name takes letters, digits and !#$%&'*+-.^_`|~, at most 253 of them. Got " + name,
            )
            for name in ("a b", "a,b", "a:1", "ä", "a\r\nb: c", "x" * 254)
        ),
        (["--grpc-connection-bytes=131071"], "Provided option value is out of bound. Got 131071"),
        (["--grpc-connection-bytes=much"], "Invalid option value. Got much"),
        (["--grpc-connection-bytes=80%"], "Invalid option value. Got 80%"),
        (["--grpc-header-forward-pattern=("], None),
        (
            ["--grpc-restricted-protocol=health"],
            "--grpc-restricted-protocol option format is '<protocol>[,<protocol>...]:<key>=<value>'. Got health",
        ),
        (["--grpc-restricted-protocol=wealth:a=b"], "unknown restricted protocol 'wealth'"),
        (
            ["--grpc-restricted-protocol=health:a=b", "--grpc-restricted-protocol=trace,health:c=d"],
            "restricted protocol 'health' can not be specified in multiple config groups",
        ),
        (
            ["--http-port=8001"],
            "The server cannot listen to HTTP requests and GRPC requests at the same address and port 0.0.0.0:8001",
        ),
        (
            ["--grpc-port=8002"],
            "The server cannot listen to GRPC requests and metrics requests at the same address and port 0.0.0.0:8002",
        ),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(flags, text):
    error = refusal(*flags)
    assert text is None or error.message == text
    assert str(error) == error.message


def test_a_server_without_a_repository_is_refused():
    with pytest.raises(SettingsError, match="--model-repository must be specified"):
        Settings.from_argv([])


@pytest.mark.parametrize(
    ("flag", "nearest"),
    [
        ("--htp-port=1", "--http-port"),
        ("--model_repository=x", "--model-repository"),
        ("--lgo-verbose", "--log-verbose"),
    ],
)
def test_an_unknown_flag_names_the_nearest_one(flag, nearest):
    error = refusal(flag)
    assert error.message == f"unrecognized option '{flag.partition('=')[0]}'"
    assert error.hint == f"did you mean {nearest}?"


@pytest.mark.parametrize(
    ("words", "name", "flag"),
    [
        (("--model-repo", "/models"), "--model-repo", "--model-repository"),
        (("--model-repo=/models",), "--model-repo", "--model-repository"),
        (("--model-s=/models",), "--model-s", "--model-repository"),  # --model-store
        (("/models", "--log-verb=1"), "--log-verb", "--log-verbose"),
        (("/models", "--disable"), "--disable", "--disable-auto-complete-config"),
    ],
)
def test_a_name_that_is_cut_short_is_taken_for_the_only_one_of_triton_s_that_begins_so(words, name, flag):
    settings = Settings.from_argv(words)
    assert settings.model_repositories == ("/models",)
    assert settings.warnings == (f"{name} is taken for {flag}: write its name in full",)


# From Triton's charts, KServe, ModelMesh, TensorRT-LLM's launcher, and machines with GPUs.
REAL = {
    "--model-store=/m --model-control-mode=poll --repository-poll-secs=5": [],
    "--model-repository /m --repository-poll-secs 30 --http-port 8000": ["repository-poll-secs"],
    "--model-store=/m --grpc-port=9000 --http-port=8080 --allow-grpc=true --allow-http=True": [],
    "--model-store=/m --model-control-mode=EXPLICIT --strict-readiness=false --allow-sagemaker=false": [],
    "--model-store=/m --strict-model-config=False --log-verbose=true --exit-on-error=0 --id x": [],
    "--model-store=/m --disable-auto-complete-config --backend-config=python,shm-region-prefix-name=p_": [],
    "--model-store=/m --pinned-memory-pool-byte-size=268435456 --cuda-memory-pool-byte-size=0:67108864": [
        "pinned-memory-pool-byte-size",
        "cuda-memory-pool-byte-size",
    ],
    "--model-repository=/m --reuse-http-port=true --reuse-grpc-port=1 --vertex-ai-default-model=x": [],
    "--model-repository=/m --min-supported-compute-capability=6.0 --model-load-gpu-limit=0:0.9"
    " --model-load-gpu-limit 1:0.9": ["min-supported-compute-capability"],
    "--model-repository=/m --http-thread-count=4 --sagemaker-port=8080 --sagemaker-thread-count=2": [
        "http-thread-count",
        "sagemaker-thread-count",
    ],
}


@pytest.mark.parametrize(("line", "idle"), REAL.items())
def test_command_lines_of_real_deployments_are_taken_with_one_warning_for_each_idle_flag(line, idle):
    settings = Settings.from_argv(line.split())
    assert settings.model_repositories == ("/m",)
    assert sorted(warning.split()[0] for warning in settings.warnings) == sorted(f"--{name}" for name in idle)


@pytest.mark.parametrize("word", ["0", "0:2", "x:0.5", "0:x", ""])
def test_a_limit_of_a_gpu_s_memory_is_a_share(word):
    assert refusal(f"--model-load-gpu-limit={word}").message == (
        f"--model-load-gpu-limit option format is '<device id>:<fraction>'. Got {word}"
    )


def test_limits_of_gpus_memory_are_by_gpu():
    settings = Settings.from_argv(
        ["--model-repository=/m", "--model-load-gpu-limit=0:0.9", "--model-load-gpu-limit=1:.5"]
    )
    assert settings.model_load_gpu_limits == {0: 0.9, 1: 0.5}


@pytest.mark.parametrize("flag", ["--http-=1", "--log-=1", "--uplo=off", "--=1", "--xyz=1"])
def test_a_name_that_could_be_several_s_or_is_none_of_triton_s_is_none(flag):
    assert refusal(flag).message == f"unrecognized option '{flag.partition('=')[0]}'"


@pytest.mark.parametrize("name", ["a,b", "a:b"])
def test_a_model_whose_name_looks_like_a_list_gets_a_warning_that_tells_the_separator(name):
    settings = Settings.from_environ(
        {
            "TRITIUM_MODEL_REPOSITORY": "/models",
            "TRITIUM_MODEL_CONTROL_MODE": "explicit",
            "TRITIUM_LOAD_MODEL": f"{name};c",
        }
    )
    assert settings.load_models == (name, "c")
    (warning,) = settings.warnings
    assert warning.startswith(f"--load-model names one model, and got '{name}'")
    assert "';' in TRITIUM_LOAD_MODEL" in warning


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/home/me"}, "/cache/tritium"),
        ({"HOME": "/home/me"}, "/home/me/.cache/tritium"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/tritium"),
        ({"TRITIUM_MODEL_CACHE_DIRECTORY": "/mine", "XDG_CACHE_HOME": "/cache"}, "/mine"),
    ],
)
def test_remote_models_are_kept_where_caches_belong(environ, directory):
    assert Settings.from_argv([REPOSITORY], environ).model_cache_directory == directory


@pytest.mark.parametrize(
    "flag",
    [
        "--allow-sagemaker=false",
        "--allow-vertex-ai=off",
        "--rate-limit=off",
        "--response-cache-byte-size=0",
        "--model-namespacing=false",
        "--trace-level=OFF",
        "--allow-client-shm=False",
        "--allow-gpu-metrics=false",
    ],
)
def test_asking_for_what_happens_anyway_is_fine(flag):
    assert read(flag).warnings == ()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--grpc-infer-thread-count=4"], ""),
        (["--grpc-infer-allocation-pool-size=8"], ""),
        (["--grpc-max-response-pool-size=100"], ""),
        (["--http-thread-count=16"], ""),
        (["--pinned-memory-pool-byte-size=268435456"], ""),
        (["--repository-poll-secs=5", "--model-control-mode=explicit"], ""),
        (["--grpc-unix-socket=/s", "--allow-grpc=false"], "--allow-grpc=false "),
    ],
)
def test_a_flag_without_effect_is_accepted_and_named_in_a_warning(flags, reason):
    (warning,) = read(*flags).warnings
    assert warning.startswith(f"{flags[0].partition('=')[0]} has no effect: {reason}")


# -- the environment


def test_each_variable_is_its_flag_in_capitals():
    settings = Settings.from_environ(
        {
            "TRITIUM_MODEL_REPOSITORY": f"/a{os.pathsep}/b",
            "TRITIUM_HTTP_PORT": "9000",
            "TRITIUM_BACKEND_CONFIG": "python,a=b;c=d",
            "TRITIUM_DISABLE_AUTO_COMPLETE_CONFIG": "true",
            "TRITIUM_LOG_FILE": "",
            "PATH": "/bin",
        }
    )
    assert (settings.model_repositories, settings.http_port) == (("/a", "/b"), 9000)
    assert settings.backend_settings == {"python": {"a": "b"}, "": {"c": "d"}}
    assert settings.disable_auto_complete_config
    assert settings.log.file == ""


def test_first_batches_are_held_back_by_tritons_variables_with_a_warning():
    environ = {"TRITONSERVER_DELAY_SCHEDULER": "12", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "2"}
    settings = Settings.from_argv([REPOSITORY], environ)
    assert (settings.start_after.queued, settings.start_after.backlogged) == (12, 2)
    (warning,) = settings.warnings
    assert warning.startswith("TRITONSERVER_DELAY_SCHEDULER holds back the first batch of each model")
    assert Settings.from_argv([REPOSITORY], {"TRITONSERVER_DELAY_SCHEDULER": ""}).start_after.queued == 0


def test_a_backlog_to_wait_for_means_nothing_alone():
    settings = Settings.from_argv([REPOSITORY], {"TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "2"})
    assert settings.warnings == (
        "TRITONSERVER_BACKLOG_DELAY_SCHEDULER has no effect without TRITONSERVER_DELAY_SCHEDULER",
    )


def test_what_is_no_number_of_requests_to_wait_for_ends_the_start():
    with pytest.raises(SettingsError) as caught:
        Settings.from_argv([REPOSITORY], {"TRITONSERVER_DELAY_SCHEDULER": "soon"})
    assert caught.value.message == "TRITONSERVER_DELAY_SCHEDULER is 'soon', which is no number of requests"


def test_a_switch_can_be_left_off_in_the_environment():
    settings = Settings.from_environ(
        {"TRITIUM_MODEL_REPOSITORY": "/a", "TRITIUM_DISABLE_AUTO_COMPLETE_CONFIG": "false"}
    )
    assert not settings.disable_auto_complete_config


def test_a_flag_wins_over_its_variable():
    environ = {"TRITIUM_MODEL_REPOSITORY": "/a", "TRITIUM_HTTP_PORT": "9000", "TRITIUM_ID": "there"}
    settings = Settings.from_argv(["--http-port=9001"], environ)
    assert (settings.http_port, settings.id, settings.model_repositories) == (9001, "there", ("/a",))


def test_an_unknown_variable_is_a_warning_that_names_the_nearest_one():
    settings = Settings.from_environ({"TRITIUM_MODEL_REPOSITORY": "/a", "TRITIUM_HTTP_PROT": "1"})
    assert settings.warnings == (
        "the environment variable TRITIUM_HTTP_PROT is no setting of Tritium and has no effect: did you mean"
        " TRITIUM_HTTP_PORT?",
    )


KUBERNETES = {
    # The variables that a Service `tritium` with two named ports brings into every container of its
    # namespace.
    "TRITIUM_SERVICE_HOST": "10.0.0.7",
    "TRITIUM_SERVICE_PORT": "8000",
    "TRITIUM_SERVICE_PORT_HTTP": "8000",
    "TRITIUM_SERVICE_PORT_GRPC_WEB": "8001",
    "TRITIUM_PORT": "tcp://10.0.0.7:8000",
    "TRITIUM_PORT_8000_TCP": "tcp://10.0.0.7:8000",
    "TRITIUM_PORT_8000_TCP_PROTO": "tcp",
    "TRITIUM_PORT_8000_TCP_PORT": "8000",
    "TRITIUM_PORT_8000_TCP_ADDR": "10.0.0.7",
    "TRITIUM_PORT_53_UDP": "udp://10.0.0.7:53",
    # Services `tritium-metrics`, `tritium-http` and `tritium-grpc`, whose ports are named like flags'
    # variables.
    "TRITIUM_METRICS_SERVICE_HOST": "10.0.0.8",
    "TRITIUM_METRICS_SERVICE_PORT": "8002",
    "TRITIUM_METRICS_PORT": "tcp://10.0.0.8:8002",
    "TRITIUM_METRICS_PORT_8002_TCP_ADDR": "10.0.0.8",
    "TRITIUM_HTTP_PORT": "tcp://[fd00::7]:8000",
    "TRITIUM_GRPC_PORT": "tcp://10.0.0.9:8001",
}


@pytest.mark.parametrize("read_all", [Settings.from_environ, lambda environ: Settings.from_argv([], environ)])
def test_what_kubernetes_says_of_a_service_called_tritium_is_no_setting(read_all):
    settings = read_all({"TRITIUM_MODEL_REPOSITORY": "/a", **KUBERNETES})
    assert settings == read_all({"TRITIUM_MODEL_REPOSITORY": "/a"})


def test_a_port_that_is_a_number_is_a_setting_beside_what_kubernetes_says():
    environ = {"TRITIUM_MODEL_REPOSITORY": "/a", **KUBERNETES, "TRITIUM_HTTP_PORT": "9000"}
    assert Settings.from_environ(environ).http_port == 9000
    with pytest.raises(SettingsError, match=r"Invalid option value\. Got 80a"):
        Settings.from_environ({"TRITIUM_MODEL_REPOSITORY": "/a", "TRITIUM_HTTP_PORT": "80a"})


@pytest.mark.parametrize(
    "repositories",
    [
        ("s3://host:9000/bucket",),
        ("s3://https://host:9000/bucket/models",),
        ("relative", "/a", "s3://bucket/b", "/c", "gs://bucket/d", "as://account/container/e"),
        ("s3://http://host:9000/bucket", "s3://http://host:9001/bucket", "/local"),
    ],
)
def test_colons_separate_repositories_in_a_variable_and_leave_uris_whole(repositories):
    settings = Settings.from_environ({"TRITIUM_MODEL_REPOSITORY": ":".join(repositories)})
    assert settings.model_repositories == repositories


def test_a_variable_is_held_to_the_same_rules_as_its_flag():
    with pytest.raises(SettingsError, match="invalid value for bool option: maybe"):
        Settings.from_environ({"TRITIUM_MODEL_REPOSITORY": "/a", "TRITIUM_ALLOW_HTTP": "maybe"})


# -- what an operator sees


def shown(*flags):
    return dict(read(*flags).options())


MUTUAL = ("--grpc-use-ssl-mutual=true", *FILES, "--grpc-root-cert=ca.pem", "--grpc-unix-socket=/s")


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ((), {"model_control_mode": "none", "grpc": "0.0.0.0:8001"}),
        (
            ("--model-control-mode=poll", "--repository-poll-secs=0.5"),
            {"model_control_mode": "poll", "repository_poll_secs": "0.5"},
        ),
        (
            ("--model-control-mode=explicit", "--load-model=a", "--load-model=b"),
            {"model_control_mode": "explicit", "startup_models": "a, b"},
        ),
        (
            ("--model-repository=gs://bucket/models", "--model-cache-directory=/c"),
            {"model_cache_directory": "/c", "model_cache_size": str(50 * 1024**3)},
        ),
        (("--allow-grpc=false", "--grpc-unix-socket=/s"), {"grpc": "off"}),
        (("--grpc-address=::1",), {"grpc": "[::1]:8001"}),
        (("--grpc-use-ssl=true", *FILES), {"grpc": "0.0.0.0:8001 (TLS)"}),
        (MUTUAL, {"grpc": "0.0.0.0:8001 (TLS, clients with certificates)", "grpc_unix_socket": "/s"}),
    ],
)
def test_the_options_tell_what_counts(flags, options):
    found = shown(*flags)
    assert {name: found[name] for name in options} == options


def test_the_options_tell_nothing_of_what_does_not_count():
    assert not shown().keys() & {"repository_poll_secs", "startup_models", "model_cache_directory"}
    assert "grpc_unix_socket" not in shown("--allow-grpc=false", "--grpc-unix-socket=/s")


# -- the table


def test_names_and_variables_are_unique():
    assert len(BY_VARIABLE) == len(FLAGS)
    assert len(BY_NAME) == len(FLAGS) + sum(len(flag.aliases) for flag in FLAGS)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_flag_is_explained_in_exactly_one_way(flag):
    assert sum(map(bool, (flag.help, flag.no_effect))) == 1


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.sampled_from(sorted(BY_NAME)), st.text(max_size=12)), max_size=4))
def test_no_command_line_does_worse_than_a_settings_error(pairs):
    words = [f"--{name}={value}" if BY_NAME[name].form.metavar else f"--{name}" for name, value in pairs]
    with contextlib.suppress(SettingsError):
        assert read(*words).options()


@pytest.mark.parametrize(
    "argv",
    [
        ["/a", "s3://bucket/b?x=y"],
        ["--model-repository=/a", "s3://bucket/b?x=y"],
        ["/a", "--model-repository", "s3://bucket/b?x=y"],
    ],
)
def test_a_word_without_dashes_is_a_repository(argv):
    assert Settings.from_argv([*argv, "--http-port", "9000"]).model_repositories == (
        "/a",
        "s3://bucket/b?x=y",
    )


def test_a_flag_without_its_dashes_is_no_repository():
    with pytest.raises(SettingsError) as caught:
        Settings.from_argv(["/a", "http-port=9000"])
    assert caught.value.hint == "did you mean --http-port=9000?"


# -- the flags of the gRPC listener become settings, or an error that says what would have worked


def test_without_flags_grpc_is_served_with_tritons_defaults():
    settings = read()
    assert settings.allow_grpc
    assert settings.grpc == GrpcSettings()
    grpc = settings.grpc
    assert (grpc.address, grpc.port, grpc.reuse_port) == ("0.0.0.0", 8001, False)
    assert (grpc.tls, grpc.unix_socket, grpc.compression) == (None, "", "none")
    assert grpc.connection_bytes == 64 * 1024 * 1024
    assert grpc.keepalive == KeepaliveSettings(
        time=7200.0,
        timeout=20.0,
        permit_without_calls=False,
        max_pings_without_data=2,
        min_ping_interval_without_data=300.0,
        max_ping_strikes=2,
        max_connection_age=math.inf,
        max_connection_age_grace=math.inf,
    )
    assert settings.warnings == ()


LISTENER = [
    ("grpc-address", "127.0.0.1", "grpc.address", "127.0.0.1"),
    ("grpc-port", "0", "grpc.port", 0),
    ("reuse-grpc-port", "true", "grpc.reuse_port", True),
    ("grpc-unix-socket", "/run/tritium/grpc", "grpc.unix_socket", "/run/tritium/grpc"),
    ("grpc-connection-bytes", "8MiB", "grpc.connection_bytes", 8 * 1024 * 1024),
    ("grpc-connection-bytes", "131072", "grpc.connection_bytes", 131072),
    ("grpc-infer-response-compression-level", "low", "grpc.compression", "low"),
    ("grpc-infer-response-compression-level", "HIGH", "grpc.compression", "high"),
    ("grpc-header-forward-pattern", "^x-", "grpc.header_forward_pattern", "^x-"),
    (
        "grpc-restricted-protocol",
        "health,trace:key=a=b",
        "grpc.restricted_protocol",
        {"health": RestrictedHeader("key", "a=b"), "trace": RestrictedHeader("key", "a=b")},
    ),
    ("grpc-keepalive-time", "1500", "grpc.keepalive.time", 1.5),
    ("grpc-keepalive-time", "2147483647", "grpc.keepalive.time", math.inf),
    ("grpc-keepalive-timeout", "1", "grpc.keepalive.timeout", 0.001),
    ("grpc-keepalive-permit-without-calls", "true", "grpc.keepalive.permit_without_calls", True),
    ("grpc-http2-max-pings-without-data", "0", "grpc.keepalive.max_pings_without_data", 0),
    (
        "grpc-http2-min-recv-ping-interval-without-data",
        "250",
        "grpc.keepalive.min_ping_interval_without_data",
        0.25,
    ),
    ("grpc-http2-max-ping-strikes", "7", "grpc.keepalive.max_ping_strikes", 7),
    ("grpc-max-connection-age", "60000", "grpc.keepalive.max_connection_age", 60.0),
    ("grpc-max-connection-age", "0", "grpc.keepalive.max_connection_age", math.inf),
    ("grpc-max-connection-age-grace", "500", "grpc.keepalive.max_connection_age_grace", 0.5),
]


@pytest.mark.parametrize(
    ("flags", "age"),
    [
        ([], math.inf),
        (["--http-max-connection-age=60000"], 60.0),
        (["--http-max-connection-age=0"], math.inf),
    ],
)
def test_the_age_of_http_connections_is_given_in_milliseconds_as_grpcs_is(flags, age):
    assert read(*flags).connections.max_http_age == age


@pytest.mark.parametrize(("flag", "word", "name", "value"), LISTENER)
def test_a_flag_of_the_listener_sets_its_field(flag, word, name, value):
    assert attrgetter(name)(read(f"--{flag}={word}")) == value


@pytest.mark.parametrize(("flag", "word", "name", "value"), LISTENER)
def test_a_variable_of_the_listener_sets_the_same_field(flag, word, name, value):
    environ = {"TRITIUM_MODEL_REPOSITORY": "/models", BY_NAME[flag].variable: word}
    assert attrgetter(name)(Settings.from_environ(environ)) == value


def test_every_flag_of_the_listener_is_tried_here():
    elsewhere = {"allow-grpc", "grpc-use-ssl", "grpc-use-ssl-mutual", "grpc-restricted-protocol-file"}
    files = {"grpc-server-cert", "grpc-server-key", "grpc-root-cert"}
    tried = {flag for flag, *_ in LISTENER} | elsewhere | files
    assert {flag.name for flag in FLAGS if flag.group is Group.GRPC} == tried


# -- TLS


def test_the_variables_of_tls_are_those_of_its_flags():
    environ = {
        "TRITIUM_MODEL_REPOSITORY": "/models",
        "TRITIUM_GRPC_USE_SSL": "true",
        "TRITIUM_GRPC_USE_SSL_MUTUAL": "true",
        "TRITIUM_GRPC_SERVER_CERT": "server.pem",
        "TRITIUM_GRPC_SERVER_KEY": "server.key",
        "TRITIUM_GRPC_ROOT_CERT": "ca.pem",
        "TRITIUM_ALLOW_GRPC": "on",
    }
    settings = Settings.from_environ(environ)
    assert settings.allow_grpc
    assert settings.grpc.tls == pem_files("grpc", "server.pem", "server.key", "ca.pem")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--grpc-use-ssl=true"], "--grpc-use-ssl requires --grpc-server-cert"),
        (
            ["--grpc-use-ssl=true", "--grpc-server-cert=server.pem"],
            "--grpc-use-ssl requires --grpc-server-key",
        ),
        (["--grpc-use-ssl-mutual=true", *FILES], "--grpc-use-ssl-mutual requires --grpc-root-cert"),
    ],
)
def test_tls_without_one_of_its_files_names_the_flag_that_is_missing(flags, text):
    error = refusal(*flags)
    assert error.message == text
    assert error.hint.startswith(f"{text.rpartition(' ')[2]}=FILE names the PEM file with ")


HTTP_FILES = ("--http-server-cert=h.pem", "--http-server-key=h.key", "--http-root-cert=ca.pem")
LENT = pem_files("http", "h.pem", "h.key")


@pytest.mark.parametrize(
    ("flags", "http", "metrics"),
    [
        ((), None, None),
        (("--http-use-ssl=true", *HTTP_FILES[:2]), LENT, None),
        (("--http-use-ssl=true", "--metrics-use-ssl=true", *HTTP_FILES[:2]), LENT, LENT),
        (("--metrics-use-ssl=true", *HTTP_FILES[:2]), None, LENT),
        (
            ("--http-use-ssl-mutual=true", *HTTP_FILES),
            pem_files("http", "h.pem", "h.key", "ca.pem"),
            None,
        ),
        (
            ("--http-use-ssl-mutual=Optional", *HTTP_FILES),
            pem_files("http", "h.pem", "h.key", "ca.pem", optional=True),
            None,
        ),
        (
            ("--metrics-use-ssl=1", "--metrics-server-cert=m.pem", "--metrics-server-key=m.key"),
            None,
            pem_files("metrics", "m.pem", "m.key"),
        ),
        (
            ("--http-use-ssl=1", "--metrics-use-ssl-mutual=1", *HTTP_FILES),
            LENT,
            pem_files("http", "h.pem", "h.key", "ca.pem"),
        ),
    ],
)
def test_metrics_borrow_the_files_of_http_where_they_have_none(flags, http, metrics):
    settings = read(*flags)
    assert (settings.http_tls, settings.metrics_tls, settings.warnings) == (http, metrics, ())


def test_the_start_tells_which_listener_speaks_tls_and_to_whom():
    both = ("--http-use-ssl-mutual=optional", "--metrics-use-ssl=true", *HTTP_FILES)
    shown = dict(read(*both).options())
    assert shown["http"] == "0.0.0.0:8000 (TLS, clients with or without certificates)"
    assert shown["metrics"] == "0.0.0.0:8002 (TLS)"


@pytest.mark.parametrize("word", ["maybe", ""])
def test_certificates_of_clients_are_asked_for_by_three_words(word):
    error = refusal(f"--http-use-ssl-mutual={word}", *HTTP_FILES)
    assert error.message == "invalid argument for --http-use-ssl-mutual"
    assert error.hint.endswith("it takes true, on or 1; false, off or 0; or optional")
    assert "takes true, on or 1; false, off or 0" in refusal("--grpc-use-ssl-mutual=optional").hint


@pytest.mark.parametrize(
    "flags", [FILES, ("--grpc-root-cert=ca.pem",), ("--grpc-root-cert=ca.pem", "--grpc-use-ssl=true", *FILES)]
)
def test_a_file_that_nothing_uses_earns_a_warning(flags):
    settings = read(*flags)
    idle = [warning.partition(" ")[0] for warning in settings.warnings]
    assert idle == [flag.partition("=")[0] for flag in flags if settings.grpc.tls is None or "root" in flag]
    assert all(" has no effect: " in warning for warning in settings.warnings)


# -- mistakes


def test_a_bound_on_connections_that_holds_no_call_says_what_it_must_hold():
    assert refusal("--grpc-connection-bytes=64KiB").hint.startswith(
        "--grpc-connection-bytes takes 128KiB or more: "
    )


def test_a_unix_socket_whose_path_is_too_long_says_how_long_it_may_be():
    assert read("--grpc-unix-socket=" + "x" * 107).grpc.unix_socket == "x" * 107
    error = refusal("--grpc-unix-socket=" + "ü" * 54)
    assert error.message.startswith("--grpc-unix-socket is too long for a socket's path: 108 bytes. Got ü")
    assert error.hint == "such a path has 107 bytes at most"
