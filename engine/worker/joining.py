"""What a model of whole batches gets in place of its requests' tensors, and what its outputs become.

Three things, each named in the configuration; a model without any of them has no `Joining`, and costs one
comparison a batch:

- *flat*: the requests of an input with `allow_ragged_batch` are one 1-D tensor, one after the other. They lie
  like that in the batch's memory, so nothing is copied.
- *made*: each `batch_input` tells where the requests begin and end in it, by their shapes. An output named in
  `batch_output` is 1-D too, and is cut by those shapes.
- *padded*: an input named in `tritium.pad_to` is copied once, into an array of the bucket's size. Outputs
  named in `tritium.pad_outputs` are cut back while they are copied out.

Contract: model_config.md section 4.4. What the tensors hold, and that a dimension of -1 of such an output
comes from the same dimension of the source, is Triton's `BackendInputCollector` and `BackendOutputResponder`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import BY_PROTOCOL_NAME, DataType
from actors.values.padding import Buckets, CutBack, Padded
from actors.values.tensors import Tensor, element_count
from engine.worker.backends.base import TensorInfo
from engine.worker.backends.raw import RawInput, address_of, raw_input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from actors.values.tensors import Array
    from actors.wire.batch_frames import Execute
    from engine.worker.backends.base import AnyOutput, ModelInfo, Output
    from engine.worker.devices.arrays import DeviceArray

    Shape = Sequence[int]
    Shapes = Mapping[str, Sequence[Shape]]  # of each request, by the input's name

_DATATYPES = {"TYPE_INT32": DataType.INT32, "TYPE_FP32": DataType.FP32}


class Made:
    """One `batch_input`: a tensor by the shapes of the requests in a batch."""

    __slots__ = ("_batches", "datatype", "kind", "source", "targets")

    def __init__(self, written: Mapping[str, Any], *, batches: bool) -> None:
        self.kind: str = written["kind"]
        self.targets: Sequence[str] = written["target_name"]
        self.datatype = _DATATYPES[written["data_type"]]
        self.source: str = written["source_input"][0]
        self._batches = batches

    def dims(self, rank: int) -> list[int]:
        """Return the dims of the tensor, all of them; `rank` is that of the source without batch"
        " dimension."""
        return [-1, rank] if self.kind == "BATCH_ITEM_SHAPE" else [-1]

    def of(self, shapes: Sequence[Shape]) -> Array:
        """Return the tensor for requests whose source tensors have these shapes."""
        kind = self.kind
        dtype = self.datatype.numpy
        if kind.startswith("BATCH_ITEM_SHAPE"):
            items = [tuple(shape[1:]) if self._batches else tuple(shape) for shape in shapes]
            rows = [shape[0] if self._batches else 1 for shape in shapes]
            table = np.repeat(np.array(items, dtype), rows, axis=0)
            return table.reshape(-1) if kind == "BATCH_ITEM_SHAPE_FLATTEN" else table
        counts = [element_count(shape) for shape in shapes]
        if kind == "BATCH_ELEMENT_COUNT":
            return np.array(counts, dtype)
        if kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
            return np.zeros(max(counts), dtype)
        zero = [0] if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO" else []
        return np.cumsum(zero + counts).astype(dtype)


class Scattered:
    """One `batch_output`: which input's shapes cut an output, and its configured dims, batch included."""

    __slots__ = ("_dims", "source")

    def __init__(self, source: str, dims: Sequence[int]) -> None:
        self.source = source
        self._dims = dims

    def shape(self, source: Shape) -> tuple[int, ...]:
        """Return the shape of the output of a request whose source tensor has such a shape.

        A dimension of -1 is as large as the source's at that place. Raises ValueError if the source has none.
        """
        if any(dim == -1 and at >= len(source) for at, dim in enumerate(self._dims)):
            raise ValueError(
                f"an output of dims {self._dims} can't be cut by an input of shape {list(source)}"
            )
        return tuple(source[at] if dim == -1 else dim for at, dim in enumerate(self._dims))


class Joining:
    """The three for one model. `shapes` are always those of the requests' own tensors."""

    def __init__(self, model: ModelInfo) -> None:
        batches = model.max_batch_size > 0
        lead = [-1] if batches else []
        self._batches = batches
        self.flat = frozenset(tensor.name for tensor in model.inputs if tensor.ragged)
        self.padded = {tensor.name: tensor for tensor in model.inputs if tensor.padded is not None}
        self.made = made_inputs(model)
        by_name = {tensor.name: tensor for tensor in model.outputs}
        self.cut = {tensor.name: tensor.cuts for tensor in model.outputs if tensor.cuts}
        self.scattered = {
            target: Scattered(written["source_input"][0], lead + by_name[target].backend_dims)
            for written in _listed(model, "batch_output")
            for target in written["target_name"]
            if target in by_name
        }
        self.reshapes = bool(self.cut or self.scattered)
        """Whether some outputs are not simply cut by rows."""

    @classmethod
    def of(cls, model: ModelInfo) -> Joining | None:
        """Return what is to be done for `model`; None if its batches are plain arrays."""
        joining = cls(model)
        plain = not (joining.flat or joining.padded or joining.made or joining.reshapes)
        return None if plain else joining

    def made_of(self, shapes: Shapes) -> Iterator[tuple[str, Array]]:
        """Yield each `batch_input` by its name. One whose source no request has is absent, too."""
        for made in self.made:
            if made.source in shapes:
                array = made.of(shapes[made.source])
                for target in made.targets:
                    yield target, array

    def pad(self, name: str, parts: Sequence[Array]) -> Array:
        """Return the tensors of one batch, padded and joined. They are padded to the same shape."""
        tensor = self.padded[name]
        padded = _of(tensor.padded)
        shape = padded.shape(parts[0].shape)
        if all(part.shape == padded.shape(part.shape) for part in parts):
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        rows = (sum(len(part) for part in parts), *shape[1:]) if self._batches else shape
        whole = np.full(rows, _element(tensor), tensor.datatype.numpy)
        if not self._batches:
            whole[tuple(slice(size) for size in parts[0].shape)] = parts[0]
            return whole
        start = 0
        for part in parts:
            end = start + len(part)
            whole[(slice(start, end), *(slice(size) for size in part.shape[1:]))] = part
            start = end
        return whole

    def is_cut(self, name: str, shapes: Shapes) -> bool:
        """Whether an output of this name is not simply cut by rows, for requests of such shapes."""
        if name in self.scattered:
            return True
        return any(
            _of(self.padded[cut.source].padded).shape(shape) != tuple(shape)
            for cut in self.cut.get(name, ())
            for shape in shapes.get(cut.source, ())
        )

    def share(self, name: str, array: Array, shapes: Mapping[str, Shape]) -> Array:
        """Return a request's own output of that which the model made for this request alone.

        Raises ValueError where the model's output does not fit the request's inputs.
        """
        scattered = self.scattered.get(name)
        if scattered is not None and scattered.source in shapes:
            shape = scattered.shape(shapes[scattered.source])
            if element_count(shape) != array.size:
                raise ValueError(
                    f"output '{name}' has {array.size} elements; for input '{scattered.source}' of shape"
                    f" {list(shapes[scattered.source])} it must have {element_count(shape)}, in shape"
                    f" {list(shape)}"
                )
            return array.reshape(shape)
        for cut in self.cut.get(name, ()):
            if cut.source not in shapes:
                continue
            own = shapes[cut.source][cut.source_axis]
            padded = _of(self.padded[cut.source].padded).buckets[cut.source_axis].fit(own)
            if array.ndim <= cut.axis or array.shape[cut.axis] != padded:
                raise ValueError(
                    f"output '{name}' has shape {list(array.shape)}; 'tritium.pad_outputs' cuts its"
                    f" dimension {cut.axis} like"
                    f" dimension {cut.source_axis} of input '{cut.source}', which was padded to {padded}"
                )
            array = array[(*(slice(None),) * cut.axis, slice(own))]
        return array

    def shares(self, name: str, array: Array, shapes: Shapes, rows: Sequence[int]) -> Iterator[Array]:
        """Yield each request's own output of what the model made for a batch of requests with such `rows`.

        Raises ValueError where the model's output does not fit the requests' inputs.
        """
        sizes = list(rows)
        scattered = self.scattered.get(name)
        if scattered is not None and scattered.source in shapes:
            array = array.reshape(-1)
            sizes = [element_count(scattered.shape(shape)) for shape in shapes[scattered.source]]
            if sum(sizes) != array.size:
                raise ValueError(
                    f"output '{name}' has {array.size} elements; the shapes of input '{scattered.source}'"
                    " of this batch"
                    f" make {sum(sizes)}"
                )
        elif self._batches and (not array.ndim or len(array) != sum(sizes)):
            raise ValueError(
                f"output '{name}' has shape {list(array.shape)}; a batch of {sum(sizes)} rows needs"
                f" [{sum(sizes)}, ...]"
            )
        whole = not self._batches and scattered is None
        start = 0
        for index, size in enumerate(sizes):
            own = {source: of_all[index] for source, of_all in shapes.items()}
            yield self.share(name, array if whole else array[start : start + size], own)
            start += size


def tensor_of(fields: Mapping[str, Any]) -> TensorInfo:
    """Return a tensor as the server describes it to its worker."""
    padded = fields["padded"]
    if padded is not None:
        buckets = {axis: Buckets(sizes, longer) for axis, sizes, longer in padded["buckets"]}
        padded = Padded(buckets, padded["value"])
    return TensorInfo(
        fields["name"],
        BY_PROTOCOL_NAME[fields["datatype"]],
        fields["dims"],
        reshape=fields["reshape"],
        optional=fields["optional"],
        ragged=fields["ragged"],
        padded=padded,
        cuts=[CutBack(*cut) for cut in fields["cuts"]],
    )


def made_inputs(model: ModelInfo) -> list[Made]:
    """Return the `batch_input`s of a model."""
    return [Made(written, batches=model.max_batch_size > 0) for written in _listed(model, "batch_input")]


def _listed(model: ModelInfo, field: str) -> Sequence[Mapping[str, Any]]:
    """Return a list of the configuration. It is empty for models that take requests one by one."""
    python = model.config.get("backend") == "python" or model.config.get("runtime") == "model.py"
    return () if python or not model.whole_batches else model.config.get(field, ())


def made_tensors(model: ModelInfo) -> list[TensorInfo]:
    """Return what a model takes besides its inputs, in order; dims have no batch dimension to be added."""
    ranks = {tensor.name: len(tensor.backend_dims) for tensor in model.inputs}
    return [
        TensorInfo(target, made.datatype, made.dims(ranks.get(made.source, 0)))
        for made in made_inputs(model)
        for target in made.targets
    ]


def _element(tensor: TensorInfo) -> Any:
    """Return the element that a tensor is padded with, as its array holds it."""
    if tensor.datatype is DataType.BYTES:
        return b""
    value = _of(tensor.padded).value
    if tensor.datatype is DataType.BF16:  # the upper half of an FP32, rounded to nearest even
        bits = int(np.float32(value).view(np.uint32))
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 if np.isfinite(value) else bits >> 16
    return value


def _of(padded: Padded | None) -> Padded:
    if padded is None:
        raise TypeError("the tensor is not padded")
    return padded


class BatchInputs:
    """The inputs of one batch: of each request, and joined as the model takes them."""

    __slots__ = (
        "_batches",
        "_copies",
        "_declared",
        "_decoded",
        "_fetch",
        "_inputs",
        "_joining",
        "_memory",
        "_rows",
    )

    def __init__(
        self,
        job: Execute,
        model: ModelInfo,
        memory: memoryview,
        joining: Joining | None = None,
        fetch: Callable[[str, Sequence[int]], memoryview] | None = None,
    ) -> None:
        """`memory` is the input segment, or a copy. `joining` is for batches that are not plain arrays.

        `fetch` copies an input from the GPU, of requests of so many bytes each.
        """
        self._declared = model.inputs
        self._batches = model.max_batch_size > 0
        self._rows = job.rows
        self._memory = memory
        self._joining = joining
        self._fetch = fetch
        if fetch is not None:
            self._copies: dict[str, memoryview] = {}
        self._inputs = {model.inputs[gathered.index].name: gathered for gathered in job.inputs}
        self._decoded: dict[str, Array] = {}

    @property
    def names(self) -> Sequence[str]:
        """Those that are present, in the configuration's order."""
        return list(self._inputs)

    @property
    def on_device(self) -> Sequence[str]:
        """Those that lie on a GPU."""
        return [name for name, gathered in self._inputs.items() if gathered.on_device]

    @property
    def reshaped(self) -> frozenset[str]:
        """Those that a model may get in another shape than the requests': they need a copy in any case."""
        joining = self._joining
        return frozenset() if joining is None else joining.flat | joining.padded.keys()

    def datatype_of(self, name: str) -> DataType:
        """Return an input's declared datatype. Raises KeyError for one that is absent."""
        return self._declared[self._inputs[name].index].datatype

    def stacked(self, name: str) -> Array:
        """Return an input of all requests as [rows, *dims]. See `Batch.stacked`."""
        gathered = self._inputs[name]
        joining = self._joining
        if joining is not None and name in joining.padded:
            return self._padded(name, joining)
        if gathered.shape is None:
            raise ValueError(f"input '{name}' is ragged: its requests have different shapes")
        return self._view(name, gathered.shape, gathered.offset, gathered.nbytes)

    def _padded(self, name: str, joining: Joining) -> Array:
        key = f"{name}\0"
        array = self._decoded.get(key)
        if array is None:
            gathered = self._inputs[name]
            if gathered.shape is not None:  # the requests agree, in whatever size
                parts = [self._view(name, gathered.shape, gathered.offset, gathered.nbytes)]
            else:
                parts = [self._own_input(name, index, 0, 0) for index in range(len(self._rows))]
            array = self._decoded[key] = joining.pad(name, parts)
        return array

    def of(self, name: str, index: int, start: int, rows: int) -> Array:
        """Return one request's part of an input."""
        if self._joining is not None and name in self._joining.padded:
            return self._joining.pad(name, [self._own_input(name, index, start, rows)])
        return self._own_input(name, index, start, rows)

    def feeds(self) -> Mapping[str, Array]:
        """Return all inputs as a model gets them that takes whole batches. See `Batch.feeds`."""
        joining = self._joining
        if joining is None:
            return {name: self.stacked(name) for name in self._inputs}
        feeds = {}
        for name, gathered in self._inputs.items():
            if name not in joining.flat:
                feeds[name] = self.stacked(name)
            elif gathered.shape is not None:
                feeds[name] = self.stacked(name).reshape(-1)
            else:
                shape = (sum(element_count(part) for part, _ in gathered.parts or ()),)
                feeds[name] = self._view(f"{name}\0", shape, gathered.offset, gathered.nbytes, name)
        feeds.update(joining.made_of(self.shapes))
        return feeds

    def raw(self, address: int) -> list[RawInput]:
        """Return all inputs as bytes, those in memory where they are: that is mapped at `address`."""
        inputs = []
        joining = self._joining
        for name, gathered in self._inputs.items():
            if gathered.on_device or (joining is not None and name in joining.padded):
                starts = accumulate(self._rows, initial=0)
                own = [
                    self.of(name, at, start, rows) for at, (start, rows) in enumerate(zip(starts, self._rows))
                ]
                inputs.append(raw_input(name, own))
                continue
            at = address + gathered.offset
            inputs.append(RawInput(name, gathered.shape, gathered.parts, at, gathered.nbytes))
        return inputs

    @property
    def reshapes(self) -> bool:
        """Whether some outputs are not simply cut by rows."""
        return self._joining is not None and self._joining.reshapes

    @property
    def address(self) -> int:
        """Where the memory of the inputs is, for one that is a copy; 0 if it has no bytes."""
        return address_of(self._memory) if self._memory.nbytes else 0

    def feeds_of(self, index: int, start: int, rows: int) -> Mapping[str, Array]:
        """Return all inputs of one request, as if it were alone."""
        feeds = {name: self.of(name, index, start, rows) for name in self._inputs}
        joining = self._joining
        if joining is not None:
            for name in joining.flat & feeds.keys():
                feeds[name] = feeds[name].reshape(-1)
            feeds.update(joining.made_of({name: [of[index]] for name, of in self.shapes.items()}))
        return feeds

    @property
    def shapes(self) -> Mapping[str, Sequence[Sequence[int]]]:
        """The shapes of the requests' own tensors."""
        shapes: dict[str, Sequence[Sequence[int]]] = {}
        for name, gathered in self._inputs.items():
            if gathered.parts is not None:
                shapes[name] = [shape for shape, _ in gathered.parts]
            elif self._batches:
                tail = tuple((gathered.shape or ())[1:])
                shapes[name] = [(rows, *tail) for rows in self._rows]
            else:
                shapes[name] = [gathered.shape or ()]
        return shapes

    def own(self, index: int, outputs: Sequence[AnyOutput]) -> Sequence[AnyOutput]:
        """Return what is a request's of the outputs that the model made for this request."""
        joining = self._joining
        if joining is None or not joining.reshapes:
            return outputs
        shapes = {name: of[index] for name, of in self.shapes.items()}
        return [
            (name, datatype, joining.share(name, _on_host(array), shapes))
            for name, datatype, array in outputs
        ]

    def shares(self, outputs: Sequence[AnyOutput]) -> list[list[Output]] | None:
        """Return of each output what is each request's; None if that is simply its rows.

        Raises ValueError where an output does not fit the requests' inputs.
        """
        joining = self._joining
        if joining is None or not joining.reshapes:
            return None
        shapes = self.shapes
        if not any(joining.is_cut(name, shapes) for name, _, _ in outputs):
            return None
        return [
            [(name, datatype, own) for own in joining.shares(name, _on_host(array), shapes, self._rows)]
            for name, datatype, array in outputs
        ]

    def _own_input(self, name: str, index: int, start: int, rows: int) -> Array:
        gathered = self._inputs[name]
        if gathered.parts is not None:
            offset = gathered.offset + sum(nbytes for _, nbytes in gathered.parts[:index])
            shape, nbytes = gathered.parts[index]
            return self._view(f"{name}\0{index}", shape, offset, nbytes, name)
        whole = self._view(name, gathered.shape or (), gathered.offset, gathered.nbytes)
        return whole[start : start + rows] if self._batches else whole

    def _view(self, key: str, shape: Sequence[int], offset: int, nbytes: int, name: str = "") -> Array:
        array = self._decoded.get(key)
        if array is None:
            memory = self._memory
            datatype = self.datatype_of(name or key)
            if self._fetch is not None and self._inputs[name or key].on_device:
                memory = self._copied(name or key, self._fetch)
                offset -= self._inputs[name or key].offset
                nbytes = element_count(shape) * datatype.size
            if datatype is not DataType.BYTES and element_count(shape) * datatype.size == nbytes:
                array = np.ndarray(shape, datatype.numpy, memory, offset)
            else:  # strings, or an error that names what is wrong
                data = memory[offset : offset + nbytes]
                array = Tensor(key, datatype, shape, data).as_numpy()
            self._decoded[key] = array
        return array

    def _copied(self, name: str, fetch: Callable[[str, Sequence[int]], memoryview]) -> memoryview:
        """Return the bytes of an input that lies on a GPU."""
        memory = self._copies.get(name)
        if memory is None:
            size = self.datatype_of(name).size
            sizes = [element_count(shape) * size for shape in self.shapes[name]]
            memory = self._copies[name] = fetch(name, sizes)
        return memory


def _on_host(array: Array | DeviceArray) -> Array:
    return array if isinstance(array, np.ndarray) else array.to_host()
