"""Show image files to the pipeline: `python examples/gallery/photos/ask.py [--url host:port] [FILE ...]`.

Without files, the right third of each photograph that comes with scikit-learn, which the model has not seen,
and a text. Needs tritonclient[http]; without files, scikit-learn and pillow as well.
"""

import argparse
import io
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


def samples():
    """Yield a name and the bytes of a file."""
    from make import photographs
    from PIL import Image

    for name, kind, pixels in zip(("china", "flower"), ("JPEG", "PNG"), photographs(), strict=True):
        file = io.BytesIO()
        third = Image.fromarray(pixels[:, pixels.shape[1] * 2 // 3 :])
        third.save(file, kind)
        yield f"right of {name}, a {kind} of {third.width} x {third.height}", file.getvalue()
    yield "a text", b"There is nothing to see here."


def ask(client, file):
    """Return what the image shows, or the server's refusal."""
    given = triton.InferInput("FILE", [1], "BYTES")
    given.set_data_from_numpy(np.array([file], object))
    best = triton.InferRequestedOutput("SCORES", class_count=1)
    try:
        [answer] = client.infer("photos", [given], outputs=[best]).as_numpy("SCORES")
    except InferenceServerException as error:
        return error.message()
    probability, _, label = answer.decode().split(":")
    return f"{label} ({float(probability):.0%})"


parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("files", metavar="FILE", type=Path, nargs="*")
parser.add_argument("--url", default="127.0.0.1:8000")
asked = parser.parse_args()
files = [(str(path), path.read_bytes()) for path in asked.files] or samples()
with triton.InferenceServerClient(asked.url) as client:
    for name, file in files:
        print(f"{name}: {ask(client, file)}")
