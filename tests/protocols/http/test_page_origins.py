"""Which requests of web pages are refused: by the host asked for, by the page's site, and its origin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.http.origins import (
    OriginPolicy,
    Use,
    foreign_origin,
    host_of,
    is_local_or_address,
    page_fields,
)

STRICT = OriginPolicy()
NAMED = OriginPolicy(
    trusted_hosts=frozenset({"models.example", "*.cluster.example"}),
    origins=frozenset({"https://app.example"}),
)
OPEN = OriginPolicy(trusted_hosts=frozenset({"*"}), origins=frozenset({"*"}))


def head(host=b"127.0.0.1:8000", origin=None, site=None):
    fields = {b"host": host, b"origin": origin, b"sec-fetch-site": site}
    return {name: value for name, value in fields.items() if value is not None}


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        (b"Models.Example", "models.example"),
        (b"models.example.:8000", "models.example"),
        (b"models.example:", "models.example"),
        (b"my_service:8000", "my_service"),
        (b"127.0.0.1:8000", "127.0.0.1"),
        (b"[::1]:8000", "::1"),
        (b"[FE80::1%25eth0]:8000", "fe80::1"),
        (b"[fe80::1%eth0]", "fe80::1"),
        (b"", None),
        (b".", None),
        (b":8000", None),
        (b"localhost@evil.example", None),
        (b"localhost:80@evil.example", None),
        (b"localhost:8000:evil.example", None),
        (b"localhost:port", None),
        (b"localhost:800000", None),
        (b"localhost, evil.example", None),
        (b"[::1].evil.example", None),
        (b"[localhost]", None),
        (b"::1", None),
        (b"local\xe9host", None),
        (b"localhost/evil", None),
    ],
)
def test_the_host_is_read_strictly(authority, host):
    assert host_of(authority) == host


@pytest.mark.parametrize(
    ("host", "is_either"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("192.168.1.5", True),
        ("::1", True),
        ("fe80::1", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.localhost", False),
        ("2130706433", False),
        ("0x7f.1", False),
        ("127.1", False),
        ("0177.0.0.1", False),
        ("1:2", False),
    ],
)
def test_an_address_is_one_as_browsers_write_it(host, is_either):
    assert is_local_or_address(host) is is_either


@given(st.binary(max_size=40))
def test_no_host_makes_reading_it_fail(authority):
    host = host_of(authority)
    assert host is None or (host and host == host.lower())


@pytest.mark.parametrize("use", Use)
@pytest.mark.parametrize("host", [b"", b"evil.example", b"localhost@evil"])
def test_clients_that_are_no_browsers_are_asked_nothing(use, host):
    assert STRICT.complaint(use, head(host)) == ""
    assert STRICT.complaint(use, {}) == ""


@pytest.mark.parametrize(
    "fields",
    [
        head(site=b"same-origin"),
        head(origin=b"http://127.0.0.1:8000"),
        head(b"192.168.1.5:8000", site=b"same-origin"),
        head(b"LOCALHOST:8000", b"http://localhost:8000"),
        head(b"localhost.:8000", b"http://localhost.:8000"),
        head(b"[::1]:8000", b"http://[::1]:8000", b"same-origin"),
        head(b"evil.example", site=b"none"),
    ],
    ids=str,
)
@pytest.mark.parametrize("use", Use)
def test_a_page_of_this_server_may_do_everything(use, fields):
    assert STRICT.complaint(use, fields) == ""


@pytest.mark.parametrize(
    "fields",
    [
        head(b"evil.example:8000", b"http://evil.example:8000"),
        head(b"evil.example:8000", site=b"same-origin"),
        head(b"localhost.evil.example", b"http://localhost.evil.example"),
        head(b"127.0.0.1.evil.example", site=b"same-origin"),
        head(b"127.0.0.1@evil.example", site=b"same-origin"),
        head(b"", site=b"same-origin"),
        {b"sec-fetch-site": b"same-origin"},
        head(b"evil.example", b"http://evil.example", b"none"),
    ],
    ids=str,
)
@pytest.mark.parametrize("use", [Use.READ, Use.INFERENCE, Use.CHANGE])
def test_a_name_that_was_rebound_to_this_server_is_refused(use, fields):
    complaint = STRICT.complaint(use, fields)
    assert (
        "--trusted-hosts" in complaint or "--cors-allowed-origins" in complaint or "another site" in complaint
    )
    assert NAMED.complaint(use, fields) != ""
    assert STRICT.complaint(Use.HEALTH, fields) == ""


def test_a_refused_host_is_shown_in_part():
    complaint = STRICT.complaint(Use.READ, head(b"e" * 300, site=b"same-origin"))
    assert "'" + "e" * 100 + "'" in complaint


@pytest.mark.parametrize(
    ("host", "trusted"),
    [
        (b"models.example:8000", True),
        (b"MODELS.EXAMPLE.", True),
        (b"a.cluster.example", True),
        (b"a.b.cluster.example:1", True),
        (b"cluster.example", False),
        (b"evilcluster.example", False),
        (b"evil.models.example", False),
        (b"models.example.evil.example", False),
    ],
)
def test_the_operator_names_hosts_and_all_below_a_name(host, trusted):
    for use in (Use.READ, Use.INFERENCE, Use.CHANGE):
        assert (NAMED.complaint(use, head(host, site=b"same-origin")) == "") is trusted
        assert OPEN.complaint(use, head(host, site=b"same-origin")) == ""


FOREIGN = [
    head(origin=b"http://evil.example"),
    head(origin=b"null"),
    head(origin=b"http://127.0.0.1:8001"),
    head(origin=b"http://127.0.0.1:8000", site=b"cross-site"),
    head(site=b"same-site"),
]


@pytest.mark.parametrize("fields", FOREIGN, ids=str)
def test_a_page_of_another_site_may_read_and_its_browser_keeps_the_answer(fields):
    assert STRICT.complaint(Use.READ, fields) == ""
    assert STRICT.complaint(Use.HEALTH, fields) == ""


@pytest.mark.parametrize("fields", FOREIGN, ids=str)
def test_a_page_of_another_site_may_not_infer_unless_its_origin_is_named(fields):
    told = foreign_origin(fields)
    assert STRICT.complaint(Use.INFERENCE, fields) == (
        f"a web page of another site sent this ({told}), whose origin --cors-allowed-origins does not name"
    )
    assert NAMED.complaint(Use.INFERENCE, fields) != ""
    assert OPEN.complaint(Use.INFERENCE, fields) == ""


@pytest.mark.parametrize("fields", [*FOREIGN, head(origin=b"https://app.example")], ids=str)
@pytest.mark.parametrize("policy", [STRICT, NAMED, OPEN])
def test_a_page_of_another_site_changes_nothing_whatever_is_named(policy, fields):
    told = foreign_origin(fields)
    assert policy.complaint(Use.CHANGE, fields) == (
        f"a web page of another site sent this ({told}), and may not change what is served"
    )


@pytest.mark.parametrize("origin", [b"https://app.example", b"HTTPS://App.Example"])
@pytest.mark.parametrize("use", [Use.READ, Use.INFERENCE])
def test_a_page_of_a_named_origin_may_infer_at_any_host(origin, use):
    assert NAMED.complaint(use, head(b"some.name", origin, b"cross-site")) == ""
    assert NAMED.shares_with(origin)


@pytest.mark.parametrize(
    "origin",
    [
        b"http://app.example",
        b"https://app.example:8443",
        b"https://evil.app.example",
        b"https://app.example.evil",
        None,
    ],
)
def test_only_the_origin_itself_is_named(origin):
    assert not NAMED.shares_with(origin)
    assert OPEN.shares_with(origin)


def test_of_repeated_fields_all_values_count():
    headers = [
        (b"host", b"a"),
        (b"origin", b"http://evil.example"),
        (b"accept", b"*/*"),
        (b"origin", b"http://a"),
        (b"sec-fetch-site", b"same-origin"),
        (b"sec-fetch-site", b"cross-site"),
    ]
    fields = page_fields(headers)
    assert fields == {
        b"host": b"a",
        b"origin": b"http://evil.example, http://a",
        b"sec-fetch-site": b"same-origin, cross-site",
    }
    assert STRICT.complaint(Use.CHANGE, fields).startswith("a web page of another site sent this")
