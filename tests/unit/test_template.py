"""Chat templates: what transformers writes, within bounds, with no way out of the sandbox."""

from __future__ import annotations

import threading
import tracemalloc
from time import perf_counter
from typing import Any

import pytest

from service.errors import InvalidRequest
from service.text import sandbox
from service.text.sandbox import Budget, TookLong, TooMuch, renderings_within
from service.text.template import ChatTemplate

BOMBS = [
    "{{ 'a' * 200000000 }}",
    "{% set x = 'a' * 60000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}",
    "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    "{{ ns.x | tojson }}",
    "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ 'a'.ljust(2000000000) }}",
    "{{ 'a' | center(2000000000) }}",
    "{{ '%2000000000d' % 1 }}",
    "{{ '%*d' % (2000000000, 1) }}",
    "{{ '{:2000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=2000000000) }}",
    "{{ '%2000000000d' | format(1) }}",
    "{% set x = 'a' * 60000 %}{{ x.replace('a', x) }}",
    "{% set x = 'a' * 60000 %}{{ x | replace('a', x) }}",
    "{% set x = 'a' * 60000 %}{{ x.join(range(60000) | list) }}",
    "{% set x = 'a' * 60000 %}{{ ([x] * 60000) | join }}",
    "{% set x = '\\n' * 60000 %}{{ x | indent(60000, true, true) }}",
    "{{ range(10 ** 9) | list }}",
    "{{ (1).to_bytes(2000000000, 'big') }}",
    "{{ [[1]] | tojson(indent=2000000000) }}",
    "{% for i in range(100000) %}{{ messages | tojson | length }}{% endfor %}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_bombs_are_refused_at_once(source: str) -> None:
    tracemalloc.start()
    begun = perf_counter()
    try:
        with pytest.raises(InvalidRequest, match=r"too (much|long|wide|large)|RecursionError|OverflowError"):
            ChatTemplate(source, {}).render([{"role": "user", "content": "x"}], [], True)
        assert perf_counter() - begun < 3
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.append(1) }}",
    "{{ raise_exception.__globals__ }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ namespace(_x=1) }}",
    "{{ cycler.__init__.__globals__.os.popen('id') }}",
    "{{ dict.__call__.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{{ lipsum.__globals__ }}",
    "{{ ('{0.__class__}' | attr('format'))(1) }}",  # CVE-2025-27516
    "{% set say = '{0.__class__}'.format %}{{ say(1) }}",  # CVE-2024-56326
    "{% for c in ().__class__.__base__.__subclasses__() %}{{ c.__name__ }}{% endfor %}",  # CVE-2024-34359, -2026-5760
    "{{ self._TemplateReference__context.cycler.__init__.__globals__.os.popen('id').read() }}",  # CVE-2024-2952
    "{{ (messages | map(attribute='__class__') | list)[0] }}",
    "{{ strftime_now.__self__.__class__ }}{{ namespace.__init__.__globals__ }}{{ '' | attr('__class__') }}",
]


def test_escapes_lead_nowhere() -> None:
    for source in ESCAPES:
        try:
            text = ChatTemplate(source, {}).render([{"role": "user", "content": "x"}], [], True)
        except InvalidRequest:
            continue
        assert text.strip() == "", source


ORDINARY = [
    "{% for m in messages %}\n    {% if m.content %}\n<{{ m.role }}>\n    {% endif %}\n{% endfor %}\n",
    "{% for m in messages %}{{ m.role | upper ~ ': ' ~ m['content'].strip() }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %} {{ messages | tojson }}",
    "{% macro say(m) %}[{{ m.content }}]{% endmacro %}{% for m in messages %}{{ say(m) }}{% break %}{% endfor %}",
    "{%- set ns = namespace(n=0) -%}{%- for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }} {{ tools }}",
    "{{ messages | map(attribute='content') | join('|') }}{{ dict(a=1) }}{{ '%s-%03d' % ('x', 7) }}"
    "{{ '{}'.format('é') }}",
    "{{ {'é': '<&>'} | tojson(indent=2) }}{{ messages[0].content | replace('a', 'bb') | indent(4) }}{{ missing }}",
]


@pytest.mark.parametrize("source", ORDINARY)
def test_ordinary_templates_write_what_transformers_writes(source: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    chat = [{"role": "user", "content": " a\n안녕 "}, {"role": "assistant", "content": "b"}]
    theirs: Any = render_jinja_template(conversations=[chat], chat_template=source, add_generation_prompt=True)
    assert ChatTemplate(source, {}).render(chat, [], True) == theirs[0][0]


def test_output_is_bounded_by_the_input() -> None:
    template = ChatTemplate("{% for i in range(n | int) %}{{ messages[0].content }}{% endfor %}", {"n": "9"})
    assert len(template.render([{"role": "user", "content": "a" * 1000}], [], True)) == 9000
    with pytest.raises(InvalidRequest, match="too much text"):
        template.render([{"role": "user", "content": "a" * 80_000}], [], True)


COUNTS = "{% for i in range(20000) %}{% set x = i %}{% endfor %}{{ messages[0].content }}"
"""A template that takes some milliseconds."""


@pytest.mark.parametrize(("error", "told"), [(TooMuch, InvalidRequest), (TookLong, TookLong)])
def test_renderings_of_one_request_share_their_time(error: type[Exception], told: type[Exception]) -> None:
    template, chat = ChatTemplate(COUNTS, {}), [{"role": "user", "content": "x"}]
    assert template.render(chat, [], True) == "x"
    with pytest.raises(told, match="takes too long"), renderings_within(0.05, error):
        for _ in range(1000):
            template.render(chat, [], True)
    assert template.render(chat, [], True) == "x"


def test_the_garbage_collectors_time_is_not_the_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large process one collection takes longer than any template may."""
    seconds = iter([0.0, 0.0, 5.0, 5.1])  # begun; a collection from 0 to 5; a look at the clock
    monkeypatch.setattr(sandbox, "thread_time", lambda: next(seconds))
    monkeypatch.setattr(sandbox, "_collected", threading.local())
    budget = Budget(10, 0.25)
    for phase in ("start", "stop"):
        sandbox._note_collection(phase, {})
    budget.look()
    monkeypatch.setattr(sandbox, "thread_time", lambda: 5.3)
    with pytest.raises(TooMuch):
        budget.look()
