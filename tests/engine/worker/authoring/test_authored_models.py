"""The outcome of requests to a model under `tritium.model`, on the backend that runs it."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tritium
from engine.worker.authoring.calls import calls_of
from engine.worker.authoring.declaring import declared_in
from engine.worker.backends.python.exchange import InferenceRequest
from engine.worker.backends.python.tensors import Tensor
from tritium.testing import Fault, InferenceFailed, ModelNotLoaded, Request, open_model

pytestmark = [pytest.mark.system]


def floats(*values):
    return np.array(values, np.float32)


@pytest.mark.slow
def test_a_function_gets_the_tensors_of_a_request_and_what_it_returns_is_the_answer(model_file):
    file = model_file("""
        class Answer(NamedTuple):
            total: FP32[Array, 2]
            difference: FP32[Array, 2]

        @tritium.model
        def add_sub(a: FP32[Array, 2], b: FP32[Array, 2]) -> Answer:
            return Answer(a + b, a - b)
    """)
    with open_model(file) as model:
        answer = model.infer({"a": floats(5, 6), "b": floats(1, 2)})
        assert {name: array.tolist() for name, array in answer.items()} == {
            "total": [6, 8],
            "difference": [4, 4],
        }
        [some] = model.responses(
            Request({"a": floats(5, 6), "b": floats(1, 2)}, requested_outputs=["difference"])
        )
        assert list(some) == ["difference"]


JOINED = """
    @tritium.model(max_batch_size=8)
    def count(x: FP32[Array, -1], y: FP32[Array, 1] | None = None) -> INT64[Array, 2]:
        given = 0 if y is None else int(y[0, 0])
        return np.array([[len(x), given]] * len(x))
"""


@pytest.mark.slow
def test_requests_of_a_batch_are_joined_where_their_inputs_are_alike(model_file):
    with open_model(model_file(JOINED)) as model:
        one, three = np.zeros((1, 4), "f4"), np.zeros((3, 4), "f4")
        answers = model.batch([{"x": one}, {"x": three}])
        assert [answer["output"].tolist() for [answer] in answers] == [[[4, 0]], [[4, 0]] * 3]


@pytest.mark.slow
def test_requests_of_other_dims_are_given_to_a_call_of_their_own():
    @tritium.model(max_batch_size=8)
    def double(x: tritium.FP32[tritium.Array, -1]) -> tritium.FP32[tritium.Array, -1]: ...

    module = ModuleType(__name__)
    vars(module)["double"] = double
    shapes = [(1, 4), (2, 5), (3, 4)]
    requests = [
        InferenceRequest(
            model_name="m", requested_output_names=["output"], inputs=[Tensor("x", np.zeros(shape, "f4"))]
        )
        for shape in shapes
    ]
    found: Any = declared_in(module)
    calls = calls_of(requests, found)
    assert [(list(call.positions), list(call.rows), call.arguments["x"].shape) for call in calls] == [
        ([0, 2], [1, 3], (4, 4)),
        ([1], [2], (2, 5)),
    ]


@pytest.mark.slow
def test_an_optional_input_that_is_left_out_has_the_functions_default(model_file):
    with open_model(model_file(JOINED)) as model:
        x = np.zeros((1, 4), "f4")
        assert model.infer({"x": x})["output"].tolist() == [[1, 0]]
        assert model.infer({"x": x, "y": [[7]]})["output"].tolist() == [[1, 7]]


@pytest.mark.slow
def test_a_function_that_asks_for_the_request_is_called_for_each(model_file):
    file = model_file("""
        @tritium.model(max_batch_size=8)
        def tell(x: FP32[Array, 1], request: tritium.Request) -> BYTES[Array, 1]:
            if request.id == "bad":
                raise RequestError("no such user", "NOT_FOUND")
            said = (request.id, request.parameters["who"], request.correlation_id, request.flags, request.timeout)
            return [[str((*said, request.requested_outputs, request.cancelled()))]] * len(x)
    """)
    with open_model(file) as model:
        x = {"x": [[0.0]]}
        good = Request(
            x,
            id="a",
            parameters={"who": "me"},
            correlation_id=7,
            flags=1,
            timeout=1.5,
            fault=Fault(cancelled=True),
        )
        [first], [second] = model.batch([good, Request(x, id="bad")])
        assert first["output"].tolist() == [[b"('a', 'me', 7, 1, 1.5, ['output'], True)"]]
        assert second.error is not None
        assert (second.error.code, second.error.message) == ("NOT_FOUND", "no such user")


@pytest.mark.slow
def test_what_a_call_for_several_requests_raises_answers_all_of_them(model_file):
    file = model_file("""
        @tritium.model(max_batch_size=8)
        def refuse(x: FP32[Array, 1]) -> FP32[Array, 1]:
            if x.min() < 0:
                raise RequestError("too small", "UNSUPPORTED")
            return x
    """)
    with open_model(file) as model:
        answers: Any = model.batch([{"x": [[1.0]]}, {"x": [[-1.0]]}])
        assert [(answer.error.code, answer.error.message) for [answer] in answers] == [
            ("UNSUPPORTED", "too small")
        ] * 2
        assert model.infer({"x": [[1.0]]})["output"].tolist() == [[1]]


@pytest.mark.slow
def test_an_exception_answers_its_request_in_the_contracts_words(model_file):
    file = model_file("""
        @tritium.model
        def divide(x: INT64[Array, 1], request: tritium.Request) -> INT64[Array, 1]:
            return [1 // int(x[0])]
    """)
    with open_model(file) as model:
        with pytest.raises(InferenceFailed) as caught:
            model.infer({"x": [0]})
        assert caught.value.code == "INTERNAL"
        assert caught.value.message.startswith(
            "Failed to process the request(s) for model 'my_model_0_0', message: ZeroDivisionError:"
        )
        assert f"At:\n  {file}(" in caught.value.message
        assert "engine/worker/authoring" not in caught.value.message
        assert model.infer({"x": [1]})["output"].tolist() == [1]


@pytest.mark.slow
def test_the_calls_of_a_coroutine_are_under_way_together(model_file):
    file = model_file("""
        there, both = 0, asyncio.Event()

        @tritium.model(max_batch_size=8)
        async def meet(x: FP32[Array, 1], request: tritium.Request) -> FP32[Array, 1]:
            global there
            there += 1
            if there == 2:
                both.set()
            await both.wait()
            return x
    """)
    with open_model(file) as model:
        answers = model.batch([{"x": [[1.0]]}, {"x": [[2.0]]}])
        assert [answer["output"].tolist() for [answer] in answers] == [[[1]], [[2]]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "async "])
def test_what_a_generator_yields_are_the_responses(model_file, kind):
    file = model_file(f"""
        @tritium.model
        {kind}def count(n: INT32[Array, 1]) -> {"Async" if kind else ""}Iterator[INT32[Array, 1]]:
            for i in range(int(n[0])):
                yield np.array([i], np.int32)
            if n[0] == 3:
                raise RequestError("three is too much")
    """)
    with open_model(file) as model:
        assert [each["output"].tolist() for each in model.responses({"n": [2]})] == [[0], [1]]
        assert model.responses({"n": [0]}) == []
        *parts, last = model.responses({"n": [3]})
        assert len(parts) == 3
        assert last.error is not None
        assert last.error.message == "three is too much"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "async "])
@pytest.mark.parametrize("fault", [Fault(cancelled_after=2), Fault(cut_off_after=2)], ids=["left", "gone"])
def test_a_generator_is_closed_where_nobody_listens_any_more(model_file, kind, fault):
    file = model_file(f"""
        @tritium.model
        {kind}def count(n: INT32[Array, 1]) -> {"Async" if kind else ""}Iterator[INT32[Array, 1]]:
            try:
                while True:
                    yield n
            finally:
                pb_utils.Logger.log_info("closed")
    """)
    with open_model(file) as model:
        assert len(model.responses(Request({"n": [2]}, fault=fault))) == 2
        assert model.wait_logged("closed").level == "info"


@pytest.mark.slow
def test_a_class_is_made_for_each_instance_and_closed_with_it(model_file):
    file = model_file("""
        @tritium.model(output="scaled")
        class Scale:
            def __init__(self, instance: tritium.Instance) -> None:
                self.by = float(instance.parameters["by"])
                self.name = instance.name
                self.healthy = True

            def __call__(self, x: FP32[Array, 1]) -> FP32[Array, 1]:
                self.healthy = False
                return x * np.float32(self.by)

            def ready(self) -> bool:
                return self.healthy

            def close(self) -> None:
                pb_utils.Logger.log_info(f"closed {self.name}")
    """)
    with open_model(file, parameters={"by": "3"}) as model:
        assert model.ready()
        assert model.infer({"x": floats(2)})["scaled"].tolist() == [6]
        assert not model.ready()
    assert model.logs[-1].message.endswith("closed my_model_0_0")


SEQUENCES = {
    "sequence_batching": {
        "control_input": [
            {"name": "start", "control": [{"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}]},
            {"name": "ready", "control": [{"kind": "CONTROL_SEQUENCE_READY", "fp32_false_true": [0, 1]}]},
        ],
        "state": [
            {"input_name": "before", "output_name": "after", "data_type": "TYPE_FP32", "dims": [1]},
        ],
    }
}


@pytest.mark.slow
def test_controls_and_states_of_sequences_are_parameters_and_fields_like_others(model_file):
    file = model_file("""
        class Sum(NamedTuple):
            total: FP32[Array, 1]
            after: FP32[Array, 1]

        @tritium.model(max_batch_size=4)
        def accumulate(x: FP32[Array, 1], start: FP32[Array, 1], before: FP32[Array, 1]) -> Sum:
            total = x + before * (1 - start)
            return Sum(total, total)
    """)
    with open_model(file, config=SEQUENCES) as model:
        assert [port["name"] for port in model.config["input"]] == ["x"]
        assert [port["name"] for port in model.config["output"]] == ["total"]
        answer = model.infer({"x": [[2]], "start": [[0]], "ready": [[1]], "before": [[5]]})
        assert (answer["total"].tolist(), answer["after"].tolist()) == ([[7]], [[7]])


# -- what a function gives


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return x.astype(np.float64)", r"declared FP32\[Array, 2\] and is an array of float64: return it with .astype\(np.float32\)"),
        ("return x[:, :1]", r"has shape \[1, 1\] and is declared FP32\[Array, 2\]: \[1, 2\] would fit, the batch dimension first"),
        ("return x[0]", r"has shape \[2\]"),
        ("return np.concatenate([x, x])", r"has shape \[2, 2\]"),
        ("return 'text'", "can't be made from 'text'"),
    ],
)  # fmt: skip
def test_what_is_not_as_declared_is_refused_with_what_would_be(model_file, body, text):
    file = model_file(f"""
        @tritium.model(max_batch_size=8)
        def wrong(x: FP32[Array, 2]) -> FP32[Array, 2]:
            {body}
    """)
    with open_model(file) as model, pytest.raises(InferenceFailed, match=text):
        model.infer({"x": [[1, 2]]})


@pytest.mark.slow
def test_numbers_text_and_lists_become_arrays_and_none_is_left_out(model_file):
    file = model_file("""
        from typing import TypedDict

        class Many(TypedDict, total=False):
            text: BYTES[Array, -1]
            flags: BOOL[Array, 2]
            bits: BF16[Array, 1]
            nothing: FP32[Array, 1]

        @tritium.model
        def make(which: INT32[Array, 1]) -> Many:
            if which[0]:
                return {"flags": [True, False], "unknown": 1}
            return {"text": ["é", b"b"], "bits": np.array([0x3F80], np.uint16), "nothing": None}
    """)
    with open_model(file) as model:
        answer = model.infer({"which": [0]})
        assert {name: array.tolist() for name, array in answer.items()} == {
            "text": ["é".encode(), b"b"],
            "bits": [0x3F80],
        }
        with pytest.raises(InferenceFailed, match="gave 'unknown', which it does not declare: text, flags"):
            model.infer({"which": [1]})


# -- loading


DOUBLE = """
    @tritium.model
    def double(x: FP32[Array, 2]) -> FP32[Array, 2]:
        return x * 2
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "config", "text"),
    [
        (
            DOUBLE,
            {"input": [{"name": "x", "data_type": "TYPE_FP64", "dims": [2]}]},
            "expects datatype TYPE_FP64 for input 'x', model provides TYPE_FP32",
        ),
        (
            DOUBLE,
            {"output": [{"name": "z", "data_type": "TYPE_FP32", "dims": [2]}]},
            "declares the outputs output, and the configuration has output, z",
        ),
        ("1 / 0", {}, "ZeroDivisionError: division by zero"),
    ],
    ids=["another datatype than in the hints", "another output than in the hints", "a file that raises"],
)
def test_a_model_that_does_not_load_says_why(model_file, source, config, text):
    with pytest.raises(ModelNotLoaded, match=text), open_model(model_file(source), config=config):
        pass


# -- what is printed in `docs/authoring.md`, `docs/testing_models.md` and the README does what they say


ROOT = Path(__file__).parents[4]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks(document):
    return PYTHON.findall((ROOT / "docs" / document).read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", blocks("authoring.md"), ids=lambda source: re.findall(r"(?:def|class) (\w+)", source)[-1]
)
def test_each_printed_model_loads(source, tmp_path):
    (tmp_path / "printed.py").write_text(source)
    with open_model(tmp_path / "printed.py") as model:
        assert model.ready()


def printed_tests():
    for at, source in enumerate(blocks("testing_models.md")):
        for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE):
            yield pytest.param(at, name, id=name)


@pytest.mark.slow
@pytest.mark.parametrize(("at", "name"), list(printed_tests()))
def test_each_printed_test_passes(at, name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    module = ModuleType("printed")
    exec(blocks("testing_models.md")[at], module.__dict__)
    test = vars(module)[name]
    test(*([tmp_path] if test.__code__.co_argcount else []))


def test_the_first_model_is_the_example():
    example = (ROOT / "examples" / "softmax.py").read_text()
    assert example.endswith("\n\n" + blocks("authoring.md")[0])
    module = ModuleType("example")
    exec(example, module.__dict__)
    assert declared_in(module) is not None
