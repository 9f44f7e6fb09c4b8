"""Test models in pytest without a server; docs/testing_models.md tells how."""

from __future__ import annotations

from engine.worker.authoring.folder import NotAModelFile
from engine.worker.authoring.harness.callees import Call, Callee
from engine.worker.authoring.harness.completing import ModelNotLoaded
from engine.worker.authoring.harness.model import LogLine, TestedModel, open_model
from engine.worker.authoring.harness.requests import Answer, Fault, InferenceFailed, Request
from engine.worker.authoring.harness.thread import ModelHung

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
