"""A backend for linear models: all of a model is its `weights.npz`.

The file has `coefficients` [features, outputs] and `intercepts` [outputs], and for classifiers `classes`
[outputs], as text. It is what `coef_.T`, `intercept_` and `classes_` of scikit-learn's linear models are.
"""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

BATCH_SIZE = 64


def read(version_directory):
    """Return the arrays of a version. Raises TritonModelException for a file that is not one of ours."""
    path = os.path.join(version_directory, "weights.npz")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        coefficients, intercepts = arrays["coefficients"], arrays["intercepts"]
    except (OSError, ValueError, KeyError) as error:
        raise pb_utils.TritonModelException(f"'{path}' holds no linear model: {error}") from error
    if coefficients.ndim != 2 or intercepts.shape != coefficients.shape[1:]:
        raise pb_utils.TritonModelException(
            f"'{path}' holds no linear model: coefficients {coefficients.shape} do not go with intercepts"
            f" {intercepts.shape}"
        )
    return arrays


class TritonPythonModel:
    """One model of the family."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        """Read the shapes from the weights."""
        arrays = read(pb_utils.get_model_dir())
        features, outputs = arrays["coefficients"].shape
        config = auto_complete_model_config
        config.set_max_batch_size(BATCH_SIZE)
        config.set_dynamic_batching()
        config.add_input({"name": "FEATURES", "data_type": "TYPE_FP32", "dims": [features]})
        if "classes" in arrays:
            config.add_output({"name": "LABEL", "data_type": "TYPE_STRING", "dims": [1]})
            config.add_output({"name": "PROBABILITIES", "data_type": "TYPE_FP32", "dims": [outputs]})
        else:
            config.add_output({"name": "PREDICTION", "data_type": "TYPE_FP32", "dims": [outputs]})
        return config

    def initialize(self, args):
        """Load the weights: the version's folder is the model's own, and not the backend's."""
        arrays = read(os.path.join(args["model_repository"], args["model_version"]))
        self.coefficients = arrays["coefficients"].astype(np.float32)
        self.intercepts = arrays["intercepts"].astype(np.float32)
        self.classes = np.array([str(name).encode() for name in arrays.get("classes", [])], dtype=object)
        # --backend-config=linear,temperature=2 makes classifiers less sure of themselves.
        settings = json.loads(args["backend_config"])["cmdline"]
        self.temperature = float(settings.get("temperature", 1))

    def execute(self, requests):
        """Compute all requests of a batch at once."""
        arrays = [pb_utils.get_input_tensor_by_name(each, "FEATURES").as_numpy() for each in requests]
        scores = np.concatenate(arrays) @ self.coefficients + self.intercepts
        ends = np.cumsum([len(array) for array in arrays])[:-1]
        return [pb_utils.InferenceResponse(self._outputs(part)) for part in np.split(scores, ends)]

    def _outputs(self, scores):
        if not len(self.classes):
            return [pb_utils.Tensor("PREDICTION", scores)]
        raised = np.exp((scores - scores.max(axis=1, keepdims=True)) / self.temperature)
        labels = self.classes[scores.argmax(axis=1)][:, np.newaxis]
        return [
            pb_utils.Tensor("LABEL", labels),
            pb_utils.Tensor("PROBABILITIES", raised / raised.sum(axis=1, keepdims=True)),
        ]
