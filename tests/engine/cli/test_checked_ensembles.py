"""`tritium check` holds ensembles against the models that are beside them."""

import pytest

from engine.cli.check import inspect
from engine.settings.settings import Settings

PART = """backend: "python"
max_batch_size: 8
input { name: "I" data_type: TYPE_FP32 dims: 2 }
output { name: "O" data_type: TYPE_FP32 dims: 2 }
"""


def whole(*, model="part", version=-1, given="I", batch=4):
    return f"""platform: "ensemble"
max_batch_size: {batch}
input {{ name: "X" data_type: TYPE_FP32 dims: 2 }}
output {{ name: "Y" data_type: TYPE_FP32 dims: 2 }}
ensemble_scheduling {{
  step {{
    model_name: "{model}"
    model_version: {version}
    input_map {{ key: "{given}" value: "X" }}
    output_map {{ key: "O" value: "Y" }}
  }}
}}
"""


@pytest.fixture
def check(tmp_path):
    """Check a repository of models by name, or only what is at `path`; the finding of `whole`."""

    def check(*, path="", only=(), **models):
        for name, text in models.items():
            (tmp_path / name / "1").mkdir(parents=True)
            (tmp_path / name / "config.pbtxt").write_text(text)
            (tmp_path / name / "1" / "model.py").write_text(
                "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
            )
        settings = Settings.from_argv(["--model-repository=."])
        report = inspect([tmp_path / path], settings, gpus=0, only=only, run_model_code=False)
        return next(finding for finding in report.findings if finding.name == "whole")

    return check


def test_an_ensemble_that_fits_would_load(check):
    assert check(part=PART, whole=whole()).ok


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        (
            whole(model="other"),
            "ensemble whole contains models that are not available or ambiguous: other",
            (5, 1),
        ),
        (
            whole(version=3),
            "ensemble 'whole' depends on 'part' whose required version 3 is not loaded.",
            (6, 3),
        ),
        (
            whole(given="J"),
            "in ensemble whole, ensemble tensor X is mapping to non-existing input J in model part",
            (9, 5),
        ),
        (
            whole(batch=16),
            "ensemble whole allows maximum batch size 16, but it contains model part which only allows maximum batch size"
            " to be 8",
            (2, 1),
        ),
        (
            whole(model="whole"),
            "circular dependency between ensembles: whole -> ... -> whole -> whole",
            (5, 1),
        ),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(check, text, message, place):
    config = check(part=PART, whole=text).config
    assert not config.ok
    assert config.errors[0].message == message
    assert (config.errors[0].line, config.errors[0].column) == place


def test_a_model_that_would_not_load_keeps_the_ensemble_out(check):
    config = check(part=PART.replace("TYPE_FP32", "TYPE_NONE"), whole=whole()).config
    assert config.errors[0].message.startswith("ensemble 'whole' depends on 'part' which is not valid.")


def test_models_that_are_not_looked_at_are_not_missed(check):
    assert check(part=PART, whole=whole(), only=("whole",)).ok
    assert check(path="whole").ok
