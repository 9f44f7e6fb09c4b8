"""Have a language model call a function: `python examples/llm/tools.py ["How deep is the harbour?"]`.

The model is told of one tool, asks for a call of it, is given the result, and answers with it. Needs openai.
"""

import argparse
import json

from openai import OpenAI

DEPTHS = {"low": 4.5, "high": 9.0}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_tide",
            "description": "How deep the harbour is.",
            "parameters": {
                "type": "object",
                "properties": {"tide": {"type": "string", "enum": ["low", "high"]}},
                "required": ["tide"],
            },
        },
    }
]


def read_tide(tide):
    """The tool: how deep the harbour is, in metres."""
    return str(DEPTHS[tide])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("question", nargs="?", default="How deep is the harbour?")
    parser.add_argument("--url", default="http://127.0.0.1:9000/v1", help="of the OpenAI API")
    parser.add_argument("--model", help="by default the first that is served")
    asked = parser.parse_args()
    client = OpenAI(base_url=asked.url, api_key="none")
    model = asked.model or client.models.list().data[0].id
    conversation = [{"role": "user", "content": asked.question}]
    while True:
        answer = client.chat.completions.create(
            model=model, messages=conversation, tools=TOOLS, temperature=0
        )
        choice = answer.choices[0]
        conversation.append(choice.message.model_dump(include={"role", "content", "tool_calls"}))
        if choice.finish_reason != "tool_calls":
            print(choice.message.content)
            return
        for call in choice.message.tool_calls:
            arguments = json.loads(call.function.arguments)
            result = read_tide(**arguments)
            print(f"{call.function.name}({arguments}) = {result}")
            conversation.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    main()
