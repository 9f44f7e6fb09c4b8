"""Find what means the same: `python examples/gallery/sentences/ask.py [--url …]`. Needs openai."""

import argparse

import numpy as np
from openai import OpenAI

SENTENCES = [
    "A kitten naps on the couch.",
    "Stock markets fell sharply today.",
    "Someone is having a meal.",
    "The train was two hours late.",
]
QUESTIONS = ["The cat sleeps on the sofa.", "A man is eating food.", "Shares lost much of their value."]

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--url", default="http://127.0.0.1:9000/v1")
asked = parser.parse_args()
client = OpenAI(base_url=asked.url, api_key="none")
answer = client.embeddings.create(model="sentences", input=SENTENCES + QUESTIONS)
vectors = np.array([each.embedding for each in answer.data])  # of length 1
known, asked = np.split(vectors, [len(SENTENCES)])
for question, likeness in zip(QUESTIONS, asked @ known.T, strict=True):
    print(f"{question:<33} {likeness.max():.2f}  {SENTENCES[likeness.argmax()]}")
