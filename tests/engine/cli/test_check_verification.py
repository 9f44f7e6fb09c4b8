"""`tritium check` gives no ✓ to a model whose file cannot be loaded or contradicts its configuration."""

import io
import json
import os
import shutil
import tempfile
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from onnx import TensorProto

from actors.values.datatypes import BY_NUMBER
from actors.values.padding import Padded
from engine.__main__ import main
from engine.cli.check import inspect
from engine.config.jsonform import config_json
from engine.config.load import load_model_config
from engine.processes.backends import discover
from engine.settings.parameters import read_parameters, settings_of
from engine.settings.settings import Settings
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.onnxruntime import OnnxRuntimeBackend
from engine.worker.backends.testing import model_info
from tests.engine.cli.conftest import onnx_model
from tests.support.ragged import BATCH_INPUT, PORTS, summing_onnx

PYTHON = """\
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "B" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
INPUT = 'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }\n'
OUTPUT = 'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }\n'
ONNX = onnx_model("N", 4)
KIND = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
RAGGED = f'backend: "onnxruntime"\nmax_batch_size: 8\n{PORTS % "allow_ragged_batch: true"}{BATCH_INPUT % (KIND, "ENDS")}'
PADDED = (
    'parameters { key: "tritium.pad_to" value { string_value: "x:1=4" } }\n'
    'parameters { key: "tritium.pad_outputs" value { string_value: "y:1=x:1" } }\n'
)
BOTH = f'backend: "onnxruntime"\nmax_batch_size: 8\n{INPUT}{OUTPUT}'


def archive(**members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, data in members.items():
            file.writestr(f"m/{name.replace('_', '.')}", data)
    return content.getvalue()


@pytest.fixture
def model(tmp_path):
    """Write the model m; returns its directory."""

    def write(config, **files):
        for name, content in {"config.pbtxt": config, **files}.items():
            path = tmp_path / "models" / "m" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / "models" / "m"

    return write


@pytest.fixture
def verified():
    def run(directory, **options):
        return load_model_config(directory, backends=discover(), verify_files=True, **options)

    return run


# -- ONNX files


@pytest.mark.parametrize(
    ("config", "content"),
    [
        pytest.param(BOTH, ONNX, id="agrees"),
        pytest.param(BOTH.replace("4", "-1"), onnx_model("N", "M"), id="variable in both"),
        pytest.param(BOTH, onnx_model("N", "M"), id="fixed by the configuration"),
        pytest.param(BOTH.replace("[ 4 ]", "[ 2, 2 ] reshape { shape: [ 4 ] }"), ONNX, id="reshaped"),
        pytest.param(BOTH.replace("size: 8", "size: 0"), onnx_model(4), id="without batching"),
        pytest.param(BOTH.replace("size: 8", "size: 0").replace("4", "1"), ONNX, id="scalar"),
        pytest.param(BOTH + INPUT.replace('"x"', '"z"'), ONNX, id="one input too many"),
        pytest.param(BOTH.replace('"x"', '"z"'), ONNX, id="unknown input"),
        pytest.param(BOTH.replace('"y"', '"z"'), ONNX, id="unknown output"),
        pytest.param(BOTH.replace(INPUT, INPUT.replace("FP32", "INT64")), ONNX, id="datatype"),
        pytest.param(BOTH, onnx_model("N", 4, kind=TensorProto.INT8), id="both datatypes"),
        pytest.param(BOTH.replace("[ 4 ]", "[ 5 ]"), ONNX, id="size"),
        pytest.param(BOTH.replace("[ 4 ]", "[ -1 ]"), ONNX, id="variable in the configuration only"),
        pytest.param(BOTH.replace("[ 4 ]", "[ 4, 1 ]"), ONNX, id="rank"),
        pytest.param(BOTH, onnx_model(1, 4), id="fixed batch"),
        pytest.param(BOTH.replace(INPUT, INPUT.replace("dims", "optional: true dims")), ONNX, id="optional"),
        pytest.param(RAGGED, summing_onnx(), id="ragged"),
        pytest.param(RAGGED.replace("TYPE_INT32", "TYPE_FP32"), summing_onnx(), id="datatype of a batch input"),
        pytest.param(RAGGED.replace('"ENDS"', '"ELSE"'), summing_onnx(), id="unknown batch input"),
        pytest.param(RAGGED.replace(KIND, "BATCH_ITEM_SHAPE"), summing_onnx(), id="rank of a batch input"),
        pytest.param(RAGGED.replace("batch_input", "# "), summing_onnx(), id="no batch input"),
        pytest.param(RAGGED.replace('"X"', '"x"').replace('"DOUBLE"', '"y"'), ONNX, id="not that graph"),
        pytest.param(
            BOTH.replace(INPUT, INPUT.replace("dims", "allow_ragged_batch: true dims")), ONNX, id="not flat"
        ),
        pytest.param(BOTH.replace("[ 4 ]", "[ -1 ]") + PADDED, ONNX, id="padded to the size of the graph"),
        pytest.param(
            BOTH.replace("[ 4 ]", "[ -1 ]") + PADDED.replace("=4", "=5"), ONNX, id="padded to another size"
        ),
        pytest.param(
            BOTH.replace("[ 4 ]", "[ -1 ]") + PADDED.replace("=4", "=4,*"), ONNX, id="padded to any size"
        ),
        pytest.param(
            BOTH.replace("[ 4 ]", "[ -1 ]") + PADDED.replace("=4", "=4,5"), ONNX, id="padded to two sizes"
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_an_onnx_model_is_what_its_backend_says(model, verified, config, content):
    directory = model(config, **{"1/model.onnx": content})
    loaded = verified(directory)
    assert load_model_config(directory, backends=discover()).ok  # a server asks the backend
    completed = loaded.configs[0].config
    parameters = {key: value.string_value for key, value in completed.parameters.items()}
    tritium = settings_of(read_parameters(parameters)[0])
    inputs, outputs = (
        [
            TensorInfo(
                tensor.name,
                BY_NUMBER[tensor.data_type],
                list(tensor.dims),
                reshape=list(tensor.reshape.shape) if tensor.HasField("reshape") else None,
                optional=getattr(tensor, "optional", False),
                ragged=getattr(tensor, "allow_ragged_batch", False),
                padded=Padded(tritium.pad_to[tensor.name]) if tensor.name in tritium.pad_to else None,
                cuts=tritium.pad_outputs.get(tensor.name, ()),
            )
            for tensor in side
        ]
        for side in (completed.input, completed.output)
    )
    info = model_info(
        directory / "1",
        name="m",
        inputs=inputs,
        outputs=outputs,
        max_batch_size=completed.max_batch_size,
        config=json.loads(config_json(completed)),
    )
    backend = OnnxRuntimeBackend()
    said = ""
    try:
        backend.load(info)
    except LoadError as error:
        said = f"Internal: {error}"
    assert loaded.reason == said


def test_a_disagreement_is_told_at_the_field_with_the_file(model, capsys):
    directory = model(BOTH.replace(OUTPUT, OUTPUT.replace("FP32", "INT64")), **{"1/model.onnx": ONNX})
    assert main(["check", str(directory)]) == 1
    assert (
        f"{directory}/config.pbtxt:4:20: error: unable to load model 'm', configuration expects datatype TYPE_INT64"
        " for output 'y', model provides TYPE_FP32 (1/model.onnx has type float)\n"
    ) in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"not a model", ONNX[:-5]])
def test_an_onnx_file_must_parse(model, verified, content):
    loaded = verified(model(BOTH, **{"1/model.onnx": content}))
    assert "the file 'model.onnx' can't be read: " in loaded.reason
    assert not loaded.specs


def test_a_directory_may_stand_for_an_onnx_file(model, verified):
    assert verified(model(BOTH, **{"1/model.onnx/model.onnx": ONNX})).ok


def test_what_only_onnx_runtime_can_read_is_not_refused(model, verified):
    config = BOTH + 'default_model_filename: "model.ort"'
    loaded = verified(model(config, **{"1/model.ort": b"\x1c\0\0\0ORTM" + bytes(64)}))
    assert loaded.ok
    assert "could not be compared" in loaded.warnings[0].message


def test_a_truncated_file_is_to_be_exported_or_copied_again(model, verified):
    loaded = verified(model('backend: "onnxruntime"', **{"1/model.onnx": ONNX[:-5]}))
    (error,) = loaded.errors
    assert "it is damaged, cut short, or no ONNX model" in error.hint


# -- other files


@pytest.mark.parametrize(
    ("backend", "file"), [("onnxruntime", "model.onnx"), ("pytorch", "model.pt"), ("python", "model.py")]
)
def test_the_file_must_be_there_in_every_version(model, verified, backend, file):
    config = f'backend: "{backend}" {PYTHON} version_policy {{ all {{ }} }}'
    directory = model(config, **{"1/readme": "", "2/readme": ""})
    loaded = verified(directory)
    assert loaded.reasons == {
        version: f"Internal: unable to find '{directory}/{version}/{file}' for model 'm'"
        for version in (1, 2)
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"?", "it is no zip archive: File is not a zip file"),
        (archive(data_pkl=b""), "it holds no program, only what torch.save was given, such as a state_dict"),
    ],
)
def test_a_pytorch_file_must_be_an_archive_with_a_program(model, verified, content, said):
    loaded = verified(model(f'backend: "pytorch" {PYTHON}', **{"1/model.pt": content}))
    assert loaded.reason == f"Internal: unable to load model 'm', the file 'model.pt' can't be read: {said}"


def test_an_archive_of_a_form_that_only_torch_knows_is_not_refused(model, verified):
    assert verified(model(f'backend: "pytorch" {PYTHON}', **{"1/model.pt2": archive(new_bin=b"")})).ok


def test_a_python_model_must_compile_and_is_not_run(model, capsys):
    directory = model(
        PYTHON, **{"1/model.py": "raise SystemExit\nclass TritonPythonModel:\n    def execute(self:\n"}
    )
    assert main(["check", str(directory)]) == 1
    assert (
        f"{directory}/1/model.py:3:16: error: unable to load model 'm', 'model.py' does not compile: SyntaxError: "
        in capsys.readouterr().out
    )


def test_what_python_only_warns_of_is_no_mistake(model, verified):
    source = "class TritonPythonModel:\n    same = 1 is 1\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert verified(model(PYTHON, **{"1/model.py": source})).problems == ()


# -- versions


def test_the_version_that_is_wrong_is_blamed(model, capsys):
    directory = model(
        "max_batch_size: 8\nversion_policy { all { } }",
        **{"1/model.onnx": ONNX, "2/model.onnx": onnx_model(3, 4)},
    )
    loaded = load_model_config(directory, backends=discover())
    (error,) = loaded.errors
    assert error.versions == (2,)
    assert (loaded.reasons, loaded.specs) == ({2: loaded.reason}, ())
    assert main(["check", str(directory)]) == 1
    out = capsys.readouterr().out
    assert "config.pbtxt:1:1: error: version 2: autofill failed for model 'm'" in out
    assert "(about 2/model.onnx: " in out
    main(["check", "--json", str(directory)])
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert found["reasons"] == {"2": loaded.reason}
    assert found["problems"][0]["versions"] == [2]


def test_what_all_versions_have_is_blamed_on_none(model, verified):
    config = BOTH.replace("size: 8", "size: -8") + "version_policy { all { } }"
    loaded = verified(model(config, **{f"{number}/model.onnx": ONNX for number in (1, 2)}))
    assert all(not problem.versions for problem in loaded.problems)
    assert loaded.reasons == {1: loaded.reason, 2: loaded.reason}


# -- warmup


WARMUP = 'model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "{}" value {{ data_type: {} dims: [ {} ] zero_data: true }} }} }}'


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (("x", "TYPE_FP32", 4), ""),
        (("z", "TYPE_FP32", 4), "has an input 'z', which is no input of the model"),
        (("x", "TYPE_FP32", 5), "gives input 'x' the shape [1,5], and the model takes [-1,4]"),
        (("x", "TYPE_FP32", "1, 4"), "gives input 'x' the shape [1,1,4], and the model takes [-1,4]"),
        (("x", "TYPE_INT8", 4), "gives input 'x' as TYPE_INT8, and the model takes TYPE_FP32"),
    ],
)
def test_a_sample_that_the_model_does_not_take_is_told(model, verified, sample, said):
    loaded = verified(model(BOTH + WARMUP.format(*sample), **{"1/model.onnx": ONNX}))
    assert [error.message for error in loaded.errors] == ([f"warmup sample 'w' for m {said}"] if said else [])


@pytest.mark.parametrize("sample", [("z", "TYPE_FP32", 4), ("A", "TYPE_FP32", 5), ("A", "TYPE_INT8", 4)])
def test_a_python_model_may_take_any_sample_and_its_owner_is_warned(model, verified, sample):
    source = "class TritonPythonModel:\n    pass\n"
    loaded = verified(model(PYTHON + WARMUP.format(*sample), **{"1/model.py": source}))
    assert loaded.ok
    assert len(loaded.warnings) == 1


def test_controls_of_sequences_may_be_sampled(model, verified):
    loaded = verified(
        model(
            BOTH + "sequence_batching { }" + WARMUP.format("START", "TYPE_FP32", 1),
            **{"1/model.onnx": ONNX},
        )
    )
    assert loaded.errors == loaded.unserved


# -- directories


@contextmanager
def nobody():
    """Run the block as a user that file permissions restrict."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def repository():
    """A repository that every user may read, with a good model and one called `closed`; returns it."""
    path = Path(tempfile.mkdtemp())
    for name in ("closed", "good"):
        version = path / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(ONNX)
        (path / name / "config.pbtxt").write_text(BOTH)
    path.chmod(0o755)
    yield path
    for directory in (path / "closed", path / "closed/1"):
        directory.chmod(0o755)
    shutil.rmtree(path)


@pytest.mark.parametrize("config", [BOTH, 'backend: "onnxruntime"', ""])
@pytest.mark.parametrize(
    ("closed", "mode"),
    [("", 0), ("", 0o444), ("1", 0), ("1", 0o444), ("1/model.onnx", 0), ("config.pbtxt", 0)],
)
def test_what_may_not_be_read_is_told_beside_the_other_models(repository, capsys, config, closed, mode):
    (repository / "closed/config.pbtxt").write_text(config)
    # Import now: the restricted user may be unable to read modules that are imported later.
    main(["check", str(repository / "good")])
    capsys.readouterr()
    (repository / "closed" / closed).chmod(mode)
    with nobody():
        status = main(["check", "--verbose", str(repository)])
        assert main(["check", str(repository / "closed")]) == 1
    out = capsys.readouterr().out
    assert status == 1
    assert "✗ closed" in out
    assert "✓ good  version 1\n" in out
    assert "Permission denied" in out


def test_without_a_configuration_mistakes_are_the_directorys(model, capsys):
    directory = model("", readme="")
    (directory / "config.pbtxt").unlink()
    main(["check", str(directory.parent), "--disable-auto-complete-config"])
    out = capsys.readouterr().out
    assert (
        f"    {directory}: error: failed to read text proto from {directory}/config.pbtxt: there is no" in out
    )


@pytest.mark.parametrize("uri", ["s3://bucket/x", "as://account/container", "file:///models"])
def test_a_uri_is_said_to_be_no_directory(capsys, uri):
    with pytest.raises(SystemExit) as ended:
        main(["check", uri])
    assert ended.value.code == 2
    assert f"{uri} is no directory of this machine, and check reads local directories only" in (
        " ".join(capsys.readouterr().err.split())
    )


# -- `tritium check` holds ensembles against the models that are beside them


PART = """backend: "python"
max_batch_size: 8
input { name: "I" data_type: TYPE_FP32 dims: 2 }
output { name: "O" data_type: TYPE_FP32 dims: 2 }
"""


def whole(*, model="part", version=-1, given="I", batch=4):
    return f"""platform: "ensemble"
max_batch_size: {batch}
input {{ name: "X" data_type: TYPE_FP32 dims: 2 }}
output {{ name: "Y" data_type: TYPE_FP32 dims: 2 }}
ensemble_scheduling {{
  step {{
    model_name: "{model}"
    model_version: {version}
    input_map {{ key: "{given}" value: "X" }}
    output_map {{ key: "O" value: "Y" }}
  }}
}}
"""


@pytest.fixture
def check(tmp_path):
    """Check a repository of models by name, or only what is at `path`; the finding of `whole`."""

    def check(*, path="", only=(), **models):
        for name, text in models.items():
            (tmp_path / name / "1").mkdir(parents=True)
            (tmp_path / name / "config.pbtxt").write_text(text)
            (tmp_path / name / "1" / "model.py").write_text(
                "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
            )
        settings = Settings.from_argv(["--model-repository=."])
        report = inspect([tmp_path / path], settings, gpus=0, only=only, run_model_code=False)
        return next(finding for finding in report.findings if finding.name == "whole")

    return check


def test_an_ensemble_that_fits_would_load(check):
    assert check(part=PART, whole=whole()).ok


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        (
            whole(model="other"),
            "ensemble whole contains models that are not available or ambiguous: other",
            (5, 1),
        ),
        (
            whole(version=3),
            "ensemble 'whole' depends on 'part' whose required version 3 is not loaded.",
            (6, 3),
        ),
        (
            whole(given="J"),
            "in ensemble whole, ensemble tensor X is mapping to non-existing input J in model part",
            (9, 5),
        ),
        (
            whole(batch=16),
            "ensemble whole allows maximum batch size 16, but it contains model part which only allows maximum batch size"
            " to be 8",
            (2, 1),
        ),
        (
            whole(model="whole"),
            "circular dependency between ensembles: whole -> ... -> whole -> whole",
            (5, 1),
        ),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(check, text, message, place):
    config = check(part=PART, whole=text).config
    assert not config.ok
    assert config.errors[0].message == message
    assert (config.errors[0].line, config.errors[0].column) == place


def test_a_model_that_would_not_load_keeps_the_ensemble_out(check):
    config = check(part=PART.replace("TYPE_FP32", "TYPE_NONE"), whole=whole()).config
    assert config.errors[0].message.startswith("ensemble 'whole' depends on 'part' which is not valid.")


def test_models_that_are_not_looked_at_are_not_missed(check):
    assert check(part=PART, whole=whole(), only=("whole",)).ok
    assert check(path="whole").ok
