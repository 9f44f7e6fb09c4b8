"""Loading, unloading and asking after other models, from a Python model.

Contract: python_backend.md section 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.worker.backends.python.host import COMPLETING, FINALIZING, checked_text, current_host
from engine.worker.backends.python.tensors import TritonModelException
from engine.worker.calls import CallFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

LOAD = "model.load"
UNLOAD = "model.unload"
READY = "model.ready"


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load or reload a model, and wait until it serves.

    This works only if the server runs with `--model-control-mode=explicit`. `config` is a ModelConfig as JSON
    text, in place of the repository's. `files` are contents by path, as in `{"file:1/model.onnx": b"..."}`,
    in place of the repository's files; they need a `config`.

    Raises TritonModelException with what the server says, and in `auto_complete_config` and `finalize`.
    """
    contents = _checked_files(model_name, files)
    body: dict[str, Any] = {"name": checked_text("model_name", model_name)}
    if config:
        body["config"] = checked_text("config", config)
    _ask(LOAD, body, "Failed to load model: ", contents)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model: it gets no more requests, and answers those it has.

    With `unload_dependents`, also what an ensemble is composed of and no other model needs. Raises
    TritonModelException likewise.
    """
    body = {"name": checked_text("model_name", model_name), "unload_dependents": bool(unload_dependents)}
    _ask(UNLOAD, body, "Failed to unload model: ")


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model serves and its own readiness check agrees.

    Version "" is the version that answers for the model. Raises TritonModelException for a model or version
    that the server does not know, or that has not been loaded.
    """
    body = {
        "name": checked_text("model_name", model_name),
        "version": checked_text("model_version", model_version),
    }
    return bool(_ask(READY, body, "Failed to check model readiness: ")["ready"])


def _checked_files(model_name: str, files: Any) -> dict[str, bytes]:
    if files is None:
        return {}
    if not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    for path, content in files.items():
        if not isinstance(path, str) or not isinstance(content, (bytes, bytearray, memoryview)):
            raise TritonModelException(
                f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents:"
                f" got {type(path).__name__} to {type(content).__name__}, which should be str to bytes"
            )
    return {checked_text("a file's path", path): bytes(content) for path, content in files.items()}


def _ask(
    subject: str, body: Mapping[str, Any], failed: str, attachments: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """Return the server's answer; `failed` stands before its refusals."""
    host = current_host()
    if host.phase in (COMPLETING, FINALIZING):
        raise TritonModelException(f"{failed}models can't be reached from {host.phase}")
    try:
        return host.calls.ask(subject, body, attachments)
    except CallFailed as error:
        raise TritonModelException(failed + host.failure(error.message)) from error
