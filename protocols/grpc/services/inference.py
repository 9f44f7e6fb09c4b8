"""`inference.GRPCInferenceService`: what its RPCs mean, over `actors.values.interfaces`.

ModelInfer is answered without a task (see `protocols.grpc.services.model_infer`), and ModelStreamInfer lives
in `protocols.grpc.services.model_stream_infer`.

Contract: grpc.md sections 4 and 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from google.protobuf import json_format

from actors.seams.threads import in_thread
from actors.values.auditing import Requester, recorded
from actors.values.datatypes import DataType
from actors.values.errors import InvalidArgument, PermissionDenied, TritiumError, Unavailable, Unsupported
from actors.values.interfaces import IndexEntry, LogState, Server, ServerIdentity
from actors.values.specs import ModelSpec
from actors.values.tracing.settings import TraceControl
from actors.values.versions import parse_version
from protocols.grpc.methods import INFERENCE_SERVICE
from protocols.grpc.policy import GrpcOptions
from protocols.grpc.services.model_infer import MessageIntake, ModelInferMethod
from protocols.grpc.services.model_stream_infer import StreamedInference
from protocols.grpc.services.shared_memory import SharedMemoryService
from protocols.grpc.services.unary import only_request as _request
from protocols.kserve.auditing import load_change, log_change, trace_change, unload_change
from protocols.kserve.caps import check_name
from protocols.kserve.extensions import log_settings, trace_settings
from protocols.kserve.loading import TEXTS
from protocols.kserve.permitted import (
    check_config,
    check_traces,
    check_upload,
    named_in,
    permit_in,
    visible_entries,
    visible_statistics,
)
from protocols.kserve.proto import grpc_service_pb2 as pb
from protocols.kserve.proto.model_config_pb2 import ModelConfig
from protocols.kserve.steering import EPOCH, Steered, parse_epoch

if TYPE_CHECKING:
    from protocols.grpc.call import ServerStream, UnaryMethod

# Bytes of JSON; each KiB takes protobuf a fifth of a millisecond.
_CONVERTED_HERE: Final = 32 * 1024


def _refuse_extension(what: str) -> NoReturn:
    raise Unsupported(f"{what} is not supported by this version of Tritium")


class InferenceService(SharedMemoryService):
    """Serves `server`. One instance serves all connections of a listener.

    `unary_methods` are the RPCs that are answered without a task, by full path.
    """

    def __init__(self, server: Server, options: GrpcOptions | None = None) -> None:
        options = options or GrpcOptions()
        self._elsewhere = options.elsewhere
        self._server = server
        self.shared_memory = server.shared_memory
        self._auditor = options.auditor
        self._metadata = server_metadata(server.identity)
        self._intake = MessageIntake(
            server,
            header_forward_pattern=options.header_forward_pattern,
            max_message=options.max_send_message,
            gate=options.gate,
            auditor=options.auditor,
            tracer=options.tracer,
            replica=options.replica,
        )
        self._endings = options.endings
        self.unary_methods: Mapping[str, UnaryMethod] = {
            INFERENCE_SERVICE + "ModelInfer": ModelInferMethod(self._intake, options.endings)
        }

    # Health and metadata

    async def ServerLive(self, stream: ServerStream[pb.ServerLiveRequest, pb.ServerLiveResponse]) -> None:
        """Say whether the server initialised. Raises Unavailable `Server exiting` once shutdown has begun."""
        await _request(stream)
        self._refuse_while_exiting()
        await stream.send_message(pb.ServerLiveResponse(live=self._server.health.live()))

    async def ServerReady(self, stream: ServerStream[pb.ServerReadyRequest, pb.ServerReadyResponse]) -> None:
        """Say whether the server serves. Raises Unavailable `Server exiting` once shutdown has begun."""
        await _request(stream)
        self._refuse_while_exiting()
        await stream.send_message(pb.ServerReadyResponse(ready=await self._server.health.ready()))

    async def ModelReady(self, stream: ServerStream[pb.ModelReadyRequest, pb.ModelReadyResponse]) -> None:
        """Say whether a model version serves and its instances agree.

        A version that is not known does not serve (contract, section 6).
        """
        request = await _request(stream)
        self._require_running()
        _check_version(request.version)
        try:
            ready = await self._server.health.model_ready(request.name, request.version)
        except TritiumError:  # the model is unknown, is loading, or failed to load
            ready = False
        await stream.send_message(pb.ModelReadyResponse(ready=ready))

    async def ServerMetadata(
        self, stream: ServerStream[pb.ServerMetadataRequest, pb.ServerMetadataResponse]
    ) -> None:
        """Tell the server's name, version and extensions."""
        await _request(stream)
        await stream.send_message(self._metadata)

    async def ModelMetadata(
        self, stream: ServerStream[pb.ModelMetadataRequest, pb.ModelMetadataResponse]
    ) -> None:
        """Tell a model's tensors and its READY versions, or the one asked for. Raises as `Models.resolve`."""
        request = await _request(stream)
        self._require_running()
        _check_version(request.version)
        models = self._server.models
        spec = models.resolve(request.name, request.version).spec
        versions = [spec.version] if request.version else models.versions(request.name)
        await stream.send_message(model_metadata(spec, versions))

    async def ModelConfig(self, stream: ServerStream[pb.ModelConfigRequest, pb.ModelConfigResponse]) -> None:
        """Tell a model's normalised and completed configuration. Raises as `Models.resolve`."""
        request = await _request(stream)
        self._require_running()
        _check_version(request.version)
        spec = self._server.models.resolve(request.name, request.version).spec
        if len(spec.config_json) > _CONVERTED_HERE:
            threads = stream.call.wire.threads
            config = await in_thread(model_config, spec.config_json, limiter=threads)
        else:
            config = model_config(spec.config_json)
        await stream.send_message(pb.ModelConfigResponse(config=config))

    async def ModelStatistics(
        self, stream: ServerStream[pb.ModelStatisticsRequest, pb.ModelStatisticsResponse]
    ) -> None:
        """Tell the statistics of a model, or of all that are READY.

        Raises InvalidArgument for an unknown one.
        """
        request = await _request(stream)
        self._require_running()
        _check_version(request.version)
        statistics = self._server.models.statistics(request.name, request.version)
        await stream.send_message(model_statistics(visible_statistics(stream.call.caller, statistics)))

    def _refuse_while_exiting(self) -> None:
        if self._server.health.exiting:
            raise Unavailable("Server exiting")

    def _require_running(self) -> None:
        health = self._server.health
        if health.exiting or not health.live():
            raise Unavailable("Server not ready")

    # Repository

    async def RepositoryIndex(
        self, stream: ServerStream[pb.RepositoryIndexRequest, pb.RepositoryIndexResponse]
    ) -> None:
        """List the models that are known, with their states."""
        request = await _request(stream)
        _refuse_repository_name(request.repository_name)
        self._require_running()
        entries = await self._server.repository.index(ready_only=request.ready)
        await stream.send_message(repository_index(visible_entries(stream.call.caller, entries)))

    async def RepositoryModelLoad(
        self, stream: ServerStream[pb.RepositoryModelLoadRequest, pb.RepositoryModelLoadResponse]
    ) -> None:
        """Load or reload a model, and answer when it serves."""
        request = await _request(stream)
        _refuse_repository_name(request.repository_name)
        caller, peer = stream.call.caller, stream.call.client
        change = self._steered(stream)
        check_upload(caller, request.model_name, request.parameters, peer, self._auditor)
        parameters: Mapping[str, object] = {}
        # The parameters are perhaps files of hundreds of megabytes:
        # taking them out of the message copies them.
        if request.parameters:
            threads = stream.call.wire.threads
            parameters = await in_thread(load_parameters, request.parameters, limiter=threads)
            if caller is not None and "config" in parameters:
                named = await in_thread(named_in, parameters["config"], limiter=threads)
                check_config(caller, request.model_name, named, peer, self._auditor)
        name, permit = _model_name(request), change.permit(permit_in(caller, parameters))
        load = partial(self._server.repository.load, name, parameters, permit=permit)
        origin, carry_out = Requester.of(caller, peer), partial(change.carry_out, load)
        await recorded(self._auditor, load_change(name, parameters), origin, carry_out)
        await stream.send_message(pb.RepositoryModelLoadResponse())

    async def RepositoryModelUnload(
        self, stream: ServerStream[pb.RepositoryModelUnloadRequest, pb.RepositoryModelUnloadResponse]
    ) -> None:
        """Unload a model. Once this answers, the model gets no more requests."""
        request = await _request(stream)
        _refuse_repository_name(request.repository_name)
        dependents = unload_dependents(request.parameters)
        name, caller, peer = _model_name(request), stream.call.caller, stream.call.client
        change = self._steered(stream)
        told, permit = unload_change(name, dependents=dependents), change.permit(permit_in(caller))
        unload = partial(self._server.repository.unload, name, unload_dependents=dependents, permit=permit)
        origin, carry_out = Requester.of(caller, peer), partial(change.carry_out, unload)
        await recorded(self._auditor, told, origin, carry_out)
        await stream.send_message(pb.RepositoryModelUnloadResponse())

    def _steered(self, stream: ServerStream[Any, Any]) -> Steered:
        """Return what lets a change begin, by the epoch in its metadata. Raises InvalidArgument."""
        return Steered(self._server.steering, parse_epoch(stream.metadata.get(EPOCH)), stream.call.caller)

    # Settings

    def _refuse_settings(self, stream: ServerStream[Any, Any], *, changes: bool) -> None:
        """Say where management is served, to a message with settings. Raises PermissionDenied."""
        if self._elsewhere is not None and changes:
            refusal = PermissionDenied(self._elsewhere.refusal)
            stream.call.wire.tell_denied(stream.call, refusal)
            raise refusal

    async def LogSettings(self, stream: ServerStream[pb.LogSettingsRequest, pb.LogSettingsResponse]) -> None:
        """Tell what is logged, and change it where the message has settings."""
        request = await _request(stream)
        self._refuse_settings(stream, changes=bool(request.settings))
        logs = self._server.logs
        if logs is None:
            _refuse_extension("the logging extension")
        if request.settings:
            given = request.settings

            async def change() -> None:
                for state in log_settings.message_steps(logs.describe(), given, _given, logs.formats):
                    logs.change(state)

            told = log_settings.known(
                {key: _given(given[key])[1] for key in log_settings.KEYS if key in given}
            )
            origin = Requester.of(stream.call.caller, stream.call.client)
            await recorded(self._auditor, log_change(told), origin, change)
        await stream.send_message(log_settings_response(logs.describe()))

    async def TraceSetting(
        self, stream: ServerStream[pb.TraceSettingRequest, pb.TraceSettingResponse]
    ) -> None:
        """Tell the trace setting of a model, or of all, and change it where the message has settings.

        Of an unknown model it tells nothing (contract, section 6).
        """
        request = await _request(stream)
        self._refuse_settings(stream, changes=bool(request.settings))
        traces = trace_settings.control_of(self._server.traces)
        response = pb.TraceSettingResponse()
        model = request.model_name
        if trace_settings.is_known(self._server.models, model):
            if request.settings:
                await self._change_traces(stream, request, traces)
            for key, values in trace_settings.told_values(traces.describe(model)):
                response.settings[key].value.extend(values)
        await stream.send_message(response)

    async def _change_traces(
        self, stream: ServerStream[Any, Any], request: pb.TraceSettingRequest, traces: TraceControl
    ) -> None:
        caller, model = stream.call.caller, request.model_name
        try:
            check_traces(caller, model)
        except TritiumError as error:
            stream.call.wire.tell_denied(stream.call, error, model)
            raise
        given = {key: list(setting.value) for key, setting in request.settings.items()}
        change = trace_settings.message_change(given)

        async def carry_out() -> None:
            traces.update(model, change)

        told = trace_change(model, trace_settings.known(given))
        await recorded(self._auditor, told, Requester.of(caller, stream.call.client), carry_out)

    # Inference

    async def ModelInfer(self, stream: ServerStream[pb.ModelInferRequest, pb.ModelInferResponse]) -> None:
        """Raise RuntimeError: ModelInfer is one of `unary_methods`, which the server must look at first."""
        raise RuntimeError(f"{stream.call.head.path} is answered by `unary_methods`, without a task")

    async def ModelStreamInfer(
        self, stream: ServerStream[pb.ModelInferRequest, pb.ModelStreamInferResponse]
    ) -> None:
        """Answer requests, any number and to any models, until the client ends its side.

        Contract, section 9.
        """
        await StreamedInference(stream, self._intake, self._endings).run()


def _model_name(request: pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest) -> str:
    """Return the model's name. Raises InvalidArgument for a name that is too long for a model."""
    name = request.model_name
    check_name(name, "a model")
    return name


def _check_version(version: str) -> None:
    """Raise InvalidArgument for a version that is malformed, whether or not the model exists."""
    if version:
        parse_version(version)


def _refuse_repository_name(name: str) -> None:
    if name:
        raise Unsupported("'repository_name' specification is not supported")


def load_parameters(given: Mapping[str, pb.ModelRepositoryParameter]) -> dict[str, object]:
    """Return the parameters of a load: `config` and `tritium.versions` as text, `file:<path>` as bytes.

    Raises InvalidArgument for any other key and for a value of the wrong type (contract, section 6).
    """
    loaded: dict[str, object] = {}
    for key, parameter in given.items():
        if key in TEXTS:
            expected = "string_param"
        elif key.startswith("file:"):
            expected = "bytes_param"
        else:
            raise InvalidArgument(f"unrecognized load parameter '{key}'.")
        if parameter.WhichOneof("parameter_choice") != expected:
            raise InvalidArgument(f"invalid value type for load parameter '{key}', expected {expected}.")
        loaded[key] = getattr(parameter, expected)
    return loaded


def _given(value: pb.LogSettingsRequest.SettingValue) -> tuple[str | None, object]:
    """Return which member of a setting is set, and its value."""
    member = value.WhichOneof("parameter_choice")
    return member, None if member is None else getattr(value, member)


def log_settings_response(state: LogState) -> pb.LogSettingsResponse:
    """Return the answer to LogSettings."""
    value = pb.LogSettingsResponse.SettingValue
    return pb.LogSettingsResponse(
        settings={
            "log_file": value(string_param=state.file),
            "log_info": value(bool_param=state.info),
            "log_warning": value(bool_param=state.warning),
            "log_error": value(bool_param=state.error),
            "log_verbose_level": value(uint32_param=state.verbose_level),
            "log_format": value(string_param=state.format),
        }
    )


def unload_dependents(given: Mapping[str, pb.ModelRepositoryParameter]) -> bool:
    """Return whether an unload takes a model's parts along.

    Raises InvalidArgument where that is no bool_param.
    """
    if "unload_dependents" not in given:
        return False
    parameter = given["unload_dependents"]
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidArgument("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    dependents: bool = parameter.bool_param
    return dependents


def server_metadata(identity: ServerIdentity) -> pb.ServerMetadataResponse:
    """Return the answer to ServerMetadata."""
    return pb.ServerMetadataResponse(
        name=identity.name, version=identity.version, extensions=identity.extensions
    )


def model_metadata(spec: ModelSpec, versions: Sequence[int]) -> pb.ModelMetadataResponse:
    """Return the answer to ModelMetadata, which reports `versions`."""
    return pb.ModelMetadataResponse(
        name=spec.name,
        versions=[str(version) for version in versions],
        platform=spec.platform,
        inputs=[_tensor(spec, each.name, each.datatype, each.dims) for each in spec.inputs],
        outputs=[_tensor(spec, each.name, each.datatype, each.dims) for each in spec.outputs],
    )


def _tensor(
    spec: ModelSpec, name: str, datatype: DataType, dims: Sequence[int]
) -> pb.ModelMetadataResponse.TensorMetadata:
    shape = [-1, *dims] if spec.batches else list(dims)
    return pb.ModelMetadataResponse.TensorMetadata(name=name, datatype=datatype.protocol_name, shape=shape)


@lru_cache(maxsize=256)
def model_config(config_json: bytes) -> ModelConfig:
    """Return the message whose JSON form a spec carries. Callers share it and must not change it."""
    return json_format.Parse(config_json, ModelConfig())


def model_statistics(model_stats: Sequence[Mapping[str, object]]) -> pb.ModelStatisticsResponse:
    """Return the answer to ModelStatistics; the fields have the same names as over HTTP."""
    # Messages made of keywords take a tenth of the time that
    # `json_format` takes, so a thousand models are no pause.
    elements: Iterable[Any] = model_stats
    return pb.ModelStatisticsResponse(model_stats=[_model_statistics(**element) for element in elements])


def _model_statistics(*, tritium: object = None, **fields: Any) -> pb.ModelStatistics:
    """Return one element. Values that Triton's message has no field for are told over HTTP only."""
    del tritium
    return pb.ModelStatistics(**fields)


def repository_index(entries: Iterable[IndexEntry]) -> pb.RepositoryIndexResponse:
    """Return the answer to RepositoryIndex."""
    return pb.RepositoryIndexResponse(
        models=[
            pb.RepositoryIndexResponse.ModelIndex(
                name=entry.name,
                version=str(entry.version) if entry.version else "",
                state=entry.state,
                reason=entry.reason.encode("utf-8", "replace").decode(),
            )
            for entry in entries
        ]
    )
