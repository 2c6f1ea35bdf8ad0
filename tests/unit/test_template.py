"""Chat templates: what transformers writes, within bounds, with no way out of the sandbox."""

from __future__ import annotations

import threading
import tracemalloc
from time import process_time
from typing import Any

import pytest

from service.errors import InvalidRequest
from service.text.sandbox import Budget, TookLong, TooMuch, renderings_within
from service.text.sandbox import budget as budgets
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
    "{{ ('{0:{1}}' * 1000).format('x', 60000) }}",
    "{{ '{0:{1}}'.format('x', '2000000000') }}",
    "{{ '{a:{b}{b}}'.format_map({'a': 1, 'b': 60000}) }}",
    "{{ ('a' * 60000) | map('upper') | join('b' * 60000) }}",
    "{{ range(9000) | join(['a'] * 20000) }}",
    "{{ dict.fromkeys(range(9000)) | tojson(indent=60000) }}",
    "{{ dict.fromkeys(range(9000)) | tojson(separators=('a' * 60000, 'b')) }}",
    "{{ [9 ** 1000] * 60000 }}",
    "{{ [''] * 30000 * 60000 }}",
    "{% set x = ('f' * 60000) | int(base=16) %}",
    "{{ 1 | round(9999, 'floor') }}",
]
DOUBLED = [
    "[ns.x, ns.x]",
    "(ns.x, ns.x)",
    "{1: ns.x, 2: ns.x}",
    "[ns.x] * 2",
    "[ns.x] + [ns.x]",
    "cycler(ns.x, ns.x).items",
    "dict.fromkeys([1, 2], ns.x)",
    "dict(a=ns.x, b=ns.x)",
    "{1: dict(a=ns.x).items(), 2: dict(a=ns.x).items()}",
    "[1, 2] | map(attribute='x', default=ns.x) | list",
    "([1] | batch(2, ns.x) | list)[0] + [ns.x]",
    "(1, ns.x) | batch(9, ns.x) | first",
    "{1: [ns.x, ns.x]}.items() | list",
]
"""Values of which two parts are one."""
VISITED = [
    "ns.x == ns.y",
    "ns.x < ns.y",
    "ns.x in [ns.y]",
    "{ns.x: 1}",
    "{}[ns.x]",
    "[ns.y].index(ns.x)",
    "(ns.y,).count(ns.x)",
    "[ns.x, ns.y] | unique | list",
    "[ns.x, ns.y] | sort",
    "ns.x is eq ns.y",
    "ns.x",
]
"""What visits all parts of a value."""
KEPT = [
    "ns.x = [ns.x, 'a' * 60000]",
    "ns.n = namespace(n=ns.n, t='a' * 60000)",
    "ns.n = namespace(n=ns.n, t=t[i % 9:])",
    "ns.n = namespace(n=ns.n, t=t.upper())",
    "ns.n = namespace(n=ns.n, t=t | upper)",
    "ns.n = namespace(n=ns.n, t=range(9000) | list)",
    "ns.n = namespace(n=ns.n, t=t.split('a'))",
    "ns.n = namespace(n=ns.n, t=dict.fromkeys(range(9000)))",
    "ns.n = [[ns.n, t ~ i] | select]",
    "ns.n = [(t + 'a').upper, ns.n] | map('string')",
]
"""Values that keep all those before them."""


def growing(turns: int, step: str, then: str = "") -> str:
    """Returns a template that has two values and a text to begin with, and does something in each turn, and then."""
    begun = "{% set t = 'a' * 60000 %}{% set ns = namespace(x=(1, 2), y=(1, 2), n=none) %}"
    return f"{begun}{{% for i in range({turns}) %}}{{% {step} %}}{{% endfor %}}{{{{ {then or 1} }}}}"


def doubling(value: str) -> str:
    return f"set ns.x = {value} %}}{{% set ns.y = {value.replace('.x', '.y')}"


BOMBS += [growing(60, doubling(each), "ns.x == ns.y") for each in DOUBLED]
BOMBS += [growing(60, doubling("(ns.x, ns.x)"), each) for each in VISITED]
BOMBS += [growing(60000, f"set {each}") for each in KEPT]
BOMBS += [
    "{% macro m(ns) %}{% set ns.x = varargs %}{% endmacro %}" + growing(60, "set z = m(ns, ns.x, ns.x)", "{ns.x: 1}"),
    "{% macro m(ns) %}{% set ns.x = kwargs %}{% endmacro %}"
    + growing(60, "set z = m(ns, a=ns.x, b=ns.x) + m(ns, a=ns.x, b=[ns.x])", "ns.x == [ns.x]"),
    "{% set big = [1] * 30000 %}{{ big | sort(attribute='" + "real," * 10000 + "') | length }}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_bombs_are_refused_at_once(source: str) -> None:
    tracemalloc.start()
    begun = process_time()
    try:
        with pytest.raises(InvalidRequest, match=r"too (much|long|wide|large)|RecursionError|OverflowError"):
            ChatTemplate(source, {}).render([{"role": "user", "content": "x"}], [], True)
        assert process_time() - begun < 3
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
    "{% set c = cycler('a', 'b') | default('c') %}{{ c.next() ~ c.next() }}{% for a, (b, c) in [(1, (2, '3'))] %}"
    "{{ a, [b, c], {c: messages[:1]}, messages[0].content[1:], 1 < b == 2, c in (a, '3') }}{% endfor %}",
    "{% for row in messages | batch(3, 'd') %}{{ row }}{% endfor %}{{ messages | reverse | list }}"
    "{{ messages | groupby('role') }}{{ messages | map(attribute='role') | unique | join(', ') }}",
    "{{ {'é': '<&>'} | tojson(indent=2) }}{{ messages[0].content | replace('a', 'bb') | indent(4) }}{{ missing }}",
]


@pytest.mark.parametrize("source", ORDINARY)
def test_ordinary_templates_write_what_transformers_writes(source: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    chat = [{"role": "user", "content": " a\n안녕 "}, {"role": "assistant", "content": "b"}]
    theirs: Any = render_jinja_template(conversations=[chat], chat_template=source, add_generation_prompt=True)
    assert ChatTemplate(source, {}).render(chat, [], True) == theirs[0][0]


@pytest.mark.parametrize("comparison", ["big == same", "-1 in big", "big is eq(same)", "-1 is in(big)"])
def test_comparisons_look_at_the_clock(comparison: str) -> None:
    lists = "{% set big = [1] * 30000 %}{% set same = [1.0] * 30000 %}"
    template = ChatTemplate(f"{lists}{{{{ [{f'{comparison}, ' * 400}] | length }}}}", {})
    with pytest.raises(InvalidRequest, match="takes too long"), renderings_within(0.05):
        template.render([{"role": "user", "content": "x"}], [], True)


def test_a_filter_that_takes_the_square_of_a_text_is_none() -> None:
    with pytest.raises(InvalidRequest, match="does not compile"):
        ChatTemplate("{{ messages[0].content | wordwrap(1) }}", {})


def test_a_namespace_is_written_without_its_values() -> None:
    """Each value may be a namespace of two that are one."""
    doubled = "{% for i in range(60) %}{% set ns.x = namespace(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x }}"
    template = ChatTemplate("{% set ns = namespace(x=1) %}" + doubled, {})
    assert template.render([{"role": "user", "content": "x"}], [], True) == "<Namespace>"


def test_a_long_list_that_grows_by_one_costs_no_walk_over_it() -> None:
    grown = "{% for m in messages %}{% set ns.x = ns.x + [m] %}{% endfor %}{{ ns.x | length }}"
    chat = [{"role": "user", "content": "a" * 60}] * 3000
    assert ChatTemplate("{% set ns = namespace(x=[]) %}" + grown, {}).render(chat, [], True) == "3000"


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
    monkeypatch.setattr(budgets, "thread_time", lambda: next(seconds))
    monkeypatch.setattr(budgets, "_collected", threading.local())
    budget = Budget(10, 0.25)
    for phase in ("start", "stop"):
        budgets._note_collection(phase, {})
    budget.look()
    monkeypatch.setattr(budgets, "thread_time", lambda: 5.3)
    with pytest.raises(TooMuch):
        budget.look()
