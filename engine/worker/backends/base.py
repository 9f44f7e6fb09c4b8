"""The one interface between Tritium and model code. A third party implements it in a package of its own.

A backend is named by an entry point in the group `tritium.backends`::

    [project.entry-points."tritium.backends"]
    mine = "my_package.backend:MyBackend"

and is then chosen by `backend: "mine"` in a model's configuration. The server imports the class too, to read
its attributes, so importing its module must be cheap: import the framework inside `load`, which only ever
runs in the worker. Everything here runs on Python 3.9 with numpy.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors.values.datatypes import DataType
    from actors.values.errors import ErrorCode
    from actors.values.padding import CutBack, Padded
    from actors.values.requests import Parameter
    from actors.values.tensors import Array
    from engine.worker.backends.raw import RawBatch, RawOutput
    from engine.worker.calls import Calls
    from engine.worker.devices.arrays import DeviceArray

    Output = tuple[str, DataType, Array]

    AnyOutput = tuple[str, DataType, "Array | DeviceArray"]
    """An output that may lie on the instance's GPU instead.

    The call waits until the device has written it.
    """


class LoadError(Exception):
    """The model can't be loaded, for a reason its owner can fix. The message becomes the version's reason."""


class SenderClosed(Exception):
    """A response can't be sent: the last one was sent already, or the server has gone."""


class TensorInfo:
    """A declared or discovered input or output.

    `dims` excludes the batch dimension if the model batches. A `ragged` input's requests are
    joined to one 1-D tensor. `padded` and `cuts` are of an input and an output that the worker pads and cuts
    (`tritium.pad_to`).
    """

    __slots__ = ("cuts", "datatype", "dims", "name", "optional", "padded", "ragged", "reshape")

    def __init__(
        self,
        name: str,
        datatype: DataType,
        dims: Sequence[int],
        *,
        reshape: Sequence[int] | None = None,
        optional: bool = False,
        ragged: bool = False,
        padded: Padded | None = None,
        cuts: Sequence[CutBack] = (),
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.dims = list(dims)
        self.reshape = None if reshape is None else list(reshape)
        self.optional = optional
        self.ragged = ragged
        self.padded = padded
        self.cuts = cuts

    @property
    def backend_dims(self) -> list[int]:
        """The dims as the framework sees them: `reshape` if one is configured."""
        return self.dims if self.reshape is None else self.reshape


def _untold(phase: str) -> None:
    """Nothing listens."""


class ModelInfo:
    """What a backend is told about the model it must load."""

    __slots__ = (
        "artifact",
        "calls",
        "config",
        "decoupled",
        "device_id",
        "gpu_memory",
        "gpu_share",
        "inputs",
        "instance_name",
        "kind",
        "lanes",
        "log",
        "max_batch_size",
        "model_directory",
        "name",
        "output_names",
        "outputs",
        "parameters",
        "phase",
        "settings",
        "threads",
        "version",
        "version_directory",
        "whole_batches",
    )

    def __init__(
        self,
        *,
        name: str,
        version: int,
        model_directory: str,
        version_directory: str,
        artifact: str,
        max_batch_size: int,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        parameters: Mapping[str, str],
        settings: Mapping[str, str],
        config: Mapping[str, Any],
        instance_name: str,
        kind: str,
        device_id: int,
        lanes: int,
        threads: int,
        log: Callable[[str, str], None],
        decoupled: bool = False,
        calls: Calls | None = None,
        phase: Callable[[str], None] | None = None,
        whole_batches: bool = True,
        gpu_memory: int = 0,
        gpu_share: float = 0.0,
    ) -> None:
        self.name = name
        self.version = version
        self.model_directory = model_directory
        self.version_directory = version_directory
        self.artifact = artifact  # file name in the version directory
        self.max_batch_size = max_batch_size
        self.inputs = inputs
        self.outputs = outputs
        self.output_names = frozenset(output.name for output in outputs)
        self.parameters = parameters  # the configuration's parameters, `tritium.*` included
        self.settings = settings  # --backend-config for this backend
        self.config = config  # the whole normalised configuration, as JSON values
        self.instance_name = instance_name
        self.kind = kind  # "CPU", "GPU" or "MODEL"
        self.device_id = device_id
        # What it may take of its GPU's memory, in bytes or as a share (`tritium.gpu_memory`); 0: no limit.
        self.gpu_memory = gpu_memory
        self.gpu_share = gpu_share
        self.lanes = lanes  # how many `execute` calls may run at once, each on a thread of its own
        self.threads = threads  # CPU threads one execution may use
        self.decoupled = decoupled  # requests may have any number of responses, by `BatchRequest.sender`
        # For calls of other models, and questions to the server; None while a configuration is completed.
        self.calls = calls
        # phase("reading weights"): what the load is busy with from now on, for operators; a few words.
        self.phase: Callable[[str], None] = phase or _untold
        self.whole_batches = whole_batches  # as `Backend.whole_batches`
        self.log = log  # log("info" | "warning" | "error" | "verbose", message)


class ResponseSender(ABC):
    """Gives one request of a decoupled model its responses.

    There may be any number of them, from any thread, over any time. The final one, or `finish`, ends the
    request. If the last reference to the sender is dropped before that, the request ends with an error.
    """

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the request has had its final response."""

    @abstractmethod
    def send(
        self,
        outputs: Sequence[Output],
        parameters: Mapping[str, Parameter] | None = None,
        *,
        final: bool = False,
    ) -> None:
        """Send a response.

        Outputs that the client does not want are left out. Arrays are copied before the call returns.

        If so much of this request is on its way that the client must take some of it first, the call waits
        (`WINDOW_PARTS` and `WINDOW_BYTES` of `actors.wire.frames`). Keep it off a thread that other work depends
        on. Raises SenderClosed after the final response, and if the server has gone.
        """

    def send_raw(
        self,
        outputs: Sequence[RawOutput],
        parameters: Mapping[str, Parameter] | None = None,
        *,
        final: bool = False,
    ) -> None:
        """Send a response whose outputs are bytes: none of them lies in the batch's room."""
        self.send([output.array(None) for output in outputs], parameters, final=final)

    def when_cancelled(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once the client has gone, if that is before the final response.

        Any thread may call it. It is called at once if the client has gone already. By default it is never
        called, and `cancelled` has to be asked.
        """
        del callback

    @abstractmethod
    def fail(self, code: ErrorCode, message: str, *, final: bool = True) -> None:
        """Send an error as a response; one that is not final doesn't end the request. Raises SenderClosed."""

    @abstractmethod
    def finish(self) -> None:
        """End the request without another response; never waits for the client. Raises SenderClosed."""

    def would_wait(self) -> bool:
        """Whether `send` would wait now for the client to take something."""
        return False

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Within it, what the calling thread sends, to this request and to others, may wait for the end.

        Many short responses then need one frame. No call waits for a client while something is held back.
        """
        return contextlib.nullcontext()

    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the client has gone; stop soon, and finish. What is sent nevertheless goes nowhere."""


class BatchRequest(ABC):
    """One request of a batch. Answer it with `respond` or `fail`, or leave it to `Batch.respond`.

    If the model is decoupled, `sender` is a third way, and the only one to give other than one response.
    """

    id: str
    rows: int
    correlation_id: int | str
    flags: int
    timeout: int  # microseconds, 0: none
    priority: int
    parameters: Mapping[str, Parameter]
    # Never empty: all declared outputs if the client named none.
    requested_outputs: Sequence[str]
    # It identifies this request when a call is made on its behalf (`CallRequest.parent`).
    origin: tuple[int, int] | None = None
    # W3C `traceparent` of this execution, and `tracestate` if there is one; None if it is not traced.
    trace: Sequence[str] | None = None

    @property
    @abstractmethod
    def input_names(self) -> Sequence[str]:
        """Inputs present, in the configuration's order."""

    @abstractmethod
    def input(self, name: str) -> Array:
        """Return an input as an array of the request's own shape [rows, *dims] (reshape applied).

        The array is a view that is valid until `execute` returns, and longer if the model is decoupled. BYTES
        gives an object array of `bytes`; BF16 gives `uint16`.
        Raises KeyError for an input the client did not send.
        """

    def device_input(self, name: str) -> DeviceArray | None:
        """Return an input that lies on the instance's GPU, in the request's own shape [rows, *dims].

        None where it is in host memory. `input` gives a copy in host memory in either case. The array is
        valid until `execute` returns. Only backends that say `device_tensors` are given such.
        """
        del name
        return None

    @property
    def device_outputs(self) -> frozenset[str]:
        """Outputs that had better stay on the instance's GPU: they are read there next."""
        return frozenset()

    def feeds(self) -> Mapping[str, Array]:
        """Return all inputs as `Batch.feeds` would if this request were alone in its batch."""
        return {name: self.input(name) for name in self.input_names}

    @abstractmethod
    def input_datatype(self, name: str) -> DataType:
        """Return an input's datatype."""

    @abstractmethod
    def respond(
        self, outputs: Sequence[AnyOutput], parameters: Mapping[str, Parameter] | None = None
    ) -> None:
        """Answer this request; arrays are copied before the call returns. At most one answer a request."""

    @abstractmethod
    def fail(self, code: ErrorCode, message: str) -> None:
        """Answer this request with an error; its batchmates are untouched."""

    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the client has gone; stopping early is allowed, answering anyway is harmless."""

    def reschedule(self) -> None:
        """Ask for this request to be run once more, in a later batch, in place of an answer.

        This is for iterative sequences. Call it before `execute` returns. If the model has taken a `sender`,
        that sender can't send any more; the next run has one of its own. Raises RuntimeError if there is an
        answer already.
        """
        raise RuntimeError("whoever made this request can't run it again")

    def sender(self) -> ResponseSender:
        """Return the sender of this request's responses: for decoupled models only (`ModelInfo.decoupled`).

        Call it before `execute` returns. The request then stays open, however `execute` ends, until the
        sender has sent the final response. `execute` may return at once and be given the next batch. The
        inputs of a decoupled model are copies, and stay valid as well. Raises RuntimeError for a model that
        is not decoupled.
        """
        raise RuntimeError("the model is not decoupled: answer with `respond` or `fail`")


class Batch(ABC):
    """What one `execute` call works on."""

    requests: Sequence[BatchRequest]
    rows: int  # sum over requests

    @property
    def traced(self) -> Mapping[int, Sequence[str]]:
        """The `trace` of each request that is traced, by its place."""
        return {
            place: request.trace for place, request in enumerate(self.requests) if request.trace is not None
        }

    @property
    @abstractmethod
    def input_names(self) -> Sequence[str]:
        """Inputs present in this batch (equal for all its requests), in the configuration's order."""

    @property
    def wanted_outputs(self) -> frozenset[str]:
        """Outputs that at least one request asked for; the others need not be computed."""
        return frozenset(name for request in self.requests for name in request.requested_outputs)

    @property
    def device_inputs(self) -> frozenset[str]:
        """Inputs that lie on the instance's GPU, for all requests: see `BatchRequest.device_input`."""
        return frozenset()

    @property
    def device_outputs(self) -> frozenset[str]:
        """Outputs that every request would have on the GPU: see `BatchRequest.device_outputs`."""
        each = [request.device_outputs for request in self.requests]
        return frozenset.intersection(*each) if each else frozenset()

    @abstractmethod
    def stacked(self, name: str) -> Array:
        """Return an input of all requests, joined along the batch dimension: [rows, *dims], without a copy.

        For a model without batch dimension it is the only request's tensor. BYTES gives an object array. An
        input that is padded to buckets is a copy. Raises ValueError for an input with `allow_ragged_batch`
        where the requests' shapes differ.
        """

    def feeds(self) -> Mapping[str, Array]:
        """Return all inputs of all requests, as a model that takes whole batches gets them.

        An input is `stacked` or, with `allow_ragged_batch`, 1-D: all elements of all requests. The tensors of
        `batch_input` are among them.
        """
        return {name: self.stacked(name) for name in self.input_names}

    @abstractmethod
    def allocate(self, name: str, datatype: DataType, shape: Sequence[int]) -> Array:
        """Return an uninitialised array in shared output memory, of a fixed-size datatype.

        Passing it to `respond` under the same name saves the copy. The call may wait for the server to grow
        the memory.
        """

    @property
    @abstractmethod
    def raw(self) -> RawBatch:
        """The batch as bytes in memory, for a library that reads and writes tensors by itself."""

    @abstractmethod
    def respond(self, outputs: Sequence[AnyOutput]) -> None:
        """Answer every request with its rows of stacked outputs [rows, *dims].

        Outputs that no request asks for may be left out. One named in `batch_output` is 1-D, and is cut by
        the shapes of its source. Raises ValueError if a leading dimension is not `rows`, or an output can't
        be cut.
        """

    short = False  # whether the backend has said that it found too little memory

    def note_shortage(self) -> None:
        """Tell the server that this batch found too little memory on its GPU.

        Batches are smaller for a while then (docs/gpu.md). Of requests that are failed for that, it is told
        anyway; so this is for a backend that runs a batch once more in parts.
        """
        self.short = True

    @abstractmethod
    def fail(self, code: ErrorCode, message: str) -> None:
        """Answer every request not yet answered with an error."""


class Backend(ABC):
    """Loads one model and runs batches of it.

    There is one object in each worker; its methods run on the worker's threads. An exception from `execute`
    fails the batch's unanswered requests and is no crash. An exception from `load` fails the load.
    """

    name = ""
    pure = True  # an execution has no side effects: after a crash it may be run again
    concurrent = True  # `execute` may run on several lanes at once over one loaded model
    default_artifact = ""  # file name in the version directory
    platforms: Sequence[str] = ()  # platform names that select this backend
    # Whether `complete_config` has something to add to a configuration that names inputs and outputs.
    completes_the_complete = True
    # What a model's `runtime` may name besides the library that this class replaces: "model.py", for a
    # variant written in Python.
    runtimes: Sequence[str] = ()
    # Whether it takes inputs and gives outputs that lie on the instance's GPU (`BatchRequest.device_input`).
    device_tensors = False
    # Whether it keeps to `ModelInfo.gpu_memory` and `gpu_share` by its framework's means.
    limits_gpu_memory = False
    # Whether it is an engine of a language model: it takes and gives token ids (`actors.generation.engine`).
    language = False
    # Whether its models may name an environment of their own, by EXECUTION_ENV_PATH (docs/environments.md).
    environments = False
    # Whether it takes whole batches: the worker makes `batch_input`s, and cuts what `batch_output` says. If
    # not, the backend does both for itself.
    whole_batches = True
    # Whether a model may bring code that runs here: scripts, libraries, pickles. If not, the backend serves
    # under --no-code-models.
    runs_model_code = True

    @classmethod
    def complete_config(cls, model: ModelInfo) -> Mapping[str, Any] | None:
        """Return `model.config` with what the model tells of itself filled in, or None if it adds nothing.

        Optional. If auto-completion is on, it is called before the model is loaded, in a process of its own
        that is thrown away afterwards. There is no device and no other model. `model.config` may be edited in
        place. With `completes_the_complete = False` it is not called where inputs and outputs are configured.
        `model.inputs` and `model.outputs` are empty, because they may be what is missing. Of the
        answer, these fields are taken over: `max_batch_size`, `input`, `output`, `dynamic_batching` or
        `sequence_batching` if no scheduler is configured, and `model_transaction_policy`. Raises LoadError
        with what keeps the model from being loaded.
        """
        return None

    @classmethod
    def prepare(cls) -> None:
        """Import what takes long, such as the framework, in a process that waits for a model.

        Optional. No model is known, and none may ever come. What a model's sandbox forbids is forbidden
        already. `load` must not count on this call. An exception is ignored, because `load` will meet its
        cause again.
        """
        return

    @abstractmethod
    def load(self, model: ModelInfo) -> None:
        """Load the model.

        Raises LoadError with a reason for the operator; any other exception counts as a bug in the model.
        """

    @abstractmethod
    def execute(self, batch: Batch) -> None:
        """Run one batch: answer every request through `batch` or its members before returning.

        A decoupled model may take a request's `sender` instead, and answer whenever it likes.
        """

    def ready(self) -> bool:
        """Return whether the loaded model wants traffic.

        It is called if `has_check` is true, each time a client asks. The call runs on a thread of its own and
        beside `execute`, and never twice at once.
        """
        return True

    def has_check(self) -> bool:
        """Return whether the loaded model has a readiness check, so that `ready` is worth calling.

        Called once, after `load`.
        """
        return type(self).ready is not Backend.ready

    def facts(self) -> Mapping[str, Any]:
        """Return what the server is to know of the loaded model, as a few JSON values. Called after `load`.

        A language model tells its `context`, the tokens of prompt and answer together, and what
        `engine.worker.backends.language.engine.StepEngine.facts` names.
        """
        return {}

    def unload(self) -> None:
        """Release what `load` took. Called once, on a graceful stop only."""
        return
