"""Tokenizers of the kinds that language models have, made in milliseconds and without torch."""

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXT = (
    "The lamp was lit, and Brücke the cat slept. It’s 217 steps; “stay”, said Señor Ibáñez 鮭 🕯.\n"
    '<tool_call>{"name": "read_tide", "arguments": {"tide": "low"}}</tool_call> the then they them'
)
SPECIAL = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"]
BEGIN, END, USER, ASSISTANT = range(4)
TEMPLATE = """\
{{- bos_token }}{% for message in messages %}{{- '<|user|>' if message.role == 'user' else '<|assistant|>' }}
{{- message.content }}{% endfor %}{% if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""


BYTES = len(SPECIAL) + 256
"""Size of the vocabulary that has a token for each byte, and no other."""


def byte_level(vocabulary: int = 400) -> Tokenizer:
    """As those of GPT-2, Llama 3 and Qwen: a character stands for each byte."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT] * 3, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<|begin|>:0 $A:0", special_tokens=[("<|begin|>", BEGIN)]
    )
    return made


def spaced() -> Tokenizer:
    """As those of Llama 2 and Gemma: spaces are `▁`, and bytes that are no known character `<0xE3>`."""
    letters = sorted(set(TEXT.replace(" ", "▁").replace("鮭", "").replace("🕯", "")))
    words = ["▁t", "▁th", "he", "▁the"]
    tokens = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *words]
    merges = [("▁", "t"), ("▁t", "h"), ("h", "e"), ("▁t", "he")]
    made = Tokenizer(
        models.BPE(
            vocab={token: place for place, token in enumerate(tokens)},
            merges=merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def word_pieces() -> Tokenizer:
    """As those of BERT: ends of words begin with `##`."""
    tokens = ["[UNK]", "the", "lamp", "##s", "##light", "was", "lit", "."]
    made = Tokenizer(
        models.WordPiece({token: place for place, token in enumerate(tokens)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return made


def write(folder: Path, tokenizer: Tokenizer, *, template: Any = TEMPLATE, **config: Any) -> Path:
    """Write a model's folder without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {
        "bos_token": "<|begin|>",
        "eos_token": {"content": "<|end|>"},
        "chat_template": template,
        **config,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    (folder / "config.json").write_text(json.dumps({"vocab_size": tokenizer.get_vocab_size()}))
    return folder
