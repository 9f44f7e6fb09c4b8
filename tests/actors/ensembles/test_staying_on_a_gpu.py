"""Which tensors of an ensemble stay on a GPU: what its models can do, and what follows from that."""

from dataclasses import replace

import pytest

from actors.ensembles.policy.course import StepModel
from actors.ensembles.policy.on_device import HOST_ONLY, StepDevice, staying
from actors.values.confinement import Confinement, Sandbox
from actors.values.datatypes import DataType
from actors.values.padding import Buckets, CutBack, Padded
from actors.values.specs import DynamicBatching, InstanceSpec, SequenceBatching
from tests.actors.ensembles.test_ensemble_data_flow import course, wiring
from tests.support.model_doubles import make_spec

BOTH = StepDevice(0, frozenset(("x", "other")), frozenset(("y", "z")))


# -- the decision


def left(graph, requested, devices, **models):
    found = staying(course(graph, requested, **models), dict(enumerate(devices)))
    return {number: sorted(names) for number, names in found.items()}


def test_what_goes_from_one_model_to_another_on_its_gpu_stays_there():
    graph = wiring("m x=A -> y=B", "m x=B -> y=C", "m x=C -> y=D")
    assert left(graph, ("D",), [BOTH] * 3) == {0: ["y"], 1: ["y"]}


def test_what_the_client_wants_does_not_stay_even_if_a_step_reads_it_too():
    graph = wiring("m x=A -> y=B z=C", "m x=B other=C -> y=D")
    assert left(graph, ("B", "D"), [BOTH] * 2) == {0: ["z"]}
    assert left(graph, ("D",), [BOTH] * 2) == {0: ["y", "z"]}


@pytest.mark.parametrize(
    "other",
    [
        HOST_ONLY,
        BOTH._replace(gpu=1),
        BOTH._replace(inputs=frozenset(("other",))),
    ],
)
def test_one_reader_that_can_t_read_it_there_is_enough_to_have_it_in_host_memory(other):
    graph = wiring("m x=A -> y=B", "m x=B -> y=C", "m x=B -> y=D", "m x=C other=D -> y=E")
    assert left(graph, ("E",), [BOTH] * 4) == {0: ["y"], 1: ["y"], 2: ["y"]}
    assert left(graph, ("E",), [BOTH, BOTH, other, BOTH]).get(0) is None


def test_an_output_that_its_model_can_t_leave_there_does_not_stay():
    graph = wiring("m x=A -> y=B z=C", "m x=B other=C -> y=D")
    assert left(graph, ("D",), [BOTH._replace(outputs=frozenset("z")), BOTH]) == {0: ["z"]}
    assert left(graph, ("D",), [HOST_ONLY, BOTH]) == {}


def test_what_is_read_in_any_number_of_iterations_does_not_stay():
    graph = wiring("m x=A -> y=B", "d x=A -> y=C", "m x=B other=C -> y=D")
    devices = [BOTH, HOST_ONLY, BOTH]
    assert left(graph, ("D",), devices, d=StepModel(decoupled=True)) == {}


# -- what a version can do

GPU = (InstanceSpec(name="i", kind="GPU"),)
PADDED = Padded({1: Buckets((4,))}, 0)


def spec_of(**changes):
    return make_spec(**{"instances": GPU, "device_tensors": True, **changes})


def test_a_version_whose_instances_are_all_on_one_gpu_takes_and_gives_tensors_there():
    spec = spec_of(scheduling=DynamicBatching())
    assert (spec.gpu, spec.device_inputs, spec.device_outputs) == (0, {"INPUT"}, {"OUTPUT"})


@pytest.mark.parametrize(
    "instances",
    [
        (),
        (InstanceSpec(name="i"),),
        (*GPU, InstanceSpec(name="j")),
        (*GPU, InstanceSpec(name="j", kind="GPU", device_id=1)),
    ],
)
def test_a_version_whose_instances_are_not_all_on_one_gpu_has_none(instances):
    assert spec_of(instances=instances).gpu == -1


@pytest.mark.parametrize(
    "changes",
    [
        {"device_tensors": False},
        {"isolation": "thread"},
        {"decoupled": True},
        {"response_cache": True},
        {"scheduling": SequenceBatching()},
        {"confinement": Confinement(sandbox=Sandbox.STRICT)},
    ],
)
def test_other_versions_have_their_tensors_in_host_memory(changes):
    spec = spec_of(**changes)
    assert (spec.gpu, spec.device_inputs, spec.device_outputs) == (-1, set(), set())


@pytest.mark.parametrize(
    "changes",
    [
        {"datatype": DataType.BYTES},
        {"reshape": (1, 2)},
        {"ragged": True},
        {"padded": PADDED},
        {"feeds": True},
    ],
)
def test_inputs_that_are_made_into_others_are_read_from_host_memory(changes):
    (declared,) = make_spec().inputs
    assert spec_of(inputs=(replace(declared, **changes),)).device_inputs == set()


@pytest.mark.parametrize(
    "changes",
    [
        {"datatype": DataType.BYTES},
        {"reshape": (1, 2)},
        {"cuts": (CutBack(1, "INPUT", 1),)},
        {"scattered": True},
    ],
)
def test_outputs_that_are_cut_or_reshaped_go_by_host_memory(changes):
    (declared,) = make_spec().outputs
    assert spec_of(outputs=(replace(declared, **changes),)).device_outputs == set()
