"""Model files made on the fly."""

from textwrap import dedent

import pytest

HEAD = """\
from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils

import tritium
from tritium import BF16, BOOL, BYTES, FP32, INT32, INT64, Array, RequestError
"""


@pytest.fixture
def model_file(tmp_path):
    """Write the source of a model into a file of its own, under the imports above; return the file."""

    def write(source, name="my_model.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(HEAD + dedent(source))
        return file

    return write
