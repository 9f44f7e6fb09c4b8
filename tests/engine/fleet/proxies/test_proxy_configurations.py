"""What is written for HAProxy and Envoy: compared with files, and read by the programs themselves.

`python -m tests.engine.fleet.proxies.test_proxy_configurations` writes the files anew.
"""

import json
import shutil
import string
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fleet.ports import Member
from engine.fleet.proxies.envoy import envoy
from engine.fleet.proxies.haproxy import haproxy
from engine.fleet.proxies.members import upstreams
from engine.fleet.proxies.values import ProxyOptions, Unwritable, Upstream
from tests.support.examples import examples

WRITTEN = Path(__file__).with_name("written")
WRITERS = {"haproxy": (haproxy, "cfg"), "envoy": (envoy, "json")}


def server(name, **options):
    return Upstream(**{"name": name, "host": "10.0.0.7", "http_port": 8000, "grpc_port": 8001, **options})


FLEETS = {
    "plain": ([server("a"), server("b", host="10.0.0.8")], ProxyOptions()),
    "placed": (
        [
            server("a", models=frozenset({"digits", "words"})),
            server("b", host="10.0.0.8", models=frozenset({"words", 'it\'s "odd" %[x]'})),
            server("c", host="fd00::9", models=frozenset({"digits"}), grpc_port=None),
        ],
        ProxyOptions(retry_buffer=1_048_576),
    ),
    "named": (
        [server("tritium-0", host="tritium-0.tritium"), server("odd'%name", host="tritium-1.tritium")],
        ProxyOptions(idempotent=True, address="127.0.0.1", http_port=9000, grpc_port=9001, timeout=60),
    ),
}


def write(program, fleet):
    servers, options = FLEETS[fleet]
    return WRITERS[program][0](servers, options)


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("program", WRITERS)
def test_a_fleets_configuration_is_the_one_in_the_file(program, fleet):
    file = WRITTEN / f"{fleet}.{WRITERS[program][1]}"
    assert write(program, fleet) == file.read_text()


def accepts(program, text, folder):
    """Have the program read a configuration; return what it complains of."""
    command = {
        "haproxy": ["haproxy", "-c", "-q", "-f"],
        "envoy": ["envoy", "--mode", "validate", "--log-level", "warn", "-c"],
    }
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    file = folder / f"written.{WRITERS[program][1]}"
    file.write_text(text)
    done = subprocess.run([*command[program], str(file)], capture_output=True, text=True, check=False)
    shown = done.stderr.strip()
    return shown if done.returncode or "ALERT" in shown or "WARNING" in shown or "warning]" in shown else ""


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("program", WRITERS)
def test_the_program_takes_what_is_written_for_it(program, fleet, tmp_path):
    assert accepts(program, write(program, fleet), tmp_path) == ""


names = st.text(string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~", min_size=1, max_size=20)
models = st.text(st.characters(blacklist_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=20)
models = models.filter(lambda name: name not in {".", ".."} and "/" not in name)
fleets = st.lists(
    st.tuples(names, st.frozensets(models, max_size=4)),
    min_size=1,
    max_size=4,
    unique_by=lambda each: each[0],
)


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("program", WRITERS)
@given(data=st.data())
@settings(max_examples=examples(200, few=3), deadline=None)
def test_the_program_takes_whatever_names_are_allowed(program, tmp_path_factory, data):
    drawn = data.draw(fleets)
    text = WRITERS[program][0]([server(name, models=held) for name, held in drawn], ProxyOptions())
    assert accepts(program, text, tmp_path_factory.mktemp(program)) == ""


@given(fleets)
@settings(max_examples=examples(200))
def test_names_do_not_leave_their_quotes(drawn):
    text = haproxy([server(name, models=held) for name, held in drawn], ProxyOptions())
    for line in text.splitlines():
        outside = "".join(line.replace("'\\''", "").split("'")[::2])
        assert outside.isascii(), line
    assert json.loads(envoy([server(name, models=held) for name, held in drawn], ProxyOptions()))


@given(fleets, models)
@settings(max_examples=examples(200))
def test_models_go_to_servers_that_have_them(drawn, model):
    servers = [server(name, models=held) for name, held in drawn]
    written = json.loads(envoy(servers, ProxyOptions()))
    [cluster] = [each for each in written["static_resources"]["clusters"] if each["name"] == "http"]
    for one, shown in zip(
        sorted(servers, key=lambda each: each.name),
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"],
        strict=True,
    ):
        told = shown["metadata"]["filter_metadata"]["envoy.lb"]["models"]
        assert set(told) == set(one.models)
        assert one.holds(model) == (model in told)


@pytest.mark.parametrize(
    "given",
    [
        {"name": "two words"},
        {"name": ""},
        {"name": "a\nb"},
        {"host": "a b"},
        {"host": "fe80::1%eth0"},
        {"host": "'"},
        {"http_port": 0},
        {"grpc_port": 65536},
        {"models": frozenset({"a/b"})},
        {"models": frozenset({".."})},
        {"models": frozenset({"a\nb"})},
        {"models": frozenset({"\ud800"})},
        {"models": frozenset({""})},
        {"models": frozenset({"é" * 128})},
    ],
)
def test_names_that_a_proxy_can_not_take_are_refused(given):
    with pytest.raises(Unwritable):
        server(**{"name": "a", **given})


@pytest.mark.parametrize(
    "given",
    [
        {"address": "here"},
        {"http_port": 0},
        {"http_port": 8001},
        {"timeout": 0},
        {"retry_buffer": 1},
    ],
)
def test_options_that_can_not_be_are_refused(given):
    with pytest.raises(Unwritable):
        ProxyOptions(**given)


@pytest.mark.parametrize("program", WRITERS)
def test_a_fleet_without_replicas_or_with_two_of_a_name_is_refused(program):
    for servers, said in (([], "no replicas"), ([server("a"), server("a")], "two replicas are named 'a'")):
        with pytest.raises(Unwritable, match=said):
            WRITERS[program][0](servers, ProxyOptions())


def test_only_a_request_that_no_server_ran_is_repeated_unless_that_is_allowed():
    safe = haproxy([server("a")], ProxyOptions())
    assert {line for line in safe.splitlines() if "retry-on" in line} == {"    retry-on conn-failure"}
    again = haproxy([server("a")], ProxyOptions(idempotent=True))
    assert "    retry-on conn-failure empty-response response-timeout 0rtt-rejected 502 503 504" in again
    sequences = again[again.index("\nbackend http_replica_1") + 1 :].partition("\n\n")[0]
    assert "    retry-on conn-failure\n" in sequences


def test_members_become_servers_with_the_models_that_were_placed_on_them():
    members = [
        Member(name="a", url="http://10.0.0.7:8000", grpc="10.0.0.7:8001"),
        Member(name="b", url="http://[fd00::1]:8000"),
    ]
    assert upstreams(members) == [server("a"), server("b", host="fd00::1", grpc_port=None)]
    placed = upstreams(members, {"m": ["a"], "n": ["a", "b"]})
    assert [each.models for each in placed] == [frozenset({"m", "n"}), frozenset({"n"})]


@pytest.mark.parametrize(
    ("url", "grpc"),
    [
        ("https://10.0.0.7:8000", ""),
        ("http://10.0.0.7:8000/under", ""),
        ("http://10.0.0.7:8000", "10.0.0.8:8001"),
    ],
)
def test_members_that_a_proxy_can_not_ask_are_refused(url, grpc):
    with pytest.raises(Unwritable, match="replica 'a'"):
        upstreams([Member(name="a", url=url, grpc=grpc)])


if __name__ == "__main__":
    for fleet in FLEETS:
        for program, (_, ending) in WRITERS.items():
            (WRITTEN / f"{fleet}.{ending}").write_text(write(program, fleet))
