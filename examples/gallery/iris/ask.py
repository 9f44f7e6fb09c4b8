"""Name three flowers: `python examples/gallery/iris/ask.py [--url …]`. Needs tritonclient[http]."""

import argparse

import numpy as np
import tritonclient.http as triton

FLOWERS = np.array(
    [  # sepal's length and width, petal's length and width; the last petal's width was not measured
        [5.1, 3.5, 1.4, 0.2],
        [5.9, 2.8, 4.3, 1.3],
        [6.9, 3.1, 5.8, np.nan],
    ],
    np.float32,
)

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--url", default="127.0.0.1:8000")
asked = parser.parse_args()
given = triton.InferInput("input__0", FLOWERS.shape, "FP32")
given.set_data_from_numpy(FLOWERS)
best = triton.InferRequestedOutput("output__0", class_count=1)
with triton.InferenceServerClient(asked.url) as client:
    answer = client.infer("iris", [given], outputs=[best]).as_numpy("output__0")
for flower, [name] in zip(FLOWERS, answer, strict=True):
    probability, _, label = name.decode().split(":")
    print(*(f"{value:4.1f}" for value in flower), f" {label} ({float(probability):.0%})")
