"""What the operator, and the platform, decided about the front ends for SageMaker and Vertex AI.

The platforms speak through environment variables of their own: `SAGEMAKER_TRITON_*` and `AIP_*`. A flag goes
before the variable that says the same.

Contract: http.md sections 12 and 13, deployment.md section 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from engine.settings.forms import BOOL, PORT, Form, SettingsError, some_text, text, to_int
from engine.settings.listening import host_port
from engine.settings.option import Given, Group, combined, section
from engine.settings.re2 import compiled

PingMode = Literal["ready", "live"]
Inference = Literal["infer", "generate", "generate_stream"]

DEFAULT_PORT: Final = "8080"
UNSPECIFIED: Final = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
"""The name of the model that SageMaker's invocations ask for where none was named: there is no such model."""

_PING: Final = "SAGEMAKER_TRITON_PING_MODE"
_MODEL: Final = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
_TYPE: Final = "SAGEMAKER_TRITON_INFERENCE_TYPE"
_INFERENCES: Final[Mapping[str, Inference]] = {
    "infer": "infer",
    "generate": "generate",
    "generate_stream": "generate_stream",
}


def in_prediction(environ: Mapping[str, str]) -> bool:
    """Whether Vertex AI has started this server."""
    return environ.get("AIP_MODE", "") == "PREDICTION"


def unless_in_prediction(on: bool, given: Given, name: str) -> bool:
    """Return whether a protocol is served: on Vertex AI only where its flag says so."""
    return on and (given.has(name) or not in_prediction(given.environ))


# -- SageMaker


def _range(word: str, name: str) -> tuple[int, int] | None:
    if not word:
        return None
    low, dash, high = word.partition("-")
    if not dash:
        # Triton's words, two sentences without a space between them.
        raise SettingsError(
            "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires"
            f" format <first>-<second>. Found: {word}",
            hint=f"--{name}=8081-9000 allows these ports, both ends included",
        )
    return to_int(low, name), to_int(high, name)


def _ping(given: Given) -> PingMode:
    return "live" if given.environ.get(_PING, "") == "live" else "ready"


def _inference(given: Given) -> Inference:
    word = given.environ.get(_TYPE, "") or "infer"
    if word in _INFERENCES:
        return _INFERENCES[word]
    if given.on("allow-sagemaker"):
        raise SettingsError(
            f"Server has invalid inference type '{word}'. Must be one of: infer, generate, generate_stream.",
            hint=f"the environment variable {_TYPE} says so",
        )
    return "infer"


@dataclass(frozen=True, slots=True, kw_only=True)
class SageMakerSettings:
    """How SageMaker is served. `safe_ports` are those that other listeners may have, both ends included."""

    allow: bool = Group.CLOUD.option("--allow-sagemaker=false", BOOL).means(
        "Serve Amazon SageMaker's API on a port of its own: /ping, /invocations and, for endpoints with many"
        " models, /models."
    )
    port: int = Group.CLOUD.option(f"--sagemaker-port={DEFAULT_PORT}", PORT).means(
        "On which port, at the address of --http-address; 0 lets the kernel choose."
    )
    safe_ports: tuple[int, int] | None = Group.CLOUD.option(
        "--sagemaker-safe-port-range", Form("LOW-HIGH", _range, _range)
    ).means("The ports that all other listeners may have; any other ends the start. [default: any port]")
    models: str = Group.CLOUD.option("--sagemaker-models-directory=/opt/ml/models", some_text("DIR")).means(
        "Tritium's own: where SageMaker puts the models of an endpoint with many: a load names"
        " DIR/<hash>/model or a folder in it, as a path from the root. For tests on machines of your own."
    )
    ping: PingMode = combined(_ping)
    default_model: str = combined(lambda given: given.environ.get(_MODEL, "") or UNSPECIFIED)
    inference: Inference = combined(_inference)


# -- Vertex AI


def _allow_vertex(given: Given) -> bool:
    name = "allow-vertex-ai"
    return given.on(name) if given.has(name) else in_prediction(given.environ)


def _vertex_port(given: Given) -> int:
    name = "vertex-ai-port"
    if given.has(name):
        return PORT.read(given.word(name), name)
    word = given.environ.get("AIP_HTTP_PORT", "") if _allow_vertex(given) else ""
    return PORT.read(word or DEFAULT_PORT, name)


def _route(given: Given, variable: str, complaint: str) -> str:
    """Return the pattern of a path that Vertex AI asks for. Raises SettingsError."""
    pattern = given.environ.get(variable, "")
    if not _allow_vertex(given):
        return pattern
    if not pattern:
        raise SettingsError(
            f"failed to start Vertex AI service: Invalid argument - {complaint} is not defined for Vertex AI"
            " endpoint",
            hint=f"set the environment variable {variable}, such as to /predict; --allow-vertex-ai=false"
            " switches the endpoint off",
        )
    try:
        compiled(pattern)
    except re.error as error:
        raise SettingsError(
            f"the environment variable {variable} is not a regular expression. Got {pattern}: {error}"
        ) from None
    return pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexSettings:
    """How Vertex AI is served. Routes are regular expressions, as RE2 writes them, of whole paths."""

    allow: bool = combined(
        _allow_vertex,
        Group.CLOUD.flag(
            "--allow-vertex-ai",
            BOOL,
            "Serve Google's Vertex AI on a port of its own. The environment variables AIP_PREDICT_ROUTE and"
            " AIP_HEALTH_ROUTE name its paths. [default: true where AIP_MODE is PREDICTION, which also has"
            " --allow-http and --allow-grpc be false; else false]",
        ),
    )
    port: int = combined(
        _vertex_port,
        Group.CLOUD.flag(
            "--vertex-ai-port",
            PORT,
            "On which port, at the address of --http-address; 0 lets the kernel choose. [default:"
            f" ${{AIP_HTTP_PORT}}, else {DEFAULT_PORT}]",
        ),
    )
    default_model: str = Group.CLOUD.option("--vertex-ai-default-model", text("MODEL")).means(
        "The model that predictions ask for that name none. [default: the only model that is loaded]"
    )
    # In Triton's order, with Triton's words.
    predict_route: str = combined(lambda given: _route(given, "AIP_PREDICT_ROUTE", "API_PREDICT_ROUTE"))
    health_route: str = combined(lambda given: _route(given, "AIP_HEALTH_ROUTE", "AIP_HEALTH_ROUTE"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSettings:
    """The front ends for platforms."""

    sagemaker: SageMakerSettings = section(SageMakerSettings)
    vertex: VertexSettings = section(VertexSettings)

    def listeners(self, address: str) -> Iterator[tuple[str, str, int]]:
        """Yield what each listener is for, in Triton's words, and where it is."""
        if self.sagemaker.allow:
            yield "SageMaker requests", address, self.sagemaker.port
        if self.vertex.allow:
            yield "Vertex AI requests", address, self.vertex.port

    def options(self, address: str) -> Iterator[tuple[str, str]]:
        """Yield (name, value) of what an operator wants to see at start-up."""
        if self.sagemaker.allow:
            yield "sagemaker", host_port(address, self.sagemaker.port)
        if self.vertex.allow:
            yield "vertex_ai", host_port(address, self.vertex.port)

    def refuse_unsafe(self, listeners: Sequence[tuple[str, str, int]]) -> None:
        """Raise SettingsError where a listener other than SageMaker's has a port that it may not have."""
        if not self.sagemaker.allow or self.sagemaker.safe_ports is None:
            return
        low, high = self.sagemaker.safe_ports
        for what, _, port in listeners:
            if what != "SageMaker requests" and not low <= port <= high:
                raise SettingsError(
                    f"The server cannot listen to {what} at port {port}, allowed port range is [{low},"
                    f" {high}]"
                )
