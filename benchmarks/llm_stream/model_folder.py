"""The language models that are served: a tokenizer made on the spot, and a paced engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.llm_stream.paced import CONTEXT

VOCABULARY: Final = 512
_TEXT: Final = (
    "A lamp stands at the harbour wall, and every evening the keeper walks there and lights it. "
    "Ships that come in late see it from far away, and those that leave early see it go out."
)
_CONFIG: Final = """\
backend: "paced"
max_batch_size: 0
model_transaction_policy {{ decoupled: true }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters {{ key: "pace" value {{ string_value: "{pace}" }} }}
parameters {{ key: "tokens" value {{ string_value: "{tokens}" }} }}
parameters {{ key: "room" value {{ string_value: "1024" }} }}
"""
_TEMPLATE: Final = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def write_model(repository: Path, name: str, *, pace: float, tokens: int) -> None:
    """Write a model whose engine gives every stream `tokens` tokens in each step of `pace` seconds."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(_CONFIG.format(pace=pace, tokens=tokens))
    write_tokenizer(version)


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer, as those of GPT-2 and Llama 3, with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"eos_token": "<|end|>", "chat_template": _TEMPLATE, "model_max_length": CONTEXT}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    config = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": CONTEXT}
    (folder / "config.json").write_text(json.dumps(config))
