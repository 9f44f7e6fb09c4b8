"""Repositories of TensorRT-LLM and FasterTransformer: what is said of them (contract, llm.md section 4)."""

import json

import pytest

from engine.cli.check import check
from engine.processes.backends import BackendTraits

TENSORS = """
input [
  { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true },
  { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } },
  { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] }
]
output [
  { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] },
  { name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }
]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters: {
	key: "gpt_model_path"
	value: { string_value: "${engine_dir}" }
}
"""
ENGINE = "max_batch_size: 4\nmodel_transaction_policy { decoupled: true }" + TENSORS

TEXT = """
  { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "kv_cache_alloc_total_blocks" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "kv_cache_alloc_total_blocks" data_type: TYPE_INT32 dims: [ %s ] }
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ {outputs} ]
ensemble_scheduling {
  step [
    {
      model_name: "tensorrt_llm"
      model_version: -1
      input_map { key: "text_input" value: "text_input" }
      output_map { key: "text_output" value: "text_output" }
      output_map { key: "blocks" value: "kv_cache_alloc_total_blocks" }
    }
  ]
}
"""
SCRIPT = "import json\nfrom tensorrt_llm.bindings import executor\n\n\nclass TritonPythonModel:\n    pass\n"


def ensemble(dims="1"):
    return ENSEMBLE.replace("{outputs}", TEXT % dims)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Have there be a package of TensorRT-LLM's name."""
    (tmp_path / "site" / "tensorrt_llm").mkdir(parents=True)
    (tmp_path / "site" / "tensorrt_llm" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.fixture
def read(load):
    """Load a model's configuration; none of its code is run."""
    return lambda config, **options: load(config, run_model_code=False, **options)


def test_an_ensemble_may_declare_an_output_twice_in_the_same_words(load):
    loaded = load(ensemble(), files={"1/.keep": ""})
    assert loaded.errors == ()
    (warning,) = loaded.warnings
    assert warning.message == ("model output 'kv_cache_alloc_total_blocks' is specified more than once for m")
    assert (warning.key, warning.hint) == ("output[2].name", "remove one of them: both say the same")
    (spec,) = loaded.specs
    assert [output.name for output in spec.outputs] == ["text_output", "kv_cache_alloc_total_blocks"]


def test_an_output_of_an_ensemble_that_is_two_different_things_is_refused(load, errors_of):
    loaded = load(ensemble(dims="2"), files={"1/.keep": ""})
    assert [key for _, key, *_ in errors_of(loaded)] == ["output[2].name"]


def test_a_model_that_is_no_ensemble_may_not_declare_an_output_twice(load):
    output = 'output { name: "a" data_type: TYPE_FP32 dims: 1 }'
    loaded = load(f'backend: "mine" {output} {output}', files={"1/model.mine": ""})
    assert [error.key for error in loaded.errors] == ["output[1].name"]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("backend", ["tensorrtllm", "tensorrt_llm", "python", "${triton_backend}"])
def test_the_engine_s_model_is_python_s_where_its_script_and_its_package_are_there(read, backend):
    loaded = read(f'backend: "{backend}" {ENGINE}', files={"1/model.py": SCRIPT})
    assert loaded.errors == ()
    (spec,) = loaded.specs
    assert (spec.backend, spec.decoupled, spec.max_batch_size) == ("python", True, 4)
    assert spec.parameters["gpt_model_path"] == "${engine_dir}"
    if backend.startswith("tensorrt"):
        origins = loaded.configs[0].origins
        assert origins["backend"] == "file 1/model.py, for 'tensorrt_llm'"


@pytest.mark.parametrize("backend", ["tensorrtllm", "tensorrt_llm"])
def test_without_the_package_both_ways_are_named(read, backend, errors_of):
    loaded = read(f'backend: "{backend}" {ENGINE}', files={"1/model.py": SCRIPT})
    ((place, key, message, hint),) = errors_of(loaded)
    assert (place, key) == ((1, 1), "backend")
    assert message == (
        f"model 'm' asks for backend '{backend}', a C++ library that is not here, and can't run by backend"
        " 'python'"
        " either: the package 'tensorrt_llm' that 1/model.py needs can't be imported"
    )
    assert hint == (
        "install 'tensorrt_llm' here, or name an environment that has it by EXECUTION_ENV_PATH; or serve the"
        ' checkpoint\'s folder by backend "transformers" or "vllm" (docs/llm.md)'
    )


@pytest.mark.usefixtures("installed")
def test_without_the_script_that_is_what_is_missing(read, errors_of):
    ((_, key, message, hint),) = errors_of(read(f'backend: "tensorrtllm" {ENGINE}', files={"1/.keep": ""}))
    assert key == "backend"
    assert message.endswith("can't run by backend 'python' either: there is no 1/model.py")
    assert hint.startswith("put TensorRT-LLM's model.py of this model there, and install 'tensorrt_llm' here")


def test_an_environment_of_its_own_may_have_the_package(read):
    parameter = (
        'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/e.tar" } }'
    )
    loaded = read(f'backend: "tensorrtllm" {ENGINE} {parameter}', files={"1/model.py": SCRIPT, "e.tar": ""})
    assert [spec.backend for spec in loaded.specs] == ["python"]


def test_a_registered_backend_of_that_name_goes_first(write_model, backends):
    from engine.config.load import load_model_config

    ours = {**backends, "tensorrtllm": BackendTraits(name="tensorrtllm", default_artifact="model.engine")}
    directory = write_model("m", f'backend: "tensorrtllm" {ENGINE}', {"1/model.engine": ""})
    assert [spec.backend for spec in load_model_config(directory, backends=ours).specs] == ["tensorrtllm"]


LLM_API = """
backend: "python"
max_batch_size: 0
input [ { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
YAML = "model: /weights\ntriton_config:\n  max_batch_size: 0\n  decoupled: true\n"


def test_the_layout_of_the_llm_api_says_in_one_sentence_what_is_missing(read, errors_of):
    files = {"1/model.py": SCRIPT, "1/model.yaml": YAML, "1/helpers.py": ""}
    ((_, key, message, _),) = errors_of(read(LLM_API, files=files))
    assert (key, message) == (
        "backend",
        "model 'm' needs the package 'tensorrt_llm', which can't be imported here",
    )


@pytest.mark.usefixtures("installed")
def test_the_layout_of_the_llm_api_is_a_python_model(read):
    loaded = read(LLM_API, files={"1/model.py": SCRIPT, "1/model.yaml": YAML})
    assert [spec.backend for spec in loaded.specs] == ["python"]


def test_a_script_that_can_do_without_the_package_is_left_alone(read):
    script = "try:\n    import tensorrt_llm\nexcept ImportError:\n    tensorrt_llm = None\n"
    assert read(LLM_API, files={"1/model.py": script}).errors == ()


def test_a_model_of_fastertransformer_is_told_where_to_go(load, errors_of):
    loaded = load('backend: "fastertransformer" max_batch_size: 8' + TENSORS, files={"1/.keep": ""})
    ((_, key, message, hint),) = errors_of(loaded)
    assert key == "backend"
    assert message == (
        "model 'm' asks for backend 'fastertransformer', which ended in 2023: use TensorRT-LLM, with an"
        " engine built"
        " again from the original checkpoint (c-model files do not convert), or backend 'vllm' or"
        " 'transformers'"
        " with the checkpoint's folder"
    )
    assert "seed for 'random_seed'" in hint
    assert "no 'start_id' and no beams" in hint


def test_check_says_the_same_of_a_whole_repository(write_model, capsys, tmp_path):
    write_model("ensemble", ensemble(), {"1/.keep": ""})
    write_model("tensorrt_llm", f'backend: "tensorrtllm" {ENGINE}', {"1/model.py": SCRIPT})
    write_model("template", f"max_batch_size: ${{triton_max_batch_size}}{TENSORS}", {"1/model.py": SCRIPT})
    assert check([str(tmp_path / "repository"), "--json", "--no-model-code"]) == 1
    told = json.loads(capsys.readouterr().out)
    said = json.dumps(told)
    assert "the package 'tensorrt_llm' that 1/model.py needs can't be imported" in said
    assert "the value of 'max_batch_size' is ${triton_max_batch_size}" in said
    assert "'kv_cache_alloc_total_blocks' is specified more than once" in said
