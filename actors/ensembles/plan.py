"""The common part of all requests to an ensemble that want the same outputs.

It is worked out once and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from actors.ensembles.policy.course import Consumer, Course, StepModel
from actors.ensembles.policy.on_device import HOST_ONLY, StepDevice, staying
from actors.serving.model import ModelState
from actors.values.requests import ServedModel
from actors.values.shapes import client_shape, fitted, reshaped
from actors.values.specs import InputSpec, ModelSpec, OutputSpec
from actors.values.tensors import Tensor
from actors.values.wiring import Wiring

_PLANS_KEPT: Final = 64
"""Combinations of requested outputs whose plan is remembered."""


class Fit:
    """The names and shapes that tensors get on their way to the model of a step."""

    def __init__(self, ranks: Mapping[str, int], *, batches: bool) -> None:
        """`ranks` are the numbers of dimensions by name, without the batch dimension."""
        self._batches = batches
        self._dims = ranks
        self.usual = {name: dims + batches for name, dims in ranks.items()}
        """How many dimensions a tensor has that keeps its shape here, by its name here."""

    def of(self, tensor: Tensor, name: str) -> Tensor:
        """Return `tensor` under the name, and with the shape, that it has here. The data is the same."""
        shape = tensor.shape
        rank = self._dims.get(name)
        # The model refuses a tensor that it does not declare.
        if rank is not None and len(shape) != rank + self._batches:
            shape = fitted(shape, rank, batches=self._batches)
        return tensor.renamed(name, shape)


class OutputShapes(Fit):
    """The shapes of an ensemble's outputs for its clients.

    An output's own `reshape` is its shape inside the ensemble.
    """

    def __init__(self, declared: Iterable[OutputSpec], *, batches: bool) -> None:
        self._reshapes = {each.name: each for each in declared if each.reshape is not None}
        super().__init__(
            {each.name: len(each.dims if each.reshape is None else each.reshape) for each in declared},
            batches=batches,
        )
        for name in self._reshapes:
            del self.usual[name]

    def of(self, tensor: Tensor, name: str) -> Tensor:
        """Return `tensor` as the output `name` of an answer. The data is the same."""
        fitted_tensor = super().of(tensor, name)
        declared = self._reshapes.get(name)
        if declared is not None:
            fitted_tensor.shape = client_shape(fitted_tensor.shape, declared, batches=self._batches)
        return fitted_tensor


class InputShapes:
    """The shapes of an ensemble's inputs inside it: as their own `reshape` says, if they have one."""

    def __init__(self, declared: Iterable[InputSpec], *, batches: bool) -> None:
        self._batches = batches
        self.reshapes = {
            each.name: (each.dims, each.reshape) for each in declared if each.reshape is not None
        }
        """The inputs that have a shape of their own for the steps; `of` leaves the others as they are."""

    def of(self, tensor: Tensor) -> Tensor:
        """Return `tensor`, a valid input, as the steps see it. The data is the same."""
        found = self.reshapes.get(tensor.name)
        if found is None:
            return tensor
        dims, target = found
        shape = reshaped(tensor.shape, dims, target, batches=self._batches)
        return tensor.renamed(tensor.name, shape)


class StepPlan:
    """The model that runs a step of a course, and what it is asked for."""

    def __init__(self, step: Consumer, model: ServedModel, version: int) -> None:
        spec = model.spec
        self.model = model
        self.spec = spec
        self.version = version  # as configured; -1: the policy's choice
        self.state = model if isinstance(model, ModelState) else None
        # Models that pass requests on, or look at them elsewhere, may keep references to their inputs.
        self.by_reference = self.state is not None and not self.state.keeps_requests
        self.fit = Fit({each.name: len(each.dims) for each in spec.inputs}, batches=spec.batches)
        wanted = tuple(step.outputs)
        self.outputs = spec.output_names if set(wanted) == set(spec.output_names) else wanted
        self.device_outputs: frozenset[str] | None = None  # those that stay on the GPU of the model
        self._gpu = -1 if self.state is None else self.state.gpu

    @property
    def device(self) -> StepDevice:
        """What it can do with tensors on a GPU. A model that passes requests on does nothing with them."""
        spec = self.spec
        return (
            StepDevice(self._gpu, spec.device_inputs, spec.device_outputs) if self.by_reference else HOST_ONLY
        )

    def stands(self, model: ServedModel) -> bool:
        """Whether the plan still holds if the step is `model`'s."""
        if model is not self.model or model.spec is not self.spec:
            return False
        return self.state is None or self.state.gpu == self._gpu


class Plan:
    """The course to some outputs of an ensemble, and the models that run its steps."""

    def __init__(
        self, spec: ModelSpec, wiring: Wiring, wanted: tuple[str, ...], models: Mapping[int, ServedModel]
    ) -> None:
        """`models` run the steps, by number. Raises InvalidArgument where they don't fit together."""
        self.course = Course(
            wiring, wanted, {number: step_model(model.spec) for number, model in models.items()}
        )
        self.steps = {
            number: StepPlan(self.course.steps[number], model, wiring.steps[number].model_version)
            for number, model in models.items()
        }
        states = (each.state for each in self.steps.values())
        self._pinned = tuple(dict.fromkeys(state for state in states if state is not None))
        self._users = 0
        self.lasts = all(each.state is not None for each in self.steps.values())
        """Whether it stands for as long as the same models are resolved: versions stay what they are."""
        self.on_device = spec.gpu_tensors
        """Whether tensors may stay on a GPU: that depends on the instances as well, which may change."""
        if spec.gpu_tensors:
            devices = {number: each.device for number, each in self.steps.items()}
            for number, outputs in staying(self.course, devices).items():
                self.steps[number].device_outputs = outputs
        self.entry = InputShapes(spec.inputs, batches=spec.batches)
        self.answers = OutputShapes(spec.outputs, batches=spec.batches)

    def begin(self) -> None:
        """A request goes along it: the versions that run its steps must stay until it has ended."""
        self._users += 1
        if self._users == 1:
            for state in self._pinned:
                state.pin()

    def end(self) -> None:
        """A request that went along it is over."""
        self._users -= 1
        if not self._users:
            for state in self._pinned:
                state.unpin()

    @property
    def is_of_today(self) -> bool:
        """Whether the models have the instances that they had when it was made."""
        return all(each.stands(each.model) for each in self.steps.values())

    def stands(self, models: Mapping[int, ServedModel]) -> bool:
        """Whether the plan still holds if `models` run its steps."""
        return all(self.steps[number].stands(model) for number, model in models.items())


class Plans:
    """The plans of an ensemble, by the outputs that are wanted. `_PLANS_KEPT` are remembered."""

    def __init__(self, spec: ModelSpec, wiring: Wiring) -> None:
        self._spec = spec
        self._wiring = wiring
        self._contributing: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._plans: dict[tuple[str, ...], Plan] = {}
        # Those of them that were found to stand since which models answer has changed last.
        self._found: dict[tuple[str, ...], Plan] = {}
        self._found_after = -1

    def found(self, wanted: tuple[str, ...], changes: int) -> Plan | None:
        """Return the plan for `wanted` if it is known to stand, after so many `changes` of what answers.

        If it returns None, `of` returns the plan.
        """
        if changes == self._found_after:
            plan = self._found.get(wanted)
            return None if plan is not None and plan.on_device and not plan.is_of_today else plan
        self._found.clear()
        self._found_after = changes
        return None

    def steps_to(self, wanted: tuple[str, ...]) -> tuple[int, ...]:
        """Return the numbers of the steps that contribute to `wanted`."""
        found = self._contributing.get(wanted)
        if found is None:
            if len(self._contributing) >= _PLANS_KEPT:
                self._contributing.clear()
                self._plans.clear()
                self._found.clear()
            found = self._contributing[wanted] = self._wiring.contributing(wanted)
        return found

    def of(self, wanted: tuple[str, ...], models: Mapping[int, ServedModel]) -> Plan:
        """Return the plan for `wanted`, whose steps `models` run now. Raises as `Plan` does."""
        plan = self._plans.get(wanted)
        if plan is None or not plan.stands(models):
            plan = self._plans[wanted] = Plan(self._spec, self._wiring, wanted, models)
        if plan.lasts:
            self._found[wanted] = plan
        return plan


def step_model(spec: ModelSpec) -> StepModel:
    """Return the facts that the data flow needs about the model version `spec`."""
    return StepModel(
        inputs=tuple(declared.name for declared in spec.inputs),
        optional=frozenset(declared.name for declared in spec.inputs if declared.optional),
        decoupled=spec.decoupled,
    )
