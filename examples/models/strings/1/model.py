"""Put text into upper case."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """UPPER = TEXT in upper case, element by element. Text that is not UTF-8 is refused."""

    def execute(self, requests):
        """Answer each request of a batch on its own.

        Bad bytes in one request are an error of that request only.
        """
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        upper = np.empty(texts.size, dtype=object)
        try:
            upper[:] = [element.decode().upper() for element in texts.ravel()]
        except UnicodeDecodeError as error:
            refusal = pb_utils.TritonError(f"TEXT is not UTF-8: {error}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refusal)
        return pb_utils.InferenceResponse([pb_utils.Tensor("UPPER", upper.reshape(texts.shape))])
