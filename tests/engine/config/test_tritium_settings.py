"""The `tritium.*` parameters of a model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from actors.values.confinement import Confinement, Sandbox
from actors.values.hardware.gpus import GpuMemory
from actors.values.specs import Fairness, Probe, QueueBounds, Recycle, Residency, Retry, Slo
from actors.values.traffic import Mirror, Rollback, TrafficPlan
from engine.config.load import load_model_config
from engine.config.settings import read_settings
from engine.config.translate import instances
from engine.processes.backends import BackendTraits, discover
from engine.processes.confining import confining_environ
from engine.processes.placement import place
from engine.settings.forms import SettingsError
from engine.settings.parameters import TritiumSettings
from engine.settings.settings import Settings
from engine.worker.limits import VARIABLE
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelInstanceGroup, ModelVersionPolicy
from tests.support.model_doubles import make_spec

PURE = BackendTraits(name="onnxruntime")
PYTORCH = BackendTraits(name="pytorch")
PYTHON = BackendTraits(name="python", pure=False, concurrent=False)
LANGUAGE = BackendTraits(name="transformers", language=True, concurrent=False)


def test_defaults_contain_and_never_time_out():
    settings, problems = read_settings({"other": "x"}, PURE)
    assert problems == ()
    assert (settings.isolation, settings.execution_timeout) == ("process", 0.0)
    assert settings.worker is None
    assert (settings.queue_bounds, settings.threads) == (QueueBounds(), 0)
    assert settings.load_timeout == settings.probe_interval == 0.0
    assert settings.drain_timeout == 30.0
    assert settings.probe is Probe.COMPARE
    assert settings.essential
    assert settings.residency is Residency.ALWAYS
    assert (settings.traffic, settings.recycle) == (None, None)


@pytest.mark.parametrize(("traits", "retry"), [(PURE, Retry.ALWAYS), (PYTHON, Retry.NEVER)])
def test_only_backends_without_side_effects_retry_by_default(traits, retry):
    assert read_settings({}, traits)[0].retry is retry


# Each: a key, its text, the attribute it sets, the value.
ACCEPTED = [
    ("tritium.isolation", "thread", "isolation", "thread"),
    ("tritium.isolation", "process", "isolation", "process"),
    ("tritium.retry", "never", "retry", Retry.NEVER),
    ("tritium.retry", "always", "retry", Retry.ALWAYS),
    ("tritium.execution_timeout", "0.5", "execution_timeout", 0.5),
    ("tritium.execution_timeout", "0", "execution_timeout", 0.0),
    ("tritium.worker", "model", "worker", "model"),
    ("tritium.worker", "instance", "worker", "instance"),
    ("tritium.queue.max_requests", "7", "queue_bounds", QueueBounds(requests=7)),
    ("tritium.queue.max_bytes", "1000", "queue_bounds", QueueBounds(nbytes=1000)),
    ("tritium.threads", "3", "threads", 3),
    ("tritium.gpu_tensors", "on", "gpu_tensors", True),
    ("tritium.gpu_tensors", "off", "gpu_tensors", False),
    ("tritium.gpu_tensor_pool_bytes", "0", "gpu_tensor_pool", 0),
    ("tritium.gpus_seen", "own", "gpus_seen", "own"),
    ("tritium.gpu_placement", "free_memory", "gpu_placement", "free_memory"),
    ("tritium.gpu_memory", "2GiB", "gpu_memory", GpuMemory(nbytes=2**31)),
    ("tritium.gpu_memory", "25%", "gpu_memory", GpuMemory(share=0.25)),
    ("tritium.gpu_compute", "40", "gpu_compute", 40),
    ("tritium.load_timeout", "90", "load_timeout", 90.0),
    ("tritium.drain_timeout", "0", "drain_timeout", 0.0),
    ("tritium.drain_timeout", "2.5", "drain_timeout", 2.5),
    ("tritium.probe", "compare", "probe", Probe.COMPARE),
    ("tritium.probe", "required", "probe", Probe.REQUIRED),
    ("tritium.probe", "off", "probe", Probe.OFF),
    ("tritium.probe_interval", "1e1", "probe_interval", 10.0),
    ("tritium.essential", "true", "essential", True),
    ("tritium.essential", "false", "essential", False),
    ("tritium.residency", "always", "residency", Residency.ALWAYS),
    ("tritium.residency", "on_demand", "residency", Residency.ON_DEMAND),
    ("tritium.residency", "pinned", "residency", Residency.PINNED),
    (
        "tritium.traffic",
        '{"weights": {"1": 9, "2": 1}, "sticky": {"parameter": "user"}, "mirror": {"version": 3},'
        ' "rollback": {"max_error_rate": 0.1}}',
        "traffic",
        TrafficPlan(
            weights={1: 9.0, 2: 1.0},
            sticky_parameter="user",
            mirror=Mirror(version=3),
            rollback=Rollback(max_error_rate=0.1),
        ),
    ),
    (
        "tritium.fairness",
        '{"tenant": "address", "weights": {"a": 2}}',
        "fairness",
        Fairness(tenant_address=True, weights={"a": 2.0}),
    ),
    ("tritium.slo", '{"p99": 0.05}', "slo", Slo(p99=0.05)),
    (
        "tritium.recycle",
        '{"requests": 5, "seconds": 60}',
        "recycle",
        Recycle(requests=5, seconds=60.0),
    ),
]


@pytest.mark.parametrize(("key", "text", "attribute", "value"), ACCEPTED)
def test_a_setting_is_read(key, text, attribute, value):
    settings, problems = read_settings({key: text}, PURE)
    assert problems == ()
    assert getattr(settings, attribute) == value


# Each: a key, its text, the hint.
REFUSED = [
    ("tritium.isolation", "fork", "use 'process' or 'thread'"),
    ("tritium.retry", "", "use 'always' or 'never'"),
    ("tritium.execution_timeout", "-1", "use seconds, such as '0.5'; '0' is off"),
    ("tritium.execution_timeout", "nan", "use seconds, such as '0.5'; '0' is off"),
    ("tritium.execution_timeout", "inf", "use seconds, such as '0.5'; '0' is off"),
    ("tritium.execution_timeout", "5s", "use seconds, such as '0.5'; '0' is off"),
    ("tritium.worker", "group", "use 'instance' or 'model'"),
    ("tritium.queue.max_requests", "0", "use a whole number, at least 1"),
    ("tritium.queue.max_bytes", "1e6", "use a whole number, at least 1"),
    ("tritium.threads", "-1", "use a whole number, at least 0"),
    ("tritium.threads", "9" * 30, "use a whole number, at least 0"),
    ("tritium.threads", "²", "use a whole number, at least 0"),
    ("tritium.amp", "int8", "use 'bf16' or 'fp16' or 'off'"),
    ("tritium.gpus_seen", "none", "use 'all' or 'own'"),
    ("tritium.gpu_placement", "any", "use 'all' or 'free_memory'"),
    ("tritium.gpu_memory", "0", "use a size, such as '4GiB', or a share of the GPU's memory, such as '25%'"),
    (
        "tritium.gpu_memory",
        "101%",
        "use a size, such as '4GiB', or a share of the GPU's memory, such as '25%'",
    ),
    ("tritium.gpu_compute", "101", "use a whole number from 1 to 100"),
    ("tritium.load_timeout", "1m", "use seconds, such as '0.5'; '0' is off"),
    ("tritium.drain_timeout", "-1", "use seconds, such as '30'; '0' waits for nothing"),
    ("tritium.probe", "on", "use 'compare' or 'required' or 'off'"),
    ("tritium.probe_interval", "", "use seconds, such as '0.5'; '0' is off"),
    ("tritium.essential", "yes", "use 'true' or 'false'"),
    ("tritium.residency", "lazy", "use 'always' or 'on_demand' or 'pinned'"),
    (
        "tritium.traffic",
        "90/10",
        "use a JSON object: Extra data: line 1 column 3 (char 2)",
    ),
    ("tritium.traffic", '{"weights": {"1": 9, "1": 1}}', "give '1' once"),
]


@pytest.mark.parametrize(("key", "text", "hint"), REFUSED)
def test_a_value_that_makes_no_sense_is_refused(key, text, hint):
    _, (problem,) = read_settings({key: text}, PYTORCH)
    assert problem.message == f"'{key}' is '{text}', which is no valid value"
    assert (problem.key, problem.hint) == (f'parameters["{key}"]', hint)


@pytest.mark.parametrize(
    ("given", "traits", "config", "key", "message", "hint"),
    [
        pytest.param(
            {"execution_timout": "1"},
            PURE,
            {},
            "execution_timout",
            "unknown setting 'tritium.execution_timout'",
            "did you mean 'tritium.execution_timeout'?",
            id="an unknown one has the nearest",
        ),
        pytest.param(
            {"amp": "bf16"},
            PURE,
            {},
            "amp",
            "'tritium.amp' is a setting of pytorch models, not of 'onnxruntime'",
            "",
            id="mixed precision of another backend",
        ),
        pytest.param(
            {"worker": "model"},
            PYTHON,
            {},
            "worker",
            "'tritium.worker' is 'model', but backend 'python' runs one execution at a time in a worker",
            "",
            id="a backend of one execution can't share a worker",
        ),
        pytest.param(
            {"isolation": "thread", "residency": "on_demand"},
            PURE,
            {},
            "residency",
            "",
            "use isolation 'process', or residency 'pinned'",
            id="memory of the server process can't be given back",
        ),
        pytest.param(
            {"sleep": "1", "residency": "on_demand"},
            PURE,
            {},
            "sleep",
            "'tritium.sleep' is set for a model that generates no tokens",
            "leave it out",
            id="sleep of a model without an engine",
        ),
        pytest.param(
            {"sleep": "2", "residency": "pinned"},
            LANGUAGE,
            {},
            "sleep",
            "'tritium.sleep' is set for a model whose memory is never wanted by others",
            "set 'tritium.residency' to 'on_demand', or leave it out",
            id="sleep of a model that stays",
        ),
        pytest.param(
            {"fairness": '{"tenant": "header"}'},
            PURE,
            {},
            "fairness",
            "'tritium.fairness': 'tenant' is \"header\"",
            "",
            id="fairness",
        ),
        pytest.param(
            {"slo": "{}"}, PURE, {}, "slo", "'tritium.slo': 'the value' asks for nothing", "", id="a promise"
        ),
        pytest.param(
            {"slo": '{"ttft": 1}'},
            PURE,
            {},
            "slo",
            "'tritium.slo': 'ttft' and 'itl' are set for a model that generates no tokens",
            "",
            id="a promise of tokens",
        ),
        pytest.param(
            {"fairness": '{"age": 2}'},
            PURE,
            {},
            "fairness",
            "'tritium.fairness': 'age' raises requests by a level, and there is one only",
            "",
            id="ageing needs levels",
        ),
        pytest.param(
            {"recycle": "5"}, PURE, {}, "recycle", "'the value' is no JSON object", "", id="a number"
        ),
        pytest.param(
            {"recycle": "{}"}, PURE, {}, "recycle", "'the value' has no ceiling", "", id="no ceiling"
        ),
        pytest.param(
            {"recycle": '{"request": 5}'},
            PURE,
            {},
            "recycle",
            "'request' is unknown",
            "",
            id="unknown ceiling",
        ),
        pytest.param(
            {"recycle": '{"seconds": 0}'},
            PURE,
            {},
            "recycle",
            "'seconds' is 0",
            "",
            id="a ceiling of nothing",
        ),
        pytest.param(
            {"recycle": '{"requests": 5}'},
            PURE,
            {"sequence_batching": {}},
            "recycle",
            "a model of sequences",
            "",
            id="sequences live in their worker",
        ),
        pytest.param(
            {"recycle": '{"requests": 5}'},
            PURE,
            {"ensemble_scheduling": {}},
            "recycle",
            "an ensemble",
            "",
            id="an ensemble has no worker",
        ),
        pytest.param(
            {"recycle": '{"requests": 5}', "isolation": "thread"},
            PURE,
            {},
            "recycle",
            "on a thread of the server",
            "",
            id="threads of the server are not recycled",
        ),
        *(
            pytest.param({"cores": text}, PURE, {}, "cores", "", "'0-1;2-3'", id=f"no cores: {text!r}")
            for text in ("", "a", "3-1", "0;", "-1", "0-99999")
        ),
        *(
            pytest.param(
                {**limit, "isolation": "thread"},
                PYTHON,
                {},
                *limit,
                "",
                "use isolation 'process'",
                id=f"the server's process can't be limited: {limit}",
            )
            for limit in ({"memory_limit_mb": "5"}, {"max_processes": "5"}, {"sandbox": "basic"})
        ),
        *(
            pytest.param(
                {"sandbox": level, "sandbox_write": "/tmp/teng"},
                PYTHON,
                {},
                "sandbox_write",
                "",
                "set 'tritium.sandbox' to 'strict', or leave it out",
                id=f"files are for a strict sandbox: {level}",
            )
            for level in ("off", "basic")
        ),
    ],
)
def test_what_a_model_cannot_have_is_refused(given, traits, config, key, message, hint):
    settings = {f"tritium.{name}": text for name, text in given.items()}
    _, (problem,) = read_settings(settings, traits, None, ModelConfig(**config))
    assert problem.key == f'parameters["tritium.{key}"]'
    assert message in problem.message
    assert hint in problem.hint


def test_every_mistake_is_told():
    _, problems = read_settings({"tritium.retry": "x", "tritium.threads": "y", "tritium.zzz": ""}, PURE)
    assert len(problems) == 3


def test_every_mistake_in_a_traffic_plan_is_told():
    _, problems = read_settings({"tritium.traffic": '{"weights": {"1": -1}, "mirrors": {}}'}, PURE)
    assert [(problem.message, problem.hint) for problem in problems] == [
        ("'tritium.traffic': 'mirrors' is unknown", "did you mean 'mirror'?"),
        ("'tritium.traffic': 'weights.1' is -1", "use a number of at least 0"),
    ]
    assert {problem.key for problem in problems} == {'parameters["tritium.traffic"]'}


SPLIT = '{"weights": {"1": 9, "2": 1, "4": 0}, "mirror": {"version": 3}}'


@pytest.mark.parametrize(
    "policy",
    [
        ModelVersionPolicy(all=ModelVersionPolicy.All()),
        ModelVersionPolicy(specific=ModelVersionPolicy.Specific(versions=[3, 2, 1])),
        ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=3)),
        ModelVersionPolicy(),
    ],
)
def test_traffic_goes_to_versions_that_are_served(policy):
    settings, problems = read_settings({"tritium.traffic": SPLIT}, PURE, policy)
    assert problems == ()
    assert settings.traffic is not None


@pytest.mark.parametrize(
    ("policy", "messages", "hint"),
    [
        (
            ModelVersionPolicy(specific=ModelVersionPolicy.Specific(versions=[2])),
            [
                "'tritium.traffic' names version 1, which 'version_policy' leaves out",
                "'tritium.traffic' names version 3, which 'version_policy' leaves out",
            ],
            "add them to 'version_policy': specific { versions: [ 1, 2, 3 ] }",
        ),
        (
            ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=1)),
            ["'tritium.traffic' needs 3 versions, but 'version_policy' serves the latest 1 only"],
            "write version_policy { specific { versions: [ 1, 2, 3 ] } }",
        ),
    ],
)
def test_traffic_for_versions_that_are_not_served_is_refused(policy, messages, hint):
    _, problems = read_settings({"tritium.traffic": SPLIT}, PURE, policy)
    assert [problem.message for problem in problems] == messages
    assert problems[0].hint == hint


QUEUES = {"tritium.fairness": '{"tenant": "address"}', "tritium.slo": '{"p99": 0.05}'}


@pytest.mark.parametrize(
    ("config", "keys", "what"),
    [
        ({"ensemble_scheduling": {}}, [*QUEUES], "an ensemble, whose steps wait in other models' queues"),
        ({"sequence_batching": {}}, [*QUEUES], "a model of sequences, whose order decides who goes next"),
        (
            {"model_transaction_policy": {"decoupled": True}},
            ["tritium.slo"],
            "a decoupled model, whose answers have no one time",
        ),
        ({"dynamic_batching": {}}, [], ""),
    ],
)
def test_queues_that_another_scheduler_rules_are_not_shared_out(config, keys, what):
    _, problems = read_settings(QUEUES, PURE, None, ModelConfig(**config))
    assert [problem.message for problem in problems] == [f"'{key}' is set for {what}" for key in keys]


# -- `tritium.recycle` and `tritium.cores`: what they may say, and which instances get which cores


def grouped(*counts):
    groups = [
        ModelInstanceGroup(name=f"g{number}", kind=ModelInstanceGroup.KIND_CPU, count=count)
        for number, count in enumerate(counts)
    ]
    return ModelConfig(name="model", instance_group=groups)


@pytest.mark.parametrize(
    ("given", "traits", "config"),
    [
        ({"isolation": "thread", "residency": "pinned"}, PURE, {}),
        (
            {"fairness": '{"age": 2}'},
            PURE,
            {"dynamic_batching": {"priority_levels": 2, "default_priority_level": 1}},
        ),
        ({"sandbox": "off", "isolation": "thread"}, PYTHON, {}),
        *(({"amp": value}, PYTORCH, {}) for value in ("bf16", "fp16", "off")),  # the backend reads it
    ],
)
def test_what_a_model_can_have_is_accepted(given, traits, config):
    settings = {f"tritium.{name}": text for name, text in given.items()}
    assert read_settings(settings, traits, None, ModelConfig(**config))[1] == ()


@pytest.mark.parametrize(("limit", "refused"), [("100", True), ("101", False)])
def test_a_ceiling_of_memory_is_below_the_limit_that_kills(limit, refused):
    given = {"tritium.recycle": '{"memory_mb": 100}', "tritium.memory_limit_mb": limit}
    _, problems = read_settings(given, PURE, None, ModelConfig())
    assert bool(problems) is refused


@pytest.mark.parametrize(
    ("text", "counts", "cores"),
    [
        pytest.param("0-2,5", [2], [(0, 1, 2, 5)] * 2, id="all instances are bound to its cores"),
        pytest.param("0-1;2-3", [2, 1], [(0, 1), (2, 3), (0, 1)], id="several sets go round all groups"),
        pytest.param(None, [1], [()], id="without the setting no instance is bound"),
    ],
)
def test_cores_go_to_the_instances(text, counts, cores):
    settings, problems = read_settings({} if text is None else {"tritium.cores": text}, PURE)
    assert problems == ()
    assert [each.cores for each in instances(grouped(*counts), PURE, settings, frozenset())] == cores


def test_a_models_own_cores_go_before_those_of_its_host_policy():
    settings, _ = read_settings({"tritium.cores": "1"}, PURE)
    own = make_spec(instances=instances(grouped(1), PURE, settings, frozenset()))
    bare = make_spec(
        instances=instances(grouped(1), PURE, TritiumSettings(), frozenset()), version_directory=Path("/2")
    )
    assert [place(spec, {"cpu": (7,)}).instances[0].cores for spec in (own, bare)] == [(1,), (7,)]


# -- settings that only Python models have: how many batches at once, and backends written in Python


MODEL = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [2]})
        return config
"""


def concurrency(value):
    return f'parameters {{ key: "tritium.concurrency" value {{ string_value: "{value}" }} }}'


@pytest.mark.parametrize(
    ("config", "lanes"),
    [
        ("", [1]),
        (concurrency(8), [8]),
        (f"instance_group [ {{ count: 3 kind: KIND_CPU }} ] {concurrency(8)}", [8, 8, 8]),
    ],
)
def test_every_instance_may_have_so_many_batches_under_way(load, config, lanes):
    found = load(f'backend: "python" {config}', files={"1/model.py": MODEL})
    assert [instance.lanes for instance in found.specs[0].instances] == lanes


@pytest.mark.parametrize(
    ("backend", "value", "reason", "hint"),
    [
        *(
            ("python", value, f"is '{value}', which is no valid value", "use a whole number from 1 to 64")
            for value in ("0", "65", "-1", "many", "1.5", "")
        ),
        ("mine", "2", "is a setting of Python models, not of 'mine'", ""),
    ],
)
def test_a_wrong_number_is_told_what_is_right(load, backend, value, reason, hint):
    found = load(
        f'backend: "{backend}" {concurrency(value)}', files={"1/model.py": MODEL, "1/model.mine": ""}
    )
    [problem] = [problem for problem in found.problems if problem.is_error]
    assert problem.message == f"'tritium.concurrency' {reason}"
    assert hint in problem.hint


@pytest.fixture
def backend_directory(tmp_path):
    """A directory with a backend called `mine_in_python`, and something that is no backend."""
    for name in ("mine_in_python", "onnxruntime"):
        (tmp_path / "backends" / name).mkdir(parents=True)
        (tmp_path / "backends" / name / "model.py").write_text(MODEL)
    (tmp_path / "backends" / "compiled").mkdir()
    (tmp_path / "backends" / "compiled" / "libtriton_compiled.so").write_bytes(b"")
    return tmp_path / "backends"


def test_a_folder_with_a_model_file_is_a_backend(backend_directory):
    found = discover(backend_directory)
    traits = found["mine_in_python"]
    assert traits.implementation == str(backend_directory / "mine_in_python" / "model.py")
    assert (traits.target, traits.runs_python, traits.completes) == (found["python"].target, True, True)
    assert found["compiled"].library
    # Those that are installed go first.
    folder = str(backend_directory / "onnxruntime")
    assert found["onnxruntime"] == replace(discover()["onnxruntime"], folder=folder)


@pytest.mark.system
def test_its_models_need_no_file_and_are_completed_by_it(write_model, backend_directory):
    directory = write_model("m", 'backend: "mine_in_python"', {"1/weights": "1"})
    found = load_model_config(directory, backends=discover(backend_directory))
    assert found.ok
    [spec] = found.specs
    assert spec.artifact == str(backend_directory / "mine_in_python" / "model.py")
    assert [tensor.name for tensor in spec.inputs] == ["A"]


def test_a_backend_directory_that_can_not_be_listed_ends_the_start(tmp_path):
    (tmp_path / "file").touch()
    words = ["--model-repository=/models", f"--backend-directory={tmp_path / 'file'}"]
    with pytest.raises(SettingsError, match="can't be listed: Not a directory"):
        Settings.from_argv(words)
    assert Settings.from_argv(words[:1]).backend_directory is None
    assert Settings.from_argv([words[0], f"--backend-directory={tmp_path}"]).backend_directory == tmp_path


def test_a_backend_directory_that_does_not_exist_is_a_warning(tmp_path):
    # Command lines written for Triton name its own, which may not be there; models that need it say so.
    absent = tmp_path / "absent"
    settings = Settings.from_argv(["--model-repository=/models", f"--backend-directory={absent}"])
    assert settings.backend_directory is None
    assert settings.warnings == (
        f"--backend-directory '{absent}' does not exist, so no backend is taken from there",
    )


TRAITS = BackendTraits(name="python", target="module:Class")
MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("given", "confinement"),
    [
        ({}, Confinement()),
        ({"memory_limit_mb": "512"}, Confinement(memory=512 * MEBIBYTE)),
        ({"max_processes": "1"}, Confinement(processes=1)),
        ({"sandbox": "off"}, Confinement()),
        ({"sandbox": "basic"}, Confinement(sandbox=Sandbox.BASIC)),
        (
            {"sandbox": "strict", "sandbox_read": "/data:/srv/a", "sandbox_write": "/tmp"},
            Confinement(sandbox=Sandbox.STRICT, read=("/data", "/srv/a"), write=("/tmp",)),
        ),
    ],
)
def test_limits_are_read(given, confinement):
    settings, problems = read_settings({f"tritium.{key}": text for key, text in given.items()}, TRAITS)
    assert problems == ()
    assert settings.confinement == confinement


@pytest.mark.parametrize(
    ("key", "text", "hint"),
    [
        ("memory_limit_mb", "0", "use a whole number, at least 1"),
        ("memory_limit_mb", "1.5", "use a whole number, at least 1"),
        ("max_processes", "-1", "use a whole number, at least 1"),
        ("sandbox", "loose", "use 'off' or 'guard' or 'basic' or 'strict'"),
        ("sandbox_read", "data", "use absolute paths, with ':' between them"),
        ("sandbox_write", "/a:", "use absolute paths, with ':' between them"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(key, text, hint):
    _, problems = read_settings(
        {f"tritium.{key}": text, "tritium.sandbox": "strict"} | {f"tritium.{key}": text}, TRAITS
    )
    assert [problem.hint for problem in problems] == [hint]


def told(confinement, **options):
    environ = confining_environ(confinement, [Path("/models"), Path("/models/1")], **options)
    return json.loads(environ[VARIABLE]) if environ else None


def test_a_worker_is_told_what_to_impose_on_itself():
    assert told(Confinement()) is None
    assert told(Confinement(processes=1)) == {
        "sandbox": "off",
        "watched": True,
        "childless": True,
        "ceiling": 0,
    }
    assert told(Confinement(memory=100))["ceiling"] == 200 + 1024 * MEBIBYTE
    strict = told(Confinement(sandbox=Sandbox.STRICT, read=("/data",), write=("/tmp",)))
    assert strict["read"] == ["/models", "/models/1", "/data"]
    assert strict["write"] == ["/tmp"]
    assert not strict["watched"]


def test_a_device_driver_may_ask_for_more_memory_than_anybody_uses():
    assert told(Confinement(memory=100), kind="GPU")["ceiling"] == 0


COMPLETING = """
import socket
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        try:
            socket.socket().close()
        except PermissionError:
            config.set_max_batch_size(3)
        config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "B", "data_type": "TYPE_FP32", "dims": [1]})
        return config
"""


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(("level", "batch"), [("off", 0), ("basic", 3), ("strict", 3)])
def test_a_model_that_completes_its_configuration_does_so_in_its_sandbox(write_model, level, batch):
    setting = f'parameters {{ key: "tritium.sandbox" value {{ string_value: "{level}" }} }}'
    directory = write_model("m", f'backend: "python"\n{setting}', {"1/model.py": COMPLETING})
    loaded = load_model_config(directory, backends=discover())
    assert loaded.ok, loaded.problems
    assert loaded.specs[0].inputs
    assert loaded.specs[0].max_batch_size == batch


def test_a_model_whose_sandbox_is_misspelt_is_not_run(load, tmp_path):
    seen = tmp_path / "seen"
    setting = 'parameters { key: "tritium.sandbox" value { string_value: "strickt" } }'
    code = f"open({str(seen)!r}, 'w').close()\n{COMPLETING}"
    loaded = load(f'backend: "python"\n{setting}', files={"1/model.py": code})
    assert not loaded.ok
    assert any("strickt" in problem.message for problem in loaded.problems)
    assert not seen.exists()


@pytest.mark.parametrize(
    "key", ["tritium.gpus_seen", "tritium.gpu_placement", "tritium.gpu_memory", "tritium.gpu_compute"]
)
def test_a_share_of_a_gpu_needs_a_worker_on_one(key):
    text = {"tritium.gpus_seen": "own", "tritium.gpu_placement": "free_memory"}.get(key, "50")
    config = ModelConfig(name="m")
    config.instance_group.add(kind=ModelInstanceGroup.KIND_GPU)
    assert read_settings({key: text}, PYTORCH, config=config)[1] == ()
    _, (problem,) = read_settings({key: text, "tritium.isolation": "thread"}, PYTORCH, config=config)
    assert problem.message == f"'{key}' is set for a model on a thread of the server"
    config.instance_group[0].kind = ModelInstanceGroup.KIND_MODEL
    _, (problem,) = read_settings({key: text}, PYTORCH, config=config)
    assert problem.message == f"'{key}' is set for a model that chooses its devices itself (KIND_MODEL)"
    config.instance_group[0].kind = ModelInstanceGroup.KIND_CPU  # on a machine without GPUs
    assert read_settings({key: text}, PYTORCH, config=config)[1] == ()
    config.ensemble_scheduling.step.add(model_name="a")
    _, (problem,) = read_settings({key: text}, PYTORCH, config=config)
    assert problem.message == f"'{key}' is set for an ensemble, which has no workers"


def test_tensors_stay_on_a_gpu_between_the_steps_of_ensembles_only():
    config = ModelConfig(name="m")
    _, (problem,) = read_settings({"tritium.gpu_tensors": "on"}, PYTHON, config=config)
    assert "'tritium.gpu_tensors' is set for a model that is no ensemble" in problem.message
    assert problem.hint == "set it in the ensemble's configuration"
    config.ensemble_scheduling.step.add(model_name="a")
    assert read_settings({"tritium.gpu_tensors": "on"}, PYTHON, config=config)[1] == ()
    _, (problem,) = read_settings({"tritium.gpu_tensor_pool_bytes": "1"}, PYTHON, config=config)
    assert "'tritium.gpu_tensor_pool_bytes' is set for an ensemble, which has no workers" in problem.message
