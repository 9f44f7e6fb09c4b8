"""A tokenizer and its chat templates from a model's folder.

A `tokenizer.json` is loaded by `tokenizers` alone. What else a folder may have (a SentencePiece model,
tiktoken ranks, a vocabulary with merges) is converted by transformers, in a process of its own: it imports
torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from engine.worker.text.spelling import spelling_of
from engine.worker.text.templates import ChatTemplates
from engine.worker.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCES: Final = (
    "tokenizer.model",
    "tekken.json",
    "tiktoken.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)
"""Files of tokenizers that transformers converts."""

_NAMED_TOKENS: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_CONVERTED_WITHIN: Final = 600.0  # seconds
_CONVERT: Final = """
import sys
from transformers import AutoTokenizer
made = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False, local_files_only=True)
backend = getattr(made, "backend_tokenizer", None) or getattr(made, "_tokenizer", None)
if not hasattr(backend, "to_str"):
    sys.exit(f"a {type(made).__name__} has no form that `tokenizers` runs")
sys.stdout.write(backend.to_str())
"""


class LoadFailed(Exception):
    """A folder's tokenizer can't be loaded. The text says what is missing."""


class Loaded:
    """A model's tokenizer, and what its folder says about text."""

    def __init__(self, tokenizer: Any, document: Mapping[str, Any], folder: str) -> None:
        """`tokenizer` is of class `tokenizers.Tokenizer`; `document` is the same in JSON values."""
        config = _read(folder, "tokenizer_config.json")
        model = _read(folder, "config.json")
        generation = _read(folder, "generation_config.json")
        tokens = _named_tokens(folder, config)
        ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        added = document.get("added_tokens") or ()
        self.tokenizer = tokenizer
        self.templates = ChatTemplates(_templates(folder, config), tokens)
        self.vocabulary = Vocabulary(
            ids,
            spelling=spelling_of(document.get("decoder")),
            special=[token["id"] for token in added if token.get("special")],
            eos=_eos(generation, model, ids.get(tokens.get("eos_token", ""))),
            decode=lambda chosen: str(tokenizer.decode(list(chosen), skip_special_tokens=False)),
        )
        text_model = model.get("text_config") or model
        embedded = text_model.get("vocab_size") if isinstance(text_model, dict) else None
        self.size = embedded if isinstance(embedded, int) and embedded > 0 else self.vocabulary.size
        """Ids below are the model's. A tokenizer may have fewer tokens, or more."""
        self.longest = self.vocabulary.longest if _is_plain(document) else 0
        """Characters that a token has at most; 0: that can't be said, as texts are changed first."""
        self.divisible = _is_divisible(document, tokenizer)
        """Whether a text may be cut before a space between two letters, and each part be split by itself."""
        self.sampling = {
            name: generation[name] for name in _SAMPLING if isinstance(generation.get(name), (int, float))
        }

    def facts(self) -> dict[str, Any]:
        """Return what the server is told."""
        return {
            "eos": sorted(self.vocabulary.eos),
            "vocabulary": self.size,
            "template": bool(self.templates),
            "sampling": self.sampling,
        }


def load(folder: str) -> Loaded:
    """Load what lies in `folder`. Raises LoadFailed."""
    if not os.path.isdir(folder):
        raise LoadFailed(f"there is no folder '{folder}' to load a tokenizer from")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise LoadFailed(
            f"tokenizers can't be imported ({error}): it comes with Tritium's extra 'llm'"
        ) from error
    text = _tokenizer_json(folder)
    try:
        tokenizer = Tokenizer.from_str(text)
        document = json.loads(text)
    except Exception as error:  # tokenizers raises bare ones
        raise LoadFailed(f"the tokenizer in '{folder}' can't be loaded: {error}") from error
    config = _read(folder, "tokenizer_config.json")
    _settle(tokenizer, config, _named_tokens(folder, config))
    return Loaded(tokenizer, document, folder)


def _tokenizer_json(folder: str) -> str:
    path = os.path.join(folder, "tokenizer.json")
    if os.path.isfile(path):
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except (OSError, ValueError) as error:
            raise LoadFailed(f"'{path}' can't be read: {error}") from error
    if not any(os.path.isfile(os.path.join(folder, name)) for name in SOURCES):
        raise LoadFailed(
            f"'{folder}' has no tokenizer: it has none of tokenizer.json, {', '.join(SOURCES)};"
            " put the tokenizer's files beside config.json"
        )
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    try:
        made = subprocess.run(
            [sys.executable, "-c", _CONVERT, os.path.abspath(folder)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CONVERTED_WITHIN,
            env=environ,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LoadFailed(f"the tokenizer in '{folder}' can't be converted: {error}") from error
    if made.returncode:
        said = made.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise LoadFailed(
            f"the tokenizer in '{folder}' can't be converted by transformers: {said[-500:]};"
            " a tokenizer.json beside config.json would do without"
        )
    return made.stdout.decode()


def _settle(tokenizer: Any, config: Mapping[str, Any], tokens: Mapping[str, str]) -> None:
    """Put the tokens around a text that tokenizer_config.json asks for, as transformers does."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    from tokenizers import processors

    around = [
        (name, tokens.get(f"{name}_token")) for name in ("bos", "eos") if config.get(f"add_{name}_token")
    ]
    known = {name: text for name, text in around if text and tokenizer.token_to_id(text) is not None}
    single = [*([f"{known['bos']}:0"] if "bos" in known else []), "$A:0"]
    single += [f"{known['eos']}:0"] if "eos" in known else []
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        special_tokens=[(text, tokenizer.token_to_id(text)) for text in dict.fromkeys(known.values())],
    )


def _read(folder: str, name: str) -> dict[str, Any]:
    """Return a JSON object of the folder; an empty one where there is no such file. Raises LoadFailed."""
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise LoadFailed(f"'{path}' can't be read: {error}") from error
    if not isinstance(found, dict):
        raise LoadFailed(f"'{path}' is no JSON object")
    return found


def _named_tokens(folder: str, config: Mapping[str, Any]) -> dict[str, str]:
    found = {**_read(folder, "special_tokens_map.json"), **config}
    tokens: dict[str, str] = {}
    for name in _NAMED_TOKENS:
        value = found.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _templates(folder: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the folder's templates by name; files come before what tokenizer_config.json has."""
    found: dict[str, str] = {}
    given = config.get("chat_template")
    if not given:
        given = _read(folder, "chat_template.json").get("chat_template")
    if isinstance(given, str):
        found["default"] = given
    elif isinstance(given, list):
        named = [each for each in given if isinstance(each, dict)]
        found.update({str(each.get("name")): str(each.get("template")) for each in named})
    more = os.path.join(folder, "additional_chat_templates")
    files = {"default": os.path.join(folder, "chat_template.jinja")}
    if os.path.isdir(more):
        files.update(
            {
                name[:-6]: os.path.join(more, name)
                for name in sorted(os.listdir(more))
                if name.endswith(".jinja")
            }
        )
    for name, path in files.items():
        try:
            with open(path, encoding="utf-8") as file:
                found[name] = file.read()
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise LoadFailed(f"'{path}' can't be read: {error}") from error
    return found


def _eos(generation: Mapping[str, Any], model: Mapping[str, Any], own: int | None) -> list[int]:
    """Return the ids that end a text: of generation_config.json, or else config.json, and the tokenizer."""
    nested = model.get("text_config")
    for config in (generation, model, nested if isinstance(nested, dict) else {}):
        given = config.get("eos_token_id")
        if given is not None:
            break
    else:
        given = []
    found: Sequence[Any] = given if isinstance(given, list) else [given]
    ids = {token for token in found if isinstance(token, int)}
    return sorted(ids | ({own} if own is not None else set()))


def _is_plain(document: Mapping[str, Any]) -> bool:
    """Whether each character of a text comes to be in some token, so that tokens can be counted by them."""
    if any(token.get("lstrip") or token.get("rstrip") for token in document.get("added_tokens") or ()):
        return False
    model = document.get("model") or {}
    byte_level = spelling_of(document.get("decoder")).kind == "bytes"
    if model.get("type") != "BPE" or not (byte_level or model.get("byte_fallback")):
        return False
    return all(_lengthens(step) for step in _flat(document.get("normalizer")))


_WORDS: Final = "It's Über-Zeit for the 7 QUICK_foxes to jump over 鮭 and ☀ at noon"
_PROBES: Final = (("a", " b"), (_WORDS, f" {_WORDS}"), ("The", " End\n\nof  it "))


def _is_divisible(document: Mapping[str, Any], tokenizer: Any) -> bool:
    """Whether words are split off before all else, each with the space before it, and nothing joins them."""
    steps = _flat(document.get("pre_tokenizer"))
    kinds = {step.get("type") for step in steps}
    regex = "Split" in kinds or any(step.get("use_regex", True) for step in steps)
    if "ByteLevel" not in kinds or not kinds <= {"ByteLevel", "Split", "Digits"} or not regex:
        return False
    if any(step.get("add_prefix_space") for step in steps) or document.get("normalizer") is not None:
        return False
    if any(" " in token.get("content", "") for token in document.get("added_tokens") or ()):
        return False

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return all(ids(first + second) == ids(first) + ids(second) for first, second in _PROBES)


def _lengthens(step: Mapping[str, Any]) -> bool:
    """Whether a step of a normalizer leaves no text shorter than it was."""
    if step.get("type") == "Replace":
        replaced = (step.get("pattern") or {}).get("String")
        return isinstance(replaced, str) and len(replaced) <= len(step.get("content", ""))
    return step.get("type") == "Prepend"


def _flat(step: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if step is None:
        return []
    if step.get("type") == "Sequence":
        steps = step.get("normalizers") or step.get("pretokenizers") or ()
        return [inner for each in steps for inner in _flat(each)]
    return [step]
