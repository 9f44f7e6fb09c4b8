"""The parts of the v2 API that an operator can put behind a secret header, one at a time, on every wire."""

from __future__ import annotations

from enum import Enum


class Category(Enum):
    """What `--http-restricted-api` and `--grpc-restricted-protocol` name.

    Contract: http.md section 2.1 and grpc.md section 3.
    """

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"
