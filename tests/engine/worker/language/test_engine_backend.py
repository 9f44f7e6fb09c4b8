"""The backend that steps an engine: what it tells the server, and what of an engine reaches a request."""

import json
import queue
import threading
from typing import Any

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.language.backend import GAUGES, LanguageBackend
from engine.worker.backends.language.engine import STOP, Gauges, StepEngine, StepOutput
from engine.worker.backends.testing import LocalRequest, model_info, run
from tests.support.calls_double import LocalCalls


class Scripted(StepEngine):
    """Gives each stream one output, which a test has made of its number."""

    context = 10
    sleeps = (2,)

    def __init__(self, made):
        self._made = made
        self._streams = []

        self.threads = []
        self.orders = []

    def sleep(self, level):
        self.orders.append(level)

    def wake(self):
        self.orders.append("wake")

    def prepare(self, ids, sampling):
        self.threads.append(threading.get_ident())
        return ids, sampling

    def begin(self):
        self.threads.append(threading.get_ident())

    def add(self, stream, prepared):
        assert prepared == ([1, 2], {"max_tokens": 3})
        self.threads.append(threading.get_ident())
        self._streams.append(stream)

    def abort(self, streams):
        return

    def step(self):
        streams, self._streams = self._streams, []
        return [self._made(stream) for stream in streams]

    @property
    def busy(self):
        return bool(self._streams)

    def gauges(self):
        return Gauges(running=len(self._streams), prefix_queries=7)


class ScriptedBackend(LanguageBackend):
    """Steps a `Scripted`."""

    def __init__(self, made):
        self._made = made

    def make_engine(self, model):
        self.engine = Scripted(self._made)
        return self.engine


def _info(**options):
    return model_info(
        inputs=[TensorInfo("input_ids", DataType.INT32, [-1]), TensorInfo("sampling", DataType.BYTES, [1])],
        outputs=[TensorInfo("token_ids", DataType.INT32, [-1])],
        decoupled=True,
        **options,
    )


def _answers(made, **options):
    """Load the backend, ask it for one stream, and return the answers."""
    return _asked(ScriptedBackend(made), **options)


def _asked(backend, **options):
    model = _info(**options)
    backend.load(model)
    try:
        sampling = np.array([json.dumps({"max_tokens": 3}).encode()], object)
        request = LocalRequest({"input_ids": np.array([1, 2], np.int32), "sampling": sampling})
        run(backend, model, [request])
        assert request.ended.wait(20)
        return request.parts
    finally:
        backend.unload()


def test_the_id_that_was_named_to_stop_a_stream_is_a_parameter_of_its_last_part():
    """Beside the finish."""
    [answer] = _answers(lambda stream: StepOutput(stream, (4, 5), finish=STOP, reason=5))
    assert answer.outputs["token_ids"].tolist() == [4, 5]
    assert answer.parameters == {"finish": "stop", "stop_reason": 5}


def test_a_request_is_read_once_and_apart_from_the_thread_that_steps():
    """A long grammar, and a word's ids, hold up no step."""
    backend = ScriptedBackend(lambda stream: StepOutput(stream, (4,), finish=STOP))
    _asked(backend)
    began, prepared, added = backend.engine.threads
    assert prepared == threading.get_ident()
    assert began == added != prepared


@pytest.mark.parametrize(("invalid", "code"), [(True, ErrorCode.INVALID_ARG), (False, ErrorCode.INTERNAL)])
def test_an_error_of_one_stream_has_the_code_of_whose_fault_it_is(invalid, code):
    """The request's, or ours."""
    [answer] = _answers(lambda stream: StepOutput(stream, error="no such thing", invalid=invalid))
    assert (answer.code, answer.message) == (code, "no such thing")


def test_the_server_is_told_what_the_engine_is_busy_with_once_it_is_idle():
    """With all its fields, and not again while nothing changes."""
    told: queue.Queue[Any] = queue.Queue()
    _answers(lambda stream: StepOutput(stream, finish=STOP), calls=LocalCalls(subjects={GAUGES: told.put}))
    seen = [told.get_nowait() for _ in range(told.qsize())]
    assert seen[-1] == {**Gauges()._asdict(), "prefix_queries": 7, "steps": 1}
    assert len(seen) == 1


def test_an_engine_is_not_loaded_into_the_server_s_process():
    """Its death would be the server's."""
    threads = threading.active_count()
    with pytest.raises(LoadError, match="needs a process of its own"):
        ScriptedBackend(None).load(_info(parameters={"tritium.isolation": "thread"}))
    assert threading.active_count() == threads


def _ordered(backend, model, **sampling):
    """Ask the engine of a loaded backend for something; return the answers."""
    packed = np.array([json.dumps(sampling).encode()], object)
    ids = [] if sampling.keys() & {"sleep", "wake"} else [1, 2]
    request = LocalRequest({"input_ids": np.array(ids, np.int32), "sampling": packed})
    run(backend, model, [request])
    assert request.ended.wait(20)
    return request.parts


def test_an_engine_sleeps_and_wakes_when_it_is_told_to():
    """Twice is as good as once. A stream in between is refused, and one afterwards is not."""
    backend = ScriptedBackend(lambda stream: StepOutput(stream, (4,), finish=STOP))
    model = _info(parameters={"tritium.sleep": "2"})
    backend.load(model)
    try:
        assert _ordered(backend, model, sleep=2) == []
        assert _ordered(backend, model, sleep=2) == []
        [answer] = _ordered(backend, model, max_tokens=3)
        assert answer.code is ErrorCode.UNAVAILABLE
        assert _ordered(backend, model, wake=True) == []
        assert _ordered(backend, model, wake=True) == []
        [answer] = _ordered(backend, model, max_tokens=3)
        assert answer.outputs["token_ids"].tolist() == [4]
        assert backend.engine.orders == [2, "wake"]
        [answer] = _ordered(backend, model, sleep=1)
        assert answer.message == "this engine does not sleep at level 1, only at level 2"
    finally:
        backend.unload()


def test_an_engine_that_has_a_stream_does_not_fall_asleep():
    """It says so, and goes on."""
    backend, model = ScriptedBackend(lambda stream: StepOutput(stream, (4,))), _info()
    backend.load(model)
    try:
        packed = np.array([json.dumps({"max_tokens": 3}).encode()], object)
        run(backend, model, [LocalRequest({"input_ids": np.array([1, 2], np.int32), "sampling": packed})])
        [answer] = _ordered(backend, model, sleep=2)
        assert (answer.code, backend.engine.orders) == (ErrorCode.UNAVAILABLE, [])
    finally:
        backend.unload()


def test_a_level_that_an_engine_does_not_have_is_refused_at_its_load():
    """With those that it has."""
    backend = ScriptedBackend(lambda stream: StepOutput(stream))
    with pytest.raises(LoadError, match=r"'tritium\.sleep' is 1, but this engine does not sleep at level 1"):
        backend.load(_info(parameters={"tritium.sleep": "1"}))
