"""How a client sees a generation: as tensors, or as the pieces themselves.

The tensors are those of Triton's vLLM backend (contract, llm.md section 3), and so are the texts of errors.
Whatever makes the text, a model takes `text_input` and gives `text_output`. Each output has one element for
each of the `n` sequences, also in a stream: a sequence without news has an empty text there.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from actors.generation.policy.parameters import sampling_of
from actors.generation.policy.resolving import ADAPTER
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, Internal, InvalidArgument, TritiumError
from actors.values.generation.asking import EMBED, TEXT, Ask, GenerationRequest
from actors.values.generation.facts import BadAsk, NoSuchAdapter
from actors.values.generation.pieces import (
    Begun,
    Embedding,
    Generated,
    TextPiece,
    TokenChances,
    TokenUsage,
)
from actors.values.requests import InferRequest
from actors.values.tensors import Tensor

TEXT_OUTPUT: Final = "text_output"
_ERROR: Final = "Error generating stream: "
# What Triton's vLLM backend says in these words. Other errors, of a full queue, say, stay as they are.
_OF_THE_BACKEND: Final = frozenset(
    (ErrorCode.INVALID_ARG, ErrorCode.INTERNAL, ErrorCode.UNSUPPORTED, ErrorCode.NOT_FOUND)
)
_MOST_PARAMETERS: Final = 256 * 1024
"""Bytes of JSON that are read on the loop: some milliseconds."""

_LONGEST_TEXT: Final = 4 * 1024 * 1024
"""Bytes of a prompt, as over the OpenAI API."""


class Face(ABC):
    """What one client gets. Each method returns a part of the answer, or None while there is none."""

    ask: Ask

    @abstractmethod
    def begun(self, begun: Begun) -> FacePart | None:
        """The engine has begun."""

    @abstractmethod
    def piece(self, piece: TextPiece) -> FacePart | None:
        """More of a choice."""

    @abstractmethod
    def final(self, answer: Sequence[Generated], usage: TokenUsage | None) -> FacePart:
        """The end. `answer` is that of an ask that generates nothing."""

    def failed(self, error: TritiumError) -> TritiumError:
        """Return what the client is told of an error."""
        return error


FacePart = tuple[Sequence[Generated], Sequence[Tensor]]
"""What a part of the answer carries: pieces for a `GenerationRequest`, tensors for any other."""


class PiecesFace(Face):
    """For a frontend that takes pieces as they are."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    def begun(self, begun: Begun) -> FacePart | None:
        """See `Face`."""
        return (begun,), ()

    def piece(self, piece: TextPiece) -> FacePart | None:
        """See `Face`."""
        return (piece,), ()

    def final(self, answer: Sequence[Generated], usage: TokenUsage | None) -> FacePart:
        """See `Face`."""
        return (*answer, usage) if usage is not None else tuple(answer), ()


class TensorFace(Face):
    """For a client of the v2 protocol."""

    def __init__(self, request: InferRequest) -> None:
        """Raise Internal for tensors that ask for what there is not, as Triton's vLLM backend does."""
        try:
            self._read(request)
        except InvalidArgument as error:
            raise self.failed(error) from None

    def _read(self, request: InferRequest) -> None:
        given = {tensor.name: tensor for tensor in request.inputs}
        self._streams = _flag(given, "stream")
        exclude = _flag_or_none(given, "exclude_input_in_output")
        if self._streams and exclude is False:
            raise InvalidArgument("When streaming, `exclude_input_in_output` = False is not allowed.")
        # Unset, the prompt stands before the text of an answer in one piece, and not before a stream.
        self._with_prompt = not self._streams and not exclude
        self._tells = [name for name in _TOLD if _flag(given, f"return_{name}")]
        self.ask = _ask(request, given)._replace(stream=self._streams)
        sampling = self.ask.sampling
        # Where none were asked for, `logprobs` is null.
        self._chances = sampling.logprobs is not None
        if "cumulative_logprob" in self._tells and not self._chances:
            self.ask = self.ask._replace(sampling=sampling._replace(logprobs=0))
        self._prompt_tokens = 0
        self._sequences = [_Sequence() for _ in range(sampling.n)]
        self._going_on = sampling.n

    def begun(self, begun: Begun) -> FacePart | None:
        """See `Face`."""
        self._prompt_tokens = begun.prompt_tokens
        return None

    def piece(self, piece: TextPiece) -> FacePart | None:
        """See `Face`. The last piece of all is told with the end."""
        self._sequences[piece.choice].add(piece)
        self._going_on -= bool(piece.finish)
        return ((), self._news()) if self._streams and self._going_on else None

    def final(self, answer: Sequence[Generated], usage: TokenUsage | None) -> FacePart:
        """See `Face`."""
        vectors = [each for each in answer if isinstance(each, Embedding)]
        if vectors:
            return (), self._vectors(vectors, usage)
        return (), self._news()

    def failed(self, error: TritiumError) -> TritiumError:
        """See `Face`."""
        if isinstance(error, NoSuchAdapter) or (isinstance(error, BadAsk) and error.reason == ADAPTER):
            return Internal(error.message)
        return Internal(f"{_ERROR}{error.message}") if error.code in _OF_THE_BACKEND else error

    def _news(self) -> list[Tensor]:
        prompt = self.ask.prompts[0] if self._with_prompt else ""
        sequences = self._sequences
        outputs = [_texts(TEXT_OUTPUT, [prompt + each.text for each in sequences])]
        for name in self._tells:
            if name == "num_input_tokens":
                outputs.append(_counts(name, [self._prompt_tokens]))
            elif name == "logprobs" and not self._chances:
                outputs.append(_texts(name, ["null"] * len(sequences)))
            else:
                outputs.append(_TOLD[name](name, sequences))
        for each in sequences:
            each.told()
        return outputs

    def _vectors(self, vectors: Sequence[Embedding], usage: TokenUsage | None) -> list[Tensor]:
        outputs = [_texts(TEXT_OUTPUT, [json.dumps(list(each.values)) for each in vectors])]
        if usage is not None and "num_input_tokens" in self._tells:
            outputs.append(_counts("num_input_tokens", [usage.prompt]))
        if "num_output_tokens" in self._tells:
            outputs.append(_counts("num_output_tokens", [0]))
        return outputs


class _Sequence:
    """One sequence: what has come of it and was not told, and how it stands."""

    __slots__ = ("chances", "finish", "logprob", "text", "tokens")

    def __init__(self) -> None:
        self.text = ""
        self.finish = ""
        self.tokens = 0
        self.chances: list[TokenChances] = []
        self.logprob = 0.0  # of all its tokens

    def add(self, piece: TextPiece) -> None:
        self.text += piece.reasoning + piece.text
        self.finish = piece.finish
        self.tokens += piece.tokens
        self.chances += piece.chances
        for each in piece.chances:
            self.logprob += each.chosen.logprob

    def told(self) -> None:
        self.text, self.tokens, self.chances = "", 0, []


def _finishes(name: str, sequences: Sequence[_Sequence]) -> Tensor:
    return _texts(name, [each.finish or "None" for each in sequences])


def _sums(name: str, sequences: Sequence[_Sequence]) -> Tensor:
    return Tensor.from_numpy(name, np.array([each.logprob for each in sequences], np.float32))


def _chances(name: str, sequences: Sequence[_Sequence]) -> Tensor:
    return _texts(name, [json.dumps(_logprobs(each.chances)) for each in sequences])


def _logprobs(chances: Sequence[TokenChances]) -> list[dict[str, Any]]:
    return [
        {
            str(each.token_id): {"logprob": each.logprob, "rank": each.rank, "decoded_token": each.text}
            for each in (token.chosen, *token.others)
        }
        for token in chances
    ]


def _sizes(name: str, sequences: Sequence[_Sequence]) -> Tensor:
    return _counts(name, [each.tokens for each in sequences])


def _counts(name: str, counts: Sequence[int]) -> Tensor:
    return Tensor.from_numpy(name, np.array(counts, np.uint32))


_TOLD: Final = {
    "finish_reason": _finishes,
    "cumulative_logprob": _sums,
    "logprobs": _chances,
    "num_input_tokens": _sizes,  # of the prompt, which all sequences have in common
    "num_output_tokens": _sizes,
}


def face_of(request: InferRequest) -> Face:
    """Return the face for a request. Raises Internal for tensors that ask for what there is not."""
    return PiecesFace(request.ask) if isinstance(request, GenerationRequest) else TensorFace(request)


def _texts(name: str, texts: Sequence[str]) -> Tensor:
    elements = np.array([text.encode("utf-8", "replace") for text in texts], object)
    return Tensor.from_numpy(name, elements, DataType.BYTES)


def _text(tensor: Tensor, most: int) -> str:
    elements = tensor.as_numpy().ravel()
    if len(elements) != 1:
        raise InvalidArgument(f"input '{tensor.name}' must have one element, got {len(elements)}")
    if len(elements[0]) > most:
        raise InvalidArgument(f"input '{tensor.name}' has {len(elements[0])} bytes; there may be {most}")
    try:
        return str(elements[0], "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"input '{tensor.name}' is not UTF-8: {error}") from None


def _flag_or_none(given: Mapping[str, Tensor], name: str) -> bool | None:
    tensor = given.get(name)
    if tensor is None:
        return None
    values = tensor.as_numpy().ravel()
    if len(values) != 1:
        raise InvalidArgument(f"input '{name}' must have one element, got {len(values)}")
    return bool(values[0])


def _flag(given: Mapping[str, Tensor], name: str) -> bool:
    return bool(_flag_or_none(given, name))


def _ask(request: InferRequest, given: Mapping[str, Tensor]) -> Ask:
    embedding = given.get("embedding_request")
    if embedding is not None:
        return _embedding(_object(embedding))
    if "text_input" not in given:
        raise InvalidArgument("input 'text_input' is missing")
    written = given.get("sampling_parameters")
    parameters = (request.parameters or {}) if written is None else _object(written)
    sampling, adapter = sampling_of(parameters)
    prompt = _text(given["text_input"], _LONGEST_TEXT)
    return Ask(kind=TEXT, prompts=(prompt,), sampling=sampling, adapter=adapter)


def _embedding(document: Mapping[str, Any]) -> Ask:
    texts = document.get("input")
    prompts = [texts] if isinstance(texts, str) or _is_ids(texts) else texts
    if not isinstance(prompts, list) or not all(isinstance(each, str) or _is_ids(each) for each in prompts):
        raise InvalidArgument("input 'embedding_request' needs \"input\": a text, or a list of token ids")
    pooling = document.get("pooling_params") or {}
    dimensions = pooling.get("dimensions") if isinstance(pooling, dict) else None
    size = dimensions[0] if isinstance(dimensions, list) and dimensions else dimensions
    if size is not None and (not isinstance(size, int) or size < 1):
        raise InvalidArgument("input 'embedding_request': \"dimensions\" must be a number above 0")
    return Ask(kind=EMBED, prompts=prompts, dimensions=size)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, int) for each in value)


def _object(tensor: Tensor) -> dict[str, Any]:
    name = tensor.name
    try:
        value = json.loads(_text(tensor, _MOST_PARAMETERS))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"input '{name}' is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"input '{name}' must be a JSON object, got {type(value).__name__}")
    return value
