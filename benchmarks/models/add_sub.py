"""Sum and difference of two FP32[16] tensors: the `python_add_sub` model of the benchmarks."""

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # the worker provides it


class TritonPythonModel:
    """What the python backend loads."""

    def execute(self, requests: list) -> list:  # type: ignore[type-arg]  # its elements are the backend's
        """Answer each request of the batch."""
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", left + right), pb_utils.Tensor("OUTPUT1", left - right)]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
