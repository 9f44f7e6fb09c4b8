"""Add and subtract on the server.

Run `python examples/clients/add_sub_tritonclient.py [host:port]`. Needs tritonclient[http].
"""

import sys

import numpy as np
import tritonclient.http as triton

URL = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"


def main():
    a = np.arange(16, dtype=np.float32).reshape(1, 16)
    b = np.full((1, 16), 2, dtype=np.float32)
    inputs = [triton.InferInput("INPUT0", a.shape, "FP32"), triton.InferInput("INPUT1", b.shape, "FP32")]
    for tensor, array in zip(inputs, (a, b), strict=True):
        tensor.set_data_from_numpy(array)
    with triton.InferenceServerClient(URL) as client:
        for model in ("add_sub", "add_sub_onnx"):
            result = client.infer(model, inputs)
            print(model)
            print("  sum       ", *result.as_numpy("OUTPUT0")[0].astype(int))
            print("  difference", *result.as_numpy("OUTPUT1")[0].astype(int))


if __name__ == "__main__":
    main()
