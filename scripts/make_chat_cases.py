#!/usr/bin/env python3
"""Writes tests/data/chat_cases.json: what Jinja2 makes of chat templates.

usage: scripts/make_chat_cases.py [--shared FOLDER] OUTPUT
needs jinja2 (3.1); with --shared (tokenizers/qwen3 below it) also tokenizers

Each case has a template, messages (and tools, variables) and either the rendered text or the word
that Jinja2 refuses it. The environment is the one in which transformers renders chat templates.
"""

import argparse
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HELLO = [{"role": "user", "content": "Hello"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " What is 2 + 2?\n"},
    {"role": "assistant", "content": "<think>\nsimple\n</think>\n\nIt is 4."},
    {"role": "user", "content": "Grüße, 你好 \U0001f600"},
]
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place; \"now\"",
    "parameters": {"type": "object", "properties": {
        "Place": {"type": "string", "description": "a <town>"},
        "days": {"type": "integer", "default": 1, "factor": 0.5},
        "exact": {"type": "boolean", "enum": [True, False, None]}},
        "required": ["Place"]}}}]
CALLS = TALK[:2] + [
    {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "get_weather",
                                          "arguments": {"Place": "Köln", "days": 2}}}]},
    {"role": "tool", "name": "get_weather", "content": "rain"},
    {"role": "assistant", "content": "Rain."},
]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"},
                                      {"type": "text", "text": "b"}]}]

# (template, messages) or (template, messages, {"tools": …, "variables": …})
CASES = [
    # Text and white space around tags
    ("plain", HELLO),
    ("a\n{% if true %}\nb\n{% endif %}\nc\n", HELLO),
    ("a\n   {% if true %}  \n  b  \n\t{% endif %}   c", HELLO),
    ("a \n {%- if true -%} \n b \n {%- endif -%} \n c", HELLO),
    ("a\n  {%+ if true +%}\n  b\n{% endif %}", HELLO),
    ("a {{- ' b ' -}} c", HELLO),
    ("a\n  {{ 'b' }}\n  c\n\n", HELLO),
    ("a{# note #}b\n  {# note\n over lines #}\nc {#- x -#} d", HELLO),
    ("{% raw %}{{ x }}{% if %}{% endraw %}!", HELLO),
    ("  {% raw -%}\n  x {{ '{' }}\n  {%- endraw %}\ny", HELLO),
    ("{{ {'a': {'b': 1}}['a'] }}", HELLO),
    ("\r\na\r\n{% if true %}\r\nb{% endif %}\r\n", HELLO),
    ("{{ 'a' 'b' \"c\" }}", HELLO),
    (r"{{ 'tab\t nl\n q\' b\\ x\x41 u\u00e9 \q' }}", HELLO),
    ("{ { % } # }}", HELLO),
    # Names, literals, operators
    ("{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }}", HELLO),
    ("{{ 1.5 }} {{ 2.0 }} {{ 1e3 }} {{ 0.1 + 0.2 }} {{ 1e-7 }} {{ 1.0 * 3 }}", HELLO),
    ("{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }}{{ 'ab' * 2 }}{{ [1] * 2 }}", HELLO),
    ("{{ 1 < 2 }} {{ 1 < 2 < 2 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' != 'b' }}",
     HELLO),
    ("{{ not true }} {{ not not 'x' }} {{ 0 or '' or 'z' }} {{ 1 and 0 }} {{ none or [] }}", HELLO),
    ("{{ 'a' if false }}|{{ 'a' if true else 'b' }}|{{ 1 if 0 else 2 if 0 else 3 }}", HELLO),
    ("{{ 'b' in 'abc' }} {{ 1 not in [1, 2] }} {{ 'k' in {'k': 1} }} {{ 'x' in missing }}", HELLO),
    ("{{ [1, 'two', none, 3.0, true, ('t',), {'k': \"it's\"}] }}", HELLO),
    ("{{ 'a\\'b' }} {{ ['a\\'b', 'c\"d', 'e\\'f\"g', 'h\\n\\t\\\\'] }}", HELLO),
    ("{{ missing }}|{{ missing is defined }}|{{ messages is defined }}|{{ none }}", HELLO),
    ("{{ messages[0].role }} {{ messages[0]['role'] }} {{ messages[-1].content[1:3] }}", HELLO),
    ("{{ messages[5] is defined }} {{ messages[0].nothing is defined }}", HELLO),
    ("{{ 'abcdef'[::-1] }} {{ 'abcdef'[1:-1:2] }} {{ 'Grüße'[2:4] }} {{ [1,2,3][:-1] }}", HELLO),
    ("{{ 'abc'[10:] }}|{{ 'abc'[-10:2] }}|{{ 'abc'[0] }}|{{ [1,2,3][::-2] }}", HELLO),
    ("{{ (1, 2) }} {{ () }} {{ (1,) }} {{ 1, 2 }}", HELLO),
    ("{{ -3|abs }} {{ 2 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }}", HELLO),
    # Statements
    ("{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ m.role }}: {{ m.content }}"
     "{% if not loop.last %}\n{% endif %}{% endfor %}", TALK),
    ("{% for m in messages[::-1] %}{{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} "
     "{{ loop.first }} {{ loop.previtem is defined }} {% if not loop.last %}{{ loop.nextitem.role }}"
     "{% endif %};{% endfor %}", TALK),
    ("{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content|trim }};"
     "{% else %}none{% endfor %}", TALK),
    ("{% for x in [] %}x{% else %}empty{% endfor %}{% for x in missing %}x{% else %}!{% endfor %}",
     HELLO),
    ("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}", HELLO),
    ("{% for c in 'añ' %}[{{ c }}]{% endfor %}{% for k in {'x': 1} %}{{ k }}{% endfor %}", HELLO),
    ("{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}"
     "{% endif %}{{ i }}{% endfor %}", HELLO),
    ("{% for i in range(2, 8, 3) %}{{ i }},{% endfor %}{{ range(3)|list }}", HELLO),
    ("{% set x = 1 %}{% for i in range(3) %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", HELLO),
    ("{% set ns = namespace(n=0, last='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
     "{% set ns.last = m.role %}{% endfor %}{{ ns.n }}{{ ns.last }}{{ ns.other is defined }}", TALK),
    ("{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}<{{ a }}>{% endset %}{{ c }}{{ c|length }}",
     HELLO),
    ("{% set x | upper %}abc{% endset %}{{ x }}{% filter replace('a', 'o') %}banana{% endfilter %}",
     HELLO),
    ("{% macro greet(name, mark='!') %}Hi {{ name }}{{ mark }}{% endmacro %}"
     "{{ greet('A') }}{{ greet('B', '?') }}{{ greet(mark='.', name='C') }}{{ greet()|length }}",
     HELLO),
    ("{% set y = 5 %}{% macro f(n) %}{% if n > 0 %}{{ n }}{{ y }}{{ f(n - 1) }}{% endif %}"
     "{% endmacro %}{% for y in [7] %}{{ f(2) }}{% endfor %}", HELLO),
    ("{% if false %}a{% elif none %}b{% elif [0] %}c{% else %}d{% endif %}", HELLO),
    ("{% if messages[0].role == 'system' and messages|length > 1 %}{{ messages[0].content }}"
     "{% endif %}", TALK),
    ("{% for r in [1,2,3,4] %}{{ loop.cycle('a', 'b') }}{% endfor %}", HELLO),
    ("{% generation %}{{ messages[0].content }}{% endgeneration %}", HELLO, {"no_oracle": "Hello"}),
    # Filters
    ("{{ ' x '|trim }}|{{ 'xxaxx'|trim('x') }}|{{ messages|length }}|{{ 'añ'|count }}", HELLO),
    ("{{ missing|default('d') }}{{ ''|default('e') }}{{ ''|default('f', true) }}{{ none|d(1) }}",
     HELLO),
    ("{{ [1, 'a', none]|join(', ') }} {{ messages|join('; ', attribute='role') }}", TALK),
    ("{{ 'banana'|replace('a', 'o') }} {{ 'banana'|replace('a', 'o', 2) }}", HELLO),
    ("{{ messages|map(attribute='role')|list }} {{ ['a', 'b']|map('upper')|join }}", TALK),
    ("{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|map('length')|list }}",
     TALK),
    ("{{ messages|rejectattr('role', 'eq', 'user')|list|length }} {{ [0,1,2]|select('odd')|list }}"
     " {{ [0, 1, '']|reject|list }} {{ messages|selectattr('tool_calls')|list|length }}", CALLS),
    ("{{ [3,1,2]|first }}{{ [3,1,2]|last }}{{ 'abc'|first }}{{ []|first is defined }}", HELLO),
    ("{{ [3,1,2]|sort|list }} {{ ['b','A','c']|sort }} {{ ['b','A']|sort(case_sensitive=true) }}"
     " {{ [1,2]|sort(reverse=true) }}", HELLO),
    ("{{ {'b': 1, 'A': 2, 'c': 0}|dictsort }} {{ {'b': 1, 'a': 2}|dictsort(by='value') }}"
     " {{ {'b': 1, 'a': 2}|dictsort(reverse=true) }}", HELLO),
    ("{{ [1,1,2]|unique|list }} {{ [1,2,3]|reverse|list }} {{ 'abc'|reverse }}", HELLO),
    ("{{ 'aBc d'|upper }} {{ 'ABC Ä'|lower }} {{ 'hELLO wORLD'|capitalize }} {{ 'hello-big wORLD'|title }}",
     HELLO),
    ("{{ '42'|int + 1 }} {{ 'x'|int }} {{ 3.9|int }} {{ 3|float }} {{ ' 7 '|int(9) }} {{ 1|string + '1' }}",
     HELLO),
    ("{{ 'a\n\nb\nc'|indent(2) }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(1, blank=true) }}",
     HELLO),
    ("{{ {'a': 1}|items|list }}{{ 'x<y>'|safe }}", HELLO),
    # tojson
    ("{{ tools|tojson }}\n{{ tools|tojson(indent=4) }}\n{{ tools|tojson(indent=2, sort_keys=true) }}",
     HELLO, {"tools": TOOLS}),
    ("{{ 'q\"b\\\\s/ \\u0001\\t\\u007f é <&>'|tojson }} {{ [none, true, 1, 1.0, 1e-7, 1e20]|tojson }} "
     "{{ {}|tojson }}{{ []|tojson(indent=2) }}", HELLO),
    # Methods
    ("{{ ' a b  c '.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} "
     "{{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c'.split(none, 1) }}", HELLO),
    ("{{ '  x '.strip() }}|{{ '  x '.lstrip() }}|{{ '  x '.rstrip() }}|{{ 'xyax'.strip('xy') }}", HELLO),
    ("{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'bc')) }} {{ 'abca'.find('ca') }} "
     "{{ 'abc'.find('z') }} {{ 'banana'.count('an') }} {{ 'abc'.upper() }} {{ 'aBC'.capitalize() }}",
     HELLO),
    ("{{ 'a\nb\r\nc'.splitlines() }} {{ 'abc'.replace('b', '') }} {{ '-'.join(['a', 'b']) }} "
     "{{ 'abc'.removeprefix('a').removesuffix('c') }}", HELLO),
    ("{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} "
     "{{ {'a': 1}.keys()|list }} {{ {'a': 1}.values()|list }}", HELLO),
    ("{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}", TALK),
    # Tests
    ("{% for x in [1, 1.0, 'a', [], {}, none, true, missing] %}{{ x is string }}{{ x is mapping }}"
     "{{ x is iterable }}{{ x is sequence }}{{ x is number }}{{ x is integer }}{{ x is float }}"
     "{{ x is boolean }}{{ x is none }}{{ x is true }}{{ x is defined }} {% endfor %}", HELLO),
    ("{{ 1 is eq 1 }} {{ 1 is ne 1 }} {{ 1 is lt 2 }} {{ 2 is ge(2) }} {{ 'a' is in ['a'] }} "
     "{{ true is sameas true }} {{ 1 is not none }} {{ range is callable }}", HELLO),
    # Whole conversations
    ("{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}{{ eos_token }}\n"
     "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}", TALK),
    ("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
     "{% for p in m.content %}{% if p.type == 'text' %}{{ p['text'] }}{% elif p['type'] == 'image' %}"
     "<image>{% endif %}{% endfor %}{% endif %}{% endfor %}", PARTS),
    ("{%- macro field(properties, required) -%}\n"
     "    {%- set ns = namespace(found=false) -%}\n"
     "    {%- for key, value in properties | dictsort -%}\n"
     "        {%- if ns.found %},{% endif -%}\n"
     "        {%- set ns.found = true -%}\n"
     "        {{- key }}:{type:{{ value['type'] | upper }}{% if key in required %},required{% endif %}"
     "{% if value.description %},description:{{ value.description }}{% endif %}}\n"
     "    {%- endfor -%}\n"
     "{%- endmacro -%}\n"
     "{% for tool in tools %}{% set f = tool.function %}{{ f.name }}("
     "{{- field(f.parameters.properties, f.parameters.required) -}}){% endfor %}",
     HELLO, {"tools": TOOLS}),
    ("{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
     "<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}"
     "{% elif m.role == 'tool' %}<result>{{ m.content }}</result>{% else %}{{ m.content }}{% endif %}"
     "{% endfor %}", CALLS),
    ("{% if enable_thinking is defined and enable_thinking is false %}off{% else %}on{% endif %}",
     HELLO, {"variables": {"enable_thinking": False}}),
    ("{% if strftime_now is defined %}{{ strftime_now('%d %b %Y, %B %m %%') }}{% else %}26 Jul 2024{% endif %}",
     HELLO, {"date": "2026-03-07"}),
    ("{% if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}26 Jul 2024{% endif %}", HELLO),
    ("{% set content = messages[0].content %}{{ content if content else '' }}"
     "{{ 'x' if messages | length > 1 else 'y' }}{{ (messages|length - 1) }}", HELLO),
    # Refused
    ("{{ raise_exception('roles must alternate') }}", HELLO),
    ("{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}", HELLO),
    ("{{ missing.content }}", HELLO),
    ("{{ messages[0].content.nothing.more }}", HELLO),
    ("{{ missing + 'a' }}", HELLO),
    ("{{ 'a' + 1 }}", HELLO),
    ("{{ 1 / 0 }}", HELLO),
    ("{{ 1 < 'a' }}", HELLO),
    ("{{ missing() }}", HELLO),
    ("{{ none|length }}", HELLO),
    ("{% for a, b in [[1, 2, 3]] %}{% endfor %}", HELLO),
    ("{% set x.y = 1 %}", HELLO),
    ("{{ 'a'.split('') }}", HELLO),
    ("{% if %}{% endif %}", HELLO),
    ("{% if true %}", HELLO),
    ("{% endif %}", HELLO),
    ("{{ 'a }}", HELLO),
    ("{{ (1 }}", HELLO),
    ("{{ 1", HELLO),
    ("{# a", HELLO),
    ("{% break %}", HELLO),
    ("{{ a b }}", HELLO),
    ("{{ 1 $ }}", HELLO),
    ("{{ [1,,2] }}", HELLO),
    ("{{ f(a=1, 2) }}", HELLO),
    ("{% for x in %}{% endfor %}", HELLO),
    ("{% macro f(a, a=1, b) %}{% endmacro %}", HELLO),
]

CONVERSATIONS = [
    (HELLO, {}), (TALK, {}), (CALLS, {}), (CALLS, {"tools": TOOLS}),
    (TALK[1:], {"variables": {"enable_thinking": False}}),
    (HELLO, {"add_generation_prompt": False}),
    ([{"role": "user", "content": "a "}, {"role": "assistant", "content": "\n b"},
      {"role": "user", "content": "1234 \n\n  c'd\t"}], {}),
]




def environment(date):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    if date:
        import datetime
        env.globals["strftime_now"] = datetime.date.fromisoformat(date).strftime
    return env


def render(template, messages, options):
    env = environment(options.get("date"))
    return env.from_string(template).render(
        messages=messages, tools=options.get("tools"), documents=None,
        add_generation_prompt=options.get("add_generation_prompt", True),
        bos_token="<s>", eos_token="</s>", **options.get("variables", {}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    arguments = parser.parse_args()
    cases = []
    for template, messages, *rest in CASES:
        options = dict(rest[0]) if rest else {}
        case = {"template": template, "messages": messages}
        known = options.pop("no_oracle", None)
        case.update(options)
        try:
            case["text"] = known if known is not None else render(template, messages, options)
        except Exception as error:  # whatever Jinja2 or Python raises
            case["refused"] = type(error).__name__
        cases.append(case)
    result = {"jinja2": jinja2.__version__, "cases": cases}
    if arguments.shared:
        import tokenizers
        folder = arguments.shared / "tokenizers" / "qwen3"
        template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        result["qwen3"] = []
        for messages, options in CONVERSATIONS:
            text = render(template, messages, options)
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            result["qwen3"].append({"messages": messages, **options, "text": text, "ids": ids})
    arguments.output.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
