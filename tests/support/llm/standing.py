"""Servers with real engines, on the tiny model that knows a page by heart."""

import json
import math

from tests.support.environments import VLLM
from tests.support.llm.echoing import LanguageServer
from tests.survival.server import ServerProcess, eventually

START = 300.0  # seconds: vLLM imports for half a minute on a machine that does nothing else
VLLM_ARGUMENTS = {
    "enforce_eager": True,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "dtype": "float32",
    # The model likes white space, of which JSON may have any amount.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}
ADAPTER_RANK = 4


class EngineServer(LanguageServer):
    """`tritium serve`, with a port for the OpenAI API."""

    @staticmethod
    def launch(command, environ, stdout, stderr):
        """See `Server`."""
        return ServerProcess.launch([*command, "--openai-port=0"], environ, stdout, stderr)

    async def wait_ready(self):
        """See `Server`. It takes as long as vLLM takes to load."""
        await self.wait_ports()

        async def ready():
            assert self.status is None, self.last_words()
            return await self.is_ready()

        await eventually(ready, within=START)


def write_transformers(repository, name, weights, *, config="", **arguments):
    """Put a model of transformers into a repository, whose files are at `weights`.

    Its server needs `transformers_flags`.
    """
    told = {"model": str(weights), "max_num_seqs": 8, **arguments}
    _write(repository, name, config, told, backend="transformers")


def transformers_flags(weights):
    """Return what has a server load weights that are not in its repository."""
    return [f"--backend-config=transformers,folders={weights}"]


def write_vllm(repository, name, weights, *, adapters=None, **arguments):
    """Put a model of vLLM into a repository. `adapters` are folders by the name of the adapter."""
    environment = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{VLLM.named}" }} }}'
    told = {**VLLM_ARGUMENTS, "model": str(weights), **arguments}
    if adapters:
        told |= {"enable_lora": True, "max_lora_rank": 8}
    folder = _write(
        repository, name, f"instance_group [{{ kind: KIND_MODEL }}]\n{environment}\n", told, backend="vllm"
    )
    if adapters:
        (folder / "multi_lora.json").write_text(
            json.dumps({key: str(path) for key, path in adapters.items()})
        )


def _write(repository, name, config, arguments, *, backend):
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(f'backend: "{backend}"\n{config}')
    (folder / "model.json").write_text(json.dumps(arguments))
    return folder


def write_adapter(folder, weights, *, seed):
    """Write an adapter of random numbers, as peft has them, and the model with it merged in.

    Returns the folders of both: what the adapted model must say is what the merged one says.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    noise = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    tensors: dict[str, torch.Tensor] = {}
    for layer, block in enumerate(model.model.layers):
        for projection in ("q_proj", "o_proj"):
            matrix = getattr(block.self_attn, projection).weight
            down = torch.randn(ADAPTER_RANK, matrix.shape[1], generator=noise) / math.sqrt(matrix.shape[1])
            up = torch.randn(matrix.shape[0], ADAPTER_RANK, generator=noise) / math.sqrt(ADAPTER_RANK)
            name = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
            tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
            matrix.data += up @ down  # scaled by alpha / rank, which is 1
    adapter, merged = folder / "adapter", folder / "merged"
    adapter.mkdir(parents=True)
    save_file(tensors, adapter / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": ADAPTER_RANK,
        "lora_alpha": ADAPTER_RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "o_proj"],
        "base_model_name_or_path": str(weights),
    }
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    model.save_pretrained(merged)
    AutoTokenizer.from_pretrained(weights).save_pretrained(merged)
    return adapter, merged
