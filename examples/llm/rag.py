"""Answer from a page: `python examples/llm/rag.py PAGE.txt "question" [--top 1]`.

Each line of the page is a passage. Passages and question are embedded by the server, the nearest passages are
found here, and the chat model is given them with the question. Needs openai and numpy.
"""

import argparse
from pathlib import Path

import numpy as np
from openai import OpenAI


def embedded(client, model, texts):
    """Return a row of length 1 for each text."""
    answer = client.embeddings.create(model=model, input=texts)
    rows = np.array([each.embedding for each in answer.data], np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def nearest(passages, question, top):
    """Return (place, cosine) of the rows of `passages` that are nearest to `question`, the nearest first."""
    near = passages @ question
    return [(int(at), float(near[at])) for at in np.argsort(-near, kind="stable")[:top]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("question")
    parser.add_argument("--top", type=int, default=1, help="how many passages the model is given")
    parser.add_argument("--url", default="http://127.0.0.1:9000/v1", help="of the OpenAI API")
    parser.add_argument("--model", help="by default the first that is served")
    parser.add_argument("--embedding-model", help="by default the same")
    asked = parser.parse_args()
    client = OpenAI(base_url=asked.url, api_key="none")
    model = asked.model or client.models.list().data[0].id
    lines = [line for line in asked.page.read_text().splitlines() if line.strip()]
    rows = embedded(client, asked.embedding_model or model, [*lines, asked.question])
    found = nearest(rows[:-1], rows[-1], asked.top)
    for at, near in found:
        print(f"{near:.2f}  {lines[at]}")
    told = "\n".join(lines[at] for at, _ in found)
    conversation = [{"role": "system", "content": told}, {"role": "user", "content": asked.question}]
    answer = client.chat.completions.create(model=model, messages=conversation, temperature=0)
    print(f"\n{answer.choices[0].message.content}")


if __name__ == "__main__":
    main()
