"""Language models over the v2 protocol, as Triton's vLLM backend has it (contract, llm.md section 3).

The clients are tritonclient's, curl and httpx. A model says its prompt backwards; with an adapter, forwards.
"""

import json
import queue
import subprocess
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import trio
import tritonclient.grpc
import tritonclient.http
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from tests.support.llm.echoing import LanguageServer, write_model
from tests.support.triton_inputs import inputs
from tests.survival.server import eventually

pytestmark = [pytest.mark.slow, pytest.mark.system]

ADAPTERS = {"tone": "adapters/tone", "key": "adapters/key"}
FACTS = json.dumps({"root": "weights/echo"})
ALL = (
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
FAILED = "Error generating stream: "


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("languages")
    config = parameter("REPORT_CUSTOM_METRICS", "true")
    write_model(folder / "models", "echo", facts=FACTS, adapters=ADAPTERS, config=config, context=100)
    write_model(folder / "models", "plain", pace=0.002)
    with LanguageServer.standing(folder / "models", files=folder / "server") as server:
        yield server


@pytest.fixture
def web(server):
    with httpx.Client(base_url=f"http://{server.url}/v2/models", timeout=60) as web:
        yield web


@pytest.fixture
def ask(server):
    """Send one request over a stream of tritonclient; return its responses, or the error it met."""
    said: queue.Queue[Any] = queue.Queue()
    client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    client.start_stream(callback=lambda result, error: said.put((result, error)))

    def ask(text=None, model="echo", *, parameters=None, **given):
        arrays = {} if text is None else {"text_input": np.array([text.encode()], np.object_)}
        for name, value in given.items():
            if isinstance(value, bool):
                arrays[name] = np.array([value])
            else:
                arrays[name] = np.array([json.dumps(value).encode()], np.object_)
        client.async_stream_infer(
            model,
            inputs(tritonclient.grpc, **arrays),
            request_id="r",
            parameters=parameters,
            enable_empty_final_response=True,
        )
        answers = []
        while True:
            result, error = said.get(timeout=60)
            if error is not None:
                raise error
            response = result.get_response()
            assert response.id == "r"
            answers.append({each.name: result.as_numpy(each.name).tolist() for each in response.outputs})
            if response.parameters["triton_final_response"].bool_param:
                return answers

    yield ask
    client.stop_stream()
    client.close()


# -- the model


def test_a_configuration_is_filled_in(server):
    """Row Files: the tensors that are missing, decoupled, and no batch dimension."""
    with tritonclient.http.InferenceServerClient(server.url) as client:
        config = client.get_model_config("echo")
        metadata = client.get_model_metadata("echo")
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["max_batch_size"] == 0
    given = {each["name"]: each["datatype"] for each in metadata["inputs"]}
    assert given == {
        "text_input": "BYTES",
        "stream": "BOOL",
        "sampling_parameters": "BYTES",
        "exclude_input_in_output": "BOOL",
        **dict.fromkeys(ALL, "BOOL"),
        "embedding_request": "BYTES",
    }
    told = {each["name"]: (each["datatype"], each["shape"]) for each in metadata["outputs"]}
    assert told == {
        "text_output": ("BYTES", [-1]),
        "finish_reason": ("BYTES", [-1]),
        "cumulative_logprob": ("FP32", [-1]),
        "logprobs": ("BYTES", [-1]),
        "num_input_tokens": ("UINT32", [1]),
        "num_output_tokens": ("UINT32", [-1]),
    }


# -- sampling


def test_the_tensor_of_sampling_goes_before_parameters(ask):
    given = {"max_tokens": 1}
    assert ask(
        "abc", exclude_input_in_output=True, sampling_parameters=given, parameters={"max_tokens": 2}
    ) == [{"text_output": [b"c"]}]
    assert ask("abc", exclude_input_in_output=True, parameters={"max_tokens": 2}) == [
        {"text_output": [b"cb"]}
    ]


def test_values_are_read_as_what_they_are_meant_to_be(ask):
    """Row Sampling: Triton's own example sends texts."""
    given = {"temperature": "0.1", "top_p": "0.95", "max_tokens": "2", "stop": "zz"}
    assert ask("abc", exclude_input_in_output=True, sampling_parameters=given) == [{"text_output": [b"cb"]}]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"colour": 1}, "sampling parameter 'colour' is not known"),
        ({"max_tokens": "many"}, "sampling parameter 'max_tokens' can't be 'many'"),
        ({"top_p": 7}, "sampling parameter 'top_p' is 7.0; it must be from 0 to 1"),
        ({"structured_outputs": {"regex": "a"}}, "this engine enforces no grammar"),
        ([], "input 'sampling_parameters' must be a JSON object"),
    ],
)
def test_bad_sampling_is_told(ask, given, says):
    with pytest.raises(InferenceServerException) as refused:
        ask("abc", sampling_parameters=given)
    assert refused.value.message().startswith(FAILED + says)


# -- stream, exclude_input_in_output


@pytest.mark.parametrize(
    ("exclude", "text"), [({}, b"abccba"), ({"exclude_input_in_output": False}, b"abccba")]
)
def test_an_answer_in_one_piece_begins_with_its_prompt(ask, exclude, text):
    assert ask("abc", **exclude) == [{"text_output": [text]}]
    assert ask("abc", stream=False, exclude_input_in_output=True) == [{"text_output": [b"cba"]}]


@pytest.mark.parametrize("exclude", [{}, {"exclude_input_in_output": True}])
def test_a_stream_has_new_text_only(ask, exclude):
    answers = ask("abcdefgh" * 4, "plain", stream=True, **exclude)
    assert len(answers) > 3
    assert b"".join(each["text_output"][0] for each in answers) == b"hgfedcba" * 4


def test_a_stream_has_no_prompt(ask):
    with pytest.raises(InferenceServerException) as refused:
        ask("abc", stream=True, exclude_input_in_output=False)
    assert refused.value.message() == (
        FAILED + "When streaming, `exclude_input_in_output` = False is not allowed."
    )


# -- return_*


def test_outputs_come_if_they_are_asked_for(ask):
    asked = dict.fromkeys(ALL, True)
    (answer,) = ask("ab", **asked, sampling_parameters={"max_tokens": 2, "logprobs": 2})
    assert (answer["text_output"], answer["finish_reason"]) == ([b"abba"], [b"length"])
    assert (answer["num_input_tokens"], answer["num_output_tokens"]) == ([3], [2])
    assert answer["cumulative_logprob"] == [-1.0]
    first, second = json.loads(answer["logprobs"][0])
    assert len(second) == 2
    assert min(first.values(), key=lambda each: each["rank"]) == {
        "logprob": -0.5,
        "rank": 1,
        "decoded_token": "b",
    }


def test_outputs_come_with_every_response_of_a_stream(ask):
    asked = dict.fromkeys(ALL, True)
    answers = ask("abcdefgh", "plain", stream=True, **asked, sampling_parameters={"logprobs": 0})
    *others, last = answers
    assert others
    assert {each["finish_reason"][0] for each in others} == {b"None"}
    assert last["finish_reason"] == [b"stop"]
    assert all(each["num_input_tokens"] == [9] for each in answers)
    assert sum(each["num_output_tokens"][0] for each in answers) == 9
    for each in answers:
        assert len(json.loads(each["logprobs"][0])) == each["num_output_tokens"][0]
    assert last["cumulative_logprob"] == [-4.5]
    assert others[0]["cumulative_logprob"] == [-0.5 * others[0]["num_output_tokens"][0]]


def test_logprobs_are_null_if_sampling_asks_for_none(ask):
    (answer,) = ask("ab", return_logprobs=True)
    assert answer["logprobs"] == [b"null"]


@pytest.mark.parametrize("stream", [False, True])
def test_each_sequence_has_an_element(ask, stream):
    asked = dict.fromkeys(ALL, True)
    answers = ask("abcd", stream=stream, **asked, sampling_parameters={"n": 3, "logprobs": 0})
    prompt = b"" if stream else b"abcd"
    texts = [b"".join(each["text_output"][place] for each in answers) for place in range(3)]
    assert texts == [prompt + b"dcba"] * 3
    assert answers[-1]["finish_reason"] == [b"stop"] * 3
    assert answers[-1]["cumulative_logprob"] == [-2.5] * 3
    for answer in answers:
        assert answer["num_input_tokens"] == [5]
        assert all(len(answer[name]) == 3 for name in answer if name != "num_input_tokens")
    assert [sum(each["num_output_tokens"][place] for each in answers) for place in range(3)] == [5] * 3


# -- errors


def test_a_prompt_that_is_too_long_is_told(ask):
    with pytest.raises(InferenceServerException) as refused:
        ask("x" * 100)
    assert refused.value.message().startswith(
        f"{FAILED}This model's maximum context length is 100 tokens. However, your prompt contains 101 input"
        " tokens, which exceeds this limit even without any output tokens."
    )


def test_an_error_has_the_code_of_triton_s(server):
    """Row Errors: INTERNAL. Its `text_output` goes no further than the backend, in Triton either."""
    errors: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(
            callback=lambda result, error: errors.put(error), headers={"triton_grpc_error": "true"}
        )
        text = np.array([b"abc"], np.object_)
        client.async_stream_infer("echo", inputs(tritonclient.grpc, text_input=text), parameters={"top_p": 7})
        error = errors.get(timeout=60)
        client.stop_stream()
    assert error.status() == "StatusCode.INTERNAL"
    assert error.message().startswith(FAILED)


def test_embeddings(ask):
    asked = {"return_num_input_tokens": True, "return_num_output_tokens": True}
    (answer,) = ask(embedding_request={"input": "abc"}, **asked)
    assert json.loads(answer["text_output"][0]) == [4.0, 1.0]
    assert (answer["num_input_tokens"], answer["num_output_tokens"]) == ([4], [0])


# -- LoRA


def test_an_adapter_is_chosen_by_lora_name(ask):
    for given in ({"sampling_parameters": {"lora_name": "tone"}}, {"parameters": {"lora_name": "tone"}}):
        assert ask("abc", exclude_input_in_output=True, **given) == [{"text_output": [b"abc"]}]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("plain", "LoRA feature is not enabled."),
        ("echo", "LoRA high is not supported, we currently support ['tone', 'key']"),
    ],
)
def test_an_adapter_that_there_is_not_is_told(ask, model, says):
    with pytest.raises(InferenceServerException) as refused:
        ask("abc", model, sampling_parameters={"lora_name": "high"})
    assert refused.value.message() == says


def test_adapters_are_models_of_the_openai_api(server):
    """With the name of their own, and `parent`, as vLLM has them."""
    with openai.OpenAI(base_url=server.openai_url, api_key="key", max_retries=0, timeout=60) as client:
        listed = {each.id: each.model_dump() for each in client.models.list()}
        assert list(listed) == ["echo", "tone", "key", "plain"]
        assert [each["parent"] for each in listed.values()] == [None, "echo", "echo", None]
        assert [each["root"] for each in listed.values()] == [
            "weights/echo",
            "adapters/tone",
            "adapters/key",
            "plain",
        ]
        assert client.models.retrieve("tone").model_dump()["parent"] == "echo"
        answer = client.completions.create(model="tone", prompt="abc")
        assert (answer.model, answer.choices[0].text) == ("tone", "abc")
        assert client.completions.create(model="echo", prompt="abc").choices[0].text == "cba"


# -- cancellation


def test_a_stream_that_is_cancelled_ends_its_request(server, web):
    """The client gets gRPC's own CANCELLED; the engine is called off."""
    came: queue.Queue[Any] = queue.Queue()
    ended: queue.Queue[Any] = queue.Queue()

    def take(result, error):
        (came if error is None else ended).put(error)

    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(callback=take)
        text, stream = np.array([b"abc"], np.object_), np.array([True])
        client.async_stream_infer(
            "plain",
            inputs(tritonclient.grpc, text_input=text, stream=stream),
            parameters={"ignore_eos": True},
        )
        came.get(timeout=60)
        client.stop_stream(cancel_requests=True)
        assert ended.get(timeout=60).status() == "StatusCode.CANCELLED"

    async def cancelled():
        return metrics(server)["tritium_llm_requests_cancelled_total", "plain"] == 1

    trio.run(eventually, cancelled)


# -- generate


def test_generate_takes_plain_values(server, web):
    """Row Generate: undeclared keys become parameters, which are sampling parameters; with curl, too."""
    body = {"text_input": "abc", "parameters": {"stream": False, "temperature": 0}}
    answer = web.post("/echo/generate", json=body)
    assert answer.json() == {"model_name": "echo", "model_version": "1", "text_output": "abccba"}
    command = ["curl", "-s", "-d", json.dumps(body), f"http://{server.url}/v2/models/echo/generate"]
    assert (
        json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
        == answer.json()
    )
    given = {"id": "7", "text_input": "abc", "exclude_input_in_output": True, "max_tokens": 2}
    assert web.post("/echo/generate", json={**given, "return_finish_reason": True}).json() == {
        "finish_reason": "length",
        "id": "7",
        "model_name": "echo",
        "model_version": "1",
        "text_output": "cb",
    }


def test_generate_stream_has_an_event_for_each_response(web):
    body = {"text_input": "abcdefgh" * 4, "stream": True, "return_finish_reason": True, "temperature": 0}
    with web.stream("POST", "/plain/generate_stream", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]
    assert "".join(event["text_output"] for event in events) == "hgfedcba" * 4
    assert [event["finish_reason"] for event in events] == ["None"] * (len(events) - 1) + ["stop"]


@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
def test_generate_tells_errors(web, endpoint):
    answer = web.post(f"/echo/{endpoint}", json={"text_input": "abc", "parameters": {"top_p": 7}})
    assert answer.status_code == 500
    said = json.loads(answer.text.removeprefix("data: "))
    assert said == {"error": f"{FAILED}sampling parameter 'top_p' is 7.0; it must be from 0 to 1"}


# -- metrics


def metrics(server):
    """Return the samples of a scrape, by name and model; the highest where a model has several."""
    text = httpx.get(f"http://127.0.0.1:{server.openai_port}/metrics", timeout=60).text
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            model = sample.labels.get("model", sample.labels.get("model_name", ""))
            key = sample.name, model
            found[key] = max(sample.value, found.get(key, sample.value))
    return found


def test_the_metrics_of_the_backend_come_where_they_are_asked_for(server, ask):
    """Row Metrics: by REPORT_CUSTOM_METRICS."""
    before = metrics(server)
    ask("abc", sampling_parameters={"n": 2})
    after = metrics(server)
    for name, more in (
        ("vllm:prompt_tokens_total", 4),
        ("vllm:generation_tokens_total", 8),
        ("vllm:time_to_first_token_seconds_count", 1),
        ("vllm:time_per_output_token_seconds_count", 3),
        ("vllm:e2e_request_latency_seconds_count", 1),
        ("vllm:request_prompt_tokens_sum", 4),
        ("vllm:request_generation_tokens_sum", 8),
        ("vllm:request_params_n_sum", 2),
    ):
        assert after[name, "echo"] - before.get((name, "echo"), 0) == more, name
        assert (name, "plain") not in after


def test_an_endpoint_picker_finds_what_it_reads(server, ask):
    """For every model; adapters only where there are some."""
    ask("abc")
    ask("abc", "plain")
    found = metrics(server)
    for model in ("echo", "plain"):
        for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
            assert found[f"vllm:{name}", model] == 0
    assert found["vllm:lora_requests_info", "echo"] > 1.7e9
    assert ("vllm:lora_requests_info", "plain") not in found
