"""Ensembles against what the router has of their models: what is refused, and what they take over."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.catalog.found import FoundModel
from actors.serving.model import ModelState
from actors.serving.routing.router import Router
from actors.serving.standing import Status
from actors.serving.statistics import ModelStatistics
from actors.values.datatypes import DataType
from actors.values.specs import Ensemble, EnsembleStep, InputSpec, ModelKey, OutputSpec
from engine.config.parse import parse
from engine.config.translate import translate
from engine.processes.backends import BackendTraits
from engine.server.composing import Composer
from engine.settings.parameters import TritiumSettings
from tests.support.doubles import ServedDouble
from tests.support.model_doubles import make_spec

WHOLE = """
name: "whole" platform: "ensemble" max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: 2 }
output { name: "Y" data_type: TYPE_FP32 dims: 2 }
ensemble_scheduling {
  step { model_name: "part" model_version: VERSION
         input_map { key: "INPUT" value: "X" } output_map { key: "OUTPUT" value: "Y" } }
}
"""


def found(version="-1", *, namespace="", text=WHOLE, labels=None):
    config: Any = parse(text.replace("VERSION", version), Path("config.pbtxt")).config
    spec = translate(
        config,
        version=1,
        version_directory=Path("/models/whole/1"),
        model_directory=Path("/models/whole"),
        traits=BackendTraits(name=""),
        tritium=TritiumSettings(),
        labels=labels,
    )
    spec = replace(spec, namespace=namespace)
    return FoundModel(key=ModelKey("whole", namespace), specs=(spec,), versions=(1,))


class Shelf:
    """A router, filled by hand."""

    def __init__(self):
        self.router = Router(namespacing=True)
        self.compose = Composer(self.router)

    def load(self, *versions, name="part", namespace="", failing="", **changes):
        states = {}
        key = ModelKey(name, namespace)
        for version in versions:
            spec = make_spec(name=name, version=version, namespace=namespace, **changes)
            state = states[version] = ModelState(
                spec, statistics=ModelStatistics(), on_status=self.router.roster.changed, wall_clock=lambda: 0
            )
            self.router.roster.load_begun(key, state)
            if failing:
                state.standing.become(Status.UNAVAILABLE, failing)
                self.router.roster.load_ended(key, state, failing)
            else:
                state.standing.become(Status.READY)
        if not failing:
            self.router.roster.serve(key, states)
        return states


@pytest.fixture
async def shelf():
    await trio.lowlevel.checkpoint()
    return Shelf()


def config_of(composed):
    (spec,) = composed.specs
    return spec, json.loads(spec.config_json)


async def test_other_models_pass_as_they_are(shelf):
    plain = FoundModel(key=ModelKey("m"), specs=(make_spec(name="m"),))
    assert shelf.compose(plain) is plain


async def test_an_ensemble_that_fits_its_model_is_as_it_was_but_tells_its_transaction_policy(shelf):
    shelf.load(1)
    before = found()
    spec, config = config_of(shelf.compose(before))
    assert dataclasses.replace(spec, config_json=b"") == dataclasses.replace(before.specs[0], config_json=b"")
    assert config.pop("model_transaction_policy") == {"decoupled": False}
    assert config == json.loads(before.specs[0].config_json)


@pytest.mark.parametrize(
    ("load", "version", "why"),
    [
        ({}, "-1", "ensemble whole contains models that are not available or ambiguous: part"),
        (
            {"versions": (3,)},
            "2",
            "ensemble 'whole' depends on 'part' whose required version 2 is not loaded.",
        ),
        (
            {"versions": (1,), "failing": "Internal: no weights"},
            "-1",
            "ensemble 'whole' depends on 'part' which has no loaded version. Model 'part' loading failed with error:"
            " Internal: no weights",
        ),
    ],
)
async def test_what_is_missing_is_told(shelf, load, version, why):
    if load:
        shelf.load(*load.pop("versions"), **load)
    refused = shelf.compose(found(version))
    assert (refused.specs, refused.unfit, refused.reason) == ((), why, f"Invalid argument: {why}")


async def test_a_model_whose_configuration_can_not_be_read_is_not_valid(shelf):
    shelf.router.roster.mark_broken(ModelKey("part"), (), "Invalid argument: nonsense")
    assert shelf.compose(found()).unfit == (
        "ensemble 'whole' depends on 'part' which is not valid. Model 'part' failed with error:"
        " Invalid argument: nonsense"
    )


async def test_a_model_of_its_own_repository_goes_before_others_of_that_name(shelf):
    shelf.load(1, namespace="/there")
    _, config = config_of(shelf.compose(found(namespace="/here")))
    assert config["ensemble_scheduling"]["step"][0]["model_namespace"] == "/there"
    shelf.load(1, namespace="/elsewhere")
    assert "not available or ambiguous: part" in shelf.compose(found(namespace="/here")).unfit
    here = shelf.load(1, namespace="/here")
    spec, _ = config_of(shelf.compose(found(namespace="/here")))
    (step,) = spec.scheduling.steps
    assert shelf.router.resolve(step.model_name, namespace=step.model_namespace) is here[1]


@pytest.mark.parametrize("decoupled", [True, False])
async def test_it_is_decoupled_where_a_model_is_whatever_it_says_itself(shelf, decoupled):
    shelf.load(1, decoupled=decoupled)
    text = WHOLE + f"model_transaction_policy {{ decoupled: {str(not decoupled).lower()} }}"
    spec, config = config_of(shelf.compose(found(text=text)))
    assert spec.decoupled is decoupled
    assert config["model_transaction_policy"] == {"decoupled": decoupled}


async def test_labels_are_those_of_the_models_output_unless_it_has_its_own(shelf):
    output = OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(2,), labels=("cat", "dog"))
    shelf.load(1, outputs=(output,))
    spec, _ = config_of(shelf.compose(found()))
    assert spec.outputs[0].labels == ("cat", "dog")
    spec, _ = config_of(shelf.compose(found(labels={"Y": ("left", "right")})))
    assert spec.outputs[0].labels == ("left", "right")


async def test_a_model_that_is_loaded_on_demand_counts_as_loaded(shelf):
    class Asleep(ServedDouble):
        spec = make_spec(name="part", version=2)

    shelf.router.roster.set_dormant(ModelKey("part"), {2: Asleep()})
    assert shelf.compose(found()).specs
    assert shelf.compose(found("2")).specs
    assert "required version 3" in shelf.compose(found("3")).unfit


async def test_what_does_not_fit_is_told_with_all_its_faults(shelf):
    shelf.load(
        1,
        max_batch_size=2,
        inputs=(InputSpec(name="INPUT", datatype=DataType.INT32, dims=(2,)),),
    )
    refused = shelf.compose(found())
    assert refused.unfit == (
        "ensemble whole allows maximum batch size 4, but it contains model part which only allows maximum batch size to"
        " be 2"
    )
    assert len(refused.errors) == 2
    assert "inconsistent data type: TYPE_FP32 is inferred from model whole" in refused.errors[1]


async def test_every_version_has_to_fit(shelf):
    shelf.load(1)
    whole = found()
    (spec,) = whole.specs
    scheduling = Ensemble(steps=(EnsembleStep(model_name="part", input_map={"INPUT": "X"}, output_map={}),))
    other = replace(
        spec,
        version=2,
        scheduling=scheduling,
        config_json=spec.config_json.replace(b'"model_version":-1', b'"model_version":5'),
    )
    refused = shelf.compose(replace(whole, specs=(spec, other), versions=(1, 2)))
    assert refused.specs == ()
    assert "required version 5" in refused.unfit
