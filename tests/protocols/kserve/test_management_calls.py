"""The table of calls that manage, and what a port says that does not serve them."""

import pytest

from protocols.grpc.methods import CATEGORIES, INFERENCE_SERVICE, moved
from protocols.http.routes import Endpoint
from protocols.kserve.apart import MANAGEMENT, Elsewhere
from protocols.kserve.proto import grpc_service_pb2 as pb


def test_each_call_of_the_table_exists_over_http():
    methods = {endpoint.value: endpoint.methods for endpoint in Endpoint}
    assert all(call.method in methods[call.endpoint] for call in MANAGEMENT)


def test_each_call_of_the_table_exists_over_grpc():
    assert all(INFERENCE_SERVICE + call.rpc in CATEGORIES for call in MANAGEMENT if call.rpc)


@pytest.mark.parametrize("call", [call for call in MANAGEMENT if call.by_settings], ids=lambda call: call.rpc)
def test_a_call_that_is_judged_by_its_settings_has_some(call):
    (service,) = pb.DESCRIPTOR.services_by_name.values()
    assert "settings" in service.methods_by_name[call.rpc].input_type.fields_by_name


def test_what_only_reads_is_no_management_but_for_the_tree_the_events_and_the_register():
    reading = {call.endpoint for call in MANAGEMENT if call.method == "GET"}
    assert reading == {"tree", "events", "fleet"}
    assert "repository_index" not in {call.endpoint for call in MANAGEMENT}


@pytest.mark.parametrize(
    ("elsewhere", "places"),
    [
        (Elsewhere("127.0.0.1:8003", "127.0.0.1:8004"), "HTTP at 127.0.0.1:8003, gRPC at 127.0.0.1:8004"),
        (Elsewhere("[::1]:8003"), "HTTP at [::1]:8003"),
        (
            Elsewhere("0.0.0.0:8003", "[::]:8004"),
            "HTTP at port 8003 of this server, gRPC at port 8004 of this server",
        ),
    ],
)
def test_a_refusal_says_where_management_is_in_words_that_a_client_can_use(elsewhere, places):
    assert elsewhere.refusal == (f"management is served elsewhere: {places} (--management-address)")


def test_over_grpc_loads_and_unloads_have_moved_where_management_is_apart():
    assert moved(None) == {}
    names = {path.removeprefix(INFERENCE_SERVICE) for path in moved(Elsewhere("127.0.0.1:8003"))}
    assert names == {"RepositoryModelLoad", "RepositoryModelUnload"}
