"""Formats are recognised by what is in files, and no bytes at all make that fail or take long."""

import os
import pickle
import struct
import zlib
from typing import Any

import joblib
import lightgbm
import numpy as np
import openvino
import pytest
import torch
import treelite
import xgboost
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline

from engine.repository.bare.looking import look
from engine.repository.bare.policy import formats
from engine.repository.bare.policy.forests import Forest, forest_of
from engine.repository.bare.policy.protobuf import Skeleton, recognise_message, skeleton
from engine.repository.bare.policy.recognition import Glimpse, recognise
from tests.support.bare_models import (
    EXPORTED,
    FOREIGN,
    TRITIUM_MODEL,
    archive,
    onnx_model,
    safetensors,
    scores,
    script,
)
from tests.support.protobufs import message


def glimpse(content):
    return Glimpse(
        head=content,
        size=len(content),
        pickle=content,
        message=skeleton(lambda offset, count: content[offset : offset + count], len(content)),
    )


@pytest.fixture
def seen(tmp_path):
    """Write a file by a function of its path; returns its format's name, and what is told of a forest."""

    def see(write):
        path = tmp_path / "no_suffix_tells"
        write(path)
        found = look(path)
        assert found is not None
        what = recognise(found)
        return what and what.form.name, what and forest_of(what.form, found.head, found.tail)

    return see


# -- real files


def test_onnx_of_either_kind(seen):
    assert seen(onnx_model)[0] == "ONNX"
    assert seen(lambda path: onnx_model(path, external="weights.data"))[0] == "ONNX"


def test_programs_of_torch(seen):
    assert seen(script)[0] == "TorchScript"
    assert seen(lambda path: script(path, traced=True))[0] == "TorchScript"
    assert seen(lambda path: path.write_bytes(EXPORTED.read_bytes()))[0] == "torch.export"


@pytest.mark.parametrize("zipped", [False, True])
def test_weights_are_told_from_a_pickled_module(seen, zipped):
    def save(what):
        return lambda path: torch.save(what, path, _use_new_zipfile_serialization=zipped)

    weights = scores().state_dict()
    assert seen(save(weights))[0] == "PyTorch weights"
    assert seen(save({"model": weights, "epoch": 3}))[0] == "PyTorch weights"
    assert seen(save(torch.nn.Linear(4, 3)))[0] == "pickled PyTorch module"


def test_what_openvino_writes(seen, tmp_path):
    graph = openvino.convert_model(scores(), example_input=torch.zeros(1, 4))
    openvino.save_model(graph, str(tmp_path / "m.xml"))
    assert seen(lambda path: path.write_bytes((tmp_path / "m.xml").read_bytes())) == ("OpenVINO IR", None)


@pytest.fixture(scope="module")
def table():
    columns = np.random.default_rng(0).random((100, 5), np.float32)
    return columns, (columns[:, 0] > 0.5).astype(int), (columns[:, 0] * 3).astype(int)


def test_forests_tell_their_columns_and_whether_they_classify(seen, table, tmp_path):
    columns, two, three = table
    classifies, regresses = Forest(columns=5, classifies=True), Forest(columns=5, classifies=False)
    models = [
        (xgboost.XGBClassifier(n_estimators=2).fit(columns, two), classifies),
        (xgboost.XGBClassifier(n_estimators=2).fit(columns, three), classifies),
        (xgboost.XGBRegressor(n_estimators=2).fit(columns, columns[:, 1]), regresses),
    ]
    for model, told in models:
        for suffix, name in (("json", "XGBoost JSON"), ("ubj", "XGBoost UBJ")):
            model.save_model(tmp_path / f"m.{suffix}")
            written = (tmp_path / f"m.{suffix}").read_bytes()
            assert seen(lambda path, written=written: path.write_bytes(written)) == (name, told)
        checkpoint = treelite.frontend.from_xgboost(model.get_booster())
        assert seen(lambda path, made=checkpoint: made.serialize(path)) == ("treelite checkpoint", told)
    light: Any = {"n_estimators": 2, "verbose": -1, "n_jobs": 1}  # it asks a process for the number of cores
    for model, told in (
        (lightgbm.LGBMClassifier(**light).fit(columns, three), classifies),
        (lightgbm.LGBMClassifier(**light).fit(columns, two), classifies),
        (lightgbm.LGBMRegressor(**light).fit(columns, columns[:, 1]), regresses),
    ):
        assert seen(lambda path, made=model: made.booster_.save_model(path)) == ("LightGBM text", told)


def test_a_forest_whose_file_tells_nothing(seen):
    assert seen(lambda path: path.write_bytes(b'{"learner":{}}')) == ("XGBoost JSON", Forest())
    assert seen(lambda path: path.write_bytes(FOREIGN["XGBoost binary"])) == ("XGBoost binary", Forest())
    legacy = bytes(136) + struct.pack("<Q", 10) + b"reg:linear" + bytes(50)
    assert seen(lambda path: path.write_bytes(legacy)) == ("XGBoost binary", Forest())


def test_pickles_of_scikit_learn_are_known_without_being_loaded(seen, table):
    columns, two, _ = table
    forest = RandomForestClassifier(2).fit(columns, two)
    for made in (forest, make_pipeline(forest), {"model": forest}):
        assert seen(lambda path, made=made: path.write_bytes(pickle.dumps(made)))[0] == "scikit-learn pickle"
    assert seen(lambda path: path.write_bytes(pickle.dumps(forest, 2)))[0] == "scikit-learn pickle"
    for packed in (0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3), ("lzma", 3)):
        assert seen(lambda path, packed=packed: joblib.dump(forest, path, packed))[0] == "scikit-learn pickle"


@pytest.mark.parametrize("name", FOREIGN)
def test_formats_whose_libraries_are_absent(seen, name):
    assert seen(lambda path: path.write_bytes(FOREIGN[name]))[0] == name


def test_python_files_of_tritium_and_of_dali(seen):
    assert seen(lambda path: path.write_text(TRITIUM_MODEL))[0] == "Python model"
    dali = "@dali.plugin.triton.autoserialize\n@dali.pipeline_def\ndef pipe(): ...\n"
    assert seen(lambda path: path.write_text(dali))[0] == "DALI pipeline"


@pytest.mark.parametrize(
    "content",
    [
        *(
            b"",
            b"# A page\n",
            b"a,b\n1,2\n",
            b'{"a": 1}',
            b"<html></html>",
            b"\0" * 300,
            b"\x89PNG\r\n\x1a\n",
        ),
        *(archive("word/document.xml"), archive(), b"@model\ndef f(): ...\n", b"import tritium\n"),
        # Protocol buffers of something else, or almost of a model.
        *(message((1, 1)), message((1, 1), (2, b"x")), message((1, "text"), (2, "text")), message((3, 7))),
        *(
            message((1, 1), (7, b"")),
            message((1, 1), (7, b"\n\0")),
            message((1, 500), (7, b"\n\0"), (8, b"\0")),
        ),
        *(message((1, 1), (2, 1), (3, b"")), message((1, 1), (2, 1)), message((1, b"\x08\x00\x10"), (9, 1))),
        *(
            message((1, 2), (2, b"\n\0")),
            message((100, b"x"), (50, 1)),
            message((1, 1), (2, b"x"), (5000, 1)),
        ),
        # Numbers of fixed size, a number without an end, a number of no field.
        *(
            b"\x09" + b"1" * 8,
            b"\x0d" + b"1" * 4,
            b"\x08" + b"\xff" * 12,
            b"\x0a\xff" + b"\xff" * 10,
            b"\x03",
        ),
        *(struct.pack("<Q", 1 << 60) + b'{"w":{}}' * 4, struct.pack("<Q", 20) + b"{nothing" * 9),
        struct.pack("<iiiBBQiB", 4, 1, 0, 2, 2, 1 << 40, 5, 0) + bytes(400),
    ],
)
def test_what_is_no_model_is_none(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    found = look(path)
    assert found is None or recognise(found) is None


def recognised(path):
    found = look(path)
    assert found is not None
    what = recognise(found)
    assert what is not None
    return what


def test_damage_is_told(tmp_path):
    path = tmp_path / "m"
    script(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "damaged" in recognised(path).damage
    onnx_model(path)
    path.write_bytes(path.read_bytes()[:40])
    cut = recognised(path)
    assert (cut.form, cut.damage[:13]) == (formats.ONNX, "it is cut sho")
    path.write_bytes(archive("README")[:-10])
    assert recognised(path).form.name == "ZIP archive"


def test_packed_data_that_is_no_pickle(tmp_path):
    packed = (zlib.compress(b"text"), b"x\x9c no", b"\x1f\x8b no", b"BZh no", b"]\0\0 no", b"\xfd7zXZ\0 no")
    for content in packed:
        path = tmp_path / "m"
        path.write_bytes(content)
        found = look(path)
        assert found is not None
        assert recognise(found) is None


def test_no_more_than_a_window_is_unpacked(tmp_path):
    path = tmp_path / "bomb"
    path.write_bytes(zlib.compress(b"\x80\x04" + bytes(50_000_000)))
    found = look(path)
    assert found is not None
    assert len(found.pickle) <= 64 * 1024


def test_what_can_t_be_looked_at(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert look(tmp_path / "pipe") is None
    assert look(tmp_path) is None


# -- any bytes

BEGINNINGS = [*FOREIGN.values(), safetensors(), TRITIUM_MODEL.encode()]


@given(content=st.binary(max_size=2000))
def test_random_bytes_have_an_answer(content):
    recognise(glimpse(content))


@given(data=st.data())
def test_changed_and_shortened_files_have_an_answer(data):
    content = bytearray(data.draw(st.sampled_from(BEGINNINGS)))
    for _ in range(data.draw(st.integers(0, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(0, len(content)))]) + data.draw(st.binary(max_size=40))
    found = recognise(glimpse(content))
    assert found is None or found.form.engines or found.form.advice or found.damage
    if found is not None:
        forest_of(found.form, content, content)


@given(message=st.binary(max_size=400))
def test_a_walk_over_any_message_ends_within_it(message):
    reads = []

    def read(offset, count):
        assert 0 <= offset < len(message)
        reads.append(offset)
        return message[offset : offset + count]

    walked = skeleton(read, len(message))
    assert reads == sorted(set(reads))
    assert len(walked.fields) <= 64
    recognise_message(walked)


def test_a_walk_sees_some_fields_of_many():
    content = message(*([(1, "x")] * 1000))
    walked = skeleton(lambda offset, count: content[offset : offset + count], len(content))
    assert (len(walked.fields), walked.sound) == (64, True)
    assert recognise_message(Skeleton((), sound=True)) == (None, False)
