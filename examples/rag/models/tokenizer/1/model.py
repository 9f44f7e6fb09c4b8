"""Cut text into word pieces, with the tokenizer that the embedding model was trained with."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

LONGEST = 256  # word pieces; what follows is cut off, as the model was used in training
MULTIPLE = 32  # padded lengths; requests that are as long as each other share a batch of the embedding model


class TritonPythonModel:
    """Takes TEXT, gives INPUT_IDS and ATTENTION_MASK, which is 0 where a shorter text is padded."""

    def initialize(self, args):
        """Read the vocabulary that lies beside this file."""
        path = os.path.join(pb_utils.get_model_dir(), "tokenizer.json")
        self._tokenizer = Tokenizer.from_file(path)
        self._tokenizer.enable_truncation(LONGEST)
        self._tokenizer.enable_padding(pad_to_multiple_of=MULTIPLE)

    def execute(self, requests):
        """Answer each request; text that can't be read is that request's error."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        rows = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().ravel()
        try:
            encoded = self._tokenizer.encode_batch([readable(row) for row in rows])
        except ValueError as error:
            refusal = pb_utils.TritonError(f"TEXT: {error}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refusal)
        ids = np.array([each.ids for each in encoded], np.int64)
        mask = np.array([each.attention_mask for each in encoded], np.int64)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("INPUT_IDS", ids), pb_utils.Tensor("ATTENTION_MASK", mask)]
        )


def readable(data):
    """Return the text of UTF-8 bytes. Raises ValueError if they are something else, or say nothing."""
    text = data.decode()
    if not text.strip():
        raise ValueError("there is nothing in it; send a question in words")
    return text
