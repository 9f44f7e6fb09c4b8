"""What a real browser's pages get of a server: Chromium without a window, over pages of several origins.

The pages come from a file server. Each makes requests by `fetch` and writes down what it got. Skipped where
there is no `chromium` (Debian: `chromium`).
"""

import base64
import http.client
import http.server
import json
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager

import pytest

from tests.support.operators import serving, write_model

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

INFER = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
PAGE = """<!doctype html><title>asks</title><pre id=got></pre><script>
const asks = %s;
(async () => {
  const got = [];
  for (const [url, options] of asks) {
    try {
      const answer = await fetch(url, options);
      const text = answer.type === 'opaque' ? '' : await answer.text();
      got.push([answer.status, answer.headers.get('server-timing') !== null, text]);
    } catch (error) { got.push(['blocked', false, '']); }
  }
  document.getElementById('got').textContent = 'GOT' + btoa(JSON.stringify(got)) + 'END';
})();
</script>"""


@contextmanager
def page(asks, *, then=""):
    """Serve the page that makes these requests, (url, options) each, on loopback; yield its port.

    Requests for anything but the page go to the server at `then`, as they came.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/":
                self.pass_on(None)
                return
            body = (PAGE % json.dumps(asks)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            self.pass_on(self.rfile.read(int(self.headers["Content-Length"] or 0)))

        def pass_on(self, body):
            connection = http.client.HTTPConnection(then, timeout=10)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            text = answer.read()
            connection.close()
            self.send_response(answer.status)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def visit(folder, url, *flags):
    """Have the browser visit a page, and return what its requests got: (status or 'blocked', timed, text)."""
    command = [
        str(CHROMIUM),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        f"--user-data-dir={folder}",
        "--virtual-time-budget=20000",
        "--dump-dom",
        *flags,
        url,
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.search("GOT([A-Za-z0-9+/=]+)END", dom)
    assert found, dom
    return [tuple(each) for each in json.loads(base64.b64decode(found[1]))]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    write_model(folder)
    return (f"--model-repository={folder}", "--model-control-mode=explicit", "--load-model=double")


def asks_of(address):
    infer = {"method": "POST", "body": json.dumps(INFER)}
    return [
        (f"http://{address}/v2/models/double/infer", infer),  # text/plain: no preflight
        (
            f"http://{address}/v2/models/double/infer",
            {**infer, "headers": {"Content-Type": "application/json"}},
        ),
        (f"http://{address}/v2/models/double", {}),
        (f"http://{address}/v2/repository/models/double/unload", {"method": "POST", "mode": "no-cors"}),
        (f"http://{address}/v2/repository/models/double/unload", {"method": "POST"}),
        (f"http://{address}/v2/models/nope", {}),
    ]


def test_a_page_of_another_site_gets_and_changes_nothing(tmp_path, repository):
    with serving(tmp_path / "server", *repository) as server:
        server.wait_ready()
        with page(asks_of(server.address())) as port:
            got = visit(tmp_path / "browser", f"http://127.0.0.1:{port}/")
        # An opaque answer has the status 0, whatever it was.
        assert [status for status, _, _ in got] == ["blocked", "blocked", "blocked", 0, "blocked", "blocked"]
        assert server.get("/v2/models/double/ready")[0] == 200
        assert b'"inference_count":0' in server.get("/v2/models/double/stats")[2].replace(b" ", b"")


def test_a_page_of_a_named_origin_infers_reads_answers_and_errors_and_changes_nothing(tmp_path, repository):
    # The page's port is known before the server starts, and the server's before the page is asked for.
    asks: list[tuple[str, dict[str, object]]] = []
    with page(asks) as port:
        flag = f"--cors-allowed-origins=http://127.0.0.1:{port}"
        with serving(tmp_path / "server", *repository, flag, "--server-timing=true") as server:
            server.wait_ready()
            asks += asks_of(server.address())
            got = visit(tmp_path / "browser", f"http://127.0.0.1:{port}/")
            assert [status for status, _, _ in got] == [200, 200, 200, 0, 403, 404]
            assert [timed for _, timed, _ in got] == [True, True, False, False, False, False]
            assert json.loads(got[0][2])["outputs"][0]["data"] == [2, 4]
            assert "may not change what is served" in got[4][2]
            assert server.get("/v2/models/double/ready")[0] == 200


@pytest.mark.long
def test_a_name_that_is_rebound_to_the_server_infers_and_changes_nothing(tmp_path, repository):
    """The page's own name and port lead to the server once the page is loaded: one origin, to the browser.

    What only reads passes over plain HTTP: of such requests no browser says which page they are of.
    """
    asks: list[tuple[str, dict[str, object]]] = []
    with serving(tmp_path / "server", *repository) as server:
        server.wait_ready()
        with page(asks, then=server.address()) as port:
            asks += asks_of(f"evil.example:{port}")
            rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
            got = visit(tmp_path / "browser", f"http://evil.example:{port}/", rules)
        assert [status for status, _, _ in got] == [403, 403, 200, 403, 403, 404]
        assert all("--trusted-hosts" in text for status, _, text in got if status == 403)
        assert server.get("/v2/models/double/ready")[0] == 200
        assert b'"inference_count":0' in server.get("/v2/models/double/stats")[2].replace(b" ", b"")
