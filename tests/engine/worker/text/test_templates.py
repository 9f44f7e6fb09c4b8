"""Chat templates, as transformers runs them."""

import pytest

from engine.worker.text.refusing import Refused
from engine.worker.text.templates import ChatTemplates


def render(source, messages=({"role": "user", "content": "hi"},), *, kwargs=None, **more):
    sources = source if isinstance(source, dict) else {"default": source}
    return ChatTemplates(sources, {"bos_token": "<s>"}).render(messages, kwargs=kwargs or {}, **more)


def test_templates_have_what_transformers_gives_them():
    source = """\
{{ bos_token }}{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}
{%- generation %}said{% endgeneration %}
{%- set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ dict(a=1) }}
{{- {'é<': 1} | tojson }}{{ strftime_now('%Y') | length }}{{ tools is none }}{{ documents is none }}
{{- mood }}"""

    assert render(source, kwargs={"mood": "calm"}) == "<s>01said2{'a': 1}{\"é<\": 1}4TrueTruecalm"


def test_a_template_that_refuses_says_why():
    with pytest.raises(Refused, match="no such role") as refused:
        render("{{ raise_exception('no such role') }}")
    assert refused.value.param == "messages"
    with pytest.raises(Refused, match="can't be read"):
        render("{% for %}")
    with pytest.raises(Refused, match="no chat template"):
        render({})
    with pytest.raises(Refused, match="'tools' is no argument"):
        render("x", kwargs={"tools": []})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{% set x = messages.append(1) %}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ missing.attribute }}",
    ],
)
def test_what_the_sandbox_does_not_allow_is_refused(source):
    with pytest.raises(Refused, match="The chat template refuses this"):
        render(source)


def test_a_template_for_tools_is_used_where_there_are_tools():
    sources = {"default": "plain", "tool_use": "tools {{ tools | length }}"}

    assert render(sources) == "plain"
    assert render(sources, tools=[{"type": "function"}]) == "tools 1"
    assert render({"rag": "only"}) == "only"


PARTS = [{"type": "text", "text": "a"}, {"type": "image"}, "b"]


def test_content_in_parts_is_one_text_for_a_template_that_knows_no_parts():
    messages = [{"role": "user", "content": PARTS, "name": None}]

    assert render("{{ messages[0].content }}{{ 'name' in messages[0] }}", messages) == "a\nbFalse"
    source = "{% for part in messages[0].content %}[{{ part.text }}]{% endfor %}"
    assert render(source, messages) == "[a][][]"
    source = "{% for m in messages %}{% for part in m['content'] %}[{{ part.text }}]{% endfor %}{% endfor %}"
    assert render(source, messages) == "[a][][]"


def test_developers_are_the_system_for_a_template_that_does_not_know_them():
    messages = [{"role": "developer", "content": "x"}]

    assert render("{{ messages[0].role }}", messages) == "system"
    assert render("{% if 'developer' %}{{ messages[0].role }}{% endif %}", messages) == "developer"


def test_arguments_of_calls_are_objects():
    def called(arguments):
        return [
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}],
            }
        ]

    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert render(source, called('{"a": 1}')) == '{"a": 1}'
    assert render(source, called("")) == "{}"
    assert render(source, called({"a": 1})) == '{"a": 1}'
    with pytest.raises(Refused, match=r"arguments in messages\[0\]\.tool_calls are no JSON"):
        render(source, called("{"))


def test_reasoning_has_all_of_its_names():
    source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"

    assert render(source, [{"role": "assistant", "reasoning": "hm"}]) == "hmhm"


def test_the_last_message_is_continued():
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So "}]

    assert render(source, messages, continue_final_message=True) == "<user>hi</><assistant>So "
    stripping = source.replace("m.content", "m.content | trim")
    assert render(stripping, messages, continue_final_message=True) == "<user>hi</><assistant>So"
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}.{% endfor %}"
    parted: list[dict[str, object]] = [
        {"role": "assistant", "content": [{"type": "text", "text": "So"}, {"type": "image"}]}
    ]
    assert render(source, parted, continue_final_message=True) == "So"
    for unfit in (parted, [{"role": "assistant"}], []):
        with pytest.raises(Refused) as refused:
            render("x", unfit, continue_final_message=True)
        assert refused.value.param == "continue_final_message"


def test_a_template_may_not_make_texts_without_bounds():
    with pytest.raises(Refused, match="more than 67108864 characters"):
        render("{{ messages[0].content * 70000000 }}", [{"role": "user", "content": "a"}])
