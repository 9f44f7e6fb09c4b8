"""`tritium check`: the completed configuration with its origins, models apart, and what was not served."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format

from engine.__main__ import main
from engine.repository.advice import is_model
from protocols.kserve.proto.model_config_pb2 import ModelConfig
from tests.engine.cli.conftest import onnx_model
from tests.support.bare_models import zipmapped

CONFIG = """\
max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "B" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
COMPLETING = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(5)
        return config
"""


@pytest.fixture
def repository(tmp_path):
    """Write models as {name: {file: content}}; returns the repository."""

    def write(**models):
        for name, files in models.items():
            (tmp_path / name).mkdir()
            for file, content in files.items():
                path = tmp_path / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(tmp_path)

    return write


@pytest.fixture
def checked(capsys):
    """Run the command; returns (status, standard output)."""

    def run(*words):
        form = () if {"--json", "--quiet"} & {*words} else ("--verbose",)
        return main(["check", *form, *words]), capsys.readouterr().out

    return run


def block(out):
    """The lines of the first configuration in the output."""
    lines = out.split("\n")
    start = next(at for at, line in enumerate(lines) if line.startswith("    name:"))
    return [line[4:] for line in lines[start : lines.index("", start)]]


PYTHON = {"1/model.py": "class TritonPythonModel:\n    pass\n", "config.pbtxt": CONFIG}


# -- the configuration


def test_every_value_has_its_origin_beside_it(repository, checked):
    status, out = checked(repository(m={"1/model.onnx": onnx_model("N", 4)}))
    assert status == 0
    lines = block(out)
    assert '  name: "x"' in [line.partition("#")[0].rstrip() for line in lines]
    said = {
        line.partition("#")[0].strip(): line.partition("# ")[2] for line in reversed(lines) if "#" in line
    }
    assert said['name: "m"'] == "directory name"
    assert said['backend: "onnxruntime"'] == "file 1/model.onnx"
    assert said["dims: [ 4 ]"] == "model file (onnx)"
    assert said["max_batch_size: 4"] == "default"
    assert len({line.index("#") for line in lines if "#" in line}) == 1  # aligned


def test_what_is_printed_is_a_configuration_that_means_the_same(repository, checked, tmp_path):
    root = repository(m=PYTHON)
    _, out = checked(root)
    config = text_format.Parse("\n".join(block(out)), ModelConfig())
    assert (config.name, config.backend, config.max_batch_size) == ("m", "python", 8)
    (tmp_path / "m/config.pbtxt").write_text("\n".join(block(out)))
    _, again = checked(root)
    assert text_format.Parse("\n".join(block(again)), ModelConfig()) == config


@pytest.mark.system
def test_versions_that_differ_are_shown_apart(repository, checked):
    files = {f"{number}/model.onnx": onnx_model("N", number) for number in (1, 2)}
    root = repository(
        m={**files, "3/model.onnx": onnx_model("N", 1), "config.pbtxt": "version_policy { all { } }"}
    )
    _, out = checked(root)
    assert [line.strip() for line in out.split("\n") if "# as" in line] == [
        "# as  version 3",
        "# as  version 2",
        "# as  version 1",
    ]
    report = json.loads(checked(root, "--json")[1])
    shapes = {
        tuple(each["versions"]): each["config"]["input"][0]["dims"]
        for each in report["models"][0]["configurations"]
    }
    assert shapes == {(3,): [1], (2,): [2], (1,): [1]}


@pytest.mark.parametrize(
    ("files", "flags", "line"),
    [
        pytest.param(PYTHON, [], r"max_batch_size: 8 +# config\.pbtxt:1:1", id="written"),
        pytest.param(PYTHON, [], r"dims: \[ 4 \] +# config\.pbtxt:2:42", id="written within a line"),
        pytest.param(
            {**PYTHON, "configs/small.pbtxt": CONFIG.replace("8", "2")},
            ["--model-config-name=small"],
            r"max_batch_size: 2 +# configs/small\.pbtxt:1:1",
            id="in the configuration that was chosen",
        ),
        pytest.param(
            {"1/model.onnx": onnx_model("N", 4)},
            ["--backend-config=onnxruntime,default-max-batch-size=16"],
            r"max_batch_size: 16 +# --backend-config default-max-batch-size",
            id="on the command line",
        ),
        pytest.param(
            {"1/model.onnx": onnx_model(3, 4)},
            [],
            r"max_batch_size: 0 +# default",
            id="no batching, though text format leaves it out",
        ),
        pytest.param(
            {"1/model.py": COMPLETING},
            [],
            r"max_batch_size: 5 +# model\.py auto_complete_config",
            id="by the model's code",
            marks=[pytest.mark.system, pytest.mark.slow],
        ),
    ],
)
def test_a_value_has_beside_it_where_it_was_set(repository, checked, files, flags, line):
    _, out = checked(repository(m=files), *flags)
    assert re.search(f"^ +{line}$", out, re.MULTILINE)


@pytest.mark.parametrize("flag", ["--disable-auto-complete-config", "--strict-model-config=true"])
def test_completion_can_be_switched_off(repository, checked, flag):
    status, out = checked(repository(m={"1/model.onnx": onnx_model("N", 4)}), flag)
    assert status == 1
    assert "there is no such file (auto-completion is off)" in out


def test_a_broken_model_still_shows_what_is_known_of_it(repository, checked):
    status, out = checked(repository(m={**PYTHON, "config.pbtxt": CONFIG.replace("8", "-8")}))
    assert status == 1
    assert "'max_batch_size' must be non-negative value for m" in out
    assert re.search(r"max_batch_size: -8 +# config\.pbtxt:1:1", out)


def test_json_has_the_configuration_and_its_origins(repository, checked):
    _, out = checked(repository(m=PYTHON), "--json")
    (model,) = json.loads(out)["models"]
    (configuration,) = model["configurations"]
    assert configuration["versions"] == [1]
    assert configuration["config"]["input"][0]["dims"] == [4]
    assert configuration["origins"]["input[0].dims"] == "config.pbtxt:2:42"
    assert model["config"] == configuration["config"]


def test_a_terminal_gets_colours(repository, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["check", repository(m=PYTHON)]) == 0
    assert "\x1b[" in out.getvalue()
    assert "config.pbtxt:1:1" in out.getvalue()


def test_what_a_terminal_might_obey_is_spelt_out(repository, checked):
    parameter = 'parameters { key: "k" value { string_value: "\\033[31m" } }'
    _, out = checked(repository(m={**PYTHON, "config.pbtxt": CONFIG + parameter}))
    assert "\x1b" not in out


# -- model code


def test_what_is_not_to_be_run_is_told_to_be_skipped(repository, checked):
    status, out = checked(repository(m={"1/model.py": COMPLETING}), "--no-model-code")
    assert status == 0
    assert "warning: skipped: model.py auto_complete_config was not run" in out
    assert "max_batch_size: 0" in out


@pytest.mark.system
@pytest.mark.slow
def test_a_traceback_is_readable(repository, checked):
    source = COMPLETING.replace("set_max_batch_size(5)", "nonsense()")
    status, out = checked(repository(m={"1/model.py": source}))
    assert status == 1
    lines = out.split("\n")
    at = next(at for at, line in enumerate(lines) if "AttributeError" in line)
    assert lines[at].endswith("error: AttributeError: 'ModelConfig' object has no attribute 'nonsense'")
    assert lines[at + 1 : at + 3] == [
        "        At:",
        f"          {Path(lines[at].strip().partition(': error')[0])}(5): auto_complete_config",
    ]


@pytest.mark.system
@pytest.mark.slow
def test_no_framework_is_loaded(repository):
    root = repository(
        m={"1/model.onnx": onnx_model("N", 4)}, p={"1/model.py": COMPLETING}, t={"1/model.pt": b"?"}
    )
    code = (
        "import sys\nfrom engine.__main__ import main\n"
        f"main(['check', {root!r}])\n"
        "print(sorted({'torch', 'onnxruntime', 'tensorrt', 'onnx'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "[]\n"


# -- in short


def test_several_models_get_a_line_each_and_what_holds_for_many_is_told_once(repository, capsys):
    root = repository(**{f"model_{at}": PYTHON for at in range(40)})
    assert main(["check", root, "--no-model-code"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 43
    assert lines[0].startswith("✓ model_0   version 1  python, batching: ")
    assert lines[40] == "40 of 40 models would load"
    assert "tritium.execution_timeout is off for 40 models" in lines[41]
    assert lines[42].startswith("--verbose shows the configurations")


def test_what_is_wrong_is_told_in_full_in_the_short_form_too(repository, capsys):
    wrong = CONFIG + 'parameters { key: "tritium.threads" value { string_value: "x" } }\n'
    alone = CONFIG + 'parameters { key: "tritium.isolation" value { string_value: "thread" } }\n'
    root = repository(
        good=PYTHON, wrong={**PYTHON, "config.pbtxt": wrong}, alone={**PYTHON, "config.pbtxt": alone}
    )
    assert main(["check", root]) == 1
    out = capsys.readouterr().out
    assert "error: 'tritium.threads' is 'x'" in out
    assert 'warning: tritium.isolation is "thread"' in out
    assert "name:" not in out


def test_one_model_alone_is_shown_with_its_configuration(repository, capsys):
    assert main(["check", repository(good=PYTHON)]) == 0
    assert "name:" in capsys.readouterr().out


# -- what is wrong


def test_a_classifier_with_a_zipmap_is_told_the_cure(repository, checked):
    model = zipmapped()
    tensor = '{ name: "%s" data_type: TYPE_FP32 dims: [ 2 ] }'
    config = f'backend: "onnxruntime"\nmax_batch_size: 8\ninput {tensor % "X"}\noutput {tensor % "P"}\n'
    root = repository(bare={"1/model.onnx": model}, written={"1/model.onnx": model, "config.pbtxt": config})
    status, out = checked(root)
    assert status == 1
    assert out.count("options={'zipmap': False}") == 2


def test_what_is_valid_and_not_served_is_told_apart(repository, checked):
    unserved = CONFIG + 'model_operations { op_library_filename: "ops.so" }\n'
    both = unserved + 'parameters { key: "tritium.threads" value { string_value: "x" } }\n'
    root = repository(
        good=PYTHON, unserved={**PYTHON, "config.pbtxt": unserved}, wrong={**PYTHON, "config.pbtxt": both}
    )
    status, out = checked(root)
    assert status == 1
    assert "○ unserved  version 1\n    valid, but not served by this version:\n" in out
    assert out.endswith("\n1 of 3 models would load; 1 is valid, but not served by this version\n")
    wrong = out[out.index("✗ wrong") :]
    assert wrong.index("'tritium.threads' is 'x'") < wrong.index("valid, but not served by this version:")
    report = json.loads(checked(root, "--json")[1])
    assert [model["unserved"] for model in report["models"]] == [False, True, False]
    assert [problem["unserved"] for problem in report["models"][2]["problems"]] == [False, True]
    assert report["models"][1]["problems"][0]["code"] == "UNSUPPORTED"


def test_a_snippet_stands_on_lines_of_its_own(repository, checked):
    import zipfile

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("m/data.pkl", b"\x80\x02c__torch__\nNet\n.")
        file.writestr(
            "m/code/__torch__.py", "class Net(Module):\n  def forward(self: Net,\n    x: Tensor) -> Tensor:\n"
        )
    _, out = checked(repository(m={"1/model.pt": archive.getvalue()}))
    assert '\n        input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]\n' in out
    assert "whose forward takes 'x' (Tensor) and returns Tensor\n" in out


# -- which models


def test_one_model_is_checked_by_its_directory(repository, checked):
    root = repository(a=PYTHON, b={**PYTHON, "config.pbtxt": "nonsense"})
    status, out = checked(f"{root}/a")
    assert (status, out.count("✓")) == (0, 1)
    assert out.startswith("✓ a  version 1\n")


def test_the_directory_in_which_one_is_will_do(repository, checked, monkeypatch):
    monkeypatch.chdir(Path(repository(a=PYTHON)) / "a")
    assert checked(".")[1].startswith("✓ a  version 1\n")


def test_only_the_models_that_are_named_are_checked(repository, checked):
    root = repository(a=PYTHON, b={**PYTHON, "config.pbtxt": "nonsense"}, c=PYTHON)
    status, out = checked(root, "--model", "a", "--model=c")
    assert (status, out.count("✓"), out.count("✗")) == (0, 2, 0)


@pytest.mark.parametrize(
    ("files", "one"),
    [
        ({"config.pbtxt": ""}, True),
        ({"1/model.onnx": ""}, True),
        ({"3/model.onnx/model.onnx": ""}, True),
        ({"m/config.pbtxt": ""}, False),
        ({"m/1/model.onnx": ""}, False),
        ({"1/config.pbtxt": ""}, False),  # models called 1 and 2
        ({"1/1/model.onnx": "", "2/1/model.onnx": ""}, False),
        ({"readme": ""}, False),
    ],
)
def test_a_model_is_told_from_a_repository(tmp_path, files, one):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert is_model(tmp_path) is one


# -- the command line


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--backend-config=x", "--backend-config option format is "),  # as `serve` refuses it
        ("--strict-model-config=maybe", "invalid value for bool option: maybe"),
        ("--model=resnt", "there is no model 'resnt': did you mean 'resnet'?\n"),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused(repository, capsys, flag, told):
    assert main(["check", repository(resnet=PYTHON), flag]) == 1
    assert capsys.readouterr().err.startswith(told)


@pytest.mark.system
@pytest.mark.slow
def test_nothing_is_written_into_the_repository(repository, checked):
    root = repository(m={"1/model.py": COMPLETING})
    before = sorted(os.walk(root))
    checked(root)
    assert sorted(os.walk(root)) == before


@pytest.mark.parametrize(("flags", "status"), [((), 0), (("--model-repository-links=inside",), 1)])
@pytest.mark.parametrize("linked", ["m", "m/1"], ids=["model", "version"])
def test_links_are_followed_as_the_server_follows_them(repository, checked, tmp_path, linked, flags, status):
    path = Path(repository(repository={"m/1/model.py": PYTHON["1/model.py"], "m/config.pbtxt": CONFIG}))
    target = path / "repository" / linked
    target.rename(tmp_path / "elsewhere")
    target.symlink_to(tmp_path / "elsewhere")
    found, out = checked(str(path / "repository"), "--no-model-code", *flags)
    assert found == status
    assert (f"'{target.name}' is a link out of the model repository" in out) is bool(status)
