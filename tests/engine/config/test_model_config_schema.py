"""The generated code of model_config.proto: as committed, in a pool of its own, and field for field Triton's."""

import subprocess
import sys

import pytest

from protocols.kserve.proto.model_config_pb2 import ModelConfig


@pytest.mark.slow
def test_the_committed_code_is_what_the_generator_makes(tmp_path):
    pytest.importorskip("grpc_tools")
    from protocols.kserve.proto.generate import HERE, generate

    generate(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made
    assert made == {name: (HERE / name).read_text() for name in made}


@pytest.mark.slow
@pytest.mark.parametrize("ours_first", [True, False])
def test_triton_s_client_and_our_schema_live_in_one_process(ours_first):
    pytest.importorskip("tritonclient.grpc")
    imports = [
        "from protocols.kserve.proto import model_config_pb2 as ours",
        "from tritonclient.grpc import model_config_pb2 as theirs, service_pb2",
    ]
    use = (
        "assert ours.ModelConfig is not theirs.ModelConfig\n"
        "assert theirs.ModelConfig.FromString(ours.ModelConfig(name='m', max_batch_size=3).SerializeToString())"
        ".max_batch_size == 3\n"
    )
    code = "\n".join([*(imports if ours_first else reversed(imports)), use])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_field_and_enum_value_is_triton_s():
    pytest.importorskip("tritonclient.grpc")
    from tritonclient.grpc import model_config_pb2 as theirs

    assert _schema(ModelConfig.DESCRIPTOR.file) == _schema(theirs.DESCRIPTOR)


def _schema(file):
    found = {}
    pending = [*file.message_types_by_name.values()]
    enums = [*file.enum_types_by_name.values()]
    while pending:
        message = pending.pop()
        pending += message.nested_types
        enums += message.enum_types
        for field in message.fields:
            oneof = field.containing_oneof
            found[field.full_name] = (field.number, field.type, field.is_repeated, oneof and oneof.name)
    found |= {enum.full_name: [(value.name, value.number) for value in enum.values] for enum in enums}
    return found
