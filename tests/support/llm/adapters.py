"""LoRA adapters of the tiny model, as PEFT writes them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 8


def make(folder: Path, model: Path, *, scale: float) -> None:
    """Write an adapter of the queries of each layer; `scale` is how far it changes them."""
    config = json.loads((model / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = heads * config.get("head_dim", hidden // heads)
    noise = np.random.default_rng(1)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = noise.standard_normal((RANK, hidden), np.float32)
        tensors[f"{name}.lora_B.weight"] = noise.standard_normal((width, RANK), np.float32) * np.float32(
            scale
        )
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": ["q_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(about))
