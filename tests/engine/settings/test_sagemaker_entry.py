"""SageMaker's `serve`: environment variables become flags, or an error in the words of Triton's script."""

import pytest

from engine.settings.cloud.entry import Entry, EntryRefused, ModelFolder, entry_of
from engine.settings.settings import Settings

ONE = ModelFolder(folders=("resnet",))
FIRST = ("--allow-sagemaker=true", "--allow-http=false", "--model-control-mode=explicit")
DEFAULTS = (
    "--model-namespacing=true",
    "--allow-grpc=false",
    "--allow-metrics=false",
    "--log-verbose=true",
    "--backend-config=python,shm-default-byte-size=16777216",
    "--backend-config=python,shm-growth-byte-size=1048576",
)


def flags(model=ONE, gpus=0, **environ):
    return entry_of({f"SAGEMAKER_{name}": word for name, word in environ.items()}, model, gpus=gpus).flags


def refusal(model=ONE, **environ):
    with pytest.raises(EntryRefused) as caught:
        flags(model, **environ)
    return str(caught.value)


def test_an_endpoint_with_one_model_loads_it():
    assert entry_of({}, ONE) == Entry(
        flags=(*FIRST, "--model-repository=/opt/ml/model/", *DEFAULTS, "--load-model=resnet"),
        environ={"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "resnet"},
        said=(
            "WARNING: No SAGEMAKER_TRITON_DEFAULT_MODEL_NAME provided.",
            "         Starting with the only existing model directory resnet",
        ),
    )


def test_the_model_may_be_named_among_several():
    entry = entry_of({"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "b"}, ModelFolder(path="/m", folders=("a", "b")))
    assert entry.flags == (*FIRST, "--model-repository=/m", *DEFAULTS, "--load-model=b")
    assert entry.said == ()
    assert entry.environ == {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "b"}


def test_an_endpoint_with_many_models_begins_with_none():
    entry = entry_of({"SAGEMAKER_MULTI_MODEL": "true"}, ModelFolder())
    assert entry == Entry(
        flags=(*FIRST, "--model-repository=/tmp/sagemaker", *DEFAULTS),
        environ={"SAGEMAKER_TRITON_PING_MODE": "live"},
        said=('Triton is running in SageMaker MME mode. Using Triton ping mode: "live"',),
        directory="/tmp/sagemaker",
    )


def test_the_ping_of_many_models_may_be_overridden():
    entry = entry_of(
        {"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_TRITON_OVERRIDE_PING_MODE": "ready"}, ModelFolder()
    )
    assert entry.environ == {"SAGEMAKER_TRITON_PING_MODE": "ready"}


@pytest.mark.parametrize("word", ["", "True", "1", "false"])
def test_any_other_word_is_an_endpoint_with_one_model(word):
    assert "--load-model=resnet" in flags(MULTI_MODEL=word)


@pytest.mark.parametrize(
    ("variable", "word", "flag"),
    [
        ("TRITON_DISABLE_MODEL_NAMESPACING", "false", "--model-namespacing=false"),
        ("BIND_TO_PORT", "9000", "--sagemaker-port=9000"),
        ("SAFE_PORT_RANGE", "8081-9000", "--sagemaker-safe-port-range=8081-9000"),
        ("TRITON_ALLOW_GRPC", "true", "--allow-grpc=true"),
        ("TRITON_ALLOW_METRICS", "true", "--allow-metrics=true"),
        ("TRITON_METRICS_PORT", "8082", "--metrics-port=8082"),
        ("TRITON_GRPC_PORT", "8083", "--grpc-port=8083"),
        ("TRITON_BUFFER_MANAGER_THREAD_COUNT", "2", "--buffer-manager-thread-count=2"),
        ("TRITON_THREAD_COUNT", "4", "--sagemaker-thread-count=4"),
        ("TRITON_LOG_VERBOSE", "0", "--log-verbose=0"),
        ("TRITON_LOG_INFO", "false", "--log-info=false"),
        ("TRITON_LOG_WARNING", "false", "--log-warning=false"),
        ("TRITON_LOG_ERROR", "true", "--log-error=true"),
        ("TRITON_SHM_DEFAULT_BYTE_SIZE", "1", "--backend-config=python,shm-default-byte-size=1"),
        ("TRITON_SHM_GROWTH_BYTE_SIZE", "2", "--backend-config=python,shm-growth-byte-size=2"),
        ("TRITON_TENSORFLOW_VERSION", "2", "--backend-config=tensorflow,version=2"),
        ("TRITON_ADDITIONAL_ARGS", "  --id=mine ", "--id=mine"),
    ],
)
def test_a_variable_is_a_flag(variable, word, flag):
    given = flags(**{variable: word})
    assert flag in given
    option = flag.rpartition("=")[0]
    assert [each for each in given if each.startswith(f"{option}=")] == [flag]
    Settings.from_argv(given)  # and one that is known


def test_additional_arguments_follow_and_win():
    given = flags(TRITON_ADDITIONAL_ARGS="--log-verbose=0 --exit-timeout-secs 5")
    assert given[-4:] == ("--log-verbose=0", "--exit-timeout-secs", "5", "--load-model=resnet")
    settings = Settings.from_argv(given)
    assert (settings.log.verbose, settings.exit_timeout) == (0, 5)


def test_the_limit_of_memory_is_each_gpu_s():
    assert not any("gpu" in flag for flag in flags(TRITON_MODEL_LOAD_GPU_LIMIT="0.8"))
    given = flags(TRITON_MODEL_LOAD_GPU_LIMIT="0.8", gpus=2)
    assert "--model-load-gpu-limit=0:0.8" in given
    assert "--model-load-gpu-limit=1:0.8" in given
    Settings.from_argv(given)


@pytest.mark.parametrize("inference", ["infer", "generate", "generate_stream"])
def test_the_type_of_inference_is_one_of_three(inference):
    assert flags(TRITON_INFERENCE_TYPE=inference) == flags()


def test_what_makes_no_server_is_said_in_the_words_of_triton_s_script():
    assert refusal(ModelFolder()) == "ERROR: No model found in model repository"
    assert refusal(ModelFolder(folders=("b", "a"))) == (
        "ERROR: More than 1 model directory found in model repository.\n"
        "       Either provide a single directory or set SAGEMAKER_TRITON_DEFAULT_MODEL_NAME to run the"
        " ensemble backend.\n"
        "       Directories found in model repository: a b"
    )
    assert refusal(TRITON_DEFAULT_MODEL_NAME="bert") == (
        "ERROR: Directory with provided SAGEMAKER_TRITON_DEFAULT_MODEL_NAME bert does not exist"
    )
    assert refusal(ModelFolder(folders=("1",), configured=True)) == (
        "ERROR: Incorrect directory structure.\n       Model directory needs to contain the top level folder"
    )
    assert refusal(TRITON_INFERENCE_TYPE="stream") == (
        "ERROR: Invalid SAGEMAKER_TRITON_INFERENCE_TYPE 'stream'\n"
        "       Must be one of: infer, generate, generate_stream"
    )
