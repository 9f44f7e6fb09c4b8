"""Talk with a language model: `python examples/llm/chat.py "Hello" "And then?" [--url …] [--model …]`.

Several messages are one conversation. Without any, they are read from the terminal, a line each. The answer
is shown as it comes. Needs openai.
"""

import argparse
import sys

from openai import OpenAI


def answer(client, model, conversation):
    """Yield the answer to the last message, piece by piece, and then how many tokens it took."""
    stream = client.chat.completions.create(
        model=model,
        messages=conversation,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content
        if chunk.usage:
            yield chunk.usage


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("message", nargs="*")
    parser.add_argument("--url", default="http://127.0.0.1:9000/v1", help="of the OpenAI API")
    parser.add_argument("--model", help="by default the first that is served")
    asked = parser.parse_args()
    client = OpenAI(base_url=asked.url, api_key="none")
    model = asked.model or client.models.list().data[0].id
    conversation = []
    for message in asked.message or (line.strip() for line in sys.stdin):
        conversation.append({"role": "user", "content": message})
        said = ""
        for piece in answer(client, model, conversation):
            if isinstance(piece, str):
                print(piece, end="", flush=True)
                said += piece
            else:
                print(f"\n[{piece.prompt_tokens} tokens asked, {piece.completion_tokens} answered]\n")
        conversation.append({"role": "assistant", "content": said})


if __name__ == "__main__":
    main()
