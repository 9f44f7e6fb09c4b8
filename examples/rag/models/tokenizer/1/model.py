"""Cut text into word pieces, with the tokenizer that the embedding model was trained with."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

# Word pieces; longer texts are cut off, as when the model was trained.
LONGEST = 256
# Padded lengths are multiples of this; requests of equal length share a batch of the embedding model.
MULTIPLE = 32


class TritonPythonModel:
    """Takes TEXT, gives INPUT_IDS and ATTENTION_MASK. The mask is 0 where a shorter text is padded."""

    def initialize(self, args):
        """Read the vocabulary that lies beside this file."""
        path = os.path.join(pb_utils.get_model_dir(), "tokenizer.json")
        self._tokenizer = Tokenizer.from_file(path)
        self._tokenizer.enable_truncation(LONGEST)
        self._tokenizer.enable_padding(pad_to_multiple_of=MULTIPLE)

    def execute(self, requests):
        """Answer each request. Text that can't be read is an error of that request only."""
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
