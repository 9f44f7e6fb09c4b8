"""Where a language model's files are, and what is told of them beside: its folder and `model.json`."""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.worker.backends.base import LoadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo

ARGUMENTS_FILE = "model.json"
FOLDERS = "folders"
"""Setting of a backend (`--backend-config`): folders beside the repository that models may name, by `:`."""

LORA_FOLDERS = "lora_folders"
"""Setting of a backend: the folders that LoRA adapters are loaded from by API, by `:`."""

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class Arguments(NamedTuple):
    """What a model's owner says of how it is served. Names are vLLM's where vLLM has the same."""

    model: str = ""
    dtype: str = "auto"
    max_model_len: int = 0  # 0: the model's own
    max_num_seqs: int = 0  # streams of one step; 0: 64 on a CPU, 256 on a GPU
    max_num_batched_tokens: int = 0  # tokens of one step; 0: 512 on a CPU, 4096 on a GPU
    block_size: int = 0  # tokens of a cache block; 0: 32 on a CPU, 256 on a GPU
    num_blocks: int = 0  # blocks of the cache; 0: by memory
    kv_cache_gib: float = 0.0  # on a CPU, memory of the cache; 0: 1 GiB, or the model's whole context
    gpu_memory_utilization: float = 0.8  # part of the free memory that the cache takes
    enable_prefix_caching: bool = True
    attn_implementation: str = ""
    disable_any_whitespace: bool = True  # of JSON that a grammar enforces


_DTYPES = ("auto", "float32", "float16", "bfloat16")


def read_arguments(model: ModelInfo) -> Arguments:
    """Read `model.json`, if there is one, and parameters of the same names. Raises LoadError."""
    said = dict(_document(os.path.join(model.version_directory, ARGUMENTS_FILE)))
    said.update({key: value for key, value in model.parameters.items() if key in Arguments._fields})
    unknown = [key for key in said if key not in Arguments._fields]
    if unknown:
        raise LoadError(
            f"'{ARGUMENTS_FILE}' of model '{model.name}' has {', '.join(map(repr, unknown))};"
            f" backend 'transformers' knows {', '.join(Arguments._fields)}"
        )
    read = {key: _typed(model.name, key, value) for key, value in said.items()}
    arguments = Arguments(**read)
    if arguments.dtype not in _DTYPES:
        raise LoadError(
            f"model '{model.name}': 'dtype' must be one of {', '.join(_DTYPES)}, got '{arguments.dtype}'"
        )
    if "/" in arguments.attn_implementation:
        raise LoadError(
            f"model '{model.name}': 'attn_implementation' is '{arguments.attn_implementation}', the name of a"
            " package of code that transformers would fetch and run; use sdpa, eager or flash_attention_2"
        )
    if not 0.0 < arguments.gpu_memory_utilization <= 1.0:
        raise LoadError(
            f"model '{model.name}': 'gpu_memory_utilization' must be above 0 and at most 1,"
            f" got {arguments.gpu_memory_utilization}"
        )
    return arguments


def _document(path: str) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise LoadError(f"'{path}' is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise LoadError(f"'{path}' must be a JSON object of arguments")
    return document


def _typed(name: str, key: str, value: Any) -> Any:
    """Return a value of a field's own type; parameters are texts."""
    wanted = type(Arguments._field_defaults[key])
    try:
        if wanted is bool:
            return _flag(value)
        if wanted is str:
            if not isinstance(value, str):
                raise ValueError(value)
            return value
        number = wanted(value)
        if isinstance(value, bool) or number < 0 or number != float(value):
            raise ValueError(value)
    except (TypeError, ValueError, OverflowError):
        kind = {bool: "true or false", str: "a text", int: "a whole number, 0 or more", float: "a number"}[
            wanted
        ]
        raise LoadError(f"model '{name}': '{key}' must be {kind}, got {value!r}") from None
    return number


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() not in ("true", "false"):
        raise ValueError(value)
    return str(value).lower() == "true"


def find_folder(model: ModelInfo, arguments: Arguments) -> str:
    """Return the model's folder, checked to bring no code. Raises LoadError.

    It is the version's directory, or what `model` names: a path, relative to that directory. It may not lead
    out of the repository, but into the folders that the operator names.
    """
    named = arguments.model
    folder = os.path.realpath(os.path.join(model.version_directory, named))
    repository = os.path.dirname(os.path.realpath(model.model_directory))
    allowed = [os.path.realpath(each) for each in model.settings.get(FOLDERS, "").split(":") if each]
    if named and not any(_inside(folder, each) for each in (repository, *allowed)):
        raise LoadError(
            f"'model' of model '{model.name}' is '{named}', which is outside the model repository; put the"
            f" folder there, or start the server with --backend-config=transformers,{FOLDERS}=FOLDER"
        )
    check_folder(folder)
    return folder


def identity_of(folders: Sequence[str], *said: str) -> str:
    """Return what tells whether another engine has loaded the same: files in `folders`, and settings.

    Files count by name, size and time of change, as weights are long.
    """
    digest = blake2b(digest_size=16)
    for folder in folders:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:  # a name of a hub's
            entries = []
        for entry in entries:
            try:
                told = entry.stat() if entry.is_file() else None
            except OSError:  # it has just gone, or is a link that leads nowhere
                continue
            if told is not None:
                digest.update(
                    f"{entry.name}\0{told.st_size}\0{told.st_mtime_ns}\0".encode("utf-8", "replace")
                )
    for text in said:
        digest.update(text.encode("utf-8", "replace") + b"\0")
    return digest.hexdigest()


MEAN, FIRST, LAST = "mean", "cls", "lasttoken"
"""How an embedding is made of the last hidden states; sentence-transformers' words."""

_POOLINGS = (MEAN, FIRST, LAST)
_MODULES_THAT_CHANGE_NOTHING = ("Transformer", "Normalize")


def read_pooling(folder: str) -> str:
    """Return how embeddings are made by a model folder of sentence-transformers, and else their mean.

    Raises LoadError for a way that is not known here: its vectors would be others than the model's.
    """
    path = os.path.join(folder, "modules.json")
    try:
        with open(path, encoding="utf-8") as file:
            modules = json.load(file)
    except FileNotFoundError:
        return MEAN
    except (ValueError, RecursionError) as error:
        raise LoadError(f"'{path}' is no JSON: {error}") from error
    pooling = MEAN
    for module in modules if isinstance(modules, list) else ():
        kind = str(module.get("type")).rpartition(".")[2]
        if kind == "Pooling":
            # Its file lies beneath the folder, under a name that nothing may lead out of.
            place = os.path.basename(str(module.get("path")))
            pooling = _pooling_of(os.path.join(folder, place, "config.json"))
        elif kind not in _MODULES_THAT_CHANGE_NOTHING:
            raise LoadError(
                f"'{path}' has a module '{kind}', which is not known here:"
                " embeddings would be wrong without it"
            )
    return pooling


def _pooling_of(path: str) -> str:
    said = _document(path)
    chosen = [key.removeprefix("pooling_mode_") for key, value in said.items() if value is True]
    chosen = [
        name.removesuffix("_tokens").removesuffix("_token") for name in chosen if name != "include_prompt"
    ]
    wanted = str(said.get("pooling_mode") or "+".join(chosen) or MEAN)
    if wanted not in _POOLINGS:
        raise LoadError(f"'{path}' asks for pooling '{wanted}'; there are {', '.join(_POOLINGS)}")
    return wanted


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def check_folder(folder: str) -> None:
    """Raise LoadError if this is no model folder, or loading it would run code of its own."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise LoadError(f"model folder '{folder}' can't be read: {error.strerror}") from error
    if "config.json" not in names:
        raise LoadError(
            f"'{folder}' has no 'config.json': put a model folder's files there (config.json, *.safetensors,"
            f" tokenizer.json), or name the folder in '{ARGUMENTS_FILE}': {{\"model\": path}}"
        )
    config = _document(os.path.join(folder, "config.json"))
    brought = config.get("auto_map")
    if brought:
        raise LoadError(
            f"'{folder}/config.json' has 'auto_map', so the model is code of its own"
            f" ({', '.join(map(str, brought))});"
            " code from a model folder is never run here: use an architecture that transformers has"
        )
    if "adapter_config.json" in names:
        raise LoadError(
            f"'{folder}' has 'adapter_config.json': it is an adapter, and names the model that would be"
            " loaded in its place; merge the two, and serve the folder of that"
        )
    if not any(name.endswith(".safetensors") for name in names):
        pickles = [name for name in names if name.endswith(_PICKLES)]
        raise LoadError(
            f"'{folder}' has no '*.safetensors'"
            + (f", only {', '.join(pickles)}, which can run code as they are loaded" if pickles else "")
            + "; save the model with `save_pretrained`, which writes safetensors"
        )
