"""Has the `onnx_add_sub` model answer its requests: the `python_bls` model of the benchmarks."""

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # the worker provides it


class TritonPythonModel:
    """What the python backend loads."""

    def execute(self, requests: list) -> list:  # type: ignore[type-arg]  # its elements are the backend's
        """Ask the other model for each request of the batch, one after the other."""
        responses = []
        for request in requests:
            answer = pb_utils.InferenceRequest(
                model_name="onnx_add_sub",
                requested_output_names=["OUTPUT0", "OUTPUT1"],
                inputs=request.inputs(),
            ).exec()
            responses.append(answer)
        return responses
