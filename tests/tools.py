"""Chat templates that place tool calls, in three shapes that models are trained on, and a chat with calls."""

from __future__ import annotations

from service.text.messages import Message, ToolCall

AS_JSON = """{{ bos_token }}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {%- set function = call.function if call.function is defined else call %}
        {{- '\n<call>\n{"name": "' + function.name + '", "arguments": ' }}
        {{- (function.arguments | tojson) + '}\n</call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

AS_TAGS = """{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<result of="' + message.tool_call_id + '">' }}
        {{- message.content | trim + '</result><|im_end|>' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content }}
        {%- if message.tool_calls is defined and message.tool_calls is iterable %}
            {%- for call in message.tool_calls %}
                {{- '<function=' + call.function.name + '>' }}
                {%- for key, value in call.function.arguments | items %}
                    {%- set value = value if value is string else value | tojson %}
                    {{- '<parameter=' + key + '>' + value + '</parameter>' }}
                {%- endfor %}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>' }}
    {%- endif %}
{%- endfor %}"""

AS_A_LIST = """{% for message in messages %}
{% if message['tool_calls'] %}
[CALLS] [{% for call in message['tool_calls'] %}{{ call.function | tojson(sort_keys=true) }}{{ ', ' if not loop.last }}\
{% endfor %}]</s>
{% elif message.role == 'tool' %}
[RESULT] {"content": {{ message.content | tojson }}, "id": "{{ message.tool_call_id }}"}
{% else %}
[{{ message.role | upper }}] {{ message.content }}
{% endif %}
{% endfor %}"""

WITH_TOOLS = """{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- for tool in tools %}{{- tool.function | tojson + '\\n' }}{%- endfor %}
{{- 'Call as <tool_call>\\n{...}\\n</tool_call><|im_end|>\\n' }}{%- endif %}""" + AS_JSON.replace("call>", "tool_call>")
"""Calls as Hermes and Qwen write them."""
REASONING = (
    AS_JSON.removesuffix("{% endif %}")
    + """
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}
{%- elif opens %}{{ '<think>\\n' }}{% endif %}{% endif %}"""
)
"""Reasons before its answers unless `enable_thinking` is false; with `opens` the prompt opens the part."""
TEMPLATES = {"json": AS_JSON, "tags": AS_TAGS, "list": AS_A_LIST}

WEATHER = ToolCall("call_1", "get_weather", '{"city": "서울", "days": 3, "units": ["C", null], "a": {"b": 1.5}}')
PRICE = ToolCall("call_2", "price", "{}")
CHAT = (
    Message("system", "You sell lunch."),
    Message("user", "hello, weather?"),
    Message("assistant", "", tool_calls=(WEATHER, PRICE)),
    Message("tool", '{"sky": "clear"}', tool_call_id="call_1"),
    Message("tool", "8,900", tool_call_id="call_2"),
    Message("assistant", "It is clear."),
    Message("user", "don't stop ."),
)

DEMO_WITH_TOOLS = """{{- bos_token -}}
{%- if tools -%}{{- '<|system|>' -}}{%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}
{{- 'Call as <tool_call></tool_call><|end|>' -}}{%- endif -%}
{%- for message in messages -%}
{{- '<|assistant|>' if message.role == 'assistant' else '<|user|>' -}}{{- message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' -}}
{%- endfor -%}{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""
"""For the demo model's tokens; it was not taught any calls."""
