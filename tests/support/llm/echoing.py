"""Language models that say what they are told to, and the server for them.

Their tokenizer has a token for each byte, so a token is often not a whole character. Their engine says a
prompt backwards (`tests.support.language_backends`), and their template turns the last message round: so the
answer to a chat is what its last message says, and `saying` makes a prompt of any text.
"""

import json
from contextlib import contextmanager
from pathlib import Path

import trio

from tests.support.forked import start_module
from tests.support.llm import spelt
from tests.survival.server import ServerProcess, until

ROOT = Path(__file__).parents[3]
TOKENIZER = spelt.byte_level(spelt.BYTES)
TEMPLATE = """\
{{- '<|begin|>' }}{% if tools %}{{- '<tool_call>' | reverse }}{% endif %}
{%- if messages | length > 1 %}{{- messages[0].content }}{% endif %}
{{- '<|end|>' + (messages[-1].content | reverse) }}"""
LONGEST = 20_000_000


def ids_of(text):
    """Return the ids of a text, without special ones."""
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def saying(text):
    """Return a prompt, as ids, to which the answer is `text`."""
    return [spelt.END, *reversed(ids_of(text))]


def write_model(repository, name, *, template=TEMPLATE, config="", adapters=None, **parameters):
    """Put a model into a repository. `parameters` are those of the engine.

    `adapters` are paths by name; None: its engine serves none.
    """
    version = repository / name / "1"
    spelt.write(version, TOKENIZER, template=template)
    told = {"eos": spelt.END, "context": 100_000, **parameters}
    if adapters is not None:
        facts = {"max_adapters": 2, **json.loads(parameters.get("facts", "{}"))}
        told["facts"] = json.dumps(facts)
        (version / "model.json").write_text('{"enable_lora": true}')
        (version / "multi_lora.json").write_text(json.dumps(adapters))
    lines = [
        'backend: "backwards"',
        "instance_group [{ kind: KIND_CPU }]",
        *(
            f'parameters {{ key: "{key}" value {{ string_value: {json.dumps(str(value))} }} }}'
            for key, value in told.items()
        ),
        config,
    ]
    (repository / name / "config.pbtxt").write_text("\n".join(lines))
    return repository / name


def write_adapter(folder, **told):
    """Write an adapter of these models' engine. `told` is what it says."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(told))


class LanguageServer(ServerProcess):
    """A server with the engine of these models, and a port for the OpenAI API."""

    @staticmethod
    def launch(command, environ, stdout, stderr):
        """See `Server`."""
        module, flags = "tests.support.serving_languages", [*command[4:], "--openai-port=0"]
        return start_module(
            module, flags, env={**environ, "PYTHONPATH": str(ROOT)}, stdout=stdout, stderr=stderr
        )

    @property
    def openai_url(self):
        """What the `openai` package is given."""
        return f"http://127.0.0.1:{self.openai_port}/v1"

    async def parts_of(self, model, part):
        """Return the process ids of a language model: of its `texts`, or of its `engine`."""
        children = {node["name"]: node["children"] for node in (await self.node("models"))["children"]}
        if part == "engine":
            own = {node["name"]: node["children"] for node in children.get(f"{model}/1/engine", ())}
            nodes = own.get("instances", ())
        else:
            nodes = [node for node in children.get(f"{model}/1", ()) if node["name"] == "texts"]
        return [node["info"].get("pid") for node in nodes]  # None: it is being started

    @classmethod
    @contextmanager
    def standing(cls, repository, *flags, files):
        """Run a server for all tests of a module; no process of it is left behind."""
        server = cls.start(repository, files, *flags)
        try:
            trio.run(server.wait_ready)
            yield server
            started = server.descendants()
            assert trio.run(server.stop) == 0
            trio.run(until, lambda: not any(each.is_running() for each in started))
        except BaseException:
            print(f"the server's last words:\n{server.stdout[-6000:]}\n{server.stderr[-6000:]}")
            raise
        finally:
            server.kill_all()
