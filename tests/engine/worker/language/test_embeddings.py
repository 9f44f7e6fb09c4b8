"""Folders of encoders: their vectors, and what is refused before it could end the engine."""

import json

import pytest
import torch

from actors.values.errors import InvalidArgument
from engine.worker.backends.base import LoadError
from engine.worker.backends.language.model_folder import Arguments
from engine.worker.backends.language.transformers_engine import load_engine
from tests.support.llm.engines import Driver

transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def _saved(folder, kind="Bert", **more):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, "max_position_embeddings": 32, **more})
    model = getattr(transformers, f"{kind}Model")(config).eval()
    model.save_pretrained(folder)
    return model


def _driver(folder):
    return Driver(load_engine(str(folder), Arguments(), torch.device("cpu")))


def _states(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).last_hidden_state[0]


def _of_length_1(vector):
    return pytest.approx((vector / vector.norm()).tolist(), abs=1e-5)


def _pooled(folder, **said):
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))


def test_an_encoder_gives_embeddings_and_no_text(tmp_path):
    """Any folder that is no causal model's."""
    model = _saved(tmp_path)
    driver = _driver(tmp_path)
    assert driver.engine.context == 32
    stories = [driver.add(ids, embed=True) for ids in ([3, 4, 5], [6] * 32, [7])]
    driver.run()
    assert stories[0].embedding == _of_length_1(_states(model, [3, 4, 5]).mean(0))
    with pytest.raises(InvalidArgument, match="generates no text"):
        driver.add([3], max_tokens=3)
    gone = driver.add([3], embed=True)
    driver.abort(gone)
    assert not driver.engine.busy


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, 0),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, -1),
        ({"pooling_mode": "cls"}, 0),
    ],
)
def test_vectors_are_those_that_the_folder_was_trained_for(tmp_path, said, place):
    """As sentence-transformers writes it down: a mean in place of the first state finds other texts."""
    model = _saved(tmp_path)
    _pooled(tmp_path, **said)
    driver = _driver(tmp_path)
    stories = [driver.add(ids, embed=True) for ids in ([3, 4, 5], [6] * 9)]
    driver.run()
    assert stories[0].embedding == _of_length_1(_states(model, [3, 4, 5])[place])


def test_a_folder_of_sentence_transformers_may_say_the_mean(tmp_path):
    """And tell of its size beside it."""
    model = _saved(tmp_path)
    _pooled(tmp_path, word_embedding_dimension=16, pooling_mode_mean_tokens=True)
    assert _driver(tmp_path).one([3, 4, 5], embed=True).embedding == _of_length_1(
        _states(model, [3, 4, 5]).mean(0)
    )


def test_vectors_that_would_be_wrong_are_not_given(tmp_path):
    """What is done behind the model, and is not known here, is named."""
    _saved(tmp_path)
    _pooled(tmp_path, pooling_mode_max_tokens=True)
    with pytest.raises(LoadError, match="asks for pooling 'max'; there are mean, cls, lasttoken"):
        _driver(tmp_path)
    (tmp_path / "modules.json").write_text(
        '[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]'
    )
    with pytest.raises(LoadError, match="has a module 'Dense'"):
        _driver(tmp_path)
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(LoadError, match="is no JSON"):
        _driver(tmp_path)


def test_a_model_takes_no_more_tokens_than_it_has_positions_for(tmp_path):
    """RoBERTa's begin behind that of padding. One token too many would end the engine for all."""
    _saved(tmp_path, "Roberta", pad_token_id=1)
    driver = _driver(tmp_path)
    assert driver.engine.context == 30
    assert len(driver.one([5] * 30, embed=True).embedding) == 16
    with pytest.raises(InvalidArgument, match="maximum context length"):
        driver.add([5] * 31, embed=True)


def test_a_model_that_takes_more_than_tokens_is_refused_as_it_loads(tmp_path):
    """And not by the end of the engine at the first request."""
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 64}
    transformers.T5Model(transformers.T5Config(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="gives no embeddings of token ids alone"):
        _driver(tmp_path)


def test_shorter_vectors_are_given_by_models_that_were_trained_for_them(tmp_path):
    """Of length 1 again."""
    model = _saved(tmp_path, matryoshka_dimensions=[8, 16])
    driver = _driver(tmp_path)
    assert driver.one([3, 4], embed=True, dimensions=8).embedding == _of_length_1(
        _states(model, [3, 4]).mean(0)[:8]
    )
    assert len(driver.one([3, 4], embed=True, dimensions=16).embedding) == 16
    with pytest.raises(InvalidArgument, match="'dimensions' is 4; this model's vectors may have 8, 16"):
        driver.add([3, 4], embed=True, dimensions=4)


@pytest.mark.parametrize(
    ("said", "dimensions", "text"),
    [
        ({}, 8, "was not trained for vectors shorter than its 16"),
        ({"is_matryoshka": True}, 17, "have 1 to 16 numbers"),
    ],
)
def test_a_length_that_vectors_can_t_have_is_refused(tmp_path, said, dimensions, text):
    """A vector of another length than was asked for would spoil a client's index."""
    _saved(tmp_path, **said)
    with pytest.raises(InvalidArgument, match=text):
        _driver(tmp_path).add([3], embed=True, dimensions=dimensions)
