"""Ask for 143 patients which version answers: `python examples/gallery/tumours/ask.py [--url …]`.

Needs tritonclient[http] and scikit-learn, whose data this is.
"""

import argparse
from collections import Counter

import numpy as np
import tritonclient.http as triton
from make import patients


def ask(client, patient, row):
    """Return the version that answered, and whether it takes the tumour for a benign one."""
    given = triton.InferInput("input__0", [1, 30], "FP32")
    given.set_data_from_numpy(row.astype(np.float32)[None])
    result = client.infer("tumours", [given], parameters={"patient": patient})
    return result.get_response()["model_version"], bool(result.as_numpy("output__0")[0].argmax())


parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--url", default="127.0.0.1:8000")
asked = parser.parse_args()
_, rows, _, benign = patients()
counted, right = Counter(), Counter()
with triton.InferenceServerClient(asked.url) as client:
    for patient, (row, truth) in enumerate(zip(rows, benign, strict=True)):
        version, answer = ask(client, str(patient), row)
        counted[version] += 1
        right[version] += answer == truth
    again = [ask(client, "7", rows[7])[0] for _ in range(5)]
for version in sorted(counted):
    print(f"version {version} answered {counted[version]} patients, {right[version]} of them rightly")
print(f"patient 7, five times more: version {', '.join(again)}")
