"""Listen to Morse code, and tell what has been heard after each letter."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

import tritium
from tritium import BYTES, FP32, Array, RequestError

RATE = 8000  # samples a second
PITCH = 600  # Hz
CHUNK = 160  # samples, 20 ms: twelve waves of the pitch
DOT = 3  # chunks, 60 ms

LETTERS = dict(
    zip(
        [
            ".-",
            "-...",
            "-.-.",
            "-..",
            ".",
            "..-.",
            "--.",
            "....",
            "..",
            ".---",
            "-.-",
            ".-..",
            "--",
            "-.",
            "---",
            ".--.",
            "--.-",
            ".-.",
            "...",
            "-",
            "..-",
            "...-",
            ".--",
            "-..-",
            "-.--",
            "--..",
            "-----",
            ".----",
            "..---",
            "...--",
            "....-",
            ".....",
            "-....",
            "--...",
            "---..",
            "----.",
        ],
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
        strict=True,
    )
)
WAVE = np.exp(-2j * np.pi * PITCH / RATE * np.arange(CHUNK)).astype(np.complex64)


class Heard(NamedTuple):
    text: BYTES[Array, 1]
    seconds: FP32[Array, 1]


@tritium.model
def listen(audio: FP32[Array, -1]) -> Iterator[Heard]:
    """Yield the text so far, and how many seconds of the recording it took, whenever a letter ends."""
    if not np.isfinite(audio).all():
        raise RequestError("audio: a sample is not a finite number", "INVALID_ARG")
    text, signs, at = "", "", 0
    for tone, run in groupby(chunk_has_tone(audio)):
        length = sum(1 for _ in run)
        at += length
        if tone:
            signs += "-" if length > 2 * DOT else "."
        elif length > 2 * DOT and signs:
            text += LETTERS.get(signs, "?")
            signs = ""
            yield Heard([text], [at * CHUNK / RATE])
            text += " " if length > 5 * DOT else ""


def chunk_has_tone(audio: np.ndarray) -> Iterator[bool]:
    """Say of each chunk whether the pitch has most of its energy; then silence, so that all letters end."""
    for chunk in audio[: len(audio) // CHUNK * CHUNK].reshape(-1, CHUNK):
        energy = float(chunk @ chunk)
        yield energy > 0 and 2 * abs(chunk @ WAVE) ** 2 / CHUNK > 0.5 * energy
    yield from [False] * 3 * DOT
