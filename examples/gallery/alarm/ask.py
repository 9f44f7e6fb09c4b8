"""Watch two pumps at once: `python examples/gallery/alarm/ask.py [--url …]`. Needs tritonclient[http]."""

import argparse
import time

import numpy as np
import tritonclient.http as triton

# Degrees, in the order of time.
READINGS = {
    "pump-1": [20.1, 20.4, 19.9, 20.2, 20.0, 27.5],
    "pump-2": [61.0, 63.5, 60.0, 64.0, 62.5, 62.0],
}


def watch(client, pump, value, *, start, end):
    """Send the next reading of a pump; return how unusual it is, in standard deviations."""
    given = triton.InferInput("reading", [1, 1], "FP32")
    given.set_data_from_numpy(np.full((1, 1), value, np.float32))
    result = client.infer("alarm", [given], sequence_id=pump, sequence_start=start, sequence_end=end)
    return result.as_numpy("sigmas").item()


parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--url", default="127.0.0.1:8000")
parser.add_argument("--slowly", action="store_true", help="a second between readings")
asked = parser.parse_args()
with triton.InferenceServerClient(asked.url) as client:
    count = len(next(iter(READINGS.values())))
    for at in range(count):
        words = []
        time.sleep(1 if asked.slowly and at else 0)
        for pump, values in READINGS.items():
            sigmas = watch(client, pump, values[at], start=at == 0, end=at == count - 1)
            words.append(f"{pump} {values[at]:.1f} ({sigmas:+.1f}){' ALARM' if abs(sigmas) > 4 else ''}")
        print("   ".join(words), flush=True)
