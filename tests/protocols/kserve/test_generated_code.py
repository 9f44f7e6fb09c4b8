"""The generated code: as committed, equal to others' field for field, and harmless beside them."""

import importlib
import subprocess
import sys

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocols.kserve.proto import (
    grpc_service_pb2,
    health_pb2,
    model_config_pb2,
    reflection_v1_pb2,
    reflection_v1alpha_pb2,
)
from tests.support.examples import examples

pytestmark = pytest.mark.system

THEIRS = [
    (model_config_pb2, "tritonclient.grpc.model_config_pb2"),
    (grpc_service_pb2, "tritonclient.grpc.service_pb2"),
    (health_pb2, "grpc_health.v1.health_pb2"),
    (reflection_v1_pb2, "grpclib.reflection.v1.reflection_pb2"),
    (reflection_v1alpha_pb2, "grpc_reflection.v1alpha.reflection_pb2"),
]
NEIGHBOURS = [
    "protocols.grpc.generated.grpc_service_base, protocols.grpc.generated.grpc_service_stub, "
    "protocols.grpc.services.offered, protocols.grpc.services.offered",
    "tritonclient.grpc",
    "grpc_health.v1.health_pb2_grpc",
    "grpc_reflection.v1alpha.reflection_pb2_grpc",
]


@pytest.mark.slow
def test_the_committed_code_is_what_the_generator_makes(tmp_path):
    pytest.importorskip("grpc_tools")
    from protocols.kserve.proto.generate import MESSAGES, ROOT, SERVICES, generate

    generate(tmp_path)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.py*")}
    committed = [
        path
        for package, pattern in ((MESSAGES, "*_pb2.py*"), (SERVICES, "*_*.py"))
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
        if path.name != "__init__.py"
    ]
    assert made == {path.relative_to(ROOT): path.read_text() for path in committed}


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "theirs"), THEIRS, ids=lambda each: getattr(each, "__name__", each))
def test_every_field_enum_and_method_is_theirs(ours, theirs):
    pytest.importorskip(theirs.partition(".")[0])
    reference = schema(importlib.import_module(theirs).DESCRIPTOR)
    assert reference
    assert schema(ours.DESCRIPTOR) == reference


def test_the_two_versions_of_reflection_differ_in_their_package_alone():
    def unversioned(module):
        return str(schema(module.DESCRIPTOR)).replace(module.DESCRIPTOR.package, "")

    assert unversioned(reflection_v1_pb2) == unversioned(reflection_v1alpha_pb2)


def schema(file):
    """Everything of a file that the wire, its JSON form or generated code can show, by full name."""
    found: dict[str, object] = {}
    pending = [*file.message_types_by_name.values()]
    enums = [*file.enum_types_by_name.values()]
    while pending:
        message = pending.pop()
        pending += message.nested_types
        enums += message.enum_types
        is_map = message.GetOptions().map_entry
        found[message.full_name] = (is_map, {field.name: _field(field) for field in message.fields})
    found |= {enum.full_name: {value.name: value.number for value in enum.values} for enum in enums}
    for service in file.services_by_name.values():
        found[service.full_name] = [_method(method) for method in service.methods]
    return found


def _field(field):
    kind = field.message_type or field.enum_type
    return {
        "number": field.number,
        "type": field.type,
        "of": kind and kind.full_name,
        "repeated": field.is_repeated,
        "required": field.is_required,
        "packed": field.is_packed,
        "presence": field.has_presence,
        "json": field.json_name,
        "oneof": field.containing_oneof and field.containing_oneof.name,
        "default": field.default_value,
    }


def _method(method):
    streams = (method.client_streaming, method.server_streaming)
    return method.name, method.input_type.full_name, method.output_type.full_name, streams


INTEGERS = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
}


def values(field):
    """Draw one element of `field` as its message's constructor takes it."""
    kinds = {
        field.TYPE_BOOL: st.booleans(),
        field.TYPE_INT32: INTEGERS["int32"],
        field.TYPE_INT64: INTEGERS["int64"],
        field.TYPE_UINT32: INTEGERS["uint32"],
        field.TYPE_UINT64: INTEGERS["uint64"],
        field.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
        field.TYPE_DOUBLE: st.floats(allow_nan=False),
        field.TYPE_STRING: st.text(st.characters(codec="utf-8"), max_size=4),
        field.TYPE_BYTES: st.binary(max_size=4),
    }
    if field.type == field.TYPE_MESSAGE:
        return contents(field.message_type)
    if field.type == field.TYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return kinds[field.type]


def contents(message):
    """Draw keyword arguments for `message`: some of its fields, one of each oneof at most."""
    choices = {field.name: _later(field) for field in message.fields}
    alone = [name for name in choices if message.fields_by_name[name].containing_oneof]
    together = {name: choice for name, choice in choices.items() if name not in alone}
    drawn = st.fixed_dictionaries({}, optional=together)
    if not alone:
        return drawn
    one = st.one_of([st.fixed_dictionaries({name: choices[name]}) for name in alone])
    return st.builds(lambda several, single: several | single, drawn, one | st.just({}))


def _later(field):
    return st.deferred(lambda: _whole(field))


def _whole(field):
    if not field.is_repeated:
        return values(field)
    if field.message_type and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return st.dictionaries(values(key), values(value), max_size=2)
    return st.lists(values(field), max_size=2)


INFERENCE_MESSAGES = sorted(grpc_service_pb2.DESCRIPTOR.message_types_by_name)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_one_writes_the_other_reads(data):
    service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")
    name = data.draw(st.sampled_from(INFERENCE_MESSAGES))
    ours, theirs = getattr(grpc_service_pb2, name), getattr(service_pb2, name)
    fields = data.draw(contents(ours.DESCRIPTOR))
    for writer, reader in ((ours, theirs), (theirs, ours)):
        written = writer(**fields)
        read = reader.FromString(written.SerializeToString())
        assert MessageToDict(read) == MessageToDict(written)
        assert read.SerializeToString(deterministic=True) == written.SerializeToString(deterministic=True)


def _orders():
    """Every pair of neighbours both ways round, and each of them first and last."""
    for ring in (NEIGHBOURS, NEIGHBOURS[::-1]):
        for start in range(len(ring)):
            yield ring[start:] + ring[:start]


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", list(_orders()), ids=lambda order: "-".join(each.split(".")[0] for each in order)
)
def test_all_live_in_one_process_whoever_comes_first(order):
    for each in ("tritonclient.grpc", "grpc_health", "grpc_reflection"):
        pytest.importorskip(each)
    use = (
        "from protocols.kserve.proto import grpc_service_pb2 as ours\n"
        "from tritonclient.grpc import service_pb2 as theirs\n"
        "assert ours.ModelInferRequest is not theirs.ModelInferRequest\n"
        "assert theirs.ModelInferRequest.FromString(ours.ModelInferRequest(id='a').SerializeToString()).id == 'a'\n"
    )
    _run("\n".join([*(f"import {each}" for each in order), use]))


def test_what_the_server_imports_brings_no_asyncio_and_no_client():
    from protocols.kserve.proto.generate import MESSAGES, ROOT, SERVICES

    modules = ["protocols.grpc.services.offered", "protocols.grpc.services.offered"]
    for package, pattern in ((MESSAGES, "*_pb2.py"), (SERVICES, "*_base.py")):
        modules += [f"{package}.{path.stem}" for path in ROOT.joinpath(*package.split(".")).glob(pattern)]
    assert len(modules) == 2 + 5 + 4
    unwanted = "{'asyncio', 'grpclib.client', 'grpclib.server', 'grpc', 'h2'} & set(sys.modules)"
    _run(f"import sys, {', '.join(modules)}\nassert not ({unwanted}), {unwanted}")


def _run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
