"""Test models in pytest without a server; docs/testing_models.md tells how."""

from __future__ import annotations

from engine.testing.callees import Call, Callee
from engine.testing.completing import ModelNotLoaded
from engine.testing.model import LogLine, TestedModel, open_model
from engine.testing.requests import Answer, Fault, InferenceFailed, Request
from engine.testing.thread import ModelHung
from engine.worker.authoring.folder import NotAModelFile

__all__ = [
    "Answer",
    "Call",
    "Callee",
    "Fault",
    "InferenceFailed",
    "LogLine",
    "ModelHung",
    "ModelNotLoaded",
    "NotAModelFile",
    "Request",
    "TestedModel",
    "open_model",
]
