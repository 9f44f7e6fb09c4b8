"""`tritium run --llm`: which folders it takes, what it makes of them, and what it tells its operator."""

import json
import os

import pytest

from engine.__main__ import main
from engine.cli.llm import command, folder
from engine.cli.llm.folder import NotServable, check_servable, name_of, write_repository
from engine.config.load import load_model_config
from engine.processes.backends import BackendTraits

FILES = {"config.json": '{"model_type": "llama"}', "model.safetensors": "", "tokenizer.json": "{}"}


@pytest.fixture
def llm(tmp_path):
    """Write a folder of the given files, by default those of a language model."""

    def write(files=FILES, name="small"):
        written = tmp_path / name
        written.mkdir(parents=True)
        for file, content in files.items():
            (written / file).write_text(content)
        return written

    return write


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    """The packages that are missing; none, unless a test says so."""
    missing: set[str] = set()
    monkeypatch.setattr(folder, "is_missing", missing.__contains__)
    return missing


def test_a_model_is_called_as_its_folder(tmp_path):
    assert name_of(tmp_path / "Qwen3-0.6B") == "Qwen3-0.6B"
    assert name_of(tmp_path / "my model!") == "my_model_"


def test_in_a_cache_of_downloads_a_model_is_called_as_its_author_calls_it(tmp_path):
    assert name_of(tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "c1899de2") == "Qwen3-0.6B"
    assert name_of(tmp_path / "models--gpt2" / "snapshots" / "607a30d7") == "gpt2"


@pytest.mark.parametrize("backend", ["transformers", "vllm"])
def test_a_whole_folder_is_served_where_it_lies(llm, backend, tmp_path):
    written = llm()
    assert check_servable(written, backend) == written
    directory = write_repository(written, tmp_path / "repository", name="m", backend=backend)
    assert json.loads((directory / "1" / "model.json").read_text()) == {"model": str(written)}
    traits = BackendTraits(name=backend, language=True)
    loaded = load_model_config(directory, backends={backend: traits}, run_model_code=False)
    assert [(spec.name, spec.version, spec.backend) for spec in loaded.specs] == [("m", 1, backend)]


def test_the_engine_s_environment_is_the_model_s_parameter(llm, tmp_path):
    directory = write_repository(
        llm(), tmp_path / "r", name="m", backend="vllm", environment='/envs/"v" é.tar.gz'
    )
    loaded = load_model_config(directory, backends={"vllm": BackendTraits(name="vllm", language=True)})
    assert loaded.specs[0].parameters == {"EXECUTION_ENV_PATH": '/envs/"v" é.tar.gz'}


WITHOUT = [
    ("config.json", "has no 'config.json'"),
    ("model.safetensors", "has no '*.safetensors'"),
    ("tokenizer.json", "has no tokenizer"),
]


@pytest.mark.parametrize(("name", "said"), WITHOUT)
def test_what_a_folder_lacks_is_named(llm, name, said):
    written = llm({file: content for file, content in FILES.items() if file != name})
    with pytest.raises(NotServable) as refused:
        check_servable(written, "transformers")
    assert str(refused.value).startswith(f"'{written}' {said}")
    assert "model.json" not in str(refused.value)  # there is none to edit


def test_a_folder_with_nothing_but_pickles_is_refused(llm):
    files = {"config.json": "{}", "pytorch_model.bin": "", "tokenizer.json": "{}"}
    with pytest.raises(NotServable, match=r"only pytorch_model\.bin, which can run code as they are loaded"):
        check_servable(llm(files), "transformers")


def test_a_folder_with_code_of_its_own_is_refused(llm):
    files = FILES | {"config.json": '{"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}'}
    with pytest.raises(NotServable, match="code from a model folder is never run here"):
        check_servable(llm(files), "transformers")


def test_a_path_that_is_no_folder_is_told_apart(llm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = llm()
    for given, said, hint in (
        (tmp_path / "nowhere", f"there is no folder '{tmp_path / 'nowhere'}'", ""),
        (written / "config.json", f"{written / 'config.json'} is a file", "name the folder that it lies in"),
        (
            type(written)("Qwen/Qwen3-0.6B"),
            "there is no folder 'Qwen/Qwen3-0.6B', and nothing is downloaded",
            "download it first: hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B",
        ),
    ):
        with pytest.raises(NotServable) as refused:
            check_servable(given, "transformers")
        assert str(refused.value) == said
        assert refused.value.hint.startswith(hint)


def test_a_backend_that_there_is_not_is_refused(llm):
    with pytest.raises(NotServable) as refused:
        check_servable(llm(), "tgi")
    assert refused.value.hint == "it is transformers or vllm"


def test_what_is_not_installed_is_told_with_the_cure(llm, packages):
    written = llm()
    packages |= {"transformers", "vllm"}
    with pytest.raises(
        NotServable, match=r"the package 'transformers', which is not installed: pip install .*\[llm\]"
    ):
        check_servable(written, "transformers")
    with pytest.raises(NotServable, match="needs the package 'vllm'") as refused:
        check_servable(written, "vllm")
    assert "--environment" in refused.value.hint
    assert check_servable(written, "vllm", environment="/envs/v") == written
    packages.add("tokenizers")
    with pytest.raises(NotServable, match="the package 'tokenizers'"):
        check_servable(written, "vllm", environment="/envs/v")


def test_the_openai_api_is_at_one_place_unless_told_otherwise():
    def place(*flags, **environ):
        said = command._settings([f"--model-repository={os.getcwd()}", *flags], environ).openai
        return said.allow, said.address, said.port

    assert place() == (True, "127.0.0.1", 9000)
    assert place("--openai-port=80", "--openai-address", "0.0.0.0") == (True, "0.0.0.0", 80)
    assert place(TRITIUM_OPENAI_PORT="81") == (True, "127.0.0.1", 81)


def test_what_is_printed_at_start_can_be_pasted(monkeypatch):
    def told(*flags):
        settings = command._settings([f"--model-repository={os.getcwd()}", *flags], {})
        return command.how_to_ask("small", "transformers", settings)

    said = told("--openai-address=0.0.0.0")
    assert "curl http://127.0.0.1:9000/v1/chat/completions -H 'Content-Type: application/json'" in said
    lines = said[said.index("  from openai") :].splitlines()
    compile("\n".join(line.removeprefix("  ") for line in lines), "snippet", "exec")
    assert 'base_url="http://127.0.0.1:9000/v1"' in said
    assert told("--openai-port=0").endswith("once it is loaded; the log tells the port.\n")


COMPLAINTS = [
    (("--llm",), "argument --llm: expected one argument\n"),
    (("--llm={small}", "--name=a/b"), "--name is 'a/b', which no model can be called\n"),
    (("--llm={small}", "--model-control-mode=poll"), "--model-control-mode=poll is for repositories\n"),
    (("--llm={small}", "--no-such-flag=1"), "unrecognized option '--no-such-flag'\n"),
    (("--llm={small}/nowhere",), "there is no folder '{small}/nowhere'\n"),
]


@pytest.mark.parametrize(("words", "said"), COMPLAINTS)
def test_a_command_line_that_makes_no_sense_is_explained(llm, capsys, words, said):
    small = str(llm())
    assert main(["run", *(word.format(small=small) for word in words)]) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith(said.format(small=small))
    assert complaint.endswith("`tritium run --llm --help` tells more.\n")


def test_help_teaches_both_forms(capsys):
    assert main(["run", "--llm", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: tritium run --llm FOLDER")
    assert main(["run", "--help"]) == 0
    assert "tritium run --llm FOLDER" in capsys.readouterr().out
