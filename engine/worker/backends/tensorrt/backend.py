"""TensorRT engines: plans of TensorRT and of TensorRT-RTX, on the instance's GPU.

Theory of operation. The plan's first bytes tell which of the two packages reads it. The engine is described
once, at load, as `Port`s, which are compared with the configuration. There is one engine in a worker, and a
`Lane` for each of its instances, with execution contexts, a stream and buffers of its own.

CUDA is reached by the driver alone (`engine.worker.devices`): TensorRT's package brings no way to copy, and
another framework would be loaded for nothing else. Everything happens in the device's primary context, which
is TensorRT's own as well.

Inputs are copied from the batch's memory to the device, and outputs from there into the batch's memory, by
the stream. Inputs that lie on the GPU go in as they are, and outputs that are read there are given as they
lie.

A batch that fails as a whole is run again request by request, so that only the request at fault gets the
error. A kernel that fails takes the process's CUDA context with it: such a worker ends and is started anew.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.errors import Internal, TritiumError
from actors.values.tensors import element_count
from engine.worker.backends.base import Backend, LoadError
from engine.worker.backends.tensorrt import graphs
from engine.worker.backends.tensorrt.completing import complete
from engine.worker.backends.tensorrt.lanes import Lane
from engine.worker.backends.tensorrt.parameters import Options
from engine.worker.backends.tensorrt.ports import fit
from engine.worker.backends.tensorrt.reading import DEFAULT_ARTIFACT, driver_of, open_engine, plan_of
from engine.worker.devices.arrays import DeviceArray
from engine.worker.devices.cuda import CudaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors.values.datatypes import DataType
    from actors.values.tensors import Array
    from engine.worker.backends.base import AnyOutput, Batch, BatchRequest, ModelInfo
    from engine.worker.backends.tensorrt.lanes import Shape, Source
    from engine.worker.backends.tensorrt.ports import Fit
    from engine.worker.backends.tensorrt.reading import Opened

    Allocate = Callable[[str, DataType, Sequence[int]], Array]


class TensorRtBackend(Backend):
    """Runs `model.plan`."""

    name = "tensorrt"
    default_artifact = DEFAULT_ARTIFACT
    platforms: Sequence[str] = ("tensorrt_plan",)
    device_tensors = True
    environments = True

    @classmethod
    def complete_config(cls, model: ModelInfo) -> Mapping[str, Any] | None:
        """Fill in what the engine tells.

        It needs the GPU. Without one, a configuration that has both sides is believed.
        """
        # Any GPU that the model uses: another one may not be able to open its plan.
        gpus = [gpu for group in model.config.get("instance_group", ()) for gpu in group.get("gpus", ())]
        model.device_id = int(gpus[0]) if gpus else model.device_id
        complete_already = bool(model.config.get("input") and model.config.get("output"))
        try:
            driver = driver_of(model)
        except LoadError as error:
            if complete_already:
                return None
            path = f"{model.version_directory}/{model.artifact or DEFAULT_ARTIFACT}"
            raise LoadError(f"unable to load plan file to auto complete config: {path}: {error}") from error
        options = Options(model)
        with driver.context(model.device_id):
            try:
                opened = open_engine(model, driver, options)
            except LoadError as error:
                path = plan_of(model, driver)
                raise LoadError(
                    f"unable to load plan file to auto complete config: {path}: {error}"
                ) from error
            # Groups may use different profiles, and all serve the same requests.
            profiles = range(opened.engine.num_optimization_profiles)
            return complete(model, opened.ports, profiles)

    def load(self, model: ModelInfo) -> None:
        """Make the engine, check it against the configuration, and prepare the lanes."""
        if model.kind != "GPU":
            raise LoadError(
                f"unable to load model '{model.name}', TensorRT backend supports only GPU device; instance"
                f" '{model.instance_name}' has kind KIND_{model.kind}"
            )
        options = Options(model)
        self._driver = driver_of(model)
        self._device = model.device_id
        self._log = model.log
        with self._driver.context(self._device):
            opened = self._opened = open_engine(model, self._driver, options)
            _check_profiles(model, opened, options)
            inputs, outputs = fit(model, opened.ports, options.profiles)
            self._inputs = {each.port.name: each for each in inputs}
            self._outputs = outputs
            self._joins = any(each.joined for each in (*inputs, *outputs)) or len(inputs) > len(model.inputs)
            names = [each.port.name for each in inputs]
            specs = graphs.wanted(model, options.graph_specs, names) if options.graphs else []
            self._idle = deque(Lane(opened, model, options) for _ in range(model.lanes))
            if specs and not self._joins:
                model.phase("capturing CUDA graphs")
                for lane in self._idle:
                    lane.capture(specs)

    def unload(self) -> None:
        """Give back the lanes, the engine and the runtime, in that order."""
        with self._driver.context(self._device):
            for lane in self._idle:
                lane.close()
            self._idle.clear()
            self._opened.engine = None
            self._opened.runtime = None

    def execute(self, batch: Batch) -> None:
        """Run one batch; if it fails, its requests one by one."""
        lane = self._idle.pop()  # there is one for each instance
        try:
            with self._driver.context(self._device):
                try:
                    kept = batch.device_outputs
                    results = self._compute(
                        lane, self._sources(batch), batch.wanted_outputs, kept, batch.allocate
                    )
                except TritiumError as error:
                    if len(batch.requests) == 1:
                        batch.fail(error.code, error.message)
                    else:
                        self._execute_apart(lane, batch)
                    return
                batch.respond(results)  # outputs on the device are the lane's until this returns
        finally:
            self._idle.append(lane)

    def _execute_apart(self, lane: Lane, batch: Batch) -> None:
        for request in batch.requests:
            wanted = frozenset(request.requested_outputs)
            try:
                sources = self._sources_alone(request)
                request.respond(self._compute(lane, sources, wanted, request.device_outputs, None))
            except TritiumError as error:
                request.fail(error.code, error.message)

    def _sources(self, batch: Batch) -> Mapping[str, Source]:
        """Return a batch's inputs where they lie: arrays of the host, or each request's on the device."""
        on_device = batch.device_inputs
        if not on_device or self._joins:
            return dict(batch.feeds())
        sources: dict[str, Source] = {
            name: batch.stacked(name) for name in batch.input_names if name not in on_device
        }
        for name in on_device:
            sources[name] = [_lent(request, name) for request in batch.requests]
        return sources

    def _sources_alone(self, request: BatchRequest) -> Mapping[str, Source]:
        if self._joins:
            return dict(request.feeds())
        sources: dict[str, Source] = {}
        for name in request.input_names:
            there = request.device_input(name)
            sources[name] = request.input(name) if there is None else [there]
        return sources

    def _compute(
        self,
        lane: Lane,
        sources: Mapping[str, Source],
        wanted: frozenset[str],
        kept: frozenset[str],
        allocate: Allocate | None,
    ) -> list[AnyOutput]:
        """Return the outputs of one execution; those `kept` on the device lie in the lane's memory.

        Raises InvalidArgument for shapes that the engine does not take, and Internal for other failures.
        """
        try:
            contiguous = {
                name: source if isinstance(source, list) else np.ascontiguousarray(source)
                for name, source in sources.items()
            }
            shapes = {name: self._shape(name, source) for name, source in contiguous.items()}
            try:
                found = lane.run(contiguous, shapes)
                results = [
                    self._fetch(lane, each, found[each.port.name], each.port.name in kept, allocate)
                    for each in self._outputs
                    if each.port.name in wanted
                ]
                lane.wait()
            except BaseException:
                lane.abandon()  # copies may be under way, from and to memory that is the next batch's
                raise
        except CudaError as error:
            if error.loses_device:
                self._log("error", f"the CUDA device is lost to this process: {error}")
                raise SystemExit(1) from error
            raise Internal(f"TensorRT: {error}") from error
        return [(name, datatype, _flat(array)) for name, datatype, array in results]

    def _shape(self, name: str, source: Source) -> Shape:
        if self._inputs[name].scalar:
            return ()
        if not isinstance(source, list):
            return tuple(source.shape)
        first = source[0].shape
        return first if len(source) == 1 else (sum(part.shape[0] for part in source), *first[1:])

    def _fetch(
        self, lane: Lane, each: Fit, shape: Shape, keep: bool, allocate: Allocate | None
    ) -> tuple[str, DataType, Any]:
        """Have an output copied to the host, if it is not to stay where it is."""
        name, datatype = each.port.name, each.datatype
        if each.scalar:
            shape = (1,)
        held = lane.on_host(name)
        if held is not None:
            return name, datatype, _Written(held, shape)
        if keep:
            address = lane.address(name)
            return name, datatype, DeviceArray(lane, address, shape, datatype, device_id=self._device)
        array = np.empty(shape, datatype.numpy) if allocate is None else allocate(name, datatype, shape)
        nbytes = element_count(shape) * datatype.size
        if nbytes:
            lane.copies.to_host(lane.address(name), array.ctypes.data, nbytes)
        return name, datatype, array


class _Written:
    """An output that TensorRT writes to host memory by itself, before the lane is done."""

    __slots__ = ("elements", "shape")

    def __init__(self, elements: Array, shape: Shape) -> None:
        self.elements = elements
        self.shape = shape


def _flat(array: Any) -> Any:
    if isinstance(array, _Written):
        return array.elements[: element_count(array.shape)].reshape(array.shape)
    return array


def _lent(request: BatchRequest, name: str) -> DeviceArray:
    array = request.device_input(name)
    if array is None:
        raise Internal(f"input '{name}' lies on the device for some requests of its batch only")
    return array


def _check_profiles(model: ModelInfo, opened: Opened, options: Options) -> None:
    count = opened.engine.num_optimization_profiles
    for profile in options.profiles:
        if profile >= count:
            raise LoadError(
                f"unable to load model '{model.name}', Can not set the specified optimization profile"
                f" [{profile}] for {model.instance_name}. Expected optimization profile index range"
                f" 0-{count - 1}"
            )
