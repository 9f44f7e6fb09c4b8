"""The FIL backend in process: configurations, files, machine code, threads, outputs."""

import os
import sys

import numpy as np
import pytest
import treelite
import xgboost

from actors.values.datatypes import DataType
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.fil import compiled as machine_code
from engine.worker.backends.fil.backend import ForestBackend
from engine.worker.backends.fil.forest import read_forest
from engine.worker.backends.fil.parameters import read
from engine.worker.backends.fil.walking import walked
from engine.worker.backends.testing import LocalRequest, model_info, run
from tests.support.forests import CASES, COLUMNS, Made, extreme, rows, trained, xgb

FP32 = DataType.FP32
INPUT = TensorInfo("input__0", FP32, [COLUMNS])
OFF = {"tritium.fil.compile": "off"}


@pytest.fixture(scope="module")
def binary() -> Made:
    return xgb("binary:logistic", 1)


@pytest.fixture(scope="module")
def three() -> Made:
    return xgb("multi:softprob", 2, num_class=3)


@pytest.fixture
def load(version_directory):
    """Load a forest; every backend is unloaded afterwards."""
    loaded = []

    def do(made, outputs, *, inputs=(INPUT,), artifact="", max_batch_size=1024, log=None, **options):
        parameters = {
            "model_type": made.model_type,
            "is_classifier": "true",
            **OFF,
            **options.pop("parameters", {}),
        }
        made.save(version_directory / (artifact or made.file_name))
        info = model_info(
            version_directory,
            inputs=list(inputs),
            outputs=[TensorInfo(*output) for output in outputs],
            parameters=parameters,
            artifact=artifact,
            max_batch_size=max_batch_size,
            log=log or (lambda level, message: None),
            **options,
        )
        backend = ForestBackend()
        backend.load(info)
        loaded.append(backend)
        return backend, info

    yield do
    for backend in loaded:
        backend.unload()


def output(*dims):
    return ("output__0", FP32, list(dims))


def test_requests_of_one_batch_each_get_their_rows(load, binary):
    backend, model = load(binary, [output(2)], parameters={"predict_proba": "true"})
    parts = [rows(count, seed=count) for count in (1, 5, 2)]
    for x, answer in zip(
        parts, run(backend, model, [LocalRequest({"input__0": x}) for x in parts]), strict=True
    ):
        expected = binary.expected(x)
        np.testing.assert_allclose(
            answer.outputs["output__0"], np.stack([1 - expected, expected], 1), atol=1e-6
        )


@pytest.mark.parametrize("name", ["xgboost.json", "anything"])
def test_what_xgboost_wrote_is_known_by_its_content(load, binary, name):
    backend, model = load(binary, [output(1)], artifact=name, parameters={"model_type": "xgboost"})
    x = rows(20, seed=9)
    [answer] = run(backend, model, [LocalRequest({"input__0": x})])
    assert answer.outputs["output__0"].tolist() == (binary.expected(x) > 0.5).tolist()


def test_the_class_is_that_with_the_highest_score(load, three):
    backend, model = load(three, [output(1)])
    x = rows(50, seed=9)
    [answer] = run(backend, model, [LocalRequest({"input__0": x})])
    assert answer.outputs["output__0"].shape == (50,)
    assert answer.outputs["output__0"].tolist() == three.expected(x).argmax(axis=1).tolist()


def test_leaves_are_those_of_the_library(load, binary):
    backend, model = load(binary, [output(1), ("leaf_output", DataType.INT32, [7])])
    x = rows(9, seed=3)
    [answer] = run(backend, model, [LocalRequest({"input__0": x})])
    booster = xgboost.Booster(model_file=os.path.join(model.version_directory, "xgboost.ubj"))
    assert (
        answer.outputs["leaf_output"].tolist() == booster.predict(xgboost.DMatrix(x), pred_leaf=True).tolist()
    )


def test_contributions_of_classes_are_a_row_for_each(load, three):
    backend, model = load(three, [("treeshap_output", FP32, [3, COLUMNS + 1])])
    x = rows(5, seed=3)
    [answer] = run(backend, model, [LocalRequest({"input__0": x})])
    np.testing.assert_allclose(
        answer.outputs["treeshap_output"], three.contributions(x), rtol=1e-5, atol=1e-6
    )


def test_only_outputs_that_a_request_asks_for_are_computed(load, binary):
    backend, model = load(binary, [output(1), ("treeshap_output", FP32, [COLUMNS + 1])])
    bad = rows(1, seed=3)
    bad[0, 0] = np.inf  # contributions of it can't be had
    answers = run(
        backend,
        model,
        [LocalRequest({"input__0": bad}, requested_outputs=["output__0"]), LocalRequest({"input__0": bad})],
    )
    assert [answer.message[:12] for answer in answers] == ["", "XGBoostError"]


def test_without_a_batch_dimension_rows_are_the_first(load, three):
    inputs = [TensorInfo("input__0", FP32, [-1, COLUMNS])]
    backend, model = load(
        three, [output(-1, 3)], inputs=inputs, max_batch_size=0, parameters={"predict_proba": "true"}
    )
    x = rows(5, seed=3)
    [answer] = run(backend, model, [LocalRequest({"input__0": x})])
    np.testing.assert_allclose(answer.outputs["output__0"], three.expected(x), rtol=1e-5)


@pytest.mark.parametrize(
    ("outputs", "options", "text"),
    [
        ([output(1)], {"kind": "GPU"}, "KIND_GPU cannot be used in CPU-only build"),
        ([output(1)], {"kind": "MODEL"}, "has kind KIND_MODEL: use KIND_CPU"),
        ([output(2)], {}, "output 'output__0': the model gives [1] but the configuration makes [2]"),
        ([], {}, "the configuration has no output"),
        (
            [("prediction", FP32, [1])],
            {},
            "unexpected inference output 'prediction', allowed outputs are: output__0",
        ),
        (
            [("output__0", DataType.FP64, [1])],
            {},
            "datatype TYPE_FP64 for output 'output__0', model provides TYPE_FP32",
        ),
        ([("leaf_output", DataType.INT32, [8])], {}, "the model gives [7] but the configuration makes [8]"),
        ([("treeshap_output", FP32, [3])], {}, "the model gives [7] but the configuration makes [3]"),
        ([output(1)], {"inputs": [TensorInfo("x", FP32, [6])]}, "unexpected inference input 'x'"),
        (
            [output(1)],
            {"inputs": [TensorInfo("input__0", FP32, [5])]},
            "has 6 columns, so dims should be [6]",
        ),
        ([output(1)], {"inputs": [TensorInfo("input__0", FP32, [-1])]}, "and are [-1]"),
        ([output(1)], {"max_batch_size": 0}, "should be [-1,6] (or max_batch_size above 0)"),
        (
            [output(1)],
            {"inputs": [TensorInfo("input__0", FP32, [6], ragged=True)]},
            "can't be optional or ragged",
        ),
        (
            [output(1)],
            {"parameters": {"model_type": "lightgbm"}, "artifact": "f"},
            "which is model_type 'xgboost_ubj'",
        ),
        ([output(1)], {"parameters": {"model_type": "magic"}}, "magic not recognized as a valid"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(load, binary, outputs, options, text):
    with pytest.raises(LoadError) as refused:
        load(binary, outputs, **options)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("xgboost_ubj", "unable to find '{}/xgboost.ubj' for model instance 'model_0_0'"),
        ("treelite_checkpoint", 'Could not open model file "{}/checkpoint.tl"'),
    ],
)
def test_a_missing_file_is_told_in_tritons_words(version_directory, kind, text):
    parameters = {"model_type": kind, "is_classifier": "false"}
    info = model_info(
        version_directory, inputs=[INPUT], outputs=[TensorInfo(*output(1))], parameters=parameters
    )
    with pytest.raises(LoadError) as refused:
        ForestBackend().load(info)
    assert str(refused.value) == text.format(version_directory)


def test_linear_boosters_are_refused_by_name(load):
    with pytest.raises(LoadError, match="its booster is 'gblinear', which has no trees"):
        load(xgb("reg:squarederror", booster="gblinear", max_depth=0, gaps=False), [output(1)])


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # treelite's own of such fields
def test_fields_that_treelite_does_not_know_are_passed_over_on_demand(load, binary):
    class Extended:
        model_type = "xgboost_json"
        file_name = "xgboost.json"

        @staticmethod
        def save(path):
            inner = path.with_name("inner.ubj")
            binary.save(inner)
            raw = bytes(xgboost.Booster(model_file=inner).save_raw("json"))
            path.write_bytes(raw.replace(b'"learner":{', b'"learner":{"novelty":1,', 1))

    with pytest.raises(LoadError, match="can't be read as XGBoost JSON"):
        load(Extended, [output(1)])
    backend, model = load(Extended, [output(1)], parameters={"xgboost_allow_unknown_field": "true"})
    [answer] = run(backend, model, [LocalRequest({"input__0": rows(3)})])
    assert answer.message == ""


def test_several_targets_are_refused(load):
    class Double:
        model_type = "treelite_checkpoint"
        file_name = "checkpoint.tl"

        @staticmethod
        def save(path):
            from sklearn.ensemble import RandomForestRegressor

            y = np.stack([rows()[:, 0], rows()[:, 1]], 1)
            treelite.sklearn.import_model(RandomForestRegressor(2).fit(rows(), y)).serialize(path)

    with pytest.raises(LoadError, match="Multi-target model not supported"):
        load(Double, [output(1)])


def test_what_has_no_effect_is_told(load, binary):
    told = []
    load(
        binary, [output(1)], parameters={"algo": "NAIVE"}, log=lambda level, text: told.append((level, text))
    )
    assert told == [("warning", "parameter 'algo' was removed from Triton's FIL backend and has no effect")]


# -- machine code


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where machine code goes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tritium" / "forests"


def load_compiling(load, made, wanted="on"):
    """Load a forest with machine code; return the backend, the model and what was told."""
    told = []
    backend, model = load(
        made,
        [output(1)],
        parameters={"tritium.fil.compile": wanted, "predict_proba": "true"},
        threads=2,
        log=lambda level, text: told.append((level, text)),
    )
    return backend, model, told


@pytest.mark.slow
@pytest.mark.system
def test_machine_code_answers_alike_and_is_kept(load, binary, cache):
    backend, model, told = load_compiling(load, binary)
    assert told == []
    x = rows(30_000, seed=4, gaps=True)  # enough for two threads
    [answer] = run(backend, model, [LocalRequest({"input__0": x})])
    np.testing.assert_allclose(answer.outputs["output__0"], binary.expected(x), rtol=1e-5, atol=1e-6)
    [library] = cache.glob("*.so")
    made_at = library.stat().st_mtime_ns
    load_compiling(load, binary)
    assert library.stat().st_mtime_ns == made_at


@pytest.mark.system
def test_large_forests_are_walked_by_default(load, binary, cache, monkeypatch):
    monkeypatch.setattr(machine_code, "MOST_NODES", 10)
    backend, model, told = load_compiling(load, binary, "auto")
    assert told[0][0] == "info"
    assert "nodes, and more than 10 take long to compile" in told[0][1]
    x = rows(30_000, seed=4)
    [answer] = run(backend, model, [LocalRequest({"input__0": x})])
    assert answer.code is None, answer.message
    np.testing.assert_allclose(answer.outputs["output__0"], binary.expected(x), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def one_cache(tmp_path_factory):
    """A cache for many forests, which share the function that walks them."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def walk_or_skip(made, folder):
    forest = forest_of(made, folder)
    try:
        return forest, walked(forest)
    except machine_code.CannotCompile as reason:
        pytest.skip(str(reason))


def check_walk(made, folder):
    """Compare the walk of a forest with treelite's predictor, by itself and in groups of rows."""
    forest, walk = walk_or_skip(made, folder)
    for x in (rows(1), rows(3, seed=1, gaps=True), rows(17, seed=2, gaps=True), extreme(made)):
        np.testing.assert_allclose(walk.scores(x), forest.scores(x, 1), rtol=1e-6, atol=1e-7)


@pytest.mark.system
@pytest.mark.parametrize("name", ["xgb_softprob", "lgb_multiclass", "lgb_binary_steep"])
def test_a_walk_scores_as_treelite_does(one_cache, tmp_path, name):
    check_walk(trained(name), tmp_path)


@pytest.mark.long
@pytest.mark.system
@pytest.mark.parametrize("name", CASES)
def test_the_walk_of_every_forest_scores_as_treelite_does(one_cache, tmp_path, name):
    check_walk(trained(name), tmp_path)


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("xgb_categories", "tests of categories"),
        ("lgb_cross_entropy_lambda", "its last step is logarithm_one_plus_exp"),
    ],
)
def test_what_no_walk_is_for_is_told(one_cache, tmp_path, name, why):
    with pytest.raises(machine_code.CannotCompile, match=why):
        walked(forest_of(trained(name), tmp_path))


def forest_of(made, folder):
    """Read a forest's file."""
    path = folder / made.file_name
    made.save(path)
    options = read({"model_type": made.model_type, "is_classifier": "true"})
    return read_forest(str(path), options, bounded=False)


def test_more_threads_than_there_are_cores_are_as_many_as_there_are(load, binary):
    options = {"tritium.fil.compile": "off", "predict_proba": "true", "cpu_nthread": "512"}
    backend, model = load(binary, [output(1)], parameters=options)
    x = rows(100, seed=4)
    [answer] = run(backend, model, [LocalRequest({"input__0": x})])
    assert answer.code is None, answer.message
    np.testing.assert_allclose(answer.outputs["output__0"], binary.expected(x), rtol=1e-5, atol=1e-6)


def test_without_a_compiler_treelite_serves(load, binary, cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    _, _, [(level, text)] = load_compiling(load, binary)
    assert (level, "there is no C compiler" in text) == ("warning", True)


def test_a_compiler_that_is_named_and_not_there_is_told(load, binary, cache, monkeypatch):
    monkeypatch.setenv("CC", "nonesuch")
    _, _, [(level, text)] = load_compiling(load, binary)
    assert (level, "there is no C compiler 'nonesuch', which CC names" in text) == ("warning", True)


@pytest.mark.system
def test_a_compiler_that_fails_leaves_the_model_served(load, binary, cache, monkeypatch, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "gcc").write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no space left')\n")
    (folder / "gcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    _, _, [(_, text)] = load_compiling(load, binary)
    assert "the C compiler failed with status 1: no space left" in text
    assert not [*cache.glob("*.so"), *cache.glob("making-*")]


def test_a_cache_that_others_may_write_to_is_not_used(load, binary, cache):
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    _, _, [(_, text)] = load_compiling(load, binary)
    assert "others may write to it" in text


def test_a_cache_that_can_not_be_made_is_told(load, binary, cache):
    cache.parent.parent.write_text("a file")
    _, _, [(_, text)] = load_compiling(load, binary)
    assert "can't be used" in text


@pytest.mark.system
def test_a_library_that_is_none_is_not_used(load, binary, cache, version_directory):
    binary.save(version_directory / "xgboost.ubj")
    cache.mkdir(parents=True, mode=0o700)
    key = machine_code.key_of(str(version_directory / "xgboost.ubj"))
    (cache / f"{key}.so").write_bytes(b"no library")
    _, _, [(_, text)] = load_compiling(load, binary)
    assert "the library can't be loaded" in text


# -- completion


@pytest.mark.parametrize(
    ("config", "parameters", "expected"),
    [
        ({}, {}, (4, [6], [1])),
        ({}, {"predict_proba": "true"}, (4, [6], [3])),
        ({"max_batch_size": 8}, {"is_classifier": "false"}, (8, [6], [3])),
        ({"input": [{"name": "input__0", "dims": [-1, 6]}]}, {}, (0, [-1, 6], [-1, 1])),
    ],
)
def test_missing_sides_are_completed(three, version_directory, config, parameters, expected):
    three.save(version_directory / three.file_name)
    info = model_info(
        version_directory,
        inputs=[],
        outputs=[],
        config=config,
        parameters={"model_type": "xgboost_ubj", "is_classifier": "true", **parameters},
    )
    completed = ForestBackend.complete_config(info)
    assert completed is not None
    dims = [completed[side][0]["dims"] for side in ("input", "output")]
    assert (completed.get("max_batch_size", 0), *dims) == expected
    assert ("dynamic_batching" in completed) == (expected[0] > 1)


def test_a_complete_configuration_needs_no_file(version_directory):
    info = model_info(version_directory, inputs=[], outputs=[], config={"input": [{}], "output": [{}]})
    assert ForestBackend.complete_config(info) is None


def test_the_default_batch_size_is_the_command_lines(three, version_directory):
    three.save(version_directory / three.file_name)

    def complete(text):
        return ForestBackend.complete_config(
            model_info(
                version_directory,
                inputs=[],
                outputs=[],
                parameters={"model_type": "xgboost_ubj", "is_classifier": "true"},
                settings={"default-max-batch-size": text},
            )
        )

    assert complete("64")["max_batch_size"] == 64
    with pytest.raises(LoadError, match="takes a whole number, and not 'many'"):
        complete("many")
