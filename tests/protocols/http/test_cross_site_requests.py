"""Pages of other sites cannot make a visitor's browser change what is served.

Other clients send no header that names their origin.
"""

import pytest

from protocols.http.origins import foreign_origin


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {b"host": b"127.0.0.1:8000"},
        {b"host": b"127.0.0.1:8000", b"content-type": b"text/plain"},
        {b"host": b"127.0.0.1:8000", b"origin": b"http://127.0.0.1:8000"},
        {b"host": b"Models.Example", b"origin": b"https://models.example"},
        {b"host": b"models.example", b"origin": b"https://models.example:443"},
        {b"host": b"[::1]:8000", b"origin": b"http://[::1]:8000"},
        {b"host": b"inner:8000", b"origin": b"https://models.example", b"sec-fetch-site": b"same-origin"},
        {b"sec-fetch-site": b"none"},
    ],
    ids=str,
)
def test_what_no_other_site_sent_passes(fields):
    assert foreign_origin(fields) is None


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({b"sec-fetch-site": b"cross-site"}, "Sec-Fetch-Site: cross-site"),
        ({b"sec-fetch-site": b"same-site"}, "Sec-Fetch-Site: same-site"),
        (
            {b"host": b"a:8000", b"origin": b"http://a:8000", b"sec-fetch-site": b"cross-site"},
            "Sec-Fetch-Site: cross-site",
        ),
        ({b"host": b"a:8000", b"origin": b"http://evil.example"}, "Origin: http://evil.example"),
        ({b"host": b"a:8000", b"origin": b"http://a:8001"}, "Origin: http://a:8001"),
        ({b"host": b"a", b"origin": b"null"}, "Origin: null"),
        ({b"host": b"a", b"origin": b""}, "Origin: "),
        ({b"origin": b"http://a"}, "Origin: http://a"),
        ({b"host": b"a", b"origin": b"http://a:port"}, "Origin: http://a:port"),
        ({b"host": b"a", b"origin": b"http://[a"}, "Origin: http://[a"),
        ({b"host": b"localhost", b"origin": b"tauri://localhost"}, "Origin: tauri://localhost"),
        ({b"host": b"a", b"origin": b"http://me@a"}, "Origin: http://me@a"),
        ({b"host": b"[::1]", b"origin": b"http://[::1], null://x"}, "Origin: http://[::1], null://x"),
        ({b"host": b"a", b"origin": b"x" * 200}, "Origin: " + "x" * 100),
    ],
    ids=str,
)
def test_what_another_site_sent_is_told_by_the_header_that_says_so(fields, told):
    assert foreign_origin(fields) == told
