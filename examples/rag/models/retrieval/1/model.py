"""Find the passages of the corpus that are nearest to a question's embedding."""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Takes EMBEDDING, gives the nearest PASSAGES with their SOURCES and SCORES, best first.

    Scores are cosines, -1 to 1.
    """

    def initialize(self, args):
        """Read the corpus that lies beside this file: passages, sources and one unit vector for each."""
        parameters = json.loads(args["model_config"])["parameters"]
        with np.load(os.path.join(pb_utils.get_model_dir(), "corpus.npz")) as corpus:
            self._passages, self._sources = (corpus[each].astype(object) for each in ("passages", "sources"))
            self._vectors = corpus["vectors"].T.copy()
        self._count = min(int(parameters["passages"]["string_value"]), len(self._passages))

    def execute(self, requests):
        """Compare all requests' questions with the corpus at once."""
        asked = [pb_utils.get_input_tensor_by_name(each, "EMBEDDING").as_numpy() for each in requests]
        scores = np.concatenate(asked) @ self._vectors
        ends = np.cumsum([len(each) for each in asked])[:-1]
        return [self._nearest(part) for part in np.split(scores, ends)]

    def _nearest(self, scores):
        """Answer one request, whose scores are [questions, passages in the corpus]."""
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self._count]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("PASSAGES", self._passages[best]),
                pb_utils.Tensor("SOURCES", self._sources[best]),
                pb_utils.Tensor("SCORES", np.take_along_axis(scores, best, axis=1)),
            ]
        )
