"""A Python model on Ray: a cluster of its own, with a task and an actor. `model.py` of a repository."""

import os
import tempfile

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import ray
import triton_python_backend_utils as pb_utils


@ray.remote
def squares(values):
    """Run as a task, in a process of Ray's."""
    return values * values


@ray.remote
class Total:
    """An actor: it keeps what it was given."""

    def __init__(self):
        self.total = 0.0

    def add(self, values):
        """Add values, and return the sum of all so far."""
        self.total += float(values.sum())
        return self.total


class TritonPythonModel:
    """Answers each request with the sum of squares of all so far."""

    def initialize(self, args):
        """Start the cluster."""
        self.folder = tempfile.TemporaryDirectory(prefix="ray-")
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 << 20,
            _node_ip_address="127.0.0.1",
            _temp_dir=self.folder.name,
        )
        self.total = Total.remote()  # type: ignore[attr-defined]

    def execute(self, requests):
        """Answer one request at a time, with inputs that go through Ray's shared memory."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        squared = squares.remote(ray.put(np.tile(values, 100_000)))
        total = ray.get(self.total.add.remote(squared)) / 100_000
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([total], np.float32))])

    def finalize(self):
        """End the cluster."""
        ray.shutdown()
        self.folder.cleanup()
