"""What a model written with `tritium.model` may know of a request, and of itself.

It also has how such a model refuses a request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from engine.worker.backends.python.responses import TritonErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.values.requests import Parameter
    from engine.worker.backends.python.exchange import InferenceRequest


CODES: Final = tuple(code.name for code in TritonErrorCode)


class RequestError(Exception):
    """Raised by a model to answer a request with an error: its client gets `message` as it is.

    `code` is one of `CODES` (contract, python_backend.md section 5). Raises ValueError for another.
    """

    def __init__(self, message: str, code: str = "INVALID_ARG") -> None:
        super().__init__(message)
        if code not in CODES:
            raise ValueError(f"RequestError takes one of the codes {', '.join(CODES)}; got {code!r}")
        self.message = message
        self.code = code


class Request:
    """One request, beside its tensors. A function that asks for it is called once for each request."""

    __slots__ = ("_request",)

    def __init__(self, request: InferenceRequest) -> None:
        self._request = request

    @property
    def id(self) -> str:
        """The client's id for the request, or an empty string."""
        return self._request.request_id()

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The request's own parameters, forwarded headers among them."""
        parameters: dict[str, Parameter] = json.loads(self._request.parameters())
        return parameters

    @property
    def correlation_id(self) -> int | str:
        """The sequence that the request belongs to, 0 for none."""
        return self._request.correlation_id()

    @property
    def flags(self) -> int:
        """The sequence flags: 1 at the start of one, 2 at its end."""
        return self._request.flags()

    @property
    def timeout(self) -> float | None:
        """The client's timeout in seconds, None without one."""
        microseconds = self._request.timeout()
        return microseconds / 1e6 if microseconds else None

    @property
    def requested_outputs(self) -> list[str]:
        """The outputs that the client wants: all of them if it named none. Others need not be computed."""
        return self._request.requested_output_names()

    def cancelled(self) -> bool:
        """Whether the client has gone, so that the model may stop early."""
        return self._request.is_cancelled()


@dataclass(frozen=True)
class Instance:
    """What a model class's constructor may be given: which instance it is for.

    Contract: python_backend.md section 1.1.
    """

    model: str
    version: int
    name: str  # of the instance, such as `digits_0_1`
    kind: str  # "CPU", "GPU" or "MODEL"
    device_id: int
    directory: str  # of the model
    config: Mapping[str, Any]  # the whole normalised configuration, as JSON values

    @property
    def parameters(self) -> Mapping[str, str]:
        """The configuration's parameters."""
        given = self.config.get("parameters", {})
        return {key: value["string_value"] for key, value in given.items()}

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, str]) -> Instance:
        """Return the instance that the arguments of `initialize` describe."""
        return cls(
            model=arguments["model_name"],
            version=int(arguments["model_version"]),
            name=arguments["model_instance_name"],
            kind=arguments["model_instance_kind"],
            device_id=int(arguments["model_instance_device_id"]),
            directory=arguments["model_repository"],
            config=json.loads(arguments["model_config"]),
        )
