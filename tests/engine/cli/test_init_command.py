"""`tritium init`: what it writes, what it leaves alone, and what it says is left to do."""

import json
import os
import re
import shutil
from dataclasses import replace

import pytest
from google.protobuf import text_format

from engine.__main__ import main
from engine.cli.init import command, laying
from engine.processes.backends import discover
from protocols.kserve.proto.model_config_pb2 import ModelConfig
from tests.support.bare_models import (
    DOUBLING,
    EXPORTED,
    FOREIGN,
    SILENT_MODEL,
    TRITIUM_MODEL,
    TRITON_MODEL,
    onnx_model,
    script,
    zipmapped,
)


@pytest.fixture
def exports(tmp_path):
    (tmp_path / "exports").mkdir()
    return tmp_path / "exports"


@pytest.fixture
def init(tmp_path, capsys):
    """Run the command; returns (status, what it wrote)."""

    def run(*words):
        status = main(["init", *map(str, words), "--to", str(tmp_path / "models")])
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def config(tmp_path, name):
    return text_format.Parse((tmp_path / "models" / name / "config.pbtxt").read_text(), ModelConfig())


def states(said):
    rows = [line.split("  ") for line in said.splitlines()]
    table = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    return {row[3]: row[4] for row in table if len(row) == 5 and row[0] != "FILE"}


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# -- what is written


def test_an_onnx_file_becomes_a_model_that_is_complete(exports, tmp_path, init):
    onnx_model(exports / "scores.onnx", external="scores.data")
    before = files(exports)
    status, said = init(exports)
    assert (status, states(said)) == (0, {"scores": "ready"})
    assert files(tmp_path / "models") == [
        "scores/1/model.onnx",
        "scores/1/scores.data",
        "scores/config.pbtxt",
    ]
    written = config(tmp_path, "scores")
    assert (written.backend, written.max_batch_size) == ("onnxruntime", 4)
    assert [(port.name, list(port.dims)) for port in (*written.input, *written.output)] == [
        ("X", [4]),
        ("Y", [4]),
    ]
    assert files(exports) == before
    assert f"tritium serve --model-repository={tmp_path / 'models'}" in said
    [document] = re.findall(r"infer \\\n    -d '(.*)'", said)
    asked = json.loads(document)
    assert asked["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}]
    assert main(["check", "--quiet", str(tmp_path / "models")]) == 0
    assert sorted(os.listdir(tmp_path)) == ["exports", "models"]


def test_an_output_that_no_request_can_carry_is_not_left_out_in_silence(exports, tmp_path, init):
    (exports / "classes.onnx").write_bytes(zipmapped())
    status, said = init(exports)
    assert (status, states(said)) == (1, {"classes": "to do"})
    assert "options={'zipmap': False}" in said
    assert not config(tmp_path, "classes").output


def test_an_exported_program_is_complete(exports, tmp_path, init):
    shutil.copyfile(EXPORTED, exports / "scores.bin")
    assert init(exports)[0] == 0
    written = config(tmp_path, "scores")
    assert (written.backend, written.platform) == ("pytorch", "torch_aoti")
    assert [list(port.dims) for port in (*written.input, *written.output)] == [[-1, 64], [-1, 10]]


@pytest.mark.parametrize(("traced", "dims"), [(False, "-1"), (True, "2, 4")])
def test_of_torchscript_it_is_said_what_to_fill_in(exports, tmp_path, init, traced, dims):
    script(exports / "scores.pt", traced=traced)
    status, said = init(exports)
    assert (status, states(said)) == (1, {"scores": "to do"})
    line = f'input [ {{ name: "features" data_type: TYPE_FP32 dims: [ {dims} ] }} ]'
    assert f"fill in {line}" in said
    path = tmp_path / "models" / "scores" / "config.pbtxt"
    text = path.read_text()
    assert f"# {line}" in text
    path.write_text(re.sub(r"^# ((?:in|out)put )", r"\1", text, flags=re.MULTILINE))
    assert main(["check", "--quiet", str(tmp_path / "models")]) == 0


def test_python_models_say_it_themselves_and_bring_their_modules(exports, tmp_path, init):
    (exports / "twice.py").write_text(TRITON_MODEL)
    (exports / "doubling.py").write_text(DOUBLING)
    (exports / "negated.py").write_text(TRITIUM_MODEL)
    status, said = init(exports)
    assert (status, states(said)) == (0, {"negated": "ready", "twice": "ready"})
    assert (tmp_path / "models" / "twice" / "config.pbtxt").read_text() == 'backend: "python"\n'
    assert files(tmp_path / "models" / "twice" / "1") == ["doubling.py", "model.py"]


def test_the_tensors_of_a_python_model_that_does_not_say_them_are_named(exports, init):
    (exports / "twice.py").write_text(SILENT_MODEL)
    status, said = init(exports)
    assert (status, states(said)) == (1, {"twice": "to do"})
    assert 'fill in input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]' in said
    assert 'fill in output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]' in said


def test_without_model_code_nothing_is_run(exports, tmp_path, init):
    (exports / "twice.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{TRITON_MODEL}")
    init(exports, "--no-model-code")
    assert not (tmp_path / "ran").exists()


def test_a_python_model_that_does_not_compile(exports, init):
    (exports / "broken.py").write_text("class TritonPythonModel:\n  def\n")
    status, said = init(exports)
    assert (status, states(said)) == (1, {"broken": "to do"})
    assert "does not compile" in said


def test_versions_stay_versions(exports, tmp_path, init):
    for number in (1, 4):
        (exports / "scores" / str(number)).mkdir(parents=True)
        onnx_model(exports / "scores" / str(number) / "net.onnx")
    assert init(exports)[0] == 0
    assert files(tmp_path / "models") == [
        "scores/1/model.onnx",
        "scores/4/model.onnx",
        "scores/config.pbtxt",
    ]


# -- what can't be served


def test_foreign_files_are_named_with_what_to_do(exports, init):
    for name, content in FOREIGN.items():
        (exports / f"{name.replace(' ', '_').replace('.', '_')}").write_bytes(content)
    status, said = init(exports)
    assert status == 1
    for name in FOREIGN:
        assert name in said
    for advice in (
        "git lfs pull",
        "tritium run --llm FOLDER",
        "model.export('FOLDER')",
        "save_model('NAME.onnx'",
    ):
        assert advice in said


def test_a_backend_that_is_missing_is_named(exports, init, tmp_path, monkeypatch):
    absent = {name: each for name, each in discover().items() if name not in ("fil", "openvino")}
    monkeypatch.setattr(command, "discover", lambda: absent)
    (exports / "forest.json").write_bytes(
        b'{"learner":{"learner_model_param":{"num_feature":"5"},"objective":{"name":"binary:logistic"}}}'
    )
    status, said = init(exports)
    assert (status, states(said)) == (1, {"forest": "backend missing"})
    assert "this Tritium has no backend 'fil'" in said
    written = config(tmp_path, "forest")
    assert {key: value.string_value for key, value in written.parameters.items()} == {
        "model_type": "xgboost_json",
        "is_classifier": "true",
    }
    assert [list(port.dims) for port in (*written.input, *written.output)] == [[5], [1]]
    assert files(tmp_path / "models" / "forest" / "1") == ["xgboost.json"]


def test_what_a_forest_does_not_tell_is_asked_for(exports, init, monkeypatch):
    monkeypatch.setattr(command, "discover", dict)
    (exports / "forest").write_bytes(b'{"learner":{}}')
    said = init(exports)[1]
    assert 'is_classifier "true"' in said
    assert "how many columns" in said


def test_a_backend_s_packages_are_named_with_their_command(exports, init, monkeypatch):
    known = dict(discover())
    known["onnxruntime"] = replace(
        known["onnxruntime"], missing="the package 'onnxruntime' is not installed: pip X"
    )
    known.pop("openvino", None)
    monkeypatch.setattr(command, "discover", lambda: known)
    onnx_model(exports / "scores.onnx")
    status, said = init(exports)
    assert (status, states(said)) == (1, {"scores": "backend missing"})
    assert said.count("the package 'onnxruntime' is not installed: pip X") == 1


def test_nothing_to_be_found(exports, tmp_path, init):
    (exports / "notes.txt").write_text("no model")
    status, said = init(exports)
    assert (status, (tmp_path / "models").exists()) == (1, False)
    assert "no model was recognised" in said


# -- what is there already


def test_what_is_there_is_replaced_only_by_force(exports, tmp_path, init):
    onnx_model(exports / "scores.onnx")
    init(exports)
    mine = tmp_path / "models" / "scores" / "mine.txt"
    mine.write_text("mine")
    status, said = init(exports)
    assert (status, mine.exists()) == (1, True)
    assert "is there already; --force replaces it" in " ".join(said.split())
    status, said = init(exports, "--force")
    assert (status, mine.exists(), states(said)) == (0, False, {"scores": "ready"})


def test_a_repository_is_told_what_it_is(exports, init):
    (exports / "scores" / "1").mkdir(parents=True)
    onnx_model(exports / "scores" / "1" / "model.onnx")
    status, said = init(exports)
    assert (status, f"tritium serve --model-repository={exports}" in said) == (0, True)
    status, said = init(exports / "scores")
    assert (status, "is the directory of a model already" in said) == (0, True)


@pytest.fixture
def at_home(exports, monkeypatch, capsys):
    """A model in a repository, without a configuration; run the command on a path from the repository."""
    (exports / "scores" / "1").mkdir(parents=True)
    onnx_model(exports / "scores" / "1" / "model.onnx")
    monkeypatch.chdir(exports)

    def run(*words):
        status = main(["init", *map(str, words)])
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


@pytest.mark.parametrize(
    "words",
    [
        ("scores/1/model.onnx",),
        ("scores/1",),
        ("scores",),
        ("scores/1/model.onnx", "--to", "."),
        ("./scores", "--to", "../exports", "--link"),
    ],
)
def test_a_model_in_a_repository_gets_its_configuration_there(exports, at_home, words):
    status, said = at_home(*words)
    assert (status, states(said)) == (0, {"scores": "ready"})
    assert files(exports) == ["scores/1/model.onnx", "scores/config.pbtxt"]
    assert os.listdir(exports.parent) == ["exports"]
    assert "nothing else:\n  scores/config.pbtxt" in said
    assert "tritium serve --model-repository=." in said
    assert main(["check", "--quiet", "."]) == 0


def test_all_versions_of_such_a_model_count(exports, at_home, monkeypatch):
    (exports / "scores" / "2").mkdir()
    onnx_model(exports / "scores" / "2" / "model.onnx")
    monkeypatch.chdir(exports / "scores" / "2")
    status, said = at_home("model.onnx")
    assert (status, "../../scores/config.pbtxt" in said) == (0, True)
    assert files(exports) == ["scores/1/model.onnx", "scores/2/model.onnx", "scores/config.pbtxt"]


def test_a_configuration_names_a_file_that_is_not_called_as_usual(exports, at_home):
    shutil.copyfile(EXPORTED, exports / "scores" / "1" / "model.pt")
    (exports / "scores" / "1" / "model.onnx").unlink()
    assert at_home("scores/1/model.pt")[0] == 0
    written = text_format.Parse((exports / "scores" / "config.pbtxt").read_text(), ModelConfig())
    assert (written.backend, written.default_model_filename) == ("pytorch", "model.pt")
    assert main(["check", "--quiet", "."]) == 0


def test_a_configuration_that_is_there_stays(exports, at_home):
    (exports / "scores" / "config.pbtxt").write_text("max_batch_size: 2\n")
    status, said = at_home("scores/1/model.onnx", "--force")
    assert (status, "belongs to a model already" in said, "left as it is" in said) == (0, True, True)
    assert (exports / "scores" / "config.pbtxt").read_text() == "max_batch_size: 2\n"


def test_a_version_with_several_models_is_left_alone(exports, at_home):
    script(exports / "scores" / "1" / "model.pt")
    status, said = at_home("scores/1/model.onnx")
    assert (status, "belongs to a model already" in said) == (0, True)
    assert files(exports) == ["scores/1/model.onnx", "scores/1/model.pt"]


def test_a_plan_for_a_model_in_a_repository_writes_nothing(exports, at_home):
    status, said = at_home("scores/1/model.onnx", "--dry-run")
    assert (status, "Would be written, and nothing else:" in said) == (0, True)
    assert files(exports) == ["scores/1/model.onnx"]


def test_a_version_is_copied_to_another_repository_by_its_name(exports, tmp_path, init):
    (exports / "scores" / "3").mkdir(parents=True)
    onnx_model(exports / "scores" / "3" / "model.onnx")
    for path in ("3/model.onnx", "3"):
        status, said = init(exports / "scores" / path, "--force")
        assert (status, states(said)) == (0, {"scores": "ready"})
        assert files(tmp_path / "models") == ["scores/3/model.onnx", "scores/config.pbtxt"]


def test_the_repository_may_lie_among_the_files(exports, capsys):
    onnx_model(exports / "scores.onnx")
    words = ["init", str(exports), "--to", str(exports / "made")]
    assert main(words) == 0
    assert main([*words, "--force"]) == 0
    assert "made" not in [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]


@pytest.mark.parametrize("to", ["exports", ".", "exports/scores.onnx"])
def test_a_place_where_no_repository_can_be_is_refused(exports, tmp_path, capsys, to):
    onnx_model(exports / "scores.onnx")
    before = files(tmp_path)
    assert main(["init", str(exports), "--to", str(tmp_path / to)]) == 1
    assert "--to" in capsys.readouterr().err
    assert files(tmp_path) == before


def test_no_such_path(init, tmp_path):
    assert init(tmp_path / "nothing")[0] == 1


# -- how files get there


def test_a_plan_writes_nothing(exports, tmp_path, init):
    onnx_model(exports / "scores.onnx")
    status, said = init(exports, "--dry-run")
    assert (status, states(said), os.listdir(tmp_path)) == (0, {"scores": "ready"}, ["exports"])
    assert re.search(r"models/scores/1/model.onnx +from scores.onnx", said)


def test_links_copy_nothing(exports, tmp_path, init):
    onnx_model(exports / "scores.onnx")
    assert init(exports, "--link")[0] == 0
    assert (tmp_path / "models/scores/1/model.onnx").samefile(exports / "scores.onnx")
    assert not (tmp_path / "models/scores/1/model.onnx").is_symlink()


def test_where_no_hard_link_can_be_the_link_is_symbolic(exports, tmp_path, init, monkeypatch):
    def elsewhere(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(laying.os, "link", elsewhere)
    onnx_model(exports / "scores.onnx")
    status, said = init(exports, "--link")
    assert (status, (tmp_path / "models/scores/1/model.onnx").is_symlink()) == (0, True)
    assert "--model-repository-links=inside" in said


def test_a_full_disk_leaves_nothing_behind(exports, tmp_path, init, monkeypatch):
    onnx_model(exports / "scores.onnx")
    usage = laying.shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(laying.shutil, "disk_usage", lambda _: usage)
    status, said = init(exports)
    assert (status, files(tmp_path)) == (1, ["exports/scores.onnx"])
    assert "10 B are free" in " ".join(said.split())


def test_sizes_are_for_readers():
    assert [laying.as_size(each) for each in (0, 1023, 1536, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]


# -- `tritium check` proposes it


def test_check_proposes_it(exports, capsys):
    onnx_model(exports / "scores.onnx")
    main(["check", str(exports)])
    assert f"`tritium init {exports}`" in capsys.readouterr().err
    main(["check", str(exports / "scores.onnx")])
    assert f"`tritium init {exports / 'scores.onnx'}`" in capsys.readouterr().err
    (exports / "laid" / "1").mkdir(parents=True)
    onnx_model(exports / "laid" / "1" / "model.onnx")
    main(["check", str(exports / "laid" / "1" / "model.onnx")])
    assert f"so check {exports / 'laid'}\n" in capsys.readouterr().err
    shutil.rmtree(exports / "laid")
    (exports / "more").mkdir()
    onnx_model(exports / "more" / "scores.onnx")
    main(["check", str(exports)])
    assert f"`tritium init {exports}`" in capsys.readouterr().err


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["init", "--help"])
    said = capsys.readouterr().out
    assert "examples:" in said
    assert "--dry-run" in said
