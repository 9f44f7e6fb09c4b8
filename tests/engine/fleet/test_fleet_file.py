"""The file of a fleet: what it says, its mistakes by line, and versions changed in place."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.fleet.document.editing import with_versions
from engine.fleet.document.nodes import BadDocument
from engine.fleet.document.reading import read_file, read_wanted
from engine.fleet.policy.scaling import Scale
from engine.fleet.policy.values import Release, Rules, Wish
from engine.fleet.ports import Member
from engine.fleet.wanted import Timing, Tls

WHOLE = """\
replicas:
  - http://10.0.0.1:8000
  - name: gpu-1
    url: http://gpu-1:9000/triton/
    grpc: gpu-1:9001
    metrics: http://gpu-1:9002/metrics
    labels: {gpu: h100}
    memory: 40Gi
  - {url: "http://[fd00::7]:8000", metrics: false}
discovery:
  dns: {name: tritium-headless, port: 8000, scheme: https}
models:
  resnet:
    versions: [3, 2]
    replicas: 2
    labels: {gpu: h100}
    memory: 1.5GB
    config: {max_batch_size: 8}
    traffic: {weights: {2: 90, 3: 10}, rollback: {max_error_rate: 0.05}}
  bert: {versions: 1, replicas: all}
rules: {settle_seconds: 5, max_error_rate: 0.1, min_requests: 7, load_timeout_seconds: 60}
autoscale: {requests_per_replica: 4, min_replicas: 2, max_replicas: 9}
controller: {interval_seconds: 2, takeover_seconds: 20, drain_delay_seconds: 1, request_seconds: 3}
tls: {ca_file: ca.pem, certificate_file: c.pem, key_file: c.key, server_name: tritium.models.svc}
"""


def test_all_that_a_file_can_say():
    wanted = read_wanted("fleet.yaml", WHOLE)
    assert wanted.members == [
        Member(name="10.0.0.1-8000", url="http://10.0.0.1:8000", metrics="http://10.0.0.1:8002/metrics"),
        Member(
            name="gpu-1",
            url="http://gpu-1:9000/triton",
            grpc="gpu-1:9001",
            metrics="http://gpu-1:9002/metrics",
            labels={"gpu": "h100"},
            memory=40 * 2**30,
        ),
        Member(name="fd00--7-8000", url="http://[fd00::7]:8000"),
    ]
    assert wanted.discovery == {"dns": {"name": "tritium-headless", "port": 8000, "scheme": "https"}}
    assert wanted.wish("resnet") == Wish(
        model="resnet",
        release=Release((2, 3), '{"max_batch_size":8}'),
        replicas=2,
        labels={"gpu": "h100"},
        memory=1_500_000_000,
        traffic={"weights": {"2": 90, "3": 10}, "rollback": {"max_error_rate": 0.05}},
    )
    assert wanted.wish("bert") == Wish(model="bert", release=Release((1,)))
    assert wanted.wish("gone") is None
    assert wanted.rules == Rules(settle=5, max_error_rate=0.1, min_requests=7, load_timeout=60)
    assert wanted.scale == Scale(requests=4, least=2, most=9)
    assert wanted.tls == Tls(
        ca_file="ca.pem", certificate_file="c.pem", key_file="c.key", server_name="tritium.models.svc"
    )
    assert wanted.timing == Timing(interval=2, takeover=20, drain_delay=1, request=3)


TOP = "replicas: [http://a:8000]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f.yaml: it is empty; `replicas` or `discovery`, and `models` are to be there"),
        ("a: [", "f.yaml, line 1: it is no YAML: "),
        ("models: {}", "f.yaml, line 1: say which servers there are: `replicas` lists them"),
        ("- 1", "f.yaml, line 1: takes keys and values, got [1]"),
        (TOP + "tls: {key_file: k}", "tls: has a key_file, and no certificate_file that the key belongs to"),
        (TOP + "tls: {server_name: a..b}", "tls.server_name: 'a..b' is no name of a host"),
        (TOP + "tls: {ca: x}", "tls.ca: there is no such key; there are ca_file"),
        ("discovery: {dns: {name: a, scheme: ftp}}", "discovery.dns.scheme: takes http or https, got 'ftp'"),
        (TOP + "modles: {}", "f.yaml, line 2: modles: there is no such key; did you mean 'models'?"),
        (TOP + "replicas: []", "line 2: replicas: is there twice; keep one of them"),
        ("replicas: [10.0.0.1:8000]", "replicas[0]: takes an address such as http://10.0.0.7:8000"),
        ("replicas: ['http://a:0']", "replicas[0]: has no port that can be: http://a:0"),
        ("replicas: ['http://a:70000']", "replicas[0]: has no host and port that can be: Port out of range"),
        ("replicas: ['http://[::1:8']", "replicas[0]: has no host and port that can be: Invalid IPv6 URL"),
        ("replicas: ['http://a..b:8']", "replicas[0]: 'a..b' is no address and no name of a host"),
        (f"replicas: ['http://{'a' * 300}:8']", "is no address and no name of a host"),
        ("replicas: ['http://me:key@a:8']", "replicas[0]: has credentials in it; show them with --key-file"),
        ("replicas: ['http://a:8?x=1']", "replicas[0]: takes no query and no fragment"),
        (
            "replicas: [{name: one, url: 'http://A:80'}, {name: two, url: 'http://a/'}]",
            "replicas[1]: has the address of replica 'one'; a server is listed once",
        ),
        ("replicas: [{url: 'http://a:1', grpc: 'a:70000'}]", "grpc: takes HOST:PORT, got 'a:70000'"),
        ("replicas: [{url: 'http://a:1', grpc: '[a:7'}]", "grpc: takes HOST:PORT, got '[a:7'"),
        ("replicas: [{url: 'http://a:1', labels: {on: yes}}]", "takes text, got yes; in quotes it is text"),
        (
            "replicas: [{url: 'http://a:1', memory: " + "9" * 400 + "}]",
            "memory: takes a number of bytes such as",
        ),
        ("discovery: {dns: {name: a..b}}", "discovery.dns.name: 'a..b' is no name of a host"),
        ("replicas: [{name: a}]", "replicas[0]: a replica has the `url` of its HTTP port"),
        ("replicas: [{url: 'http://a:1', grpc: a}]", "replicas[0].grpc: takes HOST:PORT, got 'a'"),
        ("replicas: [{url: 'http://a:1', name: a b}]", "replicas[0].name: takes a name of letters"),
        ("replicas: ['http://a:1', 'http://a:1']", "replicas[1]: there is a replica named 'a-1' already"),
        (
            "replicas: [{url: 'http://a:1', memory: much}]",
            "memory: takes a number of bytes such as 500MB or 16Gi",
        ),
        ("discovery: {dns: {port: 1}}", "discovery.dns: needs `name`"),
        (
            "discovery: {consul: {}}",
            "discovery.consul: there is no such key; there are dns, endpointslices, ray",
        ),
        (TOP + "models:\n  m: {}", "line 3: models.m: say which `versions` to serve"),
        (TOP + "models:\n  m:\n    versions: 0", "line 4: models.m.versions: takes a whole number from 1"),
        (
            TOP + "models: {m: {versions: []}}",
            "versions: is empty; leave the model out to have it served nowhere",
        ),
        (TOP + "models: {m: {versions: latest}}", "models.m.versions: takes a whole number from 1"),
        (TOP + "models: {m: {versions: 010}}", "from 1 to 9007199254740992, got 010"),
        (TOP + "models: {m: {versions: 2001-99-99}}", "versions: can't be read: month must be in 1..12"),
        (TOP + "models: {m: {versions: !!int x}}", "versions: can't be read: invalid literal for int()"),
        (
            TOP + "models: {m: {versions: !go 1}}",
            "can't be read: could not determine a constructor for the tag",
        ),
        (TOP + "models:", "models: takes keys and values, got nothing"),
        (TOP + "models: {a/b: {versions: 1}}", "models.a/b: no model has this name"),
        (TOP + "models: {..: {versions: 1}}", "models...: no model has this name"),
        (TOP + 'models: {"\\ud800": {versions: 1}}', "no model has this name"),
        (TOP + 'models: {"\\e[31m": {versions: 1}}', "models.\\x1b[31m: no model has this name"),
        (TOP + f"models: {{{'m' * 300}: {{versions: 1}}}}", "mmm...: no model has this name"),
        (TOP + "models: {m: &m {versions: 1}, n: {<<: *m}}", "models.n: keys are not merged by `<<` here"),
        (TOP + "models: {m: {versions: 1, config: {parameters: []}}}", "config.parameters: takes keys"),
        (TOP + "models: {m: {versions: 1, replicas: none}}", "replicas: takes a whole number from 1"),
        (TOP + "models: {m: {versions: 1, config: 3}}", "config: takes a model's configuration"),
        (TOP + "models: {m: {versions: 1, config: {a: .nan}}}", "config: can't be written as JSON"),
        (TOP + "models: {m: {versions: 1, traffic: {mirror: {}}}}", "traffic: needs `weights`"),
        (TOP + "models: {m: {versions: 1, traffic: {weights: {1: 0}}}}", "some version has to have a weight"),
        (TOP + "models: {m: {versions: 1, traffic: {weights: {new: 1}}}}", "key is the number of a version"),
        (TOP + "models: {m: {versions: 1, traffic: {weights: {٣: 1}}}}", "key is the number of a version"),
        (
            TOP + "models: {m: {versions: 1, traffic: {weights: {1: 1}, mirror: 2001-01-01}}}",
            "written as JSON",
        ),
        (TOP + "models: {m: {versions: 1, traffic: {weights: {1: 1}, rollback: 3}}}", "rollback: takes keys"),
        (
            TOP + "models: {m: {versions: 1, traffic: {weights: {1: 1}, rollback: {max_error_rate: 2}}}}",
            "rollback.max_error_rate: takes a number from 0 to 1, got 2",
        ),
        (
            TOP + "models: {m: {versions: 1, traffic: {weights: {1: 1}, rollback: {min_requests: x}}}}",
            "rollback.min_requests: takes a whole number from 1",
        ),
        (
            TOP + "rules: {settle_seconds: 1:30}",
            "rules.settle_seconds: takes a number from 0 to 86400, got 1:30",
        ),
        ("[" * 1000, "f.yaml: it is nested too deeply"),
        ("replicas: &a [*a]", "f.yaml, line 1: an alias stands within what it stands for"),
        (TOP + "rules: {settle_seconds: soon}", "rules.settle_seconds: takes a number from 0 to 86400"),
        (TOP + "autoscale: {min_replicas: 9, max_replicas: 2}", "min_replicas is 9, above max_replicas"),
        (TOP + "controller: {interval_seconds: 0}", "controller.interval_seconds: takes a number from 0.1"),
    ],
)
def test_mistakes_are_told_with_their_line_and_key(text, said):
    with pytest.raises(BadDocument) as caught:
        read_wanted("f.yaml", text)
    assert said in str(caught.value)


def test_aliases_that_stand_for_very_much_are_refused_at_once():
    lines = ["  a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"  {name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in pairwise("abcdefghi")
    ]
    with pytest.raises(BadDocument, match="values with its aliases; 100000 are the most"):
        read_wanted("f.yaml", "\n".join(["models:", *lines]))


def test_labels_are_text_as_it_stands_in_the_file():
    labels = "{cuda: 12.10, rack: 012, since: 2001-01-01}"
    wanted = read_wanted("f.yaml", f"replicas: [{{url: 'http://a:1', name: 0123, labels: {labels}}}]")
    assert wanted.members[0].labels == {"cuda": "12.10", "rack": "012", "since": "2001-01-01"}
    assert wanted.members[0].name == "0123"


def test_a_file_without_an_end_is_refused():
    with pytest.raises(BadDocument, match="has more than"):
        read_file(Path("/dev/zero"))


def test_all_mistakes_are_told_at_once(tmp_path):
    with pytest.raises(BadDocument) as caught:
        read_wanted("f.yaml", "replicas: [1, http://b:2]\nmodels: {a: {}, b: {versions: x}}\nrules: {no: 1}")
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == [
        "f.yaml, line 1",
        "f.yaml, line 2",
        "f.yaml, line 2",
        "f.yaml, line 3",
    ]
    with pytest.raises(BadDocument, match="No such file"):
        read_file(tmp_path / "none.yaml")


def test_versions_are_changed_in_place_and_nothing_else():
    text = WHOLE.replace("versions: 1,", "versions: 1,  # tried since May\n   ")
    changed = with_versions("f.yaml", text, "bert", [4])
    assert changed == text.replace("versions: 1,", "versions: 4,")
    assert with_versions("f.yaml", text, "resnet", [3, 4]) == text.replace("[3, 2]", "[3, 4]")
    listed = TOP + "models:\n  m:\n    versions:\n      - 1\n      - 2\n    # the end\n    replicas: 1\n"
    assert with_versions("f.yaml", listed, "m", [3]) == (
        TOP + "models:\n  m:\n    versions: 3\n    # the end\n    replicas: 1\n"
    )


@given(
    st.lists(st.integers(1, 99), min_size=1, max_size=3, unique=True),
    st.sampled_from(["1", "[1, 2]", "[ 7 ]", "\n      - 3\n      - 4", "\n    - 5", " 12 # why"]),
    st.sampled_from(["", "    replicas: 1\n", "    # a word\n    replicas: 1\n"]),
)
def test_whatever_way_versions_are_written_they_can_be_changed(versions, old, rest):
    text = f"{TOP}models:\n  m:\n    versions: {old}\n{rest}  n: {{versions: 1}}\n# end\n"
    changed = with_versions("f.yaml", text, "m", versions)
    wish = read_wanted("f.yaml", changed).wish("m")
    assert wish is not None
    assert wish.release.versions == tuple(sorted(versions))
    assert changed.endswith(f"{rest}  n: {{versions: 1}}\n# end\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TOP, "no model 'm' is there; it names none. Add it, with its `versions`"),
        (TOP + "models: {n: {versions: 1}}", "no model 'm' is there; it names n"),
        (TOP + "models: {m: {}}", "models.m: say which `versions` to serve"),
        (TOP + "x: &a {versions: 1}\nmodels: {m: *a}", "x: there is no such key"),
    ],
)
def test_what_can_not_be_changed_in_place_is_told(text, said):
    with pytest.raises(BadDocument) as caught:
        with_versions("f.yaml", text, "m", [2])
    assert said in str(caught.value)
