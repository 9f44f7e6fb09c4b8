"""A model repository in a temporary directory, and the backends that its models may name."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from engine.config.load import load_model_config
from engine.config.loaded import LoadedConfig
from engine.processes.backends import BackendTraits


@pytest.fixture
def backends() -> Mapping[str, BackendTraits]:
    known = (
        BackendTraits(name="onnxruntime", default_artifact="model.onnx", platforms=("onnxruntime_onnx",)),
        BackendTraits(
            name="pytorch", default_artifact="model.pt", platforms=("pytorch_libtorch", "torch_aoti")
        ),
        BackendTraits(name="openvino", default_artifact="model.xml"),
        BackendTraits(name="python", pure=False, concurrent=False, default_artifact="model.py"),
        BackendTraits(name="mine", default_artifact="model.mine", platforms=("my_platform",)),
        BackendTraits(name="broken", unavailable="ImportError: no libmagic"),
    )
    return {traits.name: traits for traits in known}


@pytest.fixture
def write_model(tmp_path) -> Callable[..., Path]:
    """Write a model directory; `files` maps relative paths to content."""

    def write(
        name: str = "m", config: str | None = None, files: Mapping[str, bytes | str] | None = None
    ) -> Path:
        directory = tmp_path / "repository" / name
        directory.mkdir(parents=True)
        contents: dict[str, bytes | str] = {"1/model.onnx": b""} if files is None else dict(files)
        if config is not None:
            contents["config.pbtxt"] = config
        for path, content in contents.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        return directory

    return write


@pytest.fixture
def load(write_model, backends) -> Callable[..., LoadedConfig]:
    """Write a model called `m` and load its configuration."""

    def write_and_load(
        config: str | None, *, files: Mapping[str, bytes | str] | None = None, name: str = "m", **options
    ) -> LoadedConfig:
        return load_model_config(write_model(name, config, files), backends=backends, **options)

    return write_and_load


@pytest.fixture
def errors_of() -> Callable[[LoadedConfig], list[tuple[tuple[int, int], str, str, str]]]:
    """Return every error of a configuration as its place, key, message and hint."""

    def listed(loaded: LoadedConfig) -> list[tuple[tuple[int, int], str, str, str]]:
        return [((error.line, error.column), error.key, error.message, error.hint) for error in loaded.errors]

    return listed
