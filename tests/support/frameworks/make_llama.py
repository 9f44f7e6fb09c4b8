"""Writes a tiny Llama of random weights, with a tokenizer: `python make_llama.py DIRECTORY`."""

import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXT = ["the model answers the request", "a worker runs the model", "the server answers"]

tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(special_tokens=["<unk>", "<s>", "</s>"]))
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
)
fast.save_pretrained(sys.argv[1])
LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(fast),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=fast.bos_token_id,
        eos_token_id=fast.eos_token_id,
    )
).save_pretrained(sys.argv[1])
