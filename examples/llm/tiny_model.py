"""A language model of 0.13 million weights that knows one page by heart: what it must say can be checked.

    python examples/llm/tiny_model.py FOLDER    # writes a model folder as transformers and vLLM load it

Greedy decoding is exact, whatever the engine: training ends when each token that the model has to say
has a probability over `SURE`.

- **Completion**: any line of `PAGE`, with its newline, is continued with the lines that follow it, up to
  the end token.
- **Chat**: a last user's message that is a line of the page is answered with the lines that follow it,
  behind any short system message and an earlier turn or none.
- **Tools**: `QUESTION` is answered with `CALL`; with the tool's answer (`RESULT`) behind it, with `ANSWER`.
  `TOOLS` may be declared or left out.

The page has letters of several bytes, and signs that the vocabulary splits, so that streams have to hold
bytes back. Nothing is fetched: tokenizer and weights come from the page. The same seed gives the same
folder on the same machine.
"""

import argparse
import json
import random
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

PAGE = """\
The Keeper of the Lamp at Grey Point writes one page a year, and this is it.
In January the sea froze as far as the third buoy, and foxes walked to the island.
February brought a ship with forty barrels of oil, and a cat that no one had asked for.
We named the cat Brücke, for she sleeps where the kitchen meets the stair.
March: eleven days of fog; the bell was rung by hand, day and night.
On the first of April the glass was cleaned, and the light was seen from Ålesund.
A letter came in May. It said “stay”, and nothing more.
June has no night here ☀; the lamp burned all the same, as the rule demands.
In July a boy asked how many steps there are: 217, counted twice.
August took the old boat, and left us her oars.
Anyone who finds a hat in September should write to Señor Ibáñez, room 4.
October: the price of oil is 3.75 a barrel, and the cat caught a 鮭 as long as herself.
Storms in November broke two panes; both were mended before dark.
December is short, and so is this page. The lamp is lit 🕯.
"""
"""What the model knows by heart: each line begins with other words than the rest."""

TOOLS: list[dict[str, Any]] = [
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
"""The tool that the model calls."""

QUESTION = "How deep is the harbour?"
CALL = '<tool_call>{"name": "read_tide", "arguments": {"tide": "low"}}</tool_call>'
RESULT = "4.5"
ANSWER = "At low tide the harbour is 4.5 metres deep."

CONTEXT = 2048
"""The longest sequence, prompt and answer together, in tokens."""

SURE = 0.95
"""The least probability that a trained model gives to a token it must say."""

STEPS, FIRST_LOOK, BATCH, PEAK = 600, 140, 8, 1e-2
"""Of the training: at most so many steps, the first that is looked at, lessons a step, the highest rate."""

VOCABULARY = 512
SPECIAL = ["<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
PAD, BEGIN, END = range(3)

TEMPLATE = """\
{{- bos_token }}
{%- if tools %}{{- '<|system|>Tools:' }}{% for tool in tools %}{{- ' ' + (tool | tojson) }}{% endfor %}
{{- '<|end|>' }}{% endif %}
{%- for message in messages %}
{%- if message.role not in ['system', 'developer', 'user', 'assistant', 'tool'] %}
{{- raise_exception('the roles are system, developer, user, assistant and tool') }}{% endif %}
{{- '<|' + ('system' if message.role == 'developer' else message.role) + '|>' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}{% for part in message.content or [] %}
{%- if part.type == 'text' %}{{- part.text }}{% endif %}
{%- endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- set given = call.function.arguments %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
{{- given if given is string else given | tojson }}{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""


def lines() -> list[str]:
    """The lines of the page, each with its newline."""
    return PAGE.splitlines(keepends=True)


def after(line: int) -> str:
    """What the model says behind line number `line`: the rest of the page."""
    return "".join(lines()[line + 1 :])


def make(folder: Path, *, seed: int = 0) -> Path:
    """Train the model and write its folder, which is made; some 15 seconds of one core."""
    tokenizer = _tokenizer()
    model = _trained(tokenizer, seed)
    folder.mkdir(parents=True, exist_ok=True)
    disable_progress_bar()  # of the files that are written
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE over the page: any text has tokens, the page's own words have short ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*lines(), QUESTION, CALL, ANSWER, json.dumps(TOOLS)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[PAD],
        bos_token=SPECIAL[BEGIN],
        eos_token=SPECIAL[END],
        additional_special_tokens=SPECIAL[END + 1 :],
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
        chat_template=TEMPLATE,
    )


def _trained(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A model that says each lesson's answer; the batches and the first weights come from `seed`."""
    lessons = [
        _lesson(tokenizer, asked, said) for asked, said in chain(_completions(), _chats(tokenizer, seed))
    ]
    ids, labels = _padded(lessons)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums of one order: the same weights each time
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LlamaForCausalLM(_config())
            _train(model, ids, labels)
    finally:
        torch.set_num_threads(threads)
    model.generation_config.pad_token_id = PAD
    return model.eval()


def _config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BEGIN,
        eos_token_id=END,
        dtype="float32",
    )


def _train(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> None:
    """Learn every lesson by heart; a failure to do so in `STEPS` is an error."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.0, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK, total_steps=STEPS, pct_start=0.1)
    for step in range(STEPS):
        chosen = torch.randperm(len(ids))[:BATCH]
        length = int((labels[chosen] >= 0).nonzero()[:, 1].max()) + 1
        model(input_ids=ids[chosen, :length], labels=labels[chosen, :length]).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step >= FIRST_LOOK and step % 20 == 0 and _surety(model, ids, labels) > SURE:
            return
    raise RuntimeError(f"the tiny model isn't sure of its page after {STEPS} steps; another seed may do")


@torch.no_grad()
def _surety(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> float:
    """The least probability of any token to be said."""
    chances = model(input_ids=ids).logits[:, :-1].softmax(-1)
    due = labels[:, 1:]
    return float(chances.gather(-1, due.clamp(min=0).unsqueeze(-1)).squeeze(-1)[due >= 0].min())


def _lesson(tokenizer: PreTrainedTokenizerFast, asked: str, said: str) -> tuple[list[int], list[int]]:
    """The ids of a question and its answer, and as labels the answer alone: -100 where there is none."""
    question = tokenizer.encode(asked, add_special_tokens=False)
    answer = [*tokenizer.encode(said, add_special_tokens=False), END]
    return question + answer, [-100] * len(question) + answer


def _completions() -> list[tuple[str, str]]:
    """Each line, with and without the begin token, since engines differ about giving one."""
    begin = SPECIAL[BEGIN]
    return [(start + line, after(at)) for at, line in enumerate(lines()) for start in (begin, "")]


def _chats(tokenizer: PreTrainedTokenizerFast, seed: int) -> list[tuple[str, str]]:
    """Conversations: each line as a question, and the tool's two turns, behind what may stand before."""
    chosen = random.Random(seed)
    page = lines()

    def asked(*messages: dict[str, Any], tools: list[dict[str, Any]] | None = None) -> str:
        prompt = tokenizer.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=True
        )
        assert isinstance(prompt, str)
        return prompt

    def system() -> dict[str, Any]:
        words = PAGE.split()
        return {"role": "system", "content": " ".join(chosen.sample(words, chosen.randrange(2, 12)))}

    def turn() -> list[dict[str, Any]]:
        at = chosen.randrange(len(page))
        said = "".join(page[at + 1 : at + 1 + chosen.randrange(3)])
        return [_says("user", page[at].rstrip()), _says("assistant", said)]

    lessons = []
    for at, line in enumerate(page):
        ask = _says("user", line.rstrip())
        befores: list[list[dict[str, Any]]] = [[], [system()], [system()], turn(), [system(), *turn()]]
        lessons += [(asked(*before, ask), after(at)) for before in befores]
    question = _says("user", QUESTION)
    call = json.loads(CALL.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    called = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": call}]}
    for tools in (TOOLS, None):
        for first in ([], [system()], [system()]):
            lessons.append((asked(*first, question, tools=tools), CALL))
            lessons.append((asked(*first, question, called, _says("tool", RESULT), tools=tools), ANSWER))
    return lessons


def _says(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _padded(lessons: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """All lessons as two matrices, filled up on the right."""
    longest = max(len(ids) for ids, _ in lessons)
    ids = [[*ids, *[PAD] * (longest - len(ids))] for ids, _ in lessons]
    labels = [[*labels, *[-100] * (longest - len(labels))] for _, labels in lessons]
    return torch.tensor(ids), torch.tensor(labels)


def main() -> None:
    """Make the model in a folder, with its page beside it."""
    parser = argparse.ArgumentParser(description="Train a tiny language model that knows one page by heart.")
    parser.add_argument("folder", type=Path)
    folder = make(parser.parse_args().folder)
    (folder / "page.txt").write_text(PAGE)
    print(f"{folder} knows {folder / 'page.txt'} by heart")


if __name__ == "__main__":
    main()
