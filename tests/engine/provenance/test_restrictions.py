"""What --no-code-models and --require-signed forbid, before anything of a model is run."""

import pytest

from engine.config.load import load_model_config
from engine.processes.backends import BackendTraits, discover, traits_of
from engine.provenance.restrictions import NONE, Restrictions, carried
from tests.engine.cli.conftest import onnx_model
from tests.support.signing import write
from tests.support.worker_backends import Doubling

NO_CODE = Restrictions(no_code=True)
SIGNED = Restrictions(signed=True)
BACKENDS = discover()
ONNX = {"1/model.onnx": onnx_model(4)}
RUNS = """
raise SystemExit("the model was run")


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        raise SystemExit("the model was run")
"""


def library(path):
    return f'parameters {{ key: "CPU_EXTENSION_PATH" value {{ string_value: "{path}" }} }}'


def environment(path):
    return f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}'


def errors(tmp_path, files, restrictions=NO_CODE, **options):
    model = write(tmp_path / "m", files)
    loaded = load_model_config(model, backends=BACKENDS, restrictions=restrictions, **options)
    assert bool(loaded.specs) != bool(loaded.errors)
    return [problem.message for problem in loaded.errors]


def test_onnx_is_served_with_a_configuration_and_without(tmp_path):
    assert errors(tmp_path, ONNX) == []
    assert errors(tmp_path, {**ONNX, "config.pbtxt": 'backend: "onnxruntime"', "labels.txt": "a"}) == []


def test_an_ensemble_is_served(tmp_path):
    config = """
        platform: "ensemble"
        input [ { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]
        ensemble_scheduling { step [ { model_name: "n" model_version: -1
          input_map { key: "x" value: "X" } output_map { key: "y" value: "Y" } } ] }
    """
    assert errors(tmp_path, {"config.pbtxt": config, "1/.keep": ""}) == []


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"1/model.py": RUNS}, "backend 'python' may run code that a model brings"),
        ({"1/model.pt": b"x"}, "backend 'pytorch' may run code that a model brings"),
        ({"1/model.pt2": b"x"}, "backend 'pytorch' may run code that a model brings"),
        ({"config.pbtxt": 'platform: "pytorch_libtorch"', "1/weights": b"x"}, "backend 'pytorch' may run"),
        ({"config.pbtxt": 'platform: "torch_aoti"', "1/x": b"x"}, "backend 'pytorch' may run"),
        ({**ONNX, "1/ops.so": "x"}, "'1/ops.so' is a native library"),
        ({**ONNX, "1/libops.so.1.2": "x"}, "'1/libops.so.1.2' is a native library"),
        ({**ONNX, "scaler.pkl": "x"}, "'scaler.pkl' is a pickle"),
        ({**ONNX, "1/forest.JOBLIB": "x"}, "'1/forest.JOBLIB' is a pickle"),
        ({**ONNX, "1/deep/er/prepare.py": "x"}, "'1/deep/er/prepare.py' is Python code"),
        ({**ONNX, "1/__pycache__/a.cpython-311.pyc": "x"}, "is Python code"),
        (
            {**ONNX, "config.pbtxt": 'model_operations { op_library_filename: "1/ops" }'},
            "custom operators are a native library, '1/ops'",
        ),
        (
            {
                **ONNX,
                "config.pbtxt": environment("/env.tar.gz"),
            },
            "'EXECUTION_ENV_PATH' brings an environment of packages",
        ),
        (
            {
                **ONNX,
                "config.pbtxt": 'parameters { key: "plugin" value { string_value: "/opt/libplugin.so" } }',
            },
            "'/opt/libplugin.so' is a native library",
        ),
        (
            {**ONNX, "config.pbtxt": library("/opt/operators")},
            "'/opt/operators' is a native library",
        ),
        (
            {**ONNX, "config.pbtxt": 'backend: "onnxruntime" default_model_filename: "model.pt"'},
            "'model.pt' is a TorchScript",
        ),
        (
            {**ONNX, "config.pbtxt": 'cc_model_filenames { key: "9.0" value: "model.pkl" }'},
            "'model.pkl' is a pickle",
        ),
        (
            {
                **ONNX,
                "config.pbtxt": "optimization { execution_accelerators { cpu_execution_accelerator ["
                " { name: 'openvino' parameters { key: 'extension' value: 'libx.so' } } ] } }",
            },
            "'libx.so' is a native library",
        ),
    ],
)
def test_what_carries_code_is_refused_and_not_run(tmp_path, files, told):
    said = errors(tmp_path, files)
    assert any(told in each for each in said), said
    assert all("--no-code-models forbids models that carry code" in each for each in said)


def test_a_file_is_refused_wherever_a_link_leads(tmp_path):
    write(tmp_path / "beside", {"model.py": "x"})
    model = write(tmp_path / "m", ONNX)
    (model / "1/linked").symlink_to("../../beside")
    (model / "1/loop").symlink_to("..")
    assert any("'1/linked/model.py'" in each for each in errors(tmp_path, {}))


def test_only_the_first_files_are_named(tmp_path):
    said = errors(tmp_path, {**ONNX, **{f"1/{number}.py": "" for number in range(30)}})
    assert len(said) == 5


def test_a_configuration_of_a_request_is_held_to_the_same(tmp_path):
    override = '{"backend": "python", "input": [], "output": []}'
    said = errors(tmp_path, ONNX, override=override)
    assert "backend 'python' may run code" in said[0]


def test_a_backend_says_for_itself_that_it_runs_no_code():
    class Codeless(Doubling):
        runs_model_code = False

    assert traits_of(Doubling, name="d").runs_model_code
    assert not traits_of(Codeless, name="d").runs_model_code
    assert BackendTraits(name="of a folder, or one that can't be imported").runs_model_code
    assert [name for name, traits in BACKENDS.items() if not traits.runs_model_code] == [
        "fil",
        "onnxruntime",
        "openvino",
        "transformers",
    ]


def plugins(paths):
    given = f'parameters {{ key: "trt_extra_plugin_lib_paths" value: "{paths}" }}'
    accelerator = f'gpu_execution_accelerator {{ name: "tensorrt" {given} }}'
    return f"optimization {{ execution_accelerators {{ {accelerator} }} }}"


def test_plugins_of_an_accelerator_are_code(tmp_path):
    said = errors(tmp_path, {**ONNX, "config.pbtxt": plugins("/opt/plugins")})
    assert said == ["'/opt/plugins' is a native library; --no-code-models forbids models that carry code"]
    said = errors(tmp_path, {**ONNX, "config.pbtxt": plugins(f"{tmp_path}/m/a.so;/opt/b.so")}, SIGNED)
    assert "'trt_extra_plugin_lib_paths' is '/opt/b.so', outside the model's folder" in said[-1]


@pytest.mark.parametrize(("path", "forbidden"), [("/opt/libops.so", True), ("{model}/libops.so", False)])
def test_a_library_outside_a_signed_folder_is_refused(tmp_path, path, forbidden):
    named = path.format(model=tmp_path / "m")
    said = errors(tmp_path, {**ONNX, "config.pbtxt": library(named)}, SIGNED)
    assert any("'CPU_EXTENSION_PATH' is" in each for each in said) is forbidden


def test_a_backend_written_in_python_may_run_code(tmp_path):
    write(tmp_path / "backends", {"mine/model.py": "x"})
    assert discover(tmp_path / "backends")["mine"].runs_model_code


def test_nothing_is_forbidden_unless_it_is_asked_for(tmp_path):
    assert errors(tmp_path, {**ONNX, "1/ops.so": "x", "prepare.py": "x"}, NONE) == []


@pytest.mark.parametrize(
    "name", ["model.onnx", "labels.txt", "so", ".so_", "weights.bin", "a.py.txt", "", "a.json"]
)
def test_other_files_carry_no_code(name):
    assert carried(name) == ""


class TestSigned:
    """What no signature covers."""

    PYTHON = 'name: "m" backend: "python" output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'

    def said(self, tmp_path, extra, **files):
        return errors(
            tmp_path,
            {"config.pbtxt": self.PYTHON + extra, "1/model.py": "x", **files},
            SIGNED,
            auto_complete=False,
        )

    def test_an_environment_in_the_folder_is_covered(self, tmp_path):
        extra = environment("$$TRITON_MODEL_DIRECTORY/e.tar.gz")
        assert self.said(tmp_path, extra, **{"e.tar.gz": "x"}) == []

    @pytest.mark.parametrize("path", ["/e.tar.gz", "$$TRITON_MODEL_DIRECTORY/../e", "e.tar.gz"])
    def test_one_elsewhere_is_not(self, tmp_path, path):
        [message] = self.said(tmp_path, environment(path))
        assert f"'{path}', outside the model's folder" in message

    @pytest.mark.parametrize("place", ["requirements.txt", "1/requirements.txt"])
    def test_packages_that_are_installed_are_not(self, tmp_path, place):
        [message] = self.said(tmp_path, "", **{place: "six"})
        assert "'requirements.txt' installs packages" in message

    def test_packages_that_are_not_installed_are_no_matter(self, tmp_path):
        extra = 'parameters { key: "tritium.requirements" value { string_value: "ignore" } }'
        assert self.said(tmp_path, extra, **{"requirements.txt": "six"}) == []
