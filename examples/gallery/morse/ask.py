"""Send a recording and print what is heard as it comes: `python examples/gallery/morse/ask.py [--url …]`.

Needs tritonclient[grpc]. The recording is made here: 600 Hz with noise, 20 words a minute.
"""

import argparse
import queue

import numpy as np
import tritonclient.grpc as triton

RATE, PITCH, DOT = 8000, 600, 0.06
CODE = "... --- ... / - .. - .- -. .. -.-."


def recording(code):
    """Return the sound of dots and dashes, FP32 [samples]: a space ends a letter, a stroke a word."""
    parts = []
    for sign in code:
        tone, rest = {".": (1, 1), "-": (3, 1), " ": (0, 2), "/": (0, 2)}[sign]
        time = np.arange(round(tone * DOT * RATE)) / RATE
        parts += [np.sin(2 * np.pi * PITCH * time), np.zeros(round(rest * DOT * RATE))]
    sound = np.concatenate(parts)
    return (sound + np.random.default_rng(0).normal(0, 0.1, sound.size)).astype(np.float32)


parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--url", default="127.0.0.1:8001")
asked = parser.parse_args()
answers = queue.Queue()
audio = recording(CODE)
given = triton.InferInput("audio", audio.shape, "FP32")
given.set_data_from_numpy(audio)
with triton.InferenceServerClient(asked.url) as client:
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("morse", [given], enable_empty_final_response=True)
    while True:
        result, error = answers.get()
        if error is not None:
            raise SystemExit(str(error))
        if result.get_response().parameters["triton_final_response"].bool_param:
            break
        print(f"{result.as_numpy('seconds')[0]:4.1f} s  {result.as_numpy('text')[0].decode()}")
