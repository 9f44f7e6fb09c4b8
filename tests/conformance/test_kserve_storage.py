"""What lies in /mnt/models: KServe's storage initialiser, its puller for many models, its cache of models."""

import json
import shutil
import urllib.error
import urllib.request

import pytest

from tests.support.kserve_runtime import arguments, container
from tests.support.operators import DOUBLE_CONFIG, serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]

EXPLICIT = "--model-control-mode=explicit"
"""What KServe appends where an InferenceService has no storage URI."""
SUCCESS = "SUCCESS.9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def ask(server, path, body=None):
    """Ask as KServe's agent does: `{}`, of type JSON."""
    request = urllib.request.Request(
        f"http://{server.address()}{path}",
        data=None if body is None else body.encode(),
        headers={} if body is None else {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def doubled(server, model):
    """Return what a model makes of 1, 2."""
    asked = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}]}
    status, body = ask(server, f"/v2/models/{model}/infer", json.dumps(asked))
    assert status == 200, body
    return json.loads(body)["outputs"][0]["data"]


@pytest.fixture
def mounted(tmp_path):
    """`/mnt/models`."""
    folder = tmp_path / "mnt/models"
    folder.mkdir(parents=True)
    return folder


def test_a_repository_that_was_copied_there_is_served_and_the_probes_say_so(tmp_path, mounted):
    write_model(mounted)
    write_model(mounted, "broken", code="raise RuntimeError('no weights')\n")
    probes = {name: container()[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe")}
    with serving(tmp_path / "server", *arguments(mounted), "--exit-on-error=false") as server:
        server.wait_ready()
        assert doubled(server, "double") == [2.0, 4.0]
        # Its port is open, and it lives. It is not ready.
        assert server.get(probes["startupProbe"])[0] == 200
        assert server.get(probes["readinessProbe"])[0] == 400


@pytest.mark.parametrize("marker", ["", SUCCESS])
def test_one_model_without_its_folder_is_told_with_what_would_work(tmp_path, mounted, marker):
    write_model(tmp_path)
    for each in (tmp_path / "double").iterdir():
        shutil.move(each, mounted)
    if marker:
        (mounted / marker).touch()
    with serving(tmp_path / "server", *arguments(mounted)) as server:
        assert server.wait() == 1
    assert f"'{mounted}' is the directory of one model, 'models'" in server.err
    assert "it holds '1', 'config.pbtxt'." in server.err
    assert f"into a folder with the model's name, such as '{mounted}/my_model'" in server.err


def test_the_puller_loads_and_unloads_what_it_has_brought(tmp_path, mounted):
    """A TrainedModel: the agent makes the folder, marks it by a file, and posts `{}`."""
    with serving(tmp_path / "server", *arguments(mounted), EXPLICIT) as server:
        server.wait_ready()
        assert server.get("/v2/health/ready")[0] == 200
        write_model(mounted)
        (mounted / "double" / SUCCESS).touch()
        assert ask(server, "/v2/repository/models/double/load", "{}")[0] == 200
        assert doubled(server, "double") == [2.0, 4.0]
        # It removes the files first.
        shutil.rmtree(mounted / "double")
        assert ask(server, "/v2/repository/models/double/unload", "{}")[0] == 200
        status, body = ask(server, "/v2/repository/models/double/load", "{}")
        assert status >= 400
        assert b"double" in body


def test_a_failed_load_of_the_puller_leaves_the_others_serving(tmp_path, mounted):
    with serving(tmp_path / "server", *arguments(mounted), EXPLICIT) as server:
        server.wait_ready()
        write_model(mounted)
        write_model(mounted, "broken", code="raise RuntimeError('no weights')\n")
        assert ask(server, "/v2/repository/models/double/load", "{}")[0] == 200
        status, body = ask(server, "/v2/repository/models/broken/load", "{}")
        assert status >= 400
        assert b"no weights" in body
        assert doubled(server, "double") == [2.0, 4.0]


def test_models_of_a_cache_are_found_where_links_lead(tmp_path, mounted):
    """LocalModelCache: a folder of 16 hex digits on a volume of the node."""
    cached = tmp_path / "volume/models/4a5f8e2c9b1d7f30"
    write_model(cached)
    (mounted / "linked").symlink_to(cached / "double")
    version = mounted / "versioned/1"
    version.parent.mkdir()
    version.symlink_to(cached / "double/1")
    (version.parent / "config.pbtxt").write_text(DOUBLE_CONFIG)
    with serving(tmp_path / "server", *arguments(mounted)) as server:
        server.wait_ready()
        assert doubled(server, "linked") == [2.0, 4.0]
        assert doubled(server, "versioned") == [2.0, 4.0]
