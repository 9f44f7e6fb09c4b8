"""What is found below a path: models, versions, what belongs to them, and what is a repository's already."""

import shutil

import pytest

from engine.repository.bare import finding
from engine.repository.bare.finding import find
from engine.repository.bare.policy import formats
from tests.support.bare_models import DOUBLING, FOREIGN, TRITON_MODEL, onnx_model, safetensors
from tests.support.protobufs import message


@pytest.fixture
def tree(tmp_path):
    """Write files as {path: content}; returns the folder, which is called `exports`."""

    def write(files):
        for name, content in files.items():
            path = tmp_path / "exports" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path / "exports"

    return write


@pytest.fixture
def onnx(tmp_path):
    onnx_model(tmp_path / "any.onnx")
    return (tmp_path / "any.onnx").read_bytes()


def pieces(model):
    return {
        version.number: [(piece.source.name, piece.target) for piece in version.pieces]
        for version in model.versions
    }


def test_files_of_a_folder_and_of_those_below(tree, onnx):
    found = find(tree({"a.onnx": onnx, "b/model.onnx": onnx, "b/c/model.onnx": onnx, "notes.txt": "no"}))
    assert [(model.name, pieces(model)) for model in found.models] == [
        ("a", {1: [("a.onnx", "")]}),
        ("c", {1: [("model.onnx", "")]}),
        ("b", {1: [("model.onnx", "")]}),
    ]
    assert [path.name for path in found.others] == ["notes.txt"]


def test_one_file(tree, onnx):
    found = find(tree({"a.onnx": onnx, "b.onnx": onnx}) / "b.onnx")
    assert [(model.name, model.form) for model in found.models] == [("b", formats.ONNX)]


def test_numbered_folders_are_versions(tree, onnx):
    found = find(tree({"scores/1/x.onnx": onnx, "scores/20/y.onnx": onnx}))
    assert [(model.name, pieces(model)) for model in found.models] == [
        ("scores", {1: [("x.onnx", "")], 20: [("y.onnx", "")]})
    ]


def test_numbered_folders_of_several_models_are_no_versions(tree, onnx):
    found = find(tree({"s/1/x.onnx": onnx, "s/2/y.onnx": onnx, "s/2/z.onnx": onnx}))
    assert [model.name for model in found.models] == ["x", "y", "z"]
    found = find(tree({"t/1/x.onnx": onnx, "t/2/g": FOREIGN["GGUF"]}) / "t")
    assert [model.form.name for model in found.models] == ["ONNX", "GGUF"]


def test_what_a_repository_has_is_left_alone(tree, onnx):
    folder = tree(
        {"served/1/model.onnx": onnx, "told/config.pbtxt": "", "told/x.onnx": onnx, "new.onnx": onnx}
    )
    found = find(folder)
    assert ([path.name for path in found.served], [model.name for model in found.models]) == (
        ["served", "told"],
        ["new"],
    )
    assert find(folder / "served").served == [folder / "served"]


def test_weights_beside_an_onnx_model_belong_to_it(tree, tmp_path):
    folder = tree({"note.txt": ""})
    onnx_model(folder / "net.onnx", external="net.data")
    (model,) = find(folder).models
    assert pieces(model) == {1: [("net.onnx", ""), ("net.data", "net.data")]}
    (folder / "net.data").unlink()
    (model,) = find(folder).models
    assert model.problem == "its weights are missing: 'net.data' should be beside it"


@pytest.mark.parametrize("place", ["/etc/passwd", "../secret"])
def test_weights_elsewhere_are_not_fetched(tree, place):
    tensor = message((8, "w"), (13, message((1, "location"), (2, place))), (14, 1))
    graph = message((2, "g"), (5, tensor))
    (model,) = find(tree({"m.onnx": message((1, 10), (7, graph), (8, message((2, 21))))})).models
    assert model.problem == f"its weights are in '{place}', which leads out of its folder"


def test_weights_beside_openvino_s_and_paddle_s(tree):
    ir, paddle = FOREIGN["OpenVINO IR"], FOREIGN["PaddlePaddle"]
    found = find(tree({"m.xml": ir, "m.bin": "w", "p.pdmodel": paddle, "p.pdiparams": "w", "lone.xml": ir}))
    assert [(model.name, model.problem, pieces(model)[1][1:]) for model in found.models] == [
        ("lone", "its weights are missing: 'lone.bin' should be beside it", []),
        ("m", "", [("m.bin", "model.bin")]),
        ("p", "", [("p.pdiparams", "model.pdiparams")]),
    ]
    assert found.others == []


def test_modules_that_a_python_model_imports_belong_to_it(tree):
    files = {
        "model.py": TRITON_MODEL
        + "import parts.inner\nfrom numpy import array\nimport os, sys\nimport model\n",
        "doubling.py": DOUBLING + "from .deeper import x\n",
        "deeper.py": "x = 1\n",
        "parts/__init__.py": "",
        "parts/inner.py": "",
        "unrelated.py": "",
    }
    found = find(tree(files))
    (model,) = found.models
    assert (model.name, pieces(model)[1]) == (
        "exports",
        [("model.py", ""), ("doubling.py", "doubling.py"), ("parts", "parts"), ("deeper.py", "deeper.py")],
    )
    assert [path.name for path in found.others] == ["unrelated.py"]


def test_a_page_that_shows_a_model_is_none(tree):
    found = find(tree({"README.md": f"```{TRITON_MODEL}```"}))
    assert (found.models, len(found.others)) == ([], 1)


LANGUAGE = {
    "config.json": '{"model_type": "llama"}',
    "model.safetensors": safetensors(),
    "tokenizer.json": "{}",
}


def test_a_language_model_is_its_folder_without_pickles(tree):
    folder = tree({f"tiny/{name}": content for name, content in LANGUAGE.items()} | {"tiny/old.bin": "x"})
    (model,) = find(folder).models
    assert (model.name, model.form, model.problem) == ("tiny", formats.LANGUAGE, "")
    assert [name for _, name in pieces(model)[1]] == sorted(LANGUAGE)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tokenizer.json": None}, "it has no tokenizer"),
        ({"config.json": '{"auto_map": {"AutoModel": "m.M"}}'}, "code of its own"),
        ({"model.safetensors": None, "model.bin": "x"}, "has no '*.safetensors'"),
    ],
)
def test_what_keeps_a_language_model_from_being_served(tree, changed, said):
    files = {name: content for name, content in (LANGUAGE | changed).items() if content is not None}
    (model,) = find(tree(files)).models
    assert said in model.problem


@pytest.mark.parametrize(
    ("files", "form", "problem"),
    [
        (
            {"sm/saved_model.pb": FOREIGN["TensorFlow SavedModel"], "sm/variables/v": "x"},
            "TensorFlow SavedModel",
            "",
        ),
        ({"sm/saved_model.pb": "text"}, "TensorFlow SavedModel", "its saved_model.pb is damaged"),
        ({"m.mlpackage/Manifest.json": "{}", "m.mlpackage/Data/m.mlmodel": "x"}, "Core ML", ""),
        ({"d/model_index.json": "{}", "d/unet/config.json": "{}"}, "diffusers pipeline", ""),
    ],
)
def test_folders_that_are_one_model(tree, files, form, problem):
    (model,) = find(tree(files)).models
    assert model.form.name == form
    assert model.problem.startswith(problem)
    assert bool(model.problem) == bool(problem)


def test_versions_of_a_tensorflow_server(tree):
    saved = FOREIGN["TensorFlow SavedModel"]
    (model,) = find(tree({"m/1/saved_model.pb": saved, "m/3/saved_model.pb": saved})).models
    assert (model.name, [version.number for version in model.versions]) == ("m", [1, 3])


def test_what_is_hidden_or_written_to_is_passed_over(tree, onnx):
    folder = tree({".cache/a.onnx": onnx, "__pycache__/b.onnx": onnx, "made/c.onnx": onnx})
    assert find(folder, without=folder / "made").models == []


def test_a_folder_without_end_is_looked_at_in_part(tree, onnx, monkeypatch):
    monkeypatch.setattr(finding, "MOST_ENTRIES", 5)
    folder = tree({"a.onnx": onnx})
    for number in range(10):
        (folder / f"b{number}").touch()
    found = find(folder)
    assert found.cut
    assert [model.name for model in found.models] == ["a"]


def test_a_loop_of_links_ends(tree, onnx):
    folder = tree({"a.onnx": onnx})
    (folder / "again").symlink_to(folder)
    assert find(folder).models


def test_a_folder_that_goes_meanwhile(tree, onnx):
    folder = tree({"a.onnx": onnx})
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        find(folder)
