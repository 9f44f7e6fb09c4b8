"""Valid configurations, which together set every field and name every enum value of the schema.

A line `# refused: a, b` in a file names the fields that are valid and that this version does not serve.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from actors.values.errors import ErrorCode
from engine.config.agents import verify_agents
from engine.config.complete import complete
from engine.config.jsonform import config_json
from engine.config.outline import outline
from engine.config.override import parse_override
from engine.config.parse import parse
from engine.config.refusals import refusals
from engine.config.settings import read_settings
from engine.config.validate import validate
from engine.processes.backends import BackendTraits
from protocols.kserve.proto.model_config_pb2 import ModelConfig

CORPUS = sorted((Path(__file__).parent / "corpus" / "valid").glob("*.pbtxt"))
BACKENDS = {
    name: BackendTraits(name=name)
    for name in ("onnxruntime", "pytorch", "python", "mine", "tensorrt", "tensorflow", "openvino", "vllm")
}

each = pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])


def read(path):
    parsed = parse(path.read_text(), path)
    assert parsed.config is not None, [str(problem) for problem in parsed.problems]
    return parsed.config


def test_there_are_enough_of_them():
    assert len(CORPUS) >= 45


@each
def test_a_valid_configuration_breaks_no_rule_and_is_refused_for_what_is_not_served_only(path, tmp_path):
    parsed: Any = parse(path.read_text(), path)
    assert parsed.problems == ()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").touch()
    config = complete(parsed.config, tmp_path, backends=BACKENDS, gpus=2, name=path.stem).config
    assert config.name == path.stem
    found = validate(config, backends=BACKENDS, gpus=2) + verify_agents(config, tmp_path)
    parameters = {key: parameter.string_value for key, parameter in config.parameters.items()}
    found += read_settings(
        parameters, BACKENDS.get(config.backend, BackendTraits(name="")), config.version_policy
    )[1]
    assert found == []
    refused = refusals(config, found)
    assert {problem.code for problem in refused} <= {ErrorCode.UNSUPPORTED}
    expected = re.search(r"^# refused: (.*)$", path.read_text(), re.MULTILINE)
    assert {problem.message.split("'")[1] for problem in refused} == set(
        expected[1].split(", ") if expected else ()
    )


@each
def test_the_walk_over_a_valid_text_finds_no_fault_and_the_place_of_every_field(path):
    found = outline(path.read_text())
    assert found.faults == []
    assert not found.lost
    assert all(found.find(name) is not None for name in top_level(read(path)))


def top_level(config):
    return [field.name for field, _ in config.ListFields()]


@pytest.mark.parametrize(
    "back",
    [
        lambda config, path: parse(text_format.MessageToString(config), path),
        lambda config, path: parse_override(config_json(config).decode(), path.parent),
    ],
    ids=["text", "JSON"],
)
@each
def test_a_configuration_goes_to_text_and_json_and_back(path, back):
    config = read(path)
    again = back(config, path)
    assert (again.config, again.problems) == (config, ())


def test_every_field_of_the_schema_is_set_somewhere():
    fields = {field for message in messages() for field in message.fields}
    names = {
        field.full_name
        for field in fields
        if not field.containing_type.GetOptions().map_entry and tells(field)
    }
    assert names - set().union(*(used(read(path)) for path in CORPUS)) == set()


def tells(field):
    """Whether a field can differ from its default: one of an enum with a single value can't."""
    return field.enum_type is None or len(field.enum_type.values) > 1


def used(message):
    """Return the full names of the fields that `message`, and every message in it, sets."""
    names = set()
    for field, value in message.ListFields():
        names.add(field.full_name)
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            inner = (
                [value[key] for key in value]
                if field.message_type.fields_by_name["value"].message_type
                else []
            )
        else:
            inner = value if field.is_repeated else [value]
        names = names.union(*map(used, inner))
    return names


def test_every_enum_value_of_the_schema_is_named_somewhere():
    words = set()
    for path in CORPUS:
        words |= set(re.findall(r"\w+", re.sub(r"#.*", "", path.read_text())))
    file = ModelConfig.DESCRIPTOR.file
    enums = [
        *file.enum_types_by_name.values(),
        *(enum for message in messages() for enum in message.enum_types),
    ]
    assert {value.name for enum in enums for value in enum.values} - words == set()


def messages():
    pending = [*ModelConfig.DESCRIPTOR.file.message_types_by_name.values()]
    while pending:
        message = pending.pop()
        pending += message.nested_types
        yield message
