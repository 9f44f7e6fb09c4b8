"""Decoupled models in real workers: any number of responses, in any order, but no more than are taken."""

import os
import signal

import numpy as np
import pytest
import trio

from actors.values.errors import ErrorCode, TritiumError
from actors.values.requests import InferRequest, InferResponse, ReplyPort
from actors.values.specs import InstanceSpec, WarmupSample
from actors.values.tensors import Tensor
from actors.wire.frames import WINDOW_BYTES, WINDOW_PARTS
from tests.engine.worker.conftest import until

pytestmark = [pytest.mark.slow, pytest.mark.system]


class Parts(ReplyPort):
    """A reply port that releases each part at once, or when a test says so."""

    def __init__(self, *, takes=True):
        self.takes = takes
        self.parts = []
        self.finals = 0
        self.ended = trio.Event()
        self._waiting = []

    def put(self, part, *, final):
        assert not self.finals
        # Copy an error: as long as the error itself is referenced, it counts as on its way.
        copied = isinstance(part, TritiumError)
        self.parts.append(TritiumError.of(part.code, part.message) if copied else _seen(part))
        self.finals += final
        if isinstance(part, InferResponse):
            if self.takes:
                part.release()
            else:
                self._waiting.append(part)
        if final:
            self.ended.set()

    def take(self):
        """Release everything that waits, and all that will come."""
        self.takes = True
        while self._waiting:
            self._waiting.pop().release()

    @property
    def numbers(self):
        """The first element of each response that has one."""
        return [part for part in self.parts if isinstance(part, float)]


def _seen(response):
    if not response.outputs:
        return None
    array = response.outputs[0].as_numpy()
    assert (array == array.flat[0]).all()
    return float(array.flat[0])


async def stream(model, count, *, columns=4, port=None, **options):
    """Ask for `count` responses; return the port."""
    port = port or Parts()
    request = InferRequest(
        model_name=model.state.spec.name,
        inputs=[Tensor.from_numpy("INPUT", np.full((1, columns), count, np.float32))],
        reply=port,
        accepted_at=trio.current_time(),
        **options,
    )
    port.request = request
    await model.state.submit(request)
    return port


async def streamed(model, count, **options):
    """The same; return the port when the last response has come."""
    port = await stream(model, count, **options)
    await port.ended.wait()
    return port


def decoupled(mode, tmp_path, **changes):
    return {"decoupled": True, "parameters": {"mode": mode, "directory": str(tmp_path)}, **changes}


@pytest.fixture(params=["streaming", "streaming_in_thread"])
def backend(request):
    """The same model in a process, and on a thread of the server's."""
    isolation = "thread" if request.param.endswith("thread") else "process"
    return request.param, {"isolation": isolation}


@pytest.mark.parametrize("mode", ["in_threads", "at_once"])
async def test_responses_come_in_order_and_the_end_alone(serve, tmp_path, backend, mode):
    name, isolation = backend
    async with serve(name, **decoupled(mode, tmp_path), **isolation) as model:
        for count in (0, 1, 3, 200):
            port = await streamed(model, count)
            assert port.numbers == list(range(count))
            assert port.parts[-1] is None


async def test_requests_of_one_batch_and_of_many_are_answered_side_by_side(serve, tmp_path):
    async with serve("streaming", **decoupled("in_threads", tmp_path)) as model:
        counts = [int(count) for count in np.random.default_rng(7).integers(0, 60, 50)]
        ports = [await stream(model, count) for count in counts]
        for count, port in zip(counts, ports, strict=True):
            await port.ended.wait()
            assert port.numbers == list(range(count))
        statistics = model.state.statistics
        assert statistics.success_count == statistics.inference_count == 50
        assert statistics.execution_count <= 50
        assert statistics.reply_violations == 0


@pytest.mark.parametrize(
    ("mode", "parts"),
    [
        ("final_with_the_last", [0.0, 1.0, 2.0]),
        ("as_others_do", [6.0]),
        ("both_ways", [None]),
        ("letting_go", [0.0, "model 'model' let go of a request without its final response"]),
        ("raising", ["ValueError: no such luck"]),
    ],
)
async def test_a_request_ends_however_its_model_ends_it(serve, tmp_path, mode, parts):
    async with serve("streaming", **decoupled(mode, tmp_path)) as model:
        port = await streamed(model, 3)
        assert [getattr(part, "message", part) for part in port.parts] == parts


async def test_large_responses_come_whole(serve, tmp_path):
    async with serve("streaming", **decoupled("in_threads", tmp_path)) as model:
        port = await streamed(model, 5, columns=1_000_003)
        assert port.numbers == [0, 1, 2, 3, 4]


async def test_errors_do_not_end_a_request_and_nothing_comes_after_the_end(serve, tmp_path):
    async with serve("streaming", **decoupled("with_errors", tmp_path)) as model:
        port = await streamed(model, 3 * WINDOW_PARTS)
        assert [part.message for part in port.parts[:2]] == ["not 0", "not 1"]
        assert port.parts[0].code is ErrorCode.UNAVAILABLE
        assert (port.parts[-1].code, port.parts[-1].message) == (ErrorCode.INVALID_ARG, "and no more")
        await until((tmp_path / "refused").exists)
        assert model.state.statistics.failure_count == 1


async def test_errors_that_nobody_lets_go_of_hold_the_model_up(serve, tmp_path):
    async with serve("streaming", **decoupled("with_errors", tmp_path)) as model:
        kept = []

        class Keeping(Parts):
            def put(self, part, *, final):
                kept.append(part)
                super().put(part, final=final)

        port = await stream(model, 3 * WINDOW_PARTS, port=Keeping())
        await until(lambda: len(port.parts) == WINDOW_PARTS)
        with trio.move_on_after(0.2):
            await port.ended.wait()
        assert len(port.parts) == WINDOW_PARTS
        while not port.ended.is_set():
            kept.clear()
            await trio.sleep(0.001)
        assert len(port.parts) == 3 * WINDOW_PARTS + 1


async def test_a_reader_that_stalls_costs_a_window_and_holds_up_nobody_else(serve, tmp_path):
    async with serve("streaming", **decoupled("in_threads", tmp_path)) as model:
        stalled = await stream(model, 500, id="stalled", port=Parts(takes=False))
        large = await stream(model, 50, columns=WINDOW_BYTES, id="large", port=Parts(takes=False))
        await until(lambda: len(stalled.parts) == WINDOW_PARTS and len(large.parts) == 1)
        other = await streamed(model, 500, id="other")
        assert other.numbers == list(range(500))
        assert (len(stalled.parts), len(large.parts)) == (WINDOW_PARTS, 1)
        sent = (tmp_path / "sent").read_text().splitlines()
        assert sum(line.startswith("stalled") for line in sent) == WINDOW_PARTS
        stalled.take()
        large.take()
        await stalled.ended.wait()
        await large.ended.wait()
        assert stalled.numbers == list(range(500))
        assert large.numbers == list(range(50))


async def test_a_cancelled_request_is_told_to_the_model(serve, tmp_path):
    async with serve("streaming", **decoupled("in_threads", tmp_path)) as model:
        port = await stream(model, 100_000_000, id="a")
        await until(lambda: len(port.parts) > 10)
        model.state.cancel(port.request)
        await port.ended.wait()
        assert (tmp_path / "cancelled-a").exists()


async def test_a_request_whose_client_leaves_before_the_model_has_begun_is_never_executed(serve, tmp_path):
    async with serve("streaming", **decoupled("in_threads", tmp_path)) as model:
        worker = model.state.instances[0].worker
        for _ in range(10):
            os.kill(model.pid(), signal.SIGSTOP)
            port = await stream(model, 100_000_000, id="a")
            await until(lambda: not worker.idle)
            model.state.cancel(port.request)
            await port.ended.wait()  # though the worker is stopped
            assert [part.code for part in port.parts] == [ErrorCode.CANCELLED]
            os.kill(model.pid(), signal.SIGCONT)
            await until(lambda: not worker.memory.in_use)  # it has passed over it
        assert not (tmp_path / "cancelled-a").exists()
        last = await streamed(model, 1)
        assert last.numbers == [0.0]


async def test_a_request_that_waits_for_a_client_that_leaves_comes_free(serve, tmp_path):
    async with serve("streaming", **decoupled("in_threads", tmp_path)) as model:
        port = await stream(model, 100_000_000, id="a", port=Parts(takes=False))
        await until(lambda: len(port.parts) == WINDOW_PARTS)
        model.state.cancel(port.request)
        port.take()
        await port.ended.wait()
        await until(lambda: model.state.instances[0].worker.idle)


async def test_the_death_of_a_worker_ends_each_open_request_once_and_the_model_serves_on(serve, tmp_path):
    async with serve("streaming", **decoupled("dying", tmp_path)) as model:
        ports = [await stream(model, 1) for _ in range(5)]
        await until(lambda: all(port.parts for port in ports))
        os.kill(model.pid(), signal.SIGKILL)
        for port in ports:
            await port.ended.wait()
            assert port.finals == 1
            assert port.parts[0] == 0.0
            assert port.parts[1].code is ErrorCode.UNAVAILABLE
            assert "died of signal 9" in port.parts[1].message
        again = await stream(model, 1)
        await until(lambda: again.parts == [0.0])
        assert model.state.statistics.deaths == {"signal_9": 1}
        model.state.cancel(again.request)
        os.kill(model.pid(), signal.SIGKILL)
        await again.ended.wait()
        assert again.parts[-1].code is ErrorCode.CANCELLED


async def test_a_request_that_kills_is_not_run_again(serve, tmp_path):
    async with serve("streaming", **decoupled("dying", tmp_path)) as model:
        port = await streamed(model, -1)
        assert "died of signal 11" in port.parts[-1].message
        assert port.request.attempts == 1


async def test_a_version_that_retires_answers_what_is_open(serve, tmp_path):
    async with serve("streaming", **decoupled("in_threads", tmp_path)) as model:
        port = await stream(model, 300, port=Parts(takes=False))
        await until(lambda: len(port.parts) == WINDOW_PARTS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.state.wait_drained)
            port.take()
        assert port.numbers == list(range(300))


async def test_warmup_waits_for_the_last_response(serve, tmp_path):
    tensor = Tensor.from_numpy("INPUT", np.full((1, 4), 20, np.float32))
    sample = WarmupSample(name="warm", count=12, requests=((tensor,), (tensor,)))
    options = decoupled("in_threads", tmp_path, warmup=(sample,), instances=(InstanceSpec(name="model_0_0"),))
    async with serve("streaming", **options) as model:
        assert len((tmp_path / "sent").read_text().splitlines()) == 12 * 2 * 20
        port = await streamed(model, 2)
        assert port.numbers == [0, 1]
