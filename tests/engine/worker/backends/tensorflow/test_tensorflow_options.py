"""Every parameter of Triton's TensorFlow backend is honoured or refused. TensorFlow is not needed."""

import pytest

from engine.worker.backends.base import LoadError
from engine.worker.backends.tensorflow.parameters import CALLERS_THREAD, TensorFlowOptions
from engine.worker.backends.testing import model_info

SAVED, GRAPH = {"platform": "tensorflow_savedmodel"}, {"platform": "tensorflow_graphdef"}


def options(config=SAVED, directory=".", **told):
    return TensorFlowOptions(model_info(directory, inputs=[], outputs=[], config=config, **told))


def accelerated(*names, side="gpu", platform=SAVED):
    asked = [{"name": name} for name in names]
    return {**platform, "optimization": {"execution_accelerators": {f"{side}_execution_accelerator": asked}}}


def test_a_model_that_asks_for_nothing_has_tritons_defaults_and_the_workers_share_of_the_cores():
    told = options(threads=2, lanes=3)
    assert (told.tag, told.signature, told.any_signature) == ("serve", "serving_default", True)
    assert (told.intra, told.inter, told.own_threads, told.share) == (6, 6, False, 1)
    assert (told.soft_placement, told.memory_fraction, told.jit) == (True, 0, "DEFAULT")
    assert (told.graph_def, told.mixed_precision, told.ineffective) == (False, False, [])


def test_operations_run_on_the_callers_thread_where_an_execution_has_one():
    assert (options().intra, options().inter) == (1, CALLERS_THREAD)


def test_every_parameter_is_taken_over():
    parameters = {
        "TF_NUM_INTRA_THREADS": "3",
        "TF_NUM_INTER_THREADS": "0",
        "TF_USE_PER_SESSION_THREADS": "ON",
        "TF_GRAPH_TAG": "gpu",
        "TF_SIGNATURE_DEF": "classify",
        "MAX_SESSION_SHARE_COUNT": "4",
    }
    settings = {"allow-soft-placement": "false", "gpu-memory-fraction": "0.25", "version": "2"}
    told = options(parameters=parameters, settings=settings)
    assert (told.intra, told.inter, told.own_threads, told.share) == (3, 0, True, 4)
    assert (told.tag, told.signature, told.any_signature) == ("gpu", "classify", False)
    assert (told.soft_placement, told.memory_fraction) == (False, 0.25)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"TF_NUM_INTRA_THREADS": "-1"},
            "parameter 'TF_NUM_INTRA_THREADS' must be non-negative number for TensorFlow model 'model'",
        ),
        (
            {"TF_NUM_INTER_THREADS": "-2"},
            "parameter 'TF_NUM_INTER_THREADS' must be non-negative number for TensorFlow model 'model'",
        ),
        ({"TF_NUM_INTER_THREADS": "many"}, "failed to convert 'many' to integral number"),
        ({"TF_NUM_INTRA_THREADS": "4x"}, "failed to convert '4x' to integral number"),
        ({"TF_USE_PER_SESSION_THREADS": "yes"}, "failed to convert 'yes' to boolean"),
        ({"MAX_SESSION_SHARE_COUNT": "0"}, "'MAX_SESSION_SHARE_COUNT' must be positive number"),
    ],
)
def test_a_parameter_that_can_not_be_honoured_is_refused(parameters, text):
    with pytest.raises(LoadError) as refused:
        options(parameters=parameters)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"version": "1"}, "there is 2"),
        ({"gpu-memory-fraction": "2"}, "from 0 to 1, not '2'"),
        ({"gpu-memory-fraction": "half"}, "from 0 to 1, not 'half'"),
        ({"gpu-memory-fraction": "nan"}, "from 0 to 1, not 'nan'"),
        ({"allow-soft-placement": "yes"}, "failed to convert 'yes' to boolean"),
    ],
)
def test_a_setting_that_can_not_be_honoured_is_refused(settings, text):
    with pytest.raises(LoadError, match=text):
        options(settings=settings)


@pytest.mark.parametrize("platform", ["", "tensorflow", "onnxruntime_onnx"])
def test_a_platform_is_required(platform):
    with pytest.raises(LoadError) as refused:
        options({"platform": platform})
    assert str(refused.value) == f"platform {platform} not supported for TensorFlow model 'model'"


@pytest.mark.parametrize(
    ("level", "jit"), [(-7, "OFF"), (-1, "OFF"), (0, "DEFAULT"), (1, "ON_1"), (2, "ON_2"), (9, "ON_2")]
)
def test_the_graph_level_is_that_of_xla(level, jit):
    assert options({**SAVED, "optimization": {"graph": {"level": level}}}).jit == jit


def test_xla_compiles_for_cpus_where_the_environment_says_so_too(monkeypatch):
    config = {**SAVED, "optimization": {"graph": {"level": 1}}}
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    [text] = options(config).ineffective
    assert "'optimization.graph.level' has no effect on CPUs" in text
    assert options(config, kind="GPU").ineffective == []
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_cpu_global_jit")
    assert options(config).ineffective == []


def test_mixed_precision_is_for_gpus_and_ignored_on_cpus():
    assert options(accelerated("auto_mixed_precision"), kind="GPU").mixed_precision
    told = options(accelerated("auto_mixed_precision"))
    assert not told.mixed_precision
    assert "ignored for instance 'model_0_0', which is on CPU" in told.ineffective[0]


def test_tensors_that_should_stay_on_the_gpu_are_told_to_go_through_the_host():
    [text] = options(accelerated("gpu_io"), kind="GPU").ineffective
    assert "'gpu_io' has no effect" in text


@pytest.mark.parametrize(
    ("names", "side", "text"),
    [
        (["tensorrt"], "gpu", "TensorFlow has no TensorRT since 2.18"),
        (["tensorrt", "auto_mixed_precision"], "gpu", "can not be set with TFTRT optimization"),
        (["cuda"], "gpu", "unknown Execution Accelerator 'cuda' is requested"),
        (["openvino"], "cpu", "CPU Execution Accelerator is not supported in TensorFlow backend"),
    ],
)
def test_other_accelerators_are_refused(names, side, text):
    with pytest.raises(LoadError, match=text):
        options(accelerated(*names, side=side), kind="GPU")


def test_operations_to_begin_with_are_looked_for_in_the_versions_folder_first(version):
    told = {"TF_INIT_OPS_FILE": "init.json"}
    (version.parent / "init.json").touch()
    found = options(GRAPH, version, parameters=told)
    assert (found.init_ops_file, found.ineffective) == (str(version.parent / "init.json"), [])
    (version / "init.json").touch()
    assert options(GRAPH, version, parameters=told).init_ops_file == str(version / "init.json")


@pytest.mark.parametrize("name", ["absent.json", "../../outside.json", "/etc/hostname"])
def test_operations_to_begin_with_lie_in_the_models_folder(version, name):
    (version.parent.parent / "outside.json").touch()
    with pytest.raises(LoadError, match="which is neither in"):
        options(GRAPH, version, parameters={"TF_INIT_OPS_FILE": name})


def test_what_only_the_other_kind_of_model_has_is_told(version):
    (version / "init.json").touch()
    told = {"TF_INIT_OPS_FILE": "init.json", "TF_GRAPH_TAG": "serve", "TF_SIGNATURE_DEF": "x"}
    [text] = options(SAVED, version, parameters=told).ineffective
    assert "'TF_INIT_OPS_FILE' has no effect" in text
    tag, signature = options(GRAPH, version, parameters=told).ineffective
    assert "'TF_GRAPH_TAG' has no effect" in tag
    assert "'TF_SIGNATURE_DEF' has no effect" in signature
