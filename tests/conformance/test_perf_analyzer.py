"""Triton's perf_analyzer, unmodified, with its tensors in system shared memory."""

import json
import os
import shutil
import subprocess
import urllib.request

import pytest

from actors.regions.use import AT_ONCE
from tests.support.flavours import write_common_models
from tests.support.shared_memory import serving as serving_models
from tests.support.tiers import mostly_long

REQUESTS = 40
LONG = 4 * AT_ONCE  # bytes of a tensor that a worker reads and writes


@pytest.fixture(scope="module")
def program():
    """The path of a perf_analyzer that starts."""
    named = os.environ.get("PERF_ANALYZER")
    found = named or shutil.which("perf_analyzer")
    if found is None:
        pytest.skip("there is no perf_analyzer here: install it (PyPI: perf-analyzer), or set PERF_ANALYZER")
    asked = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60, check=False)
    if asked.returncode and named is None:
        pytest.skip(f"perf_analyzer does not start here: {asked.stderr.strip()}")
    assert asked.returncode == 0, asked.stderr
    return found


@pytest.fixture(scope="module")
def serving(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_common_models(folder)
    with serving_models(folder, tmp_path_factory.mktemp("said") / "said") as made:
        yield made


def counted(serving, model):
    """Return what was counted so far: of regions, and of a model's requests."""
    names = ("reads_total", "writes_total", "read_bytes_total", "written_bytes_total")
    told = [serving.metrics(f"tritium_shared_memory_{name}")[""] for name in names]
    url = f"http://{serving.addresses.http}/v2/models/{model}/stats"
    with urllib.request.urlopen(url, timeout=10) as answer:
        (stats,) = json.load(answer)["model_stats"]
    return [*told, stats["inference_stats"]["success"]["count"]], stats["inference_stats"]["fail"]["count"]


@pytest.mark.parametrize("protocol", mostly_long(["http", "grpc"], "grpc"))
@pytest.mark.parametrize(
    ("model", "more", "tensors", "nbytes"),
    [
        ("add", [], 2, 64),
        ("scores", [f"--shape=X:{LONG // 4}", f"--output-shared-memory-size={LONG}"], 1, LONG),
    ],
)
def test_perf_analyzer_has_inputs_and_outputs_in_regions(
    program, serving, protocol, model, more, tensors, nbytes
):
    before, _ = counted(serving, model)
    done = subprocess.run(
        [
            *(program, "-m", model, "-i", protocol, "-u", getattr(serving.addresses, protocol)),
            *("--shared-memory=system", f"--request-count={REQUESTS}", "--concurrency-range=2:2", *more),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"Request count: {REQUESTS}" in done.stdout
    assert "error" not in done.stdout.lower()
    after, failed = counted(serving, model)
    each = REQUESTS * tensors
    grown = [now - then for now, then in zip(after, before, strict=True)]
    assert (grown, failed) == ([each, each, each * nbytes, each * nbytes, REQUESTS], 0)
    assert set(serving.metrics("tritium_shared_memory_failures_total").values()) == {0}
    assert serving.tree() == {"registered": 0}
