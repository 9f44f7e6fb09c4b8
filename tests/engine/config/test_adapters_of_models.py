"""The LoRA adapters that a version names, and what of its files an engine takes up while it serves."""

import json

import pytest

from engine.processes.backends import BackendTraits
from engine.repository.source import contents_of

CONFIG = 'backend: "vllm"\ninstance_group { count: 1 kind: KIND_MODEL }\n'
ENABLED = {"1/model.json": '{"enable_lora": "True"}'}
FILE = "1/multi_lora.json"
A, B = "a" * 64, "b" * 64


@pytest.fixture
def backends():
    return {"vllm": BackendTraits(name="vllm", language=True, concurrent=False, pure=True, adapters=True)}


def test_the_file_names_them(load, tmp_path):
    """A folder is looked at; what is none may be a name of a hub's."""
    named = {"tone": "tone", "far": "org/far"}
    files = {**ENABLED, FILE: json.dumps(named), "1/tone/adapter_config.json": "{}"}
    (spec,) = load(CONFIG, files=files, without_adapters={1: "w"}, content={1: "c"}).specs
    tone, far = spec.scheduling.adapters
    assert tone[:3] == ("tone", "tone", str(tmp_path / "repository" / "m" / "1" / "tone"))
    assert tone.id
    assert far == ("far", "org/far", "org/far", "")
    assert spec.content == "w"


def test_links_that_lead_nowhere_are_no_files_of_an_adapter(write_model, backends):
    from engine.config.load import load_model_config

    folder = write_model(
        "m", CONFIG, {**ENABLED, FILE: '{"tone": "tone"}', "1/tone/adapter_config.json": "{}"}
    )
    (before,) = load_model_config(folder, backends=backends).specs
    (folder / "1" / "tone" / "loop").symlink_to("loop")
    (folder / "1" / "tone" / "gone").symlink_to("none")
    (after,) = load_model_config(folder, backends=backends).specs
    assert after.scheduling == before.scheduling


@pytest.mark.parametrize("arguments", ['{"enable_lora": false}', "{}", "[]", "{", '"enable_lora"'])
def test_the_file_is_looked_for_only_if_they_are_enabled(load, arguments):
    (spec,) = load(CONFIG, files={"1/model.json": arguments, FILE: "{"}).specs
    assert spec.scheduling.adapters == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "Triton backend cannot find {path}."),
        ("{", "'{path}' can't be read as JSON: Expecting property name"),
        ("[" * 100_000, "'{path}' can't be read as JSON: "),
        (b"\xff", "'{path}' can't be read as JSON: "),
        (" " * 4194305, "'{path}' can't be read as JSON: it has more than 4194304 bytes"),
        ("[1]", "'{path}' must be a JSON object"),
        ('{"tone": 3}', "'{path}': adapter 'tone' must have the path of its folder, got 3"),
        ('{"tone": ""}', "'{path}': adapter 'tone' must have the path of its folder, got ''"),
        ('{"": "tone"}', "'{path}': the adapter in 'tone' has no name"),
        ('{"tone": "a\\u0000b"}', "'{path}': adapter 'tone': 'a\\x00b' is no path"),
        ('{"\\ud800": "tone"}', "'{path}': '\\ud800' has half a surrogate pair"),
        ('{"tone": "\\udfff"}', "'{path}': '\\udfff' has half a surrogate pair"),
    ],
)
def test_a_file_that_can_not_be_used_is_told_with_its_place(load, tmp_path, text, told):
    loaded = load(CONFIG, files={**ENABLED, **({} if text is None else {FILE: text})})
    path = tmp_path / "repository" / "m" / FILE
    (problem,) = loaded.errors
    assert problem.message.startswith(told.format(path=path))
    assert problem.path == path
    assert not loaded.specs


def test_the_folder_that_has_the_model_is_found(load, write_model, backends, tmp_path):
    """For what it will take of memory."""
    from engine.config.load import load_model_config

    weights = tmp_path / "weights"
    weights.mkdir()
    said = {"1/model.json": json.dumps({"model": str(weights)}), "2/model.json": '{"model": "."}'}
    more = {"3/model.json": '{"model": "org/model"}', "4/model.json": '{"model": "a\\u0000b"}'}
    policy = "version_policy { all {} }"
    loaded = load_model_config(write_model("n", f"{CONFIG}{policy}", {**said, **more}), backends=backends)
    first, *others = loaded.specs
    assert first.directories == (first.version_directory, weights)
    assert [each.directories for each in others] == [(each.version_directory,) for each in others]


def test_a_link_out_of_the_repository_is_not_read(write_model, backends, tmp_path):
    from engine.config.load import load_model_config

    folder = write_model("m", CONFIG, ENABLED)
    (tmp_path / "elsewhere.json").write_text("{}")
    (folder / FILE).symlink_to(tmp_path / "elsewhere.json")
    (problem,) = load_model_config(folder, backends=backends).errors
    assert "leads out of the model repository" in problem.message


def test_adapters_are_no_part_of_what_an_engine_was_loaded_from():
    """A model's own folder may look like an adapter, which keeps it from loading."""
    before = {"1/model.json": A, "1/adapter_config.json": A}
    after = {**before, FILE: A, "1/x/tone/adapter_config.json": A, "1/x/tone/sub/weights": B}
    one, other = contents_of(before), contents_of(after)
    assert one.without_adapters == other.without_adapters
    assert one.without_adapters == one.versions
    assert other.versions != one.versions
    assert contents_of({**after, "1/x/weights": A}).without_adapters != one.without_adapters
    assert contents_of({**before, "1/adapter_config.json": B}).without_adapters != one.without_adapters
