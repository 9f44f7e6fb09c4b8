"""Which C library runs a model, and what keeps it from that (contract: backends.md section 1.1)."""

import os
from textwrap import dedent

import pytest

from actors.values.errors import ErrorCode
from engine.config.load import load_model_config
from engine.processes.backends import discover
from engine.worker.compilers import c_compiler
from engine.worker.native import building
from engine.worker.native.building import CanNotBuild, build, find_or_build
from engine.worker.native.library import SHIM
from engine.worker.native.symbols import NotALibrary, read_symbols
from engine.worker.native.table import ENTRY_POINTS, functions, parse, shortcomings
from tests.support.native.compiling import library, shim

PORTS = """
name: "m"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
LIBRARY = "libtriton_mine.so"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def backends(tmp_path):
    """A backend directory with `mine` (a library, another one and a `model.py`) and `other` (any library)."""
    directory = tmp_path / "backends"
    for path in (
        "mine/libtriton_mine.so",
        "mine/second.so",
        "mine/model.py",
        "mine/libtriton_python.so",
        "other/else.so",
        "onnxruntime/own.so",
    ):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(b"")
    return directory


@pytest.fixture
def read(write_model, backends, monkeypatch):
    """Read a model's configuration; nothing is compiled, and the libraries are not asked to complete it."""
    monkeypatch.setattr(
        "engine.config.inspection.libraries.find_or_build",
        lambda cache, environ: f"{cache}/x/{building.NAME}",
    )

    def read(config, *files, **options):
        content = {"1/data": b"", **dict.fromkeys(files, b"")}
        directory = write_model("m", config, content)
        return load_model_config(
            directory, backends=discover(backends), auto_complete=False, **options
        ), directory

    return read


def spec_of(found):
    assert found.ok, found.problems
    [spec] = found.specs
    return spec


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ((), "backends/mine"),
        (("libtriton_mine.so",), "repository/m"),
        (("libtriton_mine.so", "1/libtriton_mine.so"), "repository/m/1"),
    ],
)
def test_the_nearest_library_is_taken(read, tmp_path, files, place):
    found, _ = read(f'backend: "mine"{PORTS}', *files)
    spec = spec_of(found)
    assert spec.artifact == str(tmp_path / place / LIBRARY)
    assert spec.target == "engine.worker.native.backend:NativeBackend"
    assert spec.settings[SHIM].endswith(f"/{building.NAME}")
    assert spec.linked == ((tmp_path / "cache" / "tritium" / "shim" / "x"),)


@pytest.mark.parametrize(
    ("backend", "runtime", "artifact"),
    [
        ("mine", "second.so", "backends/mine/second.so"),
        ("other", "else.so", "backends/other/else.so"),
        ("onnxruntime", "own.so", "backends/onnxruntime/own.so"),
        ("nobodys", "beside.so", "repository/m/beside.so"),
    ],
)
def test_runtime_names_another_file(read, tmp_path, backend, runtime, artifact):
    platform = 'platform: "onnxruntime_onnx"\n' if backend == "onnxruntime" else ""
    found, _ = read(f'backend: "{backend}"\n{platform}runtime: "{runtime}"{PORTS}', "beside.so")
    assert spec_of(found).artifact == str(tmp_path / artifact)


def test_runtime_may_ask_for_python_where_there_is_a_library(read, tmp_path, backends):
    found, _ = read(f'backend: "mine"\nruntime: "model.py"{PORTS}')
    spec = spec_of(found)
    assert spec.artifact == str(backends / "mine" / "model.py")
    assert spec.target == discover()["python"].target


def test_an_installed_backend_goes_before_a_library_of_its_name(read):
    found, directory = read(
        'backend: "onnxruntime"\nplatform: "onnxruntime_onnx"' + PORTS, "libtriton_onnxruntime.so"
    )
    assert spec_of(found).artifact == "model.onnx"
    assert directory.is_dir()


@pytest.mark.parametrize(
    ("config", "code", "said"),
    [
        (
            'backend: "mine"\nruntime: "third.so"',
            ErrorCode.INVALID_ARG,
            "unable to find backend library 'third.so' for model 'm', searched:",
        ),
        (
            'backend: "other"',
            ErrorCode.INVALID_ARG,
            "unable to find backend library 'libtriton_other.so' for model 'm'",
        ),
        (
            'backend: "other"\nruntime: "model.py"',
            ErrorCode.INVALID_ARG,
            "library 'model.py' for model 'm', searched:",
        ),
        (
            'backend: "mine"\nruntime: "libtriton_python.so"',
            ErrorCode.UNSUPPORTED,
            "library of Triton's python backend",
        ),
        ('backend: "mine"\nruntime: "../mine.so"', ErrorCode.INVALID_ARG, "escapes backend directory"),
        (
            'backend: "mine"\ninstance_group [ { kind: KIND_GPU } ]',
            ErrorCode.UNSUPPORTED,
            "no instances on a GPU",
        ),
        (
            'backend: "mine"\nparameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "s" } }',
            ErrorCode.UNSUPPORTED,
            "has a batching library",
        ),
        (
            'backend: "mine"\nparameters { key: "tritium.isolation" value { string_value: "thread" } }',
            ErrorCode.INVALID_ARG,
            "whose crash would be the server's",
        ),
    ],
)
def test_what_is_not_served_is_refused_by_name(read, config, code, said):
    found, _ = read(config + PORTS)
    assert [problem.code for problem in found.errors if said in problem.message] == [code]


def test_a_batching_library_beside_the_model_is_refused(read):
    found, _ = read(f'backend: "mine"{PORTS}', "batchstrategy.so")
    assert "batchstrategy.so" in found.reason


def test_a_link_out_of_the_repository_is_refused(read, write_model, backends, tmp_path):
    from engine.models.links import Links

    directory = write_model("m", f'backend: "linked"{PORTS}', {"1/data": b""})
    (directory / "libtriton_linked.so").symlink_to(backends / "mine" / LIBRARY)
    found = load_model_config(directory, backends=discover(backends), auto_complete=False, links=Links.INSIDE)
    assert "a link out of the model repository" in found.reason


def test_gpus_are_left_to_others(read):
    found, _ = read(f'backend: "mine"{PORTS}', gpus=2)
    assert [instance.kind for instance in spec_of(found).instances] == ["CPU"]


# -- the shim itself


def test_without_a_compiler_the_reason_says_what_to_install(write_model, backends, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(building, "prebuilt", lambda: "")
    directory = write_model("m", f'backend: "mine"{PORTS}', {"1/data": b""})
    found = load_model_config(directory, backends=discover(backends))
    assert found.reason.startswith(
        "Unavailable: model 'm' needs what connects C libraries to this server, and no C"
    )
    assert "install gcc" in found.reason


def test_a_compiler_that_is_named_and_not_there_is_told(tmp_path):
    with pytest.raises(CanNotBuild, match="no C compiler 'nonesuch', which CC names"):
        build(str(tmp_path / "x" / building.NAME), {"PATH": os.environ["PATH"], "CC": "nonesuch"})


def test_what_a_compiler_says_is_told_and_nothing_is_left(tmp_path):
    if not c_compiler(os.environ):
        pytest.skip("there is no C compiler here (cc, gcc or clang)")
    with pytest.raises(CanNotBuild, match="failed with status 1"):
        build(str(tmp_path / building.NAME), os.environ, ("--no-such-flag",))
    assert not list(tmp_path.glob("lib*"))


def test_it_is_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "prebuilt", lambda: "")
    shim()  # or this is skipped
    first = find_or_build(str(tmp_path / "own"), os.environ)
    before = os.stat(first).st_ino
    assert find_or_build(str(tmp_path / "own"), {}) == first
    assert os.stat(first).st_ino == before
    assert building.digest(flags=("-O0",)) != building.digest()


def test_the_shim_has_every_function_of_the_table_and_no_entry_point():
    exported = read_symbols(shim()).exported
    table = functions()
    assert {name for name in exported if name.startswith("TRITON")} == set(table)
    assert not exported & set(ENTRY_POINTS)
    assert len(table) == 263


def test_a_library_tells_what_it_imports_without_being_loaded():
    symbols = read_symbols(str(library()))
    assert "TRITONBACKEND_ModelInstanceExecute" in symbols.exported
    missing, refused = shortcomings({*symbols.imported, "TRITONBACKEND_FromTheFuture", "malloc"}, functions())
    assert missing == ["TRITONBACKEND_FromTheFuture"]
    assert refused == ["TRITONSERVER_ServerInferAsync"]


def test_the_table_is_read_line_by_line():
    text = dedent("""
        /* PROVIDED(TRITONBACKEND_InAComment) */
        PROVIDED(TRITONBACKEND_One)
        ACCEPTED(TRITONBACKEND_Two)
        REFUSED(TRITONSERVER_Three)
    """)
    assert parse(text) == {
        "TRITONBACKEND_One": "provided",
        "TRITONBACKEND_Two": "accepted",
        "TRITONSERVER_Three": "refused",
    }


def test_a_damaged_library_is_told_wherever_it_is_cut(tmp_path):
    whole = library().read_bytes()
    path = tmp_path / "cut.so"
    for size in (0, 3, 63, 64, 1000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(NotALibrary):
            read_symbols(str(path))
    path.write_bytes(whole)
    with pytest.raises(NotALibrary, match="not for this machine"):
        read_symbols(str(path), "aarch64" if os.uname().machine != "aarch64" else "x86_64")


def test_no_byte_of_a_library_can_make_its_reading_fail_otherwise(tmp_path):
    whole = bytearray(library().read_bytes())
    path = tmp_path / "spoilt.so"
    header = [*range(64), *range(len(whole) - 64 * 40, len(whole), 29)]
    for at in header:
        spoilt = bytearray(whole)
        spoilt[at] ^= 0xFF
        path.write_bytes(spoilt)
        try:
            read_symbols(str(path))
        except NotALibrary:
            continue
