"""Recognise one handwritten digit with every digits model.

Run `python examples/clients/digits_tritonclient.py [host:port]`. Needs tritonclient[http]. The image is the
one in `digit.json` and `digit.pgm`; no model was trained on it.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton

HERE = Path(__file__).parent
URL = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"


def main():
    data = json.loads((HERE / "digit.json").read_text())["inputs"][0]["data"]
    image = np.array(data, dtype=np.float32).reshape(1, 64)
    for row in image.reshape(8, 8):
        print("".join(" .:-=+*#%@"[int(value * 9 / 16)] * 2 for value in row))
    with triton.InferenceServerClient(URL) as client:
        for model, name, output in (
            ("digits_onnx", "IMAGE", "SCORES"),
            ("digits_torchscript", "INPUT__0", "OUTPUT__0"),
            ("digits_pt2", "INPUT__0", "OUTPUT__0"),
        ):
            tensor = triton.InferInput(name, image.shape, "FP32")
            tensor.set_data_from_numpy(image)
            wanted = triton.InferRequestedOutput(output, class_count=3)
            result = client.infer(model, [tensor], outputs=[wanted])
            print(model, *(describe(each) for each in result.as_numpy(output)[0]), sep="  ")

        file = np.fromfile(HERE / "digit.pgm", dtype=np.uint8)
        tensor = triton.InferInput("IMAGE", file.shape, "UINT8")
        tensor.set_data_from_numpy(file)
        result = client.infer("digits_pipeline", [tensor])
        label = result.as_numpy("LABEL")[0].decode()
        print("digits_pipeline", f"{label}: {result.as_numpy('PROBABILITIES').max():.1%}", sep="  ")


def describe(classification):
    """Turn `score:index:label` into words."""
    score, _, label = classification.decode().split(":")
    return f"{label}: {float(score):.1%}"


if __name__ == "__main__":
    main()
