"""Which format a file has, by what is in it: a file's name says little.

The bytes come from anywhere. Whatever they are, the answer is a format or none, after work that is bounded by
what a `Glimpse` holds.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from engine.repository.bare.policy import formats
from engine.repository.bare.policy.forests import is_checkpoint
from engine.repository.bare.policy.formats import ModelFormat
from engine.repository.bare.policy.protobuf import Skeleton, recognise_message

HEAD: Final = 256 * 1024
"""Bytes of a file's beginning that are looked at."""
TAIL: Final = 64 * 1024
"""Bytes of its end."""

_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_AT_THE_START: Final = (
    (b"GGUF", formats.GGUF),
    (b"\x89HDF\r\n\x1a\n", formats.HDF5),
    (b"ptrt", formats.TENSORRT),
    (b"ftrt", formats.TENSORRT),
    (b"vtrt", formats.TENSORRT),  # of TensorRT-RTX
    (b"\x93NUMPY", formats.ARRAYS),
    (b"CBM1", formats.CATBOOST),
    (b"binf", formats.XGBOOST_BINARY),
)
_AT_BYTE_4: Final = (
    (b"TFL3", formats.TFLITE),
    (b"ORTM", formats.ORT),
    (b"PTMF", formats.TORCH_MOBILE),
    (b"ET12", formats.EXECUTORCH),
    (b"ET13", formats.EXECUTORCH),
)
ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
"""How ZIP archives begin."""
PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")
"""How pickles begin."""
_TORCH_MAGIC: Final = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

_CODE: Final = re.compile(r"[^/]+/code/.+\.py\Z")
_PROGRAM: Final = re.compile(r"(?:[^/]+/models/[^/]+\.json|(?:[^/]+/)?serialized_exported_program\.json)\Z")
_SAVED: Final = re.compile(r"[^/]+/data\.pkl\Z")
# Classes of what torch.save is given if it is weights: dicts, tensors, and plain values.
_MODULES: Final = re.compile(
    rb"c([\w.]{1,100})\n([\w.]{1,100})\n|\x8c.([\w.]{1,100})\x94?\x8c.([\w.]{1,100})\x94?\x93", re.DOTALL
)
_OF_WEIGHTS: Final = frozenset((b"collections", b"torch", b"torch._utils", b"torch.serialization", b"numpy"))

_JSON: Final = re.compile(rb"\s*\{")
_XGBOOST_JSON: Final = re.compile(rb'"learner"\s{0,8}:\s{0,8}\{')
_UBJ: Final = re.compile(rb"\{(?:L\0{7}\x07|[iU]\x07|I\0\x07|l\0{3}\x07)learner\{")
_LEGACY: Final = 136  # bytes of XGBoost's `LearnerModelParamLegacy`, before the objective's name
_OBJECTIVE: Final = re.compile(rb"(?:reg|binary|multi|rank|count|survival):[a-z_]{1,30}\Z")
_LIGHTGBM: Final = re.compile(rb"tree\r?\nversion=v?\d")
_XML: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s{0,64}(?:<\?xml[^>]{0,256}\?>)?\s{0,64}"
    rb"(?:<!--[^>]{0,1024}-->\s{0,64})?<(\w{1,16})\b"
)
_PYTHON: Final = re.compile(
    rb"^class[ \t]+TritonPythonModel\b|^TritonPythonModel[ \t]*=|^[ \t]*@(?:tritium\.)?model\b", re.MULTILINE
)
_OURS: Final = re.compile(rb"^[ \t]*(?:import tritium\b|from tritium\b)", re.MULTILINE)
_DALI_CODE: Final = re.compile(rb"^@(?:[\w.]{1,60}\.)?autoserialize\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """What is looked at of one file. `tail` is empty if `head` is all of it.

    `members` are the names in a ZIP archive; None if the file is none that can be listed. `pickle` is how the
    pickle in it begins, unpacked.
    """

    head: bytes
    size: int
    tail: bytes = b""
    members: tuple[str, ...] | None = None
    pickle: bytes = b""
    message: Skeleton = field(default_factory=lambda: Skeleton((), sound=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognised:
    """A format, and what is wrong with the file if that can be seen already."""

    form: ModelFormat
    damage: str = ""


def recognise(file: Glimpse) -> Recognised | None:
    """Return what a file is; None if it is nothing that is known as a model."""
    head = file.head
    if head.startswith(_POINTER):
        return Recognised(form=formats.POINTER)
    for mark, form in _AT_THE_START:
        if head.startswith(mark):
            return Recognised(form=form)
    for mark, form in _AT_BYTE_4:
        if head[4:8] == mark:
            return Recognised(form=form)
    if head.startswith(ZIP):
        return _archive(file)
    if PICKLE.match(file.pickle):
        return Recognised(form=_of_pickle(file.pickle))
    told = _of_numbers(file) or _of_text(head)
    if told is not None:
        return Recognised(form=told)
    told, cut = recognise_message(file.message)
    if told is None:
        return None
    return Recognised(form=told, damage="it is cut short: copy it again" if cut else "")


def _archive(file: Glimpse) -> Recognised | None:
    if file.members is None:
        return Recognised(
            form=_unlisted(file.head), damage="its archive is damaged or cut short: copy it again"
        )
    form = _of_members(file.members, file.pickle)
    return None if form is None else Recognised(form=form)


def _unlisted(head: bytes) -> ModelFormat:
    """Return what an archive was meant to be whose list of members is lost."""
    if b"/code/" in head or b"data.pkl" in head:
        return formats.TORCHSCRIPT
    return ModelFormat(name="ZIP archive", tag="zip", advice="")


def _of_members(names: Collection[str], pickle: bytes) -> ModelFormat | None:
    if "MAR-INF/MANIFEST.json" in names:
        return formats.TORCHSERVE
    if "model.weights.h5" in names and "config.json" in names:
        return formats.KERAS
    if "schema.json" in names:
        return formats.SKOPS
    if any(_CODE.match(name) for name in names):
        return formats.TORCHSCRIPT
    if any("/data/aotinductor/" in name for name in names):
        return formats.COMPILED
    if any(_PROGRAM.match(name) for name in names):
        return formats.EXPORTED
    if any(_SAVED.match(name) for name in names):
        return formats.STATE_DICT if _are_weights(pickle) else formats.PICKLED_MODULE
    return formats.ARRAYS if names and all(name.endswith(".npy") for name in names) else None


def _are_weights(pickle: bytes) -> bool:
    """Whether a pickle names only what weights are made of."""
    return all((old or new) in _OF_WEIGHTS for old, _, new, _ in _MODULES.findall(pickle))


def _of_pickle(pickle: bytes) -> ModelFormat:
    if _TORCH_MAGIC in pickle[:64]:
        # torch.save before 1.6: the object's pickle follows three short ones.
        return formats.STATE_DICT if _are_weights(pickle) else formats.PICKLED_MODULE
    modules = {(old or new).partition(b".")[0] for old, _, new, _ in _MODULES.findall(pickle)}
    if b"sklearn" in modules:
        return formats.SKLEARN
    return formats.PICKLED_MODULE if b"torch" in modules else formats.PICKLE


def _of_numbers(file: Glimpse) -> ModelFormat | None:
    """Return what a file is that begins with lengths and counts."""
    head = file.head
    if len(head) > 16 and head[8:9] == b"{":
        (length,) = struct.unpack_from("<Q", head)
        if 2 <= length <= file.size - 8 and re.match(rb'\{\s{0,8}(?:"|\})', head[8:32]):
            return formats.SAFETENSORS
    if _UBJ.match(head):
        return formats.XGBOOST_UBJ
    if is_checkpoint(head, file.size):
        return formats.TREELITE
    if len(head) > _LEGACY + 8:
        (length,) = struct.unpack_from("<Q", head, _LEGACY)
        if length < 64 and _OBJECTIVE.match(head[_LEGACY + 8 : _LEGACY + 8 + length]):
            return formats.XGBOOST_BINARY
    return None


def _of_text(head: bytes) -> ModelFormat | None:
    if _LIGHTGBM.match(head):
        return formats.LIGHTGBM
    if _JSON.match(head):
        return _of_json(head)
    root = _XML.match(head)
    if root is not None:
        return {b"net": formats.OPENVINO, b"PMML": formats.PMML}.get(root[1])
    if b"\0" in head:
        return None
    if _DALI_CODE.search(head):
        return formats.DALI
    declared = _PYTHON.findall(head)
    if any(b"TritonPythonModel" in each for each in declared) or (declared and _OURS.search(head)):
        return formats.PYTHON
    return None


def _of_json(head: bytes) -> ModelFormat | None:
    if _XGBOOST_JSON.search(head):
        return formats.XGBOOST_JSON
    if b'"modelTopology"' in head and b'"weightsManifest"' in head:
        return formats.TFJS
    if b'"base_code"' in head and b'"program"' in head:
        return formats.PADDLE_JSON
    return None
