"""A model version on a real worker process: load, execute, print, cancel, stop."""

import gc
import os
import signal

import numpy as np
import psutil
import pytest
import trio

from actors.serving.probing import probe
from actors.serving.standing import Status
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, TritiumError
from actors.values.specs import InputSpec, InstanceSpec, OutputSpec, Retry, WarmupSample
from actors.values.tensors import Tensor
from tests.engine.worker.conftest import until

pytestmark = pytest.mark.system


async def test_requests_of_one_batch_get_their_own_rows(serve):
    async with serve("doubling") as model:
        requests = [await model.send(*([float(n)] * (n + 1))) for n in range(10)]
        for n, request in enumerate(requests):
            answer = await model.answer(request)
            assert answer.outputs[0].shape == (n + 1, 4)
            assert (answer.outputs[0].as_numpy() == 2 * n).all()
        assert model.state.statistics.execution_count < 10


async def test_requests_of_different_shapes_are_answered_apart(serve):
    async with serve("doubling") as model:
        narrow = model.request(np.ones((1, 2)))
        wide = model.request(np.ones((1, 8)))
        await model.state.submit(narrow)
        await model.state.submit(wide)
        assert (await model.answer(narrow)).outputs[0].shape == (1, 2)
        assert (await model.answer(wide)).outputs[0].shape == (1, 8)


@pytest.mark.slow
async def test_tensors_larger_than_a_segment_make_it_grow(serve):
    async with serve("doubling", max_batch_size=4) as model:
        big = np.arange(4 * 1024 * 1024, dtype=np.float32).reshape(1, -1)
        for _ in range(3):
            request = model.request(big)
            await model.state.submit(request)
            answer = await model.answer(request)
            assert (answer.outputs[0].as_numpy() == big * 2).all()
            assert answer.leased
            answer.release()


async def test_an_exception_in_execute_is_an_error_answer_and_no_crash(serve):
    async with serve("doubling") as model:
        pid = model.pid()
        with pytest.raises(TritiumError, match="ValueError: no such luck") as caught:
            await model.infer(669.0)
        assert caught.value.code is ErrorCode.INTERNAL
        assert (await model.infer(1.0)).tolist() == [[2.0] * 4]
        assert model.pid() == pid


async def test_what_a_model_prints_is_logged_with_its_actor(serve):
    async with serve("doubling") as model:
        await model.infer(670.0)
        await until(lambda: len(model.logged("worker_output")) >= 2)
        lines = {entry["line"]: entry["actor"] for entry in model.logged("worker_output")}
        assert lines == {
            "hello from the model": "models/model/1/instances/0",
            "and from stderr": "models/model/1/instances/0",
        }


async def test_cancelling_a_running_request_is_seen_by_the_model(serve):
    async with serve("doubling") as model:
        request = await model.send(671.0)
        await until(lambda: len(model.begun()) == 1)
        model.state.cancel(request)
        answer = await model.answer(request)
        assert isinstance(answer, TritiumError)
        assert answer.message == "saw it"


@pytest.mark.parametrize(
    ("load", "reason", "line"),
    [
        ("fail", "Internal: the model file is not there", ""),
        ("raise", "Internal: KeyError: 'weights'", "Traceback"),
        ("segfault", "SIGSEGV", ""),
    ],
)
async def test_a_model_that_cannot_be_loaded_says_why(serve, load, reason, line):
    async with serve("doubling", parameters={"load": load}) as model:
        assert model.state.status is Status.UNAVAILABLE
        assert reason in model.state.reason
        assert not line or any(line in entry.get("line", "") for entry in model.logged("worker_output"))
        with pytest.raises(TritiumError, match="is not at ready state"):
            await model.send(1.0)


async def test_warmup_runs_before_the_model_is_ready(serve):
    sample = WarmupSample(
        name="sample",
        requests=((Tensor.from_numpy("INPUT", np.ones((1, 4), np.float32)),),) * 3,
        count=2,
    )
    async with serve("doubling", warmup=(sample,)) as model:
        assert model.state.status is Status.READY
        assert model.state.statistics.execution_count == 2
        assert model.state.statistics.inference_count == 6


async def test_bytes_tensors_travel_packed_both_ways(serve):
    async with serve(
        "strings",
        inputs=(InputSpec(name="INPUT", datatype=DataType.BYTES, dims=(-1,)),),
        outputs=(OutputSpec(name="OUTPUT", datatype=DataType.BYTES, dims=(-1,)),),
    ) as model:
        requests = []
        for words in ([b"a", b"bc"], [b"", b"\xff\x00"], [b"long" * 100, b"x"]):
            request = model.request([0.0])
            request.inputs = [Tensor.from_numpy("INPUT", np.array([words], dtype=object))]
            await model.state.submit(request)
            requests.append((words, request))
        for words, request in requests:
            answer = await model.answer(request)
            assert answer.outputs[0].as_numpy().tolist() == [[word[::-1] for word in words]]


async def test_lanes_run_batches_side_by_side_in_one_process(serve, tmp_path):
    gate = tmp_path / "gate"
    async with serve(
        "pausing", parameters={"gate": str(gate)}, instances=(InstanceSpec(name="model_0", lanes=2),)
    ) as model:
        requests = []
        for n in range(4):
            requests.append(await model.send(float(n)))
            await until(lambda n=n: len(model.begun()) == min(2, n + 1))
        gate.touch()
        for n, request in enumerate(requests):
            assert (await model.answer(request)).outputs[0].as_numpy()[0, 0] == 2 * n


async def test_a_backend_can_run_on_a_thread_of_the_server(serve):
    async with serve("in_thread", isolation="thread") as model:
        assert model.pid() == os.getpid()
        assert (await model.infer(1.0, 2.0)).tolist() == [[2.0] * 4, [4.0] * 4]
        with pytest.raises(TritiumError, match="ValueError"):
            await model.infer(669.0)


async def test_a_backend_with_a_readiness_check_is_asked(serve, tmp_path):
    mood = tmp_path / "mood"
    async with serve("moody", parameters={"mood": str(mood)}) as model:
        assert not await model.state.standing.says_ready()
        mood.touch()
        assert await model.state.standing.says_ready()
        assert (await model.infer(1.0)).tolist() == [[2.0] * 4]  # traffic does not depend on it


async def test_many_who_ask_share_one_answer(serve, tmp_path):
    async with serve("moody", parameters={"mood": str(tmp_path)}) as model:
        said = []

        async def ask():
            said.append(await model.state.standing.says_ready())

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        assert said == [True] * 20


async def test_stopping_leaves_no_process_descriptor_or_memory_behind(serve):
    me = psutil.Process()

    def held():
        segments = [entry.path for entry in me.memory_maps(grouped=False) if "/memfd:tritium" in entry.path]
        return me.num_fds(), len(segments), [child.pid for child in me.children()]

    async with serve("doubling"):
        pass  # imports and caches that stay are made here
    gc.collect()  # what other tests left in cycles
    gc.disable()
    try:
        before = held()
        for _ in range(2):
            async with serve("doubling") as model:
                pid = model.pid()
                await model.infer(1.0)
            assert not psutil.pid_exists(pid)
        await trio.testing.wait_all_tasks_blocked()
        assert held() == before  # freed as they ended, not when a collection comes by
    finally:
        gc.enable()


# -- probe inferences through a real queue, scheduler and worker


@pytest.mark.slow
async def test_a_probe_goes_all_the_way_and_leaves_no_trace_in_the_statistics(serve):
    async with serve("doubling") as model:
        outcome = await probe(model.state, within=10.0)
        assert (outcome.answered, outcome.error) == (True, "")
        assert model.state.statistics.success_count == model.state.statistics.execution_count == 0
        assert (await model.infer(1.0)).tolist() == [[2.0] * 4]
        assert model.state.statistics.success_count == 1


@pytest.mark.slow
async def test_a_worker_that_dies_under_a_probe_has_not_answered(serve, tmp_path):
    parameters = {"gate": str(tmp_path / "gate")}
    async with serve("pausing", parameters=parameters, retry=Retry.NEVER) as model:
        outcomes = []

        async def ask():
            outcomes.append(await probe(model.state, within=20.0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: bool(model.begun()))
            os.kill(model.pid(), signal.SIGSEGV)
        (outcome,) = outcomes
        assert not outcome.answered
        assert "died of signal 11" in outcome.error
