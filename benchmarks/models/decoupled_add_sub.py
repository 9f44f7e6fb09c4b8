"""Sum and difference of two FP32[16] tensors, sent by response senders.

This is the `python_decoupled` model of the benchmarks.
"""

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # the worker provides it


class TritonPythonModel:
    """What the python backend loads."""

    def execute(self, requests: list) -> None:  # type: ignore[type-arg]  # its elements are the backend's
        """Send each request of the batch its one response."""
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", left + right), pb_utils.Tensor("OUTPUT1", left - right)]
            request.get_response_sender().send(
                pb_utils.InferenceResponse(output_tensors=outputs),
                flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            )
