"""A Python model on vLLM, whose engine is a process of its own. `model.py` of a repository.

`llama` beside it is a model as `make_llama.py` makes it.
"""

import os
import tempfile

import numpy as np
import triton_python_backend_utils as pb_utils

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
}
FOLDERS = ("VLLM_CACHE_ROOT", "HF_HOME", "HOME")


class TritonPythonModel:
    """Answers each request with as many tokens as it asks for."""

    def initialize(self, args):
        """Start the engine."""
        self.folder = tempfile.TemporaryDirectory(prefix="vllm-")
        os.environ.update(SETTINGS, **dict.fromkeys(FOLDERS, self.folder.name))
        from vllm import LLM, SamplingParams

        self.parameters = SamplingParams
        llama = os.path.join(args["model_repository"], args["model_version"], "llama")
        self.llm = LLM(model=llama, enforce_eager=True, max_model_len=64, max_num_seqs=4, dtype="float32")

    def execute(self, requests):
        """Answer all requests as one batch of vLLM's."""
        lengths = [pb_utils.get_input_tensor_by_name(each, "IN").as_numpy().item() for each in requests]
        wanted = [self.parameters(temperature=0, max_tokens=int(n), ignore_eos=True) for n in lengths]
        done = self.llm.generate(["the model answers"] * len(wanted), wanted, use_tqdm=False)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", np.array([len(each.outputs[0].token_ids)], np.float32))]
            )
            for each in done
        ]

    def finalize(self):
        """End the engine."""
        del self.llm
        self.folder.cleanup()
