"""Tokenizers and templates from model folders."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from engine.worker.text.loading import LoadFailed, load
from tests.support.llm import spelt


@pytest.fixture
def folder(tmp_path):
    return spelt.write(tmp_path / "m", spelt.byte_level())


def test_a_folder_says_what_the_server_has_to_know(folder):
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [3, 2], "temperature": 0.6, "top_k": 20, "top_p": None, "max_length": 9})
    )

    loaded = load(str(folder))

    assert loaded.facts() == {
        "eos": [spelt.END, 2, 3],
        "vocabulary": spelt.byte_level().get_vocab_size(),
        "template": True,
        "sampling": {"temperature": 0.6, "top_k": 20},
    }


def test_ids_are_those_that_the_model_embeds(folder):
    (folder / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 999, "eos_token_id": 7}}))

    loaded = load(str(folder))

    assert loaded.size == 999
    assert sorted(loaded.vocabulary.eos) == [spelt.END, 7]
    (folder / "config.json").unlink()
    (folder / "tokenizer_config.json").write_text("{}")
    assert load(str(folder)).size == spelt.byte_level().get_vocab_size()
    assert load(str(folder)).facts()["eos"] == []


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({"add_bos_token": True}, [spelt.BEGIN, None]),
        ({"add_bos_token": False}, [None]),
        ({"add_eos_token": True}, [None, spelt.END]),
        ({"add_bos_token": True, "add_eos_token": True}, [spelt.BEGIN, None, spelt.END]),
        ({"add_bos_token": True, "bos_token": "<absent>"}, [None]),
        ({}, [spelt.BEGIN, None]),
    ],
)
def test_the_configuration_says_which_tokens_go_around_a_text(tmp_path, config, ids):
    loaded = load(str(spelt.write(tmp_path, spelt.byte_level(), **config)))
    (token,) = loaded.tokenizer.encode("x", add_special_tokens=False).ids

    assert loaded.tokenizer.encode("x").ids == [token if each is None else each for each in ids]


def test_templates_come_from_files_before_the_configuration(tmp_path):
    named = [{"name": "default", "template": "old"}, {"name": "tool_use", "template": "tools"}]
    folder = spelt.write(tmp_path, spelt.byte_level(), template=named)
    assert load(str(folder)).templates.sources == {"default": "old", "tool_use": "tools"}

    (folder / "chat_template.jinja").write_text("new")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("rag")
    (folder / "additional_chat_templates" / "notes.txt").write_text("no")
    assert load(str(folder)).templates.sources == {"default": "new", "tool_use": "tools", "rag": "rag"}


def test_a_template_may_lie_in_a_file_of_its_own_json(tmp_path):
    folder = spelt.write(tmp_path, spelt.byte_level(), template=None)
    assert not load(str(folder)).templates

    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "x"}))
    assert load(str(folder)).templates.sources == {"default": "x"}


def test_what_is_missing_is_said(tmp_path, folder):
    with pytest.raises(LoadFailed, match="there is no folder"):
        load(str(tmp_path / "absent"))
    with pytest.raises(
        LoadFailed, match=r"has none of tokenizer\.json, tokenizer\.model.*beside config\.json"
    ):
        load(str(tmp_path))
    (folder / "config.json").write_text("[")
    with pytest.raises(LoadFailed, match=r"config\.json' can't be read"):
        load(str(folder))
    (folder / "config.json").write_text("[]")
    with pytest.raises(LoadFailed, match="no JSON object"):
        load(str(folder))
    (folder / "config.json").unlink()
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(LoadFailed, match=r"chat_template\.jinja' can't be read"):
        load(str(folder))
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(LoadFailed, match="can't be loaded"):
        load(str(folder))
    (folder / "tokenizer.json").write_bytes(b"\xff")
    with pytest.raises(LoadFailed, match=r"tokenizer\.json' can't be read"):
        load(str(folder))


def test_characters_bound_tokens_only_where_none_is_lost(tmp_path):
    assert load(str(spelt.write(tmp_path / "a", spelt.byte_level()))).longest > 0
    assert load(str(spelt.write(tmp_path / "b", spelt.spaced()))).longest > 0
    assert load(str(spelt.write(tmp_path / "c", spelt.word_pieces()))).longest == 0
    changed = spelt.byte_level()
    changed.normalizer = normalizers.Lowercase()
    assert load(str(spelt.write(tmp_path / "d", changed))).longest == 0
    changed.normalizer = normalizers.Replace("  ", " ")
    assert load(str(spelt.write(tmp_path / "e", changed))).longest == 0
    swallowing = spelt.byte_level()
    swallowing.add_tokens([AddedToken("<mask>", lstrip=True)])
    assert load(str(spelt.write(tmp_path / "f", swallowing))).longest == 0


def test_a_text_is_cut_only_where_words_are_split_first(tmp_path):
    def divisible(change, name):
        made = spelt.byte_level()
        change(made)
        return load(str(spelt.write(tmp_path / name, made))).divisible

    def pre(*steps):
        return lambda made: setattr(made, "pre_tokenizer", pre_tokenizers.Sequence(list(steps)))

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(" ", "merged_with_next")
    assert divisible(pre(split, byte_level), "a")
    assert not divisible(pre(byte_level), "b")
    assert not divisible(pre(pre_tokenizers.ByteLevel(add_prefix_space=True)), "c")
    assert not divisible(lambda made: made.add_tokens(["the lamp"]), "d")
    assert not divisible(lambda made: setattr(made, "normalizer", normalizers.NFC()), "e")


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
def test_a_vocabulary_without_a_tokenizer_json_is_converted(tmp_path):
    made = spelt.byte_level()
    made.model.save(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 400}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))

    loaded = load(str(tmp_path))

    ids = loaded.tokenizer.encode("the lamp 🕯").ids
    assert loaded.vocabulary.text(ids) == "the lamp 🕯"
    (tmp_path / "vocab.json").write_text("[")
    with pytest.raises(LoadFailed, match="can't be converted by transformers"):
        load(str(tmp_path))


def test_a_tokenizer_of_words_alone_is_loaded(tmp_path):
    made = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))

    assert load(str(spelt.write(tmp_path, made))).vocabulary.text([0]) == "a"
