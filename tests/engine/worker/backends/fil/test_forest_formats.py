"""Files of forests are recognised by their first bytes, whatever they are called."""

import struct

import pytest

from engine.worker.backends.fil.formats import (
    CHECKPOINT,
    LIGHTGBM,
    XGBOOST_BINARY,
    XGBOOST_JSON,
    XGBOOST_UBJ,
    mistaken,
    recognise,
    recognise_among_all,
)

LEGACY = bytes(136) + struct.pack("<Q", 16) + b"reg:squarederror" + struct.pack("<Q", 6) + b"gbtree"
HEADS = {
    b'{"learner":{"attributes"': XGBOOST_JSON,
    b'\n {\n "learner"': XGBOOST_JSON,
    b"{L\0\0\0\0\0\0\0\x07learner{": XGBOOST_UBJ,
    b"{i\x07learner": XGBOOST_UBJ,
    b"tree\nversion=v4\n": LIGHTGBM,
    b"tree\r\nversion=v3\r\n": LIGHTGBM,
    struct.pack("<iiiBBQ", 4, 1, 2, 2, 2, 9): CHECKPOINT,
    struct.pack("<iiiBBQ", 3, 9, 0, 2, 2, 9): CHECKPOINT,
    b"binf" + LEGACY: XGBOOST_BINARY,
    LEGACY: XGBOOST_BINARY,
}


@pytest.mark.parametrize(("head", "found"), HEADS.items())
def test_each_library_is_recognised(head, found):
    assert recognise(head) == found


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"tree",
        b"<xml>",
        bytes(200),
        bytes(136) + struct.pack("<Q", 1 << 40) + b"reg:linear",
        bytes(136) + struct.pack("<Q", 6) + b"\xff\xfe::::",
        struct.pack("<iii", 4, 1, 2),
    ],
)
def test_other_files_are_not(head):
    assert recognise(head) is None


def test_the_beginning_of_a_checkpoint_may_be_anything():
    head = struct.pack("<iiiBBQ", 4, 1, 2, 2, 2, 9)[:14]
    assert recognise(head) == CHECKPOINT
    assert recognise_among_all(head, len(head)) is None


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b'{"learner":', "xgboost_ubj"),
        (b"{L\0\0\0\0\0\0\0\x07learner", "xgboost_json"),
        (b"{L\0\0\0\0\0\0\0\x07learner", "xgboost"),
        (b"tree\n", "lightgbm"),
    ],
)
def test_what_xgboost_wrote_goes_under_any_of_its_names(head, kind):
    assert mistaken(head, kind) == ""


@pytest.mark.parametrize(
    ("head", "kind", "text"),
    [
        (b"", "lightgbm", "it is empty"),
        (b"tree\n", "xgboost", "it is LightGBM text, which is model_type 'lightgbm', and not 'xgboost'"),
        (LEGACY, "lightgbm", "which is model_type 'xgboost', and not 'lightgbm'"),
        (b"\x80\x04\x95\x00", "treelite_checkpoint", "it is a Python pickle. A server loads no pickles"),
        (b"\x78\x9c\x00", "treelite_checkpoint", "as joblib writes pickles. A server loads no pickles"),
        (b"PK\x03\x04", "treelite_checkpoint", "it is a ZIP archive"),
        (b"\x08\x08\x12\x04onnx", "xgboost", "it is an ONNX model, which backend 'onnxruntime' serves"),
        (b"version https://git-lfs.github.com", "xgboost", "it is a pointer of Git LFS"),
        (b"abc", "lightgbm", "it is not LightGBM text"),
        (b"abc", "xgboost", "it is not XGBoost JSON or XGBoost UBJ or XGBoost's legacy binary format"),
    ],
)
def test_a_mistaken_file_is_told_by_what_it_is(head, kind, text):
    assert text in mistaken(head, kind)
