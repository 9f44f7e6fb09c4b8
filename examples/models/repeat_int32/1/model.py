"""Answer a request with one response for each element of its input."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUT = IN[IDX], for each IDX in order, after DELAY[IDX] milliseconds where there is a DELAY.

    `execute` returns at once: a thread for each request sends its responses, so that requests are answered
    side by side.
    """

    def execute(self, requests):
        """Begin to answer each request."""
        for request in requests:
            threading.Thread(
                target=repeat, args=(request, request.get_response_sender()), daemon=True
            ).start()


def repeat(request, sender):
    """Send the responses to one request, then the final flag; stop if the client has gone."""
    values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    delay = pb_utils.get_input_tensor_by_name(request, "DELAY")
    delays = np.zeros(values.size, np.uint32) if delay is None else delay.as_numpy()
    for index, (value, milliseconds) in enumerate(zip(values, delays, strict=True)):
        if sender.is_cancelled():
            break
        time.sleep(float(milliseconds) / 1000)
        outputs = [
            pb_utils.Tensor("OUT", np.array([value], np.int32)),
            pb_utils.Tensor("IDX", np.array([index], np.uint32)),
        ]
        sender.send(pb_utils.InferenceResponse(outputs))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
