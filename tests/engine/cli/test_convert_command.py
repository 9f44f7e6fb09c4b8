"""`tritium convert sklearn`: checkpoints of scikit-learn forests, and what is said where there is none."""

import joblib
import numpy as np
import pytest
import treelite
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from engine.cli.convert import convert

X = np.random.default_rng(0).normal(size=(60, 4)).astype("f4")
Y = np.array(["low", "high"])[(X[:, 0] > 0).astype(int)]


@pytest.fixture
def run(tmp_path, capsys):
    """Convert an object; return the status, what was printed and told, and where the checkpoint should be."""

    def do(forest):
        joblib.dump(forest, tmp_path / "in.joblib")
        target = tmp_path / "checkpoint.tl"
        status = convert(["sklearn", str(tmp_path / "in.joblib"), str(target)])
        return status, *capsys.readouterr(), target

    return do


def test_a_forest_becomes_a_checkpoint_with_its_configuration(run):
    forest = RandomForestClassifier(3, random_state=0).fit(X, Y)
    status, out, err, target = run(forest)
    assert status == 0
    assert "this runs the code that is in it" in err
    assert "3 trees of a RandomForestClassifier, 4 columns\nclasses: 0 is high, 1 is low\n" in out
    assert 'output { name: "output__0" data_type: TYPE_FP32 dims: [ 2 ] }' in out
    scores = treelite.gtil.predict(treelite.Model.deserialize(target), X)[:, 0]
    np.testing.assert_allclose(scores, forest.predict_proba(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("forest", "text"),
    [
        (StandardScaler(), "a StandardScaler can't be converted: Not supported model type: StandardScaler"),
        (make_pipeline(StandardScaler(), RandomForestClassifier(1)).fit(X, Y), "convert its last step"),
        (RandomForestRegressor(2).fit(X, X[:, :2]), "Multi-target model not supported"),
        (
            GradientBoostingClassifier(n_estimators=1, init=RandomForestClassifier(1)).fit(X, Y),
            "Custom init estimator not supported",
        ),
        (RandomForestClassifier(1), "can't be converted"),
        ({"not": "a forest"}, "a dict can't be converted"),
    ],
)
def test_what_is_no_forest_is_told(run, forest, text):
    status, _, err, target = run(forest)
    assert (status, target.exists()) == (1, False)
    assert text in err


def test_a_file_that_is_no_pickle_is_told(tmp_path, capsys):
    source = tmp_path / "in.pkl"
    assert convert(["sklearn", str(source), str(tmp_path / "out")]) == 1
    assert "is no file: name the pickle of a forest" in capsys.readouterr().err
    source.write_bytes(b"\x80\x04nonsense")
    assert convert(["sklearn", str(source), str(tmp_path / "out")]) == 1
    assert "can't be loaded: " in capsys.readouterr().err


def test_a_checkpoint_that_would_answer_otherwise_is_not_written(run, monkeypatch):
    monkeypatch.setattr(treelite.gtil, "predict", lambda model, x: np.zeros((len(x), 1, 2)))
    status, _, err, target = run(RandomForestClassifier(1).fit(X, Y))
    assert (status, target.exists()) == (1, False)
    assert "treelite's answers differ from the forest's; nothing was written" in err


def test_a_place_that_can_not_be_written_is_told(tmp_path, capsys):
    joblib.dump(RandomForestClassifier(1).fit(X, Y), tmp_path / "in")
    assert convert(["sklearn", str(tmp_path / "in"), str(tmp_path / "none" / "out")]) == 1
    assert "can't be written: No such file or directory" in capsys.readouterr().err


def test_what_is_not_installed_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("engine.cli.convert.is_missing", lambda package: package == "sklearn")
    assert convert(["sklearn", str(tmp_path), str(tmp_path)]) == 1
    assert "not installed: scikit-learn" in capsys.readouterr().err


def test_help_says_that_pickles_run_code(capsys):
    with pytest.raises(SystemExit):
        convert(["--help"])
    assert "LOADING A PICKLE RUNS THE CODE IN IT" in capsys.readouterr().out
