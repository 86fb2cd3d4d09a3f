"""The chat template for models that bring none: ChatML with tools in Hermes' notation.

Most small models have seen ChatML. One without its tokens reads the markers as plain text, so they
must also end a turn as text (`FALLBACK_STOP_TEXTS`).
"""

from inference_svc.chat.parsers.formats import ReasoningFormat, ToolCallFormat, TurnFormat

FALLBACK_STOP_TEXTS = ("<|im_end|>",)
FALLBACK_FORMAT = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.HERMES)
FALLBACK_TEMPLATE = """\
{%- set ns = namespace(system='') %}
{%- if messages and messages[0].role == 'system' %}
{%- set ns.system = messages[0].content %}
{%- endif %}
{%- if tools %}
{%- set ns.system = ns.system + ('\\n\\n' if ns.system else '') + '# Tools\\n\\nYou can call these \
functions:\\n<tools>' %}
{%- for tool in tools %}{% set ns.system = ns.system + '\\n' + (tool | tojson) %}{% endfor %}
{%- set ns.system = ns.system + '\\n</tools>\\n\\nTo call a function, answer with:\\n<tool_call>\\n\
{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' %}
{%- endif %}
{%- if ns.system %}{{- '<|im_start|>system\\n' + ns.system + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'system' and loop.first %}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else \
call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
