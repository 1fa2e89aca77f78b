"""Chat templates render as transformers renders them, inside bounds."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from services.layout.templates import ChatTemplate, PromptError, TimeDependent
from tests.unit.layout.golden import golden, layouter

HELLO = [{"role": "user", "content": "hello"}]
CASES = [case for case in golden("chat_render")["cases"] if case["model"].startswith("Qwen3.5")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['case']} {case['kwargs']}")
def test_qwen35_renders_as_in_the_reference(case: dict[str, Any]) -> None:
    body = {"messages": case["messages"], "chat_template_kwargs": case["kwargs"]}
    text = layouter("qwen3.5").render(body)
    assert text == case["prompt"]
    assert layouter("qwen3.5").encode(text) == case["ids"]


def render(source: str, messages: Any = HELLO, **arguments: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **arguments)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}", "<s>hello"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
        ("{{ {'ä': '<&>', 'n': 1.5} | tojson }}", '{"ä": "<&>", "n": 1.5}'),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}", '{\n "a": [\n  2\n ],\n "b": 1\n}'),
        ("{% for x in range(9) %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "01"),
        ("{% generation %}said{% endgeneration %}!", "said!"),
        ("{% if add_generation_prompt %}go{% endif %}{{ tools is none }}", "goTrue"),
        ("{{ strftime_now('%d %b %Y') }}", "05 Mar 2026"),
        ("{{ missing }}", ""),
    ],
)
def test_options_filters_and_globals_are_those_of_transformers(source: str, expected: str) -> None:
    assert render(source, now=datetime(2026, 3, 5)) == expected


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('No images.') }}", "No images."),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[3].content }}", "no element 3"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
    ],
)
def test_what_a_template_may_not_do_ends_in_one_kind_of_error(source: str, said: str) -> None:
    with pytest.raises(PromptError, match=said):
        render(source)


def test_a_source_that_is_no_template() -> None:
    with pytest.raises(PromptError, match="can't be compiled"):
        ChatTemplate("{% if %}")


def test_the_output_is_bounded_in_size_and_time() -> None:
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    with pytest.raises(PromptError, match="over 1000 characters"):
        render(endless, limit=1000)
    answers = iter([False] * 50 + [True])
    with pytest.raises(PromptError, match="too long"):
        render(endless, give_up=lambda: next(answers))


def test_the_time_of_day_makes_a_prompt_unpredictable() -> None:
    for form in ("%H:%M", "%c", "%s", "%X"):
        with pytest.raises(TimeDependent):
            render(f"{{{{ strftime_now('{form}') }}}}", now=datetime(2026, 3, 5))


class TestContinuingTheFinalMessage:
    SOURCE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"

    def test_the_prompt_ends_with_its_text(self) -> None:
        messages = [*HELLO, {"role": "assistant", "content": "Once upon "}]
        assert render(self.SOURCE, messages, continue_final_message=True) == "<user>hello</><assistant>Once upon "

    def test_a_template_that_trims_loses_the_space_before_the_end(self) -> None:
        source = self.SOURCE.replace("m.content", "m.content | trim")
        messages = [{"role": "assistant", "content": " Once upon "}]
        assert render(source, messages, continue_final_message=True) == "<assistant>Once upon"

    def test_the_last_text_part_is_continued(self) -> None:
        source = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}]
        messages = [{"role": "assistant", "content": parts}]
        assert render(source, messages, continue_final_message=True) == "[a][b"
        assert parts[1] == {"type": "text", "text": "b"}, "the messages stay as they were"

    @pytest.mark.parametrize("content", [None, [], [{"type": "image"}]])
    def test_there_must_be_text(self, content: Any) -> None:
        with pytest.raises(PromptError, match=r"no (content|text) to continue"):
            render(self.SOURCE, [{"role": "assistant", "content": content}], continue_final_message=True)

    def test_the_template_must_print_it(self) -> None:
        with pytest.raises(PromptError, match="drops the final message"):
            render("nothing", [{"role": "assistant", "content": "x"}], continue_final_message=True)
