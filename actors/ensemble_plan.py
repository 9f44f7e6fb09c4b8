"""What is the same for all requests to an ensemble that want the same outputs: worked out once, and looked up from then on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actors.interfaces import ServedModel
from actors.messages.tensors import Tensor
from actors.model import ModelState
from actors.scheduling.ensembles import Consumer, Course, StepModel, Wiring, fitted
from actors.specs import InputSpec, ModelSpec, OutputSpec


class Fit:
    """How tensors are called and shaped on one side of a model, whatever they were called and shaped before."""

    __slots__ = ("_batches", "_dims", "_full")

    def __init__(self, declared: Iterable[InputSpec | OutputSpec], *, batches: bool) -> None:
        self._batches = batches
        self._dims = {each.name: len(each.dims) for each in declared}
        self._full = {name: dims + batches for name, dims in self._dims.items()}

    def of(self, tensor: Tensor, name: str) -> Tensor:
        """Return `tensor` under the name, and with the shape, that it has here. The data is the same."""
        shape = tensor.shape
        full = self._full.get(name)
        if full is not None and len(shape) != full:  # what is not declared its model refuses
            shape = fitted(shape, self._dims[name], batches=self._batches)
        return Tensor(name, tensor.datatype, shape, tensor.data)


class StepPlan:
    """Who runs a step of a course, and what that model is told."""

    __slots__ = ("by_reference", "fit", "model", "outputs", "spec", "state", "version")

    def __init__(self, step: Consumer, model: ServedModel, version: int) -> None:
        spec = model.spec
        self.model = model
        self.spec = spec
        self.version = version  # that the configuration asks for; -1: the policy's choice
        self.state = model if isinstance(model, ModelState) else None
        # Who passes requests on, or looks at them elsewhere, may keep references to their inputs.
        self.by_reference = (
            self.state is not None and self.state.composite is None and self.state.cache is None
        )
        self.fit = Fit(spec.inputs, batches=spec.batches)
        wanted = tuple(step.outputs)
        self.outputs = spec.output_names if set(wanted) == set(spec.output_names) else wanted

    def stands(self, model: ServedModel) -> bool:
        """Whether it holds, where the step is `model`'s."""
        return model is self.model and model.spec is self.spec


class Plan:
    """The course to some outputs of an ensemble, and who runs its steps."""

    __slots__ = ("course", "fit", "pinned", "steps")

    def __init__(
        self, spec: ModelSpec, wiring: Wiring, wanted: tuple[str, ...], models: Mapping[int, ServedModel]
    ) -> None:
        """`models` run the steps, by number. Raises InvalidArgument where they don't fit together."""
        self.course: Course = wiring.course(
            wanted, {number: step_model(model.spec) for number, model in models.items()}
        )
        self.steps = {
            number: StepPlan(self.course.steps[number], model, wiring.steps[number].model_version)
            for number, model in models.items()
        }
        states = (each.state for each in self.steps.values())
        self.pinned = tuple(dict.fromkeys(state for state in states if state is not None))
        """Versions that must stay until a request has ended."""
        self.fit = Fit(spec.outputs, batches=spec.batches)

    def stands(self, models: Mapping[int, ServedModel]) -> bool:
        """Whether it holds, where `models` run its steps."""
        return all(self.steps[number].stands(model) for number, model in models.items())


def step_model(spec: ModelSpec) -> StepModel:
    """Return what the data flow must know of the model version `spec`."""
    return StepModel(
        inputs=tuple(declared.name for declared in spec.inputs),
        optional=frozenset(declared.name for declared in spec.inputs if declared.optional),
        decoupled=spec.decoupled,
    )
