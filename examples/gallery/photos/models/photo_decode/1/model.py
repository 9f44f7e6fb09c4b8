"""The bytes of a JPEG or PNG file to pixels."""

import io

import numpy as np
from PIL import Image

import tritium
from tritium import BYTES, UINT8, Array, RequestError

MOST = 50_000_000  # pixels; a small file may promise a large image


@tritium.model(output="pixels")
def decode(file: BYTES[Array, 1]) -> UINT8[Array, -1, -1, 3]:
    try:
        with Image.open(io.BytesIO(file[0]), formats=["JPEG", "PNG"]) as image:
            if image.width * image.height > MOST:
                raise RequestError(f"{image.width} x {image.height} pixels are too many", "INVALID_ARG")
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError) as error:  # what pillow raises for files that are damaged
        raise RequestError("not a JPEG or PNG file, or a damaged one", "INVALID_ARG") from error
