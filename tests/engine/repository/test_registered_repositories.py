"""Repositories that come and go while a server runs, and where a platform's models lie in them."""

import pytest

from actors.values.errors import AlreadyExists, InvalidArgument, Unsupported
from actors.values.specs import ModelKey
from engine.processes.backends import discover
from engine.repository.copies import Janitor
from engine.repository.fingerprint import Digests
from engine.repository.local import LocalSource
from engine.repository.reader import ReadOptions, RepositoryReader
from engine.repository.registry import Registry
from engine.repository.sagemaker import ModelFinder, ModelPlace, place_of
from tests.support.logged import Logged

ENSEMBLE = 'platform: "ensemble"\n'
CONFIG = """
name: "its own name"
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


class World:
    """A reader of two repositories, and a registry over it."""

    def __init__(self, folder, *, explicit=True, namespacing=False):
        self.folder = folder
        (folder / "first").mkdir()
        options = ReadOptions(
            backends=discover(), backend_settings={}, auto_complete=False, namespacing=namespacing
        )
        self.reader = RepositoryReader([LocalSource(folder / "first")], options, Janitor(Logged()), Digests())
        self.left: list[tuple[list[str], str]] = []
        self.registry = Registry(
            self.reader,
            LocalSource,
            lambda names, path: self.left.append((sorted(names), path)),
            explicit=explicit,
        )

    def write(self, *folders):
        for each in folders:
            (self.folder / each / "1").mkdir(parents=True)
            (self.folder / each / "1" / "model.py").write_text("")
            (self.folder / each / "config.pbtxt").write_text(CONFIG)

    async def names(self):
        return [key.name for key in (await self.reader.listing()).keys]

    async def read(self, name, namespace=""):
        return await self.reader.read(ModelKey(name, namespace), None, lambda phase, details: None)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


async def test_models_of_a_registered_repository_are_found_until_it_leaves(world):
    world.write("hash/model", "hash/other")
    path = str(world.folder / "hash")
    await world.registry.register(path, {"resnet": "model"})
    assert await world.names() == ["other", "resnet"]
    found = await world.read("resnet")
    assert found is not None
    assert found.readable, found.errors
    (spec,) = found.specs
    assert (spec.name, spec.model_directory) == ("resnet", world.folder / "hash" / "model")
    assert b'"name":"resnet"' in spec.config_json.replace(b" ", b"")
    world.registry.unregister(path)
    assert await world.names() == []
    assert await world.read("resnet") is None
    assert world.left == [(["resnet"], path)]
    await world.registry.register(path, {"again": "model"})
    assert await world.names() == ["again", "other"]


async def test_a_folder_that_is_called_like_another_model_gives_way(world):
    world.write("hash/model", "hash/resnet")
    await world.registry.register(str(world.folder / "hash"), {"resnet": "model"})
    assert await world.names() == ["resnet"]
    found = await world.read("resnet")
    assert found is not None
    assert found.specs[0].model_directory.name == "model"


async def test_a_folder_that_is_not_there_is_no_model(world):
    world.write("hash/other")
    await world.registry.register(str(world.folder / "hash"), {"resnet": "model"})
    assert await world.names() == ["other"]


async def test_names_of_folders_are_held_against_configurations_as_ever(world):
    world.write("hash/model", "hash/other")
    await world.registry.register(str(world.folder / "hash"), {"resnet": "model"})
    found = await world.read("other")
    assert found is not None
    assert "directory name must equal model name" in found.reason


async def test_with_namespaces_a_registered_repository_is_one(tmp_path):
    world = World(tmp_path, namespacing=True)
    world.write("hash/model")
    path = str(world.folder / "hash")
    await world.registry.register(path, {"resnet": "model"})
    found = await world.read("resnet", path)
    assert found is not None
    assert found.specs[0].namespace == path


async def test_a_name_that_another_repository_has_is_a_conflict(world):
    # Neither would be served: a load could take away a model that is not the platform's.
    world.write("first/resnet", "hash/model")
    with pytest.raises(AlreadyExists) as caught:
        await world.registry.register(str(world.folder / "hash"), {"resnet": "model"})
    assert caught.value.message == "failed to register 'resnet', there is a conflicting mapping for 'resnet'"
    assert await world.names() == ["resnet"]
    assert world.left == []


async def test_what_is_registered_once_is_a_conflict(world):
    world.write("a/model", "b/model")
    await world.registry.register(str(world.folder / "a"), {"resnet": "model"})
    for path, models, message in (
        ("a", {"x": "model"}, f"model repository '{world.folder / 'a'}' has already been registered"),
        ("first", {}, f"model repository '{world.folder / 'first'}' has already been registered"),
        (
            "b",
            {"resnet": "model"},
            "failed to register 'resnet', there is a conflicting mapping for 'resnet'",
        ),
    ):
        with pytest.raises(AlreadyExists) as caught:
            await world.registry.register(str(world.folder / path), models)
        assert caught.value.message == message
    assert await world.names() == ["resnet"]


async def test_what_is_no_directory_is_not_registered(world):
    with pytest.raises(InvalidArgument) as caught:
        await world.registry.register("/nowhere", {})
    assert caught.value.message == "failed to register '/nowhere', repository not found"


async def test_what_was_not_registered_does_not_leave(world):
    for path in ("/nowhere", str(world.folder / "first")):
        with pytest.raises(InvalidArgument) as caught:
            world.registry.unregister(path)
        assert caught.value.message == f"failed to unregister '{path}', repository not found"


async def test_repositories_come_in_explicit_mode_only(tmp_path):
    world = World(tmp_path, explicit=False)
    with pytest.raises(Unsupported) as caught:
        await world.registry.register(str(tmp_path), {})
    assert caught.value.message == (
        "repository registration is not allowed if model control mode is not EXPLICIT"
    )


# -- where SageMaker puts models


@pytest.mark.parametrize(
    ("configured", "folders", "place"),
    [
        (True, {"1": False}, ModelPlace("/opt/ml/models/h", "model")),
        (True, {}, ModelPlace("/opt/ml/models/h", "model")),
        (False, {"resnet": False}, ModelPlace("/opt/ml/models/h/model", "resnet")),
        (False, {"a": False, "e": True, "z": False}, ModelPlace("/opt/ml/models/h/model", "e")),
        (False, {"a": True, "e": True, "z": False}, ModelPlace("/opt/ml/models/h/model", "e")),
        (False, {"a": False, "z": False, "m": False}, ModelPlace("/opt/ml/models/h/model", "z")),
        (False, {}, ModelPlace("/opt/ml/models/h/model", "")),
    ],
)
def test_a_model_lies_in_its_folder_or_is_the_ensemble_among_several(configured, folders, place):
    assert place_of("/opt/ml/models/h/model", configured=configured, folders=folders) == place


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/opt/ml/models/0a.B_9/model", "/opt/ml/models/0a.B_9/model"),
        ("/opt/ml/models/h/model/", "/opt/ml/models/h/model"),
        ("/opt/ml/models/h//model/./sub", "/opt/ml/models/h/model/sub"),
        ("/opt/ml/models/x/../h/model", "/opt/ml/models/h/model"),
        ("/dev/shm", None),
        ("/dev", None),
        ("/proc/1/root/opt/ml/models/h/model", None),
        ("/sys/x", None),
        ("/tmp/../proc/1", None),
    ],
)
def test_a_url_is_a_path_below_the_platform_s_folder_or_one_of_the_system_s(url, path):
    assert ModelFinder().path_of(url) == path


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/",
        "/opt/ml/models",
        "/opt/ml/models/h",
        "/opt/ml/models/h/other",
        "/opt/ml/models/h/model/a/b",
        "/opt/ml/models/a b/model",
        "/opt/ml/models/h/model/../../../../etc",
        "/opt/ml/modelsh/model",
        "/opt/ml/models/h/model\0",
        "s3://bucket/model",
    ],
)
def test_a_url_of_another_form_is_refused(url):
    with pytest.raises(InvalidArgument) as caught:
        ModelFinder().path_of(url)
    assert caught.value.message == (
        f"Invalid \"url\" '{url}': expected a path of the form /opt/ml/models/<hash>/model[/<subdir>]"
    )


@pytest.mark.parametrize("folder", ["endpoint", "./endpoint/", "../{here}/endpoint"])
def test_a_relative_folder_counts_from_the_working_directory(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    finder = ModelFinder(folder.format(here=tmp_path.name))
    monkeypatch.chdir("/")  # of later it is not asked
    assert finder.path_of(f"{tmp_path}/endpoint/h/model") == f"{tmp_path}/endpoint/h/model"
    with pytest.raises(InvalidArgument, match=f"of the form {tmp_path}/endpoint/<hash>/model"):
        finder.path_of("endpoint/h/model")


@pytest.mark.parametrize(
    ("folder", "url"), [("/", "/h/model"), ("//srv", "/srv/h/model"), ("/srv/", "/srv/h/model")]
)
def test_slashes_at_the_ends_of_the_folder_do_not_count(folder, url):
    assert ModelFinder(folder).path_of(url) == url


async def test_a_model_is_found_on_the_disk(tmp_path):
    finder = ModelFinder(str(tmp_path))
    model = tmp_path / "h" / "model"
    for folder, config in (("one", "backend: 'x'"), ("whole", ENSEMBLE), ("zero", None)):
        (model / folder).mkdir(parents=True)
        if config is not None:
            (model / folder / "config.pbtxt").write_text(config)
    assert await finder.find(f"{model}") == ModelPlace(str(model), "whole")
    assert await finder.find(f"{model}/one") == ModelPlace(str(model), "one")
    (model / "config.pbtxt").touch()
    assert await finder.find(f"{model}") == ModelPlace(str(tmp_path / "h"), "model")
    assert await finder.find("/proc/1") is None
    with pytest.raises(InvalidArgument) as caught:
        await finder.find(f"{tmp_path}/other/model")
    assert caught.value.message == f"failed to register '{tmp_path}/other/model', repository not found"
