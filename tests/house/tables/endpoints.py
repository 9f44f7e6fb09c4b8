"""The page of HTTP endpoints, docs/reference/http.md, from the tables by which paths are found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

from protocols.http.routes import TABLE, Endpoint, match
from protocols.openai import routes as openai
from tests.house.graph import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "http.md"

_ABOUT: Final = {
    Endpoint.SERVER_LIVE: "200 while the process serves; [readiness.md](../readiness.md)",
    Endpoint.SERVER_READY: "200 while every essential model is ready; [readiness.md](../readiness.md)",
    Endpoint.SERVER_METADATA: "name, version and extensions of the server",
    Endpoint.MODEL_METADATA: "versions, inputs and outputs",
    Endpoint.MODEL_READY: "200 while the version serves",
    Endpoint.MODEL_CONFIG: "the completed [configuration](../model_configuration.md)",
    Endpoint.MODEL_STATISTICS: "counts and durations of the model",
    Endpoint.ALL_STATISTICS: "the same of all models",
    Endpoint.INFER: "one inference, as JSON or binary",
    Endpoint.GENERATE: "one inference by plain JSON; [generate.md](../generate.md)",
    Endpoint.GENERATE_STREAM: "the same, answered by server-sent events",
    Endpoint.REPOSITORY_INDEX: "the models that there are, and their state",
    Endpoint.MODEL_LOAD: "load a model, or load it again; [serving.md](../serving.md)",
    Endpoint.MODEL_UNLOAD: "unload a model",
    Endpoint.LOGGING: "read or change what is logged; [logs.md](../logs.md)",
    Endpoint.TRACE: "read or change which requests are traced; [tracing.md](../tracing.md)",
    Endpoint.SYSTEM_MEMORY_STATUS: "regions of system memory; [shared_memory.md](../shared_memory.md)",
    Endpoint.SYSTEM_MEMORY_CHANGE: "register or unregister one, or unregister all",
    Endpoint.CUDA_MEMORY_STATUS: "regions of GPU memory; [shared_memory.md](../shared_memory.md)",
    Endpoint.CUDA_MEMORY_CHANGE: "register or unregister one, or unregister all",
    Endpoint.TREE: "Tritium's own: the actor tree, as `tritium tree` shows it",
    Endpoint.EVENTS: "Tritium's own: what happens, as a stream; [events.md](../events.md)",
    Endpoint.FLEET: "Tritium's own: the register of a fleet's controller; [register.md](../register.md)",
    Endpoint.TRAFFIC: "Tritium's own: shares of versions; [traffic.md](../traffic.md)",
}

_OPENAI: Final = {
    openai.Path.CHAT: "a chat, whole or as a stream",
    openai.Path.COMPLETIONS: "a completion, whole or as a stream",
    openai.Path.EMBEDDINGS: "vectors of texts",
    openai.Path.TOKENIZE: "vLLM's: a text as token ids",
    openai.Path.DETOKENIZE: "vLLM's: token ids as a text",
    openai.Path.MODELS: "the models and adapters that serve",
    openai.Path.MODEL: "one of them",
    openai.Path.LOAD: "load a model",
    openai.Path.UNLOAD: "unload a model",
    openai.Path.LOAD_ADAPTER: "vLLM's: load a LoRA adapter",
    openai.Path.UNLOAD_ADAPTER: "vLLM's: unload one",
    openai.Path.READY: "200 while the server is ready",
    openai.Path.LIVE: "200 while the process serves",
    openai.Path.METRICS: "the server's [metrics](../metrics.md)",
}
_LEFT_OUT: Final = r"\[[^]]*\]"
_BRACKETS: Final = str.maketrans("", "", "[]")
_OF_MODELS: Final = {
    "/v1/models/{model}": "/v1/models/m",
    "/v1/models/{model}/load": "/v1/models/m/load",
    "/v1/models/{model}/unload": "/v1/models/m/unload",
}

_INTRODUCTION: Final = """\
# HTTP endpoints

This page is written by `python -m tests.house.reference` from the tables by which the server finds paths. The
protocol is [KServe v2](https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol)
with Triton's extensions. [errors.md](errors.md) has the statuses, [grpc.md](grpc.md) the same over gRPC.

`[…]` may be left out. The last column is the category that `--http-restricted-api` puts behind a header, and
the action that a rule of an [auth file](../identity.md) allows. Where the action has another name, it stands
behind the stroke.

## The v2 API

By default on port 8000. [Management on an address of its
own](../serving/access.md#management-on-an-address-of-its-own) moves a part of it.

| path | method | | needs |
|---|---|---|---|
"""
_OPENAI_HEAD: Final = """
## The OpenAI API

With `--openai-port`. *Area* is what `--openai-restricted-api` names; an auth file is asked for the action of
the endpoint above that does as much. [openai.md](../openai.md) tells of the API, and
[openai_fields.md](../openai_fields.md) of its fields.

| path | method | | area |
|---|---|---|---|
"""
_OTHERS: Final = """
## Elsewhere

| path | where |
|---|---|
| `GET /metrics` | the metrics port, by default 8002: [metrics.md](../metrics.md) |
| `/ping`, `/invocations`, `/models…` | SageMaker's port: [cloud_platforms.md](../cloud_platforms.md) |
| what `AIP_HEALTH_ROUTE` and `AIP_PREDICT_ROUTE` name | Vertex AI's: [cloud_platforms.md](../cloud_platforms.md) |
"""


def page() -> str:
    """Return the page."""
    return _INTRODUCTION + "".join(_rows()) + _OPENAI_HEAD + "".join(_openai_rows()) + _OTHERS


def _rows() -> Iterator[str]:
    paths: dict[Endpoint, list[str]] = {}
    for pattern, _ in TABLE:
        for path in templates(pattern):
            found, whole = match(_sample(path)), match(_sample(path.translate(_BRACKETS)))
            if found is not None:
                shown = path if whole is not None else re.sub(_LEFT_OUT, "", path)
                paths.setdefault(found.endpoint, []).append(shown)
    for endpoint in Endpoint:
        listed = "<br>".join(f"`{path}`" for path in paths[endpoint])
        actions = [endpoint.category, *map(endpoint.action, endpoint.methods)]
        needed = " / ".join(f"`{action.value}`" for action in dict.fromkeys(actions))
        methods = ", ".join(endpoint.methods)
        yield f"| {listed} | {methods} | {_ABOUT[endpoint]} | {needed} |\n"


def _openai_rows() -> Iterator[str]:
    paths = {template: openai.match(sample) for template, sample in (_fixed() | _OF_MODELS).items()}
    named = {route.path: template for template, route in paths.items() if route is not None}
    for path in openai.Path:
        yield f"| `{named[path]}` | {path.method} | {_OPENAI[path]} | `{path.area.value}` |\n"


def _fixed() -> dict[str, str]:
    return {path: path for path in openai._FIXED}


def _sample(template: str) -> str:
    """Return a path that a template stands for, without what may be left out."""
    return re.sub(r"\{\w+\}", "1", re.sub(_LEFT_OUT, "", template))


def templates(pattern: re.Pattern[str]) -> list[str]:
    """Return the paths that a pattern of the table stands for: `{name}` is a segment, `[…]` may be left out.

    A part that may be left out, and has words to choose from, is left out in the first of them.
    """
    return _spelt(re._parser.parse(pattern.pattern))  # type: ignore[attr-defined]  # typeshed hides it


def _spelt(parsed: Any) -> list[str]:
    names = {number: name for name, number in parsed.state.groupdict.items()}

    def sequence(items: Any) -> list[str]:
        return ["".join(parts) for parts in product(*(item(*each) for each in items))]

    def item(kind: Any, value: Any) -> list[str]:
        match str(kind), value:
            case "LITERAL", code:
                return [chr(code)]
            case "BRANCH", (_, branches):
                return [path for branch in branches for path in sequence(branch)]
            case "SUBPATTERN", (number, _, _, inside):
                if number in names and str(inside[0][0]) == "MAX_REPEAT" and len(inside) == 1:
                    return [f"{{{names[number]}}}"]
                return sequence(inside)
            case "MAX_REPEAT", (0, 1, inside):
                choices = sequence(inside)
                return [f"[{choices[0]}]"] if len(choices) == 1 else ["", *choices]
            case "MAX_REPEAT", (1, _, _):
                return ["{repository}"]
            case _:
                raise NotImplementedError(f"a pattern of the table has {kind}")

    return sequence(parsed)
