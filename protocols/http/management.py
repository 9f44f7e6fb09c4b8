"""The endpoints of the v2 API that describe and change what is served: health, metadata, repository, traffic.

Contract: http.md sections 3 to 5 and 9.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from actors.seams.slices import in_slices
from actors.seams.steps import Steps
from actors.values.auditing import Auditor, ManagedChange, Requester, recorded
from actors.values.errors import Internal, InvalidArgument, PermissionDenied, Unavailable, Unsupported
from actors.values.interfaces import Server
from protocols.http.answers import (
    EXITING,
    NO,
    ONLY_JSON,
    YES,
    Answer,
    EndpointHandler,
    Receive,
    Scope,
    error_answer,
    json_answer,
)
from protocols.http.bodies import parsed, read_body, read_document
from protocols.http.fields import connecting
from protocols.http.routes import Endpoint, Route
from protocols.http.steering.endpoint import FleetEndpoint, steered
from protocols.kserve import metadata
from protocols.kserve.auditing import (
    TREE,
    load_change,
    log_change,
    tell_denied,
    traffic_change,
    unload_change,
)
from protocols.kserve.documents import dump, misfit
from protocols.kserve.extensions import log_settings, shared_memory
from protocols.kserve.loading import load_parameters, parameters_of
from protocols.kserve.permitted import (
    Named,
    check_config,
    check_sees_all,
    check_upload,
    named_in,
    permit_in,
    visible_entries,
    visible_report,
    visible_statistics,
)

T = TypeVar("T")

_LONGEST_PLAN: Final = 64 * 1024  # of traffic: some hundred versions
_DEEP: Final = {b"1": True, b"true": True, b"0": False, b"false": False}


class ManagementEndpoints:
    """Answers for `server`. `handlers` are by endpoint."""

    def __init__(self, server: Server, *, max_input_size: int, auditor: Auditor | None = None) -> None:
        self._server = server
        self._auditor = auditor
        self._max_input_size = max_input_size
        self._metadata = json_answer(metadata.server_metadata(server.identity))
        self.handlers: dict[Endpoint, EndpointHandler] = {
            Endpoint.SERVER_LIVE: self._live,
            Endpoint.SERVER_READY: self._ready,
            Endpoint.SERVER_METADATA: self._server_metadata,
            Endpoint.MODEL_METADATA: self._model_metadata,
            Endpoint.MODEL_READY: self._model_ready,
            Endpoint.MODEL_CONFIG: self._model_config,
            Endpoint.MODEL_STATISTICS: self._statistics,
            Endpoint.ALL_STATISTICS: self._statistics,
            Endpoint.REPOSITORY_INDEX: self._index,
            Endpoint.MODEL_LOAD: self._load,
            Endpoint.MODEL_UNLOAD: self._unload,
            Endpoint.TREE: self._tree,
            Endpoint.TRAFFIC: self._traffic,
            Endpoint.FLEET: FleetEndpoint(server, auditor=auditor).answer,
            Endpoint.SYSTEM_MEMORY_STATUS: self._system_memory,
            Endpoint.SYSTEM_MEMORY_CHANGE: self._change_system_memory,
            Endpoint.CUDA_MEMORY_STATUS: self._cuda_memory,
            Endpoint.CUDA_MEMORY_CHANGE: self._change_cuda_memory,
            Endpoint.LOGGING: self._logging,
        }

    # Health and metadata

    async def _live(self, _route: Route, scope: Scope, _receive: Receive) -> Answer:
        health = self._server.health
        if health.exiting:
            return EXITING
        return _verdict(scope, "live", health.live())

    async def _ready(self, _route: Route, scope: Scope, _receive: Receive) -> Answer:
        health = self._server.health
        if health.exiting or health.withdrawn:
            return EXITING
        if _asks_deep(scope.get("query_string", b"")):
            report = await health.deep()
            shown = visible_report(scope.get("tritium.caller"), report)
            return Answer(200 if report.ready else 400, ONLY_JSON, (dump(shown),))
        return _verdict(scope, "ready", await health.ready())

    def _require_running(self) -> None:
        health = self._server.health
        if health.exiting or not health.live():
            raise Unavailable("Server not ready")

    async def _model_ready(self, route: Route, scope: Scope, _receive: Receive) -> Answer:
        self._require_running()
        if await self._server.health.model_ready(route.model, route.version):
            return _verdict(scope, "ready", True, name=route.model)
        return error_answer(400, "Model version not ready")

    async def _server_metadata(self, _route: Route, _scope: Scope, _receive: Receive) -> Answer:
        return self._metadata

    async def _model_metadata(self, route: Route, _scope: Scope, _receive: Receive) -> Answer:
        self._require_running()
        models = self._server.models
        spec = models.resolve(route.model, route.version).spec
        versions = [spec.version] if route.version else models.versions(route.model)
        return json_answer(metadata.model_metadata(spec, versions))

    async def _model_config(self, route: Route, _scope: Scope, _receive: Receive) -> Answer:
        self._require_running()
        return json_answer(self._server.models.resolve(route.model, route.version).spec.config_json)

    async def _statistics(self, route: Route, scope: Scope, _receive: Receive) -> Answer:
        self._require_running()
        statistics = self._server.models.statistics(route.model, route.version)
        return json_answer(metadata.statistics(visible_statistics(scope.get("tritium.caller"), statistics)))

    async def _tree(self, _route: Route, scope: Scope, _receive: Receive) -> Answer:
        caller = scope.get("tritium.caller")
        try:
            check_sees_all(caller)
        except PermissionDenied as error:
            if self._auditor is not None:
                tell_denied(self._auditor, TREE, "", caller, connecting(scope), error)
            raise
        return json_answer(dump(self._server.introspection.tree()))

    # Repository

    async def _index(self, _route: Route, scope: Scope, receive: Receive) -> Answer | None:
        document = await read_document(receive, self._max_input_size)
        if document is None:
            return None
        ready_only = document.get("ready", False)
        if type(ready_only) is not bool:
            raise InvalidArgument("Invalid value for 'ready': expected a boolean")
        self._require_running()
        entries = await self._server.repository.index(ready_only=ready_only)
        return json_answer(metadata.repository_index(visible_entries(scope.get("tritium.caller"), entries)))

    async def _load(self, route: Route, scope: Scope, receive: Receive) -> Answer | None:
        change = steered(self._server, scope)
        document = await read_document(receive, self._max_input_size, long_strings=True)
        if document is None:
            return None
        _refuse_repository_name(route)
        caller, peer = scope.get("tritium.caller"), connecting(scope)
        check_upload(caller, route.model, parameters_of(document), peer, self._auditor)
        parameters = await in_slices(load_parameters(document))
        if caller is not None and "config" in parameters:
            named = await in_slices(_named_in(parameters["config"]))
            check_config(caller, route.model, named, peer, self._auditor)
        permit = change.permit(permit_in(caller, parameters))
        load = partial(self._server.repository.load, route.model, parameters, permit=permit)
        await self._recorded(load_change(route.model, parameters), scope, partial(change.carry_out, load))
        return Answer(200, ONLY_JSON)

    async def _unload(self, route: Route, scope: Scope, receive: Receive) -> Answer | None:
        change = steered(self._server, scope)
        document = await read_document(receive, self._max_input_size)
        if document is None:
            return None
        _refuse_repository_name(route)
        parameters = parameters_of(document)
        dependents = parameters.get("unload_dependents", False)
        if type(dependents) is not bool:
            raise misfit(parameters, "unload_dependents", "boolean")
        permit = change.permit(permit_in(scope.get("tritium.caller")))
        unload = partial(
            self._server.repository.unload, route.model, unload_dependents=dependents, permit=permit
        )
        told = unload_change(route.model, dependents=dependents)
        await self._recorded(told, scope, partial(change.carry_out, unload))
        return Answer(200, ONLY_JSON)

    async def _traffic(self, route: Route, scope: Scope, receive: Receive) -> Answer | None:
        """Describe a model's traffic plan, or put another in force.

        `{}` ends the split; nothing at all is a mistake.
        """
        traffic = self._server.traffic
        if scope["method"] == "GET":
            return json_answer(dump(traffic.describe(route.model)))
        self._require_running()
        steered_change = steered(self._server, scope)
        body = await read_body(receive)
        if body is None:
            return None
        if len(body) > _LONGEST_PLAN:
            raise InvalidArgument(
                f"a traffic plan has {_LONGEST_PLAN} bytes at most, and this body {len(body)}"
            )
        try:
            document = await parsed(body, self._max_input_size) if body else None
        except Internal as error:  # as Triton's own endpoints answer such a body
            raise InvalidArgument(error.message) from error
        if type(document) is not dict:
            raise InvalidArgument("the body is a traffic plan as a JSON object, or {} to end the split")

        async def change() -> Mapping[str, object]:
            return traffic.change(route.model, document)

        told = traffic_change(route.model, document)
        return json_answer(dump(await self._recorded(told, scope, partial(steered_change.carry_out, change))))

    # Clients' shared memory

    async def _system_memory(self, route: Route, _scope: Scope, _receive: Receive) -> Answer:
        regions = self._server.shared_memory.system_regions(route.region)
        return json_answer(shared_memory.system_status(regions))

    async def _cuda_memory(self, route: Route, _scope: Scope, _receive: Receive) -> Answer:
        return json_answer(shared_memory.cuda_status(self._server.shared_memory.cuda_regions(route.region)))

    async def _change_system_memory(self, route: Route, _scope: Scope, receive: Receive) -> Answer | None:
        memory, name = self._server.shared_memory, route.region
        memory.check_allowed()
        if route.action == "unregister":
            memory.unregister_system(name)
            return Answer(200, ONLY_JSON)
        shared_memory.check_named(name, cuda=False)
        body = await read_body(receive)
        if body is None:
            return None
        place = shared_memory.read_system_place(await parsed(body, self._max_input_size))
        await memory.register_system(name, place.key, offset=place.offset, byte_size=place.byte_size)
        return Answer(200, ONLY_JSON)

    async def _change_cuda_memory(self, route: Route, _scope: Scope, receive: Receive) -> Answer | None:
        memory, name = self._server.shared_memory, route.region
        memory.check_allowed()
        if route.action == "unregister":
            memory.unregister_cuda(name)
            return Answer(200, ONLY_JSON)
        shared_memory.check_named(name, cuda=True)
        place = shared_memory.NO_PLACE
        if memory.has_cuda:  # otherwise it is refused whatever the body says
            body = await read_body(receive)
            if body is None:
                return None
            place = shared_memory.read_cuda_place(await parsed(body, self._max_input_size))
        await memory.register_cuda(
            name, place.raw_handle, device_id=place.device_id, byte_size=place.byte_size
        )
        return Answer(200, ONLY_JSON)

    async def _logging(self, _route: Route, scope: Scope, receive: Receive) -> Answer | None:
        """Tell what is logged, or change it."""
        logs = self._server.logs
        if logs is None:
            raise Unsupported("the logging extension is not supported by this version of Tritium")
        if scope["method"] == "POST":
            body = await read_body(receive)
            if body is None:
                return None
            document = await parsed(body, self._max_input_size)
            given = document if type(document) is dict else {}

            async def change() -> None:
                for state in log_settings.json_steps(logs.describe(), given, logs.formats):
                    logs.change(state)

            await self._recorded(log_change(log_settings.known(given)), scope, change)
        return json_answer(dump(log_settings.described(logs.describe())))

    async def _recorded(
        self, change: ManagedChange, scope: Scope, carry_out: Callable[[], Awaitable[T]]
    ) -> T:
        """Carry out a change that the audit log tells of. Raises as `recorded`."""
        if self._auditor is None:
            return await carry_out()
        origin = Requester.of(scope.get("tritium.caller"), connecting(scope))
        return await recorded(self._auditor, change, origin, carry_out)


def _verdict(scope: Scope, question: str, verdict: bool, /, **beside: str) -> Answer:
    """Answer a question for health: without a body, as Triton does, unless the caller asks for JSON by name.

    The Open Inference Protocol has a body here, which KServe's own client reads.
    """
    if not _asks_for_json(scope):
        return YES if verdict else NO
    return Answer(200 if verdict else 400, ONLY_JSON, (dump({**beside, question: verdict}),))


def _asks_for_json(scope: Scope) -> bool:
    return any(
        media.partition(b";")[0].strip() == b"application/json"
        for name, value in scope["headers"]
        if name == b"accept"
        for media in value.split(b",")
    )


def _asks_deep(query: bytes) -> bool:
    """Whether a readiness probe asks for inferences. Other fields of the query are ignored."""
    for pair in query.split(b"&") if query else ():
        name, _, value = pair.partition(b"=")
        if name == b"deep":
            if value not in _DEEP:
                shown = value[:40].decode("ascii", "replace")
                raise InvalidArgument(f"Invalid value '{shown}' for 'deep': expected 1 or 0")
            return _DEEP[value]
    return False


def _named_in(config: object) -> Steps[Named]:
    named: Named = yield partial(named_in, config)
    return named


def _refuse_repository_name(route: Route) -> None:
    if route.repository:
        raise Unsupported("'repository_name' specification is not supported")
