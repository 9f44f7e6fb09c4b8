"""What several tests of the commands need: a server that gives prepared answers, and a small ONNX model."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from onnx import TensorProto, helper


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], tuple[int, bytes]]) -> Iterator[str]:
    """Serve HTTP, with the status and body that `answer` has for each request; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            status, body = answer(self)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = respond

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


def onnx_model(*shape: int | str, kind: int = TensorProto.FLOAT) -> bytes:
    """An ONNX file whose output `y` is its input `x`."""
    ports = [helper.make_tensor_value_info(name, kind, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ports[:1], ports[1:])
    opset = helper.make_opsetid("", 21)
    return helper.make_model(graph, ir_version=10, opset_imports=[opset]).SerializeToString()
