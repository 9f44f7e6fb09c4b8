"""Ask the question-answering example: `python examples/rag/ask.py "How do I …?" [--url host:port]`.

Needs tritonclient[http].
"""

import argparse

import numpy as np
import tritonclient.http as triton


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("question", nargs="+", help="several are sent as one batch")
    parser.add_argument("--url", default="127.0.0.1:8000", help="host:port of the server's HTTP port")
    asked = parser.parse_args()
    query = np.array([[question.encode()] for question in asked.question], dtype=object)
    tensor = triton.InferInput("QUERY", query.shape, "BYTES")
    tensor.set_data_from_numpy(query)
    with triton.InferenceServerClient(asked.url) as client:
        result = client.infer("rag", [tensor])
    answers, sources, scores = (result.as_numpy(name) for name in ("ANSWER", "SOURCES", "SCORES"))
    for question, [answer], where, near in zip(asked.question, answers, sources, scores, strict=True):
        print(f"{question}\n\n{answer.decode()}\n")
        for source, score in zip(where, near, strict=True):
            print(f"  {score:.2f}  {source.decode()}")
        print()


if __name__ == "__main__":
    main()
