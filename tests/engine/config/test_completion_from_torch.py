"""PyTorch's files without torch: certain fields are filled in; for the rest the error says what to write."""

import json
import re
import zipfile
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import engine.worker.backends.testing as local
from actors.values.datatypes import BY_NUMBER, DataType
from engine.config.inspection.torch_file import Sketch, read_torch
from engine.config.inspection.torch_pickles import main_class, traced_inputs
from engine.config.inspection.wire import Ports, Unreadable
from engine.config.load import load_model_config
from engine.worker.backends.base import TensorInfo
from protocols.kserve.proto.model_config_pb2 import ModelConfig
from tests.support.examples import examples

# -- archives made by torch


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A program, a scripted and a traced module, and one of text; importing torch takes most of the time."""
    torch: Any = pytest.importorskip("torch")
    directory = tmp_path_factory.mktemp("torch")

    class Program(torch.nn.Module):
        def forward(self, x, mask, *, extra):
            return {"sum": x + extra, "rest": [mask.sum(1), x.to(torch.int64)]}

    class Scripted(torch.nn.Module):
        def forward(self, x, flag: torch.Tensor):
            return x + flag, x

    class Text(torch.nn.Module):
        def forward(self, words: list[str]) -> list[str]:
            return words

    batch = torch.export.Dim("batch", min=1, max=64)
    x, mask = torch.ones(2, 4), torch.ones(2, 3, dtype=torch.bool)
    program = torch.export.export(
        Program(),
        (x, mask),
        {"extra": x},
        dynamic_shapes={"x": {0: batch}, "mask": {0: batch}, "extra": {0: batch}},
    )
    torch.export.save(program, directory / "program.pt2")
    torch.jit.save(torch.jit.script(Scripted()), directory / "scripted.pt")
    torch.jit.save(torch.jit.trace(Scripted(), (x, x.to(torch.float64))), directory / "traced.pt")
    torch.jit.save(torch.jit.script(Text()), directory / "text.pt")
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def sides(config):
    return [[(t.name, t.data_type, list(t.dims)) for t in side] for side in (config.input, config.output)]


@pytest.mark.slow
def test_an_exported_program_is_complete(load, made):
    loaded = load(None, files={"1/model.pt2": made["program.pt2"]})
    assert loaded.ok
    config = loaded.configs[0].config
    assert (config.platform, config.max_batch_size) == ("torch_aoti", 0)
    assert sides(config) == [
        [("INPUT__0", 11, [-1, 4]), ("INPUT__1", 1, [-1, 3]), ("INPUT__2", 11, [-1, 4])],
        [("OUTPUT__0", 11, [-1, 4]), ("OUTPUT__1", 9, [-1]), ("OUTPUT__2", 9, [-1, 4])],
    ]
    assert loaded.origins["input[0].dims"] == "model file (pt2)"


@pytest.mark.slow
def test_batching_that_is_configured_takes_the_shared_symbol_off(load, made):
    loaded = load("max_batch_size: 8", files={"1/model.pt2": made["program.pt2"]})
    assert sides(loaded.configs[0].config) == [
        [("INPUT__0", 11, [4]), ("INPUT__1", 1, [3]), ("INPUT__2", 11, [4])],
        [("OUTPUT__0", 11, [4]), ("OUTPUT__1", 9, [1]), ("OUTPUT__2", 9, [4])],
    ]
    assert loaded.configs[0].config.output[1].HasField("reshape")
    assert loaded.configs[0].config.WhichOneof("scheduling_choice") is None


@pytest.mark.slow
def test_what_was_filled_in_is_what_the_backend_takes(load, made):
    from engine.worker.backends.pytorch import PyTorchBackend

    (spec,) = load("max_batch_size: 8", files={"1/model.pt2": made["program.pt2"]}).specs
    info = local.model_info(
        spec.version_directory,
        artifact=spec.artifact,
        max_batch_size=8,
        inputs=[TensorInfo(t.name, t.datatype, t.dims, reshape=t.reshape) for t in spec.inputs],
        outputs=[TensorInfo(t.name, t.datatype, t.dims, reshape=t.reshape) for t in spec.outputs],
    )
    backend = PyTorchBackend()
    backend.load(info)
    x = np.arange(8, dtype="f4").reshape(2, 4)
    request = local.LocalRequest({"INPUT__0": x, "INPUT__1": x[:, :3] > 2, "INPUT__2": x})
    [answer] = local.run(backend, info, [request])
    assert answer.message == ""
    assert answer.outputs["OUTPUT__0"].tolist() == (x + x).tolist()
    assert answer.outputs["OUTPUT__1"].ravel().tolist() == [0, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "inputs"),
    [
        ("scripted.pt", 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "flag" data_type: TYPE_FP32 dims: [ -1 ] } ]'),
        ("traced.pt", 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 2, 4 ] }, { name: "flag" data_type: TYPE_FP64 dims: [ 2, 4 ] } ]'),
    ],
)  # fmt: skip
def test_torchscript_tells_its_arguments_and_what_to_write(load, made, file, inputs):
    loaded = load(None, files={"1/model.pt": made[file]})
    (error,) = loaded.errors
    assert error.message == (
        "model 'm' has no 'input' and 'output' in its configuration, and 'model.pt' does not tell them: it is a"
        " TorchScript file, whose forward takes 'x' (Tensor), 'flag' (Tensor) and returns Tuple[Tensor, Tensor]"
    )
    assert error.path == loaded.path.parent / "1/model.pt"
    _, first, second = error.hint.split("\n")
    assert first == inputs
    assert second == (
        'output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "OUTPUT__1" data_type: TYPE_FP32'
        " dims: [ -1 ] } ]"
    )
    pasted = load(f"{first}\n{second}", files={"1/model.pt": made[file]}, name="pasted")
    assert pasted.ok, pasted.problems


@pytest.mark.slow
def test_text_to_text_is_complete(load, made):
    loaded = load(None, files={"1/model.pt": made["text.pt"]})
    assert sides(loaded.configs[0].config) == [[("words", 13, [-1])], [("OUTPUT__0", 13, [-1])]]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["program.pt2", "traced.pt"])
def test_no_mutation_of_an_archive_raises(tmp_path, backends, made, file):
    whole = made[file]

    @settings(
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        deadline=None,
        max_examples=examples(150),
    )
    @given(
        edits=st.lists(
            st.tuples(st.integers(0, len(whole) - 1), st.binary(max_size=8)), min_size=1, max_size=8
        ),
        cut=st.integers(0, len(whole) // 4),
    )
    def mutate(edits, cut):
        mutated = bytearray(whole)
        for at, piece in edits:
            mutated[at : at + len(piece)] = piece
        if cut % 3 == 0:
            del mutated[len(mutated) - cut :]
        directory = tmp_path / "m"
        (directory / "1").mkdir(parents=True, exist_ok=True)
        (directory / f"1/model.{file.partition('.')[2]}").write_bytes(mutated)
        loaded = load_model_config(directory, backends=backends)
        assert bool(loaded.specs) == loaded.ok

    mutate()


# -- archives made by hand: what is certain and what is not


def spec_of(*leaves, keywords=()):
    leaf: dict[str, object] = {"type": None, "context": None, "children_spec": []}
    positional = [leaf] * (len(leaves) - len(keywords))
    return json.dumps(
        [1, {"type": "builtins.tuple", "context": "null", "children_spec": [
            {"type": "builtins.tuple", "context": "null", "children_spec": positional},
            {"type": "builtins.dict", "context": json.dumps(list(keywords)), "children_spec": [leaf] * len(keywords)},
        ]}]
    )  # fmt: skip


def results_of(*children, kind="builtins.tuple"):
    leaf: dict[str, object] = {"type": None, "context": None, "children_spec": []}
    return json.dumps(
        [
            1,
            {
                "type": kind,
                "context": "null",
                "children_spec": [leaf if child is None else child for child in children],
            },
        ]
    )


def tensor(*sizes, dtype=7):
    return {
        "dtype": dtype,
        "sizes": [
            {"as_int": size} if isinstance(size, int) else {"as_expr": {"expr_str": size}} for size in sizes
        ],
    }


def program(inputs, outputs, *, in_spec=None, out_spec=None):
    """An exported program's JSON; an input or output that is no tensor is given as its argument."""
    tensors = {}

    def argument(name, value):
        if "sizes" not in value:
            return value
        tensors[name] = value
        return {"as_tensor": {"name": name}}

    given = [{"user_input": {"arg": argument(f"i{at}", value)}} for at, value in enumerate(inputs)]
    returned = [{"user_output": {"arg": argument(f"o{at}", value)}} for at, value in enumerate(outputs)]
    call = {
        "in_spec": in_spec or spec_of(*inputs),
        "out_spec": out_spec or results_of(*[None] * len(outputs)),
    }
    return {
        "graph_module": {
            "graph": {"tensor_values": tensors},
            "signature": {
                "input_specs": [{"parameter": {"arg": {"name": "w"}, "parameter_name": "w"}}, *given],
                "output_specs": [{"buffer_mutation": {}}, *returned],
            },
            "module_call_graph": [{"fqn": "inner", "signature": None}, {"fqn": "", "signature": call}],
        }
    }


@pytest.fixture
def archive(tmp_path):
    def write(members, name="model.pt2", compression=zipfile.ZIP_STORED):
        path = tmp_path / name
        with zipfile.ZipFile(path, "w", compression) as file:
            for member, content in members.items():
                file.writestr(member, content if isinstance(content, bytes | str) else json.dumps(content))
        return path

    return write


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_that_python_would_unpack_whole_are_refused(archive, method):
    path = archive({"m/models/model.json": bytes(1 << 20)}, compression=method)
    with pytest.raises(Unreadable, match=f"is compressed by method {method}, which torch never uses"):
        read_torch(path)


@pytest.fixture
def ports(archive):
    def read(*args, **options):
        return read_torch(archive({"m/models/model.json": program(*args, **options)}))

    return read


@pytest.mark.parametrize("datatype", [d for d in DataType if d is not DataType.BYTES])
def test_scalar_types_are_known_by_torch_s_numbers(ports, datatype):
    numbers = dict(
        zip(["UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"], range(1, 9), strict=True)
    )
    numbers |= {"BOOL": 12, "BF16": 13, "UINT16": 28, "UINT32": 34, "UINT64": 35}
    found = ports([tensor(2, dtype=numbers[str(datatype)])], [tensor(3)])
    assert found.inputs[0].datatype is datatype


def test_the_older_place_of_the_program_is_known(archive):
    path = archive({"serialized_exported_program.json": program([tensor("s0", 2)], [tensor("s0")])})
    assert isinstance(read_torch(path), Ports)


def test_a_package_with_its_program_is_complete(archive):
    members = {
        "m/data/aotinductor/model/a.wrapper.so": b"\x7fELF",
        "m/models/model.json": program([tensor("s0", 2)], [tensor("s0")]),
        "m/models/other.json": program([tensor(1)], [tensor(1)]),
    }
    assert read_torch(archive(members)).inputs[0].shape == (-1, 2)


def test_results_that_are_no_tensors_keep_their_place(ports):
    found = ports([tensor(1)], [{"as_none": True}, tensor(2), {"as_int": 4}, tensor(3)])
    assert [port.name for port in found.outputs] == ["OUTPUT__1", "OUTPUT__3"]


@pytest.mark.parametrize(
    ("leading", "ok"),
    [
        (("s0", "s0"), True),
        (("s0", "s1"), False),
        (("s0", 2), False),
        ((2, 2), False),
        (("2*s0", "s0"), False),
    ],
)
def test_only_one_symbol_in_front_of_everything_is_a_batch_dimension(load, archive, leading, ok):
    path = archive({"m/models/model.json": program([tensor(leading[0], 2)], [tensor(leading[1])])})
    loaded = load("max_batch_size: 2", files={"1/model.pt2": path.read_bytes()})
    assert loaded.ok is ok
    if not ok:
        assert "model does not support batching while non-zero max_batch_size" in loaded.reason


def test_complex_numbers_are_told_with_the_contract_s_text(load, archive):
    path = archive({"m/models/model.json": program([tensor(2, dtype=10)], [tensor(2)])})
    loaded = load(None, files={"1/model.pt2": path.read_bytes()})
    assert loaded.reason.endswith("unsupported datatype TYPE_INVALID for input 'INPUT__0' for model 'm'")
    assert "complex64" in loaded.errors[0].hint


NESTED = json.loads(results_of(None, None))[1]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (([tensor()], [tensor(1)]), "argument 0 of its forward is a scalar"),
        (([tensor(1)], [{"as_int": 1}]), "it returns no tensor"),
        (([{"as_int": 3}], [tensor(1)]), "'INPUT__0' is of type int, and only tensors can be sent"),
        (([tensor(1), tensor(1)], [tensor(1)], {"in_spec": spec_of(1)}), "its arguments can't be told apart"),
        (([tensor(1)], [tensor(1)], {"out_spec": results_of(None, None)}), "its results can't be told apart"),
        (([tensor(1)], [tensor(1)], {"out_spec": results_of(None, kind="mine.Output")}), "it returns a mine.Output"),
        (([tensor(1)], [tensor(1)], {"out_spec": "[]"}), "is no exported program as torch writes them"),
        (([tensor(1)], [tensor(1)], {"in_spec": "{"}), "is no exported program as torch writes them"),
    ],
)  # fmt: skip
def test_what_is_not_certain_is_not_filled_in(ports, arguments, what):
    inputs, outputs, options = (*arguments, {})[:3]
    with pytest.raises(Unreadable, match=re.escape(what)):
        ports(inputs, outputs, **options)


def test_results_in_containers_are_counted_depth_first(ports):
    found = ports([tensor(1)], [tensor(1), tensor(2), tensor(3)], out_spec=results_of(NESTED, None))
    assert [(port.name, port.shape) for port in found.outputs] == [
        ("OUTPUT__0", (1,)),
        ("OUTPUT__1", (2,)),
        ("OUTPUT__2", (3,)),
    ]


WRAPPER = r"""
    in_spec_ = R"(IN)";
    out_spec_ = R"(OUT)";
        ss << "input_handles[0]: unmatched dtype, "
           << "expected: " << a_expected_dtype << "(at::kHalf), "
        ss << "input_handles[0]: dim value is too small at 0, "
        ss << "input_handles[0]: unmatched dim value at 1, "
           << "expected: 4, " << "but got: " << a_size[1]
        ss << "input_handles[1]: unmatched dtype, "
           << "expected: " << b_expected_dtype << "(at::kLong), "
"""


def test_a_package_without_its_program_is_sketched_from_its_checks(load, archive):
    code = WRAPPER.replace("IN", spec_of(1, 2, keywords=["scale"])).replace("OUT", results_of(None, NESTED))
    path = archive(
        {"m/data/aotinductor/model/x.wrapper.cpp": code, "m/data/aotinductor/model/x.so": b"\x7fELF"}
    )
    (error,) = load(None, files={"1/model.pt2": path.read_bytes()}).errors
    assert error.message.endswith(
        "it is an AOTInductor package, which takes argument 0, 'scale' and returns 3 tensors"
    )
    _, inputs, outputs = error.hint.split("\n")
    assert inputs == (
        'input [ { name: "INPUT__0" data_type: TYPE_FP16 dims: [ -1, 4 ] },'
        ' { name: "INPUT__1" data_type: TYPE_INT64 dims: [ -1 ] } ]'
    )
    assert [t.name for t in text_format.Parse(outputs, ModelConfig()).output] == [
        "OUTPUT__0",
        "OUTPUT__1",
        "OUTPUT__2",
    ]


@pytest.mark.parametrize("code", ["", ' in_spec_ = R"(', ' in_spec_ = R"(1)" out_spec_ = R"(2)"'])
def test_a_package_whose_code_says_nothing_is_told_without_guesses(archive, code):
    path = archive({"m/data/aotinductor/model/x.cpp": code})
    if "1" in code:
        with pytest.raises(Unreadable, match="of no form that is known here"):
            read_torch(path)
    else:
        assert isinstance(read_torch(path), Sketch)


# -- hostile archives


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"m/readme": b""}, "it is neither TorchScript, nor a torch.export program, nor an AOTInductor package"),
        ({"m/models/a.json": "{}", "m/models/b.json": "{}"}, "it holds several programs"),
        ({"m/models/model.json": "[" * 100_000}, "is no exported program as torch writes them"),
        ({"m/models/model.json": b"\xff\xfe"}, "is no exported program as torch writes them"),
        ({"m/models/model.json": "{}"}, "is no exported program as torch writes them"),
        ({"m/code/__torch__.py": ""}, "it holds TorchScript code and no module"),
        ({"m/code/__torch__.py": "", "m/data.pkl": b"."}, "its data.pkl begins with no module"),
        ({"m/code/__torch__.py": "", "m/data.pkl": b"\xff"}, "its data.pkl is damaged"),
        ({"m/code/x.py": "", "m/data.pkl": b"\x80\x02c__torch__\nM\n."}, "whose code is not in it"),
        ({"m/code/__torch__.py": "class N(M):\n", "m/data.pkl": b"\x80\x02c__torch__\nM\n."}, "it holds no class M"),
        ({"m/code/__torch__.py": "class M(Module):\n", "m/data.pkl": b"\x80\x02c__torch__\nM\n."}, "class M has no forward"),
        ({"m/code/__torch__.py": "class M(Module):\n  def forward(self: M,", "m/data.pkl": b"\x80\x02c__torch__\nM\n."},
         "its code ends within the arguments of forward"),
        ({"m/code/__torch__.py": "class M(Module):\n  def forward(self: M):\n", "m/data.pkl": b"\x80\x02c__torch__\nM\n."},
         "forward of class M is of no form that is known here"),
    ],
)  # fmt: skip
def test_an_archive_of_nothing_known_is_told_in_words(archive, members, what):
    with pytest.raises(Unreadable, match=re.escape(what)):
        read_torch(archive(members))


def test_a_member_that_unpacks_to_more_than_is_read_is_refused(archive):
    path = archive({"m/models/model.json": b" " * (33 * 1024 * 1024)}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(Unreadable, match="is larger than 33554432 bytes"):
        read_torch(path)


def test_a_list_of_members_that_claims_gigabytes_is_refused(tmp_path):
    path = tmp_path / "model.pt2"
    end = (
        b"PK\x05\x06" + bytes(4) + b"\x01\x00\x01\x00" + (1 << 30).to_bytes(4, "little") + bytes(4) + bytes(2)
    )
    with path.open("wb") as file:
        file.seek(1 << 30)
        file.write(end)
    with pytest.raises(Unreadable, match="it lists its members in 1073741824 bytes"):
        read_torch(path)


def test_a_file_that_is_no_archive_is_told_with_its_path(load):
    loaded = load(None, files={"1/model.pt": b"hello"})
    assert loaded.errors[0].message == (
        "autofill failed for model 'm': the PyTorch file 'model.pt' does not tell its inputs and outputs:"
        " it is no zip archive: File is not a zip file"
    )


def test_the_other_default_name_is_looked_for_as_the_backend_does(load, archive):
    path = archive({"m/models/model.json": program([tensor("s0", 2)], [tensor("s0")])})
    loaded = load('backend: "pytorch"', files={"1/model.pt2": path.read_bytes()})
    assert [spec.name for spec in loaded.specs[0].inputs] == ["INPUT__0"]
    assert BY_NUMBER[11] is loaded.specs[0].inputs[0].datatype


def test_a_default_value_belongs_to_no_type(archive):
    code = "class M(Module):\n  def forward(self: M,\n    x: Tensor,\n    y: Optional[Tensor]=None) -> Dict[str, Tensor]:\n    pass\n"
    sketch: Any = read_torch(
        archive({"m/code/__torch__.py": code, "m/data.pkl": b"\x80\x02c__torch__\nM\n."})
    )
    assert (
        sketch.signature
        == "whose forward takes 'x' (Tensor), 'y' (Optional[Tensor]) and returns Dict[str, Tensor]"
    )


# -- pickles


def test_a_pickle_is_followed_and_not_run():
    assert main_class(b"\x80\x02c__torch__.a.b\nNet\n") == ("__torch__.a.b", "Net")
    assert traced_inputs(b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00truetR.") == ()


@given(st.binary(max_size=200))
def test_no_pickle_raises(content):
    assert isinstance(traced_inputs(b"\x80\x02" + content), tuple)
