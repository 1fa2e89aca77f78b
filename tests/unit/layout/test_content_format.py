"""Which templates take lists of parts: the same answer as vLLM's walk over the syntax tree."""

from __future__ import annotations

import pytest

from services.layout.templates import ChatTemplate
from tests.unit.layout.golden import MODELS

LOOP = "{% for message in messages %}BODY{% endfor %}"
LISTS = [
    "{% for part in message['content'] %}{% endfor %}",
    "{% for part in message.content %}{% endfor %}",
    "{% for part in message.content | selectattr('type', 'equalto', 'text') %}{% endfor %}",
    "{% for part in message.content[1:] %}{% endfor %}",
    "{% set content = message.content %}{% for part in content %}{% endfor %}",
    "{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}{{ show(message.content) | trim }}",
    "{% macro show(c, n) %}{% for p in c %}{% endfor %}{% endmacro %}{{ show(n=1, c=message['content']) }}",
]
STRINGS = [
    "{{ message.content }}",
    "{{ message['content'] | trim }}",
    "{% for part in message.tool_calls %}{% endfor %}",
    "{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}{{ show(message.tool_calls) }}",
    "{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}{{ show('x') }}",
]


@pytest.mark.parametrize("body", LISTS)
def test_a_loop_over_content_takes_lists(body: str) -> None:
    assert ChatTemplate(LOOP.replace("BODY", body)).content_format == "openai"


@pytest.mark.parametrize("body", STRINGS)
def test_anything_else_takes_strings(body: str) -> None:
    assert ChatTemplate(LOOP.replace("BODY", body)).content_format == "string"


def test_messages_may_go_by_other_names() -> None:
    loop = "{% for m in loop_messages %}{% for part in m.content %}{% endfor %}{% endfor %}"
    source = "{% set loop_messages = messages[1:] %}" + loop
    assert ChatTemplate(source).content_format == "openai"
    assert ChatTemplate("{% set messages = messages[1:] %}" + LOOP.replace("BODY", LISTS[0])).content_format == "openai"


def test_a_walk_that_meets_no_plain_name_falls_back_to_strings() -> None:
    source = "{% set ns = namespace() %}{% set ns.all = messages %}" + LOOP.replace("BODY", LISTS[0])
    assert ChatTemplate(source).content_format == "string"


@pytest.mark.parametrize("model", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl", "qwen3.5"])
def test_the_qwen_templates_take_lists(model: str) -> None:
    assert ChatTemplate((MODELS / model / "chat_template.jinja").read_text()).content_format == "openai"
