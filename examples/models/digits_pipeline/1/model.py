"""Recognise a handwritten digit in an image file: decode, scale, classify, name."""

import os

import images  # a module beside this one
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Takes IMAGE, gives LABEL and PROBABILITIES."""

    def initialize(self, args):
        """Read the weights that lie beside this file."""
        with np.load(os.path.join(pb_utils.get_model_dir(), "weights.npz")) as weights:
            self._weights = dict(weights)
        pb_utils.Logger.log_info(f"{args['model_name']} is ready")

    def execute(self, requests):
        """Answer each request. Data that is not an image is an error of that request only."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        data = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy().tobytes()
        try:
            pixels = self._scale(images.read(data))
        except ValueError as error:
            refusal = pb_utils.TritonError(f"IMAGE: {error}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refusal)
        probabilities = self._classify(pixels)
        label = np.array([str(probabilities.argmax())], dtype=object)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("LABEL", label), pb_utils.Tensor("PROBABILITIES", probabilities)]
        )

    def _scale(self, pixels):
        """Return the image as 64 values from 0 to 16, each the mean of its part of the image."""
        if min(pixels.shape) < 8:
            raise ValueError(f"an image of {pixels.shape[1]} x {pixels.shape[0]} pixels is too small")
        for axis in (0, 1):
            parts = np.array_split(pixels.astype(np.float32), 8, axis=axis)
            pixels = np.stack([part.mean(axis=axis) for part in parts], axis=axis)
        return pixels.reshape(64) * (16 / 255)

    def _classify(self, image):
        weights = self._weights
        hidden = np.maximum(image @ weights["w1"] + weights["b1"], 0)
        scores = np.exp(hidden @ weights["w2"] + weights["b2"])
        return (scores / scores.sum()).astype(np.float32)
