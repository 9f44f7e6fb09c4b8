"""Put the answer together: the passages that are near enough, each with its source."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Takes QUERY, PASSAGES, SOURCES and SCORES, gives ANSWER."""

    def initialize(self, args):
        """Read from the configuration how near a passage must be."""
        parameters = json.loads(args["model_config"])["parameters"]
        self._least = float(parameters["least_score"]["string_value"])

    def execute(self, requests):
        """Answer each request, row by row."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        query, passages, sources, scores = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("QUERY", "PASSAGES", "SOURCES", "SCORES")
        )
        rows = zip(query.ravel(), passages, sources, scores, strict=True)
        answers = np.array([[self._text(*row)] for row in rows], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", answers)])

    def _text(self, query, passages, sources, scores):
        quoted = [
            f"{passage.decode()} [{source.decode()}]"
            for passage, source, score in zip(passages, sources, scores, strict=True)
            if score >= self._least
        ]
        if not quoted:
            return f"The documentation has nothing on “{query.decode()}”."
        return "\n\n".join(quoted)
