"""Where command lines are in manifests and scripts: forms of YAML and of shells."""

import pytest

from engine.cli.migrate.manifests import in_manifest, is_manifest
from engine.cli.migrate.scripts import flow, in_list, in_script, split

IMAGE = "nvcr.io/nvidia/tritonserver:25.03-py3"
WORDS = ("--model-repository=/models", "--log-verbose=1")


@pytest.mark.parametrize(
    "args",
    [
        "args: [--model-repository=/models, '--log-verbose=1']",
        "args: [--model-repository=/models,\n    '--log-verbose=1'\n  ]",
        "args: tritonserver --model-repository=/models\n        --log-verbose=1",
        "args:\n    - --model-repository=/models\n    {{- if .x }}\n\n    - --log-verbose=1",
        "args:\n    - --model-repository=/models\n    ${more}\n    - '--log-verbose=1'",
        "args:\n    - >-\n      --model-repository=/models\n    - --log-verbose=1  # much",
        'args:\n    - --model-repository=/models\n    - "--log-verbose\\=1"\n  env: []',
        "args: |\n    tritonserver --model-repository=/models \\\n      --log-verbose=1",
        "args:\n    - tritonserver\n    - --model-repository=/models\n    - --log-verbose=\n      1",
    ],
)
def test_arguments_in_any_form_of_yaml(args):
    text = f"kind: Pod\n# one server\ncontainers:\n- image: {IMAGE}\n  {args}\n"
    assert is_manifest(text)
    [found] = in_manifest(text)
    assert "".join(found.words).replace(" ", "") == "".join(WORDS)
    assert found.image == IMAGE


@pytest.mark.parametrize(
    "text",
    [
        "tritonserver --model-repository=/models --log-verbose=1",
        "# first\ntritonserver --model-repository=/models \\\n  # between\n  --log-verbose=1\n# last",
        "exec /opt/tritonserver/bin/tritonserver --model-repository=/models --log-verbose=1 2>&1 | tee log",
        'sh -c "tritonserver --model-repository=/models --log-verbose=1"',
        'sh -c "true\ntritonserver --model-repository=/models --log-verbose=1"',
        "tritonserver --model-repository=/models --log-verbose=1 > log",
        "CMD [\"tritonserver\", '--model-repository=/models', --log-verbose=1, ]",
        "tritonserver; tritonserver --model-repository=/models --log-verbose=1 &",
        "tritonserver --model-repository=/models \\\n--log-verbose=1 \\",
    ],
)
def test_command_lines_in_any_form_of_shell(text):
    [found] = in_script(text)
    assert found.words == WORDS


@pytest.mark.parametrize(
    "text", ["", "echo tritonserver", "# tritonserver --x", "tritonserver", "pip install numpy"]
)
def test_what_starts_no_server_has_no_command_line(text):
    assert list(in_script(text)) == []


def test_each_container_has_its_own_command_line():
    one = f"- image: {IMAGE}\n  args: [--model-repository=/a]\n"
    two = f"- image: {IMAGE}\n  args: [--model-repository=/b]\n"
    found = in_manifest(f"kind: Pod\ncontainers:\n{one}{two}")
    assert [each.words for each in found] == [("--model-repository=/a",), ("--model-repository=/b",)]


def test_the_launcher_of_tensorrt_llm_is_known():
    [found] = in_script("python3 /app/scripts/launch_triton_server.py --model_repo=/models --world_size=2")
    assert (found.launcher, found.words) == (True, ())


def test_a_quote_without_its_end_splits_at_blanks():
    assert split("a 'b c") == ["a", "'b", "c"]
    [found] = in_script("tritonserver --model-repository='/models\n" + "\n" * 5)
    assert found.words[0].startswith("--model-repository=")


def test_flags_alone_are_those_of_the_server_in_the_image():
    assert [found.words for found in in_list(WORDS, 1, IMAGE)] == [WORDS]
    assert list(in_list(WORDS, 1, "")) == []


def test_lists_have_words_in_both_quotes_and_none():
    assert flow('["a\\"b", \'c d\', e , ]') == ['a"b', "c d", "e"]
