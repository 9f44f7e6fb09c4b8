"""Adds up what the requests of a sequence bring.

It remembers nothing itself: SUM comes in, and NEW_SUM goes out.
"""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            total = pb_utils.get_input_tensor_by_name(request, "SUM").as_numpy() + value
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUTPUT", total), pb_utils.Tensor("NEW_SUM", total)]
                )
            )
        return responses
