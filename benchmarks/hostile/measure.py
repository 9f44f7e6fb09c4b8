"""Measures what hostile inputs do: each to a server of its own, alone first, then beside a neighbour."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self

from benchmarks import processes
from benchmarks.helper import Helper
from benchmarks.hostile import watched
from benchmarks.hostile.beside_stream import StreamNeighbour, write_languages
from benchmarks.hostile.inputs import FLOATS, TEXTS, Hostile, infer_path
from benchmarks.hostile.languages import everything
from benchmarks.results import Attack, Skipped, percentile
from benchmarks.runner import Progress
from benchmarks.subjects import NotStarted, Subject, printing_port, running, wait_ready
from chaos.subject.ports import free_ports

NEIGHBOUR: Final = "neighbour"
_MODEL: Final = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(each, "IN").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor)]) for tensor in tensors]
"""
_CONFIG: Final = """\
backend: "python"
max_batch_size: 0
input [ {{ name: "IN" data_type: {0} dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: {0} dims: [ -1 ] }} ]
"""
_ASKED: Final = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[4],"data":[1,2,3,4]}]}'
# Seconds in which a server that has answered gives memory back, before its memory is read.
_SETTLE: Final = 0.3
_LANGUAGES: Final = "languages"
_LOG: Final = "besieged.log"
_DEATHS: Final = (b"child_exited", b"child_restarted", b"restarts_exhausted", b"a helper of the text worker")
"""What a server's log has where something of it has died."""


def write_models(directory: Path) -> None:
    """Write the three models: what is attacked, and what the neighbour asks."""
    for name, datatype in ((FLOATS, "TYPE_FP32"), (TEXTS, "TYPE_STRING"), (NEIGHBOUR, "TYPE_FP32")):
        version = directory / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(_MODEL)
        (version.parent / "config.pbtxt").write_text(_CONFIG.format(datatype))


class Siege:
    """Attacks servers started from `checkout`, on the machine's first core; the attacker has the last."""

    def __init__(self, checkout: Path, scratch: Path, progress: Progress, *, seconds: float) -> None:
        self._checkout = checkout
        self._scratch = scratch
        self._progress = progress
        self._seconds = seconds
        self._cores = sorted(os.sched_getaffinity(0))

    def run(self, only: str) -> tuple[Sequence[Attack], Sequence[Skipped]]:
        """Attack with every input whose name holds `only`.

        Returns what was measured, and what could not be.
        """
        write_models(self._scratch / "besieged")
        attacks: list[Attack] = []
        skipped: list[Skipped] = []
        inputs = [each for each in everything() if only in each.name]
        if any(each.openai for each in inputs):
            write_languages(self._scratch / _LANGUAGES)
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self._cores[0]})  # the neighbour is this process
        try:
            with printing_port("sink", ["benchmarks.hostile.sink"], self._scratch) as (_, sink):
                for number, hostile in enumerate(inputs, 1):
                    self._progress.step(f"[{number}/{len(inputs)}] {hostile.name}")
                    try:
                        attacks.append(self._attack(hostile, sink))
                    except (OSError, NotStarted, ValueError) as error:
                        skipped.append(Skipped(hostile.name, "hostile", str(error) or repr(error)))
                        self._progress.result(f"{hostile.name}: not measured: {error}")
                    else:
                        self._tell(attacks[-1])
        finally:
            os.sched_setaffinity(0, before)
        return attacks, skipped

    def _tell(self, found: Attack) -> None:
        self._progress.result(
            f"{found.name}: {found.answer}; {found.turn * 1e3:.1f} ms, {found.memory / 2**20:.1f} of"
            f" {found.allowed / 2**20:.1f} MiB, neighbour {found.beside / found.beside_sink:.2f} times"
        )

    def _attack(self, hostile: Hostile, sink: int) -> Attack:
        page = self._scratch / "longest-turn"
        page.unlink(missing_ok=True)
        turn = memoryview(watched.mapped(page)).cast("Q")
        with ExitStack() as stack:
            server, openai = stack.enter_context(self._server(page, languages=hostile.openai))
            attacker = stack.enter_context(self._attacker(hostile, server, openai, sink))
            size = attacker.read()["size"]
            neighbour: Neighbour | StreamNeighbour
            neighbour = stack.enter_context(
                StreamNeighbour(openai) if hostile.openai else Neighbour(server.port)
            )
            neighbour.ask()
            assert server.pid is not None
            time.sleep(_SETTLE)
            before = _reset_peak(server.pid)
            turn[0] = 0
            answer = attacker.attack("server", 0.0)["answer"]
            took, longest = _peak(server.pid) - before, turn[0] / 1e9
            beside_p50, beside = self._beside(attacker, neighbour, "server")
            _, beside_sink = self._beside(attacker, neighbour, "sink")
            died = [each for each in _DEATHS if each in (self._scratch / _LOG).read_bytes()]
        if died:
            raise OSError(f"something of the server has died: its log has {died[0].decode()}")
        return Attack(
            name=hostile.name,
            size=size,
            answer=answer,
            turn=longest,
            memory=max(took, 0),
            allowed=hostile.allowed(size),
            beside_p50=beside_p50,
            beside=beside,
            beside_sink=beside_sink,
        )

    def _beside(
        self, attacker: _Attacker, neighbour: Neighbour | StreamNeighbour, whom: str
    ) -> tuple[float, float]:
        """Return the neighbour's p50 and p99, in seconds, while the server or the sink is attacked."""
        attacker.begin(whom, self._seconds)
        latencies = sorted(neighbour.ask_for(self._seconds))
        attacker.read()
        return percentile(latencies, 50), percentile(latencies, 99)

    @contextmanager
    def _server(self, page: Path, *, languages: bool) -> Iterator[tuple[Subject, int]]:
        """Start a server; yield it, and its port for the OpenAI API, 0 without `languages`."""
        http, grpc, metrics, openai = free_ports(4)
        command = [sys.executable, "-m", "benchmarks.hostile.watched", str(page)]
        command += ["--languages", f"--openai-port={openai}"] if languages else []
        command += [f"--model-repository={self._scratch / (_LANGUAGES if languages else 'besieged')}"]
        command += ["--model-control-mode=explicit"]
        command += ["--load-model=*", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
        command += [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
        log = self._scratch / _LOG
        with running(command, cwd=self._checkout, log=log) as child:
            subject = Subject(label="server", host="127.0.0.1", port=http, grpc_port=grpc, pid=child.pid)
            wait_ready(subject, child, log)
            yield subject, openai if languages else 0

    def _attacker(self, hostile: Hostile, server: Subject, openai: int, sink: int) -> _Attacker:
        return _Attacker(
            "benchmarks.hostile.attacker",
            f"--input={hostile.name}",
            f"--http={server.port}",
            f"--grpc={server.grpc_port}",
            f"--sink={sink}",
            f"--core={self._cores[-1]}",
            f"--openai={openai}",
        )


class _Attacker(Helper):
    """The process that attacks when it is told to."""

    def begin(self, whom: str, seconds: float) -> None:
        """Have it attack, and do not wait for the end."""
        self.order(f"{whom} {seconds}")

    def attack(self, whom: str, seconds: float) -> Any:
        """Have it attack, and return what came of it."""
        self.begin(whom, seconds)
        return self.read()


class Neighbour:
    """A client that means well: one small request after the other, over one connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST {infer_path(NEIGHBOUR)} HTTP/1.1\r\nhost: n\r\ncontent-length: {len(_ASKED)}\r\n\r\n"
        self._request = head.encode() + _ASKED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self) -> float:
        """Ask once; return the seconds until the answer was whole.

        Raises OSError for any answer but the right one.
        """
        began = time.perf_counter()
        self._socket.sendall(self._request)
        answer = b""
        while not answer.endswith(b"]}"):
            more = self._socket.recv(65_536)
            if not more:
                raise OSError("the neighbour's connection was closed")
            answer += more
        took = time.perf_counter() - began
        if not answer.startswith(b"HTTP/1.1 200") or b"[1.0,2.0,3.0,4.0]" not in answer:
            raise OSError(f"the neighbour was answered {answer[:200]!r}")
        return took

    def ask_for(self, seconds: float) -> Sequence[float]:
        """Ask for so long; return how long each took."""
        until = time.perf_counter() + seconds
        latencies = []
        while time.perf_counter() < until:
            latencies.append(self.ask())
        return latencies


def _reset_peak(pid: int) -> int:
    """Have the kernel forget the highest resident memory of a process so far; return the present."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return processes.resident(pid)


def _peak(pid: int) -> int:
    """Return the highest resident memory of a process, in bytes, since it was last reset."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} is gone")
